// Which positions of which epoch each step of a loop reads, on each rank.
#pragma once

#include <cstdint>

namespace stepwell {

// An endless loop over epochs of `length` positions, cut into steps of `batch` positions
// a rank. The order of rows does not depend on the world: at position p, rank r reads
// [p + r * batch, p + (r + 1) * batch), or, where positions are taken in turn, p + r,
// p + r + world, p + r + 2 * world, …
//
// What is left at the end of an epoch, fewer than world * batch positions, is dropped, or
// shared out equally: each rank gets ceil(left / world), and the last ranks, when that does
// not divide, continue at the epoch's first positions. One rank alone gets a short batch.
//
// Several workers may serve one rank: worker w of `workers` makes the rank's steps number
// w, w + workers, w + 2 * workers, … of every epoch.
struct Schedule {
  // What one rank reads in one step: `count` positions from `start` on, every stride-th, modulo
  // the length. `after` is the global position once every rank has had its part; at most `length`.
  struct Step {
    std::uint64_t epoch;
    std::int64_t start;
    std::int64_t count;
    std::int64_t after;
    std::int64_t stride;
  };

  // Begins at `position` of `epoch`. Throws std::invalid_argument for numbers that make no
  // sense, and when an epoch would have no step.
  Schedule(std::int64_t length, std::int64_t batch, std::int64_t rank, std::int64_t world,
           bool drop_last, std::uint64_t epoch, std::int64_t position, std::int64_t worker = 0,
           std::int64_t workers = 1, bool in_turn = false);

  // Steps from `position` to the end of an epoch; 0 for a worker that has none.
  std::int64_t steps_from(std::int64_t position) const;

  // Step number n, counted from where the schedule begins, through all epochs. Throws
  // std::out_of_range when epochs are too short for this worker to have one.
  Step step(std::uint64_t n) const;

 private:
  std::int64_t first_from(std::int64_t position) const;

  std::int64_t length_, batch_, rank_, world_;
  bool drop_last_;
  std::uint64_t epoch_;
  std::int64_t position_, worker_, workers_;
  bool in_turn_;
};

}  // namespace stepwell

// Which positions of which epoch each step of a loop reads, on each rank.
#pragma once

#include <cstdint>

namespace stepwell {

// An endless loop over epochs of `length` positions, cut into steps of `batch` positions
// a rank. The order of rows does not depend on the world: at position p, rank r reads
// [p + r * batch, p + (r + 1) * batch).
//
// What is left at the end of an epoch, fewer than world * batch positions, is
//   dropped   left out;
//   shared    each rank gets ceil(left / world), and the last ranks, when that does not
//             divide, continue at the epoch's first positions: equal batches for all;
//   clipped   each rank gets what its usual part still holds, the last ranks nothing.
// One rank alone gets a short batch either way.
struct Schedule {
  enum class Tail { dropped, shared, clipped };

  // What one rank reads in one step: `count` positions from `start` on, modulo the length.
  // `after` is the global position once every rank has had its part; at most `length`.
  struct Step {
    std::uint64_t epoch;
    std::int64_t start;
    std::int64_t count;
    std::int64_t after;
  };

  // Begins at `position` of `epoch`. Throws std::invalid_argument for numbers that make no
  // sense, and when an epoch would have no step.
  Schedule(std::int64_t length, std::int64_t batch, std::int64_t rank, std::int64_t world,
           Tail tail, std::uint64_t epoch, std::int64_t position);

  // Steps from `position` to the end of an epoch.
  std::int64_t steps_from(std::int64_t position) const;

  // Step number n, counted from where the schedule begins, through all epochs.
  Step step(std::uint64_t n) const;

 private:
  std::int64_t length_, batch_, rank_, world_;
  Tail tail_;
  std::uint64_t epoch_;
  std::int64_t position_;
};

}  // namespace stepwell

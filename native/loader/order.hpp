// In which order an epoch visits the rows: a pure function from position to row.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace stepwell {

// An order has no cursor and no state, so any thread may ask for any part of any epoch.
class Order {
 public:
  virtual ~Order() = default;

  // Positions in one epoch.
  std::int64_t length() const { return length_; }

  // Neighbouring positions that read different blocks of the source. Above 1, ranks take positions
  // in turn, so that each has blocks of its own.
  std::int64_t lanes() const { return lanes_; }

  // Throws std::out_of_range unless `count` positions from `start` on, every stride-th, are inside
  // [0, length()).
  void check(std::int64_t start, std::int64_t count, std::int64_t stride = 1) const;

  // Writes the rows at out.size() positions of `epoch`, which are checked.
  void rows(std::uint64_t epoch, std::int64_t start, std::span<std::int64_t> out,
            std::int64_t stride = 1) const;

 protected:
  explicit Order(std::int64_t length, std::int64_t lanes = 1) : length_(length), lanes_(lanes) {}
  virtual void fill(std::uint64_t epoch, std::uint64_t start, std::uint64_t stride,
                    std::span<std::int64_t> out) const = 0;

 private:
  std::int64_t length_, lanes_;
};

using OrderPtr = std::shared_ptr<const Order>;

// Each throws std::invalid_argument for numbers that make no sense. `count` is the number of
// rows of the source.

// Every row once, uniformly shuffled.
OrderPtr shuffle_order(std::int64_t count, std::uint64_t seed);

// Every row once: blocks of `block` neighbouring rows in shuffled order, then rows shuffled
// inside windows of up to `group` consecutive blocks of that order. Each of the `lanes` equal
// parts of a window is shuffled alone, and positions go to them in turn.
OrderPtr block_order(std::int64_t count, std::uint64_t seed, std::int64_t block,
                     std::int64_t group, std::int64_t lanes = 1);

// Windows of `window` neighbouring rows, the next one `stride` rows further, around the ring:
// ceil(count / stride) windows, the last ones continuing at row 0.
OrderPtr sequential_order(std::int64_t count, std::int64_t window, std::int64_t stride);

// `count` draws with replacement, uniform.
OrderPtr iid_order(std::int64_t count, std::uint64_t seed);

// `count` draws with replacement, row i as often as cumulative[i] - cumulative[i - 1] says.
// `cumulative` never falls, ends above 0, and lives as long as `keep`.
OrderPtr weighted_order(std::span<const double> cumulative, std::shared_ptr<const void> keep,
                        std::uint64_t seed);

}  // namespace stepwell

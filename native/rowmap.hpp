// How the rows of a view become rows of what it looks at.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stepwell {

// Each view row becomes `width()` neighbouring rows of the base (1 but for windows).
class RowMap {
 public:
  virtual ~RowMap() = default;

  std::int64_t length() const { return length_; }
  std::int64_t width() const { return width_; }

  // Base rows for `count` view rows. Throws std::bad_alloc when no memory holds so many.
  std::size_t mapped_size(std::size_t count) const;

  // Base rows of `rows`, width() for each. `rows` are inside [0, length()).
  // out.size() is mapped_size(rows.size()).
  void apply(std::span<const std::int64_t> rows, std::span<std::int64_t> out) const;

 protected:
  RowMap(std::int64_t length, std::int64_t width) : length_(length), width_(width) {}
  // The first base row of each view row.
  virtual void first_rows(std::span<const std::int64_t> rows,
                          std::span<std::int64_t> out) const = 0;

 private:
  std::int64_t length_;
  std::int64_t width_;
};

using RowMapPtr = std::shared_ptr<const RowMap>;

// Row i is base row index[i]. The memory lives as long as `keep`.
RowMapPtr index_map(std::span<const std::int64_t> index, std::shared_ptr<const void> keep);

// Range k contributes counts[k] rows: starts[k], starts[k] + step, starts[k] + 2 * step, …;
// the ranges follow one another. A row finds its range through a table of stretches, so the map
// costs up to 32 bytes a range (48 or 80 if many are short, or a row number needs more than 32 bits) however many rows it has. Each view row is `width` base rows wide.
// Throws std::invalid_argument for negative counts and sums beyond 63 bits.
RowMapPtr range_map(std::span<const std::int64_t> starts, std::span<const std::int64_t> counts,
                    std::int64_t step, std::int64_t width);

}  // namespace stepwell

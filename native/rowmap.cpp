#include "rowmap.hpp"

#include <algorithm>
#include <new>
#include <stdexcept>

namespace stepwell {
namespace {

class IndexMap final : public RowMap {
 public:
  IndexMap(std::span<const std::int64_t> index, std::shared_ptr<const void> keep)
      : RowMap(static_cast<std::int64_t>(index.size()), 1), index_(index), keep_(std::move(keep)) {}

 private:
  void first_rows(std::span<const std::int64_t> rows, std::span<std::int64_t> out) const override {
    for (std::size_t i = 0; i < rows.size(); ++i)
      out[i] = index_[static_cast<std::size_t>(rows[i])];
  }

  std::span<const std::int64_t> index_;
  std::shared_ptr<const void> keep_;
};

// A range of view rows: those below `end` and not in an earlier range. View row r is base row
// `base + r * step`.
struct Range {
  std::int64_t end;
  std::int64_t base;
};

class RangeMap final : public RowMap {
 public:
  RangeMap(std::vector<Range> ranges, std::int64_t step, std::int64_t width)
      : RowMap(ranges.empty() ? 0 : ranges.back().end, width),
        ranges_(std::move(ranges)),
        step_(step) {
    if (ranges_.empty()) return;
    const auto last = static_cast<std::uint64_t>(ranges_.back().end - 1);
    while ((last >> shift_) / 2 >= ranges_.size()) ++shift_;
    stretches_.reserve((last >> shift_) + 1);
    std::size_t range = 0;
    for (std::uint64_t k = 0; k <= last >> shift_; ++k) {
      while (ranges_[range].end <= static_cast<std::int64_t>(k << shift_)) ++range;
      stretches_.push_back({ranges_[range], ranges_[std::min(range + 1, ranges_.size() - 1)]});
    }
  }

 private:
  // The first two ranges that a stretch of 2**shift_ view rows meets. There are at most twice as
  // many stretches as ranges, so few meet more: most rows are found in one cache line instead of
  // by a search through all ranges.
  struct alignas(32) Stretch {
    Range first, second;
  };
  static constexpr std::size_t kAhead = 24;

  void first_rows(std::span<const std::int64_t> rows, std::span<std::int64_t> out) const override {
    const Stretch* const stretches = stretches_.data();
    const auto stretch_of = [&](std::int64_t row) { return static_cast<std::uint64_t>(row) >> shift_; };
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i + kAhead < rows.size()) __builtin_prefetch(stretches + stretch_of(rows[i + kAhead]));
      const std::int64_t row = rows[i];
      const Stretch& stretch = stretches[stretch_of(row)];
      std::int64_t base = row < stretch.first.end ? stretch.first.base : stretch.second.base;
      if (row >= stretch.second.end) [[unlikely]]
        base = std::upper_bound(ranges_.begin(), ranges_.end(), row,
                                [](std::int64_t r, const Range& range) { return r < range.end; })
                   ->base;
      // Unsigned: base and product may wrap, their sum is a row.
      out[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(base) +
                                         static_cast<std::uint64_t>(row) *
                                             static_cast<std::uint64_t>(step_));
    }
  }

  std::vector<Range> ranges_;
  std::vector<Stretch> stretches_;
  unsigned shift_ = 0;
  std::int64_t step_;
};

}  // namespace

std::size_t RowMap::mapped_size(std::size_t count) const {
  std::size_t size;
  if (__builtin_mul_overflow(count, static_cast<std::size_t>(width_), &size) ||
      size > SIZE_MAX / 4 / sizeof(std::int64_t))
    throw std::bad_alloc();
  return size;
}

void RowMap::apply(std::span<const std::int64_t> rows, std::span<std::int64_t> out) const {
  if (width_ == 1) return first_rows(rows, out);
  // The first rows go to the end of `out`, whose earlier part the expansion fills in order:
  // slot i * width is never behind the place row i is read from.
  const auto firsts = out.last(rows.size());
  first_rows(rows, firsts);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t first = firsts[i];
    for (std::int64_t k = 0; k < width_; ++k)
      out[i * static_cast<std::size_t>(width_) + static_cast<std::size_t>(k)] = first + k;
  }
}

RowMapPtr index_map(std::span<const std::int64_t> index, std::shared_ptr<const void> keep) {
  return std::make_shared<IndexMap>(index, std::move(keep));
}

RowMapPtr range_map(std::span<const std::int64_t> starts, std::span<const std::int64_t> counts,
                    std::int64_t step, std::int64_t width) {
  if (starts.size() != counts.size())
    throw std::invalid_argument("starts and counts must have the same length");
  if (width < 1) throw std::invalid_argument("a row is at least one row wide");
  if (starts.size() > UINT32_MAX) throw std::invalid_argument("more than 2**32 ranges");
  std::vector<Range> ranges;
  ranges.reserve(starts.size());
  std::int64_t total = 0;
  for (std::size_t k = 0; k < starts.size(); ++k) {
    if (counts[k] < 0) throw std::invalid_argument("counts must not be negative");
    if (counts[k] == 0) continue;
    std::int64_t begin = total, last;
    if (__builtin_add_overflow(total, counts[k], &total) ||
        __builtin_mul_overflow(counts[k] - 1, step, &last) ||
        __builtin_add_overflow(starts[k], last, &last))
      throw std::invalid_argument("the ranges hold more than 2**63 rows");
    // Wraps where begin * step does, and wraps back when a row is looked up.
    const auto base = static_cast<std::int64_t>(static_cast<std::uint64_t>(starts[k]) -
                                                static_cast<std::uint64_t>(begin) *
                                                    static_cast<std::uint64_t>(step));
    ranges.push_back({total, base});
  }
  return std::make_shared<RangeMap>(std::move(ranges), step, width);
}

}  // namespace stepwell

#include "rowmap.hpp"

#include <algorithm>
#include <new>
#include <stdexcept>

#include "blocks.hpp"

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
  RangeMap(const std::vector<Range>& ranges, std::int64_t step, std::int64_t width)
      : RowMap(ranges.empty() ? 0 : ranges.back().end, width), count_(ranges.size()), step_(step) {
    if (ranges.empty()) return;
    const auto last = static_cast<std::uint64_t>(ranges.back().end - 1);
    while ((last >> shift_) / 2 >= count_) ++shift_;
    const std::uint64_t stretches = (last >> shift_) + 1;
    // On huge pages, if there is much of it: the rows that are read between two questions have
    // the page tables of small ones out of the caches every time.
    const std::size_t bytes = count_ * sizeof(Range) + stretches * sizeof(std::uint32_t);
    memory_ = allocate(bytes > kSmall ? std::max(bytes, kHuge) : bytes);
    auto* table = reinterpret_cast<Range*>(memory_.get());
    std::copy(ranges.begin(), ranges.end(), table);
    auto* first_of = reinterpret_cast<std::uint32_t*>(table + count_);
    std::uint32_t range = 0;
    for (std::uint64_t k = 0; k < stretches; ++k) {
      while (ranges[range].end <= static_cast<std::int64_t>(k << shift_)) ++range;
      first_of[k] = range;
    }
  }

 private:
  static constexpr std::size_t kSmall = std::size_t{1} << 16;
  static constexpr std::size_t kHuge = std::size_t{1} << 21;
  static constexpr std::size_t kBlock = 64;

  void first_rows(std::span<const std::int64_t> rows, std::span<std::int64_t> out) const override {
    const auto* const ranges = reinterpret_cast<const Range*>(memory_.get());
    // The range of the first row of each stretch of 2**shift_ view rows. There are at most twice
    // as many stretches as ranges, so few meet more than two.
    const auto* const first_of = reinterpret_cast<const std::uint32_t*>(ranges + count_);
    std::uint32_t firsts[kBlock];
    for (std::size_t begin = 0; begin < rows.size(); begin += kBlock) {
      const auto part = rows.subspan(begin, std::min(kBlock, rows.size() - begin));
      for (std::size_t i = 0; i < part.size(); ++i) {
        firsts[i] = first_of[static_cast<std::uint64_t>(part[i]) >> shift_];
        __builtin_prefetch(ranges + firsts[i]);
      }
      for (std::size_t i = 0; i < part.size(); ++i) {
        const std::int64_t row = part[i];
        // The first range that ends behind the row, mostly found without a branch to mispredict.
        const Range* at = ranges + firsts[i];
        at += at->end <= row;
        if (at->end <= row) [[unlikely]]
          at = std::upper_bound(at, ranges + count_, row,
                                [](std::int64_t r, const Range& range) { return r < range.end; });
        // Unsigned: base and product may wrap, their sum is a row.
        out[begin + i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(at->base) +
                                                   static_cast<std::uint64_t>(row) *
                                                       static_cast<std::uint64_t>(step_));
      }
    }
  }

  std::size_t count_;
  std::int64_t step_;
  unsigned shift_ = 0;
  BlockRef memory_;  // the ranges, then where each stretch begins among them
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
  return std::make_shared<RangeMap>(ranges, step, width);
}

}  // namespace stepwell

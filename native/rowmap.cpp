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

// Numbers of rows, in 32 bits where all of them fit: half the memory to wait for.
template <class Number>
class RangeMap final : public RowMap {
 public:
  RangeMap(std::vector<Range> ranges, std::int64_t step, std::int64_t width)
      : RowMap(ranges.empty() ? 0 : ranges.back().end, width), step_(static_cast<Number>(step)) {
    if (ranges.empty()) return;
    const auto last = static_cast<std::uint64_t>(ranges.back().end - 1);
    while (last >> shift_ >= 2 * ranges.size()) ++shift_;
    const std::size_t count = (last >> shift_) + 1, bytes = count * sizeof(Stretch);
    // On huge pages, if there is much of it: the rows that are read between two questions have
    // the page tables of small ones out of the caches every time.
    memory_ = allocate(bytes > kSmall ? std::max(bytes, kHuge) : bytes);
    stretches_ = reinterpret_cast<Stretch*>(memory_.get());
    bool any_crowded = false;
    std::size_t k = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const auto begin = static_cast<std::int64_t>(i << shift_);
      while (ranges[k].end <= begin) ++k;
      const Range& next = ranges[std::min(k + 1, ranges.size() - 1)];
      const bool crowded =
          std::min(last, (std::uint64_t{i} << shift_) | ((std::uint64_t{1} << shift_) - 1)) >=
          static_cast<std::uint64_t>(next.end);
      any_crowded |= crowded;
      stretches_[i] = {static_cast<Number>(ranges[k].end), static_cast<Number>(ranges[k].base),
                       static_cast<Number>(next.base), crowded};
    }
    if (any_crowded) ranges_ = std::move(ranges);
  }

 private:
  // 2**shift_ neighbouring view rows. There are about as many stretches as ranges, so few meet
  // more than two.
  struct Stretch {
    Number end;   // of the range that the first row is in
    Number here;  // what to add to a row below `end`,
    Number next;  // and to one that is not
    Number crowded;
  };

  static constexpr std::size_t kSmall = std::size_t{1} << 16;
  static constexpr std::size_t kHuge = std::size_t{1} << 21;
  static constexpr std::size_t kAhead = 32;

  void first_rows(std::span<const std::int64_t> rows, std::span<std::int64_t> out) const override {
    const auto of = [&](std::int64_t row) -> const Stretch& {
      return stretches_[static_cast<std::uint64_t>(row) >> shift_];
    };
    for (std::size_t i = 0; i < std::min(kAhead, rows.size()); ++i) __builtin_prefetch(&of(rows[i]));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i + kAhead < rows.size()) __builtin_prefetch(&of(rows[i + kAhead]));
      const Stretch& stretch = of(rows[i]);
      const auto row = static_cast<Number>(rows[i]);
      Number base = row < stretch.end ? stretch.here : stretch.next;
      if (stretch.crowded) [[unlikely]] base = searched(rows[i]);
      // Unsigned: base and product may wrap, their sum is a row.
      out[i] = static_cast<std::int64_t>(static_cast<Number>(base + row * step_));
    }
  }

  Number searched(std::int64_t row) const {
    const auto found =
        std::upper_bound(ranges_.begin(), ranges_.end(), row,
                         [](std::int64_t r, const Range& range) { return r < range.end; });
    return static_cast<Number>(found->base);
  }

  Number step_;
  unsigned shift_ = 0;
  BlockRef memory_;
  Stretch* stretches_ = nullptr;
  std::vector<Range> ranges_;  // for crowded stretches, if there are any
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
  std::int64_t total = 0, highest = 0, lowest = 0;
  for (std::size_t k = 0; k < starts.size(); ++k) {
    if (counts[k] < 0) throw std::invalid_argument("counts must not be negative");
    if (counts[k] == 0) continue;
    std::int64_t begin = total, last;
    if (__builtin_add_overflow(total, counts[k], &total) ||
        __builtin_mul_overflow(counts[k] - 1, step, &last) ||
        __builtin_add_overflow(starts[k], last, &last))
      throw std::invalid_argument("the ranges hold more than 2**63 rows");
    highest = std::max({highest, starts[k], last});
    lowest = std::min({lowest, starts[k], last});
    // Wraps where begin * step does, and wraps back when a row is looked up.
    const auto base = static_cast<std::int64_t>(static_cast<std::uint64_t>(starts[k]) -
                                                static_cast<std::uint64_t>(begin) *
                                                    static_cast<std::uint64_t>(step));
    if (!ranges.empty() && ranges.back().base == base)
      ranges.back().end = total;  // goes on where the last one ended
    else
      ranges.push_back({total, base});
  }
  if (lowest >= 0 && std::max(highest, total) <= UINT32_MAX)
    return std::make_shared<RangeMap<std::uint32_t>>(std::move(ranges), step, width);
  return std::make_shared<RangeMap<std::uint64_t>>(std::move(ranges), step, width);
}

}  // namespace stepwell

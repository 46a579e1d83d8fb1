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

class RangeMap final : public RowMap {
 public:
  RangeMap(std::vector<std::int64_t> starts, std::vector<std::int64_t> ends, std::int64_t step,
           std::int64_t width)
      : RowMap(ends.empty() ? 0 : ends.back(), width),
        starts_(std::move(starts)),
        ends_(std::move(ends)),
        step_(step) {}

 private:
  void first_rows(std::span<const std::int64_t> rows, std::span<std::int64_t> out) const override {
    const std::int64_t* const ends = ends_.data();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      // The first range that ends behind the row, without a branch to mispredict.
      const std::int64_t* at = ends;
      for (std::size_t left = ends_.size(); left > 1;) {
        const std::size_t half = left / 2;
        at += at[half - 1] <= rows[i] ? half : 0;
        left -= half;
      }
      const auto range = static_cast<std::size_t>(at - ends);
      const std::int64_t begin = range == 0 ? 0 : ends[range - 1];
      out[i] = starts_[range] + (rows[i] - begin) * step_;
    }
  }

  std::vector<std::int64_t> starts_;
  std::vector<std::int64_t> ends_;  // rows in the ranges up to and including this one
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
  std::vector<std::int64_t> kept, ends;
  kept.reserve(starts.size());
  ends.reserve(starts.size());
  std::int64_t total = 0;
  for (std::size_t k = 0; k < starts.size(); ++k) {
    if (counts[k] < 0) throw std::invalid_argument("counts must not be negative");
    if (counts[k] == 0) continue;
    std::int64_t last;
    if (__builtin_add_overflow(total, counts[k], &total) ||
        __builtin_mul_overflow(counts[k] - 1, step, &last) ||
        __builtin_add_overflow(starts[k], last, &last))
      throw std::invalid_argument("the ranges hold more than 2**63 rows");
    kept.push_back(starts[k]);
    ends.push_back(total);
  }
  return std::make_shared<RangeMap>(std::move(kept), std::move(ends), step, width);
}

}  // namespace stepwell

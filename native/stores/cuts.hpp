// Where a run of stretches is cut into batches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "stores/readahead.hpp"

namespace stepwell {

// One batch: bytes of a stretch. None at all behind the last.
struct Cut {
  std::size_t stretch;
  std::uint64_t at;      // in the stretch
  std::uint64_t before;  // bytes of all stretches up to there
  std::size_t bytes;

  bool is_end() const { return bytes == 0; }
};

// `step` bytes of a stretch at a time, or what its end leaves; the first `skip` bytes of the first are left out.
class Cuts {
 public:
  Cuts(std::vector<Stretch> stretches, std::size_t skip, std::size_t step)
      : stretches_(std::move(stretches)), skip_(skip), step_(step) {
    if (step == 0) throw std::invalid_argument("a batch has no bytes");
    if (skip && (stretches_.empty() || skip > stretches_[0].memory.size()))
      throw std::invalid_argument("the first batch leaves its stretch");
  }

  Cut first() const { return at(0, skip_, skip_); }
  Cut after(const Cut& cut) const { return at(cut.stretch, cut.at + cut.bytes, cut.before + cut.bytes); }

  const std::vector<Stretch>& stretches() const { return stretches_; }
  std::size_t skip() const { return skip_; }
  std::size_t step() const { return step_; }
  const Stretch& of(const Cut& cut) const { return stretches_[cut.stretch]; }
  std::span<const std::byte> memory(const Cut& cut) const { return of(cut).memory.subspan(cut.at, cut.bytes); }

 private:
  Cut at(std::size_t stretch, std::uint64_t at, std::uint64_t before) const {
    while (stretch < stretches_.size() && at == stretches_[stretch].memory.size()) ++stretch, at = 0;
    if (stretch == stretches_.size()) return {stretch, 0, before, 0};
    return {stretch, at, before, std::min<std::size_t>(step_, stretches_[stretch].memory.size() - at)};
  }

  std::vector<Stretch> stretches_;
  std::size_t skip_, step_;
};

}  // namespace stepwell

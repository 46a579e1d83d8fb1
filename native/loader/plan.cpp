#include "loader/plan.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace stepwell {
namespace {

constexpr std::size_t kFirst = 1024;

std::uint64_t mixed(std::int64_t unit) {
  auto x = static_cast<std::uint64_t>(unit) + 0x9E3779B97F4A7C15;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
  x = (x ^ x >> 27) * 0x94D049BB133111EB;
  return x ^ x >> 31;
}

}  // namespace

Plan::Plan(std::size_t max) : max_(std::max<std::size_t>(max, 1)) { resize(kFirst); }

Plan::Range Plan::uses_of(std::uint64_t step) const {
  if (step < finished_ || step >= planned()) throw std::out_of_range("expected a step that is planned");
  const std::uint64_t at = step - finished_;
  return {at == 0 ? head_ : ends_[at - 1], ends_[at]};
}

// The place in the table where a unit is, or where it would go.
std::size_t Plan::place_of(std::int64_t unit) const {
  const std::size_t mask = last_.size() - 1;
  std::size_t place = mixed(unit) & mask;
  while (last_[place] != 0 && units_[last_[place] - 1] != unit) place = (place + 1) & mask;
  return place;
}

// Moves what follows back, so that it is still found.
void Plan::forget(std::size_t place) {
  const std::size_t mask = last_.size() - 1;
  for (std::size_t at = (place + 1) & mask; last_[at] != 0; at = (at + 1) & mask) {
    const std::size_t wanted = mixed(units_[last_[at] - 1]) & mask;
    if (((at - wanted) & mask) < ((at - place) & mask)) continue;
    last_[place] = last_[at];
    place = at;
  }
  last_[place] = 0;
}

void Plan::resize(std::size_t room) {
  std::vector<std::int64_t> units(room);
  std::vector<std::uint32_t> steps(room), next(room), before(room);
  for (std::uint64_t use = head_; use < tail_; ++use) {
    const std::size_t from = slot(use), to = use & (room - 1);
    units[to] = units_[from], steps[to] = steps_[from], next[to] = next_[from], before[to] = before_[from];
  }
  units_ = std::move(units), steps_ = std::move(steps), next_ = std::move(next), before_ = std::move(before);
  last_.assign(2 * room, 0);
  for (std::uint64_t use = head_; use < tail_; ++use)
    if (const std::size_t at = slot(use); next_[at] == 0)
      last_[place_of(units_[at])] = static_cast<std::uint32_t>(at + 1);
}

std::vector<std::int64_t> Plan::add(std::span<const std::int64_t> units) {
  if (std::ranges::adjacent_find(units, std::ranges::greater_equal{}) != units.end())
    throw std::invalid_argument("expected units in ascending order, each once");
  const std::size_t uses = tail_ - head_ + units.size();
  if (uses > std::size_t{1} << 31) throw std::invalid_argument("expected steps of fewer units");
  if (uses > units_.size()) resize(std::bit_ceil(uses));
  const auto step = static_cast<std::uint32_t>(planned());
  widest_ = std::max(widest_, units.size());
  std::vector<std::int64_t> unknown;
  for (const std::int64_t unit : units) {
    const std::size_t at = slot(tail_++), place = place_of(unit);
    units_[at] = unit, steps_[at] = step, next_[at] = 0, before_[at] = 0;
    if (last_[place] == 0) {
      unknown.push_back(unit);
    } else {
      const std::size_t earlier = last_[place] - 1;
      next_[earlier] = before_[at] = step - steps_[earlier];
    }
    last_[place] = static_cast<std::uint32_t>(at + 1);
  }
  ends_.push_back(tail_);
  return unknown;
}

std::vector<std::int64_t> Plan::units(std::uint64_t step) const {
  const Range uses = uses_of(step);
  std::vector<std::int64_t> found;
  found.reserve(uses.end - uses.begin);
  for (std::uint64_t use = uses.begin; use < uses.end; ++use) found.push_back(units_[slot(use)]);
  return found;
}

std::size_t Plan::fresh() const {
  const Range uses = uses_of(begun_);
  std::size_t count = 0;
  for (std::uint64_t use = uses.begin; use < uses.end; ++use) {
    const std::uint32_t before = before_[slot(use)];
    count += before == 0 || begun_ - before < finished_;
  }
  return count;
}

void Plan::begin() {
  held_ += fresh();
  ++begun_;
}

std::vector<std::int64_t> Plan::finish() {
  if (finished_ == begun_) throw std::out_of_range("expected a step that is under way");
  const Range uses = uses_of(finished_);
  std::vector<std::int64_t> next;
  next.reserve(uses.end - uses.begin);
  for (std::uint64_t use = uses.begin; use < uses.end; ++use) {
    const std::size_t at = slot(use);
    const std::uint64_t step = finished_ + next_[at];
    if (next_[at] == 0) forget(place_of(units_[at]));
    held_ -= next_[at] == 0 || step >= begun_;
    next.push_back(next_[at] == 0 ? kNever : static_cast<std::int64_t>(step));
  }
  head_ = uses.end;
  ends_.pop_front();
  ++finished_;
  return next;
}

}  // namespace stepwell

// Which units each of the next steps needs, and which step needs a unit next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <vector>

namespace stepwell {

// Steps are planned, begun and finished in order, and numbered from 0 on. Units have any numbers from 0 on. What is known
// of the future is exact as far as it is planned. One thread at a time.
class Plan {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  // Keeps about so many uses of units, 28 bytes each, or four steps, if these have more.
  explicit Plan(std::size_t max);

  std::uint64_t finished() const { return finished_; }  // steps that are over
  std::uint64_t begun() const { return begun_; }        // these and those under way
  std::uint64_t planned() const { return finished_ + ends_.size(); }
  // Units that steps under way have, each counted once.
  std::size_t held() const { return held_; }

  // Whether a further step has room, which there always is for the first four.
  bool has_room() const {
    return ends_.size() < 4 || (tail_ - head_ + widest_ <= max_ && ends_.size() < kMaxSteps);
  }
  // The next step needs these units, ascending, each once. Gives those of them that no other planned step has.
  // Throws std::invalid_argument for units in another order.
  std::vector<std::int64_t> add(std::span<const std::int64_t> units);

  // The units of a step that is planned and not finished. Throws std::out_of_range for another one.
  std::vector<std::int64_t> units(std::uint64_t step) const;
  // Of the step that is to begin next, which is planned: how many units no step under way has.
  std::size_t fresh() const;
  void begin();
  // The oldest step under way is over. Of each of its units the planned step that needs it next, or kNever.
  std::vector<std::int64_t> finish();

 private:
  static constexpr std::size_t kMaxSteps = std::size_t{1} << 18;

  struct Range {
    std::uint64_t begin, end;
  };

  Range uses_of(std::uint64_t step) const;
  std::size_t slot(std::uint64_t use) const { return use & (units_.size() - 1); }
  std::size_t place_of(std::int64_t unit) const;
  void forget(std::size_t place);
  void resize(std::size_t room);

  std::size_t max_;
  std::size_t widest_ = 0;  // the most uses of a step so far
  // A ring of uses, step by step. Distances are in steps; 0 where there is no such use.
  std::vector<std::int64_t> units_;
  std::vector<std::uint32_t> steps_, next_, before_;
  std::uint64_t head_ = 0, tail_ = 0;
  std::deque<std::uint64_t> ends_;  // of the uses of each step
  std::vector<std::uint32_t> last_;  // a hash table: 1 + the slot of the last use of a unit, or 0
  std::uint64_t finished_ = 0, begun_ = 0;
  std::size_t held_ = 0;
};

}  // namespace stepwell

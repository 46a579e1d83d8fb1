#include "loader/schedule.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace stepwell {
namespace {

void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

}  // namespace

Schedule::Schedule(std::int64_t length, std::int64_t batch, std::int64_t rank, std::int64_t world,
                   bool drop_last, std::uint64_t epoch, std::int64_t position, std::int64_t worker,
                   std::int64_t workers, bool in_turn)
    : length_(length),
      batch_(batch),
      rank_(rank),
      world_(world),
      drop_last_(drop_last),
      epoch_(epoch),
      position_(position),
      worker_(worker),
      workers_(workers),
      in_turn_(in_turn) {
  require(batch > 0, "batch_size must be at least 1, got " + std::to_string(batch));
  require(world > 0, "world_size must be at least 1, got " + std::to_string(world));
  require(0 <= rank && rank < world, "rank must be in [0, " + std::to_string(world) +
                                         "), got " + std::to_string(rank));
  std::int64_t global;
  require(!__builtin_mul_overflow(batch, world, &global) && global <= (std::int64_t{1} << 62),
          "batch_size times world_size is too large");
  require(0 <= worker && worker < workers, "worker must be in [0, " + std::to_string(workers) +
                                               "), got " + std::to_string(worker));
  require(length > 0, "the source has no rows");
  require(length <= (std::int64_t{1} << 62), "an epoch has at most 2**62 rows");
  require(0 <= position && position <= length,
          "position must be in [0, " + std::to_string(length) + "], got " +
              std::to_string(position));
  require(!drop_last || length >= global,
          "drop_last leaves nothing: " + std::to_string(length) +
              " rows are fewer than one global batch of " + std::to_string(global));
}

// How many of the rank's steps from `position` on are other workers', before this one's.
std::int64_t Schedule::first_from(std::int64_t position) const {
  const std::int64_t global = batch_ * world_;
  const std::int64_t begun = position / global + (position % global != 0);
  return (worker_ - begun % workers_ + workers_) % workers_;
}

std::int64_t Schedule::steps_from(std::int64_t position) const {
  const std::int64_t left = length_ - position, global = batch_ * world_;
  const std::int64_t steps = left / global + (!drop_last_ && left % global != 0);
  const std::int64_t first = first_from(position);
  return steps > first ? (steps - first - 1) / workers_ + 1 : 0;
}

Schedule::Step Schedule::step(std::uint64_t n) const {
  std::uint64_t epoch = epoch_;
  std::int64_t position = position_;
  if (const auto first = static_cast<std::uint64_t>(steps_from(position)); n >= first) {
    const auto each = static_cast<std::uint64_t>(steps_from(0));
    if (each == 0) throw std::out_of_range("this worker has no step in an epoch");
    epoch += 1 + (n - first) / each;
    n = (n - first) % each;
    position = 0;
  }
  position += (first_from(position) + static_cast<std::int64_t>(n) * workers_) * batch_ * world_;
  const std::int64_t left = length_ - position;
  const std::int64_t count =
      left >= batch_ * world_ ? batch_ : left / world_ + (left % world_ != 0);
  return {epoch, (position + rank_ * (in_turn_ ? 1 : count)) % length_, count,
          std::min(length_, position + batch_ * world_), in_turn_ ? world_ : 1};
}

}  // namespace stepwell

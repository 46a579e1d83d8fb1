#include "schedule.hpp"

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
                   Tail tail, std::uint64_t epoch, std::int64_t position)
    : length_(length),
      batch_(batch),
      rank_(rank),
      world_(world),
      tail_(tail),
      epoch_(epoch),
      position_(position) {
  require(batch > 0, "batch_size must be at least 1, got " + std::to_string(batch));
  require(world > 0, "world_size must be at least 1, got " + std::to_string(world));
  require(0 <= rank && rank < world, "rank must be in [0, " + std::to_string(world) +
                                         "), got " + std::to_string(rank));
  std::int64_t global;
  require(!__builtin_mul_overflow(batch, world, &global) && global <= (std::int64_t{1} << 62),
          "batch_size times world_size is too large");
  require(length > 0, "the source has no rows");
  require(0 <= position && position <= length,
          "position must be in [0, " + std::to_string(length) + "], got " +
              std::to_string(position));
  require(tail != Tail::dropped || length >= global,
          "drop_last leaves nothing: " + std::to_string(length) +
              " rows are fewer than one global batch of " + std::to_string(global));
}

std::int64_t Schedule::steps_from(std::int64_t position) const {
  const std::int64_t left = length_ - position, global = batch_ * world_;
  return left / global + (tail_ != Tail::dropped && left % global != 0);
}

Schedule::Step Schedule::step(std::uint64_t n) const {
  std::uint64_t epoch = epoch_;
  std::int64_t position = position_;
  if (const auto first = static_cast<std::uint64_t>(steps_from(position)); n >= first) {
    const auto each = static_cast<std::uint64_t>(steps_from(0));
    epoch += 1 + (n - first) / each;
    n = (n - first) % each;
    position = 0;
  }
  position += static_cast<std::int64_t>(n) * batch_ * world_;
  const std::int64_t left = length_ - position;
  std::int64_t part = batch_, count = batch_;  // the width of a rank's part; what it reads
  if (left < batch_ * world_) {
    if (tail_ == Tail::shared) part = count = left / world_ + (left % world_ != 0);
    if (tail_ == Tail::clipped)
      count = std::clamp<std::int64_t>(left - rank_ * batch_, 0, batch_);
  }
  return {epoch, (position + rank_ * part) % length_, count,
          std::min(length_, position + batch_ * world_)};
}

}  // namespace stepwell

#include "cuda/convoy.hpp"

#include <bit>

namespace stepwell::cuda {

Convoy::Span Convoy::span_of(std::uint64_t number, unsigned together) {
  if (number >= together) return {number - number % together, together};
  const std::uint64_t first = std::bit_floor(number);
  return {first, first == 0 ? 1 : static_cast<unsigned>(std::min<std::uint64_t>(first, together - first))};
}

std::unique_ptr<Stage::Result> Convoy::begin(std::uint64_t number, unsigned thread) {
  const auto [first, count] = span_of(number, feed_->together());
  const auto i = static_cast<unsigned>(number - first);
  if (!group_ || first_ != first) {  // those before in the group have found no memory
    group_.reset();
    group_ = feed_->begin(thread, count - i);
    first_ = first;
  }
  auto made = std::make_unique<Batch>(feed_, group_, i);
  if (i + 1 == count) group_.reset();
  return made;
}

std::byte* Convoy::memory(Result& result, std::size_t bytes) {
  auto& batch = static_cast<Batch&>(result);
  return feed_->memory(*batch.group, batch.i, bytes);
}

void Convoy::finish(Result& result) {
  auto& batch = static_cast<Batch&>(result);
  batch.is_read = true;
  feed_->settle(*batch.group);
}

}  // namespace stepwell::cuda

#include "stores/planes.hpp"

namespace stepwell {
namespace {

// With the number of planes known, compilers make these loops of vectors: 28 KB of four planes take
// less than a microsecond. Where they do not, a plane after the other is quicker.
template <std::size_t kPlanes>
void apart(const std::byte* __restrict from, std::size_t size, std::byte* __restrict to) {
  for (std::size_t i = 0; i < size; ++i)
    for (std::size_t p = 0; p < kPlanes; ++p) to[p * size + i] = from[i * kPlanes + p];
}

template <std::size_t kPlanes>
void together(const std::byte* __restrict from, std::size_t size, std::byte* __restrict to) {
  for (std::size_t i = 0; i < size; ++i)
    for (std::size_t p = 0; p < kPlanes; ++p) to[i * kPlanes + p] = from[p * size + i];
}

}  // namespace

void take_apart(std::span<const std::byte> row, std::size_t planes, std::span<std::byte> out) {
  const std::size_t size = row.size() / planes;
  const std::byte* __restrict from = row.data();
  std::byte* __restrict to = out.data();
  if (planes == 2) return apart<2>(from, size, to);
  if (planes == 4) return apart<4>(from, size, to);
  for (std::size_t p = 0; p < planes; ++p)
    for (std::size_t i = 0; i < size; ++i) to[p * size + i] = from[i * planes + p];
}

void put_together(std::span<const std::byte> row, std::size_t planes, std::span<std::byte> out) {
  const std::size_t size = row.size() / planes;
  const std::byte* __restrict from = row.data();
  std::byte* __restrict to = out.data();
  if (planes == 2) return together<2>(from, size, to);
  if (planes == 3) return together<3>(from, size, to);
  if (planes == 4) return together<4>(from, size, to);
  if (planes == 8) return together<8>(from, size, to);
  if (planes == 16) return together<16>(from, size, to);
  for (std::size_t p = 0; p < planes; ++p)
    for (std::size_t i = 0; i < size; ++i) to[i * planes + p] = from[p * size + i];
}

}  // namespace stepwell

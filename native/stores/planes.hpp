// Rows whose planes are interleaved value by value, taken apart into one plane behind the other and
// put together again: what HDF5's shuffle filter does to elements of as many bytes.
#pragma once

#include <cstddef>
#include <span>

namespace stepwell {

// Byte p of every group of `planes` bytes goes to plane p. Both spans are of the same length, a
// multiple of `planes`, and apart from each other.
void take_apart(std::span<const std::byte> row, std::size_t planes, std::span<std::byte> out);

// The reverse.
void put_together(std::span<const std::byte> row, std::size_t planes, std::span<std::byte> out);

}  // namespace stepwell

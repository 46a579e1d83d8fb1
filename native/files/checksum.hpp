// CRC32C (Castagnoli), as every format in docs/formats uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace stepwell {

// Continues `crc` (0 to begin) over `data`: crc32c(crc32c(0, a), b) is the checksum of a then b.
// Uses the processor's instruction where it has one; the result is the same everywhere.
std::uint32_t crc32c(std::uint32_t crc, std::span<const std::byte> data);

// The checksum of `data`, which is copied to `to`, of as many bytes; it is that of the copy, whatever happens to `data`
// meanwhile.
std::uint32_t crc32c_copy(std::span<const std::byte> data, std::byte* to);

// The same by tables alone: the answer for processors without the instruction, and the
// one the tests compare with.
std::uint32_t crc32c_portable(std::uint32_t crc, std::span<const std::byte> data);

// A checksum as messages show it: eight hexadecimal digits.
std::string hex_of(std::uint32_t checksum);

}  // namespace stepwell

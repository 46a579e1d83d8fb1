// Many single rows packed, unpacked and summed up at once, by all cores. What is deflated has
// zlib's bytes around it, as HDF5's filter wants it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "files/compress.hpp"

namespace stepwell {

using Bytes = std::span<const std::byte>;

// Each row packed; an empty vector for one that would not become smaller. What is packed has its
// `planes` taken apart (planes.hpp), 1 for rows that have none. `checksums`, one for each row, become
// those of what is to be stored. With `shared` all cores help, else the caller alone works. Throws
// std::invalid_argument when a row is not of whole planes.
std::vector<std::vector<std::byte>> pack_each(Codec codec, int level, std::size_t planes,
                                              std::span<const Bytes> rows,
                                              std::span<std::uint32_t> checksums, bool shared);

// A payload in a file.
struct Cell {
  std::uint64_t offset;
  std::uint32_t size;
  bool raw;  // as it is, whatever the codec and the planes
};

// Reads payloads of an open file and unpacks each to out[i * row_bytes]. Where `checksums` are given,
// each is checked against its own first. `planes`, of which a row is a multiple, are put together.
// Throws ChecksumError or FormatError whose offset is the number of the first bad cell, and
// FileError.
void read_cells(int file, const std::string& path, Codec codec, std::size_t planes,
                std::span<const Cell> cells, std::span<const std::uint32_t> checksums,
                std::size_t row_bytes, std::span<std::byte> out);

// Unpacks LZF, as HDF5's filter of that name packs: `from` must fill `to` exactly. Throws FormatError.
void unpack_lzf(Bytes from, std::span<std::byte> to);

// Copies past the caches: `to` is for another core, and what this one works with stays.
void copy_past_caches(Bytes from, std::byte* to);

// CRC32C of every `row_bytes` bytes of `rows`.
std::vector<std::uint32_t> checksum_each(Bytes rows, std::size_t row_bytes);

}  // namespace stepwell

// Payloads inside one file: where they are, whether they are whole, and a copy of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "blocks.hpp"

namespace stepwell {

// An entry of a pack's index, as docs/formats/pack.md has it.
struct Entry {
  std::uint64_t offset;
  std::uint32_t length;
  std::uint16_t kind;
  std::uint16_t flags;
  std::uint32_t checksum;  // CRC32C of the stored bytes, 0 = not recorded
  std::uint32_t unpacked_length;
  std::uint64_t zero;
};
static_assert(sizeof(Entry) == 32);

// Some entries of a file, and the number each is known by (negative: by none). Errors name both.
struct Entries {
  std::span<const std::byte> file;
  std::span<const Entry> entries;
  std::span<const std::int64_t> numbers;
  std::string path;

  std::size_t size() const { return entries.size(); }
  // The stored bytes of entry i. Throws FormatError when they lie outside the file.
  std::span<const std::byte> payload(std::size_t i) const;
  // Throws ChecksumError when they are not those that were written.
  void check_entry(std::size_t i) const;
  // Runs `work`; a FormatError that it throws is thrown on in terms of the file.
  void naming(std::size_t i, const std::function<void()>& work) const;
};

// Checks the checksums of all entries.
void check_entries(const Entries& entries, unsigned threads);

// The CRC32C of each payload.
std::vector<std::uint32_t> checksums_of(const Entries& entries);

// Payloads one after another: payload i is [offsets[i], offsets[i + 1]) of the block.
struct PayloadBatch {
  std::vector<std::int64_t> offsets;
  BlockRef block;
};

// Checks and copies.
PayloadBatch copy_payloads(const Entries& entries, unsigned threads);

}  // namespace stepwell

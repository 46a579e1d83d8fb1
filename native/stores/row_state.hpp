// The tables of a row state: a vector for each row id, whether there is one, and its checksum. The bytes are those of
// docs/formats/shards.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace stepwell {

// Mapped files of one length in rows. `there` has a byte for each row; `checksums` 4 bytes, or is empty: not checked.
struct StateTables {
  std::span<std::byte> values;
  std::span<std::byte> there;
  std::span<std::byte> checksums;
  std::size_t row_bytes;  // not 0
  std::string folder;     // of the files "values", "there" and "checksums"
};

// Copies the vectors of `rows` into `out`, zeros for those without. Throws ChecksumError for one that was changed since it
// was written, FormatError when a file was cut meanwhile, and std::invalid_argument for a row outside the tables. Call
// without the GIL.
void state_get(const StateTables& tables, std::span<const std::int64_t> rows, std::span<std::byte> out);

// Writes vectors to `rows`, and their checksums. Throws as state_get does.
void state_put(const StateTables& tables, std::span<const std::int64_t> rows, std::span<const std::byte> values);

// Fills `out` with 1 for rows that have something, else 0. Throws as state_get does.
void state_present(const StateTables& tables, std::span<const std::int64_t> rows, std::span<std::byte> out);

// How many rows have something.
std::uint64_t state_count(const StateTables& tables);

}  // namespace stepwell

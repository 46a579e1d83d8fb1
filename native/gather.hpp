// Rows of a table in memory, copied out in any order: the inner loop of everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stepwell {

// Row r is the `row_bytes` at base + r * stride. A stride may be negative, 0 (every row is
// the same) or larger than a row.
struct Table {
  const std::byte* base;
  std::int64_t rows;
  std::ptrdiff_t stride;
  std::size_t row_bytes;
};

// A field is the `bytes` at `offset` of a row.
struct Field {
  std::size_t offset;
  std::size_t bytes;
};

// Writes field f of rows[i] to outs[f] + slots[i] * fields[f].bytes; without slots, slot i is i.
// Every row is checked before the first byte is written: on std::out_of_range, which names
// the row, nothing has changed. One thread; call without the GIL.
void gather(const Table& table, std::span<const Field> fields, std::span<const std::int64_t> rows,
            std::span<const std::int64_t> slots, std::span<std::byte* const> outs);

// Throws std::out_of_range naming the first row that is not in [0, length).
void check_rows(std::span<const std::int64_t> rows, std::int64_t length);

}  // namespace stepwell

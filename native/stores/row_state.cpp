#include "stores/row_state.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "error.hpp"
#include "files/checksum.hpp"
#include "files/guard.hpp"

namespace stepwell {
namespace {

void check_rows(const StateTables& tables, std::span<const std::int64_t> rows) {
  const std::size_t count = tables.there.size();
  if (tables.values.size() / tables.row_bytes < count ||
      (!tables.checksums.empty() && tables.checksums.size() / sizeof(std::uint32_t) < count))
    throw std::invalid_argument("tables of one length are needed");
  for (const std::int64_t row : rows)
    if (row < 0 || static_cast<std::uint64_t>(row) >= count)
      throw std::invalid_argument("a row lies outside the tables");
}

// Whose the address is that could not be read.
std::pair<std::string, std::uint64_t> find(const StateTables& tables, const std::byte* at) {
  const auto offset = [at](std::span<const std::byte> in) {
    return reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(in.data());
  };
  constexpr std::size_t page = 4096;  // at least; what is behind the end of a file is on its last one
  const auto inside = [&](std::span<const std::byte> in) { return offset(in) < (in.size() + page - 1) / page * page; };
  if (inside(tables.there)) return {tables.folder + "/there", offset(tables.there)};
  if (inside(tables.checksums)) return {tables.folder + "/checksums", offset(tables.checksums)};
  return {tables.folder + "/values", inside(tables.values) ? offset(tables.values) : 0};
}

template <class Work>
void guarded_tables(const StateTables& tables, Work&& work) {
  guarded_any([&](const std::byte* at) { return find(tables, at); }, work);
}

std::uint32_t stored_checksum(const StateTables& tables, std::size_t row) {
  std::uint32_t stored;
  std::memcpy(&stored, tables.checksums.data() + row * sizeof stored, sizeof stored);
  return stored;
}

// Of the row id and its vector, so that a vector in another's place is found, too; never 0, which is that of no vector.
std::uint32_t checksum_of(std::size_t row, std::span<const std::byte> vector) {
  const auto id = static_cast<std::uint64_t>(row);
  return std::max(crc32c(crc32c(0, std::as_bytes(std::span(&id, 1))), vector), std::uint32_t{1});
}

// Whether a row has something; throws when the tables contradict each other.
bool is_there(const StateTables& tables, std::size_t row) {
  const auto mark = static_cast<std::uint8_t>(tables.there[row]);
  if (tables.checksums.empty()) return mark != 0;
  if (mark > 1 || (mark == 1) != (stored_checksum(tables, row) != 0))
    throw ChecksumError("row " + std::to_string(row) + ": expected 1 where there is a checksum and else 0, got " +
                            std::to_string(mark),
                        tables.folder + "/there", row);
  return mark != 0;
}

}  // namespace

void state_get(const StateTables& tables, std::span<const std::int64_t> rows, std::span<std::byte> out) {
  check_rows(tables, rows);
  const std::size_t bytes = tables.row_bytes;
  if (out.size() != rows.size() * bytes) throw std::invalid_argument("an output has the wrong size");
  guarded_tables(tables, [&] {
    constexpr std::size_t ahead = 8;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i + ahead < rows.size()) {
        const auto next = static_cast<std::size_t>(rows[i + ahead]);
        __builtin_prefetch(tables.values.data() + next * bytes);
        __builtin_prefetch(tables.there.data() + next);
        if (!tables.checksums.empty()) __builtin_prefetch(tables.checksums.data() + next * sizeof(std::uint32_t));
      }
      const auto row = static_cast<std::size_t>(rows[i]);
      std::byte* const to = out.data() + i * bytes;
      if (!is_there(tables, row)) {
        std::memset(to, 0, bytes);
        continue;
      }
      std::memcpy(to, tables.values.data() + row * bytes, bytes);
      if (tables.checksums.empty()) continue;
      const std::uint32_t want = stored_checksum(tables, row), found = checksum_of(row, {to, bytes});
      if (found != want)
        throw ChecksumError("row " + std::to_string(row) + ": expected CRC32C " + hex_of(want) + ", got " + hex_of(found),
                            tables.folder + "/values", row * bytes);
    }
  });
}

void state_put(const StateTables& tables, std::span<const std::int64_t> rows, std::span<const std::byte> values) {
  check_rows(tables, rows);
  const std::size_t bytes = tables.row_bytes;
  if (values.size() != rows.size() * bytes) throw std::invalid_argument("a vector for each row is needed");
  guarded_tables(tables, [&] {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto row = static_cast<std::size_t>(rows[i]);
      const auto vector = values.subspan(i * bytes, bytes);
      std::memcpy(tables.values.data() + row * bytes, vector.data(), bytes);
      tables.there[row] = std::byte{1};
      if (tables.checksums.empty()) continue;
      const std::uint32_t checksum = checksum_of(row, vector);
      std::memcpy(tables.checksums.data() + row * sizeof checksum, &checksum, sizeof checksum);
    }
  });
}

void state_present(const StateTables& tables, std::span<const std::int64_t> rows, std::span<std::byte> out) {
  check_rows(tables, rows);
  if (out.size() != rows.size()) throw std::invalid_argument("an output has the wrong size");
  guarded_tables(tables, [&] {
    for (std::size_t i = 0; i < rows.size(); ++i)
      out[i] = std::byte{is_there(tables, static_cast<std::size_t>(rows[i]))};
  });
}

std::uint64_t state_count(const StateTables& tables) {
  check_rows(tables, {});
  std::uint64_t count = 0;
  guarded_tables(tables, [&] {
    for (std::size_t row = 0; row < tables.there.size(); ++row) count += is_there(tables, row);
  });
  return count;
}

}  // namespace stepwell

#include "stores/record_tables.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "error.hpp"
#include "files/checksum.hpp"
#include "files/guard.hpp"

namespace stepwell {
namespace {

constexpr std::size_t kAhead = 16;  // entries that are fetched before they are needed

std::uint32_t with_commit(std::uint32_t checksum, std::uint64_t commit) {
  return crc32c(checksum, std::as_bytes(std::span(&commit, 1)));
}

std::uint32_t block_checksum(std::span<const std::byte> table, std::int64_t block) {
  static constexpr std::byte zeros[kTableBlock]{};
  const std::size_t begin = std::min(static_cast<std::size_t>(block) * kTableBlock, table.size());
  const std::size_t size = std::min(kTableBlock, table.size() - begin);
  return crc32c(crc32c(0, table.subspan(begin, size)), {zeros, kTableBlock - size});
}

}  // namespace

std::vector<std::uint32_t> block_checksums(std::span<const std::byte> table, std::span<const std::int64_t> blocks,
                                           std::span<const std::int64_t> commits, const std::string& path) {
  std::vector<std::uint32_t> checksums(blocks.size());
  guarded(table, path, [&] {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      checksums[i] = block_checksum(table, blocks[i]);
      if (!commits.empty()) checksums[i] = with_commit(checksums[i], static_cast<std::uint64_t>(commits[i]));
    }
  });
  return checksums;
}

std::vector<ColumnSeal> seals_after(std::span<const std::byte> table, const ColumnChange& change,
                                    std::span<const std::int64_t> blocks, std::span<const ColumnSeal> seals,
                                    std::uint64_t commit, const std::string& path) {
  std::vector<ColumnSeal> made(blocks.size());
  const std::size_t first = change.first * change.entry, end = first + change.appended.size();
  guarded(table, path, [&] {
    // Checksums are linear: that of the bits which a change flips, among zeros, has the bits that it flips in the
    // checksum. So nothing beside the change is read, and where that is damaged, the new checksum does not fit either.
    std::byte flips[kTableBlock + sizeof commit]{};
    std::size_t k = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::size_t begin = static_cast<std::size_t>(blocks[i]) * kTableBlock;
      if (first <= begin && begin + kTableBlock <= end) {  // all of it is new
        made[i] = {with_commit(crc32c(0, change.appended.subspan(begin - first, kTableBlock)), commit), commit};
        continue;
      }
      std::size_t lowest = kTableBlock;
      // The part of `data`, which comes to `at` of the table, that is inside this block.
      const auto flip = [&](std::size_t at, std::span<const std::byte> data) {
        std::size_t p = std::max(at, begin);
        const std::size_t to = std::min(at + data.size(), begin + kTableBlock), there = std::min(to, table.size());
        if (p < to) lowest = std::min(lowest, p - begin);
        for (; p < there; ++p) flips[p - begin] = table[p] ^ data[p - at];
        for (; p < to; ++p) flips[p - begin] = data[p - at];
      };
      flip(first, change.appended);
      while (k < change.rows.size() && (static_cast<std::size_t>(change.rows[k]) + 1) * change.entry <= begin) ++k;
      for (std::size_t j = k; j < change.rows.size(); ++j) {
        const std::size_t at = static_cast<std::size_t>(change.rows[j]) * change.entry;
        if (at >= begin + kTableBlock) break;
        if (j + kAhead < change.rows.size())
          __builtin_prefetch(table.data() + static_cast<std::size_t>(change.rows[j + kAhead]) * change.entry);
        flip(at, change.changed.subspan(j * change.entry, change.entry));
      }
      const bool sealed = i < seals.size();
      const std::uint32_t before = sealed ? seals[i].checksum : with_commit(block_checksum(table, blocks[i]), commit);
      const std::uint64_t other = sealed ? seals[i].commit ^ commit : 0;
      std::memcpy(flips + kTableBlock, &other, sizeof other);
      made[i] = {before ^ ~crc32c(~std::uint32_t{0}, std::span(flips).subspan(lowest)), commit};
      std::memset(flips + lowest, 0, kTableBlock - lowest);
    }
  });
  return made;
}

namespace {

// The size of the entries of some rows, which have so many bytes; the table has all of them.
std::size_t entry_size(std::span<const std::byte> table, std::span<const std::int64_t> rows, std::size_t bytes,
                       const std::string& path) {
  const std::size_t entry = bytes / rows.size();
  if (entry == 0 || entry * rows.size() != bytes)
    throw std::invalid_argument("entries of the same size for each row are needed");
  for (const std::int64_t row : rows) {
    if (row < 0) throw std::invalid_argument("a row has no negative number");
    if (static_cast<std::uint64_t>(row) >= table.size() / entry)
      throw FormatError("truncated: expected an entry " + std::to_string(row), path, table.size());
  }
  return entry;
}

}  // namespace

void get_entries(std::span<const std::byte> table, std::span<const std::int64_t> rows, std::span<std::byte> entries,
                 const std::string& path) {
  if (rows.empty()) return;
  const std::size_t entry = entry_size(table, rows, entries.size(), path);
  guarded(table, path, [&] {
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::memcpy(entries.data() + i * entry, table.data() + static_cast<std::size_t>(rows[i]) * entry, entry);
  });
}

void put_entries(std::span<std::byte> table, std::span<const std::int64_t> rows, std::span<const std::byte> entries,
                 const std::string& path) {
  if (rows.empty()) return;
  const std::size_t entry = entry_size(table, rows, entries.size(), path);
  guarded(table, path, [&] {
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::memcpy(table.data() + static_cast<std::size_t>(rows[i]) * entry, entries.data() + i * entry, entry);
  });
}

namespace {

// Of what writer.lock says: commit, length, boot, and the last commit that set attributes.
std::uint32_t control_checksum(const RecordControl& of) {
  const std::uint64_t said[] = {of.commit, of.length, of.boot, of.attributes};
  return crc32c(0, std::as_bytes(std::span(said)));
}

}  // namespace

RecordControl read_control(std::span<const std::byte> control, const std::string& path) {
  const auto* numbers = reinterpret_cast<const std::uint64_t*>(control.data());
  RecordControl now{};
  std::uint64_t checksum = 0;
  guarded(control, path, [&] {
    do {
      now.sequence = __atomic_load_n(numbers, __ATOMIC_ACQUIRE);
      now.commit = __atomic_load_n(numbers + 1, __ATOMIC_RELAXED);
      now.length = __atomic_load_n(numbers + 2, __ATOMIC_RELAXED);
      now.boot = __atomic_load_n(numbers + 3, __ATOMIC_RELAXED);
      checksum = __atomic_load_n(numbers + 4, __ATOMIC_RELAXED);
      now.attributes = __atomic_load_n(numbers + 5, __ATOMIC_RELAXED);
      __atomic_thread_fence(__ATOMIC_ACQUIRE);
    } while (now.sequence != __atomic_load_n(numbers, __ATOMIC_RELAXED));
  });
  if (checksum != control_checksum(now)) now.boot = 0;
  return now;
}

void begin_change(std::span<std::byte> control, const std::string& path) {
  auto* const sequence = reinterpret_cast<std::uint64_t*>(control.data());
  guarded(control, path, [&] {
    __atomic_store_n(sequence, *sequence | 1, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
  });
}

void end_change(std::span<std::byte> control, const RecordControl& now, const std::string& path) {
  auto* const numbers = reinterpret_cast<std::uint64_t*>(control.data());
  guarded(control, path, [&] {
    __atomic_store_n(numbers + 1, now.commit, __ATOMIC_RELAXED);
    __atomic_store_n(numbers + 2, now.length, __ATOMIC_RELAXED);
    __atomic_store_n(numbers + 3, now.boot, __ATOMIC_RELAXED);
    __atomic_store_n(numbers + 4, control_checksum(now), __ATOMIC_RELAXED);
    __atomic_store_n(numbers + 5, now.attributes, __ATOMIC_RELAXED);
    __atomic_store_n(numbers, (numbers[0] | 1) + 1, __ATOMIC_SEQ_CST);
  });
}

}  // namespace stepwell

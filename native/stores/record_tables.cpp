#include "stores/record_tables.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "files/checksum.hpp"
#include "files/guard.hpp"

namespace stepwell {
namespace {

std::uint32_t with_commit(std::uint32_t checksum, std::uint64_t commit) {
  return crc32c(checksum, std::as_bytes(std::span(&commit, 1)));
}

}  // namespace

std::vector<std::uint32_t> block_checksums(std::span<const std::byte> table, std::span<const std::int64_t> blocks,
                                           std::span<const std::int64_t> commits, const std::string& path) {
  static constexpr std::byte zeros[kTableBlock]{};
  std::vector<std::uint32_t> checksums(blocks.size());
  guarded(table, path, [&] {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::size_t begin = std::min(static_cast<std::size_t>(blocks[i]) * kTableBlock, table.size());
      const std::size_t size = std::min(kTableBlock, table.size() - begin);
      checksums[i] = crc32c(crc32c(0, table.subspan(begin, size)), {zeros, kTableBlock - size});
      if (!commits.empty()) checksums[i] = with_commit(checksums[i], static_cast<std::uint64_t>(commits[i]));
    }
  });
  return checksums;
}

std::vector<std::uint32_t> checksums_after(std::span<const std::byte> table, const ColumnChange& change,
                                           std::span<const std::int64_t> blocks, std::uint64_t commit,
                                           const std::string& path) {
  std::vector<std::uint32_t> checksums(blocks.size());
  // Puts the part of `data`, which begins at `at` of the table, that is inside a block.
  const auto put = [](std::byte* image, std::size_t begin, std::size_t at, std::span<const std::byte> data) {
    const std::size_t from = std::max(at, begin), to = std::min(at + data.size(), begin + kTableBlock);
    if (from < to) std::memcpy(image + (from - begin), data.data() + (from - at), to - from);
  };
  const std::size_t first = change.first * change.entry, end = first + change.appended.size();
  guarded(table, path, [&] {
    std::byte image[kTableBlock];
    std::size_t k = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::size_t begin = static_cast<std::size_t>(blocks[i]) * kTableBlock;
      while (k < change.rows.size() && (static_cast<std::size_t>(change.rows[k]) + 1) * change.entry <= begin) ++k;
      std::uint32_t checksum;
      if (first <= begin && begin + kTableBlock <= end) {  // all of it is new
        checksum = crc32c(0, change.appended.subspan(begin - first, kTableBlock));
      } else {
        const std::size_t from = std::min(begin, table.size()), size = std::min(kTableBlock, table.size() - from);
        if (size) std::memcpy(image, table.data() + from, size);
        std::memset(image + size, 0, kTableBlock - size);
        put(image, begin, first, change.appended);
        for (std::size_t j = k; j < change.rows.size(); ++j) {
          const std::size_t at = static_cast<std::size_t>(change.rows[j]) * change.entry;
          if (at >= begin + kTableBlock) break;
          put(image, begin, at, change.changed.subspan(j * change.entry, change.entry));
        }
        checksum = crc32c(0, {image, kTableBlock});
      }
      checksums[i] = with_commit(checksum, commit);
    }
  });
  return checksums;
}

void put_entries(std::span<std::byte> table, std::span<const std::int64_t> rows, std::span<const std::byte> entries,
                 const std::string& path) {
  if (rows.empty()) return;
  const std::size_t entry = entries.size() / rows.size();
  if (entry == 0 || entry * rows.size() != entries.size())
    throw std::invalid_argument("entries of the same size for each row are needed");
  for (const std::int64_t row : rows)
    if (row < 0 || static_cast<std::uint64_t>(row) >= table.size() / entry)
      throw std::invalid_argument("a row lies outside the table");
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

// The tables of a record store, columns and offset tables alike, as its writer changes them, and the
// counter that readers look at meanwhile. The bytes are those of docs/formats/records.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace stepwell {

constexpr std::size_t kTableBlock = 4096;  // bytes of a table that have a checksum of their own

// What stands in the checksums of a column for each block.
struct __attribute__((packed)) ColumnSeal {
  std::uint32_t checksum;  // of the block and of the commit
  std::uint64_t commit;    // the last that changed the block
};
static_assert(sizeof(ColumnSeal) == 12);

// The checksums of some blocks of a table, whose last block may be short; of a column, for which
// there is a commit for each block.
std::vector<std::uint32_t> block_checksums(std::span<const std::byte> table, std::span<const std::int64_t> blocks,
                                           std::span<const std::int64_t> commits, const std::string& path);

// New entries of a column: some from `first` on, and some in the place of others, whose rows ascend.
struct ColumnChange {
  std::size_t entry;
  std::size_t first;
  std::span<const std::byte> appended;
  std::span<const std::int64_t> rows;
  std::span<const std::byte> changed;
};
// What some blocks, in order, have after a change that is not done yet; the first of them have the `seals` now, and
// the others none.
std::vector<ColumnSeal> seals_after(std::span<const std::byte> table, const ColumnChange& change,
                                    std::span<const std::int64_t> blocks, std::span<const ColumnSeal> seals,
                                    std::uint64_t commit, const std::string& path);

// Copies the entries of some rows out of a table that is mapped, or puts them there.
void get_entries(std::span<const std::byte> table, std::span<const std::int64_t> rows, std::span<std::byte> entries,
                 const std::string& path);
void put_entries(std::span<std::byte> table, std::span<const std::int64_t> rows, std::span<const std::byte> entries,
                 const std::string& path);

// The numbers at the start of writer.lock, which is mapped and has at least 64 bytes.
struct RecordControl {
  std::uint64_t sequence, commit, length, boot;
  std::uint64_t attributes;  // the last commit that set some
};
// `boot` is 0 when the checksum differs.
RecordControl read_control(std::span<const std::byte> control, const std::string& path);
void begin_change(std::span<std::byte> control, const std::string& path);
void end_change(std::span<std::byte> control, const RecordControl& now, const std::string& path);

}  // namespace stepwell

// Many runs out of one file at once: checked, decoded side by side, in the order asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "blocks.hpp"
#include "run_codec.hpp"

namespace stepwell {

// An entry of a pack's index, as docs/formats/pack.md has it.
struct Entry {
  std::uint64_t offset;
  std::uint32_t length;
  std::uint16_t kind;
  std::uint16_t flags;
  std::uint32_t sum;  // CRC32C of the stored bytes, 0 = not recorded
  std::uint32_t unpacked_length;
  std::uint64_t zero;
};
static_assert(sizeof(Entry) == 32);

// Some entries of a file, and the number each is known by. Errors name both.
struct Entries {
  std::span<const std::byte> file;
  std::span<const Entry> entries;
  std::span<const std::int64_t> numbers;
  std::string path;

  std::size_t size() const { return entries.size(); }
  // The stored bytes of entry i. Throws FormatError when they lie outside the file.
  std::span<const std::byte> payload(std::size_t i) const;
  // Throws ChecksumError when they are not those that were written.
  void check_sum(std::size_t i) const;
};

// Calls work(i) for every i below `count` on up to `threads` threads of the shared pool. When
// some fail, the failure of the lowest i is thrown, whatever the number of threads.
void share_out(std::size_t count, unsigned threads, const std::function<void(std::size_t)>& work);

// Checks the sums of all entries.
void check_sums(const Entries& runs, unsigned threads);

// A run without its steps, as Python sees it.
struct RunRecord {
  std::uint64_t start_unix_s;
  std::uint64_t max_score;
  std::uint64_t final_board;
  std::uint32_t steps;
  std::uint32_t highest_tile;
  float elapsed_s;
  std::uint32_t has_engine;
};
static_assert(sizeof(RunRecord) == 40);

// Runs in one block: columns of steps, and the engines' names, one run after another.
struct RunBatch {
  std::vector<RunRecord> records;
  std::vector<std::int64_t> offsets;  // run i has steps [offsets[i], offsets[i + 1])
  std::vector<std::int64_t> engine_offsets;
  BlockRef block;
  // Where boards, values, moves, legal, has_branches and engines begin; last, the block's size.
  std::vector<std::size_t> layout;
};

// Checks and decodes; memory comes from the shared blocks. A damaged run throws.
RunBatch decode_runs(const Entries& runs, unsigned threads);

// The heads alone: no steps, final boards 0. Sums are checked all the same.
RunBatch read_heads(const Entries& runs, unsigned threads);

}  // namespace stepwell

// Many runs out of one file at once: checked, decoded side by side, in the order asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "blocks.hpp"
#include "game2048/run_codec.hpp"
#include "stores/entries.hpp"

namespace stepwell {

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

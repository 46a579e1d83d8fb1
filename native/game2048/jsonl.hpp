// Runs as lines of JSON, in the shapes that docs/formats/pack.md defines.
#pragma once

#include "game2048/runs.hpp"

namespace stepwell {

// A line a run with all of it; a line a step, as the original program or as the seed of the format has
// it; or no such lines.
enum class JsonlShape { run, step, seed_step, none };

// Text in a block of the shared pool.
struct Text {
  BlockRef block;
  std::size_t bytes;
};

// The lines of all entries in turn, on the calling thread. With `ends` each run ends in a line of its
// own, with its final board, scores and engine. `hex` writes boards as 16-digit strings, but not the
// cells of `step`. A damaged run throws.
Text to_jsonl(const Entries& runs, JsonlShape shape, bool ends, bool hex);

}  // namespace stepwell

// Runs as lines of JSON, in the two shapes that docs/formats/pack.md defines.
#pragma once

#include "game2048/runs.hpp"

namespace stepwell {

enum class JsonlShape { run, step };

// Text in a block of the shared pool.
struct Text {
  BlockRef block;
  std::size_t bytes;
};

// The lines of all entries in turn, on the calling thread. `hex` writes the boards of a run as
// 16-digit strings. A damaged run throws.
Text to_jsonl(const Entries& runs, JsonlShape shape, bool hex);

}  // namespace stepwell

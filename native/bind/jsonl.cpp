#include "game2048/jsonl.hpp"

#include "entries.hpp"

void stepwell::bind::bind_jsonl(nb::module_& m) {
  m.def(
      "to_jsonl",
      [](BytesIn file, BytesIn table, RowsIn numbers, nb::object path, bool steps, bool hex) {
        const EntriesIn in(file, table, numbers, path);
        Text text;
        {
          const Unlocked unlocked;
          text = to_jsonl(in.entries, steps ? JsonlShape::step : JsonlShape::run, hex);
        }
        return numpy_bytes(std::move(text.block), text.bytes);
      },
      "file"_a.noconvert(), "entries"_a.noconvert(), "numbers"_a.noconvert(), "path"_a, "steps"_a,
      "hex"_a, "The lines of these entries, a line a run or a line a step.");
}

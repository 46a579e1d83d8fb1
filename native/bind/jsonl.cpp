#include "game2048/jsonl.hpp"

#include "entries.hpp"

void stepwell::bind::bind_jsonl(nb::module_& m) {
  m.def(
      "to_jsonl",
      [](BytesIn file, BytesIn table, RowsIn numbers, nb::object path, unsigned shape, bool ends, bool hex) {
        if (shape > static_cast<unsigned>(JsonlShape::none)) throw std::invalid_argument("no such shape of lines");
        const EntriesIn in(file, table, numbers, path);
        Text text;
        {
          const Unlocked unlocked;
          text = to_jsonl(in.entries, static_cast<JsonlShape>(shape), ends, hex);
        }
        return numpy_bytes(std::move(text.block), text.bytes);
      },
      "file"_a.noconvert(), "entries"_a.noconvert(), "numbers"_a.noconvert(), "path"_a, "shape"_a,
      "ends"_a, "hex"_a,
      "The lines of these entries. Shapes: 0 a line a run, 1 a line a step, 2 a line a step as seed 001 has it,\n"
      "3 none; ends adds a line a run.");
}

#include "blocks.hpp"

#include <nanobind/stl/shared_ptr.h>

#include "arrays.hpp"
#include "load.hpp"

namespace stepwell::bind {
void bind_blocks(nb::module_& m) {
  nb::class_<BlockPool>(m, "BlockPool", "Memory for batches, reused when the last array over it dies.")
      .def(nb::new_([](std::size_t keep_bytes) { return BlockPool::make(keep_bytes); }),
           "keep_bytes"_a)
      .def(
          "take",
          [](BlockPool& pool, std::size_t bytes) { return numpy_bytes(pool.take(bytes), bytes); },
          "bytes"_a, "A block of at least this size, its content unspecified.")
      .def(
          "donate",
          [](BlockPool& pool, BytesOut memory) {
            auto keep = std::make_shared<BytesOut>(memory);
            pool.donate(BlockRef(keep, span_of(memory).data()), memory.size());
          },
          "memory"_a.noconvert(), "Add the caller's memory; it is handed out before any other.")
      .def_prop_ro("idle_bytes", &BlockPool::idle_bytes);
  m.def("shared_blocks", &shared_blocks, "The pool that `take` uses.");
  m.def(
      "load",
      [](int file, nb::object where, std::uint64_t offset, std::size_t bytes) {
        const std::string path = path_bytes(where);
        BlockRef block;
        {
          const Unlocked unlocked;
          block = allocate(bytes);
          load(file, path, offset, {block.get(), bytes});
        }
        return numpy_bytes(std::move(block), bytes);
      },
      nb::sig("def load(file: int, path: str | bytes | os.PathLike[str], offset: int, bytes: int)"
              " -> NDArray[numpy.uint8]"),
      "file"_a, "path"_a, "offset"_a, "bytes"_a,
      "Part of an open file, read by all cores into huge pages; `path` is for messages.\n"
      "Raises FormatError when it ends early.");
}

}  // namespace stepwell::bind

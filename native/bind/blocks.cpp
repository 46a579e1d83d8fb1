#include "blocks.hpp"

#include <nanobind/stl/shared_ptr.h>

#include "arrays.hpp"
#include "files/load.hpp"

namespace stepwell::bind {
void bind_blocks(nb::module_& m) {
  nb::class_<BlockPool>(m, "BlockPool", "Memory for batches, reused when the last array over it dies.")
      .def(nb::new_([](std::size_t keep_bytes) { return BlockPool::make(keep_bytes); }),
           "keep_bytes"_a)
      .def(
          "take",
          [](BlockPool& pool, std::size_t bytes) { return numpy_bytes(pool.take(bytes), bytes); },
          "bytes"_a, "A block of at least this size, its content unspecified.")
      .def_prop_ro("idle_bytes", &BlockPool::idle_bytes);
  m.def("shared_blocks", &shared_blocks, "The pool that `take` uses.");
  m.def(
      "allocate", [](std::size_t bytes) { return numpy_bytes(allocate(bytes), bytes); }, "bytes"_a,
      "Fresh memory on huge pages, its content unspecified.");
  m.def(
      "load",
      [](int file, nb::object where, std::uint64_t offset, BytesOut out, const CheckedBlocks* blocks, std::size_t at) {
        const std::string path = path_bytes(where);
        const Unlocked unlocked;
        load(file, path, offset, span_of(out), blocks, at);
      },
      nb::sig("def load(file: int, path: str | bytes | os.PathLike[str], offset: int,"
              " out: NDArray[numpy.uint8], blocks: CheckedBlocks | None = None, at: int = 0) -> None"),
      "file"_a, "path"_a, "offset"_a, "out"_a.noconvert(), "blocks"_a.none() = nb::none(), "at"_a = 0,
      "Part of an open file, read into `out` by all cores; `path` is for messages. With the checksums of the\n"
      "memory that `out` is part of, from byte `at` on, they are compared meanwhile.\n"
      "Raises FormatError when it ends early.");
  m.def(
      "begin_writeback",
      [](int file, std::uint64_t offset, std::uint64_t bytes) {
        const Unlocked unlocked;
        begin_writeback(file, offset, bytes);
      },
      "file"_a, "offset"_a, "bytes"_a, "Begin to write part of an open file to the disk, without waiting.");
}

}  // namespace stepwell::bind

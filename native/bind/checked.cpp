#include "files/checked.hpp"

#include <nanobind/stl/shared_ptr.h>

#include "arrays.hpp"

void stepwell::bind::bind_checked(nb::module_& m) {
  m.def(
      "stream_checksums",
      [](BytesIn data, std::size_t block_bytes, std::size_t inside, std::uint32_t crc) {
        std::vector<std::uint32_t> found;
        {
          const Unlocked unlocked;
          found = stream_checksums(span_of(data), block_bytes, inside, crc);
        }
        return bytes_of(std::move(found));
      },
      "data"_a.noconvert(), "block_bytes"_a, "inside"_a = 0, "crc"_a = 0,
      "The CRC32C of each block of `data`, 4 bytes each; the first has `inside` bytes already, of checksum `crc`.");
  nb::class_<CheckedBlocks>(m, "CheckedBlocks", "Bytes of a file, whose blocks are checked the first time they are met.")
      .def(nb::new_([](BytesIn data, std::size_t block_bytes, BytesIn stored, BytesIn rest, nb::object path,
                       std::uint64_t begin, nb::object checksum_path, std::size_t inside, std::uint32_t crc) {
             auto keep = std::make_shared<std::pair<BytesIn, BytesIn>>(data, stored);
             const auto more = span_of(rest);
             return std::make_shared<CheckedBlocks>(
                 span_of(data), block_bytes, inside, crc, span_of(stored), std::vector(more.begin(), more.end()),
                 CheckedBlocks::Where{path_bytes(path), begin, path_bytes(checksum_path)}, std::move(keep));
           }),
           "data"_a.noconvert(), "block_bytes"_a, "stored"_a.noconvert(), "rest"_a.noconvert(), "path"_a, "begin"_a,
           "checksum_path"_a, "inside"_a = 0, "crc"_a = 0)
      .def_prop_ro("is_done", &CheckedBlocks::is_done, "Whether every block has been checked.")
      .def("check", &CheckedBlocks::check, "begin"_a, "end"_a, nb::call_guard<Unlocked>(),
           "Check the blocks of some bytes. Raises ChecksumError with path and offset.")
      .def("check_all", &CheckedBlocks::check_all, nb::call_guard<Unlocked>(), "The same for all, by all cores.")
      .def("checksum", &CheckedBlocks::checksum, "begin"_a, "end"_a, "crc"_a = 0, nb::call_guard<Unlocked>(),
           "The CRC32C of some bytes, continued from `crc`; of a file that someone may cut.");
}

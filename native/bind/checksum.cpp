#include "files/checksum.hpp"

#include "arrays.hpp"

void stepwell::bind::bind_checksum(nb::module_& m) {
  m.def(
      "crc32c",
      [](BytesIn data, std::uint32_t crc) {
        const Unlocked unlocked;
        return crc32c(crc, span_of(data));
      },
      "data"_a.noconvert(), "crc"_a = 0, "CRC32C of `data`, continuing from `crc`.");
  m.def(
      "crc32c_portable",
      [](BytesIn data, std::uint32_t crc) {
        const Unlocked unlocked;
        return crc32c_portable(crc, span_of(data));
      },
      "data"_a.noconvert(), "crc"_a = 0, "The same, without the processor's instruction.");
}

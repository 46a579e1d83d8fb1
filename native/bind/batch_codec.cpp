#include "stores/batch_codec.hpp"

#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "arrays.hpp"

namespace {

// Bytes whose checksum takes longer than it may take to get the GIL back.
constexpr std::size_t kLong = std::size_t{1} << 18;

}  // namespace

void stepwell::bind::bind_batch_codec(nb::module_& m) {
  m.def(
      "read_cells",
      [](int file, nb::object path, int codec, In<std::uint64_t> offsets, In<std::uint32_t> sizes,
         BytesIn raw, In<std::uint32_t> checksums, std::size_t row_bytes, BytesOut out,
         std::size_t planes) {
        const std::size_t count = offsets.size();
        if (sizes.size() != count || raw.size() != count || (checksums.size() && checksums.size() != count))
          throw std::invalid_argument("expected as many of each as there are cells");
        if (row_bytes == 0 || out.size() / row_bytes != count || out.size() % row_bytes)
          throw std::invalid_argument("expected room for exactly one row a cell");
        if (planes == 0 || row_bytes % planes)
          throw std::invalid_argument("expected rows of whole planes");
        std::vector<Cell> cells(count);
        for (std::size_t i = 0; i < count; ++i)
          cells[i] = {offsets.data()[i], sizes.data()[i], raw.data()[i] != 0};
        const std::string name = path_bytes(path);
        const Unlocked unlocked;
        read_cells(file, name, static_cast<Codec>(codec), planes, cells, elements(checksums), row_bytes,
                   span_of(out));
      },
      "file"_a, "path"_a, "codec"_a, "offsets"_a.noconvert(), "sizes"_a.noconvert(),
      "raw"_a.noconvert(), "checksums"_a.noconvert(), "row_bytes"_a, "out"_a.noconvert(),
      "planes"_a = 1,
      "Read payloads of an open file and unpack them side by side into `out`, their planes put "
      "together; those marked raw are copied as they are.");
  m.def(
      "unpack_lzf",
      [](BytesIn packed, BytesOut out) {
        const Unlocked unlocked;
        unpack_lzf(span_of(packed), span_of(out));
      },
      "packed"_a.noconvert(), "out"_a.noconvert(), "Unpack LZF into all of `out`.");
  m.def(
      "checksum_each",
      [](BytesIn rows, std::size_t row_bytes) {
        if (row_bytes == 0 || rows.size() % row_bytes)
          throw std::invalid_argument("expected whole rows");
        std::optional<Unlocked> unlocked;
        if (rows.size() > kLong) unlocked.emplace();
        std::vector<std::uint32_t> checksums = checksum_each(span_of(rows), row_bytes);
        unlocked.reset();
        return bytes_of(std::move(checksums));
      },
      "rows"_a.noconvert(), "row_bytes"_a, "CRC32C of each row, as bytes of uint32.");
}

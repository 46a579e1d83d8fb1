#include "reader.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bounded.hpp"
#include "cold.hpp"
#include "layout.hpp"

namespace stepwell::bind {
namespace {

using TableIn = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::device::cpu>;

ReaderPtr table(TableIn rows, const std::vector<std::pair<std::size_t, std::size_t>>& fields, nb::object path,
                std::uint64_t begin) {
  if (rows.shape(1) > 1 && rows.stride(1) != 1)
    throw std::invalid_argument("the bytes of a row must be neighbours");
  std::vector<Field> layout;
  for (const auto& [offset, bytes] : fields) layout.push_back({offset, bytes});
  const Table table{reinterpret_cast<const std::byte*>(rows.data()),
                    static_cast<std::int64_t>(rows.shape(0)), rows.stride(0), rows.shape(1)};
  auto reader = table_reader(table, std::move(layout), std::make_shared<TableIn>(rows));
  if (path.is_none()) return reader;
  if (table.stride != static_cast<std::ptrdiff_t>(table.row_bytes))
    throw std::invalid_argument("the rows of a file must be neighbours");
  return guarded_reader(std::move(reader), {table.base, rows.size()}, path_bytes(path), begin);
}

NumpyBytes take(const Reader& reader, RowsIn given) {
  const auto rows = own_copy(given);
  BlockRef block;
  std::vector<std::size_t> layout;
  {
    const Unlocked unlocked;
    layout = block_layout(reader, rows.size());
    block = read_shared(reader, rows, layout);
  }
  return numpy_bytes(std::move(block), layout.back());
}

void read_into(const Reader& reader, RowsIn given, const std::vector<BytesOut>& outs) {
  const auto rows = own_copy(given);
  std::vector<std::span<std::byte>> spans;
  for (const BytesOut& out : outs) spans.push_back(span_of(out));
  const auto places = checked_places(reader, rows.size(), spans);
  const Unlocked unlocked;
  read(reader, rows, places);
}

}  // namespace

void bind_reader(nb::module_& m) {
  nb::class_<Reader>(m, "Reader", "A source that can be read without Python.")
      .def_prop_ro("length", &Reader::length)
      .def(
          "layout", [](const Reader& reader, std::size_t count) { return block_layout(reader, count); },
          "count"_a, "Where each field begins in a block of `count` rows, and the block's size.")
      .def("take", &take, "rows"_a.noconvert(), "The rows in a block of the shared pool, laid out by `layout`.")
      .def("read", &read_into, "rows"_a.noconvert(), "outs"_a, "The rows into the caller's memory.");
  m.def("table_reader", &table, "rows"_a.noconvert(), "fields"_a, "path"_a = nb::none(), "begin"_a = 0,
        "Fields, as (offset, bytes), of the rows of a two-dimensional byte array; with a path, of the memory of\n"
        "that file from byte `begin` on, which someone may cut: an error, not the end of the process.");
  m.def(
      "bounded_reader",
      [](ReaderPtr base, const std::vector<BytesIn>& maps, std::size_t budget) {
        auto keep = std::make_shared<std::vector<BytesIn>>(maps);
        std::vector<std::span<const std::byte>> spans;
        for (const BytesIn& map : maps) spans.push_back(span_of(map));
        return bounded_reader(std::move(base), std::move(spans), budget, std::move(keep));
      },
      "base"_a, "maps"_a, "budget"_a,
      "The same rows, read out of mapped files with about `budget` bytes of them resident.");
  nb::class_<Residents>(m, "Residents", "Mapped files, of which those that were read last are resident.")
      .def(nb::init<std::size_t>(), "count"_a)
      .def(
          "add",
          [](Residents& residents, BytesIn map) { residents.add(span_of(map), std::make_shared<BytesIn>(map)); },
          "map"_a, "A further file; they are numbered from 0 on.");
  m.def("resident_reader", &resident_reader, "base"_a, "residents"_a, "map"_a,
        "The same rows, read out of one of these mapped files.");
  m.def(
      "guarded_reader",
      [](BytesIn file, std::size_t offset, std::size_t rows, std::size_t row_bytes, nb::object path,
         std::uint64_t begin) {
        std::size_t bytes;
        if (__builtin_mul_overflow(rows, row_bytes, &bytes) || offset > file.size() || bytes > file.size() - offset)
          throw std::invalid_argument("the rows leave the file");
        auto keep = std::make_shared<BytesIn>(file);
        const Table table{span_of(file).data() + offset, static_cast<std::int64_t>(rows),
                          static_cast<std::ptrdiff_t>(row_bytes), row_bytes};
        return guarded_reader(table_reader(table, {{0, row_bytes}}, std::move(keep)), span_of(file), path_bytes(path),
                              begin);
      },
      "file"_a.noconvert(), "offset"_a, "rows"_a, "row_bytes"_a, "path"_a, "begin"_a = 0,
      "Rows of a mapped file that someone may cut: an error, not the end of the process. The memory "
      "is that of the file from byte `begin` on.");
  m.def("checked_reader", &checked_reader, "base"_a, "blocks"_a, "stride"_a, "from_"_a, "to"_a,
        "The same rows, of `stride` bytes, checked when their blocks are first met; of bytes `from_` to `to`.");
  nb::class_<Cold>(m, "Cold", "Whether reads of a store's mapped files have met the disk lately.")
      .def(nb::init<>())
      .def_prop_ro("is_cold", &Cold::is_cold);
  m.def(
      "cold_reader",
      [](ReaderPtr base, BytesIn memory, std::size_t stride, std::size_t from, std::size_t to,
         std::shared_ptr<Cold> cold, std::shared_ptr<const CheckedBlocks> blocks) {
        return cold_reader(std::move(base), span_of(memory), stride, from, to, std::move(blocks), std::move(cold));
      },
      "base"_a, "memory"_a.noconvert(), "stride"_a, "from_"_a, "to"_a, "cold"_a, "blocks"_a = nb::none(),
      "The same rows, of `stride` bytes in a mapped file: what is not in memory of bytes `from_` to `to` of them is "
      "asked of\nthe disk many rows at a time.");
  m.def("mapped_reader", &mapped_reader, "base"_a, "map"_a);
  m.def("concat_reader", &concat_reader, "parts"_a);
  m.def("join_reader", &join_reader, "parts"_a);
  m.def(
      "widened_reader",
      [](ReaderPtr base, const std::vector<std::tuple<std::size_t, std::size_t, bool>>& widths) {
        std::vector<Width> all;
        for (const auto& [from, to, has_sign] : widths) all.push_back({from, to, has_sign});
        return widened_reader(std::move(base), std::move(all));
      },
      "base"_a, "widths"_a,
      "The same rows with wider whole numbers: (bytes, wider bytes, whether there is a sign) for each field.");
}

}  // namespace stepwell::bind

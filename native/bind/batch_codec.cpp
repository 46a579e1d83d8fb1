#include "batch_codec.hpp"

#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "arrays.hpp"

namespace stepwell::bind {
namespace {

// The memory of objects like bytes, which stays where it is while this lives.
class Views {
 public:
  explicit Views(const nb::list& items) {
    views_.reserve(items.size());
    for (nb::handle item : items) {
      Py_buffer view;
      if (PyObject_GetBuffer(item.ptr(), &view, PyBUF_SIMPLE) != 0) {
        release();
        throw nb::python_error();
      }
      views_.push_back(view);
    }
  }
  ~Views() { release(); }
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;

  std::vector<Bytes> spans() const {
    std::vector<Bytes> spans;
    spans.reserve(views_.size());
    for (const Py_buffer& view : views_)
      spans.emplace_back(static_cast<const std::byte*>(view.buf), static_cast<std::size_t>(view.len));
    return spans;
  }

 private:
  void release() {
    for (Py_buffer& view : views_) PyBuffer_Release(&view);
    views_.clear();
  }

  std::vector<Py_buffer> views_;
};

}  // namespace
}  // namespace stepwell::bind

void stepwell::bind::bind_batch_codec(nb::module_& m) {
  m.def(
      "pack_each",
      [](int codec, int level, const nb::list& rows, bool shared, std::size_t planes) {
        const Views views(rows);
        const std::vector<Bytes> spans = views.spans();
        std::vector<std::vector<std::byte>> packed;
        std::vector<std::uint32_t> sums(rows.size());
        {
          const Unlocked unlocked;
          packed = pack_each(static_cast<Codec>(codec), level, planes, spans, sums, shared);
        }
        nb::list result;
        for (std::size_t i = 0; i < packed.size(); ++i)
          if (packed[i].empty())
            result.append(nb::none());
          else
            result.append(nb::bytes(reinterpret_cast<const char*>(packed[i].data()), packed[i].size()));
        return nb::make_tuple(result, bytes_of(std::move(sums)));
      },
      "codec"_a, "level"_a, "rows"_a, "shared"_a = true, "planes"_a = 1,
      nb::sig("def pack_each(codec: int, level: int, rows: list[bytes | NDArray[numpy.uint8]], "
              "shared: bool = True, planes: int = 1) -> tuple[list[bytes | None], "
              "NDArray[numpy.uint8]]"),
      "Each row packed, one of its planes behind the other, None for one that would not become "
      "smaller; and the CRC32C of what is to be stored of each, as bytes of uint32.");
  m.def(
      "copy_bytes",
      [](nb::object from, BytesOut to) {
        Py_buffer view;
        if (PyObject_GetBuffer(from.ptr(), &view, PyBUF_C_CONTIGUOUS) != 0) throw nb::python_error();
        const bool fits = static_cast<std::size_t>(view.len) == to.size();
        if (fits && view.len)
          copy_past_caches({static_cast<const std::byte*>(view.buf), to.size()}, span_of(to).data());
        PyBuffer_Release(&view);
        if (!fits) throw std::invalid_argument("expected as many bytes as there is room for");
      },
      "from"_a, "to"_a.noconvert(),
      nb::sig("def copy_bytes(source: object, to: NDArray[numpy.uint8]) -> None"),
      "Copy the memory of an array in C order. The GIL is kept: whoever lets go of it for some "
      "microseconds may wait for milliseconds.");
  m.def(
      "read_cells",
      [](int file, nb::object path, int codec, In<std::uint64_t> offsets, In<std::uint32_t> sizes,
         BytesIn raw, In<std::uint32_t> sums, std::size_t row_bytes, BytesOut out,
         std::size_t planes) {
        const std::size_t count = offsets.size();
        if (sizes.size() != count || raw.size() != count || (sums.size() && sums.size() != count))
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
        read_cells(file, name, static_cast<Codec>(codec), planes, cells, elements(sums), row_bytes,
                   span_of(out));
      },
      "file"_a, "path"_a, "codec"_a, "offsets"_a.noconvert(), "sizes"_a.noconvert(),
      "raw"_a.noconvert(), "sums"_a.noconvert(), "row_bytes"_a, "out"_a.noconvert(),
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
      "sum_each",
      [](BytesIn rows, std::size_t row_bytes) {
        if (row_bytes == 0 || rows.size() % row_bytes)
          throw std::invalid_argument("expected whole rows");
        std::vector<std::uint32_t> sums;
        {
          const Unlocked unlocked;
          sums = sum_each(span_of(rows), row_bytes);
        }
        return bytes_of(std::move(sums));
      },
      "rows"_a.noconvert(), "row_bytes"_a, "CRC32C of each row, as bytes of uint32.");
}

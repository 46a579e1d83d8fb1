#include "stores/row_buffer.hpp"

#include <nanobind/stl/shared_ptr.h>

#include <cstring>
#include <memory>
#include <stdexcept>

#include "arrays.hpp"

namespace stepwell::bind {
namespace {

// The GIL is kept all the time.
void put(RowBuffer& buffer, std::uint64_t row, nb::handle array) {
  if (PyLong_CheckExact(array.ptr())) {
    const long long value = PyLong_AsLongLong(array.ptr());
    if (value == -1 && PyErr_Occurred()) throw nb::python_error();
    const auto number = static_cast<std::int64_t>(value);
    buffer.put(row, std::as_bytes(std::span(&number, 1)));
    return;
  }
  Py_buffer view;
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_STRIDED_RO) != 0) throw nb::python_error();
  const std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> held(&view, PyBuffer_Release);
  if (PyBuffer_IsContiguous(&view, 'C'))
    return buffer.put(row,
                      {static_cast<const std::byte*>(view.buf), static_cast<std::size_t>(view.len)});
  put(buffer, row, nb::module_::import_("numpy").attr("ascontiguousarray")(array));
}

NumpyBytes joined(const RowBuffer& buffer, std::uint64_t first, std::size_t count) {
  const RowBuffer::Lent lent = buffer.lend(first, count);
  std::vector<std::byte> bytes;
  bytes.reserve(count * buffer.row_bytes());
  for (const Bytes row : lent.rows) bytes.insert(bytes.end(), row.begin(), row.end());
  return bytes_of(std::move(bytes));
}

std::shared_ptr<PackedRows> packed(const RowBuffer& buffer, std::uint64_t first, std::size_t count,
                                   int codec, int level, std::size_t planes, bool shared) {
  const Unlocked unlocked;
  return std::make_shared<PackedRows>(buffer.lend(first, count), static_cast<Codec>(codec), level,
                                      planes, shared);
}

const PackedRows& checked(const PackedRows& rows, std::size_t i) {
  if (i >= rows.packed.size()) throw std::out_of_range("there is no such row");
  return rows;
}

}  // namespace

void bind_row_buffer(nb::module_& m) {
  nb::class_<PackedRows>(m, "PackedRows", "Rows as they are to be stored.")
      .def("__len__", [](const PackedRows& rows) { return rows.packed.size(); })
      .def_prop_ro(
          "checksums", [](const PackedRows& rows) { return bytes_of(std::vector(rows.checksums)); },
          nb::rv_policy::move,
          "CRC32C of what is stored of each, as bytes of uint32.")
      .def(
          "raw", [](const PackedRows& rows, std::size_t i) { return checked(rows, i).raw(i); }, "i"_a,
          "Whether a row is stored as it is, since it would not become smaller.")
      .def(
          "stored",
          [](const PackedRows& rows, std::size_t i) {
            const Bytes stored = checked(rows, i).stored(i);
            return nb::bytes(reinterpret_cast<const char*>(stored.data()), stored.size());
          },
          "i"_a)
      .def(
          "write",
          [](const PackedRows& rows, std::uintptr_t function, std::int64_t dataset,
             std::uint64_t first, std::size_t rank, std::uint32_t raw_mask) {
            if (!function) throw std::invalid_argument("expected a function");
            const Unlocked unlocked;
            return write_chunks(rows, reinterpret_cast<WriteChunk>(function), dataset, first, rank,
                                raw_mask);
          },
          "function"_a, "dataset"_a, "first"_a, "rank"_a, "raw_mask"_a,
          "Write the rows as chunks `first`, `first` + 1, … of a dataset, by the function whose "
          "address this is: H5Dwrite_chunk of the library that the dataset is open in. Returns how "
          "many were written: all, or those before the one that it refused.");
  nb::class_<RowBuffer>(m, "RowBuffer",
                        "Rows of one size that wait to be written, each under its number.")
      .def(nb::init<std::size_t, std::uint64_t>(), "row_bytes"_a, "first"_a = 0)
      .def_prop_ro("row_bytes", &RowBuffer::row_bytes)
      .def_prop_ro("kept_bytes", &RowBuffer::kept_bytes, "Memory, in use or not.")
      .def("put", &put, "row"_a, "array"_a,
           nb::sig("def put(self, row: int, array: object) -> None"),
           "Copy an array in C order, or an int as an int64. The GIL is kept: whoever lets go of it "
           "for some microseconds may wait for milliseconds.")
      .def(
          "reserve",
          [](RowBuffer& buffer, std::size_t rows) {
            const Unlocked unlocked;
            buffer.reserve(rows);
          },
          "rows"_a, "Have memory for `rows` more.")
      .def("release", &RowBuffer::release, "row"_a, "Rows before this one are not needed any more.")
      .def("joined", &joined, "first"_a, "count"_a, "A copy of rows, one behind the other.")
      .def("packed", &packed, "first"_a, "count"_a, "codec"_a, "level"_a, "planes"_a = 1,
           "shared"_a = true,
           "Rows packed, the planes of each one behind the other, by all cores if `shared`. They "
           "must not be released before the result is of no more use.");
}

}  // namespace stepwell::bind

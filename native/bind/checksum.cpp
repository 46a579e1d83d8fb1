#include "files/checksum.hpp"

#include <cmath>
#include <cstring>

#include "arrays.hpp"

namespace stepwell::bind {
namespace {

// Values of SQLite one behind the other, as docs/formats/replay.md has them: a byte for the kind,
// eight for the number or the length, then the bytes of a text or a blob.
class Values {
 public:
  std::uint32_t checksum(PyObject* row, Py_ssize_t count) {
    bytes_.clear();
    const nb::object items = nb::steal(PySequence_Tuple(row));  // itself, if it is one
    if (!items.is_valid()) throw nb::python_error();
    if (PyTuple_Size(items.ptr()) < count) throw nb::value_error("a row is too short");
    for (Py_ssize_t i = 0; i < count; ++i) add(PyTuple_GetItem(items.ptr(), i));
    return crc32c(0, bytes_);
  }

 private:
  enum Kind : unsigned char { kNull, kInteger, kReal, kText, kBlob };

  void add(PyObject* value) {
    if (value == Py_None) {
      put(kNull, std::int64_t{0});
    } else if (PyUnicode_Check(value)) {
      Py_ssize_t size = 0;
      const char* text = PyUnicode_AsUTF8AndSize(value, &size);
      if (text == nullptr) throw nb::python_error();
      put(kText, static_cast<std::int64_t>(size));
      append(text, static_cast<std::size_t>(size));
    } else if (PyLong_Check(value)) {
      const long long number = PyLong_AsLongLong(value);
      if (number == -1 && PyErr_Occurred()) throw nb::python_error();
      put(kInteger, static_cast<std::int64_t>(number));
    } else if (PyFloat_Check(value)) {
      // SQLite returns 3.0 for a 3 where a column is of reals, and 0.0 for a -0.0.
      const double number = PyFloat_AsDouble(value);
      if (std::fabs(number) < 0x1p53 && number == std::trunc(number))
        put(kInteger, static_cast<std::int64_t>(number));
      else
        put(kReal, number);
    } else if (PyBytes_Check(value)) {
      put(kBlob, static_cast<std::int64_t>(PyBytes_Size(value)));
      append(PyBytes_AsString(value), static_cast<std::size_t>(PyBytes_Size(value)));
    } else {
      throw nb::type_error("expected a number, text, bytes or None");
    }
  }

  template <typename Number>
  void put(Kind kind, Number number) {
    bytes_.push_back(static_cast<std::byte>(kind));
    append(&number, sizeof number);
  }

  void append(const void* data, std::size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }

  std::vector<std::byte> bytes_;
};

template <auto call>
std::uint32_t unlocked(BytesIn data, std::uint32_t crc) {
  const Unlocked without_gil;
  return call(crc, span_of(data));
}

// The GIL is kept all the time.
nb::list checksum_values(nb::list rows, Py_ssize_t count) {
  Values values;
  nb::list made;
  for (const nb::handle row : rows) made.append(values.checksum(row.ptr(), count));
  return made;
}

}  // namespace

void bind_checksum(nb::module_& m) {
  m.def("crc32c", &unlocked<crc32c>, "data"_a.noconvert(), "crc"_a = 0, "CRC32C of `data`, continuing from `crc`.");
  m.def("crc32c_portable", &unlocked<crc32c_portable>, "data"_a.noconvert(), "crc"_a = 0,
        "The same, without the processor's instruction.");
  m.def("checksum_values", &checksum_values, "rows"_a, "count"_a,
        nb::sig("def checksum_values(rows: list[tuple[object, ...]], count: int) -> list[int]"),
        "CRC32C of the first `count` values of each row: None, numbers, text, bytes.");
}

}  // namespace stepwell::bind

#include "stores/row_state.hpp"

#include <nanobind/stl/shared_ptr.h>

#include "arrays.hpp"

namespace stepwell::bind {
namespace {

// The mapped tables of a row state, which live as long as this.
struct Tables {
  BytesOut values, there, checksums;
  StateTables tables;
};

// What `call` does with some rows and bytes for each of them, without the GIL.
template <auto call, class Bytes>
void over_rows(const Tables& of, RowsIn given, Bytes bytes) {
  const auto rows = own_copy(given);
  const Unlocked unlocked;
  call(of.tables, rows, span_of(bytes));
}

}  // namespace

void bind_row_state(nb::module_& m) {
  nb::class_<Tables>(m, "StateTables", "The mapped tables of a row state.")
      .def(nb::new_([](BytesOut values, BytesOut there, BytesOut checksums, std::size_t row_bytes, nb::object folder) {
             if (row_bytes == 0) throw std::invalid_argument("a row has at least one byte");
             auto made = std::make_shared<Tables>();
             made->tables = {span_of(values), span_of(there), span_of(checksums), row_bytes, path_bytes(folder)};
             made->values = std::move(values), made->there = std::move(there), made->checksums = std::move(checksums);
             return made;
           }),
           "values"_a.noconvert(), "there"_a.noconvert(), "checksums"_a.noconvert(), "row_bytes"_a, "folder"_a)
      .def("get", &over_rows<state_get, BytesOut>, "rows"_a.noconvert(), "out"_a.noconvert(),
           "The vectors of these rows, checked; zeros for those without.")
      .def("put", &over_rows<state_put, BytesIn>, "rows"_a.noconvert(), "values"_a.noconvert(),
           "Write vectors and their checksums.")
      .def("present", &over_rows<state_present, BytesOut>, "rows"_a.noconvert(), "out"_a.noconvert(),
           "1 for rows that have something, else 0.")
      .def(
          "count",
          [](const Tables& of) {
            const Unlocked unlocked;
            return state_count(of.tables);
          },
          "How many rows have something.");
}

}  // namespace stepwell::bind

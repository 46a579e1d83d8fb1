#include "rowmap.hpp"

#include <nanobind/stl/shared_ptr.h>

#include "arrays.hpp"
#include "gather.hpp"

void stepwell::bind::bind_rowmap(nb::module_& m) {
  nb::class_<RowMap>(m, "RowMap", "How the rows of a view become rows of its base.")
      .def_prop_ro("length", &RowMap::length)
      .def_prop_ro("width", &RowMap::width, "Base rows for each view row.")
      .def(
          "apply",
          [](const RowMap& map, RowsIn given) {
            const auto rows = own_copy(given);
            check_rows(rows, map.length());
            NumpyRows out = numpy_rows(map.mapped_size(rows.size()));
            const Unlocked unlocked;
            map.apply(rows, {out.data(), out.size()});
            return out;
          },
          "rows"_a.noconvert());
  m.def(
      "index_map",
      [](RowsIn index) { return index_map(span_of(index), std::make_shared<RowsIn>(index)); },
      "index"_a.noconvert());
  m.def(
      "range_map",
      [](RowsIn starts, RowsIn counts, std::int64_t step, std::int64_t width) {
        return range_map(span_of(starts), span_of(counts), step, width);
      },
      "starts"_a.noconvert(), "counts"_a.noconvert(), "step"_a = 1, "width"_a = 1);
  m.def(
      "check_rows",
      [](RowsIn rows, std::int64_t length) { check_rows(span_of(rows), length); }, "rows"_a.noconvert(),
      "length"_a, "Raise IndexError naming the first row outside range(length).");
}

#include "loader/order.hpp"

#include <nanobind/stl/shared_ptr.h>

#include "arrays.hpp"

void stepwell::bind::bind_order(nb::module_& m) {
  nb::class_<Order>(m, "Order", "The rows of every epoch, as a function of position.")
      .def_prop_ro("length", &Order::length, "Positions in one epoch.")
      .def_prop_ro("lanes", &Order::lanes, "Neighbouring positions that read different blocks.")
      .def(
          "rows",
          [](const Order& order, std::uint64_t epoch, std::int64_t start, std::int64_t count,
             std::int64_t stride) {
            order.check(start, count, stride);  // before memory is asked for
            NumpyRows rows = numpy_rows(static_cast<std::size_t>(count));
            const Unlocked unlocked;
            order.rows(epoch, start, {rows.data(), rows.size()}, stride);
            return rows;
          },
          "epoch"_a, "start"_a, "count"_a, "stride"_a = 1,
          "The rows at `count` positions from `start` on, every stride-th.");
  m.def("shuffle_order", &shuffle_order, "count"_a, "seed"_a);
  m.def("block_order", &block_order, "count"_a, "seed"_a, "block"_a, "group"_a, "lanes"_a = 1);
  m.def("sequential_order", &sequential_order, "count"_a, "window"_a, "stride"_a);
  m.def("iid_order", &iid_order, "count"_a, "seed"_a);
  m.def(
      "weighted_order",
      [](nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu> cumulative,
         std::uint64_t seed) {
        auto keep = std::make_shared<decltype(cumulative)>(cumulative);
        return weighted_order({cumulative.data(), cumulative.size()}, keep, seed);
      },
      "cumulative"_a.noconvert(), "seed"_a);
}

#include "loader/plan.hpp"

#include "arrays.hpp"

namespace stepwell::bind {
namespace {

NumpyRows numpy_of(const std::vector<std::int64_t>& values) {
  NumpyRows out = numpy_rows(values.size());
  std::copy(values.begin(), values.end(), out.data());
  return out;
}

}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<Plan>(m, "Plan", "Which units each of the next steps needs, and which step needs a unit next.")
      .def(nb::init<std::size_t>(), "max_uses"_a)
      .def_prop_ro("finished", &Plan::finished, "Steps that are over.")
      .def_prop_ro("begun", &Plan::begun, "Steps that are over or under way.")
      .def_prop_ro("planned", &Plan::planned)
      .def_prop_ro("held", &Plan::held, "Units of steps under way, each counted once.")
      .def_prop_ro("has_room", &Plan::has_room)
      .def_prop_ro("fresh", &Plan::fresh, "Units of the step to begin next that no step under way has.")
      .def(
          "add",
          [](Plan& plan, RowsIn units) {
            std::vector<std::int64_t> unknown;
            {
              const Unlocked unlocked;
              unknown = plan.add(span_of(units));
            }
            return numpy_of(unknown);
          },
          "units"_a.noconvert(), "A further step; gives the units that no other planned step has.")
      .def(
          "units", [](const Plan& plan, std::uint64_t step) { return numpy_of(plan.units(step)); }, "step"_a)
      .def("begin", &Plan::begin)
      .def(
          "finish",
          [](Plan& plan) {
            std::vector<std::int64_t> next;
            {
              const Unlocked unlocked;
              next = plan.finish();
            }
            return numpy_of(next);
          },
          "The oldest step under way is over; gives the step that needs each of its units next.");
}

}  // namespace stepwell::bind

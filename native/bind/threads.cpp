#include "threads.hpp"

#include "arrays.hpp"

void stepwell::bind::bind_threads(nb::module_& m) {
  m.def("usable_cores", &usable_cores,
        "Cores this process may use: the smaller of its affinity and its cgroup quota.");
}

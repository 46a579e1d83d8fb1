#include "loader/prefetch.hpp"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "layout.hpp"

namespace stepwell::bind {

Prefetch::Batch next_batch(Prefetch& prefetch) {
  auto batch = prefetch.next(std::chrono::milliseconds(0));
  for (;;) {
    if (!batch) {
      const Unlocked unlocked;
      batch = prefetch.next(std::chrono::milliseconds(100));
    }
    if (batch) return std::move(*batch);
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

namespace {

nb::tuple next(Prefetch& prefetch, const Layout& layout) {
  auto batch = next_batch(prefetch);
  const auto [epoch, start, count, after, stride] = batch.step;
  const auto rows = static_cast<std::size_t>(count);
  if (block_layout(layout.reader(), rows).back() != batch.bytes)
    throw std::invalid_argument("the layout is of another reader");
  return nb::make_tuple(layout.batch(std::move(batch.block), rows), nb::make_tuple(epoch, start, count, after, stride));
}

}  // namespace

void bind_prefetch(nb::module_& m) {
  nb::class_<Schedule>(m, "Schedule", "Which positions each step of a loop reads, on each rank.")
      .def(nb::init<std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool, std::uint64_t,
                    std::int64_t, std::int64_t, std::int64_t, bool>(),
           "length"_a, "batch"_a, "rank"_a, "world"_a, "drop_last"_a, "epoch"_a, "position"_a,
           "worker"_a = 0, "workers"_a = 1, "in_turn"_a = false)
      .def("steps_from", &Schedule::steps_from, "position"_a,
           "Steps from `position` to the end of an epoch.")
      .def(
          "step",
          [](const Schedule& schedule, std::uint64_t n) {
            const auto step = schedule.step(n);
            return std::make_tuple(step.epoch, step.start, step.count, step.after, step.stride);
          },
          "n"_a, "Epoch, first position, count, global position after it, and stride of step `n`.");
  nb::class_<Prefetch>(m, "Prefetch", "Batches made ahead by native threads, in order.")
      .def(nb::init<ReaderPtr, OrderPtr, Schedule, std::shared_ptr<BlockPool>, unsigned, unsigned>(),
           "reader"_a, "order"_a, "schedule"_a, "blocks"_a, "threads"_a, "depth"_a)
      .def("next", &next, "layout"_a,
           nb::sig("def next(self, layout: Layout)"
                   " -> tuple[dict[str, NDArray[typing.Any]], tuple[int, int, int, int, int]]"),
           "The next batch, as the layout of the same reader has it, and its step.")
      .def_prop_ro("delivered", &Prefetch::delivered, "Batches that `next` has given so far, those that failed included.")
      .def("close", &Prefetch::close, nb::call_guard<Unlocked>());
}

}  // namespace stepwell::bind

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>

#include "arrays.hpp"
#include "cuda/convoy.hpp"

namespace stepwell::bind {
namespace {

using cuda::Feed;
using StreamIn = std::optional<std::uintptr_t>;  // the number that torch knows a stream by
using FieldIn = std::tuple<std::string, std::uint8_t, std::uint8_t, std::vector<std::int64_t>>;

// DLPack's versionless tensor, which every framework takes.
struct Managed {
  nb::dlpack::dltensor tensor;
  void* owner;
  void (*deleter)(Managed*);
};

// A batch that was handed out, until the last of its tensors is gone.
struct Handed {
  std::shared_ptr<Feed::Group> group;
  std::vector<Managed> tensors;
  std::vector<std::vector<std::int64_t>> shapes;
  std::atomic<std::size_t> left;
};

void let_go(Managed* tensor) {
  auto* handed = static_cast<Handed*>(tensor->owner);
  if (handed->left.fetch_sub(1, std::memory_order_acq_rel) == 1) delete handed;
}

void drop_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, "dltensor") == 0) return;  // a framework has taken it
  let_go(static_cast<Managed*>(PyCapsule_GetPointer(capsule, "dltensor")));
}

cuda::Stream stream_of(std::uintptr_t number) { return reinterpret_cast<cuda::Stream>(number); }

// A tensor for each field of batch i, made of a DLPack capsule by `make`.
nb::dict tensors_of(const Feed& feed, std::shared_ptr<Feed::Group> group, unsigned i, std::int64_t rows,
                    nb::handle make) {
  const auto layout = feed.layout(static_cast<std::size_t>(rows));
  const auto& fields = feed.fields();
  const auto begin = group->block->at + i * feed.batch_bytes();
  auto handed = std::unique_ptr<Handed>(new Handed{std::move(group), {}, {}, {1}});
  handed->tensors.reserve(fields.size());
  handed->shapes.reserve(fields.size());
  for (std::size_t f = 0; f < fields.size(); ++f) {
    auto& shape = handed->shapes.emplace_back();
    shape.reserve(fields[f].shape.size() + 1);
    shape.push_back(rows);
    shape.insert(shape.end(), fields[f].shape.begin(), fields[f].shape.end());
    nb::dlpack::dltensor tensor;
    tensor.data = reinterpret_cast<void*>(begin + layout[f]);
    tensor.device = {nb::device::cuda::value, feed.device()};
    tensor.ndim = static_cast<std::int32_t>(shape.size());
    tensor.dtype = {fields[f].code, fields[f].bits, 1};
    tensor.shape = shape.data();
    handed->tensors.push_back({tensor, handed.get(), &let_go});
  }
  // One count is ours until all capsules are made; each made has one of its own.
  Handed* const all = handed.release();
  Managed ours{{}, all, &let_go};
  const std::unique_ptr<Managed, decltype(&let_go)> keep(&ours, &let_go);
  nb::dict tensors;
  for (std::size_t f = 0; f < fields.size(); ++f) {
    all->left.fetch_add(1, std::memory_order_relaxed);
    PyObject* made = PyCapsule_New(&all->tensors[f], "dltensor", &drop_capsule);
    if (made == nullptr) {
      let_go(&all->tensors[f]);
      throw nb::python_error();
    }
    tensors[fields[f].name.c_str()] = make(nb::steal(made));
  }
  return tensors;
}

void hand_over(Feed& feed, Feed::Group& group, StreamIn stream) {
  if (stream) return feed.hand_over(group, stream_of(*stream));
  const Unlocked unlocked;
  feed.hand_over(group, std::nullopt);
}

// The batches of a loop, made ahead, and the feed that they cross by.
struct Loop {
  Loop(std::shared_ptr<Feed> feed, ReaderPtr reader, OrderPtr order, const Schedule& schedule, unsigned threads,
       unsigned depth)
      : feed(feed),
        batches(std::move(reader), std::move(order), schedule, shared_blocks(), threads,
                std::max(depth, 2 * feed->together()), std::make_shared<cuda::Convoy>(feed)) {}

  const std::shared_ptr<Feed> feed;
  Prefetch batches;
};

// Batches that came together.
struct Group {
  std::shared_ptr<Feed> feed;
  std::shared_ptr<Feed::Group> group;  // none if no batch could be made
  std::vector<Schedule::Step> steps;
  std::vector<unsigned> places;             // of each batch in the group, and
  std::vector<std::exception_ptr> errors;   // why there is none
};

std::unique_ptr<Group> next(Loop& loop, StreamIn stream) {
  const std::uint64_t number = loop.batches.delivered();
  const unsigned count = cuda::Convoy::span_of(number, loop.feed->together()).count;
  auto found = std::make_unique<Group>(Group{loop.feed, nullptr, {}, {}, {}});
  for (unsigned i = 0; i < count; ++i) {
    std::exception_ptr error;
    unsigned place = 0;
    try {
      const auto batch = next_batch(loop.batches);
      const auto& made = static_cast<const cuda::Convoy::Batch&>(*batch.result);
      found->group = made.group;
      place = made.i;
    } catch (const nb::python_error&) {
      throw;
    } catch (...) {
      error = std::current_exception();
    }
    found->steps.push_back(loop.batches.schedule().step(number + i));
    found->places.push_back(place);
    found->errors.push_back(error);
  }
  if (!found->group) return found;
  try {
    hand_over(*loop.feed, *found->group, stream);
  } catch (...) {  // as if no batch could be made
    for (auto& each : found->errors)
      if (!each) each = std::current_exception();
  }
  return found;
}

void check(const Group& group, std::size_t i) {
  if (group.errors.at(i)) std::rethrow_exception(group.errors[i]);
}

// A pinned block to be filled from Python, and then the batch on the device that it has become.
struct Crossing {
  BlockRef here;
  std::int64_t rows;
  std::shared_ptr<Feed::Group> group{};
};

void check_here(const Crossing& crossing) {
  if (!crossing.here) throw std::invalid_argument("expected a batch that is still here, got one that was sent");
}

}  // namespace

void bind_cuda(nb::module_& m) {
  nb::class_<Crossing>(m, "Crossing", "A batch on its way to a device.")
      .def(
          "array",
          [](const Crossing& crossing, std::size_t bytes) {
            check_here(crossing);
            return numpy_bytes(crossing.here, bytes);
          },
          "bytes"_a, "The pinned memory that it is to be put into.");
  nb::class_<Feed>(m, "CudaFeed", "Memory that batches cross to a CUDA device in.")
      .def(nb::new_([](int device, const std::vector<FieldIn>& given, std::size_t rows, unsigned together,
                       unsigned lanes, unsigned keep) {
             std::vector<Feed::Field> fields;
             for (const auto& [name, code, bits, shape] : given) fields.push_back({name, code, bits, shape});
             const Unlocked unlocked;
             return std::make_shared<Feed>(device, std::move(fields), rows, together, lanes, keep);
           }),
           "device"_a, "fields"_a, "rows"_a, "together"_a, "lanes"_a, "keep"_a,
           "For batches of up to `rows`, of which up to `together` have one block and one copy. Fields are names,\n"
           "DLPack's code and bits, and the shape of a row; there are `lanes` streams, and `keep` blocks of device\n"
           "memory stay when nobody uses them.")
      .def(
          "begin",
          [](Feed& feed, std::int64_t rows) {
            const Unlocked unlocked;
            return std::make_unique<Crossing>(Crossing{feed.pinned(), rows});
          },
          "rows"_a, "Memory for a batch that is made in Python.")
      .def(
          "send",
          [](Feed& feed, Crossing& crossing, unsigned lane) {
            check_here(crossing);
            const Unlocked unlocked;
            auto group = feed.begin(lane, 1, std::move(crossing.here));
            feed.memory(*group, 0, feed.layout(static_cast<std::size_t>(crossing.rows)).back());
            feed.settle(*group);
            if (group->failed) std::rethrow_exception(group->failed);
            crossing.group = std::move(group);
          },
          "crossing"_a, "lane"_a, "Begin the copy to the device.")
      .def(
          "hand_over",
          [](Feed& feed, Crossing& crossing, StreamIn stream, nb::handle make) {
            if (!crossing.group)
              throw std::invalid_argument("expected a batch that was sent and not handed over");
            const auto group = std::move(crossing.group);
            hand_over(feed, *group, stream);
            return tensors_of(feed, group, 0, crossing.rows, make);
          },
          "crossing"_a, "stream"_a.none(), "make"_a,
          nb::sig("def hand_over(self, crossing: Crossing, stream: int | None,"
                  " make: collections.abc.Callable[[object], typing.Any]) -> dict[str, typing.Any]"),
          "The batch, as groups of a loop give theirs.")
      .def(
          "record_stream",
          [](Feed& feed, std::uint64_t address, std::uintptr_t stream) {
            return feed.record_stream(address, stream_of(stream));
          },
          "address"_a, "stream"_a,
          "Have the memory of the batch at this address used again behind the work of this stream, too.")
      .def("trim", &Feed::trim, nb::call_guard<Unlocked>(), "Free device memory that no batch is in.")
      .def_prop_ro("device", &Feed::device)
      .def_prop_ro("together", &Feed::together, "Batches that cross at once, at most.")
      .def_prop_ro("blocks", &Feed::blocks, "Blocks of device memory that there are.");
  nb::class_<Group>(m, "CudaGroup", "Batches that came together. Their memory is used again when all are gone.")
      .def_prop_ro(
          "steps",
          [](const Group& group) {
            std::vector<std::tuple<std::uint64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>> steps;
            for (const auto [epoch, start, count, after, stride] : group.steps)
              steps.emplace_back(epoch, start, count, after, stride);
            return steps;
          },
          "The step of each batch.")
      .def(
          "batch",
          [](const Group& group, std::size_t i, nb::handle make) {
            check(group, i);
            return tensors_of(*group.feed, group.group, group.places[i], group.steps[i].count, make);
          },
          "i"_a, "make"_a,
          nb::sig("def batch(self, i: int, make: collections.abc.Callable[[object], typing.Any])"
                  " -> dict[str, typing.Any]"),
          "Batch `i`: for each field what `make` makes of a DLPack capsule. Raises what making the batch raised.")
      .def(
          "put",
          [](const Group& group, std::size_t i, cuda::Address to, std::uintptr_t stream) {
            check(group, i);
            group.feed->put(*group.group, group.places[i], group.steps[i].count, to, stream_of(stream));
          },
          "i"_a, "to"_a, "stream"_a, "Have the stream copy batch `i` to another address on the device.")
      .def(
          "follow",
          [](const Group& group, StreamIn stream) {
            if (group.group) hand_over(*group.feed, *group.group, stream);
          },
          "stream"_a.none(), "Have one more stream wait for the batches, and read them.");
  nb::class_<Loop>(m, "CudaLoop", "Batches made ahead by native threads that copy them to a CUDA device, in order.")
      .def(nb::init<std::shared_ptr<Feed>, ReaderPtr, OrderPtr, const Schedule&, unsigned, unsigned>(), "feed"_a,
           "reader"_a, "order"_a, "schedule"_a, "threads"_a, "depth"_a)
      .def("next", &next, "stream"_a.none(),
           "The next batches, which `stream` has been made to wait for; their memory is used again behind the work of\n"
           "that stream. Without a stream they are there, and their memory is used again when all work of the device has\n"
           "ended.")
      .def_prop_ro("delivered", [](const Loop& loop) { return loop.batches.delivered(); },
                   "Batches that `next` has given so far, those that failed included.")
      .def("close", [](Loop& loop) { loop.batches.close(); }, nb::call_guard<Unlocked>());
}

}  // namespace stepwell::bind

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <atomic>

#include "arrays.hpp"
#include "cuda/feed.hpp"

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
  std::unique_ptr<Feed::Batch> batch;
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

// A tensor for each field, made of a DLPack capsule by `make`.
nb::dict hand_over(Feed& feed, std::unique_ptr<Feed::Batch> batch, std::int64_t rows, StreamIn stream, nb::handle make) {
  if (stream) {
    feed.hand_over(*batch, stream_of(*stream));
  } else {
    const Unlocked unlocked;
    feed.hand_over(*batch, std::nullopt);
  }
  const auto layout = feed.layout(static_cast<std::size_t>(rows));
  const auto& fields = feed.fields();
  auto handed = std::unique_ptr<Handed>(new Handed{std::move(batch), {}, {}, {1}});
  handed->tensors.reserve(fields.size());
  handed->shapes.reserve(fields.size());
  for (std::size_t f = 0; f < fields.size(); ++f) {
    auto& shape = handed->shapes.emplace_back();
    shape.reserve(fields[f].shape.size() + 1);
    shape.push_back(rows);
    shape.insert(shape.end(), fields[f].shape.begin(), fields[f].shape.end());
    nb::dlpack::dltensor tensor;
    tensor.data = reinterpret_cast<void*>(handed->batch->block->at + layout[f]);
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

nb::tuple next(Feed& feed, Prefetch& prefetch, StreamIn stream, nb::handle make, cuda::Address into,
               std::int64_t rows) {
  auto found = next_batch(prefetch);
  auto* made = dynamic_cast<Feed::Batch*>(found.result.get());
  if (made == nullptr) throw std::invalid_argument("expected a Prefetch of this feed");
  (void)found.result.release();
  std::unique_ptr<Feed::Batch> batch(made);
  const auto [epoch, start, count, after, stride] = found.step;
  nb::object given = nb::none();
  if (into != 0 && rows == count)
    feed.put(*batch, count, into, stream_of(stream.value()));
  else
    given = hand_over(feed, std::move(batch), count, stream, make);
  return nb::make_tuple(given, nb::make_tuple(epoch, start, count, after, stride));
}

// A pinned block to be filled from Python, and then the batch on the device that it has become.
struct Crossing {
  BlockRef block;
  std::unique_ptr<Feed::Batch> batch{};
  std::int64_t rows;
};

}  // namespace

void bind_cuda(nb::module_& m) {
  nb::class_<Crossing>(m, "Crossing", "A batch on its way to a device.")
      .def(
          "array",
          [](const Crossing& crossing, std::size_t bytes) {
            if (!crossing.block) throw std::invalid_argument("expected a batch that is still here, got one that was sent");
            return numpy_bytes(crossing.block, bytes);
          },
          "bytes"_a, "The pinned memory that it is to be put into.");
  nb::class_<Feed, Stage>(m, "CudaFeed", "Batches that threads copy to a CUDA device.")
      .def(nb::new_([](int device, const std::vector<FieldIn>& given, std::size_t rows, unsigned lanes, unsigned keep) {
             std::vector<Feed::Field> fields;
             for (const auto& [name, code, bits, shape] : given) fields.push_back({name, code, bits, shape});
             const Unlocked unlocked;
             return std::make_shared<Feed>(device, std::move(fields), rows, lanes, keep);
           }),
           "device"_a, "fields"_a, "rows"_a, "lanes"_a, "keep"_a,
           "For batches of up to `rows`. Fields are names, DLPack's code and bits, and the shape of a row; `lanes`\n"
           "threads copy, and `keep` blocks of device memory stay when nobody uses them.")
      .def("next", &next, "prefetch"_a, "stream"_a.none(), "make"_a, "into"_a = 0, "rows"_a = 0,
           nb::sig("def next(self, prefetch: Prefetch, stream: int | None,"
                   " make: collections.abc.Callable[[object], typing.Any], into: int = 0, rows: int = 0)"
                   " -> tuple[dict[str, typing.Any] | None, tuple[int, int, int, int, int]]"),
           "The next batch, which `stream` has been made to wait for, and its step: for each field what `make` makes of a\n"
           "DLPack capsule. Its memory is used again behind the work of that stream. Without a stream the batch is there,\n"
           "and its memory used again when all work of the device has ended. The stream copies a batch of `rows` rows to\n"
           "the address `into`, if there is one; None is returned.")
      .def(
          "begin",
          [](Feed& feed, std::int64_t rows) {
            const Unlocked unlocked;
            return std::make_unique<Crossing>(Crossing{feed.memory(feed.layout(static_cast<std::size_t>(rows)).back()), {}, rows});
          },
          "rows"_a, "Memory for a batch that is made in Python.")
      .def(
          "send",
          [](Feed& feed, Crossing& crossing, unsigned lane) {
            if (!crossing.block) throw std::invalid_argument("expected a batch that is still here, got one that was sent");
            const Unlocked unlocked;
            const std::size_t bytes = feed.layout(static_cast<std::size_t>(crossing.rows)).back();
            auto made = feed.begin(lane);
            feed.finish(*made, lane, std::move(crossing.block), bytes);
            crossing.batch.reset(static_cast<Feed::Batch*>(made.release()));
          },
          "crossing"_a, "lane"_a, "Begin the copy to the device.")
      .def(
          "hand_over",
          [](Feed& feed, Crossing& crossing, StreamIn stream, nb::handle make) {
            if (!crossing.batch) throw std::invalid_argument("expected a batch that was sent and not handed over");
            return hand_over(feed, std::move(crossing.batch), crossing.rows, stream, make);
          },
          "crossing"_a, "stream"_a.none(), "make"_a,
          nb::sig("def hand_over(self, crossing: Crossing, stream: int | None,"
                  " make: collections.abc.Callable[[object], typing.Any]) -> dict[str, typing.Any]"),
          "The batch as `next` gives it.")
      .def(
          "record_stream",
          [](Feed& feed, std::uint64_t address, std::uintptr_t stream) {
            return feed.record_stream(address, stream_of(stream));
          },
          "address"_a, "stream"_a,
          "Have the memory of the batch at this address used again behind the work of this stream, too.")
      .def("trim", &Feed::trim, nb::call_guard<Unlocked>(), "Free device memory that no batch is in.")
      .def_prop_ro("device", &Feed::device)
      .def_prop_ro("blocks", &Feed::blocks, "Blocks of device memory that there are.");
}

}  // namespace stepwell::bind

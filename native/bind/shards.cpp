#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <tuple>

#include "arrays.hpp"
#include "error.hpp"
#include "files/guard.hpp"
#include "numpy.hpp"
#include "stores/readahead.hpp"
#include "stores/upcast.hpp"
#include "stores/upcasts.hpp"
#include "threads.hpp"

namespace stepwell::bind {
namespace {

using BlocksIn = std::shared_ptr<CheckedBlocks>;
// file's memory, begin, bytes, path, checksums or None
using StretchIn = std::tuple<BytesIn, std::size_t, std::size_t, nb::object, std::optional<BlocksIn>>;

std::vector<Stretch> stretches_of(const std::vector<StretchIn>& given, std::vector<BytesIn>& keep) {
  std::vector<Stretch> stretches;
  for (const auto& [memory, begin, bytes, path, blocks] : given) {
    if (begin > memory.size() || bytes > memory.size() - begin)
      throw std::invalid_argument("a stretch leaves its file");
    if (blocks && (*blocks)->size() != bytes) throw std::invalid_argument("the blocks are of another stretch");
    keep.push_back(memory);
    stretches.push_back(
        {span_of(memory).subspan(begin, bytes), path_bytes(path), begin, blocks ? *blocks : nullptr});
  }
  return stretches;
}

FloatKind kind_of(std::uint32_t tag) {
  if (tag > 2) throw std::invalid_argument("no such kind of float");
  return static_cast<FloatKind>(tag);
}

// For one thread of Python.
struct BoundReadahead {
  std::vector<BytesIn> keep;
  Readahead ahead;
  Readahead::Watch watch{};

  BoundReadahead(const std::vector<StretchIn>& stretches, std::size_t window, bool mapped, std::uint64_t begin)
      : ahead(stretches_of(stretches, keep), window, mapped, begin) {}
};

std::size_t bytes_of_rows(std::uint32_t kind, std::size_t rows, std::size_t width) {
  return rows * width * bytes_of(kind_of(kind));
}

// Rows of files as they are stored.
struct BoundViews {
  using Table = nb::ndarray<nb::numpy, nb::ro, nb::ndim<2>>;

  std::vector<BytesIn> keep;
  std::size_t width;
  nb::dlpack::dtype dtype;
  Cuts cuts;
  Readahead ahead;
  Readahead::Watch watch{};
  Cut cut;
  std::vector<nb::object> owners{};

  BoundViews(const std::vector<StretchIn>& stretches, std::size_t first, std::size_t rows, std::size_t width_,
             std::size_t window, std::uint32_t kind)
      : width(width_),
        dtype{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float),
              static_cast<std::uint8_t>(8 * bytes_of(kind_of(kind))), 1},
        cuts(stretches_of(stretches, keep), bytes_of_rows(kind, first, width), bytes_of_rows(kind, rows, width)),
        ahead(cuts.stretches(), window, true, cuts.skip()),
        cut(cuts.first()) {
    for (const BytesIn& memory : keep) owners.push_back(nb::cast(memory));
  }

  Table next() {
    if (cut.is_end()) throw nb::index_error("that was the last batch");
    {
      const Unlocked unlocked;
      ahead.wait(cut.before, cut.before + cut.bytes, watch);
      if (const auto& blocks = cuts.of(cut).blocks) blocks->check(cut.at, cut.at + cut.bytes);
    }
    const auto memory = cuts.memory(cut);
    const nb::handle owner = owners[cut.stretch];
    cut = cuts.after(cut);
    return Table(memory.data(), {memory.size() / (width * dtype.bits / 8), width}, owner, {}, dtype);
  }
};

// The same rows made wider.
struct BoundUpcasts {
  std::vector<BytesIn> keep;
  std::size_t width;
  nb::object dtype;
  Upcasts upcasts;

  BoundUpcasts(const std::vector<StretchIn>& stretches, std::size_t first, std::size_t rows, std::size_t width_,
               std::size_t window, std::uint32_t kind, bool doubles, unsigned threads)
      : width(width_),
        dtype(nb::module_::import_("numpy").attr("dtype")(doubles ? "f8" : "f4")),
        upcasts(Cuts(stretches_of(stretches, keep), bytes_of_rows(kind, first, width),
                     bytes_of_rows(kind, rows, width)),
                window, kind_of(kind), doubles, threads) {}

  nb::object next() {
    std::optional<Upcasts::Batch> batch;
    {
      const Unlocked unlocked;
      batch = upcasts.next();
    }
    if (!batch) throw nb::index_error("that was the last batch");
    auto* held = new BlockRef(std::move(batch->block));
    const nb::capsule owner(held, [](void* p) noexcept { delete static_cast<BlockRef*>(p); });
    const Py_ssize_t shape[] = {static_cast<Py_ssize_t>(batch->values / width), static_cast<Py_ssize_t>(width)};
    return Numpy::get().over(held->get(), dtype, shape, owner);
  }
};

// Values shared out among the cores in pieces of so many.
constexpr std::size_t kPiece = std::size_t{1} << 16;

template <class To>
void upcast_all(FloatKind kind, std::span<const std::byte> from, std::span<To> to, unsigned threads,
                const std::string& path, std::uint64_t at) {
  const std::size_t size = bytes_of(kind), pieces = (to.size() + kPiece - 1) / kPiece;
  const auto part = [&](std::size_t begin, std::size_t count) {
    const auto work = [&] {
      upcast(kind, from.subspan(begin * size, count * size), to.subspan(begin, count), to.size_bytes());
    };
    guarded(from, path, work, at);
  };
  if (threads <= 1 || pieces <= 1) return part(0, to.size());
  shared_pool().run(pieces, [&](std::size_t piece) {
    part(piece * kPiece, std::min(kPiece, to.size() - piece * kPiece));
  });
}

}  // namespace

void bind_shards(nb::module_& m) {
  nb::class_<BoundReadahead>(m, "Readahead", "Mapped files, brought into memory ahead of a cursor.")
      .def(nb::init<const std::vector<StretchIn>&, std::size_t, bool, std::uint64_t>(), "stretches"_a, "window"_a,
           "mapped"_a, "begin"_a)
      .def(
          "wait",
          [](BoundReadahead& bound, std::uint64_t begin, std::uint64_t end) {
            const Unlocked unlocked;
            bound.ahead.wait(begin, end, bound.watch);
          },
          "begin"_a, "end"_a, "Wait for the bytes up to `end`; those before `begin` may be given back.");
  nb::class_<BoundViews>(m, "Views", "Rows of shards (0 f32, 1 f16) as they are, read ahead of a loop.")
      .def(nb::init<const std::vector<StretchIn>&, std::size_t, std::size_t, std::size_t, std::size_t, std::uint32_t>(),
           "stretches"_a, "first"_a, "rows"_a, "width"_a, "window"_a, "kind"_a)
      .def("next", &BoundViews::next, nb::sig("def next(self) -> NDArray[numpy.float32 | numpy.float16]"),
           "The next `rows` rows of a stretch from row `first` of the first, or those its end leaves: the file's own "
           "memory.");
  nb::class_<BoundUpcasts>(m, "Upcasts", "Rows of shards (0 f32, 1 f16, 2 bf16) made float32 or float64.")
      .def(nb::init<const std::vector<StretchIn>&, std::size_t, std::size_t, std::size_t, std::size_t, std::uint32_t,
                    bool, unsigned>(),
           "stretches"_a, "first"_a, "rows"_a, "width"_a, "window"_a, "kind"_a, "doubles"_a, "threads"_a)
      .def("next", &BoundUpcasts::next, nb::sig("def next(self) -> NDArray[numpy.float32 | numpy.float64]"),
           "The next `rows` rows of a stretch from row `first` of the first, or those its end leaves.");
  m.def(
      "upcast",
      [](std::uint32_t kind, BytesIn from, BytesOut to, bool doubles, unsigned threads, nb::object where,
         std::uint64_t begin) {
        const auto path = path_bytes(where);
        const std::size_t size = doubles ? 8 : 4, count = to.size() / size;
        const FloatKind of = kind_of(kind);
        if (to.size() % size || from.size() != count * bytes_of(of) ||
            reinterpret_cast<std::uintptr_t>(to.data()) % size)
          throw std::invalid_argument("as many values to write as there are to read are needed");
        const Unlocked unlocked;
        if (doubles)
          upcast_all(of, span_of(from), std::span(reinterpret_cast<double*>(to.data()), count), threads, path,
                     begin);
        else
          upcast_all(of, span_of(from), std::span(reinterpret_cast<float*>(to.data()), count), threads, path,
                     begin);
      },
      "kind"_a, "from_"_a.noconvert(), "to"_a.noconvert(), "doubles"_a, "threads"_a, "path"_a,
      "begin"_a,
      "Floats of a shard (0 f32, 1 f16, 2 bf16) made float32 or float64; those of a file from byte `begin` on.");
  m.def(
      "map_file",
      [](int file, std::size_t size, nb::object path) {
        void* const memory = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
        if (memory == MAP_FAILED) throw FileError(errno, path_bytes(path));
        auto* held = new BlockRef(static_cast<std::byte*>(memory), [size](std::byte* at) { munmap(at, size); });
        nb::capsule owner(held, [](void* p) noexcept { delete static_cast<BlockRef*>(p); });
        return nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>(memory, {size}, owner);
      },
      "file"_a, "size"_a, "path"_a, "The memory of an open file, which may then be closed.");
}

}  // namespace stepwell::bind

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <tuple>

#include "arrays.hpp"
#include "error.hpp"
#include "guard.hpp"
#include "readahead.hpp"
#include "threads.hpp"
#include "upcast.hpp"

namespace stepwell::bind {
namespace {

// file's memory, begin, bytes, path
using StretchIn = std::tuple<BytesIn, std::size_t, std::size_t, nb::object>;

std::shared_ptr<Readahead> make_readahead(const std::vector<StretchIn>& given, std::size_t window,
                                          bool mapped) {
  auto keep = std::make_shared<std::vector<BytesIn>>();
  std::vector<Stretch> stretches;
  for (const auto& [memory, begin, bytes, path] : given) {
    if (begin > memory.size() || bytes > memory.size() - begin)
      throw std::invalid_argument("a stretch leaves its file");
    keep->push_back(memory);
    stretches.push_back({span_of(memory).subspan(begin, bytes), path_bytes(path), begin});
  }
  return std::make_shared<Readahead>(std::move(stretches), window, mapped, std::move(keep));
}

// Values shared out among the cores in pieces of so many.
constexpr std::size_t kPiece = std::size_t{1} << 16;

template <class To>
void upcast_all(FloatKind kind, std::span<const std::byte> from, std::span<To> to, unsigned threads,
                const std::string& path, std::uint64_t at) {
  const std::size_t size = bytes_of(kind), pieces = (to.size() + kPiece - 1) / kPiece;
  const bool past_caches = larger_than_caches(to.size_bytes());
  const auto part = [&](std::size_t begin, std::size_t count) {
    const auto convert = [&] {
      upcast(kind, from.subspan(begin * size, count * size), to.subspan(begin, count), past_caches);
    };
    guarded(from, path, convert, at);
  };
  if (threads <= 1 || pieces <= 1) return part(0, to.size());
  shared_pool().run(pieces, [&](std::size_t piece) {
    part(piece * kPiece, std::min(kPiece, to.size() - piece * kPiece));
  });
}

}  // namespace

void bind_shards(nb::module_& m) {
  nb::class_<Readahead>(m, "Readahead", "Mapped files, brought into memory ahead of a cursor.")
      .def(nb::new_(&make_readahead), "stretches"_a, "window"_a, "mapped"_a)
      .def(
          "wait",
          [](Readahead& ahead, std::uint64_t begin, std::uint64_t end) {
            const Unlocked unlocked;
            ahead.wait(begin, end);
          },
          "begin"_a, "end"_a, "Wait for the bytes up to `end`; those before `begin` may be given back.");
  m.def(
      "upcast",
      [](std::uint32_t kind, BytesIn from, BytesOut to, bool doubles, unsigned threads, nb::object where,
         std::uint64_t begin) {
        if (kind > 2) throw std::invalid_argument("no such kind of float");
        const auto path = path_bytes(where);
        const std::size_t size = doubles ? 8 : 4, count = to.size() / size;
        const auto of = static_cast<FloatKind>(kind);
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

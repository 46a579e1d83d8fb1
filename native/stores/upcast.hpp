// Floats of one width made floats of another.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace stepwell {

// As the header of a shard says it.
enum class FloatKind : std::uint32_t { kF32 = 0, kF16 = 1, kBf16 = 2 };

constexpr std::size_t bytes_of(FloatKind kind) { return kind == FloatKind::kF32 ? 4 : 2; }

// Converts `from` to floats (4 bytes) or doubles (8 bytes) in `to`; every value is exact. One thread.
void upcast(FloatKind kind, std::span<const std::byte> from, std::span<float> to, bool past_caches);
void upcast(FloatKind kind, std::span<const std::byte> from, std::span<double> to, bool past_caches);

// Which way results are written, by how long both take: a virtual machine knows neither the size of the caches
// that it has, nor who else uses them. For all threads of the process.
class StoreWays {
 public:
  struct Way {
    bool past_caches, timed;
  };
  // For a part of a result of so many bytes. Some are `timed`, to be reported: both ways are tried now and then.
  Way choose(std::size_t bytes);
  // So many values took that long of a thread's own time.
  void took(Way way, std::size_t values, double seconds);

 private:
  std::atomic<std::uint32_t> turn_{0};
  std::atomic<double> quickest_[2]{0, 0};  // seconds a value, to the caches and past them; 0: not known
};

StoreWays& store_ways();

// What this thread has run so far, in seconds: others on the same core do not count.
double thread_seconds();

// Converts as above, in the way that is the faster one for a result of `bytes` that this is a part of. `run` runs
// what it is given, and may throw.
template <class To, class Run>
void upcast(FloatKind kind, std::span<const std::byte> from, std::span<To> to, std::size_t bytes, Run&& run) {
  const auto way = store_ways().choose(bytes);
  const double begin = way.timed ? thread_seconds() : 0;
  run([&] { upcast(kind, from, to, way.past_caches); });
  if (way.timed) store_ways().took(way, to.size(), thread_seconds() - begin);
}

}  // namespace stepwell

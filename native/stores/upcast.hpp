// Floats of one width made floats of another.
#pragma once

#include <atomic>
#include <chrono>
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
  static constexpr double kUnknown = 1e9;

  // Whether a part of a result of so many bytes is to be written past the caches; now and then the other way.
  bool past_caches(std::size_t bytes);
  // So many values took that long.
  void took(bool past_caches, std::size_t values, std::chrono::nanoseconds time);

 private:
  std::atomic<std::uint32_t> turn_{0};
  std::atomic<double> least_[2]{kUnknown, kUnknown};  // nanoseconds a value, to the caches and past them
};

StoreWays& store_ways();

// Converts as above, in the way that is the faster one for a result of `bytes` that this is a part of. `run` runs
// what it is given, and may throw.
template <class To, class Run>
void upcast(FloatKind kind, std::span<const std::byte> from, std::span<To> to, std::size_t bytes, Run&& run) {
  const bool past_caches = store_ways().past_caches(bytes);
  const auto begin = std::chrono::steady_clock::now();
  run([&] { upcast(kind, from, to, past_caches); });
  store_ways().took(past_caches, to.size(), std::chrono::steady_clock::now() - begin);
}

}  // namespace stepwell

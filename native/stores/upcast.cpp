#include "stores/upcast.hpp"

#include <unistd.h>

#include <bit>
#include <cstring>
#include <stdexcept>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace stepwell {
namespace {

// Whether a result of so many bytes would only push others out of the caches.
bool larger_than_caches(std::size_t bytes) {
  static const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > static_cast<std::size_t>(cache > 0 ? cache : 1 << 23) / 2;
}

float from_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | fraction << 13);
  if (exponent) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float small = static_cast<float>(fraction) * 0x1p-24f;
  return sign ? -small : small;
}

float from_bfloat(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

float value_at(FloatKind kind, const std::byte* from, std::size_t i) {
  switch (kind) {
    case FloatKind::kF32: return load<float>(from + 4 * i);
    case FloatKind::kF16: return from_half(load<std::uint16_t>(from + 2 * i));
    case FloatKind::kBf16: return from_bfloat(load<std::uint16_t>(from + 2 * i));
  }
  return 0;
}

template <class To>
void one_by_one(FloatKind kind, const std::byte* from, To* to, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) to[i] = static_cast<To>(value_at(kind, from, i));
}

#if defined(__x86_64__)

#define STEPWELL_AVX2 __attribute__((target("avx2,f16c")))

// Eight values from `i` on.
template <FloatKind kind>
STEPWELL_AVX2 inline __m256 eight(const std::byte* from, std::size_t i) {
  if constexpr (kind == FloatKind::kF32)
    return _mm256_loadu_ps(reinterpret_cast<const float*>(from + 4 * i));
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i));
  if constexpr (kind == FloatKind::kF16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

template <bool past_caches>
STEPWELL_AVX2 inline void store(float* to, __m256 values) {
  past_caches ? _mm256_stream_ps(to, values) : _mm256_store_ps(to, values);
}
template <bool past_caches>
STEPWELL_AVX2 inline void store(double* to, __m256 values) {
  const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(values));
  const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1));
  past_caches ? _mm256_stream_pd(to, low) : _mm256_store_pd(to, low);
  past_caches ? _mm256_stream_pd(to + 4, high) : _mm256_store_pd(to + 4, high);
}

// `to` is at a multiple of 32 bytes, `count` one of 8.
template <FloatKind kind, bool past_caches, class To>
STEPWELL_AVX2 void by_eights(const std::byte* from, To* to, std::size_t count) {
  for (std::size_t i = 0; i < count; i += 8) store<past_caches>(to + i, eight<kind>(from, i));
  if (past_caches) _mm_sfence();
}

template <FloatKind kind, class To>
void by_eights(const std::byte* from, To* to, std::size_t count, bool past_caches) {
  past_caches ? by_eights<kind, true>(from, to, count) : by_eights<kind, false>(from, to, count);
}

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return has;
}

#endif

template <class To>
void converted(FloatKind kind, std::span<const std::byte> from, std::span<To> to, bool past_caches) {
  if (from.size() != to.size() * bytes_of(kind))
    throw std::invalid_argument("as many values to write as there are to read are needed");
  std::size_t begin = 0, end = 0;
#if defined(__x86_64__)
  if (has_avx2()) {
    while (begin < to.size() && reinterpret_cast<std::uintptr_t>(to.data() + begin) % 32) ++begin;
    const std::size_t count = (to.size() - begin) / 8 * 8;
    const std::byte* const source = from.data() + begin * bytes_of(kind);
    end = begin + count;
    To* const target = to.data() + begin;
    if (kind == FloatKind::kF32) by_eights<FloatKind::kF32>(source, target, count, past_caches);
    if (kind == FloatKind::kF16) by_eights<FloatKind::kF16>(source, target, count, past_caches);
    if (kind == FloatKind::kBf16) by_eights<FloatKind::kBf16>(source, target, count, past_caches);
  }
#endif
  one_by_one(kind, from.data(), to.data(), 0, begin);
  one_by_one(kind, from.data(), to.data(), end, to.size());
}

}  // namespace

void upcast(FloatKind kind, std::span<const std::byte> from, std::span<float> to, std::size_t bytes) {
  converted(kind, from, to, larger_than_caches(bytes));
}

void upcast(FloatKind kind, std::span<const std::byte> from, std::span<double> to, std::size_t bytes) {
  converted(kind, from, to, larger_than_caches(bytes));
}

}  // namespace stepwell

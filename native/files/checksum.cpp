#include "files/checksum.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define STEPWELL_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#include <arm_acle.h>
#define STEPWELL_CRC_TARGET __attribute__((target("+crc")))
#ifdef __linux__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#endif

namespace stepwell {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // Castagnoli, bits reversed

constexpr std::size_t kPiece = 8192;  // copied before it is summed: it stays in the cache

using Table = std::array<std::uint32_t, 256>;

// slices[k][b]: the register after byte b followed by k zero bytes.
constexpr std::array<Table, 8> make_slices() {
  std::array<Table, 8> slices{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    slices[0][b] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t b = 0; b < 256; ++b)
      slices[k][b] = (slices[k - 1][b] >> 8) ^ slices[0][slices[k - 1][b] & 255];
  return slices;
}

constexpr auto kSlices = make_slices();

std::uint64_t word_at(const std::byte* p) {
  std::uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

std::uint32_t by_tables(std::uint32_t state, const std::byte* p, std::size_t n) {
  for (; n >= 8; p += 8, n -= 8) {
    const std::uint64_t word = word_at(p) ^ state;
    state = 0;
    for (int k = 0; k < 8; ++k) state ^= kSlices[7 - k][(word >> (8 * k)) & 255];
  }
  for (; n > 0; ++p, --n)
    state = (state >> 8) ^ kSlices[0][(state ^ static_cast<std::uint32_t>(*p)) & 255];
  return state;
}

#ifdef STEPWELL_CRC_TARGET

// The instruction takes three cycles and a new one can begin every cycle, so three
// neighbouring lanes are summed at once and then joined: moving a register over the zero
// bytes of a lane is linear, hence four table look-ups. Short lanes serve short records.
constexpr std::size_t kLongLane = 2048, kShortLane = 128;

template <std::size_t kLane>
std::array<Table, 4> make_lane_shift() {
  std::array<std::uint32_t, 32> moved{};  // where each single bit of the register ends up
  for (std::size_t bit = 0; bit < 32; ++bit) {
    std::uint32_t state = std::uint32_t{1} << bit;
    for (std::size_t i = 0; i < kLane; ++i) state = (state >> 8) ^ kSlices[0][state & 255];
    moved[bit] = state;
  }
  std::array<Table, 4> shift{};
  for (std::size_t k = 0; k < 4; ++k)
    for (std::size_t b = 0; b < 256; ++b)
      for (std::size_t bit = 0; bit < 8; ++bit)
        if (b >> bit & 1) shift[k][b] ^= moved[8 * k + bit];
  return shift;
}

template <std::size_t kLane>
const std::array<Table, 4> kLaneShift = make_lane_shift<kLane>();

template <std::size_t kLane>
std::uint32_t over_a_lane(std::uint32_t state) {
  const auto& shift = kLaneShift<kLane>;
  return shift[0][state & 255] ^ shift[1][state >> 8 & 255] ^ shift[2][state >> 16 & 255] ^
         shift[3][state >> 24];
}

STEPWELL_CRC_TARGET std::uint32_t step8(std::uint32_t state, std::uint64_t word) {
#if defined(__x86_64__)
  return static_cast<std::uint32_t>(_mm_crc32_u64(state, word));
#else
  return __crc32cd(state, word);
#endif
}

// Sums three lanes at a time for as long as there are three; p and n move on.
template <std::size_t kLane>
STEPWELL_CRC_TARGET std::uint32_t by_lanes(std::uint32_t state, const std::byte*& p,
                                           std::size_t& n) {
  for (; n >= 3 * kLane; p += 3 * kLane, n -= 3 * kLane) {
    std::uint32_t second = 0, third = 0;
    for (std::size_t i = 0; i < kLane; i += 8) {
      state = step8(state, word_at(p + i));
      second = step8(second, word_at(p + kLane + i));
      third = step8(third, word_at(p + 2 * kLane + i));
    }
    state = over_a_lane<kLane>(over_a_lane<kLane>(state) ^ second) ^ third;
  }
  return state;
}

STEPWELL_CRC_TARGET std::uint32_t by_instruction(std::uint32_t state, const std::byte* p,
                                                 std::size_t n) {
  state = by_lanes<kLongLane>(state, p, n);
  state = by_lanes<kShortLane>(state, p, n);
  for (; n >= 8; p += 8, n -= 8) state = step8(state, word_at(p));
  return by_tables(state, p, n);
}

#if defined(__x86_64__)

// Newer processors multiply polynomials 64 bytes at a time. A vector of the message is worth the same
// further on once each half of its 16-byte lanes is multiplied by the power of x that it is moved
// by; what is left in the end, one vector, is summed by the instruction like any other 64 bytes.
#define STEPWELL_FOLD_TARGET __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")))

// x^n modulo the polynomial, bits reversed, as the multiplication wants it.
constexpr std::uint64_t power_of_x(unsigned n) {
  std::uint32_t state = 0x80000000;
  for (unsigned i = 0; i < n; ++i) state = (state >> 1) ^ (state & 1 ? kPolynomial : 0);
  return std::uint64_t{state} << 1;
}

// Moves every lane of `a` by `bits` and adds `b`.
template <unsigned bits>
STEPWELL_FOLD_TARGET inline __m512i fold(__m512i a, __m512i b) {
  constexpr auto low = static_cast<long long>(power_of_x(bits + 32));
  constexpr auto high = static_cast<long long>(power_of_x(bits - 32));
  const __m512i by = _mm512_set_epi64(high, low, high, low, high, low, high, low);
  constexpr int three_way_xor = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(a, by, 0x00),
                                   _mm512_clmulepi64_epi128(a, by, 0x11), b, three_way_xor);
}

// A copy, which is then what is summed: nobody can change that meanwhile.
const std::byte* copied(std::byte* to, const std::byte* p, std::size_t n) {
  if (n > 0) std::memcpy(to, p, n);
  return to;
}

// 64 bytes of the message, which are put to `to`, if there is such a place, on the way.
template <bool copies>
STEPWELL_FOLD_TARGET inline __m512i vector_at(const std::byte* p, std::byte* to) {
  const __m512i vector = _mm512_loadu_si512(p);
  if constexpr (copies) _mm512_storeu_si512(to, vector);
  return vector;
}

template <bool copies>
STEPWELL_FOLD_TARGET std::uint32_t by_folding(std::uint32_t state, const std::byte* p, std::size_t n, std::byte* to) {
  constexpr std::size_t kVector = 64, kFour = 4 * kVector;
  if (n < kFour) return by_instruction(state, copies ? copied(to, p, n) : p, n);
  const std::byte* const begin = p;
  const auto there = [&](std::size_t at) { return copies ? to + (p - begin) + at : nullptr; };
  __m512i a = vector_at<copies>(p, there(0)), b = vector_at<copies>(p + kVector, there(kVector));
  __m512i c = vector_at<copies>(p + 2 * kVector, there(2 * kVector));
  __m512i d = vector_at<copies>(p + 3 * kVector, there(3 * kVector));
  a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  for (p += kFour, n -= kFour; n >= kFour; p += kFour, n -= kFour) {
    a = fold<8 * kFour>(a, vector_at<copies>(p, there(0)));
    b = fold<8 * kFour>(b, vector_at<copies>(p + kVector, there(kVector)));
    c = fold<8 * kFour>(c, vector_at<copies>(p + 2 * kVector, there(2 * kVector)));
    d = fold<8 * kFour>(d, vector_at<copies>(p + 3 * kVector, there(3 * kVector)));
  }
  d = fold<8 * kVector>(fold<8 * kVector>(fold<8 * kVector>(a, b), c), d);
  for (; n >= kVector; p += kVector, n -= kVector) d = fold<8 * kVector>(d, vector_at<copies>(p, there(0)));
  alignas(kVector) std::byte rest[kVector];
  _mm512_store_si512(rest, d);
  return by_instruction(by_instruction(0, rest, kVector), copies ? copied(there(0), p, n) : p, n);
}

bool can_fold() {
  static const bool can = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("pclmul") &&
                          __builtin_cpu_supports("sse4.2");
  return can;
}

#endif

bool has_instruction() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("sse4.2");
#elif defined(__linux__)
  return getauxval(AT_HWCAP) & HWCAP_CRC32;
#else
  return true;  // every 64-bit Apple processor
#endif
}

#endif

}  // namespace

std::uint32_t crc32c_portable(std::uint32_t crc, std::span<const std::byte> data) {
  return ~by_tables(~crc, data.data(), data.size());
}

std::uint32_t crc32c(std::uint32_t crc, std::span<const std::byte> data) {
#ifdef STEPWELL_CRC_TARGET
#if defined(__x86_64__)
  if (can_fold()) return ~by_folding<false>(~crc, data.data(), data.size(), nullptr);
#endif
  static const bool fast = has_instruction();
  if (fast) return ~by_instruction(~crc, data.data(), data.size());
#endif
  return crc32c_portable(crc, data);
}

std::uint32_t crc32c_copy(std::span<const std::byte> data, std::byte* to) {
#if defined(STEPWELL_CRC_TARGET) && defined(__x86_64__)
  if (can_fold()) return ~by_folding<true>(~std::uint32_t{0}, data.data(), data.size(), to);
#endif
  // The copy first: it brings the bytes to where the checksum finds them.
  std::uint32_t crc = 0;
  while (!data.empty()) {
    const auto piece = data.first(std::min(data.size(), kPiece));
    std::memcpy(to, piece.data(), piece.size());
    crc = crc32c(crc, {to, piece.size()});
    data = data.subspan(piece.size());
    to += piece.size();
  }
  return crc;
}

std::string hex_of(std::uint32_t checksum) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", checksum);
  return text;
}

}  // namespace stepwell

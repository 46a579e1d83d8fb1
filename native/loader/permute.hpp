// A keyed permutation of [0, count) that is computed, not stored. docs/sampling.md
// defines it to the bit; tests/reference holds the same in plain Python.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace stepwell {

// splitmix64: the mixing every seed, epoch and counter goes through.
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// The high half of a product: maps 64 uniform bits onto [0, bound).
constexpr std::uint64_t scale(std::uint64_t bits, std::uint64_t bound) {
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits) * bound) >> 64);
}

class Permutation {
 public:
  // The largest count: both halves of a row number then fit 31 bits.
  static constexpr std::uint64_t kMax = std::uint64_t{1} << 62;
  // Up to here the permutation is a Fisher-Yates shuffle, drawn anew by each call.
  static constexpr std::uint64_t kSmall = 4096;

  // Throws std::invalid_argument when count is above kMax.
  Permutation(std::uint64_t count, std::uint64_t key);

  // Writes where out.size() positions from `start` on go, every stride-th, all inside [0, count).
  // The caller checks the range.
  void operator()(std::uint64_t start, std::span<std::int64_t> out, std::uint64_t stride = 1) const;

  // The position that goes to `value`.
  std::uint64_t position_of(std::uint64_t value) const;

 private:
  static constexpr int kRounds = 8;

  void shuffle_small(std::span<std::uint16_t> order) const;
  void forward(std::uint32_t& left, std::uint32_t& right) const;

  std::uint64_t count_;
  std::uint64_t key_;
  std::uint32_t rows_ = 1;     // position = left * columns_ + right, left < rows_
  std::uint32_t columns_ = 1;
  std::array<std::uint32_t, kRounds> keys_{};
};

}  // namespace stepwell

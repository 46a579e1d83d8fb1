#include "loader/permute.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

// The rounds below are plain loops over arrays; with these clones the compiler turns them
// into 8 or 16 lanes at a time on processors that have them. Integers only, so every clone
// gives the same answer.
#if defined(__x86_64__) && defined(__linux__) && !defined(STEPWELL_SANITIZE)
#define STEPWELL_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define STEPWELL_CLONES
#endif

namespace stepwell {
namespace {

constexpr std::size_t kLanes = 512;

// 32 keyed bits of `value`, scaled onto [0, bound).
inline std::uint32_t keyed(std::uint32_t value, std::uint32_t key, std::uint32_t bound) {
  std::uint32_t z = value * 0x9E3779B1u + key;
  z = (z ^ (z >> 15)) * 0x2C1B3C6Du;
  z = (z ^ (z >> 12)) * 0x297A2D39u;
  z ^= z >> 15;
  return static_cast<std::uint32_t>((std::uint64_t{z} * bound) >> 32);
}

// side = (side + keyed(other)) mod bound, where both are below bound <= 2^31.
inline std::uint32_t turned(std::uint32_t side, std::uint32_t other, std::uint32_t key,
                            std::uint32_t bound) {
  const std::uint32_t sum = side + keyed(other, key, bound);
  return std::min(sum, sum - bound);  // sum - bound wraps to a huge number when sum < bound
}

STEPWELL_CLONES
void all_rounds(std::uint32_t* left, std::uint32_t* right, std::uint32_t rows,
                std::uint32_t columns, const std::uint32_t* keys, int rounds) {
  for (int round = 0; round < rounds; round += 2) {
    for (std::size_t i = 0; i < kLanes; ++i)
      left[i] = turned(left[i], right[i], keys[round], rows);
    for (std::size_t i = 0; i < kLanes; ++i)
      right[i] = turned(right[i], left[i], keys[round + 1], columns);
  }
}

}  // namespace

Permutation::Permutation(std::uint64_t count, std::uint64_t key) : count_(count), key_(key) {
  if (count > kMax) throw std::invalid_argument("a permutation has at most 2**62 rows");
  if (count <= kSmall) return;
  // The nearest rectangle that holds `count`: fewer than `rows_` cells of it are outside.
  auto root = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(count)));
  while (root * root < count) ++root;
  while ((root - 1) * (root - 1) >= count) --root;
  rows_ = static_cast<std::uint32_t>(root);
  columns_ = static_cast<std::uint32_t>((count + root - 1) / root);
  for (int i = 0; i < kRounds; ++i)
    keys_[i] = static_cast<std::uint32_t>(mix(key + static_cast<std::uint64_t>(i)) >> 32);
}

void Permutation::shuffle_small(std::span<std::uint16_t> order) const {
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[scale(mix(key_ + i), i)]);
}

void Permutation::forward(std::uint32_t& left, std::uint32_t& right) const {
  for (int round = 0; round < kRounds; round += 2) {
    left = turned(left, right, keys_[round], rows_);
    right = turned(right, left, keys_[round + 1], columns_);
  }
}

void Permutation::operator()(std::uint64_t start, std::span<std::int64_t> out,
                             std::uint64_t stride) const {
  if (count_ <= kSmall) {
    std::array<std::uint16_t, kSmall> order;
    shuffle_small(std::span(order).first(count_));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = order[start + i * stride];
    return;
  }
  alignas(64) std::array<std::uint32_t, kLanes> left, right;
  auto l = static_cast<std::uint32_t>(start / columns_);
  auto r = static_cast<std::uint32_t>(start % columns_);
  for (std::size_t begin = 0; begin < out.size(); begin += kLanes) {
    for (std::size_t i = 0; stride > 1 && i < kLanes; ++i) {
      const std::uint64_t at = start + std::min(begin + i, out.size() - 1) * stride;
      left[i] = static_cast<std::uint32_t>(at / columns_);
      right[i] = static_cast<std::uint32_t>(at % columns_);
    }
    for (std::size_t i = 0; stride == 1 && i < kLanes;) {  // past the end: computed and dropped
      const std::size_t run = std::min<std::size_t>(kLanes - i, columns_ - r);
      for (std::size_t k = 0; k < run; ++k) {
        left[i + k] = l;
        right[i + k] = r + static_cast<std::uint32_t>(k);
      }
      i += run;
      r += static_cast<std::uint32_t>(run);
      if (r == columns_) r = 0, l = l + 1 == rows_ ? 0 : l + 1;
    }
    all_rounds(left.data(), right.data(), rows_, columns_, keys_.data(), kRounds);
    const std::size_t lanes = std::min(kLanes, out.size() - begin);
    for (std::size_t i = 0; i < lanes; ++i) {
      std::uint64_t value = std::uint64_t{left[i]} * columns_ + right[i];
      // Cells outside [0, count) follow their cycle until it comes back inside: at most
      // about one in sqrt(count) does.
      while (value >= count_) [[unlikely]] {
        forward(left[i], right[i]);
        value = std::uint64_t{left[i]} * columns_ + right[i];
      }
      out[begin + i] = static_cast<std::int64_t>(value);
    }
  }
}

std::uint64_t Permutation::position_of(std::uint64_t value) const {
  if (count_ <= kSmall) {
    std::array<std::uint16_t, kSmall> order;
    const auto used = std::span(order).first(count_);
    shuffle_small(used);
    return static_cast<std::uint64_t>(std::find(used.begin(), used.end(), value) - used.begin());
  }
  auto left = static_cast<std::uint32_t>(value / columns_);
  auto right = static_cast<std::uint32_t>(value % columns_);
  std::uint64_t position;
  do {
    for (int round = kRounds; round > 0; round -= 2) {
      // Adding bound - x undoes adding x; the sum stays below 2^32 because bound <= 2^31.
      const std::uint32_t r = right + columns_ - keyed(left, keys_[round - 1], columns_);
      right = std::min(r, r - columns_);
      const std::uint32_t l = left + rows_ - keyed(right, keys_[round - 2], rows_);
      left = std::min(l, l - rows_);
    }
    position = std::uint64_t{left} * columns_ + right;
  } while (position >= count_);
  return position;
}

}  // namespace stepwell

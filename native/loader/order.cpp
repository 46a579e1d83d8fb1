#include "loader/order.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "loader/permute.hpp"

namespace stepwell {
namespace {

// One key for each seed, epoch and stream. Mixed rather than added: epoch 1 of seed 7 has
// nothing to do with epoch 0 of seed 8.
std::uint64_t key_of(std::uint64_t seed, std::uint64_t epoch, std::uint64_t stream = 0) {
  return mix(mix(mix(seed) ^ epoch) ^ stream);
}

// Draw number `position` of the stream `key`.
std::uint64_t draw(std::uint64_t key, std::uint64_t position) {
  return mix(key + position * 0x9E3779B97F4A7C15);
}

void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

class Shuffle final : public Order {
 public:
  Shuffle(std::int64_t count, std::uint64_t seed) : Order(count), seed_(seed) {}

 private:
  void fill(std::uint64_t epoch, std::uint64_t start, std::uint64_t stride,
            std::span<std::int64_t> out) const override {
    Permutation(static_cast<std::uint64_t>(length()), key_of(seed_, epoch))(start, out, stride);
  }

  std::uint64_t seed_;
};

class Block final : public Order {
 public:
  Block(std::int64_t count, std::uint64_t seed, std::int64_t block, std::int64_t group,
        std::int64_t lanes)
      : Order(count, lanes),
        seed_(seed),
        count_(static_cast<std::uint64_t>(count)),
        block_(static_cast<std::uint64_t>(std::min(block, std::max(count, std::int64_t{1})))),
        lanes_(static_cast<std::uint64_t>(lanes)),
        blocks_(rounded_up(count_, block_)),
        rounds_(rounded_up(blocks_, lanes_)),
        windows_(rounded_up(rounds_, static_cast<std::uint64_t>(group / lanes))) {}

 private:
  void fill(std::uint64_t epoch, std::uint64_t start, std::uint64_t stride,
            std::span<std::int64_t> out) const override {
    const Permutation blocks(blocks_, key_of(seed_, epoch));
    // Every block has block_ places in the shuffled order; the source's last one leaves
    // `missing` of them empty, from `gap` on, so places behind it are positions shifted.
    const std::uint64_t missing = blocks_ * block_ - count_;
    const std::uint64_t gap = (blocks.position_of(blocks_ - 1) + 1) * block_ - missing;
    const auto place_of = [&](std::uint64_t p) { return p < gap ? p : p + missing; };
    const auto position_of = [&](std::uint64_t p) { return p < gap ? p : p - missing; };
    // Positions come back to a lane after `turns` of them, `ahead` rows further in it.
    const std::uint64_t common = std::gcd(stride, lanes_), turns = lanes_ / common,
                        ahead = stride / common;
    std::vector<std::int64_t> standing;  // which blocks stand in this window
    std::vector<std::int64_t> moved;     // within a lane
    while (!out.empty()) {
      // Rounds of a block for each lane are shared out evenly: window w begins at round
      // w * rounds_ / windows_. The last round may lack blocks.
      const std::uint64_t round = place_of(start) / block_ / lanes_;
      const std::uint64_t number = scaled(round + 1, windows_, -1, rounds_);
      const std::uint64_t first = scaled(number, rounds_, 0, windows_) * lanes_;
      const std::uint64_t last =
          std::min(blocks_, scaled(number + 1, rounds_, 0, windows_) * lanes_);
      const std::uint64_t begin = position_of(first * block_);
      const std::uint64_t end = position_of(last * block_);
      const auto part =
          out.first(std::min<std::uint64_t>(out.size(), rounded_up(end - start, stride)));
      standing.resize(last - first);
      blocks(first, standing);
      const auto row_of = [&](std::uint64_t position) {
        const std::uint64_t place = place_of(position);
        return standing[place / block_ - first] * static_cast<std::int64_t>(block_) +
               static_cast<std::int64_t>(place % block_);
      };
      const std::uint64_t each = (end - begin) / lanes_, longer = (end - begin) % lanes_;
      for (std::uint64_t turn = 0; turn < std::min<std::uint64_t>(turns, part.size()); ++turn) {
        const std::uint64_t at = start - begin + turn * stride, lane = at % lanes_;
        const std::uint64_t count = rounded_up(part.size() - turn, turns);
        const std::uint64_t from = begin + lane * each + std::min(lane, longer);
        if (turns > 1) moved.resize(count);
        const auto rows = turns > 1 ? std::span(moved) : part;
        Permutation(each + (lane < longer ? 1 : 0),
                    key_of(seed_, epoch, number * lanes_ + lane + 1))(at / lanes_, rows, ahead);
        for (std::uint64_t i = 0; i < count; ++i)
          part[turn + i * turns] = row_of(from + static_cast<std::uint64_t>(rows[i]));
      }
      start += part.size() * stride;
      out = out.subspan(part.size());
    }
  }

  static std::uint64_t rounded_up(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0); }

  // (a * b + c) / d, rounded down, through 128 bits.
  static std::uint64_t scaled(std::uint64_t a, std::uint64_t b, int c, std::uint64_t d) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(a) * b + c) / d);
  }

  std::uint64_t seed_, count_, block_, lanes_, blocks_, rounds_, windows_;
};

class Sequential final : public Order {
 public:
  Sequential(std::int64_t count, std::int64_t window, std::int64_t stride, std::int64_t length)
      : Order(length), count_(count), window_(window), stride_(stride) {}

 private:
  void fill(std::uint64_t, std::uint64_t start, std::uint64_t every,
            std::span<std::int64_t> out) const override {
    const auto first = static_cast<std::int64_t>(start), step = static_cast<std::int64_t>(every);
    std::int64_t within = first % window_;
    std::int64_t begin = first / window_ * stride_;  // below count_ + stride_: no overflow
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (every > 1) {
        const std::int64_t at = first + static_cast<std::int64_t>(i) * step;
        within = at % window_, begin = at / window_ * stride_;
      }
      out[i] = (begin + within) % count_;
      if (++within == window_) within = 0, begin += stride_;
    }
  }

  std::int64_t count_, window_, stride_;
};

class Iid final : public Order {
 public:
  Iid(std::int64_t count, std::uint64_t seed) : Order(count), seed_(seed) {}

 private:
  void fill(std::uint64_t epoch, std::uint64_t start, std::uint64_t stride,
            std::span<std::int64_t> out) const override {
    const std::uint64_t key = key_of(seed_, epoch);
    const auto count = static_cast<std::uint64_t>(length());
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<std::int64_t>(scale(draw(key, start + i * stride), count));
  }

  std::uint64_t seed_;
};

class Weighted final : public Order {
 public:
  Weighted(std::span<const double> cumulative, std::shared_ptr<const void> keep,
           std::uint64_t seed)
      : Order(static_cast<std::int64_t>(cumulative.size())),
        cumulative_(cumulative),
        keep_(std::move(keep)),
        seed_(seed),
        // Rows of weight 0 at the end must not catch a draw that rounds up to the total.
        last_(std::lower_bound(cumulative.begin(), cumulative.end(), cumulative.back()) -
              cumulative.begin()) {}

 private:
  void fill(std::uint64_t epoch, std::uint64_t start, std::uint64_t stride,
            std::span<std::int64_t> out) const override {
    const std::uint64_t key = key_of(seed_, epoch);
    const double total = cumulative_.back();
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double unit = static_cast<double>(draw(key, start + i * stride) >> 11) * 0x1p-53;
      const double at = unit * total;
      const auto found = std::upper_bound(cumulative_.begin(), cumulative_.end(), at);
      out[i] = std::min<std::int64_t>(found - cumulative_.begin(), last_);
    }
  }

  std::span<const double> cumulative_;
  std::shared_ptr<const void> keep_;
  std::uint64_t seed_;
  std::int64_t last_;
};

}  // namespace

void Order::check(std::int64_t start, std::int64_t count, std::int64_t stride) const {
  if (stride < 1)
    throw std::invalid_argument("stride must be at least 1, got " + std::to_string(stride));
  const bool inside = start >= 0 && start <= length_ && count >= 0;
  if (inside && (count == 0 || (start < length_ && count - 1 <= (length_ - 1 - start) / stride)))
    return;
  const std::string every = stride == 1 ? "" : " * " + std::to_string(stride);
  throw std::out_of_range("positions [" + std::to_string(start) + ", " + std::to_string(start) +
                          " + " + std::to_string(count) + every + ") leave an epoch of " +
                          std::to_string(length_));
}

void Order::rows(std::uint64_t epoch, std::int64_t start, std::span<std::int64_t> out,
                 std::int64_t stride) const {
  check(start, static_cast<std::int64_t>(out.size()), stride);
  if (!out.empty())
    fill(epoch, static_cast<std::uint64_t>(start), static_cast<std::uint64_t>(stride), out);
}

OrderPtr shuffle_order(std::int64_t count, std::uint64_t seed) {
  require(count >= 0, "count must not be negative");
  require(static_cast<std::uint64_t>(count) <= Permutation::kMax, "count is above 2**62");
  return std::make_shared<Shuffle>(count, seed);
}

OrderPtr block_order(std::int64_t count, std::uint64_t seed, std::int64_t block,
                     std::int64_t group, std::int64_t lanes) {
  require(count >= 0, "count must not be negative");
  require(static_cast<std::uint64_t>(count) <= Permutation::kMax, "count is above 2**62");
  require(block > 0, "a block has at least one row");
  require(group > 0 && group <= 65536, "a group has 1 to 65536 blocks");
  require(lanes > 0 && lanes <= group, "lanes: expected 1 to " + std::to_string(group) +
                                           ", the blocks of a group, got " + std::to_string(lanes));
  return std::make_shared<Block>(count, seed, block, group, lanes);
}

OrderPtr sequential_order(std::int64_t count, std::int64_t window, std::int64_t stride) {
  require(count >= 0, "count must not be negative");
  require(window > 0, "window must be positive");
  require(stride > 0, "stride must be positive");
  const std::int64_t windows = count / stride + (count % stride != 0);
  std::int64_t length;
  require(!__builtin_mul_overflow(windows, window, &length) &&
              !__builtin_add_overflow(count, stride, &count) &&
              count < INT64_MAX - window,
          "count, window and stride are too large together");
  return std::make_shared<Sequential>(count - stride, window, stride, length);
}

OrderPtr iid_order(std::int64_t count, std::uint64_t seed) {
  require(count >= 0, "count must not be negative");
  return std::make_shared<Iid>(count, seed);
}

OrderPtr weighted_order(std::span<const double> cumulative, std::shared_ptr<const void> keep,
                        std::uint64_t seed) {
  require(!cumulative.empty(), "weights are empty");
  require(std::isfinite(cumulative.back()) && cumulative.back() > 0,
          "weights must be finite and add up to more than 0");
  require(cumulative.front() >= 0 && std::is_sorted(cumulative.begin(), cumulative.end()),
          "weights must not be negative");
  return std::make_shared<Weighted>(cumulative, std::move(keep), seed);
}

}  // namespace stepwell

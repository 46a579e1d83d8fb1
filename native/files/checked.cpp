#include "files/checked.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "error.hpp"
#include "files/checksum.hpp"
#include "files/guard.hpp"
#include "gather.hpp"
#include "threads.hpp"

namespace stepwell {
namespace {

constexpr std::size_t kEntry = sizeof(std::uint32_t);
constexpr std::size_t kPiece = std::size_t{4} << 20;
constexpr std::size_t kUsualShift = 12;  // blocks of 4 KiB: a constant saves a third of the time

}  // namespace

std::vector<std::uint32_t> stream_checksums(std::span<const std::byte> data, std::size_t block_bytes,
                                            std::size_t inside, std::uint32_t crc) {
  if (block_bytes == 0 || inside >= block_bytes) throw std::invalid_argument("a block has fewer bytes");
  std::vector<std::uint32_t> found;
  found.reserve((inside + data.size()) / block_bytes + 1);
  while (!data.empty()) {
    const auto part = data.first(std::min(data.size(), block_bytes - inside));
    found.push_back(crc32c(crc, part));
    data = data.subspan(part.size());
    inside = 0, crc = 0;
  }
  return found;
}

CheckedBlocks::CheckedBlocks(std::span<const std::byte> data, std::size_t block_bytes, std::size_t inside,
                             std::uint32_t crc, std::span<const std::byte> stored, std::vector<std::byte> rest,
                             Where where, std::shared_ptr<const void> keep)
    : data_(data),
      shift_(static_cast<std::size_t>(std::countr_zero(block_bytes))),
      inside_(inside),
      crc_(crc),
      stored_(stored),
      rest_(std::move(rest)),
      where_(std::move(where)),
      keep_(std::move(keep)) {
  if (!std::has_single_bit(block_bytes)) throw std::invalid_argument("the bytes of a block are a power of two");
  if (inside >= block_bytes) throw std::invalid_argument("a block has fewer bytes");
  blocks_ = data.empty() ? 0 : block_of(data.size() - 1) + 1;
  if (stored.size() % kEntry || stored.size() + rest_.size() != blocks_ * kEntry)
    throw std::invalid_argument("one checksum for each block is needed");
  checked_ = std::make_unique<std::atomic<std::uint64_t>[]>((blocks_ + 63) / 64);
  left_ = blocks_;
}

// Whether a block is as it was written; what is wrong with it otherwise. Under a guard: owns nothing, throws nothing.
bool CheckedBlocks::compare(std::size_t block, Bad& bad) const {
  const std::size_t begin = begin_of(block), end = std::min(begin_of(block + 1), data_.size());
  const std::uint32_t got = crc32c(block == 0 ? crc_ : 0, data_.subspan(begin, end - begin));
  const std::size_t at = block * kEntry;
  std::uint32_t expected;
  std::memcpy(&expected, at < stored_.size() ? stored_.data() + at : rest_.data() + (at - stored_.size()), kEntry);
  if (got != expected) {
    bad = {block, expected, got, true};
    return false;
  }
  return true;
}

// Runs work(bad) while the files may be cut, and throws what it found.
template <class Work>
void CheckedBlocks::guard(Work&& work) const {
  Bad bad{};
  guarded(stored_, where_.checksum_path,
          [&] { guarded(data_, where_.path, [&] { work(bad); }, where_.begin); });
  if (!bad.found) return;
  const std::size_t begin = begin_of(bad.block), end = std::min(begin_of(bad.block + 1), data_.size());
  throw ChecksumError("a block of " + std::to_string(end - begin) + " bytes: expected CRC32C " + hex_of(bad.expected) +
                          ", got " + hex_of(bad.got),
                      where_.path, where_.begin + begin);
}

void CheckedBlocks::check(std::size_t begin, std::size_t end) const {
  if (begin >= end || is_done()) return;
  if (end > data_.size()) throw std::out_of_range("bytes behind the last block");
  std::size_t block = block_of(begin);
  const std::size_t last = block_of(end - 1);
  while (block <= last && is_checked(block)) ++block;
  if (block > last) return;
  guard([&](Bad& bad) {
    while (block <= last) block = check_word(block, last, bad);
  });
}

// Checks blocks from `block` up to `last` of one word of bits, which are set at once: threads that load a file do not
// meet at the counter for each block. Returns the block behind them, or behind `last` when one is bad.
std::size_t CheckedBlocks::check_word(std::size_t block, std::size_t last, Bad& bad) const {
  auto& word = checked_[block / 64];
  const std::size_t end = std::min(block / 64 * 64 + 64, last + 1);
  const std::uint64_t known = word.load(std::memory_order_relaxed);
  std::uint64_t met = 0;
  for (; block < end; ++block) {
    const std::uint64_t bit = std::uint64_t{1} << (block % 64);
    if (known & bit) continue;
    if (!compare(block, bad)) break;
    met |= bit;
  }
  const std::uint64_t before = word.fetch_or(met, std::memory_order_relaxed);
  left_.fetch_sub(static_cast<std::size_t>(std::popcount(met & ~before)), std::memory_order_relaxed);
  return bad.found ? last + 1 : end;
}

void CheckedBlocks::check_all() const {
  const std::size_t step = std::max(kPiece, block_bytes());
  share_out((inside_ + data_.size() + step - 1) / step, usable_cores(), [&](std::size_t piece) {
    const std::size_t begin = piece * step;
    check(begin > inside_ ? begin - inside_ : 0, std::min(begin + step - inside_, data_.size()));
  });
}

// Whether all blocks of some rows were met. This is what a take costs after the first touch, so it has hardly a branch.
template <class Block>
bool CheckedBlocks::are_checked(std::span<const std::int64_t> rows, std::size_t stride, std::size_t from,
                                std::size_t to, Block&& block_at) const {
  if (to - from > block_bytes()) return false;  // a row has at most two blocks
  const std::size_t begin = inside_ + from, length = to - from - 1;
  std::uint64_t all = 1;
  for (const std::int64_t row : rows) {
    const std::size_t at = static_cast<std::size_t>(row) * stride + begin;
    const std::size_t first = block_at(at), last = block_at(at + length);
    if (first != last) all &= static_cast<std::uint64_t>(is_checked(last));
    all &= checked_[first / 64].load(std::memory_order_relaxed) >> (first % 64);
  }
  return all;
}

void CheckedBlocks::check_rows(std::span<const std::int64_t> rows, std::size_t stride, std::size_t from,
                               std::size_t to) const {
  if (from >= to || is_done()) return;
  if (to > stride) throw std::invalid_argument("a field leaves its row");
  stepwell::check_rows(rows, static_cast<std::int64_t>(data_.size() / stride));
  const bool usual = shift_ == kUsualShift;
  if (usual ? are_checked(rows, stride, from, to, [](std::size_t at) { return at >> kUsualShift; })
            : are_checked(rows, stride, from, to, [this](std::size_t at) { return at >> shift_; }))
    return;
  std::size_t next = 0;
  guard([&](Bad& bad) {
    for (; next < rows.size(); ++next) {
      const auto row = static_cast<std::size_t>(rows[next]);
      const std::size_t last = block_of(row * stride + to - 1);
      for (std::size_t block = block_of(row * stride + from); block <= last;) block = check_word(block, last, bad);
      if (bad.found) return;
    }
  });
}

std::uint32_t CheckedBlocks::checksum(std::size_t begin, std::size_t end, std::uint32_t crc) const {
  if (begin > end || end > data_.size()) throw std::out_of_range("bytes behind the last block");
  guard([&](Bad&) { crc = crc32c(crc, data_.subspan(begin, end - begin)); });
  return crc;
}

}  // namespace stepwell

// Checksums of small blocks of a file, each compared the first time that the block is met.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stepwell {

// The checksums of `data` in blocks, the first of which has `inside` bytes already, with the checksum `crc`.
// The last is that of a block that may not be whole yet; nothing for no bytes.
std::vector<std::uint32_t> stream_checksums(std::span<const std::byte> data, std::size_t block_bytes,
                                            std::size_t inside, std::uint32_t crc);

// Bytes of a file, and the checksums of their blocks. Safe to use from any number of threads.
class CheckedBlocks {
 public:
  struct Where {
    std::string path;           // of the bytes
    std::uint64_t begin;        // of the bytes, in their file
    std::string checksum_path;  // of the stored checksums
  };

  // `block_bytes` is a power of two. The first block has `inside` bytes before `data`, whose checksum is
  // `crc`. The checksums, 32 bits each, are those in `stored`, then those in `rest`. All memory lives as long
  // as `keep`, and may be that of mapped files. Throws std::invalid_argument when there are not as
  // many checksums as blocks.
  CheckedBlocks(std::span<const std::byte> data, std::size_t block_bytes, std::size_t inside, std::uint32_t crc,
                std::span<const std::byte> stored, std::vector<std::byte> rest, Where where,
                std::shared_ptr<const void> keep);

  std::size_t size() const { return data_.size(); }
  std::size_t block_bytes() const { return std::size_t{1} << shift_; }
  std::size_t inside() const { return inside_; }
  // Whether nothing is left to check.
  bool is_done() const { return left_.load(std::memory_order_relaxed) == 0; }

  // Checks the blocks that have one of the bytes from `begin` to `end`. Throws ChecksumError naming the first
  // that differs, and FormatError when a mapped file has become shorter. Call without the GIL.
  void check(std::size_t begin, std::size_t end) const;
  // The same by all cores.
  void check_all() const;
  // The same for bytes `from` to `to` of some rows of `stride` bytes.
  void check_rows(std::span<const std::int64_t> rows, std::size_t stride, std::size_t from, std::size_t to) const;

  // Bytes `begin` to `end`, and what else a check of them reads: all of the first and the last block, where these
  // were not checked.
  std::pair<std::size_t, std::size_t> unchecked_around(std::size_t begin, std::size_t end) const {
    if (begin == end) return {begin, end};
    const std::size_t first = block_of(begin), last = block_of(end - 1);
    return {is_checked(first) ? begin : begin_of(first),
            is_checked(last) ? end : std::min(begin_of(last + 1), data_.size())};
  }

  // The CRC32C of bytes `begin` to `end`, continued from `crc`.
  std::uint32_t checksum(std::size_t begin, std::size_t end, std::uint32_t crc) const;

 private:
  struct Bad {
    std::size_t block;
    std::uint32_t expected, got;
    bool found = false;
  };

  std::size_t block_of(std::size_t at) const { return (inside_ + at) >> shift_; }
  std::size_t begin_of(std::size_t block) const { return block == 0 ? 0 : (block << shift_) - inside_; }
  bool is_checked(std::size_t block) const {
    return checked_[block / 64].load(std::memory_order_relaxed) >> (block % 64) & 1;
  }
  bool compare(std::size_t block, Bad& bad) const;
  std::size_t check_word(std::size_t block, std::size_t last, Bad& bad) const;
  template <class Block>
  bool are_checked(std::span<const std::int64_t> rows, std::size_t stride, std::size_t from, std::size_t to,
                   Block&& block_at) const;
  template <class Work>
  void guard(Work&& work) const;

  std::span<const std::byte> data_;
  std::size_t shift_, inside_;
  std::uint32_t crc_;
  std::span<const std::byte> stored_;
  std::vector<std::byte> rest_;
  Where where_;
  std::shared_ptr<const void> keep_;
  std::size_t blocks_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> checked_;
  mutable std::atomic<std::size_t> left_;
};

}  // namespace stepwell

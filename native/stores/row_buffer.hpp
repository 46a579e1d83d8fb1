// Rows of one size that wait to be written, each under its number, and what becomes of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "blocks.hpp"
#include "stores/batch_codec.hpp"

namespace stepwell {

// Memory that is used again and again: the pages of fresh memory cost several times more than the
// copy into them. One thread puts rows while another one packs earlier ones.
class RowBuffer {
 public:
  // Rows from number `first` on. Throws std::invalid_argument for rows of no bytes.
  RowBuffer(std::size_t row_bytes, std::uint64_t first);

  std::size_t row_bytes() const { return row_bytes_; }
  std::size_t kept_bytes() const;

  // Copies a row, once more if it is there already. Throws std::invalid_argument for a row of
  // another size and for one that was released, std::bad_alloc.
  void put(std::uint64_t row, Bytes bytes);

  // Has memory for `rows` behind the last one that was put, with its pages.
  void reserve(std::size_t rows);

  // Rows before `row` are not needed any more; later ones are put where they were.
  void release(std::uint64_t row);

  // Rows that were put and not released. They stay valid while the blocks do, and the same until
  // they are released. Throws std::invalid_argument when one of them is not there.
  struct Lent {
    std::vector<BlockRef> blocks;
    std::vector<Bytes> rows;
  };
  Lent lend(std::uint64_t first, std::size_t count) const;

 private:
  std::byte* place(std::uint64_t row);
  std::uint64_t piece_of(std::uint64_t row) const { return row / piece_rows_; }

  std::size_t row_bytes_, piece_rows_;
  mutable std::mutex lock_;
  std::uint64_t first_;            // that was not released
  std::uint64_t end_;              // behind the last one that was put
  std::deque<BlockRef> pieces_;    // from that of `first_` on
  std::vector<BlockRef> spare_;
};

// Rows as they are to be stored.
struct PackedRows {
  RowBuffer::Lent from;
  std::vector<std::vector<std::byte>> packed;  // an empty one for a row that stays as it is
  std::vector<std::uint32_t> checksums;

  PackedRows(RowBuffer::Lent rows, Codec codec, int level, std::size_t planes, bool shared);

  bool raw(std::size_t i) const { return packed[i].empty(); }
  Bytes stored(std::size_t i) const { return raw(i) ? from.rows[i] : Bytes(packed[i]); }
};

// HDF5's H5Dwrite_chunk, of the library that the caller has opened the dataset with.
using WriteChunk = int (*)(std::int64_t dataset, std::int64_t properties, std::uint32_t mask,
                           const std::uint64_t* offset, std::size_t size, const void* data);

// Writes rows as chunks of a dataset of `rank` axes, from chunk `first` of its first axis on;
// `raw_mask` is for rows that are not packed. Returns how many were written: all, or those before
// the one that HDF5 refused.
std::size_t write_chunks(const PackedRows& rows, WriteChunk write, std::int64_t dataset,
                         std::uint64_t first, std::size_t rank, std::uint32_t raw_mask);

}  // namespace stepwell

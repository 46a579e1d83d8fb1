#include "stores/row_buffer.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace stepwell {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
constexpr std::size_t kPieceRows = 512;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kPastCaches = 4096;  // what is smaller does no harm there

}  // namespace

RowBuffer::RowBuffer(std::size_t row_bytes, std::uint64_t first)
    : row_bytes_(row_bytes),
      piece_rows_(row_bytes ? std::clamp<std::size_t>(kPieceBytes / row_bytes, 1, kPieceRows) : 0),
      first_(first),
      end_(first) {
  if (!row_bytes) throw std::invalid_argument("expected rows of at least one byte");
}

std::size_t RowBuffer::kept_bytes() const {
  const std::lock_guard hold(lock_);
  return (pieces_.size() + spare_.size()) * piece_rows_ * row_bytes_;
}

std::byte* RowBuffer::place(std::uint64_t row) {
  const std::lock_guard hold(lock_);
  if (row < first_) throw std::invalid_argument("expected a row that was not released");
  const std::uint64_t piece = piece_of(row) - piece_of(first_);
  while (pieces_.size() <= piece) {
    if (spare_.empty()) spare_.push_back(allocate(piece_rows_ * row_bytes_));
    pieces_.push_back(spare_.back());
    spare_.pop_back();
  }
  end_ = std::max(end_, row + 1);
  return pieces_[piece].get() + row % piece_rows_ * row_bytes_;
}

void RowBuffer::put(std::uint64_t row, Bytes bytes) {
  if (bytes.size() != row_bytes_)
    throw std::invalid_argument("expected a row of " + std::to_string(row_bytes_) + " bytes, got " +
                                std::to_string(bytes.size()));
  std::byte* const to = place(row);
  if (row_bytes_ < kPastCaches)
    std::memcpy(to, bytes.data(), row_bytes_);
  else
    copy_past_caches(bytes, to);
}

void RowBuffer::reserve(std::size_t rows) {
  const std::size_t bytes = piece_rows_ * row_bytes_;
  const auto wanting = [&] {
    const std::lock_guard hold(lock_);
    const std::uint64_t last = piece_of(end_ + rows) - piece_of(first_);
    return last >= pieces_.size() + spare_.size();
  };
  while (wanting()) {
    BlockRef made = allocate(bytes);
    for (std::size_t at = 0; at < bytes; at += kPage) made.get()[at] = std::byte{};
    const std::lock_guard hold(lock_);
    spare_.push_back(std::move(made));
  }
}

void RowBuffer::release(std::uint64_t row) {
  const std::lock_guard hold(lock_);
  if (row <= first_) return;
  for (std::uint64_t piece = piece_of(first_); piece < piece_of(row) && !pieces_.empty(); ++piece) {
    spare_.push_back(std::move(pieces_.front()));
    pieces_.pop_front();
  }
  first_ = row;
  end_ = std::max(end_, row);
}

RowBuffer::Lent RowBuffer::lend(std::uint64_t first, std::size_t count) const {
  const std::lock_guard hold(lock_);
  if (first < first_ || first > end_ || count > end_ - first)
    throw std::invalid_argument("expected rows that were put and not released");
  Lent lent;
  lent.rows.reserve(count);
  for (std::uint64_t row = first; row < first + count; ++row) {
    const BlockRef& piece = pieces_[piece_of(row) - piece_of(first_)];
    if (lent.blocks.empty() || lent.blocks.back() != piece) lent.blocks.push_back(piece);
    lent.rows.emplace_back(piece.get() + row % piece_rows_ * row_bytes_, row_bytes_);
  }
  return lent;
}

PackedRows::PackedRows(RowBuffer::Lent rows, Codec codec, int level, std::size_t planes,
                       bool shared)
    : from(std::move(rows)), packed(from.rows.size()), checksums(from.rows.size()) {
  packed = pack_each(codec, level, planes, from.rows, checksums, shared);
}

std::size_t write_chunks(const PackedRows& rows, WriteChunk write, std::int64_t dataset,
                         std::uint64_t first, std::size_t rank, std::uint32_t raw_mask) {
  std::vector<std::uint64_t> offset(std::max<std::size_t>(rank, 1));
  for (std::size_t i = 0; i < rows.packed.size(); ++i) {
    const Bytes stored = rows.stored(i);
    offset[0] = first + i;
    if (write(dataset, 0, rows.raw(i) ? raw_mask : 0, offset.data(), stored.size(), stored.data()) <
        0)
      return i;
  }
  return rows.packed.size();
}

}  // namespace stepwell

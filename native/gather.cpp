#include "gather.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>

namespace stepwell {
namespace {

// Rows are asked for this many copies ahead, into the second-level cache: a core keeps more
// misses in flight there than its first level alone would let it.
constexpr std::size_t kAhead = 64;
constexpr std::size_t kLine = 64;

// Rows collected here before they are split into fields, so that each row is fetched from
// memory once and each field is written in one straight run.
constexpr std::size_t kStage = 16384;

template <std::size_t N>
struct Fixed {
  static constexpr std::size_t bytes() { return N; }
  static void copy(std::byte* to, const std::byte* from) { std::memcpy(to, from, N); }
};

struct Any {
  std::size_t n;
  std::size_t bytes() const { return n; }
  void copy(std::byte* to, const std::byte* from) const { std::memcpy(to, from, n); }
};

// Calls f with the size as a compile-time constant where it is a common one.
template <class F>
void with_size(std::size_t bytes, F&& f) {
  switch (bytes) {
    case 1: return f(Fixed<1>{});
    case 2: return f(Fixed<2>{});
    case 4: return f(Fixed<4>{});
    case 8: return f(Fixed<8>{});
    case 12: return f(Fixed<12>{});
    case 16: return f(Fixed<16>{});
    case 24: return f(Fixed<24>{});
    case 32: return f(Fixed<32>{});
    case 48: return f(Fixed<48>{});
    case 64: return f(Fixed<64>{});
    case 128: return f(Fixed<128>{});
    default: return f(Any{bytes});
  }
}

// Copies `size` bytes at base + rows[i] * stride to slot i - begin of `out`, or to slots[i], for
// i in [begin, end). Rows behind `end` are asked for already: their misses overlap whatever
// the caller does before it copies them.
template <class Size>
void copy_rows(Size size, const std::byte* base, std::ptrdiff_t stride,
               std::span<const std::int64_t> rows, std::size_t begin, std::size_t end,
               const std::int64_t* slots, std::byte* out) {
  const std::size_t bytes = size.bytes();
  const std::size_t lines = std::clamp<std::size_t>((bytes + kLine - 1) / kLine, 1, 4);
  const std::size_t ahead = kAhead / lines;
  const auto at = [&](std::size_t i) { return base + rows[i] * stride; };
  const auto ask_for = [&](std::size_t i) {
    for (std::size_t k = 0; k < lines; ++k) __builtin_prefetch(at(i) + k * kLine, 0, 2);
  };
  if (begin == 0)
    for (std::size_t i = 0; i < std::min(ahead, rows.size()); ++i) ask_for(i);
  for (std::size_t i = begin; i < end; ++i) {
    if (i + ahead < rows.size()) ask_for(i + ahead);
    const std::size_t slot = slots ? static_cast<std::size_t>(slots[i]) : i - begin;
    size.copy(out + slot * bytes, at(i));
  }
}

// Copies `size` bytes at base + i * stride to slot i of `out`, for i below n.
template <class Size>
void copy_column(Size size, const std::byte* base, std::size_t stride, std::size_t n,
                 const std::int64_t* slots, std::byte* out) {
  if (slots)
    for (std::size_t i = 0; i < n; ++i)
      size.copy(out + static_cast<std::size_t>(slots[i]) * size.bytes(), base + i * stride);
  else
#pragma GCC unroll 8
    for (std::size_t i = 0; i < n; ++i) size.copy(out + i * size.bytes(), base + i * stride);
}

}  // namespace

void check_rows(std::span<const std::int64_t> rows, std::int64_t length) {
  // A row that is negative, or above the last one, leaves a sign: no comparison, so that every processor does several
  // at once.
  const auto limit = static_cast<std::uint64_t>(length);
  std::uint64_t signs = 0;
  for (const auto row : rows) signs |= static_cast<std::uint64_t>(row) | (limit - 1 - static_cast<std::uint64_t>(row));
  if (static_cast<std::int64_t>(signs) >= 0) return;
  for (const auto row : rows)
    if (static_cast<std::uint64_t>(row) >= limit)
      throw std::out_of_range("row " + std::to_string(row) + " is outside a source of " +
                              std::to_string(length) + " rows");
}

void gather(const Table& table, std::span<const Field> fields, std::span<const std::int64_t> rows,
            std::span<const std::int64_t> slots, std::span<std::byte* const> outs) {
  check_rows(rows, table.rows);
  const std::int64_t* const slot = slots.empty() ? nullptr : slots.data();
  std::size_t first = table.row_bytes, last = 0;
  for (const Field& field : fields) {
    first = std::min(first, field.offset);
    last = std::max(last, field.offset + field.bytes);
  }
  const std::size_t used = last > first ? last - first : 0;
  if (fields.size() == 1 || used > kStage / 16) {
    for (std::size_t f = 0; f < fields.size(); ++f)
      with_size(fields[f].bytes, [&](auto size) {
        copy_rows(size, table.base + fields[f].offset, table.stride, rows, 0, rows.size(), slot,
                  outs[f]);
      });
    return;
  }
  if (used == 0) return;
  alignas(kLine) std::array<std::byte, kStage> stage;
  const std::size_t step = std::min<std::size_t>(kStage / used, 256);
  for (std::size_t begin = 0; begin < rows.size(); begin += step) {
    const std::size_t n = std::min(step, rows.size() - begin);
    with_size(used, [&](auto size) {
      copy_rows(size, table.base + first, table.stride, rows, begin, begin + n, nullptr,
                stage.data());
    });
    for (std::size_t f = 0; f < fields.size(); ++f)
      with_size(fields[f].bytes, [&](auto size) {
        copy_column(size, stage.data() + (fields[f].offset - first), used, n,
                    slot ? slot + begin : nullptr,
                    slot ? outs[f] : outs[f] + begin * fields[f].bytes);
      });
  }
}

}  // namespace stepwell

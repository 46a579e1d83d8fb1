#include "game2048/board.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "threads.hpp"

namespace stepwell {
namespace {

constexpr std::uint32_t kRows = 65536;
constexpr std::size_t kPiece = 32768;  // boards: a tenth of a millisecond or so

using Cells = std::array<int, 4>;

Cells cells_of(std::uint32_t row) {
  return {static_cast<int>(row >> 12), static_cast<int>(row >> 8 & 15),
          static_cast<int>(row >> 4 & 15), static_cast<int>(row & 15)};
}

std::uint16_t row_of(const Cells& cells) {
  return static_cast<std::uint16_t>(cells[0] << 12 | cells[1] << 8 | cells[2] << 4 | cells[3]);
}

Cells slid_left(const Cells& cells) {
  Cells out{};
  int used = 0;
  bool may_merge = false;  // the last tile of `out` is not itself a merge of this move
  for (const int e : cells) {
    if (e == 0) continue;
    if (may_merge && out[used - 1] == e && e < 15) {
      ++out[used - 1];
      may_merge = false;
    } else {
      out[used++] = e;
      may_merge = true;
    }
  }
  return out;
}

RowTables built() {
  RowTables tables;
  tables.left.resize(kRows);
  tables.right.resize(kRows);
  tables.score.resize(kRows);
  for (std::uint32_t row = 0; row < kRows; ++row) {
    Cells cells = cells_of(row);
    for (const int e : cells)
      if (e >= 2) tables.score[row] += static_cast<std::uint32_t>(e - 1) << e;
    tables.left[row] = row_of(slid_left(cells));
    std::reverse(cells.begin(), cells.end());
    cells = slid_left(cells);
    std::reverse(cells.begin(), cells.end());
    tables.right[row] = row_of(cells);
  }
  return tables;
}

Board moved(Board b, int m, const RowTables& tables) {
  const std::uint16_t* rows = (m & 1 ? tables.right : tables.left).data();
  return m & 2 ? with_rows(b, rows) : transposed(with_rows(transposed(b), rows));
}

std::uint8_t legal(Board b, const RowTables& tables) {
  const auto after = all_moves(b, tables);
  int mask = 0;
  for (int m = 0; m < kMoves; ++m) mask |= (after[m] != b) << m;
  return static_cast<std::uint8_t>(mask);
}

// Calls one(i) for every i below n.
template <class One>
void for_each(std::size_t n, One one) {
  shared_pool().run((n + kPiece - 1) / kPiece, [&](std::size_t piece) {
    const std::size_t end = std::min(n, (piece + 1) * kPiece);
    for (std::size_t i = piece * kPiece; i < end; ++i) one(i);
  });
}

void check_at_most(std::span<const std::uint8_t> values, std::uint8_t limit, const char* what) {
  for (const auto value : values)
    if (value > limit)
      throw std::invalid_argument(std::string(what) + " " + std::to_string(value) +
                                  " is not in 0.." + std::to_string(limit));
}

}  // namespace

const RowTables& row_tables() {
  // Never destroyed: a thread may still be at work when the process ends.
  static const RowTables& tables = *new RowTables(built());
  return tables;
}

Board move(Board b, int m) { return moved(b, m, row_tables()); }

std::uint8_t legal_mask(Board b) { return legal(b, row_tables()); }

std::uint64_t score(Board b) {
  const std::uint32_t* rows = row_tables().score.data();
  return std::uint64_t{rows[b >> 48]} + rows[b >> 32 & 0xFFFF] + rows[b >> 16 & 0xFFFF] +
         rows[b & 0xFFFF];
}

std::uint32_t highest_tile(Board b) {
  int highest = 0;
  for (; b != 0; b >>= 4) highest = std::max(highest, static_cast<int>(b & 15));
  return highest == 0 ? 0 : std::uint32_t{1} << highest;
}

void move(std::span<const Board> boards, std::span<const std::uint8_t> moves,
          std::span<Board> out) {
  check_at_most(moves, kMoves - 1, "move");
  const RowTables& tables = row_tables();
  for_each(boards.size(), [&](std::size_t i) { out[i] = moved(boards[i], moves[i], tables); });
}

void legal_mask(std::span<const Board> boards, std::span<std::uint8_t> out) {
  const RowTables& tables = row_tables();
  for_each(boards.size(), [&](std::size_t i) { out[i] = legal(boards[i], tables); });
}

void score(std::span<const Board> boards, std::span<std::uint64_t> out) {
  for_each(boards.size(), [&](std::size_t i) { out[i] = score(boards[i]); });
}

void highest_tile(std::span<const Board> boards, std::span<std::uint32_t> out) {
  for_each(boards.size(), [&](std::size_t i) { out[i] = highest_tile(boards[i]); });
}

void exponents(std::span<const Board> boards, std::span<std::uint8_t> out) {
  for_each(boards.size(), [&](std::size_t i) {
    for (int cell = 0; cell < 16; ++cell)
      out[i * 16 + static_cast<std::size_t>(cell)] = boards[i] >> (60 - 4 * cell) & 15;
  });
}

void from_exponents(std::span<const std::uint8_t> cells, std::span<Board> out) {
  check_at_most(cells, 15, "exponent");
  for_each(out.size(), [&](std::size_t i) {
    Board b = 0;
    for (std::size_t cell = 0; cell < 16; ++cell) b = b << 4 | cells[i * 16 + cell];
    out[i] = b;
  });
}

}  // namespace stepwell

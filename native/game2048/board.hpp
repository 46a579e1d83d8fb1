// Boards of 2048: 16 nibbles in a word, slid by table. docs/formats describes the bytes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace stepwell {

// Cell i, row-major, is (board >> (60 - 4 * i)) & 15: the exponent of its tile, 0 when empty.
using Board = std::uint64_t;

// The order of moves everywhere: values, bits of a legality mask, indices of branches.
enum Move : std::uint8_t { kUp, kDown, kLeft, kRight };
constexpr int kMoves = 4;

// What happens to a row of four cells, by the 16 bits of the row.
struct RowTables {
  std::vector<std::uint16_t> left, right;
  std::vector<std::uint32_t> score;
};

// Built by the first caller; others wait for it.
const RowTables& row_tables();

// Rows become columns.
constexpr Board transposed(Board b) {
  const Board a = (b & 0xF0F00F0FF0F00F0F) | ((b & 0x0000F0F00000F0F0) << 12) |
                  ((b & 0x0F0F00000F0F0000) >> 12);
  return (a & 0xFF00FF0000FF00FF) | ((a & 0x00FF00FF00000000) >> 24) |
         ((a & 0x00000000FF00FF00) << 24);
}

// The lowest bit of every empty cell.
constexpr Board empty_cells(Board b) {
  b |= b >> 2;
  b |= b >> 1;
  return ~b & 0x1111111111111111;
}

// Every row through a table of 65,536 rows.
inline Board with_rows(Board b, const std::uint16_t* rows) {
  return Board{rows[b >> 48]} << 48 | Board{rows[b >> 32 & 0xFFFF]} << 32 |
         Board{rows[b >> 16 & 0xFFFF]} << 16 | rows[b & 0xFFFF];
}

// The board after a move and before the spawn, by move; equal to `b` where it is illegal.
inline std::array<Board, kMoves> all_moves(Board b, const RowTables& tables) {
  const Board t = transposed(b);
  return {transposed(with_rows(t, tables.left.data())),
          transposed(with_rows(t, tables.right.data())), with_rows(b, tables.left.data()),
          with_rows(b, tables.right.data())};
}

// A tile merges once a move, scanning from the edge moved towards. Two tiles of exponent 15
// stay as they are: 16 cannot be stored. The board comes back unchanged from an illegal move.
Board move(Board b, int m);

// Bit m is set where move m changes the board.
std::uint8_t legal_mask(Board b);

// The sum of (e - 1) * 2**e over the cells with e >= 2.
std::uint64_t score(Board b);

// 2**e of the largest exponent; 0 for a board without a tile.
std::uint32_t highest_tile(Board b);

// The same for many boards, on the pool; spans are equally long. Call without the GIL.
// Throws std::invalid_argument naming the first move above 3, before anything is written.
void move(std::span<const Board> boards, std::span<const std::uint8_t> moves,
          std::span<Board> out);
void legal_mask(std::span<const Board> boards, std::span<std::uint8_t> out);
void score(std::span<const Board> boards, std::span<std::uint64_t> out);
void highest_tile(std::span<const Board> boards, std::span<std::uint32_t> out);

// 16 exponents a board, top-left first, and back.
void exponents(std::span<const Board> boards, std::span<std::uint8_t> out);
// Throws std::invalid_argument naming the first exponent above 15.
void from_exponents(std::span<const std::uint8_t> cells, std::span<Board> out);

}  // namespace stepwell

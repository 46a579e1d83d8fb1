#include "game2048/decode2048.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "threads.hpp"

namespace stepwell {
namespace {

constexpr std::size_t kPiece = 1024;

Board mirrored(Board b) {
  b = (b & 0x0F0F0F0F0F0F0F0F) << 4 | (b & 0xF0F0F0F0F0F0F0F0) >> 4;
  return (b & 0x00FF00FF00FF00FF) << 8 | (b & 0xFF00FF00FF00FF00) >> 8;
}

Board upside_down(Board b) {
  b = (b & 0x0000FFFF0000FFFF) << 16 | (b & 0xFFFF0000FFFF0000) >> 16;
  return b << 32 | b >> 32;
}

void check(std::span<const std::uint8_t> values, unsigned limit, const char* what) {
  const auto bad = std::find_if(values.begin(), values.end(), [&](std::uint8_t v) { return v > limit; });
  if (bad != values.end())
    throw std::invalid_argument(std::string(what) + " " + std::to_string(bad - values.begin()) +
                                ": expected 0 to " + std::to_string(limit) + ", got " +
                                std::to_string(*bad));
}

}  // namespace

Board turned(Board board, int symmetry) {
  if (symmetry & 4) board = transposed(board);
  if (symmetry & 1) board = mirrored(board);
  if (symmetry & 2) board = upside_down(board);
  return board;
}

int turned_move(int move, int symmetry) {
  if (symmetry & 4) move ^= 2;  // up and left, down and right change places
  const bool across = move >= kLeft;
  if (symmetry & (across ? 1 : 2)) move ^= 1;
  return move;
}

void decode_steps(const StepColumns& given, std::span<const std::uint8_t> symmetries,
                  const DecodedSteps& wanted) {
  check(given.moves, 3, "move");
  check(symmetries, kSymmetries - 1, "symmetry");
  const std::size_t count = given.boards.size();
  shared_pool().run((count + kPiece - 1) / kPiece, [&](std::size_t piece) {
    // Copies: no byte that is written can be a part of them, so they stay in registers.
    const StepColumns steps = given;
    const DecodedSteps out = wanted;
    const std::size_t end = std::min(count, (piece + 1) * kPiece);
    if (!out.one_hot.empty())
      std::memset(&out.one_hot[256 * piece * kPiece], 0, 1024 * (end - piece * kPiece));
    for (std::size_t i = piece * kPiece; i < end; ++i) {
      const int symmetry = symmetries.empty() ? 0 : symmetries[i];
      const Board board = turned(steps.boards[i], symmetry);
      for (unsigned cell = 0; cell < 16; ++cell) {
        const auto exponent = static_cast<std::uint8_t>(board >> (60 - 4 * cell) & 15);
        if (out.one_hot.empty())
          out.cells[16 * i + cell] = exponent;
        else
          out.one_hot[256 * i + 16 * cell + exponent] = 1;
      }
      out.moves[i] = static_cast<std::uint8_t>(turned_move(steps.moves[i], symmetry));
      for (int m = 0; m < kMoves; ++m) {
        const auto to = 4 * i + static_cast<std::size_t>(turned_move(m, symmetry));
        const bool legal = steps.legal[i] >> m & 1;
        const float value = steps.values[4 * i + static_cast<std::size_t>(m)];
        const bool known = legal && !std::isnan(value);
        out.legal[to] = legal;
        out.known[to] = known;
        out.values[to] = known ? value : 0;
      }
    }
  });
}

}  // namespace stepwell

// Steps of 2048 as a network wants them: boards apart, values masked, the square turned.
#pragma once

#include <cstdint>
#include <span>

#include "game2048/board.hpp"

namespace stepwell {

// The eight symmetries of the square, 0 to 7: bit 2 exchanges rows and columns, then bit 0
// mirrors left and right, then bit 1 turns top and bottom. 0 leaves a board as it is.
constexpr int kSymmetries = 8;
Board turned(Board board, int symmetry);
// What a move has become on the turned board.
int turned_move(int move, int symmetry);

// The columns of some steps; `values` has four a step. All are equally long but for that.
struct StepColumns {
  std::span<const Board> boards;
  std::span<const std::uint8_t> moves;
  std::span<const std::uint8_t> legal;
  std::span<const float> values;
};

// Where they go. `cells` has 16 exponents a step, or, if it is `one_hot` that is given, 16 cells
// of 16 classes; the other one is empty. `legal` and `known` are 0 or 1 for each of four moves: whether
// it is legal, and whether it has a value, too. Other values, NaN among them, become 0.
struct DecodedSteps {
  std::span<std::uint8_t> cells;
  std::span<float> one_hot;
  std::span<std::uint8_t> moves;
  std::span<std::uint8_t> legal;
  std::span<std::uint8_t> known;
  std::span<float> values;
};

// Decodes on the shared pool. `symmetries`, one a step, or none to leave boards as they are.
// Throws std::invalid_argument for a move above 3 or a symmetry above 7. Call without the GIL.
void decode_steps(const StepColumns& steps, std::span<const std::uint8_t> symmetries,
                  const DecodedSteps& out);

}  // namespace stepwell

// A player of 2048 by expectimax, and the games it plays.
//
// Everything that decides is computed in whole numbers, and values are pure functions of the
// board: the same depth, seed and game number give the same game on every machine, with
// any compiler and whatever was cached. Games are data that people keep, so a change of
// the weights or the search is a change of the format: tests hold golden games.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "game2048/board.hpp"

namespace stepwell {

// What a player thinks of a board.
struct Choice {
  // The value expected after each move; 0 where illegal. Its unit means nothing outside.
  std::array<float, kMoves> expected;
  std::uint8_t legal;  // bit m: move m changes the board
  // The last of the legal moves with the largest expected value; -1 without a legal move.
  int move;
};

// The expected values scaled to [0, 1), as .a2run2 stores them: one legal move is 1 - 2**-23,
// equal ones are 0.5 each, otherwise the worst is 0 and the best 1 - 2**-23. 0 where illegal.
std::array<float, kMoves> branch_values(const Choice& choice);

class Player {
 public:
  static constexpr int kDeepest = 6;

  // `depth` own moves are looked ahead, each followed by the average over every spawn:
  // depth 1 is the mean of the boards one move and one spawn away, depth 2 goes from each of
  // those through the best second move to its spawns. From depth 4 on, lines of play rarer
  // than one in 512 are cut short.
  // Throws std::invalid_argument when depth is not in [1, kDeepest].
  explicit Player(int depth);

  // One thread at a time.
  Choice choose(Board board);

 private:
  using Value = std::int64_t;
  struct Known {
    Board board = 0;  // after a move; 0, the board without tiles, is none
    std::uint32_t what = 0;
    Value value = 0;
  };

  Value expect(Board after, int ahead, unsigned rarity);
  Value expect_by_spawn(Board after, int ahead, unsigned rarity);
  Value best(Board board, int ahead, unsigned rarity);

  int depth_;
  const RowTables& rows_;
  std::vector<Known> known_;  // empty up to depth 2, where no board is met twice
};

struct Game {
  std::vector<Board> boards;  // before each move
  std::vector<std::uint8_t> moves;
  std::vector<std::uint8_t> legal;
  std::vector<std::array<float, kMoves>> values;  // branch_values
  Board final_board;
};

// Two spawns, then moves until none is legal. Spawn i of a game draws mix(key + i), with
// key = mix(mix(seed) + game), scaled onto ten chances for each empty cell from the top left:
// the first of the ten makes a 4, the others a 2.
Game play_game(int depth, std::uint64_t seed, std::uint64_t game);

}  // namespace stepwell

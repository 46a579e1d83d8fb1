#include "game2048/player.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>

#include "loader/permute.hpp"

namespace stepwell {
namespace {

// Points for a line of a board that is still in play, so that any such board is worth more
// than a lost one, which is worth 0; for each empty cell and each pair that can merge; and
// against neighbours of unlike size, against large tiles in the middle of a line, and against
// large tiles not yet merged. Found by playing.
constexpr int kInPlay = 200'000;
constexpr int kEmpty = 1400;
constexpr int kPair = 2400;
constexpr int kUnlike = 450;
constexpr int kBent = 11;
constexpr int kUnmerged = 6;

// How large a tile counts: exponent**3.4, rounded.
constexpr std::array<int, 16> kSize = {0,    1,    11,   42,   111,  238,  442,  747,
                                       1176, 1756, 2512, 3473, 4669, 6129, 7886, 9970};

// Lines of play are followed down to this rarity, one in 512.
constexpr unsigned kRarest = 144;

// 16 * -log2 of the probability that a 2, or a 4, falls on a given one of n empty cells.
constexpr std::array<std::uint8_t, 17> kRarity2 = {0,  2,  18, 28, 34, 40, 44, 47, 50,
                                                   53, 56, 58, 60, 62, 63, 65, 66};
constexpr std::array<std::uint8_t, 17> kRarity4 = {0,   53,  69,  79,  85,  90,  95,  98, 101,
                                                   104, 106, 109, 111, 112, 114, 116, 117};

// Values are in units of 1/256 of a point.
constexpr int kFraction = 8;
// What every value has in it, taken off before it is rounded to 24 bits.
constexpr std::int64_t kBase = std::int64_t{8 * kInPlay} << kFraction;
constexpr int kShareBits = 32;

// 2**32 / (10 n): the share of each of the ten chances of n empty cells.
constexpr std::array<std::int64_t, 17> shares() {
  std::array<std::int64_t, 17> out{};
  for (int n = 1; n <= 16; ++n) out[n] = (std::int64_t{1} << kShareBits) / (10 * n);
  return out;
}
constexpr std::array<std::int64_t, 17> kShare = shares();

// What a row or a column is worth.
int points(std::uint32_t line) {
  const std::array<int, 4> e = {static_cast<int>(line >> 12), static_cast<int>(line >> 8 & 15),
                                static_cast<int>(line >> 4 & 15), static_cast<int>(line & 15)};
  int sum = kInPlay;
  int last = 0;
  for (const int x : e) {
    sum -= kUnmerged * kSize[x];
    if (x == 0) {
      sum += kEmpty;
      continue;
    }
    if (x == last)
      sum += kPair;
    else if (last != 0)
      sum -= kUnlike * std::abs(x - last);
    last = x;
  }
  // A line that only rises or only falls, as one that leads to a corner does, costs nothing.
  int rises = 0, falls = 0;
  for (int i = 1; i < 4; ++i) {
    const int step = kSize[e[i]] - kSize[e[i - 1]];
    (step > 0 ? rises : falls) += std::abs(step);
  }
  return sum - kBent * std::min(rises, falls);
}

struct Line {
  std::int32_t points;
  // What the ten chances of each empty cell change, added up: 9 times that of a 2 and once
  // that of a 4. A spawn changes one row and one column, so the mean over every spawn is a
  // sum over lines too, and the last layer of the search costs a lookup.
  std::int32_t spawns;
};

const Line* lines() {
  // Never destroyed: a game may still be played by a thread when the process ends.
  static const std::vector<Line>& table = *[] {
    auto& made = *new std::vector<Line>(65536);
    for (std::uint32_t line = 0; line < 65536; ++line) made[line].points = points(line);
    for (std::uint32_t line = 0; line < 65536; ++line)
      for (int shift = 0; shift < 16; shift += 4)
        if ((line >> shift & 15) == 0)
          made[line].spawns += 9 * made[line | 1u << shift].points +
                               made[line | 2u << shift].points - 10 * made[line].points;
    return &made;
  }();
  return table.data();
}

struct Sums {
  std::int64_t points = 0;
  std::int64_t spawns = 0;
};

inline void add_rows(Sums& sums, Board b, const Line* table) {
  const Line &p = table[b >> 48], &q = table[b >> 32 & 0xFFFF], &r = table[b >> 16 & 0xFFFF],
             &s = table[b & 0xFFFF];
  sums.points += p.points + q.points + r.points + s.points;
  sums.spawns += p.spawns + q.spawns + r.spawns + s.spawns;
}

// From 1 to 15: a board after a move has a tile and an empty cell.
inline int count(Board cells) { return static_cast<int>(cells * 0x1111111111111111 >> 60); }

// The mean worth of the boards one spawn away; `across` is `after` transposed.
inline std::int64_t mean_worth(Board after, Board across, const Line* table) {
  Sums sums;
  add_rows(sums, after, table);
  add_rows(sums, across, table);
  return (sums.points << kFraction) +
         (sums.spawns * kShare[count(empty_cells(after))] >> (kShareBits - kFraction));
}

// The best of mean_worth over the legal moves, 0 without one.
inline std::int64_t best_mean_worth(Board b, const RowTables& rows, const Line* table) {
  const Board t = transposed(b);
  std::int64_t best = 0;
  for (const auto* side : {rows.left.data(), rows.right.data()}) {
    if (const Board after = with_rows(b, side); after != b)
      best = std::max(best, mean_worth(after, transposed(after), table));
    if (const Board across = with_rows(t, side); across != t)
      best = std::max(best, mean_worth(across, transposed(across), table));
  }
  return best;
}

}  // namespace

Player::Player(int depth) : depth_(depth), rows_(row_tables()) {
  if (depth < 1 || depth > kDeepest)
    throw std::invalid_argument("depth: expected 1 to " + std::to_string(kDeepest) + ", got " +
                                std::to_string(depth));
  if (depth > 2) known_.resize(std::size_t{1} << 15);
}

// The value of a board before its spawn, with `ahead` own moves to look at after that. The
// rarity of the way here is part of the question, so that the answer depends on nothing else.
Player::Value Player::expect(Board after, int ahead, unsigned rarity) {
  if (ahead == 0 || rarity > kRarest) return mean_worth(after, transposed(after), lines());
  if (known_.empty()) return expect_by_spawn(after, ahead, rarity);
  const std::uint32_t what = static_cast<std::uint32_t>(ahead) << 16 | rarity;
  Known& known = known_[mix(after ^ what) & (known_.size() - 1)];
  if (known.board == after && known.what == what) return known.value;
  const Value value = expect_by_spawn(after, ahead, rarity);
  known = {after, what, value};
  return value;
}

Player::Value Player::expect_by_spawn(Board after, int ahead, unsigned rarity) {
  const Board empty = empty_cells(after);
  const int n = count(empty);
  Value twos = 0, fours = 0;
  for (Board left = empty; left != 0; left &= left - 1) {
    const Board cell = left & -left;
    twos += best(after | cell, ahead, rarity + kRarity2[n]);
    fours += best(after | cell << 1, ahead, rarity + kRarity4[n]);
  }
  return (9 * twos + fours) / (10 * n);
}

Player::Value Player::best(Board board, int ahead, unsigned rarity) {
  if (ahead == 1 || rarity > kRarest) return best_mean_worth(board, rows_, lines());
  Value best = 0;
  for (const Board after : all_moves(board, rows_))
    if (after != board) best = std::max(best, expect(after, ahead - 1, rarity));
  return best;
}

Choice Player::choose(Board board) {
  Choice choice{{}, 0, -1};
  const auto after = all_moves(board, rows_);
  for (int m = 0; m < kMoves; ++m) {
    if (after[m] == board) continue;
    choice.legal |= static_cast<std::uint8_t>(1 << m);
    choice.expected[m] = static_cast<float>(expect(after[m], depth_ - 1, 0) - kBase);
    if (choice.move < 0 || choice.expected[m] >= choice.expected[choice.move]) choice.move = m;
  }
  return choice;
}

std::array<float, kMoves> branch_values(const Choice& choice) {
  constexpr float kBest = 1.0f - std::numeric_limits<float>::epsilon();  // 1 - 2**-23
  std::array<float, kMoves> values{};
  float lowest = 0, highest = 0;
  int legal = 0;
  for (int m = 0; m < kMoves; ++m) {
    if (!(choice.legal >> m & 1)) continue;
    const float value = choice.expected[m];
    lowest = legal == 0 ? value : std::min(lowest, value);
    highest = legal == 0 ? value : std::max(highest, value);
    ++legal;
  }
  for (int m = 0; m < kMoves; ++m) {
    if (!(choice.legal >> m & 1)) continue;
    if (legal == 1) {
      values[m] = kBest;
    } else if (lowest == highest) {
      values[m] = 0.5f;
    } else {
      const float value = (choice.expected[m] - lowest) / (highest - lowest);
      values[m] = value >= 1.0f ? kBest : value;
    }
  }
  return values;
}

Game play_game(int depth, std::uint64_t seed, std::uint64_t game) {
  Player player(depth);
  const std::uint64_t key = mix(mix(seed) + game);
  std::uint64_t spawns = 0;
  const auto spawn = [&](Board board) {
    Board empty = empty_cells(board);
    const auto cells = static_cast<std::uint64_t>(__builtin_popcountll(empty));
    const std::uint64_t drawn = scale(mix(key + spawns++), 10 * cells);
    // The top-left cell has the highest bits, so cells are counted from the other end.
    for (std::uint64_t skip = cells - 1 - drawn / 10; skip > 0; --skip) empty &= empty - 1;
    return board | (empty & -empty) << (drawn % 10 == 0 ? 1 : 0);
  };
  Game out;
  Board board = spawn(spawn(0));
  for (;;) {
    const Choice choice = player.choose(board);
    if (choice.move < 0) break;
    out.boards.push_back(board);
    out.moves.push_back(static_cast<std::uint8_t>(choice.move));
    out.legal.push_back(choice.legal);
    out.values.push_back(branch_values(choice));
    board = spawn(move(board, choice.move));
  }
  out.final_board = board;
  return out;
}

}  // namespace stepwell

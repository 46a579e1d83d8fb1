#include "game2048/player.hpp"

#include <nanobind/stl/tuple.h>

#include <tuple>
#include <utility>

#include "arrays.hpp"

namespace stepwell::bind {
namespace {

using Values = nb::ndarray<nb::numpy, float, nb::shape<-1, kMoves>>;

// A NumPy array that owns what the vector held.
template <class Array, class T>
Array given(std::vector<T>&& from) {
  auto* held = new std::vector<T>(std::move(from));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  if constexpr (std::is_same_v<Array, Values>)
    return Array(held->data(), {held->size(), std::size_t{kMoves}}, owner);
  else
    return Array(held->data(), {held->size()}, owner);
}

auto play(int depth, std::uint64_t seed, std::uint64_t number) {
  Game game;
  {
    const Unlocked unlocked;
    game = play_game(depth, seed, number);
  }
  using Boards = nb::ndarray<nb::numpy, Board, nb::ndim<1>>;
  return std::make_tuple(given<Boards>(std::move(game.boards)),
                         given<NumpyBytes>(std::move(game.moves)),
                         given<NumpyBytes>(std::move(game.legal)),
                         given<Values>(std::move(game.values)), game.final_board);
}

auto choose(Board board, int depth) {
  Choice choice;
  {
    const Unlocked unlocked;
    choice = Player(depth).choose(board);
  }
  const auto& e = choice.expected;
  const auto v = branch_values(choice);
  return std::make_tuple(choice.move, std::make_tuple(v[0], v[1], v[2], v[3]), choice.legal,
                         std::make_tuple(e[0], e[1], e[2], e[3]));
}

}  // namespace

void bind_player(nb::module_& m) {
  m.def("play_game", &play, "depth"_a, "seed"_a, "game"_a,
        "One whole game: boards, moves, legality masks, branch values, final board.");
  m.def("choose", &choose, "board"_a, "depth"_a,
        "Move (-1 without a legal one), branch values, legality mask, expected values.");
}

}  // namespace stepwell::bind

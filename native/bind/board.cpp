#include "game2048/board.hpp"

#include <stdexcept>

#include "arrays.hpp"

namespace stepwell::bind {
namespace {

void check(bool fits) {
  if (!fits) throw std::invalid_argument("arrays of different lengths");
}

// A function of each board, from one array into another.
template <class T, void (*Function)(std::span<const Board>, std::span<T>), std::size_t Width = 1>
void each(In<Board> boards, Out<T> out) {
  check(out.size() == boards.size() * Width);
  const Unlocked unlocked;
  Function(elements(boards), elements(out));
}

}  // namespace

void bind_board(nb::module_& m) {
  m.def(
      "move_boards",
      [](In<Board> boards, In<std::uint8_t> moves, Out<Board> out) {
        check(boards.size() == moves.size() && boards.size() == out.size());
        const Unlocked unlocked;
        move(elements(boards), elements(moves), elements(out));
      },
      "boards"_a.noconvert(), "moves"_a.noconvert(), "out"_a.noconvert());
  m.def("legal_moves", &each<std::uint8_t, legal_mask>, "boards"_a.noconvert(),
        "out"_a.noconvert());
  m.def("score_boards", &each<std::uint64_t, score>, "boards"_a.noconvert(), "out"_a.noconvert());
  m.def("highest_tiles", &each<std::uint32_t, highest_tile>, "boards"_a.noconvert(),
        "out"_a.noconvert());
  m.def("boards_to_exponents", &each<std::uint8_t, exponents, 16>, "boards"_a.noconvert(),
        "out"_a.noconvert());
  m.def(
      "boards_from_exponents",
      [](In<std::uint8_t> cells, Out<Board> out) {
        check(cells.size() == out.size() * 16);
        const Unlocked unlocked;
        from_exponents(elements(cells), elements(out));
      },
      "cells"_a.noconvert(), "out"_a.noconvert());
}

}  // namespace stepwell::bind

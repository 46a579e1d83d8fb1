#include "board.hpp"

#include <stdexcept>

#include "arrays.hpp"

namespace stepwell::bind {
namespace {

template <class T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<T> view(const nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>& array) {
  return {array.data(), array.size()};
}

void check(bool fits) {
  if (!fits) throw std::invalid_argument("arrays of different lengths");
}

// A function of each board, from one array into another.
template <class T, void (*Function)(std::span<const Board>, std::span<T>), std::size_t Width = 1>
void each(In<Board> boards, Out<T> out) {
  check(out.size() == boards.size() * Width);
  const Unlocked unlocked;
  Function(view(boards), view(out));
}

}  // namespace

void bind_board(nb::module_& m) {
  m.def(
      "move_boards",
      [](In<Board> boards, In<std::uint8_t> moves, Out<Board> out) {
        check(boards.size() == moves.size() && boards.size() == out.size());
        const Unlocked unlocked;
        move(view(boards), view(moves), view(out));
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
        from_exponents(view(cells), view(out));
      },
      "cells"_a.noconvert(), "out"_a.noconvert());
}

}  // namespace stepwell::bind

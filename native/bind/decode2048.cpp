#include "game2048/decode2048.hpp"

#include "arrays.hpp"

namespace stepwell::bind {
namespace {

void decode(In<Board> boards, In<std::uint8_t> moves, In<std::uint8_t> legal, In<float> values,
            In<std::uint8_t> symmetries, Out<std::uint8_t> cells, Out<float> one_hot,
            Out<std::uint8_t> out_moves, Out<std::uint8_t> out_legal, Out<std::uint8_t> out_known,
            Out<float> out_values) {
  const std::size_t n = boards.size();
  const bool plain = cells.size() == 16 * n && one_hot.size() == 0;
  const bool hot = one_hot.size() == 256 * n && cells.size() == 0;
  if (moves.size() != n || legal.size() != n || values.size() != 4 * n ||
      (symmetries.size() != 0 && symmetries.size() != n) || !(plain || hot) ||
      out_moves.size() != n || out_legal.size() != 4 * n || out_known.size() != 4 * n || out_values.size() != 4 * n)
    throw std::invalid_argument("columns of unequal length");
  const Unlocked unlocked;
  decode_steps({elements(boards), elements(moves), elements(legal), elements(values)}, elements(symmetries),
               {elements(cells), elements(one_hot), elements(out_moves), elements(out_legal), elements(out_known),
                elements(out_values)});
}

}  // namespace

void bind_decode2048(nb::module_& m) {
  m.def("decode_2048", &decode, "boards"_a.noconvert(), "moves"_a.noconvert(), "legal"_a.noconvert(),
        "values"_a.noconvert(), "symmetries"_a.noconvert(), "cells"_a.noconvert(),
        "one_hot"_a.noconvert(), "out_moves"_a.noconvert(), "out_legal"_a.noconvert(),
        "out_known"_a.noconvert(), "out_values"_a.noconvert(),
        "Steps as a network wants them, into the caller's arrays; of cells and one_hot one is empty.");
}

}  // namespace stepwell::bind

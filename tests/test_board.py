"""Boards of 2048 against the rules, written out plainly."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from stepwell import game2048 as g
from tests import ROOT, scaled
from tests.reference import runs as rules

BOARDS = st.integers(0, 2**64 - 1)
# Few different tiles: boards on which much merges, and some that are stuck.
CROWDED = st.lists(st.sampled_from([0, 1, 2, 15]), min_size=16, max_size=16).map(
    lambda cells: sum(e << (60 - 4 * i) for i, e in enumerate(cells))
)
ANY = BOARDS | CROWDED


VECTOR = re.compile(r"^\| `([0-9a-f]{16})` \| (Up|Down|Left|Right) \| `([0-9a-f]{16})` \|$", re.M)
VECTORS = [
    (int(board, 16), rules.MOVES.index(move.upper()), int(after, 16))
    for board, move, after in VECTOR.findall((ROOT / "docs/formats/runs.md").read_text())
]


def test_vectors() -> None:
    assert len(VECTORS) == 7
    assert {move for _, move, _ in VECTORS} == {g.UP, g.DOWN, g.LEFT, g.RIGHT} == set(range(4))
    for board, move, after in VECTORS:
        assert g.move(board, move) == rules.slide(board, move) == after


@given(ANY)
def test_boards_follow_the_rules(board: int) -> None:
    assert [g.move(board, move) for move in range(4)] == [rules.slide(board, m) for m in range(4)]
    assert g.legal(board) == rules.legal(board)
    assert g.score(board) == rules.score(board)
    assert g.highest_tile(board) == rules.highest_tile(board)


@given(ANY)
def test_exponents_there_and_back(board: int) -> None:
    cells = g.exponents(board)
    assert cells.dtype == np.uint8
    assert cells.tolist() == rules.cells(board)
    assert g.from_exponents(cells) == board
    assert g.from_exponents(cells.tolist()) == board


def test_one_number_gives_an_int() -> None:
    for board in (0x1332, np.uint64(0x1332), np.int16(0x1332), np.array(0x1332)):
        for value, expected in [
            (g.move(board, np.int64(2)), 0x1420),
            (g.legal(board), 0b1101),
            (g.score(board), 36),
            (g.highest_tile(board), 8),
            (g.from_exponents(g.exponents(board)), 0x1332),
        ]:
            assert type(value) is int
            assert value == expected


@pytest.mark.parametrize("shape", [(0,), (5,), (2, 3), (1, 0, 4), (2, 1, 3, 2)])
def test_shapes_and_types(shape: tuple[int, ...]) -> None:
    boards = np.random.default_rng(1).integers(0, 2**64, shape, np.uint64)
    results: list[tuple[NDArray[Any], Any, tuple[int, ...]]] = [
        (g.move(boards, 2), np.uint64, shape),
        (g.legal(boards), np.uint8, shape),
        (g.score(boards), np.uint64, shape),
        (g.highest_tile(boards), np.uint32, shape),
        (g.exponents(boards), np.uint8, (*shape, 16)),
    ]
    for result, dtype, expected in results:
        assert result.dtype == dtype
        assert result.shape == expected
    np.testing.assert_array_equal(g.from_exponents(g.exponents(boards)), boards)


def test_boards_and_moves_are_broadcast() -> None:
    boards = np.random.default_rng(2).integers(0, 2**64, 7, np.uint64)
    table = g.move(boards[:, None], range(4))
    assert table.shape == (7, 4)
    for i, board in enumerate(boards):
        assert table[i].tolist() == [g.move(int(board), m) for m in range(4)]
    assert g.move(0x1332, [2, 3]).tolist() == [0x1420, 0x0142]
    with pytest.raises(ValueError, match="broadcast"):
        g.move(boards, [0, 1])


def test_views_with_gaps_are_read_as_they_are_seen() -> None:
    boards = np.random.default_rng(3).integers(0, 2**64, (6, 8), np.uint64)
    for view in (boards[::-2, 1::3], boards.T, boards.astype(">u8")):
        assert g.legal(view).tolist() == [[g.legal(int(b)) for b in row] for row in view]


def test_many_boards_are_as_one() -> None:
    random = np.random.default_rng(4)
    count = scaled(200_000) + 7
    boards = random.integers(0, 2**64, count, np.uint64)
    boards &= random.integers(0, 2**64, count, np.uint64)  # some cells empty or alike
    moves = random.integers(0, 4, count, np.uint8)
    whole: list[Any] = [
        *(g.move(boards, moves), g.legal(boards), g.score(boards)),
        *(g.highest_tile(boards), g.exponents(boards)),
    ]
    for begin in [*range(0, count, 32_768), count - 7]:  # pieces, where threads take over
        part = slice(max(begin - 20, 0), begin + 20)
        few = boards[part]
        for all_at_once, alone in zip(
            whole,
            [
                *(g.move(few, moves[part]), g.legal(few), g.score(few)),
                *(g.highest_tile(few), g.exponents(few)),
            ],
            strict=True,
        ):
            np.testing.assert_array_equal(all_at_once[part], alone)
        for b, m, after in zip(few, moves[part], whole[0][part], strict=True):
            assert rules.slide(int(b), int(m)) == after
    np.testing.assert_array_equal(g.from_exponents(whole[4]), boards)


def test_numbers_above_a_signed_word_in_a_list() -> None:
    assert g.highest_tile([1, 2**64 - 1, 0]).tolist() == [2, 32768, 0]
    assert g.score([]).shape == (0,)


@pytest.mark.parametrize("board", [-1, 2**64, [1, -5], np.array([3, -1]), [2**64, 1], -(2**70)])
def test_boards_that_do_not_fit(board: Any) -> None:
    for function in (g.legal, g.score, g.highest_tile, g.exponents):
        with pytest.raises(ValueError, match="board: expected 0 to 18446744073709551615, got"):
            function(board)
    with pytest.raises(ValueError, match="board"):
        g.move(board, 0)


@pytest.mark.parametrize("board", [1.0, "12", None, True, [1, 2.0], np.zeros(3), [None], b"1"])
def test_boards_that_are_no_whole_numbers(board: Any) -> None:
    for function in (g.legal, g.score, g.highest_tile, g.exponents):
        with pytest.raises(TypeError, match="board: expected whole numbers"):
            function(board)


@pytest.mark.parametrize("move", [4, -1, 255, 256, 2**64, -(2**63)])
def test_a_move_that_is_none_is_named(move: int) -> None:
    with pytest.raises(ValueError, match=f"move: expected 0 to 3, got {move}"):
        g.move(0x1332, move)
    with pytest.raises(ValueError, match=f"move: expected 0 to 3, got {move}"):
        g.move([0x1332] * 3, [0, move, 1])


@pytest.mark.parametrize("cells", [[0] * 15, [], 3, np.zeros((16, 4), np.uint8)])
def test_cells_that_are_not_sixteen(cells: Any) -> None:
    with pytest.raises(ValueError, match="expected 16 along the last axis"):
        g.from_exponents(cells)


@pytest.mark.parametrize("exponent", [16, -1, 256])
def test_exponents_that_cannot_be_stored(exponent: int) -> None:
    with pytest.raises(ValueError, match=f"exponent: expected 0 to 15, got {exponent}"):
        g.from_exponents([0] * 15 + [exponent])


def test_show() -> None:
    assert g.show(0x1200_0000_0000_000F) == (
        "    2     4     .     .\n"
        "    .     .     .     .\n"
        "    .     .     .     .\n"
        "    .     .     . 32768"
    )
    with pytest.raises(ValueError, match="expected one"):
        g.show([1, 2])  # type: ignore[arg-type]

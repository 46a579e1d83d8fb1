"""Boards of 2048 as 64-bit numbers, one at a time or millions.

A board is 16 hex digits, row by row from the top left; a digit is the exponent of its tile,
0 for an empty cell. `0x1234` in the top row is 2, 4, 8, 16. Moves are `UP`, `DOWN`, `LEFT` and
`RIGHT`, 0 to 3. Exponent 15, the tile 32768, is the largest that can be stored, so two such
tiles do not merge: they stay, and a board is never corrupted.

Every function takes whole numbers of any shape. One number gives one `int` (or, where a
board becomes several numbers, one small array); arrays give arrays. Large ones are shared out to
all cores, without the GIL.
"""

from collections.abc import Callable
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell import _core

UP, DOWN, LEFT, RIGHT = range(4)

Boards = NDArray[np.uint64]
Number = int | np.integer[Any]
T = TypeVar("T", bound=np.generic)


@overload
def move(boards: Number, moves: Number) -> int: ...
@overload
def move(boards: ArrayLike, moves: ArrayLike) -> Boards: ...
def move(boards: ArrayLike, moves: ArrayLike) -> int | Boards:
    """Return the boards after sliding, before a new tile appears; shapes are broadcast.

    A tile merges at most once. An illegal move gives the same board back. Raises `ValueError`
    naming a move that is not 0 to 3.
    """
    each, directions = np.broadcast_arrays(
        whole("board", boards), whole("move", moves, np.uint8, max_value=3)
    )
    out = np.empty(each.shape, np.uint64)
    _core.move_boards(_flat(each), _flat(directions), out.reshape(-1))
    return out if out.ndim else int(out)


@overload
def legal(boards: Number) -> int: ...
@overload
def legal(boards: ArrayLike) -> NDArray[np.uint8]: ...
def legal(boards: ArrayLike) -> int | NDArray[np.uint8]:
    """Return which moves change each board: bit `m` of a uint8 is move `m`; 0 is game over."""
    return _of_each(_core.legal_moves, boards, np.uint8)


@overload
def score(boards: Number) -> int: ...
@overload
def score(boards: ArrayLike) -> NDArray[np.uint64]: ...
def score(boards: ArrayLike) -> int | NDArray[np.uint64]:
    """Return the points of each board as if every tile had been merged from 2s.

    A tile of exponent `e` is worth `(e - 1) * 2**e`. The score a game shows is this less 4 for
    every 4 that appeared by itself.
    """
    return _of_each(_core.score_boards, boards, np.uint64)


@overload
def highest_tile(boards: Number) -> int: ...
@overload
def highest_tile(boards: ArrayLike) -> NDArray[np.uint32]: ...
def highest_tile(boards: ArrayLike) -> int | NDArray[np.uint32]:
    """Return the value of each board's largest tile, 0 for a board without one."""
    return _of_each(_core.highest_tiles, boards, np.uint32)


def exponents(boards: ArrayLike) -> NDArray[np.uint8]:
    """Return the 16 exponents of each board, top left first, along a new last axis."""
    each = whole("board", boards)
    out = np.empty((*each.shape, 16), np.uint8)
    _core.boards_to_exponents(_flat(each), out.reshape(-1))
    return out


def from_exponents(cells: ArrayLike) -> Any:
    """Return the boards of 16 exponents each: an `int` for 16 cells, else a uint64 array.

    Raises `ValueError` when the last axis is not 16 long, or naming an exponent above 15.
    """
    each = whole("exponent", cells, np.uint8, max_value=15)
    if each.shape[-1:] != (16,):
        raise ValueError(f"cells: expected 16 along the last axis, got shape {each.shape}")
    out = np.empty(each.shape[:-1], np.uint64)
    _core.boards_from_exponents(_flat(each), out.reshape(-1))
    return out if out.ndim else int(out)


def show(board: Number) -> str:
    """Return one board as four lines of text, a dot for an empty cell.

    >>> print(show(0x1200_0000_0000_000B))
        2     4     .     .
        .     .     .     .
        .     .     .     .
        .     .     .  2048
    """
    cells = exponents(board)
    if cells.ndim != 1:
        raise ValueError(f"board: expected one, got an array of shape {cells.shape[:-1]}")
    words = [f"{1 << int(e):>5}" if e else "    ." for e in cells]
    return "\n".join(" ".join(words[row : row + 4]) for row in range(0, 16, 4))


def _of_each(
    fill: Callable[[NDArray[Any], NDArray[Any]], None], boards: ArrayLike, dtype: type[T]
) -> int | NDArray[T]:
    """A number for each board."""
    each = whole("board", boards)
    out = np.empty(each.shape, dtype)
    fill(_flat(each), out.reshape(-1))
    return out if out.ndim else int(out)


def _flat(array: NDArray[T]) -> NDArray[T]:
    return np.require(array, requirements=["C", "A"]).reshape(-1)


def whole(
    name: str,
    given: ArrayLike,
    dtype: type[np.unsignedinteger[Any]] = np.uint64,
    *,
    min_value: int = 0,
    max_value: int | None = None,
) -> NDArray[Any]:
    """Whole numbers of any shape as unsigned ones: refused, never wrapped or rounded.

    Raises `TypeError` for other values, `ValueError` for numbers out of range.
    """
    values: NDArray[Any] = np.asarray(given)
    if values.dtype.kind == "O" or (values.dtype.kind == "f" and not hasattr(given, "dtype")):
        values = np.asarray(given, object)  # NumPy makes floats of whole numbers around 2**63
        for value in values.flat:
            if isinstance(value, bool | np.bool) or not isinstance(value, int | np.integer):
                raise TypeError(f"{name}: expected whole numbers, got {value!r}")
    elif values.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected whole numbers, got {values.dtype}")
    highest = np.iinfo(dtype).max if max_value is None else max_value
    if values.size and (int(values.min()) < min_value or int(values.max()) > highest):
        outside = next(int(v) for v in values.flat if not min_value <= int(v) <= highest)
        raise ValueError(f"{name}: expected {min_value} to {highest}, got {outside}")
    return values.astype(dtype, copy=False)

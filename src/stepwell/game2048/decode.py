"""Steps of 2048 as a network wants them.

`decode(batch)` takes boards apart and masks values by legality; `Decode` is the same as a
transform for the loader, with the eight symmetries of the board as augmentation. The work is
done by the core, without the GIL.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell import _core
from stepwell.game2048.board import whole
from stepwell.source import Batch

SYMMETRIES = 8
"""A symmetry is a number: 4 exchanges rows and columns, then 1 mirrors, 2 turns upside down."""

Boards = Literal["exponents", "one_hot"]


def decode(
    batch: Batch, *, boards: Boards = "exponents", symmetries: ArrayLike | int | None = None
) -> Batch:
    """Return the batch with `board`, `move`, `ev_legal` and `ev_values` made ready.

    - `board`: 16 exponents (uint8), or with `boards="one_hot"` 16 cells of 16 classes (float32)
    - `move`: 0 to 3
    - `ev_legal`: four booleans instead of bits
    - `ev_values`: 0 where a move was illegal, or its value was not recorded
    - `ev_known`, which is added: four booleans, False for these

    `symmetries`, one number or one for each step, turns the boards, and moves and values with
    them. Steps may be rows or windows of rows. Other fields stay as they are; `batch` itself is
    not changed.

    Raises `KeyError`, `TypeError` or `ValueError` naming the field that is not one of 2048.
    """
    if boards not in ("exponents", "one_hot"):
        raise ValueError(f"boards: expected 'exponents' or 'one_hot', got {boards!r}")
    packed = _column(batch, "board", np.uint64)
    shape = packed.shape
    turns = np.empty(0, np.uint8)
    if symmetries is not None:
        turns = whole("symmetries", symmetries, np.uint8, max_value=SYMMETRIES - 1)
        if turns.shape not in ((), shape):
            raise ValueError(f"symmetries: expected one or {shape}, got {turns.shape}")
        turns = np.ascontiguousarray(np.broadcast_to(turns, shape))
    cells = np.empty((*shape, 16) if boards == "exponents" else 0, np.uint8)
    one_hot = np.empty((*shape, 16, 16) if boards == "one_hot" else 0, np.float32)
    moves = np.empty(shape, np.uint8)
    legal = np.empty((*shape, 4), np.bool)
    known = np.empty((*shape, 4), np.bool)
    values = np.empty((*shape, 4), np.float32)
    _core.decode_2048(
        packed.reshape(-1),
        _column(batch, "move", np.uint8, shape).reshape(-1),
        _column(batch, "ev_legal", np.uint8, shape).reshape(-1),
        _column(batch, "ev_values", np.float32, (*shape, 4)).reshape(-1),
        turns.reshape(-1),
        cells.reshape(-1),
        one_hot.reshape(-1),
        moves.reshape(-1),
        legal.view(np.uint8).reshape(-1),
        known.view(np.uint8).reshape(-1),
        values.reshape(-1),
    )
    ready = {"board": one_hot if boards == "one_hot" else cells, "move": moves}
    return {**batch, **ready, "ev_legal": legal, "ev_known": known, "ev_values": values}


@dataclass(frozen=True)
class Decode:
    """`decode` as a transform: `Loader(steps, 4096, transform=Decode(augment=True))`.

    With `augment` each step is turned by a symmetry that depends on seed, epoch, run and step
    alone, so that batches are the same whichever thread makes them. A loader gets the
    transform of each epoch, so a step is turned another way in the next one.
    """

    boards: Boards = "exponents"
    augment: bool = False
    seed: int = 0
    epoch: int = 0

    MIX: ClassVar = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
    """How the bits of a step are mixed: shifts and factors."""

    @property
    def key(self) -> int:
        """What draws of a seed and an epoch begin with."""
        return (self.seed * 0x9E3779B97F4A7C15 + self.epoch * 0xD1B54A32D192ED03) % 2**64

    def __call__(self, batch: Batch) -> Batch:
        symmetries = self._draw(batch) if self.augment else None
        return decode(batch, boards=self.boards, symmetries=symmetries)

    def in_epoch(self, epoch: int) -> "Decode":
        """The same with the draws of another epoch."""
        return replace(self, epoch=epoch)

    def _draw(self, batch: Batch) -> NDArray[np.uint8]:
        runs = _column(batch, "run_id", np.uint32).astype(np.uint64)
        steps = _column(batch, "step_index", np.uint16).astype(np.uint64)
        drawn = runs * np.uint64(1 << 32) + steps
        drawn ^= np.uint64(self.key)
        for shift, factor in self.MIX:
            drawn = (drawn ^ (drawn >> np.uint64(shift))) * np.uint64(factor)
        return (drawn >> np.uint64(61)).astype(np.uint8)


def _column(
    batch: Batch, name: str, dtype: Any, shape: tuple[int, ...] | None = None
) -> NDArray[Any]:
    if name not in batch:
        raise KeyError(f"a step of 2048 has a field {name!r}; this batch has {sorted(batch)}")
    values = np.asarray(batch[name])
    if values.dtype != dtype:
        raise TypeError(f"{name}: expected {np.dtype(dtype)}, got {values.dtype}")
    if shape is not None and values.shape != shape:
        raise ValueError(f"{name}: expected the shape {shape}, got {values.shape}")
    return np.require(values, requirements=["C", "A"])

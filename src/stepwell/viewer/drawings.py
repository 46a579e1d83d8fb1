"""How a field is drawn: a small table, from the most special schema to plain values.

board     64-bit boards of 2048, with the move and the values of the branches
image     one picture a step: (height, width), with 1, 3 or 4 channels in front or behind
planes    several pictures a step, side by side: stacks of frames, feature planes
curve     a vector a step
text      text, and whatever has no other form
value     a number a step
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepwell.field import Field

BOARD_FIELDS = ("move", "ev_legal", "ev_values")
MOVES = ("UP", "DOWN", "LEFT", "RIGHT")
"""As stepwell.game2048 numbers them."""

_FRAME_LIKE = ("frame", "image", "rgba", "pixels")

# What a step shows at most of a field; nobody could see more.
MAX_SIDE = 1024
MAX_PLANES = 64
MAX_VALUES = 256
MAX_TEXT = 2000


@dataclass(frozen=True)
class Drawing:
    """How one field of a step is drawn, and how much of it is sent."""

    name: str
    draw: str
    field: Field
    first: bool = False
    """Whether the channels or planes are the first axis, not the last."""
    of: str | None = None
    """The field that it is drawn with."""

    def to_json(self) -> dict[str, Any]:
        """What the browser gets to know of it."""
        about: dict[str, Any] = {
            "name": self.name,
            "draw": self.draw,
            "shape": list(self.field.shape),
            "dtype": str(self.field) if self.field.ragged else self.field.dtype.str,
        }
        if self.of is not None:
            about["of"] = self.of
        if self.draw == "curve":
            about["shown"] = min(int(np.prod(self.field.shape)), MAX_VALUES)
        if self.draw == "planes":
            about["planes"], about["across"] = self.planes, self.across
        return about

    @property
    def planes(self) -> int:
        """How many pictures there are side by side."""
        shape = self.field.shape
        return min(math.prod(shape[:-2]) if self.first else shape[-1], MAX_PLANES)

    @property
    def across(self) -> int:
        """How many of them in a row."""
        return min(self.planes, max(4, math.ceil(math.sqrt(self.planes))))


def drawings(schema: Mapping[str, Field]) -> list[Drawing]:
    """One for each field, those first that show most."""
    found = [_drawing(name, field, schema) for name, field in schema.items()]
    order = ("board", "image", "planes", "curve", "value", "text")
    return sorted(found, key=lambda each: (each.name != "frame", order.index(each.draw)))


def is_board(name: str, schema: Mapping[str, Field]) -> bool:
    """Whether a field has boards of 2048."""
    board, move = schema.get("board"), schema.get("move")
    return (
        name == "board"
        and board is not None
        and move is not None
        and (board.dtype, board.shape) == (np.dtype(np.uint64), ())
        and (move.dtype, move.shape) == (np.dtype(np.uint8), ())
    )


def _drawing(name: str, field: Field, schema: Mapping[str, Field]) -> Drawing:
    shape = field.shape
    if is_board(name, schema):
        return Drawing(name, "board", field)
    of = "board" if name in BOARD_FIELDS and is_board("board", schema) else None
    if field.ragged or field.dtype.kind not in "biuf" or field.dtype.names is not None:
        return Drawing(name, "text", field, of=of)
    if len(shape) == 2:
        return Drawing(name, "image", field, of=of)
    if len(shape) == 3 and shape[2] in (1, 3):
        return Drawing(name, "image", field, of=of)
    if len(shape) == 3 and shape[0] in (1, 3):
        return Drawing(name, "image", field, first=True, of=of)
    if len(shape) == 3 and shape[2] == 4 and any(each in name for each in _FRAME_LIKE):
        return Drawing(name, "image", field, of=of)
    if len(shape) >= 3:
        return Drawing(name, "planes", field, first=shape[0] < shape[-1] or len(shape) > 3, of=of)
    return Drawing(name, "curve" if np.prod(shape) > 1 else "value", field, of=of)

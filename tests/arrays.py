"""Arrays of every kind, filled so that a wrong byte shows."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

STEP = np.dtype([("board", "u8"), ("ev", "f4", (4,)), ("move", "u1"), ("done", "?")])
"""What a game's step might be: 26 bytes, most of them not aligned."""

PLAIN_TYPES = [
    *("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g"),
    *("c8", "c16", "M8[ns]", "m8[s]", "S5", "U3", "V7"),
    *(">i2", ">u8", ">f4", ">c16", ">M8[D]", ">U2"),
]

STRUCTURES = {
    "step": STEP,
    "one field": np.dtype([("a", "f8")]),
    "padding": np.dtype([("a", "u1"), ("b", "f8"), ("c", "u2")], align=True),
    "overlapping": np.dtype(
        {"names": ["all", "low", "high"], "formats": ["u4", "u2", "u2"], "offsets": [0, 0, 2]}
    ),
    "out of order": np.dtype(
        {"names": ["a", "b"], "formats": ["u2", "f8"], "offsets": [11, 1], "itemsize": 17}
    ),
    "big-endian": np.dtype([("a", ">i4"), ("b", ">f8", (2,)), ("c", "<i4"), ("d", ">U3")]),
    "nested": np.dtype(
        [("a", "u1"), ("b", [("x", "f4"), ("y", [("z", ">i2", (3,))])]), ("c", "?")]
    ),
    "arrays": np.dtype([("a", "f4", (2, 3)), ("b", "u1", (5,)), ("c", "i8", (1,)), ("d", "u2")]),
    "empty fields": np.dtype([("a", "f4", (0,)), ("b", "i4"), ("c", "V0")]),
    "only empty fields": np.dtype([("a", "f4", (0,)), ("b", "V0")]),
    "many fields": np.dtype([(f"f{i}", ["u1", "f4", "u2", "f8"][i % 4]) for i in range(60)]),
    "wide": np.dtype([("a", "u1"), ("b", "u1", (3000,)), ("c", "f8")]),
    "titles": np.dtype([(("the title", "a"), "i4"), ("b", "f4")]),
    "time and text": np.dtype([("t", "M8[us]"), ("s", "S7"), ("u", "U4"), ("d", "m8[D]")]),
}


def random_array(dtype: DTypeLike, shape: int | tuple[int, ...], seed: int = 0) -> NDArray[Any]:
    """Values over the whole range of a type: NaNs with payloads, NaT, every bit pattern."""
    array = np.zeros(shape, dtype)
    _fill(array, np.random.default_rng(seed))
    return array


def _fill(array: NDArray[Any], random: np.random.Generator) -> None:
    if array.dtype.names:
        for name in array.dtype.names:
            _fill(array[name], random)
    elif array.dtype.kind == "b":
        array[...] = random.integers(0, 2, array.shape)
    elif array.dtype.kind == "U":
        # Letters of several alphabets: not every number is a character.
        letters = random.integers(0x20, 0x3FF, (*array.shape, array.dtype.itemsize // 4))
        wide = letters.astype(array.dtype.str[0] + "u4")
        array[...] = wide.view(array.dtype)[..., 0] if wide.size else ""
    elif array.dtype.itemsize:
        values = random.bytes(array.size * array.dtype.itemsize)
        array[...] = np.frombuffer(values, array.dtype).reshape(array.shape)

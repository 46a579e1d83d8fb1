"""The arrays of a step: frames, observations, actions; one dataset for each.

An observation may be a dict or a tuple, nested; each of its arrays is then a channel of its own,
`observations/camera/left`, and all have the same number of rows.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import FormatError, SchemaError
from stepwell.files.npy import dtype_from_json, dtype_to_json
from stepwell.fit import unmasked
from stepwell.source import Field

KINDS = FRAMES, OBSERVATIONS, ACTIONS = "frames", "observations", "actions"

Tree = Any
"""An array, or a dict or tuple of trees."""

_PACKED_FROM = 1024  # bytes of a row; smaller ones share chunks and are not packed
_CHUNK_BYTES = 16384  # of such a chunk, which is written again whenever rows are added to it
_MAX_BYTES = 1 << 31
_MAX_PLANES = 16
IN_PLANES = ("zstd", "gzip")  # codecs whose rows may be packed plane after plane
_UNUSABLE = re.compile(r"|\.\.?|.*/.*|\(.*\)")  # as a name in HDF5, or because tuples use it


@dataclass(frozen=True, slots=True)
class Channel:
    """One array of a step: its dataset, and what a row of that is."""

    name: str
    field: Field
    names: tuple[str, ...] = ()
    """What 0, 1, 2, … are called, of actions that have names."""

    @classmethod
    def like(
        cls, name: str, array: NDArray[Any], compress: str, names: tuple[str, ...] = ()
    ) -> Self:
        """The channel that `array` belongs to. Raises `SchemaError` for what HDF5 cannot hold."""
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise SchemaError(f"{name}: expected numbers or booleans, got {array.dtype}")
        if not 0 < array.nbytes < _MAX_BYTES:
            raise SchemaError(
                f"{name}: expected 1 to {_MAX_BYTES:,} bytes, got {array.nbytes:,} {array.shape}"
            )
        if len(array.shape) > 31:
            raise SchemaError(f"{name}: expected at most 31 dimensions, got {len(array.shape)}")
        small = array.nbytes < _PACKED_FROM
        dtype = np.dtype(array.dtype.newbyteorder("<").str)
        return cls(name, Field(dtype, array.shape, compress="none" if small else compress), names)

    @property
    def kind(self) -> str:
        """Frames, observations or actions."""
        return self.name.partition("/")[0]

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk: one, so that one can be read alone, unless rows are small."""
        size = self.field.row_bytes
        return 1 if size >= _PACKED_FROM else max(1, _CHUNK_BYTES // size)

    @property
    def planes(self) -> int:
        """Planes that are stored one behind the other, those of the last axis; 1 for rows that are
        stored as they are.

        A stack of grey pictures becomes smaller by that. Colours become larger: the three values of
        a pixel come again together.
        """
        field = self.field
        last = field.shape[-1] if len(field.shape) > 2 else 1
        if field.compress not in IN_PLANES or field.dtype.itemsize > 1 or last > _MAX_PLANES:
            return 1
        return 1 if self.name == FRAMES or last % 3 == 0 else last

    def fitting(self, array: Any) -> Any:
        """The array itself, or its numbers as those of this channel, where nothing is lost: a
        policy's int32 as an int64."""
        dtype, shape = self.field.dtype, self.field.shape
        if array.dtype == dtype and array.shape == shape:
            return array
        if array.shape == shape and np.can_cast(array.dtype, dtype, "safe"):
            made = array.astype(dtype)
            # NumPy calls it safe to make floats of whole numbers that they cannot hold.
            with np.errstate(invalid="ignore"):
                same = array.dtype.kind == "f" or np.array_equal(made.astype(array.dtype), array)
            if same:
                return made
        raise SchemaError(
            f"{self.name}: expected {dtype} {shape} as in the steps before, "
            f"got {array.dtype} {array.shape}"
        )

    def to_json(self) -> dict[str, Any]:
        stated: dict[str, Any] = {
            "name": self.name,
            "dtype": dtype_to_json(self.field.dtype),
            "shape": list(self.field.shape),
            "codec": self.field.compress,
        }
        return {**stated, "names": list(self.names)} if self.names else stated

    @classmethod
    def from_json(cls, stated: Any, path: str) -> Self:
        try:
            names = tuple(str(each) for each in stated.get("names", ()))
            return cls(str(stated["name"]), field_from_json(stated), names)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise FormatError(f"not a channel: {stated!r} ({error})", path=path) from None


def field_from_json(stated: Any) -> Field:
    """The field of a row, as files state it. Raises `ValueError` and the like for others."""
    dtype, shape = dtype_from_json(stated["dtype"]), tuple(int(size) for size in stated["shape"])
    if dtype.kind not in "biuf" or any(size < 1 for size in shape):
        raise ValueError("expected numbers")
    return Field(dtype, shape, compress=str(stated["codec"]))


def count_rows(channels: Iterable[Channel], rows: Mapping[str, int], kind: str) -> int:
    """How many rows of a kind there are; all channels of one have the same."""
    return next((rows.get(c.name, 0) for c in channels if c.kind == kind), 0)


def as_json(name: str, given: Mapping[str, Any], encoder: json.JSONEncoder) -> bytes:
    """A mapping as JSON. Raises `TypeError`, by its name, for what JSON cannot hold."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name}: expected a mapping, got {type(given).__name__}")
    try:
        return encoder.encode(dict(given)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{name}: {error}") from None


def as_scalar(array: Any) -> int | float | None:
    """A scalar of NumPy's as SQLite holds it; None for one that it cannot hold."""
    value: int | float = array.item()
    fits = isinstance(value, float) or -(2**63) <= value < 2**63
    return value if fits and value == value else None


def as_array(name: str, value: Any) -> NDArray[Any]:
    """An array of numbers. Raises `SchemaError` for anything else."""
    unmasked(name, value)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise SchemaError(f"{name}: not an array: {error}") from None
    if array.dtype.kind not in "biuf":
        raise SchemaError(f"{name}: expected an array of numbers, got {_kind(value)}")
    return array


def check_frame(found: Mapping[str, NDArray[Any]]) -> None:
    """Raise `SchemaError` unless what a step has as its frame is a picture."""
    name, array = next(iter(found.items()))
    if len(found) > 1 or name != FRAMES or array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise SchemaError(
            f"frame: expected uint8 (height, width, channels), got {array.dtype} {array.shape}"
        )


def _kind(value: Any) -> str:
    return str(value.dtype) if isinstance(value, np.ndarray) else type(value).__name__


def leaves(name: str, tree: Tree) -> Iterator[tuple[str, NDArray[Any]]]:
    """Every array of a tree with the name of its dataset. Tuples count: `observations/(0)`."""
    if isinstance(tree, Mapping):
        if not tree:
            raise SchemaError(f"{name}: expected at least one array, got an empty dict")
        for key, branch in tree.items():
            yield from leaves(f"{name}/{_key(name, key)}", branch)
    elif isinstance(tree, tuple):
        if not tree:
            raise SchemaError(f"{name}: expected at least one array, got an empty tuple")
        for number, branch in enumerate(tree):
            yield from leaves(f"{name}/({number})", branch)
    else:
        yield name, as_array(name, tree)


def _key(name: str, key: Any) -> str:
    if isinstance(key, str) and key.isprintable() and not _UNUSABLE.fullmatch(key):
        return key
    raise SchemaError(f"{name}: {key!r} cannot be the name of a dataset")


def assemble(name: str, found: Mapping[str, Any]) -> Tree:
    """The reverse of `leaves`: a tree of whatever belongs to each dataset."""
    if name in found:
        return found[name]
    branches: dict[str, dict[str, Any]] = {}
    for path, value in found.items():
        if path.startswith(name + "/"):
            key = path[len(name) + 1 :].split("/", 1)[0]
            branches.setdefault(key, {})[path] = value
    if not branches:
        raise KeyError(name)
    made = {key: assemble(f"{name}/{key}", branch) for key, branch in branches.items()}
    if all(key == f"({i})" for i, key in enumerate(made)):
        return tuple(made.values())
    return made

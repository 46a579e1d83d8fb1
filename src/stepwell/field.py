"""A field: the type of one row of it, and the rows where each has its own length."""

import dataclasses
import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

Kind = Literal["array", "bytes", "str"]

Batch = dict[str, Any]
"""One `numpy.ndarray` per field, or a `Ragged`; every one has the same length."""


@dataclass(frozen=True, slots=True, repr=False)
class Field:
    """The type of one row of a field, and how a store keeps it.

        Field("u1", (28, 28))                   an array of a fixed shape
        Field("<i4", ragged=True)               any number of items
        Field(str, compress="zstd")             text; or bytes

    Two fields are equal when their rows are alike, however they are kept.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    ragged: bool = False
    """Each row has its own number of items; batches hold a `Ragged`."""
    kind: Kind | None = None
    """"str" and "bytes" are ragged uint8 whose rows come back as such."""
    compress: str | None = dataclasses.field(default=None, kw_only=True, compare=False)
    level: int | None = dataclasses.field(default=None, kw_only=True, compare=False)
    optional: bool = dataclasses.field(default=False, kw_only=True, compare=False)
    """Rows may be appended without it."""

    if TYPE_CHECKING:  # what dtypes, shapes and kinds may be given as

        def __init__(
            self,
            dtype: DTypeLike | type,
            shape: tuple[int, ...] | int = (),
            ragged: bool = False,
            kind: Kind | None = None,
            *,
            compress: str | None = None,
            level: int | None = None,
            optional: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        given: Any = self.dtype
        kind, ragged = self.kind or _kind_of(given), self.ragged
        shape = self.shape if isinstance(self.shape, tuple) else (self.shape,)
        if kind != "array":
            if shape != ():
                raise ValueError(f"{kind} has no shape, got {shape}")
            given, ragged = np.uint8, True
        try:
            dtype = np.dtype(given)
        except TypeError as error:
            bits = re.fullmatch(r"([fiu])(16|32|64)", str(given))
            line = f": write '<{bits[1]}{int(bits[2]) // 8}', which counts bytes" if bits else ""
            raise TypeError(f"expected a dtype of NumPy, got {given!r}{line}") from error
        if dtype.subdtype is not None:
            dtype, inner = dtype.subdtype
            shape = (*shape, *inner)
        made = {"dtype": dtype, "shape": tuple(map(operator.index, shape)), "ragged": bool(ragged)}
        for name, value in {**made, "kind": kind}.items():
            object.__setattr__(self, name, value)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (of one item, for a ragged field)."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def items(self) -> str:
        """The dtype and shape, as fingerprints have it."""
        sizes = [*(["*"] if self.ragged else []), *map(str, self.shape)]
        return str(self.dtype) + (f"[{', '.join(sizes)}]" if sizes else "")

    def __repr__(self) -> str:
        given = [repr(str(self))] if self.kind != "array" else [repr(str(self.dtype))]
        given += [repr(self.shape)] if self.shape else []
        given += ["ragged=True"] if self.ragged and self.kind == "array" else []
        kept = ("compress", "level", "optional")
        given += [f"{name}={value!r}" for name in kept if (value := getattr(self, name))]
        return f"Field({', '.join(given)})"

    def __str__(self) -> str:
        return self.items if self.kind == "array" else str(self.kind)


FieldLike = Field | DTypeLike | type | tuple[Any, ...]


def as_fields(given: Mapping[str, FieldLike]) -> dict[str, Field]:
    """Fields as people give them: `{"image": ("u1", (28, 28)), "label": "<i8", "text": str}`."""
    if not isinstance(given, Mapping):
        raise TypeError(f"fields: expected a dict of names and dtypes, got {type(given).__name__}")
    fields = {}
    for name, field in given.items():
        parts = field if isinstance(field, tuple) else (field,)
        fields[name] = field if isinstance(field, Field) else Field(*parts)
    return fields


def _kind_of(dtype: Any) -> Kind:
    """Whether rows are arrays, bytes or text."""
    if isinstance(dtype, type) and issubclass(dtype, str | bytes):  # NumPy's own, too
        return "str" if issubclass(dtype, str) else "bytes"
    if isinstance(dtype, str) and dtype in ("str", "bytes"):
        return "str" if dtype == "str" else "bytes"
    return "array"


class Ragged(Sequence[Any]):
    """Rows of different lengths in one array: row i is `values[offsets[i]:offsets[i + 1]]`.

    Rows of a field of text or bytes come as `str` or `bytes`.
    """

    __slots__ = ("kind", "offsets", "values")

    def __init__(
        self, values: NDArray[Any], offsets: NDArray[np.int64], kind: Kind | None = "array"
    ) -> None:
        self.values = values
        self.offsets = offsets
        self.kind = kind

    @classmethod
    def from_list(cls, rows: Sequence[Any], field: Field) -> Self:
        """Copy separate rows into one array."""
        if field.kind == "str":
            rows = [row.encode() for row in rows]
        if field.kind != "array":
            rows = [np.frombuffer(row, np.uint8) for row in rows]
        offsets = offsets_of([len(row) for row in rows])
        values = np.empty((int(offsets[-1]), *field.shape), field.dtype)
        for row, begin, end in zip(rows, offsets, offsets[1:], strict=False):
            values[begin:end] = row
        return cls(values, offsets, field.kind)

    @classmethod
    def joined(cls, parts: "Sequence[Ragged]", field: Field) -> Self:
        """The rows of several, one after the other, in one array."""
        some = [part.values[part.offsets[0] : part.offsets[-1]] for part in parts]
        values = np.concatenate([np.empty((0, *field.shape), field.dtype), *some])
        lengths = np.concatenate([np.empty(0, np.int64), *(part.lengths for part in parts)])
        return cls(values, offsets_of(lengths), field.kind)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, i: int) -> Any: ...
    @overload
    def __getitem__(self, i: slice) -> list[Any]: ...
    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            return [self.row(k) for k in range(*i.indices(len(self)))]
        return self.row(i)

    def row(self, i: int) -> Any:
        """Row `i`: an array without a copy, or text or bytes."""
        i = range(len(self))[i]
        row = self.values[self.offsets[i] : self.offsets[i + 1]]
        if self.kind == "array":
            return row
        return row.tobytes() if self.kind == "bytes" else row.tobytes().decode()

    def take(self, rows: NDArray[np.int64]) -> "Ragged":
        """These rows, copied into an array of their own."""
        items = np.ascontiguousarray(self.values)
        row_bytes = items.itemsize * math.prod(items.shape[1:])
        begins, ends = self.offsets[rows] * row_bytes, self.offsets[rows + 1] * row_bytes
        data = items.reshape(-1).view(np.uint8).data if items.size else memoryview(b"")
        some = [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        values = np.frombuffer(bytearray().join(some), items.dtype)
        offsets = offsets_of(self.offsets[rows + 1] - self.offsets[rows])
        return Ragged(values.reshape(offsets[-1], *items.shape[1:]), offsets, self.kind)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Items of each row; bytes, for text."""
        return np.diff(self.offsets)

    def to_list(self) -> list[Any]:
        """Every row, as `row` gives it."""
        if self.kind == "array":
            return [self.row(i) for i in range(len(self))]
        data = self.values.tobytes()
        rows = [data[begin:end] for begin, end in pairwise(self.offsets.tolist())]
        return rows if self.kind == "bytes" else [row.decode() for row in rows]

    def to_padded(self, fill: Any = 0) -> NDArray[Any]:
        """One array as long as the longest row; the rest of each row is `fill`."""
        lengths = self.lengths
        width = int(lengths.max(initial=0))
        padded = np.full((len(self), width, *self.values.shape[1:]), fill, self.values.dtype)
        used = self.values[self.offsets[0] : self.offsets[-1]]
        padded[np.arange(width) < lengths[:, None]] = used
        return padded

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """An array of the rows as objects: they have no common length."""
        if copy is False:
            raise ValueError("copy=False: rows of different lengths are objects of a new array")
        made = objects_of(self.to_list())
        return made if dtype is None else made.astype(dtype)

    def __repr__(self) -> str:
        items = self.values.dtype if self.kind == "array" else self.kind
        return f"Ragged({len(self)} rows, {len(self.values)} x {items})"


def offsets_of(lengths: ArrayLike) -> NDArray[np.int64]:
    """Where rows of these lengths begin in one array, and where the last one ends."""
    lengths = np.asarray(lengths, np.int64)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def objects_of(rows: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    """Rows as the objects of an array. At once, NumPy would look into them."""
    made = np.empty(len(rows), object)
    for i, row in enumerate(rows):
        made[i] = row
    return made

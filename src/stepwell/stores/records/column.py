"""One field of a record store, which feels like an array."""

import operator
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell import _core
from stepwell.source import Batch, Ragged, Rows, Schema, Source

if TYPE_CHECKING:
    from stepwell.stores.records.store import RecordStore

__all__ = ["RecordColumn"]


class RecordColumn(Source):
    """A field of a store: `column[3]`, `column[10:20]`, `column[rows]`, len, dtype, shape.

    Text and bytes come as `str` and `bytes`. As a source it has the one field. What is stored raw
    is not copied for `column[i]` and `views`: such arrays are the file's own memory, read-only, and
    stay valid for as long as they are kept, whatever happens to the store.
    """

    def __init__(self, store: "RecordStore", name: str) -> None:
        self._store = store
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordColumn, (self._store, self._name)

    def __len__(self) -> int:
        return len(self._store)

    @property
    def schema(self) -> Schema:
        return {self._name: self._store.schema[self._name]}

    @property
    def name(self) -> str:
        return self._name

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._store.schema[self._name].dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The number of records, then the shape of one; None where each has its own length."""
        field = self._store.schema[self._name]
        return (len(self), *((None,) if field.ragged else ()), *field.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, key: Any) -> Any:
        """One record, or those of a slice or of row numbers."""
        if isinstance(key, tuple):
            return self._inside(key)
        if isinstance(key, slice):
            return self._several(np.arange(*key.indices(len(self)), dtype=np.int64))
        if hasattr(key, "__index__") and np.ndim(key) == 0:
            i = operator.index(key)
            if not -len(self) <= i < len(self):
                raise IndexError(f"row {i} is outside a source of {len(self)} rows")
            return self._one(i % len(self))
        return self._several(key)

    def _inside(self, key: tuple[Any, ...]) -> Any:
        """`column[i, 3:5]`: a part of each record."""
        if not key or self._store.schema[self._name].ragged:
            raise TypeError(f"{self._name}: expected one index, got {key}")
        found = self[key[0]]
        return found[key[1:]] if isinstance(key[0], int | np.integer) else found[:, *key[1:]]

    def __iter__(self) -> Iterator[Any]:
        for begin in range(0, len(self), 1024):
            yield from self[begin : begin + 1024]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if self._store.schema[self._name].ragged:
            raise TypeError(f"{self._name} is ragged: its records are not one array")
        return np.asarray(self[:], dtype)

    def views(self, rows: ArrayLike) -> list[NDArray[Any]]:
        """Records one by one: not copied where they are stored raw, and checked all the same."""
        numbers = self._store._rows(rows)
        found = self._store.raw_views(self._name, numbers)
        return list(self.take(numbers)[self._name]) if found is None else found

    def present(self, rows: ArrayLike) -> NDArray[np.bool]:
        """Which of these records have the field."""
        return self._store.present(rows)[self._name]

    def close(self) -> None:
        """The store stays open: it has other fields."""

    def _native(self, names: Sequence[str]) -> _core.Reader | None:
        return self._store._native(names)

    def _fill(self, rows: Rows, out: Batch) -> None:
        self._store._fill_columns(rows, out, [self._name])

    @property
    def _kind(self) -> str:
        return self._store.fields[self._name].kind

    def _one(self, row: int) -> Any:
        array = self.views(np.array([row]))[0]
        if self._kind == "array":
            return array[()]  # a number where a record is one
        return array.tobytes() if self._kind == "bytes" else array.tobytes().decode()

    def _several(self, rows: ArrayLike) -> Any:
        values = self.take(rows)[self._name]
        if self._kind == "array":
            return values
        assert isinstance(values, Ragged)
        data, ends = values.values.tobytes(), values.offsets.tolist()
        parts = [data[a:b] for a, b in pairwise(ends)]
        return parts if self._kind == "bytes" else [part.decode() for part in parts]

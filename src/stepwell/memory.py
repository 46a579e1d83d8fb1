"""Arrays in memory as a source, for views that keep some of their own."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.source import Schema, Source
from stepwell.views import field_of


class Arrays(Source):
    """Arrays, a field each. What people have in memory is a `stores.ArraySource`."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = dict(arrays)

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values())))

    @property
    def schema(self) -> Schema:
        return {name: field_of(array) for name, array in self._arrays.items()}

    def _native(self, names: Sequence[str]) -> _core.Reader | None:
        tables = [(row_bytes(self._arrays[n]), self.schema[n].row_bytes) for n in names]
        return _core.join_reader([_core.table_reader(rows, [(0, n)]) for rows, n in tables])

    @classmethod
    def zeros(cls, schema: Schema, count: int) -> "Arrays":
        """As many rows of zeros, which take the memory of one."""
        rows = {name: np.zeros(field.shape, field.dtype) for name, field in schema.items()}
        return cls({name: np.broadcast_to(row, (count, *row.shape)) for name, row in rows.items()})


def row_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """A (rows, bytes of a row) look at the array's memory."""
    rows = len(array)
    row_bytes = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
    if rows == 0 or row_bytes == 0:
        return np.empty((max(rows, 1), row_bytes), np.uint8)[:rows]  # an empty array has no strides
    flat = array[:, None] if array.ndim == 1 else array.reshape(rows, -1)
    return flat.view(np.uint8)

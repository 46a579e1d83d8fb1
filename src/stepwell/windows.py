"""Sequences of neighbouring rows inside runs, whole or filled up with zeros."""

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import SchemaError
from stepwell.memory import Arrays
from stepwell.source import Batch, Field, Rows, Schema, Source
from stepwell.views import Beside, Chosen, Concat, Translated, first_rows


class Windows(Translated):
    """Sequences of `length` neighbouring rows that never cross the end of a run.

    With `pad` one begins at every `stride` rows of a run, however few are left of it; zeros follow
    them, and the field `mask` is True for what is a row.
    """

    def __init__(self, base: Source, length: int, stride: int = 1, pad: bool = False) -> None:
        for name, number in (("length", length), ("stride", stride)):
            if not 1 <= operator.index(number) < 2**63:
                raise ValueError(f"{name} must be at least 1 and below 2**63, got {number}")
        for name, field in base.schema.items():
            if field.ragged:
                raise SchemaError(f"windows need rows of fixed shape, {name!r} is {field}")
        self._given, self._known = base, len(base)
        self._length = length
        self._stride = stride
        self._pad = bool(pad)
        if pad:
            _check_room(base, length)
            base = _Padded(base, length - 1)
        starts, counts = base._runs()
        self._fits = np.maximum(counts - length, -1) // stride + 1
        self._firsts = _core.range_map(starts, self._fits, stride)
        super().__init__(base, _core.range_map(starts, self._fits, stride, length))
        self._schema = {
            name: Field(field.dtype, (length, *field.shape)) for name, field in base.schema.items()
        }

    def __reduce__(self) -> tuple[Any, ...]:
        base = first_rows(self._given, self._known)
        return Windows, (base, self._length, self._stride, self._pad)

    @property
    def schema(self) -> Schema:
        return self._schema

    def _fingerprint_of(self, length: int) -> str:
        return f"{super()._fingerprint_of(length)}-{self._length}/{self._stride}"

    def _first_rows(self, rows: Rows) -> Rows:
        return self._firsts.apply(rows)

    def _runs(self) -> tuple[Rows, Rows]:
        return np.cumsum(self._fits) - self._fits, self._fits

    def _cuts(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        return Source._cuts(self)

    def _check_open(self) -> None:
        self._given._check_open()

    def _fill(self, rows: Rows, out: Batch) -> None:
        flat = {
            name: out[name].reshape(len(rows) * self._length, *field.shape)
            for name, field in self._base.schema.items()
        }
        self._base.take(self._map.apply(rows), flat)


def _check_room(base: Source, length: int) -> None:
    """Raise `ValueError` where padding needs more rows, or a window more bytes, than can be
    counted."""
    rows = len(base) + len(base._runs()[0]) * length
    bytes_ = length * max((field.row_bytes for field in base.schema.values()), default=0)
    if max(rows, bytes_) >= 2**63:
        raise ValueError(
            f"length: expected less than 2**63 rows and bytes with the padding, got {length}"
        )


class _Padded(Chosen):
    """Every run with rows of zeros behind it, and a mask of those that are its own."""

    def __init__(self, base: Source, count: int) -> None:
        if "mask" in base.schema:
            raise SchemaError(
                "field 'mask': expected another name, pad=True adds a field of it; columns({…}) "
                "gives fields other names"
            )
        starts, counts = base._runs()
        mask = Arrays({"mask": np.broadcast_to(np.True_, len(base))})
        rows = Beside(base.select(slice(len(base))), mask)  # as many, though the base may grow
        both = Concat((Arrays.zeros(rows.schema, count), rows))
        begins = np.stack([starts + count, np.zeros_like(starts)], axis=1)
        self._counts = counts + np.where(counts > 0, count, 0)
        lengths = np.stack([counts, self._counts - counts], axis=1)
        super().__init__(both, _core.range_map(begins.reshape(-1), lengths.reshape(-1)))

    def _runs(self) -> tuple[Rows, Rows]:
        return np.cumsum(self._counts) - self._counts, self._counts

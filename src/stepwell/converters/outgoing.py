"""The records of a store as other formats want them: in order, a few MiB at a time, and under
the names that they had where they came from.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from stepwell.converters.incoming import BATCH_BYTES, Column, files_sum, size_of
from stepwell.errors import SchemaError
from stepwell.source import Batch, Field, Ragged
from stepwell.stores import RecordReader

__all__ = ["Outgoing", "Records"]

_OPAQUE: dict[str, type[str] | type[bytes]] = {"str": str, "bytes": bytes}
_MOST_RAGGED = 1 << 16
_MOST_PACKED = 1 << 10
"""Records of free length that are read at once. Only when they are read is it known how large
packed ones are, so these are read in smaller numbers."""


class Records(Protocol):
    """What a file of arrays can be made of."""

    @property
    def total(self) -> int: ...
    @property
    def columns(self) -> dict[str, Column]: ...
    def only(self, name: str) -> "Records": ...
    def schema(self, name: str) -> Field: ...
    def describe(self, name: str) -> str: ...
    def batches(self, first: int) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class Outgoing:
    """Some fields of a store, all records."""

    store: RecordReader
    path: Path
    names: dict[str, str]
    """The field for each name in the other format."""

    @classmethod
    def of(cls, store: RecordReader, path: Path, field: str | None) -> Self:
        """All fields, or one. Raises `SchemaError` when there is no such field."""
        known = store.attributes.get("names")
        originals = known if isinstance(known, dict) else {}
        names = {str(originals.get(name, name)): name for name in store.schema}
        if len(names) < len(store.schema):  # an attribute of the user's own
            names = {name: name for name in store.schema}
        if field is not None:
            name = names.get(field, field)
            if name not in store.schema:
                raise SchemaError(f"{path}: expected a field of {', '.join(names)}, got {field!r}")
            names = {next(k for k, v in names.items() if v == name): name}
        return cls(store, path, names)

    def only(self, name: str) -> "Outgoing":
        """The same records with one field."""
        return Outgoing(self.store, self.path, {name: self.names[name]})

    @property
    def total(self) -> int:
        return len(self.store)

    @property
    def columns(self) -> dict[str, Column]:
        made = {}
        for name, field in self.names.items():
            record = self.store.schema[field]
            opaque = _OPAQUE.get(record.kind or "")
            made[name] = Column(opaque or record.dtype, record.shape, record.ragged)
        return made

    def schema(self, name: str) -> Field:
        return self.store.schema[self.names[name]]

    def describe(self, name: str) -> str:
        dtype = self.columns[name].dtype
        return dtype.__name__ if isinstance(dtype, type) else str(self.schema(name))

    def batches(self, first: int, most_bytes: int | None = None) -> Iterator[Batch]:
        """The records from `first` on, a few MiB or `most_bytes` at a time, at least one."""
        limit = min(BATCH_BYTES, most_bytes or BATCH_BYTES)
        view = self.store.columns(list(self.names.values()))
        ragged = [name for name in self.names.values() if self.store.schema[name].ragged]
        packed = any(self.store.schema[name].compress != "none" for name in ragged)
        fixed = sum(field.row_bytes for field in view.schema.values() if not field.ragged)
        most = max(1, limit // (fixed + 8 * len(ragged)))
        if ragged:
            most = min(most, _MOST_PACKED if packed else _MOST_RAGGED)
        unpacked = 1.0  # how much larger records are than what is stored of them
        while first < self.total:
            end = min(first + most, self.total)
            if ragged:
                stored = self.store.places(np.arange(first, end), ragged)["length"]
                ends = np.cumsum(stored.sum(axis=0, dtype=np.int64) * unpacked + fixed)
                fits = max(1, int(np.searchsorted(ends, limit, side="right")))
                end = min(end, first + fits)
            taken = view.take(np.arange(first, end))
            batch = {name: _from_zero(taken[field]) for name, field in self.names.items()}
            yield batch
            if packed:
                held = int(stored[:, : end - first].sum(dtype=np.int64))
                unpacked = max(1.0, size_of(batch) / max(1, held))
            first = end

    def identity(self) -> dict[str, Any]:
        """What tells these records from others, or from what they were before a change."""
        chunks = sorted((self.path / "chunk").glob("*.zr"))
        return {
            "source": os.path.realpath(self.path),
            "records": self.total,
            "fingerprint": self.store.fingerprint,
            "files": files_sum((chunk.name, chunk.stat()) for chunk in chunks),
            "fields": list(self.names.values()),
        }


def _from_zero(values: Any) -> Any:
    """A ragged field whose items begin with those of the first record; text and bytes as arrays."""
    if not isinstance(values, Ragged):
        return values
    items = values.values[values.offsets[0] : values.offsets[-1]]
    return Ragged(items, values.offsets - values.offsets[0])

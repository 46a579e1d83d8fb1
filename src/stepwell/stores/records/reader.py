"""A record store to read: records of several fields, which others may change meanwhile."""

import copy
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell import _core
from stepwell.files.regular import bytes_on_disk
from stepwell.source import Batch, Ragged, Rows, Schema, as_rows
from stepwell.store import Progress, Report, Store
from stepwell.stores.records.layout import (
    CHUNKS,
    FRAME_BYTES,
    JOURNAL,
    LOCK,
    META,
    Meta,
    chunk_name,
    chunk_numbers,
    fit_for_columns,
    is_drawn,
)
from stepwell.stores.records.salvage import salvage
from stepwell.stores.records.tables import table_bytes
from stepwell.stores.records.verify import verified
from stepwell.stores.records.view import View, look
from stepwell.views import Column

_ROWS = 1 << 16
_WORTH_A_REBALANCE = 1 << 20


class RecordReader(Store):
    """The records of a store, in any order, while one process changes them.

        store = RecordReader.open("images")
        store[7], store["label"][2:5], store.take(rows)

    Stored bytes are checked against their CRC32C whenever they are read, unless `checksums` is
    False. A reader keeps the length it was opened with until `refresh`; whichever commit a record
    comes from, all of its fields are of the same one. After a rebalance it goes on with what it
    has mapped, and raises `BusyError` for a record that it has not: `refresh` then.
    """

    kind = "records"
    noun = "a record store"

    def __init__(self, path: str | os.PathLike[str], *, checksums: bool = True) -> None:
        self._begin(Path(path).absolute(), checksums, None)  # wherever the process goes later

    def _begin(self, path: Path, checksums: bool, at: Meta | None) -> None:
        self._path, self._checksums = path, checksums
        self._see(look(path, checksums=checksums, at=at))

    def _see(self, view: View) -> None:
        self._seen: View | None = view
        self._meta = view.meta  # stays known when it is closed

    @classmethod
    def recognizes(cls, path: Path) -> bool:
        # Many things have a meta.json; one with chunks alone may be as loaderx draws it.
        ours = any(os.path.lexists(path / other) for other in (JOURNAL, LOCK))
        if not os.path.lexists(path / META) or not (ours or os.path.lexists(path / CHUNKS)):
            return False
        return ours or not is_drawn(path)

    salvage = staticmethod(salvage)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self._path, "checksums": self._checksums, "at": self._meta}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin(**state)

    # Properties.

    def __len__(self) -> int:
        return self._meta.length

    @property
    def path(self) -> str:
        return str(self._path)

    @property
    def schema(self) -> Schema:
        return self._meta.fields

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the store."""
        return copy.deepcopy(self._meta.attributes)

    @overload  # type: ignore[override]
    def __getitem__(self, key: str) -> "RecordColumn": ...
    @overload
    def __getitem__(self, key: Any) -> Batch: ...
    def __getitem__(self, key: Any) -> "RecordColumn | Batch":
        """`store["image"]` is a field, `store[i]` a record, `store[a:b]` a batch."""
        return RecordColumn(self, key) if isinstance(key, str) else super().__getitem__(key)

    def present(self, rows: ArrayLike) -> dict[str, NDArray[np.bool]]:
        """Which of these records have each field; one that is missing reads as zeros or empty."""
        view, names = self._view, list(self.schema)
        found = view.entries(as_rows(rows, len(self)), names)
        return {name: view.present(name, each) for name, each in zip(names, found, strict=True)}

    def refresh(self) -> bool:
        before = self._meta
        self._see(look(self._path, checksums=self._checksums, old=self._view))
        self._forget()
        now = self._meta
        return (before.moment, before.attributes) != (now.moment, now.attributes)

    def close(self) -> None:
        super().close()
        self._seen = None

    def _facts(self) -> dict[str, Any]:
        meta, fits = self._meta, fit_for_columns(self.schema)
        stored = live = after = 0
        for name in self.schema:
            framed, kept = self._counted(name)
            stored += kept
            live += framed + table_bytes(meta, name, len(self))
            if name in meta.columns or name not in fits:
                after += framed + table_bytes(meta, name, len(self))
            else:
                after += table_bytes(replace(meta, columns=fits), name, len(self))
        chunks = [self._path / chunk_name(number) for number in chunk_numbers(self._path)]
        tables = [self._path / file for name in self.schema for file in meta.table_names(name)]
        on_disk = bytes_on_disk(*chunks, *tables)
        saves = max(on_disk - after, 0)
        pays = saves >= _WORTH_A_REBALANCE and saves >= on_disk // 5
        advice = f"`stepwell records rebalance` gives back {saves:,} of {on_disk:,} bytes"
        return {
            "commits": self._meta.commit,
            "generation": self._meta.generation,
            "chunks": len(chunks),
            "chunk_records": self._meta.chunk_records,
            "codecs": {name: field.compress for name, field in self.schema.items()},
            "optional": [name for name, field in self.schema.items() if field.optional],
            "columns": [name for name in self.schema if name in meta.columns],
            "stored_bytes": stored,
            "overhead_bytes": live - stored,
            "dead_bytes": max(on_disk - live, 0),
            "data_bytes": on_disk,
            "utilization": round(min(stored / on_disk, 1.0), 4) if on_disk else 1.0,
            **({"advice": advice} if pays else {}),
            "attributes": self.attributes,
        }

    def _counted(self, name: str) -> tuple[int, int]:
        """Bytes of the frames of a field, which a column has none of, and of what is in them."""
        field = self.schema[name]
        if name in self._meta.columns and not field.optional:
            return 0, len(self) * field.row_bytes
        framed = stored = 0
        for begin in range(0, len(self), _ROWS):
            rows = np.arange(begin, min(begin + _ROWS, len(self)), dtype=np.int64)
            if name in self._meta.columns:
                stored += int(self._view.stored_bytes(name, rows).sum())
                continue
            (places,) = self._view.entries(rows, [name])
            lengths = places["length"][places["offset"] > 0].astype(np.int64)
            stored += int(lengths.sum())
            framed += int(((lengths + 7) // 8 * 8 + FRAME_BYTES).sum())
        return framed, stored

    def _verified(self, quick: bool, progress: Progress) -> Report:
        return verified(self._path, quick=quick, progress=progress)

    # A source.

    def _native(self, names: Sequence[str]) -> _core.Reader | None:
        view = self._view
        if any(self.schema[name].ragged for name in names):
            return None
        return _core.record_reader(view.records, [view.meta.numbers[name] for name in names])

    def _fill_columns(self, rows: Rows, out: Batch, names: Sequence[str]) -> None:
        view = self._view
        view.fill(rows, view.entries(rows, names), out, names)

    def _sizes(self, rows: Rows, names: Sequence[str]) -> NDArray[np.int64]:
        sizes = np.zeros(len(rows), np.int64)
        for name in names:
            sizes += self._view.stored_bytes(name, rows)
        return sizes

    # Below this line: for this package.

    @property
    def _view(self) -> View:
        view = self._seen
        if view is None:
            self._check_open()
        assert view is not None
        return view


class RecordColumn(Column):
    """A field of a record store, which feels like an array.

    Frames that are stored as they are ("none") are not copied for `views`: such arrays are the
    file's own memory, read-only, and stay valid for as long as they are kept, whatever happens to
    the store. Fields of up to 64 bytes are columns, which change in place: they are copied.
    """

    _base: RecordReader

    def views(self, rows: ArrayLike) -> list[NDArray[Any]]:
        """Records one by one as arrays: not copied where they are stored as they are, and checked
        all the same."""
        numbers = as_rows(rows, len(self))
        found = self._mapped(numbers)
        if found is not None:
            return found
        values = self.take(numbers)[self._name]
        if isinstance(values, Ragged):
            return Ragged(values.values, values.offsets).to_list()
        return [values[i, ...] for i in range(len(values))]

    def _mapped(self, rows: Rows) -> list[NDArray[Any]] | None:
        """Records as they lie in the files; None if some cannot be had so."""
        view, field = self._base._view, self.field
        if field.compress != "none" or self._name in view.meta.columns:
            return None
        (places,) = view.entries(rows, [self._name])
        if not places["offset"].all():
            return None
        for problem in view.problems(self._name, rows, places, 1):
            raise problem
        found = []
        for offset, chunk, length in places.tolist():
            memory = view.chunks.memory(chunk, offset + length)
            if memory[offset - 2 : offset].any():  # the frame is marked as packed, after all
                return None
            array = memory[offset : offset + length].view(field.dtype)
            found.append(array.reshape((-1, *field.shape) if field.ragged else field.shape))
        return found

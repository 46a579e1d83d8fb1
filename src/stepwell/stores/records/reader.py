"""A record store to read: records of several fields, which others may change meanwhile."""

import copy
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.files.regular import bytes_on_disk
from stepwell.files.remote import BucketOptions, is_remote
from stepwell.lazy import lazy
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
from stepwell.stores.records.remote import RemoteRecords
from stepwell.stores.records.salvage import salvage
from stepwell.stores.records.tables import table_bytes
from stepwell.stores.records.verify import verified
from stepwell.stores.records.view import View, look
from stepwell.units import Units
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

    Of a URL (extra `remote`) tables are fetched when it is opened, and payloads when they are
    needed; options are those of a bucket, as `StepReader` has them.
    """

    kind = "records"
    noun = "a record store"

    def __init__(
        self, path: Any, *, checksums: bool = True, **bucket: Unpack[BucketOptions]
    ) -> None:
        if not is_remote(path):
            path = Path(path).absolute()  # wherever the process goes later
            if bucket:
                raise TypeError(f"{', '.join(bucket)}: only for what is in a bucket")
        self._begin(path, checksums, None, dict(bucket))

    def _begin(
        self,
        path: Any,
        checksums: bool,
        at: Meta | None,
        bucket: dict[str, Any],
        version: str = "",
    ) -> None:
        self._where, self._bucket, self._checksums = path, bucket, checksums
        self._far = RemoteRecords(path, bucket) if is_remote(path) else None
        self._path: Path = path if self._far is None else self._far.root
        with self._translated():
            self._see(look(self._path, checksums=checksums, at=at))
        if self._far is not None:
            self._far.mirror.check_version(version)

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
        version = "" if self._far is None else self._far.mirror.version
        kept = {"checksums": self._checksums, "bucket": self._bucket, "version": version}
        return {"path": self._where, "at": self._meta, **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin(**state)

    # Properties.

    def __len__(self) -> int:
        return self._meta.length

    @property
    def path(self) -> str:
        return str(self._path) if self._far is None else self._far.mirror.url

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
        if self._far is None:
            self._see(look(self._path, checksums=self._checksums, old=self._view))
        elif self._far.mirror.is_current():
            return False
        else:
            fresh = self._far.again()
            with fresh.mirror.translated():
                view = look(fresh.root, checksums=self._checksums)
            if view.meta.store_id != before.store_id:
                raise FormatError("another store is here now; open it again", path=self.path)
            self._far, self._path = fresh, fresh.root
            self._see(view)
        self._forget("_mirrored")
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
        chunks = [chunk_name(number) for number in chunk_numbers(self._path)]
        tables = [file for name in self.schema for file in meta.table_names(name)]
        if self._far is None:
            on_disk = bytes_on_disk(*(self._path / file for file in (*chunks, *tables)))
        else:
            on_disk = self._far.bytes_of([*chunks, *tables])
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
        if self._far is None:
            return verified(self._path, quick=quick, progress=progress)
        with self._translated():
            report = verified(self._path, quick=quick, progress=progress, far=self._far)
        for problem in report.problems:
            self._far.mirror.translate(problem)
        return replace(report, path=self.path)

    def _stored_bytes(self) -> int:
        return super()._stored_bytes() if self._far is None else self._far.mirror.stored_bytes

    # A source.

    def _native(self, names: Sequence[str]) -> _core.Reader | None:
        view = self._view
        if self._far is not None or any(self.schema[name].ragged for name in names):
            return None
        return _core.record_reader(view.records, [view.meta.numbers[name] for name in names])

    def _fill_columns(self, rows: Rows, out: Batch, names: Sequence[str]) -> None:
        view = self._view
        found = view.entries(rows, names)
        if self._far is None:
            view.fill(rows, found, out, names)
        else:
            self._far.reading(view, names, found, lambda: view.fill(rows, found, out, names))

    def _units(self) -> Units | None:
        return self._mirrored

    @lazy
    def _mirrored(self) -> Units | None:
        return None if self._far is None else self._far.units(self._view)

    def _sizes(self, rows: Rows, names: Sequence[str]) -> NDArray[np.int64]:
        sizes = np.zeros(len(rows), np.int64)
        for name in names:
            sizes += self._view.stored_bytes(name, rows)
        return sizes

    # Below this line: for this package.

    def _translated(self) -> AbstractContextManager[None]:
        """Errors of the block name what is in the bucket."""
        return nullcontext() if self._far is None else self._far.mirror.translated()

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
        if self._base._far is not None:  # its memory is for others, later
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

"""A record store: records of several fields that can be appended to, changed and deleted."""

import copy
import operator
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell import _core
from stepwell.errors import BusyError, ChecksumError, FormatError
from stepwell.lazy import lazy
from stepwell.source import Batch, Ragged, Rows, Schema, Source, as_rows
from stepwell.stores.records.column import RecordColumn
from stepwell.stores.records.layout import CHUNKS, ENTRY, FieldLike, RecordField, as_fields
from stepwell.stores.records.meta import Meta
from stepwell.stores.records.rebalance import rebalance
from stepwell.stores.records.salvage import SalvageReport, salvage
from stepwell.stores.records.values import as_values
from stepwell.stores.records.verify import find_problems
from stepwell.stores.records.view import View, look, look_at, rebalanced
from stepwell.stores.records.writer import GROW_BYTES, RecordWriter, create_store

__all__ = ["RecordStore"]

Mode = Literal["r", "a"]
P = ParamSpec("P")
R = TypeVar("R")
Progress = Callable[[int, int], None]


def _in_turn(
    method: Callable[Concatenate["RecordStore", P], R],
) -> Callable[Concatenate["RecordStore", P], R]:
    """One thread of the process at a time changes a store."""

    @wraps(method)
    def alone(self: "RecordStore", /, *args: P.args, **options: P.kwargs) -> R:
        with self._alone():
            return method(self, *args, **options)

    return alone


class RecordStore(Source):
    """Records of several fields, in any order, changed while others read.

        store = RecordStore.create("images", {"image": ("u1", (28, 28)), "label": "<i8"})
        store.append({"image": images, "label": labels})
        store.commit()                                  there for others, and after a crash
        store.update([7], {"label": [3]}); store.delete([0])

    Opened with mode "a" it may be changed, by one process at a time; it sees its own changes,
    others see commits. Leaving a `with` block commits, unless by an exception. **Deleting record i
    puts the last record in its place**: the store stays without gaps, and numbers change.

    Stored bytes are checked against their CRC32C whenever they are read, unless `checksums` is
    False. A reader keeps the length it was opened with until `refresh`; whichever commit a record
    comes from, all of its fields are of the same one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: Mode = "r",
        *,
        checksums: bool = True,
        writers: int | None = None,
        grow_bytes: int = GROW_BYTES,
    ) -> None:
        if mode not in ("r", "a"):
            raise ValueError(f"mode: expected 'r' or 'a', got {mode!r}")
        if grow_bytes < 1:
            raise ValueError(f"grow_bytes: expected at least 1, got {grow_bytes}")
        self._path = Path(path).absolute()  # wherever the process goes later
        self._checksums = checksums
        self._writer: RecordWriter | None = None
        if mode == "a":
            self._writer = RecordWriter(self._path, writers=writers, grow_bytes=grow_bytes)
        self._turn = threading.RLock()
        self._seen: View | None = None
        self._before: View | None = None
        try:
            _ = self._view
        except BaseException:
            if self._writer is not None:
                self._writer.forget()
            raise

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        fields: Mapping[str, FieldLike],
        *,
        chunk_records: int = 8192,
        attributes: dict[str, Any] | None = None,
        writers: int | None = None,
        grow_bytes: int = GROW_BYTES,
    ) -> Self:
        """Begin a store, open for writing. `path` must not exist, or be an empty directory."""
        root, made = Path(path).absolute(), as_fields(fields)
        chunk_records = _count("chunk_records", chunk_records)
        create_store(root, Meta(made, chunk_records).with_attributes(attributes or {}))
        return cls(root, "a", writers=writers, grow_bytes=grow_bytes)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: Mode = "r",
        *,
        checksums: bool = True,
        writers: int | None = None,
        grow_bytes: int = GROW_BYTES,
    ) -> Self:
        """Open a store to read it, or with mode "a" to change it.

        Raises `BusyError` when another process changes it, `FormatError` when it is damaged.
        """
        return cls(path, mode, checksums=checksums, writers=writers, grow_bytes=grow_bytes)

    @staticmethod
    def salvage(
        path: str | os.PathLike[str],
        out: str | os.PathLike[str],
        *,
        fields: Mapping[str, FieldLike] | None = None,
        on_progress: Progress | None = None,
    ) -> SalvageReport:
        """Write what can be found in the chunks of a damaged store to a new one.

        `fields` are needed where meta.json is lost.
        """
        known = None if fields is None else as_fields(fields)
        return salvage(Path(path), Path(out), known, on_progress)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._path, self._checksums, self._view.commit)

    # What it is.

    def __len__(self) -> int:
        return self._view.length if self._writer is None else self._writer.staging.length

    @property
    def path(self) -> Path:
        return self._path

    @property
    def fields(self) -> dict[str, RecordField]:
        """The fields, and how they are packed."""
        return dict(self._view.meta.fields)

    @lazy
    def schema(self) -> Schema:
        return {name: field.field for name, field in self._view.meta.fields.items()}

    @property
    def attributes(self) -> dict[str, Any]:
        """What was kept with the store."""
        found = self._view.meta.attributes if self._writer is None else self._writer.attributes
        return copy.deepcopy(found)

    @property
    def writable(self) -> bool:
        return self._writer is not None

    @property
    def stored_bytes(self) -> int:
        """Bytes of all live payloads, as they are stored."""
        total = 0
        for _, places in self._all_places():
            total += int(places["length"].sum(dtype=np.int64))
        return total

    @property
    def chunk_files(self) -> list[Path]:
        return list((self._path / CHUNKS).glob("*.zr"))

    @property
    def file_bytes(self) -> int:
        """Bytes of the chunk files; while a writer is at work they are longer than what is in
        them."""
        return sum(file.stat().st_size for file in self.chunk_files)

    @property
    def utilization(self) -> float:
        """Live payload bytes over the bytes of the chunk files: what a rebalance could bring."""
        files = self.file_bytes
        return self.stored_bytes / files if files else 1.0

    @property
    def generation(self) -> int:
        """How often the store was rebalanced."""
        return self._view.meta.generation

    @overload  # type: ignore[override]
    def __getitem__(self, key: str) -> RecordColumn: ...
    @overload
    def __getitem__(self, key: Any) -> Batch: ...
    def __getitem__(self, key: Any) -> RecordColumn | Batch:
        """`store["image"]` is a field, `store[i]` a record, `store[a:b]` a batch."""
        if isinstance(key, str):
            if key not in self.schema:
                raise KeyError(f"no field {key!r}; there are {list(self.schema)}")
            return RecordColumn(self, key)
        return super().__getitem__(key)

    def present(self, rows: ArrayLike) -> dict[str, NDArray[np.bool]]:
        """Which of these records have each field; one that is missing reads as zeros or empty."""
        numbers = self._rows(rows)
        places = self.places(numbers, list(self.schema))
        return {name: places[i]["offset"] > 0 for i, name in enumerate(self.schema)}

    # Changes.

    @_in_turn
    def append(self, batch: Mapping[str, Any]) -> range:
        """Add records: a dict of arrays or lists of equal length. Returns their numbers.

        Fields that are not given, and None in a list, are missing. All of the batch is added, or
        nothing.
        """
        writer = self._writing()
        rows = writer.append(as_values(batch, writer.meta.fields))
        self._forget_readers()
        return rows

    @_in_turn
    def update(self, rows: ArrayLike, batch: Mapping[str, Any]) -> None:
        """Replace fields of these records, each of which may be named once."""
        writer = self._writing()
        numbers = self._distinct(rows)
        values = as_values(batch, writer.meta.fields)
        count = next(iter(values.values())).count
        if count != len(numbers):
            raise ValueError(f"expected values for {len(numbers)} records, got {count}")
        writer.update(numbers, values)
        self._forget_readers()

    @_in_turn
    def delete(self, rows: ArrayLike) -> None:
        """Remove these records; from the highest on, the last record takes the place of each."""
        writer = self._writing()
        writer.delete(self._distinct(rows))
        self._forget_readers()

    @_in_turn
    def set_attributes(self, attributes: dict[str, Any]) -> None:
        """Keep something with the store, from the next commit on; anything JSON can hold."""
        self._writing().set_attributes(attributes)

    @_in_turn
    def commit(self) -> None:
        """Show the changes to others; from here on they survive a crash or a power cut."""
        self._writing().commit()
        self._look_again()

    @_in_turn
    def abort(self) -> None:
        """Forget the changes since the last commit."""
        self._writing().abort()
        self._look_again()

    def refresh(self) -> int:
        """See what has been committed since; returns how many records more there are."""
        if self._writer is not None:
            return 0
        before = len(self)
        self._look_again()
        self.__dict__.pop("schema", None)
        return len(self) - before

    @_in_turn
    def rebalance(
        self, *, chunk_records: int | None = None, on_progress: Progress | None = None
    ) -> None:
        """Write all live records anew, in order, and remove everything else.

        Commits first. Killed at any moment, the store is as it was before, or rebalanced. Readers
        go on with what they have until they refresh.
        """
        writer = self._writing()
        if chunk_records is not None:
            chunk_records = _count("chunk_records", chunk_records)
        self.commit()
        rebalance(writer, self._view.records, chunk_records, on_progress)
        self._look_again()

    def verify(self, *, on_progress: Progress | None = None) -> list[Any]:
        """Check every table, frame and payload; return what is wrong."""
        return find_problems(self._path, self._view, on_progress)

    @_in_turn
    def close(self) -> None:
        """Commit the changes, if there are any, and let others write."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            try:
                self._look_again()
            finally:
                writer.close()

    def __exit__(self, *exc: object) -> None:
        if exc[0] is not None and self._writer is not None:
            writer, self._writer = self._writer, None
            writer.forget()
            self._look_again()
        self.close()

    # A source.

    def take(self, rows: ArrayLike, out: Mapping[str, NDArray[Any]] | None = None) -> Batch:
        """Return the given records in the given order; see `Source.take`."""
        try:
            return super().take(rows, out)
        except BusyError:  # a writer was killed inside a commit
            length = len(self)
            self._look_again()
            if len(self) < length:
                raise BusyError(f"{self._path} has become shorter; refresh()") from None
            return super().take(rows, out)
        except FormatError:
            if rebalanced(self._path, self._view):
                raise BusyError(f"{self._path} was rebalanced meanwhile; refresh()") from None
            raise

    def _native(self, names: Sequence[str]) -> _core.Reader | None:
        schema = self.schema
        # A writer's own view changes with every commit, which other threads may make.
        if any(schema[name].ragged for name in names) or self._writer is not None:
            return None
        return _core.record_reader(self._view.records, [list(schema).index(name) for name in names])

    def _fill(self, rows: Rows, out: Batch) -> None:
        self._fill_columns(rows, out, list(self.schema))

    def _fill_columns(self, rows: Rows, out: Batch, names: Sequence[str]) -> None:
        if self._writer is None:
            return self._read_columns(rows, out, names)
        with self._alone():  # from what another thread does to the store
            return self._read_columns(rows, out, names)

    def _read_columns(self, rows: Rows, out: Batch, names: Sequence[str]) -> None:
        places = self.places(rows, names)
        records = self._view.records
        for i, name in enumerate(names):
            number, field = list(self.schema).index(name), self.schema[name]
            entries = places[i].view(np.uint8)
            if field.ragged:
                offsets, data = records.read_ragged(number, rows, entries)
                values = data.view(field.dtype).reshape(-1, *field.shape)
                out[name] = Ragged(values, offsets.view(np.int64), field.kind)
            else:
                flat = out[name].reshape(-1).view(np.uint8) if len(rows) else np.empty(0, np.uint8)
                records.read_fixed(number, rows, entries, flat)

    # Below this line: for this package.

    def _sizes(self, rows: Rows, names: Sequence[str]) -> NDArray[np.int64] | None:
        return self.places(rows, names)["length"].sum(axis=0, dtype=np.int64)  # type: ignore[no-any-return]

    def places(self, rows: Rows, names: Sequence[str]) -> NDArray[Any]:
        """The entries of these rows, an array for each field."""
        numbers = [list(self.schema).index(name) for name in names]
        if self._writer is not None:
            with self._alone():
                if self._has_changes:
                    return self._changed_places(rows, names, numbers)
                found = self._view.records.places(rows, numbers)
        else:
            found = self._view.records.places(rows, numbers)
        return found.view(ENTRY).reshape(len(names), len(rows))

    def _changed_places(self, rows: Rows, names: Sequence[str], numbers: list[int]) -> NDArray[Any]:
        assert self._writer is not None
        staging = self._writer.staging
        found = np.zeros((len(names), len(rows) * ENTRY.itemsize), np.uint8)
        inside = rows < min(staging.base, self._view.length)
        there = self._view.records.places(np.ascontiguousarray(rows[inside]), numbers)
        entries = found.view(ENTRY)
        entries[:, inside] = there.view(ENTRY).reshape(len(names), -1)
        for i, number in enumerate(numbers):
            staging.overlay(number, rows, found[i])
        return entries

    def raw_views(self, name: str, rows: Rows) -> list[NDArray[Any]] | None:
        """Records as they lie in the files, checked and not copied; None if some cannot be."""
        field = self._view.meta.fields[name]
        places = self.places(rows, [name])[0]
        if field.compress != "raw" or not places["offset"].all() or self._has_changes:
            return None
        number = list(self.schema).index(name)
        for message, path, offset, is_sum in self._view.records.find_problems(
            number, rows, places.view(np.uint8), 1
        ):
            raise (ChecksumError if is_sum else FormatError)(message, path=path, offset=offset)
        views = []
        for offset, chunk, length in places.tolist():
            memory = self._view.chunks.memory(chunk, offset + length)
            if memory[offset - 2 : offset].any():  # the frame says that it is packed, after all
                return None
            array = memory[offset : offset + length].view(field.dtype)
            views.append(array.reshape((-1, *field.shape) if field.ragged else field.shape))
        return views

    def _alone(self) -> AbstractContextManager[object]:
        """One thread at a time. A forked child may not write, and must not wait: the thread that
        had the lock may not exist there."""
        writing = self._writer is None or self._writer.held
        return self._turn if writing else nullcontext()

    @property
    def _has_changes(self) -> bool:
        return self._writer is not None and self._writer.staging.touched

    def _all_places(self) -> Any:
        for begin in range(0, len(self), 1 << 16):
            rows = np.arange(begin, min(begin + (1 << 16), len(self)), dtype=np.int64)
            for name in self.schema:
                yield name, self.places(rows, [name])[0]

    def _rows(self, rows: ArrayLike) -> Rows:
        numbers = as_rows(rows, len(self))
        _core.check_rows(numbers, len(self))
        return numbers

    def _distinct(self, rows: ArrayLike) -> Rows:
        numbers = self._rows(rows)
        found, counts = np.unique(numbers, return_counts=True)
        if len(found) < len(numbers):
            raise ValueError(f"record {found[counts > 1][0]} is named more than once")
        return numbers

    def _writing(self) -> RecordWriter:
        if self._writer is None:
            raise ValueError(f'{self._path} is open for reading; open it with mode="a"')
        return self._writer

    def _forget_readers(self) -> None:
        for made in ("_reader", "_layouts"):
            self.__dict__.pop(made, None)

    @property
    def _view(self) -> View:
        """What is committed, as far as this store has looked."""
        view, writer = self._seen, self._writer
        if view is None and writer is not None and writer.held:
            with self._alone():  # what another thread commits meanwhile must not be overlooked
                view = look_at(writer.meta, self._path, self._checksums, self._before)
                self._seen = view
        elif view is None:
            view = self._seen = look(self._path, checksums=self._checksums, old=self._before)
        return view

    def _look_again(self) -> None:
        """The next question is answered by what is committed then."""
        self._before, self._seen = self._seen or self._before, None
        self._forget_readers()


def _count(name: str, number: int) -> int:
    if not 1 <= operator.index(number) < 1 << 32:
        raise ValueError(f"{name}: expected 1 to 2**32 - 1, got {number}")
    return operator.index(number)


def _rebuild(cls: type[RecordStore], path: Path, checksums: bool, commit: int) -> RecordStore:
    store = cls(path, checksums=checksums)
    if store._view.commit < commit:
        raise FormatError(
            f"expected at least {commit} commits, got {store._view.commit}", path=str(path)
        )
    return store

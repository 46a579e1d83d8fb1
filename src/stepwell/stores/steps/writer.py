"""Rows appended to a step dataset: crash-safe, and at the cost of the new rows alone.

A commit is: rows written behind the last committed one and synced; one SQLite transaction,
which is what counts; then the array's header and the manifest, which only follow. Whoever
opens the dataset next for writing cuts what was not committed and mends what did not follow.
"""

import os
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from stepwell.errors import BusyError, FormatError, SchemaError
from stepwell.files.atomic import sync_path, write_all, write_file
from stepwell.files.catalog import translated
from stepwell.files.lock import WriterLock
from stepwell.files.npy import NpyHeader, header_bytes
from stepwell.fit import fit_into
from stepwell.source import is_masked
from stepwell.stores.steps import database
from stepwell.stores.steps.database import RunColumn
from stepwell.stores.steps.layout import (
    DATABASE,
    FILLED,
    LOCK,
    Piece,
    check_dtype,
    open_piece,
    piece_path,
    pieces,
)
from stepwell.stores.steps.manifest import Manifest

__all__ = ["StepWriter"]

_FLUSH_BYTES = 1 << 23


class StepWriter:
    """Appends runs to a dataset, or begins one.

        with StepWriter("episodes", dtype, columns={"total_reward": float}) as writer:
            writer.append_run(rows, total_reward=204.5)

    `dtype` has packed fields; `columns` are what is known of each run (int, float, str, bytes
    or a `RunColumn`). Both are needed to begin a dataset and checked against one that is
    there. Fields named `run_id` and `step_index` are filled in. Runs are there for others after
    `commit`, which leaving the block does; what was appended since is dropped when the
    block fails. `shard_rows` spreads the rows over files of so many.

    One writer at a time: the second one gets a `BusyError`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtype: DTypeLike | None = None,
        columns: Mapping[str, type | RunColumn] | None = None,
        *,
        shard_rows: int | None = None,
    ) -> None:
        self._root = Path(path).absolute()  # wherever the process goes later
        if dtype is None and not (self._root / DATABASE).exists():
            raise FileNotFoundError(f"no dataset at {self._root}; a new one needs a dtype")
        _make_folder(self._root)
        self._lock: WriterLock | None = WriterLock(self._root / LOCK)
        self._database: sqlite3.Connection | None = None
        try:
            self._open(dtype, columns, shard_rows)
        except BaseException:
            self._let_go()
            raise

    def _open(
        self,
        dtype: DTypeLike | None,
        columns: Mapping[str, type | RunColumn] | None,
        shard_rows: int | None,
    ) -> None:
        wanted = None if dtype is None else check_dtype(np.dtype(dtype))
        path = self._root / DATABASE
        if not path.exists():
            self._begin(wanted, columns or {}, shard_rows or 0)
        self._database = database.open_writer(path)
        facts = database.facts(self._database, path)
        self._shard_rows = facts.shard_rows
        if shard_rows not in (None, facts.shard_rows):
            raise SchemaError(f"shard_rows: the dataset has {facts.shard_rows}, got {shard_rows}")
        first, header = open_piece(piece_path(self._root, 0, facts.shard_rows), facts.dtype, 0)
        first.close()
        self._dtype = header.dtype
        if wanted not in (None, self._dtype):
            raise SchemaError(f"expected rows of {self._dtype}, as the dataset has, got {wanted}")
        self._most_rows = 1 << 62 if facts.shard_rows else _most_rows(header)
        self._kinds = database.column_types(self._database)
        self._columns = [name for name in self._kinds if name not in database.OWN]
        required = database.column_names(self._database, required=True)
        self._required = [name for name in required if name not in database.OWN]
        if columns is not None and set(columns) - set(self._columns):
            unknown = ", ".join(sorted(set(columns) - set(self._columns)))
            raise SchemaError(f"the dataset has no run column {unknown}")
        self._rows, self._runs = facts.rows, facts.runs
        self._next_run = facts.last_run + 1
        self._written = self._rows  # rows in the files, committed or not
        self._pending: list[NDArray[Any]] = []
        self._pending_rows = 0
        self._new_runs: list[tuple[Any, ...]] = []
        self._failed = False
        self._mend()

    # Writing.

    def append_run(self, rows: ArrayLike | Mapping[str, ArrayLike], /, **columns: Any) -> int:
        """Add a run: a structured array, or one array per field; return its id.

        Raises `SchemaError` when rows or columns are not those of the dataset. After any error
        nothing has been appended; after a Ctrl-C the writer may have to be opened anew.
        """
        self._check_open()
        run_id = self._next_run
        made = self._row_array(rows, run_id)
        unknown = [name for name in columns if name not in self._columns]
        if unknown:
            raise SchemaError(
                f"no run column {', '.join(unknown)}; there are {', '.join(self._columns)}"
            )
        values = {
            name: _sqlite(name, columns.get(name), self._kinds[name]) for name in self._columns
        }
        missing = [name for name in self._required if values[name] is None]
        if missing:
            raise SchemaError(f"run column {', '.join(missing)} is missing")
        if len(self) + len(made) > self._most_rows:
            raise FormatError(
                f"the header has no room for more than {self._most_rows} rows; "
                "save the array again with np.save",
                path=str(piece_path(self._root, 0, self._shard_rows)),
            )
        self._failed = True  # a Ctrl-C between these lines must not be overlooked
        self._new_runs.append((run_id, len(self), len(made), *values.values()))
        self._pending.append(made)
        self._pending_rows += len(made)
        self._next_run += 1
        self._failed = False
        if self._pending_rows * self._dtype.itemsize >= _FLUSH_BYTES:
            try:
                self._flush()
            except BaseException:
                if not self._failed:
                    self._new_runs.pop()
                    self._pending_rows -= len(self._pending.pop())
                    self._next_run -= 1
                raise
        return run_id

    def commit(self) -> None:
        """From here on the runs are there for others, and survive a crash or a power cut."""
        self._check_open()
        if not self._new_runs:
            return
        assert self._database is not None
        self._flush()
        self._check_lock()
        self._failed = True  # unless all goes well
        for piece in pieces(self._root, self._written, self._shard_rows, self._rows):
            sync_path(piece.path)
        if self._shard_rows:
            sync_path(self._root / "shards")
        with translated(self._root / DATABASE):
            database.append(self._database, self._columns, self._new_runs, self._written)
        self._runs += len(self._new_runs)
        begin, self._rows = self._rows, self._written
        self._new_runs = []
        self._patch_headers(begin)
        self._manifest.write(self._root, self._dtype, self._rows, self._runs)
        self._failed = False

    def close(self) -> None:
        """Commit what there is and let others write."""
        if self._lock is None or not self._lock.held:
            return
        try:
            if not self._failed:
                self.commit()
        finally:
            self._let_go()

    def abort(self) -> None:
        """Drop what was not committed and let others write."""
        if self._lock is None or not self._lock.held:
            return
        try:
            # Else the database alone knows, and whoever opens it next will ask; or it is not ours.
            if not self._failed and self._lock.in_place:
                self._cut()
        finally:
            self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def __len__(self) -> int:
        """Rows committed and appended."""
        return self._written + self._pending_rows

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    # Below this line: for this package.

    def _begin(
        self,
        dtype: np.dtype[Any] | None,
        columns: Mapping[str, type | RunColumn],
        shard_rows: int,
    ) -> None:
        """A dataset without rows: the array first, then the database, which makes it one."""
        if dtype is None:
            raise FileNotFoundError(f"no dataset at {self._root}; a new one needs a dtype")
        if shard_rows < 0:
            raise ValueError(f"shard_rows must be at least 1, got {shard_rows}")
        made = {n: c if isinstance(c, RunColumn) else RunColumn(c) for n, c in columns.items()}
        database.check_columns(made)
        file = piece_path(self._root, 0, shard_rows)
        if file.exists() and file.stat().st_size > len(header_bytes(dtype, 0)):
            opened, header = open_piece(file, None, 0)
            opened.close()
            if file.stat().st_size > header.data_offset:
                raise FormatError("an array without its database", path=str(file))
        _new_piece(file, dtype)
        beside = self._root / f"{DATABASE}.new"
        for left in self._root.glob(f"{beside.name}*"):
            left.unlink()
        with translated(beside):
            database.create(beside, dtype, made, shard_rows)
        sync_path(beside)
        beside.rename(self._root / DATABASE)
        for left in self._root.glob(f"{beside.name}-*"):
            left.unlink()
        sync_path(self._root)

    def _mend(self) -> None:
        """Cut rows that were never committed; bring headers and sums up to those that were."""
        for stale in (*self._root.glob(".*.tmp"), *self._root.glob("shards/.*.tmp")):
            if stale.name.startswith((".steps", ".manifest")):  # of a writer that was killed
                stale.unlink()
        self._cut()
        found = None
        with suppress(FormatError):  # damaged: made anew from the rows
            found = Manifest.read(self._root, self._dtype.itemsize)
        if found is None or found.rows > self._rows:
            found = Manifest()
        self._manifest = found
        behind = found.covered // self._dtype.itemsize
        for piece in pieces(self._root, self._rows, self._shard_rows, behind):
            file, header = open_piece(piece.path, self._dtype, 0)
            with file:
                at = header.data_offset + piece.inside * self._dtype.itemsize
                left = piece.rows * self._dtype.itemsize
                while left:
                    data = os.pread(file.fileno(), min(left, 1 << 24), at)
                    if not data:
                        raise FormatError("the rows end early", path=str(piece.path), offset=at)
                    self._manifest.add(np.frombuffer(data, np.uint8))
                    left, at = left - len(data), at + len(data)
        self._patch_headers(0)
        if (found.rows, found.runs) != (self._rows, self._runs):
            found.write(self._root, self._dtype, self._rows, self._runs)

    def _cut(self) -> None:
        """Leave exactly the committed rows in the files."""
        self._pending, self._pending_rows, self._new_runs = [], 0, []
        self._written = self._rows
        committed = pieces(self._root, self._rows, self._shard_rows)
        if not committed:  # the first shard is there from the beginning
            committed = [Piece(piece_path(self._root, 0, self._shard_rows), 0, 0)]
        last = committed[-1]
        file, header = open_piece(last.path, self._dtype, last.rows)
        end = header.data_offset + last.rows * self._dtype.itemsize
        with file:
            longer = os.fstat(file.fileno()).st_size > end
        if longer:
            with open(last.path, "r+b") as writable:
                os.ftruncate(writable.fileno(), end)
        number = len(committed)
        while self._shard_rows and (path := piece_path(self._root, number, 1)).exists():
            path.unlink()
            number += 1

    def _flush(self) -> None:
        """Write pending rows behind those that are there; nobody sees them before a commit."""
        if not self._pending:
            return
        self._check_lock()
        # As bytes: joined as rows, big-endian numbers would change.
        data = np.concatenate([rows.view(np.uint8) for rows in self._pending])
        end, at = len(self), 0
        for piece in pieces(self._root, end, self._shard_rows, self._written):
            if self._shard_rows and piece.inside == 0 and not piece.path.exists():
                _new_piece(piece.path, self._dtype)
            file, header = open_piece(piece.path, self._dtype, 0)
            file.close()
            size = piece.rows * self._dtype.itemsize
            offset = header.data_offset + piece.inside * self._dtype.itemsize
            descriptor = os.open(piece.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                write_all(descriptor, data[at : at + size], offset, piece.path)
            finally:
                os.close(descriptor)
            at += size
        self._failed = True  # a Ctrl-C between these lines must not be overlooked
        self._manifest.add(data)
        self._written = end
        self._pending, self._pending_rows = [], 0
        self._failed = False

    def _patch_headers(self, first: int) -> None:
        """Make the shape in the files' headers that of the committed rows, from row `first` on."""
        for piece in pieces(self._root, self._rows, self._shard_rows, first):
            file, header = open_piece(piece.path, self._dtype, 0)
            file.close()
            rows = piece.inside + piece.rows
            if header.shape == (rows,):
                continue
            text = header_bytes(self._dtype, rows, header.data_offset)
            descriptor = os.open(piece.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                write_all(descriptor, np.frombuffer(text, np.uint8), 0, piece.path)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _row_array(self, rows: ArrayLike | Mapping[str, ArrayLike], run_id: int) -> NDArray[Any]:
        names = self._dtype.names
        assert names is not None
        if isinstance(rows, Mapping):
            if any(map(is_masked, rows.values())):
                raise TypeError("a masked array would lose its mask; fill it first")
            given = {name: np.asarray(values) for name, values in rows.items()}
        else:
            if is_masked(rows):
                raise TypeError("a masked array would lose its mask; fill it first")
            array = np.asarray(rows)
            if array.dtype.names is None:
                raise SchemaError(f"expected rows of {self._dtype}, got {array.dtype}")
            given = {name: array[name] for name in array.dtype.names}
        own = [name for name in FILLED if name in names and self._dtype[name].kind in "iu"]
        missing = [name for name in names if name not in given and name not in own]
        unknown = [name for name in given if name not in names]
        if missing or unknown:
            problem = f"missing {missing}" if missing else f"unknown {unknown}"
            raise SchemaError(f"fields: expected {list(names)}, got {list(given)}: {problem}")
        lengths = {len(values) if values.ndim else None for values in given.values()}
        if len(lengths) != 1 or None in lengths:
            raise SchemaError(f"fields must have equal lengths, got {lengths}")
        count = lengths.pop() or 0
        made = np.zeros(count, self._dtype)
        for name, values in given.items():
            if name in own:
                continue
            fit_into(name, values, made[name])
        for name, last in (("run_id", run_id), ("step_index", count - 1)):
            if name in own:
                most = np.iinfo(self._dtype[name]).max
                if last > most:
                    raise SchemaError(
                        f"run {run_id}: {name} {last} does not fit, {most} is the most"
                    )
        if "run_id" in own:
            made["run_id"] = run_id
        if "step_index" in own:
            made["step_index"] = np.arange(count)
        return made

    def _check_open(self) -> None:
        if self._lock is None:
            raise ValueError(f"the writer of {self._root} is closed")
        if not self._lock.held:
            raise ValueError(f"{self._root} is written to by the process this one was forked from")
        if self._failed:
            raise ValueError(f"a commit to {self._root} failed; open it again to go on")

    def _check_lock(self) -> None:
        """What is written goes where the lock is: not to a dataset that was moved or replaced."""
        if self._lock is None or not self._lock.in_place:
            raise BusyError(f"{self._root} was moved or replaced while it was written to")

    def _let_go(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _new_piece(path: Path, dtype: np.dtype[Any]) -> None:
    """An array file without rows; NumPy finds no file or a whole one."""
    path.parent.mkdir(exist_ok=True)
    write_file(path, header_bytes(dtype, 0))


def _make_folder(path: Path) -> None:
    """A folder that is still there after a power cut, and so are those above it."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync_path(folder.parent)


def _most_rows(header: NpyHeader) -> int:
    """The highest number that the header of an array has room for."""
    room = header.data_offset - len(header_bytes(header.dtype, 0, None).rstrip()) - 1
    return int(min(10.0 ** (room + 1), 1 << 62)) - 1


_KINDS: dict[str, tuple[type, ...]] = {
    "INTEGER": (int,),
    "REAL": (int, float),
    "TEXT": (str,),
    "BLOB": (bytes,),
}


def _sqlite(name: str, value: Any, kind: str) -> Any:
    """A value as SQLite keeps it in a column of this type; NaN is no value to it."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value != value:
        return None
    if not isinstance(value, _KINDS.get(kind, (int, float, str, bytes))):
        raise SchemaError(f"{name}: expected {kind}, got {type(value).__name__}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise SchemaError(f"{name}: {value} is beyond the 64 bits of SQLite")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise SchemaError(f"{name}: {value!r} is not text that SQLite can keep") from None
    return value

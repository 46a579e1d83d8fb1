"""Rows appended to a step dataset: crash-safe, and at the cost of the new rows alone.

A commit is: rows written behind the last committed one and synced; one SQLite transaction,
which is what counts; then the array's header and the manifest, which only follow. Whoever
opens the dataset next for writing cuts what was not committed and mends what did not follow.
"""

import os
import re
import shutil
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from operator import index
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from stepwell.errors import ChecksumError, FormatError, SchemaError
from stepwell.field import FieldLike
from stepwell.files import catalog
from stepwell.files.atomic import is_temporary, sweep, sync_path, write_all, write_file
from stepwell.files.checked import Checksums, Growing, cut_to, header_bytes as checksum_header
from stepwell.files.npy import NpyHeader, header_bytes
from stepwell.files.regular import check_inside
from stepwell.files.remote import BucketOptions, is_remote
from stepwell.fit import fit_into
from stepwell.source import is_masked
from stepwell.stores.steps import database
from stepwell.stores.steps.blocks import BlockChecks
from stepwell.stores.steps.database import RunColumn, Seen
from stepwell.stores.steps.dataset import is_dataset
from stepwell.stores.steps.layout import (
    CHECKSUMS,
    DATABASE,
    FILLED,
    LOCK,
    MANIFEST,
    SHARDS,
    Piece,
    load_rows,
    piece_name,
    pieces,
    row_dtype,
)
from stepwell.stores.steps.manifest import BLOCK_BYTES, Manifest
from stepwell.stores.steps.repair import check_whole
from stepwell.writer import Mode, Writer, exclusive, local_path

_FLUSH_BYTES = 1 << 23
_DATABASES = rf"{re.escape(DATABASE)}(\.new)?(-wal|-shm|-journal)?"
_PIECES = r"steps(_\d{5,})?\.npy"
_BESIDE = rf"{_PIECES}|{re.escape(CHECKSUMS)}"
KEPT_CHECKSUMS = 1 << 10  # they travel in the transaction: no file is synced for a small commit


class StepWriter(Writer):
    """Appends runs to a new dataset, or with `mode="a"` to one that may be there.

        with StepWriter("episodes", dtype, columns={"total_reward": float}) as writer:
            writer.append(rows, total_reward=204.5)

    `dtype` has packed fields, or is a dict of them: `{"obs": ("<f4", (4,)), "action": "<i4"}`.
    `columns` are what is known of each run: int, float, str, bytes, or a `RunColumn`, which may be
    optional. Both are needed to begin a dataset and checked against one that is there. Fields
    named `run_id` and `step_index` are filled in. Runs are there for others after `commit`, which
    leaving the block does; what was appended since is dropped when the block fails. `shard_rows`
    spreads the rows over files of that many.

    One writer at a time: the second one gets a `BusyError`.

    To a URL (extra `remote`), with the options of obstore, many writers with `mode="a"` append at a
    time, each its own runs; a shard is a file of up to `shard_rows`, or of 256 MiB. Where another
    one commits first, runs go behind its runs, and `conflicts` counts that.
    """

    noun: ClassVar[str] = "a step dataset"

    def __new__(cls, path: Any = "", *args: Any, **options: Any) -> Self:
        if cls is StepWriter and is_remote(path):
            from stepwell.stores.steps.bucket import BucketStepWriter  # which is a StepWriter

            return object.__new__(BucketStepWriter)  # type: ignore[return-value]
        return object.__new__(cls)

    conflicts = 0
    """How often another writer of a bucket committed first. A path has one writer at a time."""
    _database: sqlite3.Connection | None = None
    _new_runs: list[tuple[Any, ...]]
    _next_run: int
    _pending: list[NDArray[Any]]
    """Rows that are in no file yet."""
    _pending_rows: int
    _written: int
    """Rows in the files, committed or not."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtype: DTypeLike | Mapping[str, FieldLike] | None = None,
        columns: Mapping[str, type | RunColumn] | None = None,
        *,
        mode: Mode = "x",
        shard_rows: int | None = None,
        **bucket: Unpack[BucketOptions],
    ) -> None:
        if bucket:
            raise TypeError(f"{', '.join(bucket)}: only for what is in a bucket")
        root = local_path(path, self.noun)
        if is_dataset(root):
            raise FileExistsError(
                f"expected a step dataset that was written to a path, got a copy of one that was "
                f"written in a bucket: {root}; `stepwell convert` makes one to append to"
            )
        wanted = None if dtype is None else row_dtype(dtype)
        known = database.run_columns(columns)
        if shard_rows is not None and index(shard_rows) < 0:
            raise ValueError(f"shard_rows must be at least 1, got {shard_rows}")
        if wanted is None and not (root / DATABASE).exists():
            raise FileNotFoundError(f"no dataset at {root}; a new one needs a dtype")
        there = self._begin(root, LOCK, mode)
        with self._opening():
            if not there and (mode == "x" or not (root / DATABASE).exists()):
                self._create(wanted, known, shard_rows or 0)
            self._open(wanted, known, shard_rows)

    def _open(
        self, dtype: np.dtype[Any] | None, columns: Mapping[str, RunColumn], shard_rows: int | None
    ) -> None:
        path = self._root / DATABASE
        # Before the connection: SQLite lets go of a damaged log as soon as it may write.
        check_whole(self._root, database.look(path), manifest=True)
        self._database = catalog.connect(path)
        seen = database.facts(self._database, path)
        self._rows, self._runs, self._last_run, _, self._shard_rows = seen[:5]
        if shard_rows not in (None, self._shard_rows):
            raise SchemaError(f"shard_rows: the dataset has {self._shard_rows}, got {shard_rows}")
        with self._pieces(0)[0].open(seen.dtype) as (_, header):
            self._dtype = header.dtype
        if dtype not in (None, self._dtype):
            raise SchemaError(f"expected rows of {self._dtype}, as the dataset has, got {dtype}")
        self._max_rows = 1 << 62 if self._shard_rows else _max_rows(header)
        with catalog.in_turn(), catalog.translated(path):
            found = database.columns(self._database)
        self._columns = {name: each for name, each in found.items() if name not in database.OWN}
        check_columns(self._columns, columns)
        self._mend(seen)

    # Writing.

    @exclusive
    def append(self, rows: ArrayLike | Mapping[str, ArrayLike], /, **columns: Any) -> int:
        """Add a run: a structured array, or one array per field; return its id.

        Raises `SchemaError` when rows or columns are not those of the dataset. After any error
        nothing has been appended; after a Ctrl-C `rollback` may be needed.
        """
        self._reserve()
        run_id = self._next_run
        made = self._row_array(rows, run_id)
        values = run_values(self._columns, columns)
        if len(self) + len(made) > self._max_rows:
            raise FormatError(
                f"the header has no room for more than {self._max_rows} rows; "
                "save the array again with np.save",
                path=str(self._pieces(0)[0].path),
            )
        run = (run_id, len(self), len(made), *values)
        written = None
        if (self._pending_rows + len(made)) * self._dtype.itemsize >= _FLUSH_BYTES:
            written = self._write(*self._pending, made)
        with self._changing():
            self._new_runs.append(run)
            self._next_run += 1
            if written is None:
                self._pending.append(made)
                self._pending_rows += len(made)
            else:
                self._settle(written)
        return run_id

    @exclusive
    def add_column(
        self, name: str, column: type | RunColumn, values: Iterable[Any] | None = None
    ) -> None:
        """Give the runs a further column, and those that are there these values, in their order.

        Without `values` they have none, which only an optional column allows. It is durable on
        return, and other processes see it. Raises `ValueError` while runs are uncommitted, and
        `SchemaError` for a column that is there already or values that it cannot have.
        """
        made = database.run_columns({name: column})[name]
        if self._new_runs:
            raise ValueError(f"expected no uncommitted runs, got {len(self._new_runs)}; commit")
        if name.lower() in (there.lower() for there in self._columns):
            raise SchemaError(f"run column {name}: expected a new name, there is such a column")
        given = [None] * self._runs if values is None else list(values)
        if len(given) != self._runs:
            raise SchemaError(f"{name}: expected a value for {self._runs} runs, got {len(given)}")
        kept = [_sqlite(name, value, made.sql) for value in given]
        if made.required and None in kept:
            raise SchemaError(
                f"run column {name}: expected a value for each of {self._runs} runs, got "
                f"{given[kept.index(None)]}; RunColumn(…, optional=True) may be without"
            )
        assert self._database is not None
        path = self._root / DATABASE
        with catalog.in_turn(), catalog.translated(path):
            for problem in database.check_runs(self._database, self._last_run)[0]:
                raise ChecksumError(problem, path=str(path))  # it must not get a new checksum
        with self._at_risk():
            database.add_column(self._database, path, name, made, kept)
        self._columns[name] = database.Column(made.sql, made.required)

    def __len__(self) -> int:
        """Rows committed and appended."""
        return self._written + self._pending_rows

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a row as it is stored."""
        return self._dtype

    # Below this line: for this package.

    def _reserve(self) -> None:
        """Have `_next_run`, which is nobody else's."""

    @classmethod
    def _holds_commits(cls, root: Path) -> bool:
        return database.has_runs(root / DATABASE) or _has_lost_runs(root)

    @classmethod
    def _is_left_over(cls, path: Path) -> bool:
        if path.is_symlink():
            return False
        if path.name == SHARDS and path.is_dir():
            return all(map(cls._is_left_over, path.iterdir()))
        try:
            if re.fullmatch(_PIECES, path.name):
                with Piece(path.parent, path.name, 0, 0).open(None) as (_, header):
                    return header.shape == (0,)  # there may be rows that were never committed
            if path.name == CHECKSUMS:
                return bool(Checksums(path.parent, CHECKSUMS, 0).block_bytes)
            if path.name == MANIFEST:
                found = Manifest.read(path.parent, 1)
                return found is not None and (found.rows, found.runs) == (0, 0)
        except FormatError:
            return False
        # A database has no run here: that was looked at before.
        ours = path.name == LOCK or re.fullmatch(_DATABASES, path.name) is not None
        return ours or is_temporary(path, _BESIDE)

    def _create(
        self, dtype: np.dtype[Any] | None, columns: Mapping[str, RunColumn], shard_rows: int
    ) -> None:
        """A dataset without rows: the array first, then the database, which makes it one."""
        if dtype is None:
            raise FileNotFoundError(f"no run at {self._root}; a new dataset needs a dtype")
        path = self._root / DATABASE
        path.unlink(missing_ok=True)  # first of all: it made it a dataset
        for left in self._root.iterdir():
            if left.name != LOCK:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        sync_path(self._root)  # a log of changes beside another database would be its end
        _new_piece(Piece(self._root, piece_name(0, shard_rows), 0, 0), dtype)
        write_file(self._root / CHECKSUMS, checksum_header(), follow=False)
        beside = self._root / f"{DATABASE}.new"
        database.create(beside, dtype, columns, shard_rows)
        sync_path(beside)
        beside.rename(path)
        sync_path(self._root)

    def _mend(self, seen: Seen) -> None:
        """Cut rows that were never committed; bring headers and checksums up to those that were."""
        check_inside(self._root, MANIFEST, CHECKSUMS)
        sweep(self._root, rf"{_BESIDE}|{re.escape(MANIFEST)}")
        if self._shard_rows:
            sweep(self._root / SHARDS, _PIECES)
        for left in self._root.glob(f"{DATABASE}.new*"):
            left.unlink()
        found = None
        with suppress(FormatError):  # damaged: made again from the rows
            found = Manifest.read(self._root, self._dtype.itemsize)
        self._committed = found if found and found.rows <= self._rows else Manifest()
        self._committed_blocks = Growing()
        self._rollback()
        self._mend_blocks(seen)
        self._committed_blocks = self._blocks.copy()
        found = self._manifest
        step = max(BLOCK_BYTES // self._dtype.itemsize, 1)
        for begin in range(found.rows, self._rows, step):
            some = self._pieces(min(begin + step, self._rows), begin)
            found.add(load_rows(some, self._dtype).view(np.uint8))
        self._patch_headers(0)
        if (found.rows, found.runs) != (self._rows, self._runs):
            found.write(self._root, self._dtype, self._rows, self._runs)
        self._committed = found.copy()

    def _mend_blocks(self, seen: Seen) -> None:
        """Read the checksums of the last commit; make those that datasets of before have not.

        Their rows are all read once, and compared with what the manifest has of them.
        """
        size = self._dtype.itemsize
        if seen.block_bytes:
            stored = BlockChecks(self._root, seen).opened(size).stored
            self._blocks = Growing(seen.block_bytes, stored, bytearray(seen.block_tail))
            cut_to(self._root, CHECKSUMS, stored)  # others were never committed
            return
        self._blocks = Growing()
        step = max(BLOCK_BYTES // size, 1)
        known, again = self._committed, Manifest()
        for begin in range(0, self._rows, step):
            some = self._pieces(min(begin + step, self._rows), begin)
            data = load_rows(some, self._dtype).view(np.uint8)
            again.add(data[: max(known.covered - begin * size, 0)])
            self._add_blocks(data, begin)
        if again.blocks != known.blocks:
            message = "expected rows as manifest.json has their checksums, got others; see verify"
            raise ChecksumError(message, path=str(self._root))
        write_file(self._root / CHECKSUMS, checksum_header(), follow=False)
        self._blocks.store(self._root, CHECKSUMS, keep=KEPT_CHECKSUMS)
        assert self._database is not None
        path = self._root / DATABASE
        database.append(self._database, path, [], [], self._rows, self._block_meta())

    def _add_blocks(self, data: NDArray[np.uint8], first: int) -> None:
        """Continue the checksums with the bytes of the rows from `first` on."""
        at, size = 0, self._dtype.itemsize
        for piece in self._pieces(first + len(data) // size, first):
            end = at + piece.rows * size
            self._blocks.add(data[at:end], piece.inside * size)
            at = end

    def _block_meta(self) -> dict[str, str]:
        return database.block_meta(self._blocks.block_bytes, bytes(self._blocks.rest))

    def _commit(self) -> None:
        if not self._new_runs:
            return
        assert self._database is not None
        self._flush()
        with self._at_risk():
            for piece in self._pieces(self._written, self._rows):
                sync_path(piece.path)
            if self._shard_rows:
                sync_path(self._root / SHARDS)
            path = self._root / DATABASE
            self._blocks.store(self._root, CHECKSUMS, keep=KEPT_CHECKSUMS)
            names, runs = [*self._columns], self._new_runs
            database.append(self._database, path, names, runs, self._written, self._block_meta())
            self._runs += len(self._new_runs)
            begin, self._rows = self._rows, self._written
            self._last_run, self._new_runs = self._next_run - 1, []
            self._patch_headers(begin)
            self._manifest.write(self._root, self._dtype, self._rows, self._runs)
            self._committed, self._committed_blocks = self._manifest.copy(), self._blocks.copy()

    def _rollback(self) -> None:
        """Leave exactly the committed rows in the files."""
        self._pending, self._pending_rows, self._new_runs = [], 0, []
        self._written = self._rows
        self._next_run = self._last_run + 1
        self._manifest, self._blocks = self._committed.copy(), self._committed_blocks.copy()
        committed = self._pieces(self._rows)
        last = committed[-1]
        with last.open(self._dtype, last.rows, os.O_RDWR) as (file, header):
            end = header.data_offset + last.rows * self._dtype.itemsize
            if os.fstat(file.fileno()).st_size > end:
                os.ftruncate(file.fileno(), end)
        number = len(committed)
        while self._shard_rows and (path := self._root / piece_name(number, 1)).exists():
            path.unlink()
            number += 1

    def _release(self) -> None:
        opened, self._database = self._database, None
        if opened is not None:
            with catalog.in_turn():
                opened.close()

    def _pieces(self, rows: int, first: int = 0) -> list[Piece]:
        return pieces(self._root, rows, self._shard_rows, first)

    def _flush(self) -> None:
        if self._pending:
            data = self._write(*self._pending)
            with self._changing():
                self._settle(data)

    def _write(self, *pending: NDArray[Any]) -> NDArray[np.uint8]:
        """Write rows behind those that are there, and return their bytes; nobody sees them before
        a commit, and others may be written in their place."""
        self._check_place()
        # As bytes: joined as rows, big-endian numbers would change.
        data = np.concatenate([rows.view(np.uint8) for rows in pending])
        at, size = 0, self._dtype.itemsize
        for piece in self._pieces(self._written + len(data) // size, self._written):
            if self._shard_rows and piece.inside == 0 and not piece.path.exists():
                _new_piece(piece, self._dtype)
            end = at + piece.rows * size
            with piece.open(self._dtype, flags=os.O_RDWR) as (file, header):
                write_all(file.fileno(), data[at:end], piece.place(header), piece.path)
            at = end
        return data

    def _settle(self, data: NDArray[np.uint8]) -> None:
        """Everything that was pending is written."""
        self._manifest.add(data)
        self._add_blocks(data, self._written)
        self._written += len(data) // self._dtype.itemsize
        self._pending, self._pending_rows = [], 0

    def _patch_headers(self, first: int) -> None:
        """Make the shape in the files' headers that of the committed rows, from row `first` on."""
        for piece in self._pieces(self._rows, first):
            with piece.open(self._dtype, flags=os.O_RDWR) as (file, header):
                rows = piece.inside + piece.rows
                if header.shape == (rows,):
                    continue
                text = header_bytes(self._dtype, rows, header.data_offset)
                write_all(file.fileno(), np.frombuffer(text, np.uint8), 0, piece.path)
                os.fsync(file.fileno())

    def _row_array(self, rows: ArrayLike | Mapping[str, ArrayLike], run_id: int) -> NDArray[Any]:
        names = self._dtype.names
        assert names is not None
        if any(map(is_masked, rows.values() if isinstance(rows, Mapping) else [rows])):
            raise TypeError("a masked array would lose its mask; fill it first")
        if isinstance(rows, Mapping):
            given = {name: np.asarray(values) for name, values in rows.items()}
        else:
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
            if name not in own:
                fit_into(name, values, made[name])
        for name in own:
            last = run_id if name == "run_id" else count - 1
            limit = np.iinfo(self._dtype[name]).max
            if last > limit:
                raise SchemaError(f"run {run_id}: expected {name} up to {limit}, got {last}")
            made[name] = run_id if name == "run_id" else np.arange(count)
        return made


def check_columns(there: Mapping[str, database.Column], given: Mapping[str, RunColumn]) -> None:
    """Raise `SchemaError` when columns are not those of a dataset."""
    if unknown := ", ".join(sorted(set(given) - set(there))):
        raise SchemaError(f"the dataset has no run column {unknown}")
    for name, column in given.items():
        kind = there[name].sql
        if kind in _KINDS and kind != column.sql:
            raise SchemaError(f"run column {name}: the dataset has {kind}, got {column.sql}")


def run_values(
    columns: Mapping[str, RunColumn | database.Column], given: Mapping[str, Any]
) -> list[Any]:
    """What is known of a run, as the database has it. Raises `SchemaError` for what it cannot."""
    if unknown := [name for name in given if name not in columns]:
        raise SchemaError(f"no run column {', '.join(unknown)}; there are {', '.join(columns)}")
    values = {name: _sqlite(name, given.get(name), each.sql) for name, each in columns.items()}
    for name, each in columns.items():
        if each.required and values[name] is None:
            raise SchemaError(
                f"run column {name}: expected a value, got {given.get(name, 'none')}; "
                "one that is declared optional may be left out"
            )
    return list(values.values())


def _new_piece(piece: Piece, dtype: np.dtype[Any]) -> None:
    """An array file without rows; NumPy finds no file or a whole one."""
    piece.path.parent.mkdir(exist_ok=True)
    write_file(piece.path, header_bytes(dtype, 0), follow=False)


def _has_lost_runs(root: Path) -> bool:
    """Whether the files of an empty database state that there were runs."""
    try:
        check_whole(root, database.look(root / DATABASE), manifest=True)
    except FormatError:
        return True
    except FileNotFoundError:
        pass
    return False


def _max_rows(header: NpyHeader) -> int:
    """The highest number that the header of an array has room for."""
    room = header.data_offset - len(header_bytes(header.dtype, 0, None).rstrip()) - 1
    return int(min(10.0 ** (room + 1), 1 << 62)) - 1


_KINDS = {"INTEGER": (int,), "REAL": (int, float), "TEXT": (str,), "BLOB": (bytes,)}


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
    if isinstance(value, int) and kind == "REAL" and int(float(value)) != value:
        raise SchemaError(f"{name}: {value} does not fit a float; cast what may lose digits")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise SchemaError(f"{name}: {value!r} is not text that SQLite can keep") from None
    return value

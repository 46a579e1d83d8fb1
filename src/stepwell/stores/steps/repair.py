"""Rows that the database of a step dataset does not know of: noticed, and their runs rebuilt.

A commit is in the database before a header or the manifest has it. Where those know more, commits
were lost from the database: its log was damaged or left behind, or it is an old copy.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepwell.errors import FormatError
from stepwell.files import catalog
from stepwell.files.atomic import sync_path, write_all
from stepwell.files.lock import WriterLock
from stepwell.files.npy import header_bytes
from stepwell.files.regular import check_inside
from stepwell.source import Rows
from stepwell.store import Progress
from stepwell.stores.steps import database
from stepwell.stores.steps.database import OWN, Seen
from stepwell.stores.steps.layout import (
    DATABASE,
    FILLED,
    LOCK,
    MANIFEST,
    SHARDS,
    Piece,
    load_rows,
    piece_name,
    pieces,
)
from stepwell.stores.steps.manifest import BLOCK_BYTES, Manifest

_ASIDE = "before-repair"
_LOGS = ("-wal", "-journal")


class _Stated(NamedTuple):
    """What a header or the manifest states; a header knows nothing of runs."""

    name: str
    rows: int
    runs: int = 0


def check_whole(root: Path, seen: Seen, *, manifest: bool = False) -> None:
    """Raise `FormatError` when headers, or the manifest, know of commits that the database has not.

    Readers leave the manifest to `verify`: it grows with the rows, and headers state as many.
    Shards that have a list are never written again.
    """
    if seen.is_listed:
        return
    stated = list(_stated(root, seen, manifest))
    if any(each.rows > seen.rows or each.runs > seen.runs for each in stated):
        seen = database.look(root / DATABASE)  # last of all: a writer may have committed meanwhile
    for name, rows, runs in stated:
        if rows > seen.rows or runs > seen.runs:
            of_runs = f" of {runs} runs" if runs else ""
            raise FormatError(
                f"expected {rows} rows{of_runs}, as {name} states, got {seen.rows} of {seen.runs} "
                "runs: commits are lost; `stepwell repair` rebuilds what the rows still hold",
                path=str(root / DATABASE),
            )


def _stated(root: Path, seen: Seen, with_manifest: bool) -> Iterator[_Stated]:
    """What the files that the last commits changed state."""
    size = seen.shard_rows
    number = max(seen.rows - 1, 0) // size if size else 0
    row_bytes = 0
    for each in (number, number + 1) if size else (number,):
        piece = Piece(root, piece_name(each, size), 0, 0)
        with suppress(FileNotFoundError), piece.open(seen.dtype) as (_, header):
            row_bytes = header.dtype.itemsize
            if header.shape[0]:  # else it has no committed row yet
                yield _Stated(piece.name, each * size + header.shape[0])
    with suppress(FormatError):  # damaged: readers do not need it, and a writer makes it again
        manifest = Manifest.read(root, row_bytes) if row_bytes and with_manifest else None
        if manifest is not None:
            yield _Stated(MANIFEST, manifest.rows, manifest.runs)


@dataclass(frozen=True)
class Repaired:
    """What a repair did; all zero and empty where there was nothing to repair."""

    path: str
    rows: int = 0
    """Rows that the database had lost."""
    runs: int = 0
    """Runs that these rows were found to be."""
    removed: int = 0
    """Runs that the database had, but whose rows are not there or are those of others."""
    lost: tuple[str, ...] = ()
    """Run columns that no row holds: NULL in the runs that were rebuilt."""
    kept: tuple[str, ...] = ()
    """Files as they were before."""
    did: tuple[str, ...] = ()
    """What was done, a sentence each."""


def is_repairable(path: Path) -> bool:
    """Whether there are rows of a step dataset, be there a database or not."""
    return any(os.path.lexists(path / piece_name(0, sharded)) for sharded in (0, 1))


def repair(
    path: str | os.PathLike[str], *, as_one_run: bool = False, progress: Progress | None = None
) -> Repaired:
    """Rebuild the runs that the database of a dataset has lost, from what the rows hold.

    Where runs begin is read from the fields `run_id` and `step_index`. Rows without them become
    one run with `as_one_run`; otherwise they are a `FormatError`. Columns of the rebuilt runs are
    NULL. What was there before is kept beside. Raises `BusyError` beside a writer.
    """
    root = Path(path).absolute()
    if not is_repairable(root):
        raise FileNotFoundError(f"no rows of a step dataset at {root}")
    check_inside(root, DATABASE, *(DATABASE + log for log in _LOGS), MANIFEST)
    lock = WriterLock(root / LOCK)
    try:
        return _Repair(root).repaired(as_one_run, progress or (lambda done, total: None))
    finally:
        lock.release()


class _Files(NamedTuple):
    """The files of rows."""

    shard_rows: int
    dtype: np.dtype[Any]
    stated: list[tuple[Piece, int, int]]
    """Each file, the rows that its header states, and those that are there."""

    @property
    def rows(self) -> tuple[int, int]:
        """How many rows the headers state, and how many follow one another without a gap."""
        claimed = end = 0
        for number, (_, stated, there) in enumerate(self.stated):
            begin = number * self.shard_rows
            if stated:
                claimed = begin + stated
            if end == begin:
                end += min(there, self.shard_rows or there)
        return claimed, end


class _Repair:
    def __init__(self, root: Path) -> None:
        self._root, self._path = root, root / DATABASE
        self._kept: list[str] = []
        self._did: list[str] = []
        self._columns: dict[str, database.Column] = {}
        self._runs: list[tuple[int, int, int]] = []
        self._problem = ""
        """Why the database cannot be used, or is not there."""
        meta: dict[Any, Any] = {}
        try:
            with database.reading(self._path) as opened:
                meta, _, _ = database._state(opened, self._path)
                self._columns = database.columns(opened)
                sql = f"SELECT {', '.join(OWN)} FROM runs ORDER BY first_step_idx, id"
                self._runs = opened.execute(sql).fetchall()
                broken = opened.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if broken != "ok":
                raise FormatError(f"SQLite: {broken}", path=str(self._path))
        except FileNotFoundError:
            self._problem = "there was no database"
        except FormatError as error:
            self._problem = f"the database cannot be used: {error.args[0]}"
            self._columns, self._runs = {}, []
        self._files = _files(root, meta)

    def repaired(self, as_one_run: bool, progress: Progress) -> Repaired:
        root, files = self._root, self._files
        known = self._known()
        start = known[-1][1] + known[-1][2] if known else 0
        claimed, there = files.rows
        manifest = None
        with suppress(FormatError):
            manifest = Manifest.read(root, files.dtype.itemsize)
        end = max(min(max(claimed, manifest.rows if manifest else 0), there), start)
        removed = len(self._runs) - len(known)
        found = self._rebuilt(start, end, known[-1][0] + 1 if known else 0, as_one_run, progress)
        lost = tuple(name for name in self._columns if name not in OWN) if found else ()
        if found or removed or self._problem:
            self._keep(self._path, *(root / (DATABASE + log) for log in _LOGS))
            self._write(known, found, end, lost)
            self._did.append(f"{len(found)} runs rebuilt from rows {start} to {end - 1}")
        limits = {piece.name: piece.rows for piece in pieces(root, end, files.shard_rows)}
        for piece, stated, _ in files.stated:
            limit = limits.get(piece.name, 0)
            if stated > limit:
                _write_header(piece, files.dtype, limit)
                self._did.append(f"{piece.name}: its header states {limit} rows again")
        if manifest is not None and (manifest.rows > end or manifest.runs > len(known + found)):
            self._keep(root / MANIFEST)
            (root / MANIFEST).unlink()
            self._did.append(f"{MANIFEST}: the next writer makes it again")
            if manifest.runs > len(known + found):
                empty = manifest.runs - len(known + found)
                self._did.append(f"{empty} runs are lost: no row is theirs")
        sync_path(root)
        made = (end - start, len(found), removed, lost, tuple(self._kept), tuple(self._did))
        return Repaired(str(root), *made)

    def _known(self) -> list[tuple[int, int, int]]:
        """The runs of the database up to the first whose rows are not where they should be."""
        end, last, there = 0, -1, self._files.rows[1]
        for place, (run, first, steps) in enumerate(self._runs):
            whole = all(type(number) is int for number in (run, first, steps))
            if not whole or first != end or steps < 0 or end + steps > there or run <= last:
                return self._runs[:place]
            end, last = end + steps, run
        return self._runs

    def _rebuilt(
        self, start: int, end: int, next_id: int, as_one_run: bool, progress: Progress
    ) -> list[tuple[int, int, int]]:
        """Runs for the rows from `start` to `end`."""
        if start == end:
            return []
        dtype = self._files.dtype
        names = [n for n in FILLED if n in (dtype.names or ()) and dtype[n].kind in "iu"]
        if not names and not as_one_run:
            raise FormatError(
                f"rows {start} to {end - 1} have neither run_id nor step_index, so nothing shows "
                "where their runs begin; as_one_run (--as-one-run) keeps them as one run",
                path=str(self._root),
            )
        begins, ids = np.array([start]), None
        if names:
            begins, ids = self._begins(names, start, end, progress)
        if ids is None or ids[0] < next_id or (np.diff(ids) <= 0).any():
            ids = np.arange(next_id, next_id + len(begins))
        counts = np.diff(np.append(begins, end))
        return list(zip(ids.tolist(), begins.tolist(), counts.tolist(), strict=True))

    def _begins(
        self, names: list[str], start: int, end: int, progress: Progress
    ) -> tuple[Rows, Rows | None]:
        """Where runs begin, and the run_id of each, if there is that field."""
        begins, ids, last = [], [], None
        step = max(BLOCK_BYTES // self._files.dtype.itemsize, 1)
        for at in range(start, end, step):
            until = min(at + step, end)
            some = pieces(self._root, until, self._files.shard_rows, at)
            part = load_rows(some, self._files.dtype)
            new = np.zeros(len(part), bool)
            new[0] = at == start
            if "step_index" in names:
                new |= part["step_index"] == 0
            if "run_id" in names:
                runs = part["run_id"].astype(np.int64)
                new |= np.diff(runs, prepend=runs[0] if last is None else last) != 0
                last = runs[-1]
                ids.append(runs[new])
            begins.append(np.flatnonzero(new) + at)
            progress(until - start, end - start)
        return np.concatenate(begins), np.concatenate(ids) if ids else None

    def _keep(self, *paths: Path) -> None:
        """Copies beside, under names that nobody uses."""
        first = paths[0]
        names = (f"{first.name}.{_ASIDE}" + (f"-{n}" if n else "") for n in count())
        free = next(name for name in names if not list(first.parent.glob(f"{name}*")))
        for path in paths:
            if path.exists() and (path == first or path.stat().st_size):
                to = path.with_name(free + path.name.removeprefix(first.name))
                shutil.copyfile(path, to)
                sync_path(to)
                self._kept.append(str(to))
        sync_path(self._root)

    def _write(
        self,
        known: list[tuple[int, int, int]],
        found: list[tuple[int, int, int]],
        rows: int,
        lost: tuple[str, ...],
    ) -> None:
        """The database with these runs: the one that is there, changed at once, or a new one."""
        target = self._path
        if self._problem:
            self._did.append(self._problem)
            for name in (DATABASE, *(DATABASE + end for end in (*_LOGS, "-shm"))):
                (self._root / name).unlink(missing_ok=True)
            sync_path(self._root)
            target = self._root / f"{DATABASE}.new"
            target.unlink(missing_ok=True)
            database.create(target, self._files.dtype, {}, self._files.shard_rows)
        with closing(catalog.connect(target)) as opened, catalog.transaction(opened, target):
            bad = self._runs[len(known) :]
            opened.execute(database._CHECKSUMS)
            for table in ("runs", "run_checksums"):
                opened.executemany(f"DELETE FROM {table} WHERE id = ?", ((run,) for run, *_ in bad))
            required = [name for name in lost if self._columns[name].required]
            if required:
                may = {n: each._replace(required=n in OWN) for n, each in self._columns.items()}
                database.remake(opened, may)
                self._did.append(f"{', '.join(required)}: may be NULL from now on")
            opened.executemany(f"INSERT INTO runs ({', '.join(OWN)}) VALUES (?, ?, ?)", found)
            others = [None] * len([name for name in database.columns(opened) if name not in OWN])
            signed = catalog.with_checksums([(*run, *others) for run in found], 3 + len(others))
            opened.executemany(
                "INSERT OR REPLACE INTO run_checksums VALUES (?, ?)",
                ((run[0], run[-1]) for run in signed),
            )
            opened.execute(database._META)
            opened.execute("INSERT OR REPLACE INTO meta VALUES ('rows', ?)", (str(rows),))
            # Those of blocks went with the commits; the next writer reads all rows for new ones.
            opened.execute("DELETE FROM meta WHERE key IN ('block_bytes', 'block_tail')")
        if target != self._path:
            sync_path(target)
            target.rename(self._path)


def _files(root: Path, meta: dict[Any, Any]) -> _Files:
    """The files of rows, looked at without trusting the database more than need be."""
    sharded = not os.path.lexists(root / piece_name(0, 0))
    found: list[tuple[Piece, int, int]] = []
    dtype: np.dtype[Any] | None = None
    for number in count():
        piece = Piece(root, piece_name(number, int(sharded)), 0, 0)
        if not os.path.lexists(piece.path):
            break
        with piece.open(dtype) as (file, header):
            dtype = header.dtype
            there = (os.fstat(file.fileno()).st_size - header.data_offset) // dtype.itemsize
            found.append((piece, header.shape[0], there))
        if not sharded:
            break
    assert dtype is not None
    shard_rows = 0
    if sharded:
        with suppress(ValueError, TypeError):
            shard_rows = int(meta.get("shard_rows", 0))
        shard_rows = shard_rows if shard_rows > 0 else found[0][1]
        if shard_rows <= 0:
            raise FormatError(f"nothing shows how many rows a file of {SHARDS} has", path=str(root))
    return _Files(shard_rows, dtype, found)


def _write_header(piece: Piece, dtype: np.dtype[Any], rows: int) -> None:
    with piece.open(dtype, flags=os.O_RDWR) as (file, header):
        text = header_bytes(dtype, rows, header.data_offset)
        write_all(file.fileno(), np.frombuffer(text, np.uint8), 0, piece.path)
        os.fsync(file.fileno())

"""Everything that can be wrong with a step dataset, looked for."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import ChecksumError, FormatError
from stepwell.files.checked import Growing
from stepwell.files.lock import is_locked
from stepwell.files.regular import open_regular
from stepwell.store import Progress, Report
from stepwell.stores.steps import database
from stepwell.stores.steps.blocks import BlockChecks
from stepwell.stores.steps.database import Seen
from stepwell.stores.steps.layout import (
    CHECKSUMS,
    DATABASE,
    LOCK,
    MANIFEST,
    Piece,
    load_rows,
    piece_name,
    pieces,
)
from stepwell.stores.steps.manifest import BLOCK_BYTES, Manifest

_MAX_PROBLEMS = 100

if TYPE_CHECKING:
    from stepwell.stores.steps.reader import StepReader


def check(dataset: "StepReader", quick: bool, progress: Progress) -> Report:
    """Compare the files with one another; what is in memory is not used.

    Only the rows and runs that were seen are looked at: more may be appended meanwhile.
    """
    found = _Check(dataset)
    rows = dataset._seen.rows
    try:
        found.tables()
        if quick:
            found.unchecked.append("the rows and their checksums: a quick check leaves them out")
        else:
            found.rows(progress)
    except FormatError as error:
        found.problems.append(error)
        found.unchecked.append("everything that needs what is wrong here")
    except FileNotFoundError as error:
        path = str(error.filename or dataset.path)
        found.problems.append(FormatError("expected a file, got none", path=path))
        found.unchecked.append("everything that needs the missing file")
    progress(rows, rows)
    if dataset._far is not None:
        for problem in found.problems:
            dataset._far.mirror.translate(problem)
    problems, checked, unchecked = tuple(found.problems), found.checked, found.unchecked
    return Report(dataset.kind, dataset.path, problems, tuple(checked), tuple(unchecked))


def health(root: Path, dtype: np.dtype[Any]) -> str:
    """ "fine", or what a writer is doing or has left; looks at headers, not at rows."""
    try:
        if is_locked(root / LOCK):
            return "a writer is at work"
        seen = database.look(root / DATABASE)
        manifest = Manifest.read(root, dtype.itemsize)
        headers = _headers(root, seen)
        next_shard = root / piece_name(len(headers), 1)
        if headers[-1][2] or (seen.shard_rows and next_shard.exists()):
            return "rows behind the last commit: a writer was killed"
        known = manifest is None or (manifest.rows, manifest.runs) == seen[:2]
        if not known or any(stated != piece.rows for piece, stated, _ in headers):
            return "headers or manifest behind the last commit: a writer was killed"
    except (FormatError, FileNotFoundError) as error:
        return str(error)
    return "fine"


def _headers(root: Path, seen: Seen) -> list[tuple[Piece, int, bool]]:
    """The files, how many rows the header of each states, and whether there is more behind."""
    found = []
    for piece in pieces(root, seen.rows, seen.shard_rows):
        with piece.open(None) as (file, header):
            end = header.data_offset + piece.rows * header.dtype.itemsize
            found.append((piece, header.shape[0], file.seek(0, 2) > end))
    return found


class _Check:
    def __init__(self, dataset: "StepReader") -> None:
        self.problems: list[FormatError] = []
        self.checked: list[str] = []
        self.unchecked: list[str] = []
        self._root, self._seen, self._dtype = dataset._root, dataset._seen, dataset.dtype
        self._far, self._path = dataset._far, dataset._table._path
        self._runs = np.empty((0, 3), np.int64)
        """First row, number of rows and id of each run that rows can be compared with."""
        self._manifest: Manifest | None = None

    def tables(self) -> None:
        """Everything but the rows."""
        path = str(self._path)
        with database.reading(self._path) as opened:
            broken = [text for (text,) in opened.execute("PRAGMA integrity_check") if text != "ok"]
        self.problems.extend(FormatError(f"SQLite: {text}", path=path) for text in broken)
        self.checked.append("the database, by SQLite's own integrity check")
        self._check_columns(path)
        self._check_ranges(path)
        self.checked.append("that the rows of each run follow those of the run before")
        if self._seen.is_listed:
            self._check_listed()
            return
        try:
            self._manifest = Manifest.read(self._root, self._dtype.itemsize)
        except FormatError as error:
            self.problems.append(error)
        self._check_not_ahead()
        self.checked.append("that headers and manifest are not ahead of the database")

    def _check_columns(self, path: str) -> None:
        with database.reading(self._path, self._seen.identity) as opened:
            wrong, unchecked = database.check_runs(opened, self._seen.last_run)
        self.problems.extend(ChecksumError(text, path=path) for text in wrong[:_MAX_PROBLEMS])
        self.checked.append(f"the columns of {self._seen.runs - unchecked} runs against checksums")
        if unchecked:
            text = f"the columns of {unchecked} runs, which were written without checksums"
            self.unchecked.append(text)

    def _check_ranges(self, path: str) -> None:
        with database.reading(self._path, self._seen.identity) as opened:
            found = opened.execute(
                "SELECT first_step_idx, num_steps, id FROM runs WHERE id <= ? "
                f"ORDER BY {database.IN_ORDER}",
                (self._seen.last_run,),
            ).fetchall()
        for run in found:
            if not all(type(number) is int for number in run):
                message = f"run {run[2]}: expected whole numbers, got {run[0]!r} and {run[1]!r}"
                raise FormatError(message, path=path)
        runs = np.array(found, np.int64).reshape(-1, 3)
        expected = np.cumsum(runs[:, 1]) - runs[:, 1]
        bad = np.flatnonzero((runs[:, 0] != expected) | (runs[:, 1] < 0))
        if not len(bad):
            self._runs = runs
            return
        first, _, run = runs[bad[0]]
        message = f"run {run}: expected to begin at row {expected[bad[0]]}, got {first}"
        self.problems.append(FormatError(message, path=path))
        self.unchecked.append("which run each row belongs to: the ranges contradict each other")

    def _check_listed(self) -> None:
        """Shards that have a list: they, and the database, are what it has."""
        seen, root = self._seen, self._root
        assert seen.metadata is not None
        if self._far is not None:  # whose database was compared when it came
            self.problems += self._far.check_headers(seen)
        else:
            with open_regular(self._path) as file:
                seen.metadata.check(file, str(self._path))
            for part in seen.parts:
                with Piece(root, part.name, 0, 0).open(seen.dtype, part.rows) as (file, header):
                    size = os.fstat(file.fileno()).st_size
                    if (header.shape, size) != ((part.rows,), part.bytes):
                        message = f"expected {part.rows} rows in {part.bytes} bytes"
                        message += f", got {header.shape} in {size}"
                        raise FormatError(message, path=str(root / part.name), offset=10)
        self.checked.append("that database and shards are those of dataset.json")

    def _check_not_ahead(self) -> None:
        """Headers and checksums may be behind what was committed, where a writer was killed; never
        ahead. The database is read last: a writer may commit meanwhile."""
        root = self._root
        headers = _headers(root, database.look(root / DATABASE))
        seen = database.look(root / DATABASE)
        limits = {piece.name: piece.rows for piece in pieces(root, seen.rows, seen.shard_rows)}
        known = self._manifest
        if known is not None and (known.rows > seen.rows or known.runs > seen.runs):
            message = (
                f"expected at most {seen.rows} rows of {seen.runs} runs, as the database has, "
                f"got {known.rows} of {known.runs}; `stepwell repair` rebuilds what the rows hold"
            )
            self.problems.append(FormatError(message, path=str(root / MANIFEST)))
        for piece, stated, _ in headers:
            if stated > limits[piece.name]:
                message = f"header: expected at most {limits[piece.name]} rows, got {stated}"
                self.problems.append(FormatError(message, path=str(piece.path), offset=10))

    def rows(self, progress: Progress) -> None:
        """Every row: its run and step, and its checksum."""
        root, dtype, rows = self._root, self._dtype, self._seen.rows
        known, again = self._manifest or Manifest(), Manifest()
        if self._far is not None and self._seen.block_bytes:
            listed = [part.checksums for part in self._seen.parts]
            each = listed if self._seen.is_listed else [CHECKSUMS]
            self._far.mirror.side_by_side(self._far.mirror.whole, each)
        blocks = _Blocks(root, self._seen, dtype) if self._seen.block_bytes else None
        covered = min(known.rows, rows)
        step = max(BLOCK_BYTES // dtype.itemsize, 1)
        for begin in range(0, rows, step):
            end = min(begin + step, rows)
            some = self._seen.pieces(root, begin, end)
            part = load_rows(some, dtype) if self._far is None else self._far.rows_of(some, dtype)
            self._check_places(part, begin)
            again.add(part[: max(covered - begin, 0)].view(np.uint8))
            if blocks is not None:
                blocks.add(some, part.view(np.uint8))
            progress(end, rows)
        found = [] if blocks is None else blocks.problems()
        self.problems += found
        if known.rows > rows and again.covered % BLOCK_BYTES:
            again.blocks.pop()  # rows came since that are in this block, too
        for block, (want, got) in enumerate(zip(known.blocks, again.blocks, strict=False)):
            if want != got and not found:
                first = block * BLOCK_BYTES // dtype.itemsize
                last = min(((block + 1) * BLOCK_BYTES - 1) // dtype.itemsize, covered - 1)
                where = f"block {block} (rows {first} to {last})"
                message = f"{where}: expected CRC32C {want:08x}, got {got:08x}"
                self.problems.append(ChecksumError(message, path=str(root)))
        if blocks is not None:
            covered = rows
        self.checked.append(f"{rows} rows, {covered} of them against checksums")
        if blocks is None:
            self.unchecked.append(
                f"rows when they are read from a map: there is no {CHECKSUMS}, which the next "
                "writer makes"
            )
        if covered < rows:
            self.unchecked.append(
                f"checksums of {rows - covered} rows: the manifest covers the first {covered}"
            )

    def _check_places(self, part: NDArray[Any], begin: int) -> None:
        """Rows whose run_id or step_index is wrong."""
        runs = self._runs
        if not len(runs):
            return
        row = np.arange(begin, begin + len(part))
        run = np.searchsorted(runs[:, 0] + runs[:, 1], row, side="right")
        run = np.minimum(run, len(runs) - 1)
        for name, expected in (("run_id", runs[run, 2]), ("step_index", row - runs[run, 0])):
            if name not in (part.dtype.names or ()) or part[name].ndim > 1:
                continue
            bad = np.flatnonzero(part[name] != expected)
            if len(bad):
                at = int(bad[0])
                self.problems.append(
                    FormatError(
                        f"row {begin + at}: expected {name} {expected[at]}, got {part[name][at]} "
                        f"({len(bad)} such rows here)",
                        path=str(self._root),
                    )
                )


class _Blocks:
    """The checksums of small blocks, made again of the rows as they are read in order."""

    def __init__(self, root: Path, seen: Seen, dtype: np.dtype[Any]) -> None:
        self._root, self._seen, self._size = root, seen, dtype.itemsize
        self._checks = BlockChecks(root, seen)
        self._known = self._checks.opened(self._size)
        self._made = Growing(self._known.block_bytes)

    def add(self, some: list[Piece], data: NDArray[np.uint8]) -> None:
        at = 0
        for piece in some:
            end = at + piece.rows * self._size
            self._made.add(data[at:end], piece.inside * self._size)
            at = end

    def problems(self) -> list[FormatError]:
        """One for each stretch of blocks that differ."""
        bad = self._known.differing(0, bytes(self._made.rest))
        found: list[FormatError] = []
        for stretch in np.split(bad, np.flatnonzero(np.diff(bad) > 1) + 1):
            if len(stretch):
                found.append(self._problem(int(stretch[0]), len(stretch)))
        return found

    def _problem(self, block: int, count: int) -> FormatError:
        every = self._seen.pieces(self._root)
        piece = next(p for p in reversed(every) if self._checks.first_block(p, self._size) <= block)
        at = (block - self._checks.first_block(piece, self._size)) * self._known.block_bytes
        with piece.open(None) as (_, header):
            offset = header.data_offset + at
        some = "1 block" if count == 1 else f"{count:,} blocks"
        name = self._seen.parts[piece.number].checksums if self._seen.is_listed else CHECKSUMS
        message = f"{some} of {self._known.block_bytes:,} bytes: not the checksums of {name}"
        return ChecksumError(message, path=str(piece.path), offset=offset)

"""Everything that can be wrong with a step dataset, looked for."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError
from stepwell.files.lock import is_locked
from stepwell.store import Progress, Report
from stepwell.stores.steps import database
from stepwell.stores.steps.database import Facts, Seen
from stepwell.stores.steps.layout import DATABASE, LOCK, MANIFEST, Piece, piece_name, pieces
from stepwell.stores.steps.manifest import BLOCK_BYTES, Manifest

if TYPE_CHECKING:
    from stepwell.stores.steps.reader import StepReader


class _Findings(NamedTuple):
    """What is wrong, what was checked, and what could not be."""

    problems: list[FormatError]
    checked: list[str]
    unchecked: list[str]


def check(dataset: "StepReader", quick: bool, progress: Progress) -> Report:
    """Compare the files with one another; what is in memory is not asked.

    Only the rows and runs that were seen are looked at: more may be appended meanwhile.
    """
    found, root, rows = _Findings([], [], []), dataset._root, dataset._seen.rows
    try:
        runs, manifest = _check_tables(found, dataset)
        if quick:
            found.unchecked.append("the rows and their checksums: a quick check leaves them out")
        else:
            covered = 0 if manifest is None else min(manifest.rows, rows)
            found.problems.extend(_broken_rows(dataset, runs, manifest, progress))
            found.checked.append(f"{rows} rows, {covered} of them against checksums")
            if covered < rows:
                found.unchecked.append(
                    f"checksums of {rows - covered} rows: the manifest covers the first {covered}"
                )
    except FormatError as error:
        found.problems.append(error)
        found.unchecked.append("everything that needs what is wrong here")
    except FileNotFoundError as error:
        path = str(error.filename or root)
        found.problems.append(FormatError("expected a file, there is none", path=path))
        found.unchecked.append("everything that needs the missing file")
    progress(rows, rows)
    problems, checked, unchecked = found
    return Report(dataset.kind, dataset.path, tuple(problems), tuple(checked), tuple(unchecked))


def _check_tables(
    found: _Findings, dataset: "StepReader"
) -> tuple[NDArray[np.int64], Manifest | None]:
    """Everything but the rows; return runs that rows can be compared with, and the manifest."""
    root = dataset._root
    found.problems.extend(_broken_database(root))
    found.checked.append("the database, by SQLite's own integrity check")
    runs = _runs(root, dataset._seen)
    broken = _broken_ranges(root, runs)
    found.problems.extend(broken)
    found.checked.append("that the rows of each run follow those of the run before")
    if broken:  # which row belongs to which run is anyone's guess
        runs = runs[:0]
        found.unchecked.append("which run each row belongs to: the ranges contradict each other")
    manifest = None
    try:
        manifest = Manifest.read(root, dataset.dtype.itemsize)
    except FormatError as error:
        found.problems.append(error)
    found.problems.extend(_ahead_of_the_database(root, manifest))
    found.checked.append("that headers and manifest are not ahead of the database")
    return runs, manifest


def _stored(dataset: "StepReader", begin: int, end: int) -> NDArray[Any]:
    """Rows as the files have them."""
    parts, dtype = [], dataset.dtype
    for piece in pieces(dataset._root, end, dataset._shard_rows, begin):
        file, header = piece.open(dtype, piece.inside + piece.rows)
        with file:
            file.seek(header.data_offset + piece.inside * dtype.itemsize)
            parts.append(np.fromfile(file, np.uint8, piece.rows * dtype.itemsize))
    return np.concatenate(parts).view(dtype)


def health(root: Path, dtype: np.dtype[Any]) -> str:
    """ "fine", or what a writer is doing or has left; looks at headers, not at rows."""
    try:
        if is_locked(root / LOCK):
            return "a writer is at work"
        facts = _facts(root)
        manifest = Manifest.read(root, dtype.itemsize)
        if _rows_behind(root, facts):
            return "rows behind the last commit: a writer was killed"
        headers = [stated == piece.rows for piece, stated in _headers(root, facts)]
        known = manifest is None or (manifest.rows, manifest.runs) == facts.seen[:2]
        if not all(headers) or not known:
            return "headers or manifest behind the last commit: a writer was killed"
    except (FormatError, FileNotFoundError) as error:
        return str(error)
    return "fine"


def _rows_behind(root: Path, facts: Facts) -> bool:
    """Whether a file goes on behind the committed rows, or a shard is there that has none."""
    committed = pieces(root, facts.seen.rows, facts.shard_rows)
    if facts.shard_rows and (root / piece_name(max(len(committed), 1), 1)).exists():
        return True
    last = committed[-1] if committed else Piece(root, piece_name(0, 1), 0, 0)
    file, header = last.open(facts.dtype)
    with file:
        end = header.data_offset + last.rows * header.dtype.itemsize
        return file.seek(0, 2) > end


def _facts(root: Path) -> Facts:
    with database.reading(root / DATABASE) as opened:
        return database.facts(opened, root / DATABASE)


def _headers(root: Path, facts: Facts) -> list[tuple[Piece, int]]:
    """The files, and how many rows the header of each states."""
    found = []
    for piece in pieces(root, facts.seen.rows, facts.shard_rows):
        file, header = piece.open(None)
        file.close()
        found.append((piece, header.shape[0]))
    return found


def _ahead_of_the_database(root: Path, manifest: Manifest | None) -> list[FormatError]:
    """Headers and checksums may be behind what was committed, where a writer was killed; never
    ahead. The database is asked last: a writer may commit meanwhile."""
    headers = _headers(root, _facts(root))
    facts = _facts(root)
    limits = {piece.name: piece.rows for piece in pieces(root, facts.seen.rows, facts.shard_rows)}
    problems = []
    committed = facts.seen.rows
    if manifest is not None and manifest.rows > committed:
        message = f"expected at most {committed} rows, as the database has, got {manifest.rows}"
        problems.append(FormatError(message, path=str(root / MANIFEST)))
    for piece, stated in headers:
        if stated > limits[piece.name]:
            message = f"header: expected at most {limits[piece.name]} rows, got {stated}"
            problems.append(FormatError(message, path=str(piece.path), offset=10))
    return problems


def _broken_database(root: Path) -> list[FormatError]:
    path = root / DATABASE
    with database.reading(path) as opened:
        found = [text for (text,) in opened.execute("PRAGMA integrity_check") if text != "ok"]
    return [FormatError(f"SQLite: {text}", path=str(path)) for text in found]


def _runs(root: Path, seen: Seen) -> NDArray[np.int64]:
    """First row, number of rows and id of each run."""
    path = root / DATABASE
    with database.reading(path, seen.identity) as opened:
        found = opened.execute(
            "SELECT first_step_idx, num_steps, id FROM runs WHERE id <= ? "
            "ORDER BY first_step_idx, id",
            (seen.last_run,),
        ).fetchall()
    for run in found:
        if not all(type(number) is int for number in run):
            message = f"run {run[2]}: expected whole numbers, got {run[0]!r} and {run[1]!r}"
            raise FormatError(message, path=str(path))
    return np.array(found, np.int64).reshape(-1, 3)


def _broken_ranges(root: Path, runs: NDArray[np.int64]) -> list[FormatError]:
    expected = np.concatenate([[0], np.cumsum(runs[:, 1])[:-1]]) if len(runs) else runs[:, 0]
    bad = np.flatnonzero((runs[:, 0] != expected) | (runs[:, 1] < 0))
    if not len(bad):
        return []
    first, _, run = runs[bad[0]]
    message = f"run {run}: expected to begin at row {expected[bad[0]]}, got {first}"
    return [FormatError(message, path=str(root / DATABASE))]


def _broken_rows(
    dataset: "StepReader",
    runs: NDArray[np.int64],
    manifest: Manifest | None,
    progress: Progress,
) -> list[FormatError]:
    root, dtype, rows = dataset._root, dataset.dtype, dataset._seen.rows
    problems: list[FormatError] = []
    blocks = [] if manifest is None else manifest.blocks
    covered = 0 if manifest is None else min(manifest.rows, rows)
    # A block of the manifest at a time; it ends inside a row where rows do not divide it.
    found, inside, block = 0, 0, 0
    step = max(BLOCK_BYTES // dtype.itemsize, 1)
    for begin in range(0, rows, step):
        part = _stored(dataset, begin, min(begin + step, rows))
        problems += _misplaced(root, part, begin, runs)
        data = part[: max(covered - begin, 0)].view(np.uint8).reshape(-1)
        while len(data):
            piece = data[: BLOCK_BYTES - inside]
            found, inside = _core.crc32c(piece, found), inside + len(piece)
            data = data[len(piece) :]
            last = block == len(blocks) - 1 and begin + len(part) >= covered and not len(data)
            if inside == BLOCK_BYTES or last:
                if found != blocks[block] and not (last and manifest and manifest.rows > rows):
                    problems.append(_damaged(root, block, blocks[block], found, dtype.itemsize))
                found, inside, block = 0, 0, block + 1
        progress(begin + len(part), rows)
    return problems


def _damaged(root: Path, block: int, expected: int, found: int, row_bytes: int) -> ChecksumError:
    first = block * BLOCK_BYTES // row_bytes
    last = ((block + 1) * BLOCK_BYTES - 1) // row_bytes
    return ChecksumError(
        f"block {block} (rows {first} to {last}): expected CRC32C {expected:08x}, got {found:08x}",
        path=str(root),
    )


def _misplaced(
    root: Path, part: NDArray[Any], begin: int, runs: NDArray[np.int64]
) -> list[FormatError]:
    """Rows that say they belong elsewhere."""
    names = part.dtype.names or ()
    if not len(runs) or not len(part):
        return []
    row = np.arange(begin, begin + len(part))
    run = np.searchsorted(runs[:, 0] + runs[:, 1], row, side="right")
    run = np.minimum(run, len(runs) - 1)
    problems = []
    for name, expected in (("run_id", runs[run, 2]), ("step_index", row - runs[run, 0])):
        if name in names and part[name].ndim == 1:
            bad = np.flatnonzero(part[name] != expected)
            if len(bad):
                at = int(bad[0])
                problems.append(
                    FormatError(
                        f"row {begin + at}: expected {name} {expected[at]}, got {part[name][at]} "
                        f"({len(bad)} such rows here)",
                        path=str(root),
                    )
                )
    return problems

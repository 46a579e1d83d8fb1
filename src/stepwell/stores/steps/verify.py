"""Everything that can be wrong with a step dataset, looked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError
from stepwell.stores.steps import database
from stepwell.stores.steps.layout import DATABASE, MANIFEST, open_piece, pieces
from stepwell.stores.steps.manifest import BLOCK_BYTES, Manifest

__all__ = ["find_problems"]

Read = Callable[[int, int], NDArray[Any]]
"""Rows from the first to before the last, as a structured array."""


def find_problems(
    root: Path,
    dtype: np.dtype[Any],
    rows: int,
    last_run: int,
    read: Read,
    on_progress: Callable[[int, int], None] | None,
) -> list[FormatError]:
    """Compare rows with runs and sums; return what does not agree.

    Only the first `rows` and the runs up to `last_run` are looked at: more may be appended.
    """
    problems = _broken_database(root)
    if problems:
        return problems
    path = root / DATABASE
    with database.reading(path) as opened:
        found = opened.execute(
            "SELECT first_step_idx, num_steps, id FROM runs WHERE id <= ? "
            "ORDER BY first_step_idx, id",
            (last_run,),
        ).fetchall()
    for run in found:
        if not all(type(number) is int for number in run):
            message = f"run {run[2]}: expected whole numbers, got {run[0]!r} and {run[1]!r}"
            return [FormatError(message, path=str(root / DATABASE))]
    runs = np.array(found, np.int64).reshape(-1, 3)
    problems += _broken_ranges(root, runs)
    if problems:
        runs = runs[:0]  # which row belongs to which run is anyone's guess
    problems += _broken_rows(root, dtype, rows, runs, read, on_progress)
    return problems + _ahead_of_the_database(root, dtype)


def _ahead_of_the_database(root: Path, dtype: np.dtype[Any]) -> list[FormatError]:
    """Headers and sums may be behind what was committed, where a writer was killed; never ahead."""
    try:
        manifest = Manifest.read(root, dtype.itemsize)
        with database.reading(root / DATABASE) as opened:
            facts = database.facts(opened, root / DATABASE)
        headers = []
        for piece in pieces(root, facts.rows, facts.shard_rows):
            file, header = open_piece(piece.path, None, 0)
            file.close()
            headers.append((piece, header.shape[0]))
    except FormatError as error:
        return [error] if error.path != str(root / MANIFEST) else []  # which was said before
    problems = []
    if manifest is not None and manifest.rows > facts.rows:
        message = f"expected at most {facts.rows} rows, as the database has, got {manifest.rows}"
        problems.append(FormatError(message, path=str(root / MANIFEST)))
    for piece, stated in headers:
        if stated > piece.rows:
            message = f"header: expected at most {piece.rows} rows, got {stated}"
            problems.append(FormatError(message, path=str(piece.path), offset=10))
    return problems


def _broken_database(root: Path) -> list[FormatError]:
    path = root / DATABASE
    try:
        with database.reading(path) as opened:
            said = [text for (text,) in opened.execute("PRAGMA integrity_check")]
    except FormatError as error:
        return [error]
    return (
        [] if said == ["ok"] else [FormatError(f"SQLite: {text}", path=str(path)) for text in said]
    )


def _broken_ranges(root: Path, runs: NDArray[np.int64]) -> list[FormatError]:
    expected = np.concatenate([[0], np.cumsum(runs[:, 1])[:-1]]) if len(runs) else runs[:, 0]
    bad = np.flatnonzero((runs[:, 0] != expected) | (runs[:, 1] < 0))
    if not len(bad):
        return []
    first, _, run = runs[bad[0]]
    message = f"run {run}: expected to begin at row {expected[bad[0]]}, got {first}"
    return [FormatError(message, path=str(root / DATABASE))]


def _broken_rows(
    root: Path,
    dtype: np.dtype[Any],
    rows: int,
    runs: NDArray[np.int64],
    read: Read,
    on_progress: Callable[[int, int], None] | None,
) -> list[FormatError]:
    problems: list[FormatError] = []
    manifest = None
    try:
        manifest = Manifest.read(root, dtype.itemsize)
    except FormatError as error:
        problems.append(error)
    blocks = [] if manifest is None else manifest.blocks
    covered = 0 if manifest is None else min(manifest.rows, rows)
    # A block of the manifest at a time; it ends inside a row where rows do not divide it.
    found, inside, block = 0, 0, 0
    step = max(BLOCK_BYTES // dtype.itemsize, 1)
    for begin in range(0, rows, step):
        part = read(begin, min(begin + step, rows))
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
        if on_progress is not None:
            on_progress(begin + len(part), rows)
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

"""Step datasets to test with, and the arrays they are made of."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import stepwell as sw
from stepwell.stores import RunColumn, StepWriter
from tests.arrays import random_array

if TYPE_CHECKING:  # machines with a GPU have no hypothesis
    from tests.contract import Expected

STEP = np.dtype(
    [("board", "<u8"), ("ev", "<f4", (2,)), ("move", "u1"), ("run_id", "<u4"), ("step_index", "u1")]
)
"""22 bytes, so that rows end anywhere in a cache line and in a block."""

COLUMNS = {
    "max_score": RunColumn(int, indexed=True),
    "engine": RunColumn(str, optional=True),
    "elapsed_s": RunColumn(float, optional=True),
}
LENGTHS = [7, 1, 0, 30, 12, 20]
ENGINES = ["quick", "slow", None]


def columns(run: int) -> dict[str, Any]:
    """What is known of a run."""
    return {"max_score": run * 10, "engine": ENGINES[run % 3], "elapsed_s": run / 4}


def rows_of(run: int, length: int) -> NDArray[Any]:
    """The rows of a run as they are stored."""
    rows = random_array(STEP, length, seed=run + 1)
    rows["run_id"], rows["step_index"] = run, np.arange(length)
    return rows


def rows_of_all(lengths: Sequence[int] = LENGTHS) -> NDArray[Any]:
    parts = [rows_of(run, length) for run, length in enumerate(lengths)]
    return np.concatenate([np.empty(0, STEP), *parts])


def ranges(lengths: Sequence[int] = LENGTHS) -> list[range]:
    """Where each run's rows are."""
    ends = np.cumsum([0, *lengths]).tolist()
    return [range(begin, end) for begin, end in pairwise(ends)]


def fields(rows: NDArray[Any]) -> "Expected":
    return {name: rows[name].copy() for name in rows.dtype.names or ()}


def build(path: Path, lengths: Sequence[int] = LENGTHS, **options: Any) -> NDArray[Any]:
    """Write a dataset, or add the runs that it does not have yet; return all of its rows."""
    with StepWriter(path, STEP, COLUMNS, mode="a", **options) as writer:
        there = len(sw.StepReader.open(path).runs)
        for run in range(there, len(lengths)):
            writer.append(rows_of(run, lengths[run]), **columns(run))
    return rows_of_all(lengths)


def built(path: Path) -> Path:
    """A dataset whose database has no log beside it."""
    build(path)
    for left in path.glob("metadata.db-*"):
        left.unlink()
    return path


@contextmanager
def tampered(path: Path) -> Iterator[sqlite3.Connection]:
    """The database of a dataset, to be changed behind everyone's back."""
    with closing(sqlite3.connect(path / "metadata.db")) as database:
        yield database
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def of_before(path: Path) -> None:
    """Make a dataset one of before there were checksums of small blocks."""
    (path / "steps.crc").unlink()
    with tampered(path) as database:
        database.execute("DELETE FROM meta WHERE key LIKE 'block_%'")


def original(path: Path, lengths: Sequence[int] = LENGTHS) -> NDArray[Any]:
    """A dataset as the original program writes them: no meta table, no manifest of ours."""
    path.mkdir()
    rows = rows_of_all(lengths)
    np.save(path / "steps.npy", rows)
    with closing(sqlite3.connect(path / "metadata.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(
            "CREATE TABLE runs (id INTEGER PRIMARY KEY, first_step_idx INTEGER NOT NULL, "
            "num_steps INTEGER NOT NULL, max_score INTEGER NOT NULL, engine TEXT)"
        )
        for run, places in enumerate(ranges(lengths)):
            known = columns(run)
            database.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?)",
                (run, places.start, len(places), known["max_score"], known["engine"]),
            )
        database.commit()
    return rows

"""Other ways to keep a replay: JSON in SQLite, as it was done before, and plain h5py."""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
from numpy.typing import NDArray

from benchmarks.replay_data import FRAME, OBSERVATION

BATCH = 64
"""Steps of a commit."""
CHUNK = 16
"""Steps of a chunk, the original's choice."""

CODECS: dict[str, dict[str, Any]] = {
    "none": {},
    "lzf": {"compression": "lzf"},
    "gzip": {"compression": "gzip", "compression_opts": 4},
    "zstd": dict(hdf5plugin.Zstd(clevel=3)),
}

_TABLE = """
CREATE TABLE steps (
    episode_id TEXT NOT NULL, step_index INTEGER NOT NULL, action INTEGER, observation BLOB,
    reward REAL NOT NULL, terminated INTEGER NOT NULL, truncated INTEGER NOT NULL, info BLOB,
    render_payload BLOB, timestamp TEXT NOT NULL, agent_id TEXT, run_id TEXT,
    PRIMARY KEY (episode_id, step_index)
)
"""


def write_json(path: Path, steps: Iterable[dict[str, Any]]) -> None:
    """Arrays as JSON in SQLite, in WAL mode, a transaction for every batch."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(_TABLE)
        batch: list[tuple[Any, ...]] = []
        for i, step in enumerate(steps):
            seen = json.dumps(step["observation"].tolist()).encode()
            shown = json.dumps(step["frame"].tolist()).encode()
            now = "2026-11-15T10:00:00.000000+00:00"
            batch.append(
                ("e", i, step["action"], seen, step["reward"], 0, 0, None, shown, now, None, "r")
            )
            if len(batch) == BATCH:
                _commit(database, batch)
        _commit(database, batch)


def _commit(database: sqlite3.Connection, batch: list[tuple[Any, ...]]) -> None:
    database.execute("BEGIN")
    database.executemany(f"INSERT INTO steps VALUES ({', '.join('?' * 12)})", batch)
    database.execute("COMMIT")
    batch.clear()


def read_json(path: Path, steps: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """The first steps of an episode, back as arrays."""
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute(
            "SELECT step_index, action, reward, observation, render_payload FROM steps "
            "WHERE episode_id = 'e' AND step_index < ? ORDER BY step_index",
            (steps,),
        ).fetchall()
    frames = np.array([json.loads(row[4]) for row in rows], np.uint8)
    return frames, np.array([json.loads(row[3]) for row in rows], np.uint8)


@contextmanager
def hdf5_writer(path: Path, codec: str, chunk: int = CHUNK) -> Iterator[Any]:
    """A file with `frames` and `observations`, and a function that appends a batch of both."""
    with h5py.File(path, "w", libver="latest") as file:
        sets = [
            file.create_dataset(
                name,
                (0, *shape),
                np.uint8,
                maxshape=(None, *shape),
                chunks=(chunk, *shape),
                **CODECS[codec],
            )
            for name, shape in (("frames", FRAME), ("observations", OBSERVATION))
        ]

        def append(*arrays: Any) -> None:
            for dataset, rows in zip(sets, arrays, strict=True):
                begin = len(dataset)
                dataset.resize(begin + len(rows), 0)
                dataset[begin:] = rows

        yield append


def write_hdf5(path: Path, steps: Iterable[dict[str, Any]], codec: str) -> None:
    """Both arrays in HDF5, a batch at a time; nothing else is written, nothing is synced."""
    with hdf5_writer(path, codec) as append:
        frames, seen = [], []
        for step in steps:
            frames.append(step["frame"])
            seen.append(step["observation"])
            if len(frames) == BATCH:
                append(np.array(frames), np.array(seen))
                frames, seen = [], []
        if frames:
            append(np.array(frames), np.array(seen))


def read_hdf5(file: h5py.File, steps: int) -> tuple[NDArray[Any], NDArray[Any]]:
    return file["frames"][:steps], file["observations"][:steps]


def take_hdf5(dataset: h5py.Dataset, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Rows in any order; HDF5 wants them ascending and once."""
    wanted, back = np.unique(rows, return_inverse=True)
    found: NDArray[Any] = dataset[wanted][back]
    return found

"""Databases as they were before there were replay stores: every array a BLOB of JSON."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

SCHEMA = """
CREATE TABLE IF NOT EXISTS steps (
    episode_id TEXT NOT NULL, step_index INTEGER NOT NULL, action INTEGER, observation BLOB,
    reward REAL, terminated INTEGER NOT NULL, truncated INTEGER NOT NULL, info BLOB,
    render_payload BLOB, timestamp TEXT NOT NULL, agent_id TEXT, run_id TEXT,
    PRIMARY KEY (episode_id, step_index)
);
CREATE TABLE IF NOT EXISTS episodes (
    episode_id TEXT PRIMARY KEY, total_reward REAL, steps INTEGER, run_id TEXT
);
"""


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """Such a database, made when it is not there; what was done to it is kept."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(SCHEMA)
        with connection:
            yield connection


def blob(value: Any) -> bytes | None:
    def plain(array: Any) -> Any:
        return array.tolist()

    return None if value is None else json.dumps(value, default=plain).encode()


def step(connection: sqlite3.Connection, episode: str, index: int, **values: Any) -> None:
    """Put a step; `observation`, `render_payload` and `info` become JSON unless they are bytes."""
    row = {
        "action": index % 4,
        "reward": index / 2,
        "terminated": 0,
        "truncated": 0,
        "timestamp": f"2026-11-15T10:{index // 60:02d}:{index % 60:02d}+00:00",
        "agent_id": None,
        "run_id": episode.partition("-")[0],
        **values,
        "episode_id": episode,
        "step_index": index,
    }
    for name in ("observation", "render_payload", "info"):
        value = row.get(name)
        row[name] = value if isinstance(value, bytes) else blob(value)
    names = ", ".join(row)
    places = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO steps ({names}) VALUES ({places})", list(row.values()))


def picture(seed: int, shape: tuple[int, ...] = (8, 6, 3)) -> Any:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def episode(
    connection: sqlite3.Connection, name: str, begin: int, end: int, *, over: bool = True
) -> None:
    """Steps of an episode with pictures, a frame for every second step."""
    number = sum(name.encode())
    for i in range(begin, end):
        step(
            connection,
            name,
            i,
            observation=picture(number + i, (5, 4)),
            render_payload=picture(number - i) if i % 2 == 0 else None,
            info={"lives": 3} if i % 3 == 0 else None,
            terminated=int(over and i == end - 1),
        )
    if over:
        connection.execute(
            "INSERT INTO episodes SELECT episode_id, sum(reward), count(*), run_id FROM steps "
            "WHERE episode_id = ?",
            (name,),
        )

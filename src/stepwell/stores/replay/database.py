"""telemetry.sqlite: the scalars of every step and episode, and their rows in the HDF5 files.

Its transaction is the commit. A row that is here has its arrays on the disk already.
"""

import errno
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import ChecksumError, FormatError, VersionError
from stepwell.files import catalog
from stepwell.files.catalog import connect, in_turn, taking_turns, transaction, translated
from stepwell.files.regular import check_inside
from stepwell.stores.replay.channels import OBSERVATIONS, Channel, count_rows
from stepwell.stores.replay.refs import FrameRef, check_run_id

VERSION, REMOVED_VERSION = 1, 2  # as it is made, and once an episode was removed
DATABASE = "telemetry/telemetry.sqlite"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT NOT NULL PRIMARY KEY,
    file TEXT NOT NULL,
    state TEXT NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    steps INTEGER NOT NULL DEFAULT 0,
    episodes INTEGER NOT NULL DEFAULT 0,
    enqueued INTEGER NOT NULL DEFAULT 0,
    written INTEGER NOT NULL DEFAULT 0,
    dropped INTEGER NOT NULL DEFAULT 0,
    lag_steps INTEGER NOT NULL DEFAULT 0,
    lag_seconds REAL NOT NULL DEFAULT 0,
    channels TEXT NOT NULL DEFAULT '[]',
    rows TEXT NOT NULL DEFAULT '{}',
    checksum INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS episodes (
    episode_id TEXT NOT NULL PRIMARY KEY,
    run_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    agent_id TEXT,
    total_reward REAL NOT NULL,
    steps INTEGER NOT NULL,
    dropped INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    terminated INTEGER NOT NULL,
    truncated INTEGER NOT NULL,
    started_at TEXT NOT NULL,
    ended_at TEXT,
    final_obs_ref TEXT,
    checksum INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS idx_episodes_run_id ON episodes(run_id);
CREATE TABLE IF NOT EXISTS steps (
    episode_id TEXT NOT NULL,
    step_index INTEGER NOT NULL,
    action,
    reward REAL NOT NULL,
    terminated INTEGER NOT NULL,
    truncated INTEGER NOT NULL,
    frame_ref TEXT,
    obs_ref TEXT,
    info BLOB,
    timestamp TEXT NOT NULL,
    agent_id TEXT,
    run_id TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (episode_id, step_index)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS idx_steps_run_id ON steps(run_id);
"""
_BY_FRAME = """CREATE INDEX IF NOT EXISTS idx_steps_frame_ref ON steps(frame_ref)
    WHERE frame_ref IS NOT NULL"""


@dataclass(slots=True)
class Episode:
    """A row of the table of episodes. `number` counts the episodes of a run.

    It has `ended` when its last step was terminated or truncated. One that was cut (a reset in
    the middle of it, a writer's block that failed) has `ended_at` and not `ended`; one that goes
    on, or whose writer was killed, has neither.
    """

    episode_id: str
    run_id: str
    number: int
    agent_id: str | None
    total_reward: float
    steps: int
    dropped: int
    ended: bool
    terminated: bool
    truncated: bool
    started_at: str
    ended_at: str | None = None
    final_obs_ref: str | None = None

    @classmethod
    def begin(
        cls, name: str, run_id: str, number: int, agent_id: str | None, started_at: str
    ) -> "Episode":
        """An episode without a step yet."""
        no = False
        return cls(name, run_id, number, agent_id, 0.0, 0, 0, no, no, no, started_at)

    @classmethod
    def of(cls, row: Sequence[Any], path: Path, *, checked: bool = False) -> "Episode":
        """The episode of a row of the database at `path`: its columns, then its checksum."""
        if not checked:
            check_rows("episode", [tuple(row)], len(EPISODE_COLUMNS), path)
        values = dict(zip(EPISODE_COLUMNS, row, strict=False))
        for name in ("ended", "terminated", "truncated"):
            values[name] = bool(values[name])
        made = cls(**values)
        if row[len(EPISODE_COLUMNS)] is not None:  # so it is as it was written
            return made
        _check_counts(row[0], {name: values[name] for name in ("number", "steps", "dropped")}, path)
        texts = [values[name] for name in ("episode_id", "run_id", "started_at")]
        maybe = [values[name] for name in ("agent_id", "ended_at", "final_obs_ref")]
        _check_types(row[0], texts, str, path)
        _check_types(row[0], [each for each in maybe if each is not None], str, path)
        _check_types(row[0], [values["total_reward"]], float, path)
        try:
            _ = made.final_row
        except FormatError as error:
            message = f"{row[0]}: final_obs_ref leads nowhere: {error.args[0]}"
            raise FormatError(message, path=str(path)) from None
        return made

    @property
    def over(self) -> bool:
        """Whether no step can follow: it has `ended`, or was cut."""
        return self.ended_at is not None

    @property
    def final_row(self) -> int:
        """The row of what was seen after the last step, -1 where nothing was."""
        if self.final_obs_ref is None:
            return -1
        final = FrameRef.of(self.final_obs_ref)
        if (final.run_id, final.dataset) != (self.run_id, OBSERVATIONS):
            raise FormatError(f"{self.episode_id}: {final} is no observation of its run")
        return final.index


EPISODE_COLUMNS = tuple(Episode.__dataclass_fields__)
_PUT_EPISODE = (
    f"INSERT INTO episodes ({', '.join(EPISODE_COLUMNS)}, checksum) "
    f"VALUES ({', '.join('?' * len(EPISODE_COLUMNS))}, ?) ON CONFLICT (episode_id) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in (*EPISODE_COLUMNS[4:], "checksum"))
    + " WHERE run_id = excluded.run_id"
)
STEP_COLUMNS = (
    *("episode_id", "step_index", "action", "reward", "terminated", "truncated", "frame_ref"),
    *("obs_ref", "info", "timestamp", "agent_id", "run_id"),
)

_PAGE_BYTES = 4096  # as SQLite makes new databases
_STEP_VALUES = len(STEP_COLUMNS) + 1
_ROWS_AT_ONCE = 256  # SQLite gives the interpreter back once a statement, not once a row


def _check_counts(of: Any, counts: Mapping[str, Any], path: Path) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or count < 0:
            raise FormatError(f"{of!r}: {name}: expected a count, got {count!r}", path=str(path))


def _check_types(of: Any, values: Iterable[Any], kind: type, path: Path) -> None:
    for value in values:
        if not isinstance(value, kind):
            message = f"{of!r}: expected {kind.__name__}, got {value!r:.40}"
            raise FormatError(message, path=str(path))


def check_rows(noun: str, rows: list[tuple[Any, ...]], count: int, path: Path) -> None:
    """Raise `ChecksumError` for a row that is not as it was written, by its first value."""
    for i, problem in catalog.damaged_rows(rows, count)[:1]:
        raise ChecksumError(f"{noun} {rows[i][0]!r}: {problem}", path=str(path))


def has_checksums(database: sqlite3.Connection) -> str:
    """Which rows have a checksum: "all", or "some" or "none" in a database of before."""
    known = {"NULL": "none", "checksum": "some"}
    return known.get(catalog.checksum_sql(database, "steps"), "all")


def all_episodes(database: sqlite3.Connection) -> sqlite3.Cursor:
    """The rows of all episodes as they began: behind the columns of each its checksum and id."""
    return database.execute(f"{_select_episodes(database)} ORDER BY rowid")


def _select_episodes(database: sqlite3.Connection) -> str:
    checksum = catalog.checksum_sql(database, "episodes")
    return f"SELECT {', '.join(EPISODE_COLUMNS)}, {checksum}, rowid FROM episodes"


def find_episode(database: sqlite3.Connection, name: str, path: Path) -> Episode | None:
    """The episode of this name, if there is one."""
    sql = f"{_select_episodes(database)} WHERE episode_id = ?"
    row = database.execute(sql, (name,)).fetchone()
    return None if row is None else Episode.of(row, path)


def steps_of(
    database: sqlite3.Connection, episodes: Iterable[Episode], last: int | None = None
) -> list[list[tuple[Any, ...]]]:
    """The steps of each episode, or its `last` ones, with a checksum behind the columns."""
    checksum = catalog.checksum_sql(database, "steps")
    sql = (
        f"SELECT {', '.join(STEP_COLUMNS)}, {checksum} FROM steps "
        "WHERE episode_id = ? ORDER BY step_index LIMIT ? OFFSET ?"
    )
    found = []
    for e in episodes:
        first = 0 if last is None else max(0, e.steps - last)
        found.append(database.execute(sql, (e.episode_id, e.steps - first, first)).fetchall())
    return found


def database_path(root: Path) -> Path:
    return root / DATABASE


def iso_times(seconds: Sequence[str | float]) -> list[str]:
    """Moments as the database has them: UTC, to the microsecond, or the text that was given."""
    if any(isinstance(moment, str) for moment in seconds):
        return [m if isinstance(m, str) else iso_times([m])[0] for m in seconds]
    moments = np.rint(np.array(seconds) * 1e6).astype(np.int64).view("M8[us]")
    return [f"{text}+00:00" for text in np.datetime_as_string(moments).tolist()]


def iso_time(seconds: str | float) -> str:
    return iso_times([seconds])[0]


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in the database."""

    run_id: str
    file: str
    state: str
    created_at: str
    updated_at: str
    steps: int
    episodes: int
    enqueued: int
    written: int
    dropped: int
    lag_steps: int
    lag_seconds: float
    channels: tuple[Channel, ...]
    rows: Mapping[str, int]
    """How many rows of each dataset were committed."""

    @property
    def committed(self) -> int:
        """The same of all datasets together."""
        return sum(self.rows.values())

    def count(self, kind: str) -> int:
        """Rows of frames, observations or actions."""
        return count_rows(self.channels, self.rows, kind)


REMOVED = "removed"
_RUN_COLUMNS = tuple(RunRow.__dataclass_fields__)
_STATE = _RUN_COLUMNS.index("state")
_COUNTS = ("steps", "episodes", "enqueued", "written", "dropped", "lag_steps")
_TEXTS = ("file", "state", "created_at", "updated_at")


@taking_turns
def run_rows(database: sqlite3.Connection, path: Path) -> dict[str, RunRow]:
    """Every run, in the order in which they began; not those that are being removed."""
    found = (row for row in _runs(database, path) if row[_STATE] != REMOVED)
    return {row[0]: _run_row(row, path) for row in found}


@taking_turns
def removed_runs(database: sqlite3.Connection, path: Path) -> list[str]:
    """The runs that are being removed: they have no steps any more, and may have a file."""
    return [row[0] for row in _runs(database, path) if row[_STATE] == REMOVED]


def _runs(
    database: sqlite3.Connection, path: Path, condition: str = "1", *values: Any
) -> list[tuple[Any, ...]]:
    """Rows of the table of runs that are as they were written."""
    with translated(path):
        checksum = catalog.checksum_sql(database, "runs")
        found = database.execute(
            f"SELECT {', '.join(_RUN_COLUMNS)}, {checksum} FROM runs "
            f"WHERE {condition} ORDER BY created_at, run_id",
            values,
        ).fetchall()
    check_rows("run", found, len(_RUN_COLUMNS), path)
    return [row[:-1] for row in found]


def _run_row(row: Sequence[Any], path: Path) -> RunRow:
    try:
        channels, rows = json.loads(row[-2]), json.loads(row[-1])
        counted = {str(name): int(count) for name, count in rows.items()}
        made = tuple(Channel.from_json(stated, str(path)) for stated in channels)
        check_run_id(row[0])
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise FormatError(f"run {row[0]!r}: {error}", path=str(path)) from None
    values = dict(zip(_RUN_COLUMNS, row, strict=True))
    _check_types(row[0], [values[name] for name in _TEXTS], str, path)
    _check_counts(row[0], counted, path)
    _check_counts(row[0], {name: values[name] for name in _COUNTS}, path)
    return RunRow(**{**values, "channels": made, "rows": counted})


class Database:
    """The writer's connection. Used by one thread at a time."""

    def __init__(self, root: Path) -> None:
        """Open the database of a store, or make one.

        Raises `FormatError`, before anything is touched, when something else is in its place.
        """
        self._path = path = database_path(root)
        check_inside(root, *(f"{DATABASE}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")))
        with suppress(FileNotFoundError), reading(root):
            pass
        self._database = connect(path, create=True)
        try:
            self._prepare()
        except BaseException:
            self._database.close()
            raise

    def _prepare(self) -> None:
        with transaction(self._database, self._path):
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
            if version < VERSION:
                for statement in _SCHEMA.split(";"):
                    self._database.execute(statement)
                self._database.execute(f"PRAGMA user_version = {VERSION}")
            for table in ("runs", "episodes", "steps"):  # of before there were checksums
                if catalog.checksum_sql(self._database, table) == "NULL":
                    self._database.execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER")
            self._database.execute(_BY_FRAME)  # which databases of before have not, either
        if not version:  # so that the file itself is a store, should someone lose the log beside it
            with in_turn(), translated(self._path):
                self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @property
    def connection(self) -> sqlite3.Connection:
        """For transactions of whoever removes something."""
        return self._database

    def runs(self) -> dict[str, RunRow]:
        return run_rows(self._database, self._path)

    def begin_run(self, run_id: str, file: str, now: str) -> None:
        """Enter a run, before its file is there."""
        with transaction(self._database, self._path):
            self._database.execute(
                "INSERT INTO runs (run_id, file, state, created_at, updated_at, checksum) "
                "VALUES (?, ?, 'recording', ?, ?, 0)",
                (run_id, file, now, now),
            )
            self._sign(run_id)

    def commit(
        self,
        run_id: str,
        steps: Sequence[Sequence[Any]],
        episodes: Iterable[Episode],
        facts: Mapping[str, Any],
    ) -> None:
        """Steps, the episodes they belong to and the run's own row, all or nothing."""
        with transaction(self._database, self._path):
            self._insert_steps(catalog.with_checksums(steps, len(STEP_COLUMNS)))
            rows = catalog.with_checksums([*map(astuple, episodes)], len(EPISODE_COLUMNS))
            self._database.executemany(_PUT_EPISODE, rows)
            self.update(run_id, facts)

    def note(
        self, run_id: str, facts: Mapping[str, Any], report: Callable[[dict[str, RunRow]], None]
    ) -> None:
        """Change a run's own row, and `report` all runs while no other writer can change any."""
        with transaction(self._database, self._path):
            self.update(run_id, facts)
            report(run_rows(self._database, self._path))

    def update(self, run_id: str, facts: Mapping[str, Any]) -> None:
        """Change a run's own row, in a transaction."""
        _runs(self._database, self._path, "run_id = ?", run_id)  # never a checksum over damage
        changes = ", ".join(f"{name} = ?" for name in facts)
        self._database.execute(
            f"UPDATE runs SET {changes} WHERE run_id = ?", (*facts.values(), run_id)
        )
        self._sign(run_id)

    def _sign(self, run_id: str) -> None:
        """Bring the checksum of a run's own row up to date."""
        row = self._database.execute(
            f"SELECT {', '.join(_RUN_COLUMNS)} FROM runs WHERE run_id = ?", (run_id,)
        ).fetchone()
        ((*_, checksum),) = catalog.with_checksums([row], len(_RUN_COLUMNS))
        self._database.execute("UPDATE runs SET checksum = ? WHERE run_id = ?", (checksum, run_id))

    def _insert_steps(self, steps: Sequence[Sequence[Any]]) -> None:
        """By statements of as many rows as a power of two, of which SQLite keeps a few ready."""
        max_rows = self._database.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // _STEP_VALUES
        one = f"({', '.join('?' * _STEP_VALUES)})"
        first = 0
        while first < len(steps):
            left = min(len(steps) - first, _ROWS_AT_ONCE, max_rows)
            count = 1 << left.bit_length() - 1
            self._database.execute(
                f"INSERT INTO steps VALUES {', '.join([one] * count)}",
                list(chain.from_iterable(steps[first : first + count])),
            )
            first += count

    @taking_turns
    def episodes(self, run_id: str) -> list[Episode]:
        """The episodes of a run that were committed."""
        with translated(self._path):
            sql = f"{_select_episodes(self._database)} WHERE run_id = ?"
            found = self._database.execute(sql, (run_id,)).fetchall()
        return [Episode.of(row, self._path) for row in found]

    @taking_turns
    def names_given(self, run_id: str) -> int:
        """How far the names that a writer gives to episodes of a run are taken."""
        prefix = f"{run_id}-ep"
        sql = (
            "SELECT max(CAST(substr(episode_id, ?) AS INTEGER)) FROM episodes "
            "WHERE run_id = ? AND substr(episode_id, 1, ?) = ?"
        )
        with translated(self._path):
            found = self._database.execute(
                sql, (len(prefix) + 1, run_id, len(prefix), prefix)
            ).fetchone()[0]
        return 0 if found is None else int(found) + 1

    @taking_turns
    def episode(self, episode_id: str) -> Episode:
        """An episode that was committed."""
        with translated(self._path):
            found = find_episode(self._database, episode_id, self._path)
        if found is None:
            raise FormatError(f"there is no episode {episode_id!r}", path=str(self._path))
        return found

    @taking_turns
    def close(self) -> None:
        with translated(self._path):
            self._database.close()


@contextmanager
def reading(root: Path) -> Iterator[sqlite3.Connection]:
    """The database of a store as it is now, for queries only: later commits of others are not
    seen. Raises `FormatError` when it is not one of ours.

    Raises `FileNotFoundError` when nothing was ever committed to it.
    """
    path = database_path(root)
    check_inside(root, DATABASE)
    # Its writer has just begun, or was killed when it had: a database without a table is one page,
    # and has no log yet but a journal, which a connection that cannot write cannot roll back.
    journal = path.with_name(path.name + "-journal")
    if path.stat().st_size <= (_PAGE_BYTES if journal.exists() else 0):
        raise _no_store_yet(path)
    with catalog.reading(path) as database:
        database.execute("BEGIN")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        if version > REMOVED_VERSION:
            raise VersionError(
                f"expected version {REMOVED_VERSION} or below, got {version}", path=str(path)
            )
        if not version and not tables:
            raise _no_store_yet(path)
        missing = {"runs", "episodes", "steps"} - tables
        if missing:
            raise FormatError(f"there is no table {min(missing)!r}", path=str(path))
        yield database


def _no_store_yet(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "there is no replay store yet", str(path))

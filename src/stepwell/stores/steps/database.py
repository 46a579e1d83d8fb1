"""The runs of a step dataset: a SQLite database whose transaction is the commit."""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError, VersionError
from stepwell.files import catalog
from stepwell.files.catalog import transaction, translated
from stepwell.files.checked import BLOCK_BYTES, MAX_BLOCK_BYTES
from stepwell.files.npy import dtype_from_json, dtype_to_json
from stepwell.lazy import lazy
from stepwell.source import Rows
from stepwell.store import QueryTable, Runs
from stepwell.stores.steps.layout import VERSION, Metadata, Part, Piece, listed_pieces, pieces

_RUNS_AT_ONCE = 10_000
_IDENTITY_RUNS = 16  # the first ones identify a dataset that has no id

OWN = ("id", "first_step_idx", "num_steps")
"""Columns that every dataset has."""
IN_ORDER = "first_step_idx, num_steps, id"
"""How runs are sorted: those without rows come before the one that begins with the same row."""

_META = "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)"
_CHECKSUMS = (
    "CREATE TABLE IF NOT EXISTS run_checksums (id INTEGER PRIMARY KEY, checksum INTEGER NOT NULL)"
)

_SQL_TYPES = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}


@dataclass(frozen=True, slots=True)
class RunColumn:
    """Something known of every run: a Python type, whether a run may be without a value (NULL),
    whether it is queried often."""

    type: type
    optional: bool = False
    indexed: bool = False

    def __post_init__(self) -> None:
        if self.type not in _SQL_TYPES:
            known = ", ".join(kind.__name__ for kind in _SQL_TYPES)
            raise ValueError(f"expected a run column of {known}, got {self.type!r}")

    @property
    def sql(self) -> str:
        """The type that SQLite has for it."""
        return _SQL_TYPES[self.type]

    @property
    def required(self) -> bool:
        """Whether every run must have a value."""
        return not self.optional


class Seen(NamedTuple):
    """The state of a database when it was looked at, and its identity."""

    rows: int
    """Committed rows, no more."""
    runs: int
    last_run: int
    """The highest id of a run, -1 where there is none; later runs have higher ones."""
    identity: str
    """Which dataset this is, whatever its path: its id; of one without, a checksum of some runs."""
    shard_rows: int
    dtype: np.dtype[Any] | None
    """None in a dataset of the original program, whose array alone knows."""
    block_bytes: int = 0
    """Rows that each checksum covers, in bytes; 0 where there are none."""
    block_tail: bytes = b""
    """The last checksums, which are not in the file of checksums."""
    columns: tuple[str, ...] = ()
    """Of the runs."""
    parts: tuple[Part, ...] = ()
    """The shards, where they have a list: in a dataset that was written in a bucket."""
    metadata: Metadata | None = None
    """The database of the commit, in such a dataset."""

    @property
    def is_listed(self) -> bool:
        """Whether shards have a list, be it of none."""
        return self.metadata is not None

    def pieces(self, root: Path, first: int = 0, end: int | None = None) -> list[Piece]:
        """The rows from `first` on, up to `end`, file by file."""
        end = self.rows if end is None else end
        if self.is_listed:
            return listed_pieces(root, self.parts, first, end)
        return pieces(root, end, self.shard_rows, first)

    @property
    def is_sharded(self) -> bool:
        """Whether the rows are in several files, or may be."""
        return self.is_listed or self.shard_rows > 0


def create(
    path: Path, dtype: np.dtype[Any], columns: Mapping[str, RunColumn], shard_rows: int
) -> None:
    """Make an empty database; `path` must not exist."""
    own = "id INTEGER PRIMARY KEY, first_step_idx INTEGER NOT NULL, num_steps INTEGER NOT NULL"
    others = [_declared(name, column) for name, column in columns.items()]
    meta = {
        "format_version": str(VERSION),
        "dtype": json.dumps(dtype_to_json(dtype)),
        "shard_rows": str(shard_rows),
        "rows": "0",
        "id": os.urandom(16).hex(),
        **block_meta(BLOCK_BYTES, b""),
    }
    with closing(catalog.connect(path, create=True)) as database, transaction(database, path):
        database.execute(f"CREATE TABLE runs ({', '.join([own, *others])})")
        database.execute("CREATE INDEX runs_by_num_steps ON runs (num_steps)")
        database.execute("CREATE INDEX runs_by_first_step_idx ON runs (first_step_idx)")
        for name, column in columns.items():
            _index(database, name, column)
        database.execute(_META)
        database.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())


def block_meta(block_bytes: int, tail: bytes) -> dict[str, str]:
    """What a commit keeps of the checksums of its rows."""
    return {"block_bytes": str(block_bytes), "block_tail": tail.hex()}


def run_columns(given: Mapping[str, type | RunColumn] | None) -> dict[str, RunColumn]:
    """Columns as a caller names them. Raises `ValueError` for those that no database can have."""
    if not isinstance(given, Mapping | None):
        raise TypeError(f"columns: expected a dict of names and types, got {given!r}")
    made = {
        name: each if isinstance(each, RunColumn) else RunColumn(each)
        for name, each in (given or {}).items()
    }
    for name in made:
        known = isinstance(name, str) and name.isidentifier()
        if not known or name.lower() in OWN or len(name) > 60:
            raise ValueError(f"{name!r} cannot name a run column")
    if len({name.lower() for name in made}) < len(made):
        raise ValueError(f"run columns differ only in case: {', '.join(made)}")
    return made


def append(
    database: sqlite3.Connection,
    path: Path,
    names: Sequence[str],
    runs: Iterable[Sequence[Any]],
    rows: int,
    blocks: Mapping[str, str],
) -> None:
    """Add runs (id, first_step_idx, num_steps, then `names`), the number of rows and the last of
    their checksums: the commit."""
    every = ", ".join(map(quoted, [*OWN, *names]))
    marks = ", ".join("?" * (len(OWN) + len(names)))
    given = list(runs)
    with transaction(database, path):
        database.executemany(f"INSERT INTO runs ({every}) VALUES ({marks})", given)
        database.execute(_CHECKSUMS)
        signed: list[tuple[Any, ...]] = []
        if given:  # as they are kept: a column of another program's may turn '12' into 12
            sql = f"SELECT {every} FROM runs WHERE id BETWEEN ? AND ?"
            sql += " AND id NOT IN (SELECT id FROM run_checksums)"  # of another writer, in a bucket
            kept = database.execute(sql, (given[0][0], given[-1][0]))
            signed = catalog.with_checksums(kept.fetchall(), len(OWN) + len(names))
        database.executemany(
            "INSERT INTO run_checksums VALUES (?, ?)", ((run[0], run[-1]) for run in signed)
        )
        database.execute(_META)
        meta = {"rows": str(rows), **blocks}
        database.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", meta.items())


def add_column(
    database: sqlite3.Connection, path: Path, name: str, column: RunColumn, values: Sequence[Any]
) -> None:
    """Add a column with a value for each run, in the order of their rows; all or nothing."""
    with transaction(database, path):
        database.execute(f"ALTER TABLE runs ADD COLUMN {quoted(name)} {column.sql}")
        ids = database.execute(f"SELECT id FROM runs ORDER BY {IN_ORDER}").fetchall()
        database.executemany(
            f"UPDATE runs SET {quoted(name)} = ? WHERE id = ?",
            ((value, run) for value, (run,) in zip(values, ids, strict=True) if value is not None),
        )
        found = columns(database)
        if column.required:
            remake(database, {**found, name: Column(column.sql, True)})
        _index(database, name, column)
        if any(value is not None for value in values):
            _sign_again(database, [*OWN, *(name for name in found if name not in OWN)])


def _sign_again(database: sqlite3.Connection, names: Sequence[str]) -> None:
    """New checksums for the runs that have some."""
    every, last = ", ".join(map(quoted, names)), -1
    database.execute(_CHECKSUMS)
    sql = f"SELECT {every} FROM runs JOIN run_checksums USING (id) WHERE id > ? ORDER BY id LIMIT ?"
    while rows := database.execute(sql, (last, _RUNS_AT_ONCE)).fetchall():
        signed = catalog.with_checksums(rows, len(names))
        database.executemany(
            "UPDATE run_checksums SET checksum = ? WHERE id = ?", ((r[-1], r[0]) for r in signed)
        )
        last = rows[-1][0]


def remake(database: sqlite3.Connection, wanted: Mapping[str, "Column"]) -> None:
    """The same table of runs, whose columns are declared so."""
    indexes = database.execute(
        "SELECT sql FROM sqlite_master WHERE tbl_name = 'runs' AND type = 'index' "
        "AND sql IS NOT NULL"
    ).fetchall()
    others = (_declared(name, column) for name, column in wanted.items() if name != "id")
    every = ", ".join(map(quoted, wanted))
    database.execute(f"CREATE TABLE remade (id INTEGER PRIMARY KEY, {', '.join(others)})")
    database.execute(f"INSERT INTO remade ({every}) SELECT {every} FROM runs")
    database.execute("DROP TABLE runs")
    database.execute("ALTER TABLE remade RENAME TO runs")
    for (sql,) in indexes:
        database.execute(sql)


def _declared(name: str, column: "RunColumn | Column") -> str:
    return f"{quoted(name)} {column.sql}" + " NOT NULL" * column.required


def _index(database: sqlite3.Connection, name: str, column: RunColumn) -> None:
    if column.indexed:
        database.execute(f'CREATE INDEX "runs_by_{name}" ON runs ("{name}")')


def check_runs(database: sqlite3.Connection, last_run: int) -> tuple[list[str], int]:
    """Runs that are not as they were written, and how many were written without a checksum."""
    names = [name for name in columns(database) if name not in OWN]
    every = ", ".join(f"r.{quoted(name)}" for name in [*OWN, *names])
    known = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'run_checksums'").fetchone()
    if known is None:
        (count,) = database.execute(
            "SELECT count(*) FROM runs WHERE id <= ?", (last_run,)
        ).fetchone()
        return [], count
    # Runs of before there were checksums come first. Where a later one has none, it was removed.
    (first,) = database.execute("SELECT min(id) FROM run_checksums").fetchone()
    found = database.execute(
        f"SELECT {every}, CASE WHEN r.id < ? THEN c.checksum ELSE coalesce(c.checksum, -1) END "
        "FROM runs r LEFT JOIN run_checksums c USING (id) WHERE r.id <= ? ORDER BY r.id",
        (last_run + 1 if first is None else first, last_run),
    )
    wrong, unchecked, count = [], 0, len(OWN) + len(names)
    while rows := found.fetchmany(_RUNS_AT_ONCE):
        unchecked += sum(row[-1] is None for row in rows)
        for i, problem in catalog.damaged_rows(rows, count):
            if not _was_shorter(rows[i], count):
                wrong.append(f"run {rows[i][0]}: {problem}")
    return wrong, unchecked


def _was_shorter(row: tuple[Any, ...], count: int) -> bool:
    """Whether a run is as it was written, but for columns that its table got later."""
    while count > len(OWN) and row[count - 1] is None:
        count -= 1
        if not catalog.damaged_rows([(*row[:count], row[-1])], count):
            return True
    return False


def has_runs(path: Path) -> bool:
    """Whether a database holds a run, or cannot be read because it is damaged."""
    try:
        with catalog.reading(path) as database:
            found = database.execute("SELECT 1 FROM runs LIMIT 1").fetchone()
            return found is not None or facts(database, path).runs > 0
    except FileNotFoundError:
        return False
    except FormatError:
        return True


def look(path: Path, identity: str = "") -> Seen:
    """The newest state of the dataset with this identity."""
    with reading(path, identity) as database:
        return facts(database, path)


def facts(database: sqlite3.Connection, path: Path) -> Seen:
    """Read what there is. Raises `FormatError` when it is not the database of a dataset."""
    with catalog.in_turn(), translated(path):
        database.execute("BEGIN")  # a writer may commit between one query and the next
        try:
            meta, names, (count, end, last) = _state(database, path)
            identity = _identity(database, min(count, _IDENTITY_RUNS))
        finally:
            if database.in_transaction:
                database.execute("ROLLBACK")
    version = meta.get("format_version", str(VERSION))
    if version != str(VERSION):
        raise VersionError(f"expected version {VERSION}, got {version!r}", path=str(path))
    try:
        rows, shard_rows = int(meta.get("rows", end)), int(meta.get("shard_rows", 0))
        block_bytes = int(meta.get("block_bytes", 0))
        block_tail = bytes.fromhex(meta.get("block_tail", ""))
        dtype = None
        if "dtype" in meta:
            dtype = dtype_from_json(json.loads(meta["dtype"]))
    except Exception as error:  # whatever a damaged literal makes JSON or NumPy raise
        raise FormatError(f"meta: {error!r}", path=str(path)) from None
    if type(end) is not int or rows != end or rows < 0:
        raise FormatError(
            f"expected {end} rows, where the last run ends, got {rows}", path=str(path)
        )
    if type(last) is not int or shard_rows < 0:
        raise FormatError(f"expected whole numbers, got {shard_rows=}, {last=}", path=str(path))
    if not 0 <= block_bytes <= MAX_BLOCK_BYTES or block_bytes.bit_count() > 1:
        raise FormatError(f"expected checksums of blocks, got {block_bytes=}", path=str(path))
    return Seen(rows, count, last, identity, shard_rows, dtype, block_bytes, block_tail, names)


def _state(
    database: sqlite3.Connection, path: Path
) -> tuple[dict[Any, Any], tuple[str, ...], tuple[Any, Any, Any]]:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    if "runs" not in tables:
        raise FormatError("expected a table of runs, got none", path=str(path))
    names = tuple(columns(database))
    missing = set(OWN) - set(names)
    if missing:
        raise FormatError(f"runs: no column {', '.join(sorted(missing))}", path=str(path))
    meta = dict(database.execute("SELECT key, value FROM meta")) if "meta" in tables else {}
    totals = database.execute(
        "SELECT count(*), coalesce(max(first_step_idx + num_steps), 0), coalesce(max(id), -1) "
        "FROM runs"
    )
    return meta, names, totals.fetchone()


def quoted(name: str) -> str:
    """A name as SQL has it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


class Column(NamedTuple):
    """A column of the runs, whoever made the table."""

    sql: str
    required: bool


def columns(database: sqlite3.Connection) -> dict[str, Column]:
    """The columns of the runs, in order."""
    found = database.execute("PRAGMA table_info(runs)").fetchall()
    return {name: Column(kind.upper(), bool(not_null)) for _, name, kind, not_null, *_ in found}


@contextmanager
def reading(path: Path, identity: str = "") -> Iterator[sqlite3.Connection]:
    """A connection that cannot write, for the block; what SQLite raises is translated.

    Raises `FileNotFoundError` when there is no database, and `FormatError` when it is that of
    another dataset than the one with this identity.
    """
    with catalog.reading(path) as opened:
        kind = identity.partition(":")[0]
        if identity and _identity(opened, int(kind) if kind != "id" else 0) != identity:
            raise FormatError("another dataset is here now; open it again", path=str(path))
        yield opened


def _identity(database: sqlite3.Connection, runs: int) -> str:
    """The id that a dataset got when it was begun; without one its first runs, which no append
    changes."""
    if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        found = database.execute("SELECT value FROM meta WHERE key = 'id'").fetchone()
        if found is not None:
            return f"id:{found[0]}"
    first = database.execute("SELECT * FROM runs ORDER BY id LIMIT ?", (runs,)).fetchall()
    return f"{runs}:{_core.crc32c(np.frombuffer(repr(first).encode(), np.uint8)):08x}"


class Chosen(NamedTuple):
    """Some runs: their ids, and where their rows are."""

    ids: Rows
    starts: Rows
    counts: Rows

    def pick(self, which: NDArray[Any]) -> "Chosen":
        return Chosen(*(column[which] for column in self))


class StepRuns(Runs):
    """The columns of each run, as of the commit that the dataset had when it was opened."""

    def __init__(self, path: Path, seen: Seen, chosen: Chosen | None = None) -> None:
        self._path, self._seen, self._chosen = path, seen, chosen
        self._step_count = seen.rows if chosen is None else int(chosen.counts.sum())
        self._kept: object = None
        """What the file is gone with."""

    def __len__(self) -> int:
        return self._seen.runs if self._chosen is None else len(self._chosen.ids)

    @property
    def columns(self) -> list[str]:
        return list(self._seen.columns)

    @property
    def types(self) -> dict[str, RunColumn]:
        """What is declared of each column, but for those that only other programs declare."""
        kinds = {sql: kind for kind, sql in _SQL_TYPES.items()}
        with reading(self._path, self._seen.identity) as opened:
            indexes = opened.execute("SELECT name FROM sqlite_master WHERE type = 'index'")
            indexed = {name for (name,) in indexes}
            return {
                name: RunColumn(kinds[each.sql], not each.required, f"runs_by_{name}" in indexed)
                for name, each in columns(opened).items()
                if name not in OWN and each.sql in kinds
            }

    @lazy
    def _ranges(self) -> Chosen:
        """Where the rows of each run are in the whole dataset."""
        return self._choose("1", ()) if self._chosen is None else self._chosen

    @property
    def starts(self) -> Rows:
        return self._ranges.starts if self._chosen is None else np.cumsum(self.counts) - self.counts

    @property
    def counts(self) -> Rows:
        return self._ranges.counts

    def _choose(
        self, condition: str, values: Sequence[Any], timeout_s: float | None = None
    ) -> Chosen:
        """The runs for which a condition holds, in the order of their rows."""
        with reading(self._path, self._seen.identity) as opened:
            found = Chosen(
                *catalog.select_numbers(
                    opened,
                    "runs",
                    OWN,
                    condition,
                    values,
                    columns=list(columns(opened)),
                    timeout_s=timeout_s,
                )
            )
        # Later runs are not here.
        behind = self._seen.rows - found.starts
        there = (found.starts >= 0) & (found.counts >= 0) & (found.counts <= behind)
        there &= found.ids <= self._seen.last_run
        if self._chosen is not None:
            there &= np.isin(found.ids, self._chosen.ids)
        if not there.all():
            found = found.pick(there)
        # Runs need not be stored in the order of their ids. Of those that begin with the same row,
        # all but the last have none.
        steps = np.diff(found.starts)
        if (steps < 0).any() or (np.diff(found.counts)[steps == 0] < 0).any():
            found = found.pick(np.lexsort((found.ids, found.counts, found.starts)))
        return found

    def _query(self, sql: str, values: Sequence[Any], timeout_s: float | None) -> QueryTable:
        with self._showing(slice(None)) as opened:
            return QueryTable(*catalog.query(opened, sql, values, timeout_s=timeout_s))

    def _select(self, names: Sequence[str], wanted: range) -> list[tuple[Any, ...]]:
        with self._showing(slice(wanted.start, wanted.stop)) as opened:
            first = wanted.start if self._chosen is None else 0
            every = ", ".join(map(quoted, names))
            sql = f"SELECT {every} FROM runs ORDER BY {IN_ORDER} LIMIT ? OFFSET ?"
            return opened.execute(sql, (len(wanted), first)).fetchall()

    @contextmanager
    def _showing(self, wanted: slice) -> Iterator[sqlite3.Connection]:
        """The database, in which there are these of the chosen runs; or all that were seen."""
        with reading(self._path, self._seen.identity) as opened:
            ids = self._seen.last_run if self._chosen is None else self._chosen.ids[wanted].tolist()
            catalog.show_only(opened, "runs", "id", ids)
            yield opened

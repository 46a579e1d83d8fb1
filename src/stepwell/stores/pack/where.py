"""The columns of the payloads of a pack, as a table in memory that SQL can query.

It is made of their heads at the first query, once for each opened file.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.files import catalog
from stepwell.source import Rows
from stepwell.store import QueryTable, Runs

if TYPE_CHECKING:
    from stepwell.stores.pack.reader import PackReader

_COLUMNS = {"run": "INTEGER PRIMARY KEY", "kind": "INTEGER NOT NULL"}
"""Of every payload type; its own follow."""


class PackRuns(Runs):
    """The entries of a pack, or of a part, that are runs; each is one row."""

    def __init__(self, pack: "PackReader") -> None:
        self._pack = pack
        self._rows: Rows = np.flatnonzero(pack._type.mask(pack._entries["kind"]))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def columns(self) -> list[str]:
        return list(_columns(self._pack))

    @property
    def starts(self) -> Rows:
        return self._rows.copy()

    @property
    def counts(self) -> Rows:
        return np.ones(len(self._rows), np.int64)

    def _select(self, names: Sequence[str], wanted: range) -> list[tuple[Any, ...]]:
        sql = f"SELECT {', '.join(names)} FROM runs ORDER BY run LIMIT ? OFFSET ?"
        return query_runs(self._pack, sql, (len(wanted), wanted.start)).rows


def select_runs(
    pack: "PackReader", condition: str, values: Sequence[Any], timeout_s: float | None
) -> Rows:
    """Return the numbers of the runs of the whole pack for which `condition` holds, ascending."""
    with _opened(pack) as database:
        columns = list(_columns(pack))
        return catalog.select_ids(
            database, "runs", "run", columns, condition, values, timeout_s=timeout_s
        )


def query_runs(
    pack: "PackReader", sql: str, values: Sequence[Any], timeout_s: float | None = None
) -> QueryTable:
    """The result of a query over the table `runs`; that of a part of a pack has that part."""
    with _opened(pack) as database:
        if not pack._is_whole:
            catalog.show_only(database, "runs", "run", pack._numbers.tolist())
        return QueryTable(*catalog.query(database, sql, values, timeout_s=timeout_s))


@contextmanager
def _opened(pack: "PackReader") -> Iterator[sqlite3.Connection]:
    file = pack._opened
    if file.table is None:
        file.table = _made(pack._whole())
    with _memory() as database:
        database.deserialize(file.table)
        yield database


@contextmanager
def _memory() -> Iterator[sqlite3.Connection]:
    with catalog.in_turn(), closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        yield database


def _made(pack: "PackReader") -> bytes:
    columns = _columns(pack)
    declared = ", ".join(f"{name} {sql}" for name, sql in columns.items())
    marks = ", ".join("?" * len(columns))
    with _memory() as database:
        database.execute("BEGIN")
        database.execute(f"CREATE TABLE runs ({declared})")
        database.executemany(f"INSERT INTO runs VALUES ({marks})", _rows(pack))
        database.execute("COMMIT")
        return database.serialize()


def _rows(pack: "PackReader") -> Iterator[tuple[Any, ...]]:
    for rows, known, batch in pack._heads():
        if known is pack._type:
            kinds = pack._entries["kind"][rows].tolist()
            for number, kind, values in zip(rows.tolist(), kinds, known.rows(batch), strict=True):
                yield (number, kind, *values)


def _columns(pack: "PackReader") -> dict[str, str]:
    return _COLUMNS | dict(pack._type.columns)

"""The index beside a pack: what payloads say about themselves, in a table that SQL can query.

It is derived from the pack and may be deleted at any time. It carries the pack's size and
a checksum of its content, and one of itself; when one of them differs it is made again. It is
read into memory whole: SQLite notices few sorts of damage, and would answer from the rest.
"""

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.files import catalog
from stepwell.files.atomic import sweep, write_file
from stepwell.files.regular import check_inside, open_inside
from stepwell.source import Rows
from stepwell.store import QueryTable, Runs

if TYPE_CHECKING:
    from stepwell.stores.pack.reader import PackReader

VERSION = 2

_COLUMNS = {"run": "INTEGER PRIMARY KEY", "kind": "INTEGER NOT NULL"}
"""Of every payload type; its own follow."""
_CHECKSUM = slice(60, 64)  # `user_version`, a number of the user's in the header of a database


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


def index_path(pack: str | os.PathLike[str]) -> Path:
    """Where the index of a pack is kept."""
    return Path(f"{os.fspath(pack)}.index")


def select_runs(pack: "PackReader", condition: str, values: Sequence[Any]) -> Rows:
    """Return the numbers of the runs of the whole pack for which `condition` holds, ascending."""
    with _opened(pack) as database:
        columns = list(_columns(pack))
        return catalog.select_ids(database, "runs", "run", columns, condition, values)


def query_runs(pack: "PackReader", sql: str, values: Sequence[Any]) -> QueryTable:
    """What a query over the table `runs` returns; of a part of a pack it has that part."""
    with _opened(pack) as database:
        if not pack._is_whole:
            catalog.show_only(database, "runs", "run", pack._numbers.tolist())
        return QueryTable(*catalog.query(database, sql, values))


@contextmanager
def _opened(pack: "PackReader") -> Iterator[sqlite3.Connection]:
    """The table of a pack: from its index if that is of this pack, else made, and kept as such."""
    pack = pack._whole()
    with _memory() as database:
        if not _load(pack, database):
            data = _made(pack)
            with suppress(OSError, FormatError):  # a folder that is not ours to write to
                _keep(pack, data)
            database.deserialize(data)
        yield database


@contextmanager
def _memory() -> Iterator[sqlite3.Connection]:
    with catalog.in_turn, closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        yield database


def _load(pack: "PackReader", database: sqlite3.Connection) -> bool:
    """Read an index; return whether it is whole and that of this pack."""
    path = index_path(pack.path)
    try:
        with os.fdopen(open_inside(path.parent, path.name), "rb") as file:
            data = file.read()
        if len(data) < _CHECKSUM.stop or data[_CHECKSUM] != _checksum(data):
            return False
        database.deserialize(data)
        return dict(database.execute("SELECT key, value FROM meta")) == _identity(pack)
    except (OSError, FormatError, sqlite3.Error):
        return False


def _keep(pack: "PackReader", data: bytes) -> None:
    target = index_path(pack.path)
    check_inside(target.parent, target.name)
    sweep(target.parent, re.escape(target.name))
    write_file(target, data, follow=False)


def _checksum(database: bytes) -> bytes:
    """The CRC32C of a database, its own place taken as zeros."""
    found = 0
    for part in (database[: _CHECKSUM.start], bytes(4), memoryview(database)[_CHECKSUM.stop :]):
        found = _core.crc32c(np.frombuffer(part, np.uint8), found)
    return found.to_bytes(4, "big")


def _identity(pack: "PackReader") -> dict[str, int]:
    return {
        "version": VERSION,
        "pack_bytes": len(pack._opened.data),
        "pack_sum": pack._opened.content_checksum,
    }


def _made(pack: "PackReader") -> bytes:
    columns = _columns(pack)
    declared = ", ".join(f"{name} {sql}" for name, sql in columns.items())
    marks = ", ".join("?" * len(columns))
    with _memory() as database:
        database.execute("BEGIN")
        database.execute(f"CREATE TABLE runs ({declared})")
        database.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL)")
        database.executemany(f"INSERT INTO runs VALUES ({marks})", _rows(pack))
        database.executemany("INSERT INTO meta VALUES (?, ?)", _identity(pack).items())
        database.execute("COMMIT")
        data = database.serialize()
    return data[: _CHECKSUM.start] + _checksum(data) + data[_CHECKSUM.stop :]


def _rows(pack: "PackReader") -> Iterator[tuple[Any, ...]]:
    for rows, known, batch in pack._heads():
        if known is pack._type:
            kinds = pack._entries["kind"][rows].tolist()
            for number, kind, values in zip(rows.tolist(), kinds, known.rows(batch), strict=True):
                yield (number, kind, *values)


def _columns(pack: "PackReader") -> dict[str, str]:
    return _COLUMNS | dict(pack._type.columns)

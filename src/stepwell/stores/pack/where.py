"""The index beside a pack: what payloads say about themselves, in a table that SQL can query.

It is derived from the pack and may be deleted at any time. It carries the pack's size and
a checksum of its content, and one of itself; when one of them differs it is made again. Where it
cannot be written, the table is kept in memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell import _core
from stepwell.errors import FormatError, SchemaError
from stepwell.files.atomic import temporary_name
from stepwell.files.regular import open_regular
from stepwell.source import Rows
from stepwell.stores.pack.payload import Column

if TYPE_CHECKING:
    import sqlite3

    from stepwell.stores.pack.reader import PackReader

__all__ = ["index_path", "select_runs", "write_index"]

VERSION = 2

_COLUMNS = {"run": Column("INTEGER PRIMARY KEY"), "kind": Column("INTEGER NOT NULL")}
"""Of every payload type; its own follow."""
_SEAL_AT = 60  # `user_version`


def index_path(pack: Path) -> Path:
    """Where the index of a pack is kept."""
    return pack.with_name(pack.name + ".index")


def select_runs(pack: "PackReader", condition: str, values: Sequence[Any]) -> Rows:
    """Return the numbers of the runs for which `condition` holds, ascending."""
    from stepwell.files import catalog

    columns = _columns(pack)
    with catalog.in_turn, closing(_open(pack)) as database:
        return catalog.select_ids(database, "runs", "run", list(columns), condition, values)


def write_index(pack: "PackReader") -> Path:
    """Make the index of a pack, or make it again, and return its path."""
    from stepwell.files import catalog

    _columns(pack)
    target = index_path(pack.path)
    beside = temporary_name(target)
    try:
        with catalog.in_turn, closing(_build(pack, str(beside))):
            pass
        _seal(beside)
        beside.replace(target)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    return target


def _open(pack: "PackReader") -> "sqlite3.Connection":
    """The index of a pack: the one on disk if it is of this pack, else a new one."""
    import sqlite3

    from stepwell.files import catalog

    path = index_path(pack.path)
    for attempt in range(2):
        with suppress(OSError, FormatError, sqlite3.Error):
            if _is_sealed(path):
                database = catalog.open_readonly(path)
                try:
                    if dict(database.execute("SELECT key, value FROM meta")) == _identity(pack):
                        return database
                except BaseException:
                    database.close()
                    raise
                database.close()
        if attempt == 0:
            try:
                write_index(pack)
            except (OSError, sqlite3.Error):  # a directory that is not ours to write to
                break
    return _build(pack, ":memory:")


def _seal(path: Path) -> None:
    """Write the sum of a database into its header, where SQLite keeps a number of the user's.

    SQLite notices few sorts of damage, and would answer from the rest.
    """
    with path.open("r+b") as file:
        data = np.frombuffer(file.read(), np.uint8).copy()
        data[_SEAL_AT : _SEAL_AT + 4] = 0
        file.seek(_SEAL_AT)
        file.write(_core.crc32c(data).to_bytes(4, "big"))


def _is_sealed(path: Path) -> bool:
    with open_regular(path) as file:
        data = np.frombuffer(file.read(), np.uint8).copy()
    stored = int.from_bytes(data[_SEAL_AT : _SEAL_AT + 4].tobytes(), "big")
    data[_SEAL_AT : _SEAL_AT + 4] = 0
    return len(data) > _SEAL_AT + 4 and _core.crc32c(data) == stored


def _identity(pack: "PackReader") -> dict[str, int]:
    return {
        "version": VERSION,
        "pack_bytes": len(pack._opened.data),
        "pack_sum": pack._opened.content_sum,
    }


def _build(pack: "PackReader", where: str) -> "sqlite3.Connection":
    import sqlite3

    database = sqlite3.connect(where, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode = OFF")  # the file is not shown before it is whole
        columns = _columns(pack)
        declared = ", ".join(f"{name} {column.sql}" for name, column in columns.items())
        database.execute("BEGIN")
        database.execute(f"CREATE TABLE runs ({declared})")
        database.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL)")
        marks = ", ".join("?" * len(columns))
        database.executemany(f"INSERT INTO runs VALUES ({marks})", _rows(pack))
        database.executemany("INSERT INTO meta VALUES (?, ?)", _identity(pack).items())
        for name in (name for name, column in columns.items() if column.indexed):
            database.execute(f"CREATE INDEX runs_by_{name} ON runs ({name})")
        database.execute("COMMIT")
    except BaseException:
        database.close()
        raise
    return database


def _rows(pack: "PackReader") -> Iterator[tuple[Any, ...]]:
    known = pack._type
    for rows in pack._chunks(256):
        kinds = pack._entries["kind"][rows]
        mask = known.mask(kinds)
        batch = pack._decode(rows[mask], heads_only=True)
        numbers = zip(rows[mask].tolist(), kinds[mask].tolist(), strict=True)
        for number, values in zip(numbers, known.rows(batch), strict=True):
            yield (*number, *values)
        pack._scanned(rows)


def _columns(pack: "PackReader") -> dict[str, Column]:
    """The columns of a pack's table. Raises `SchemaError` where the payloads have none."""
    known = pack._type
    if not known.columns:
        raise SchemaError(f"where: {known.name} have no columns, in {pack.path}")
    return _COLUMNS | dict(known.columns)

"""SQLite, one way: read-only questions about rows that the asker may phrase freely."""

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["open_readonly", "query", "select_ids", "select_numbers"]

_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


def open_readonly(path: Path) -> sqlite3.Connection:
    """Open a database that is there already; nothing can be written through it."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    database = sqlite3.connect(uri, uri=True)
    try:
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        database.close()
        # A database in WAL mode wants to put files beside itself. Where nobody can write, nobody
        # is writing, and it can be read as it lies there.
        if os.access(path.parent, os.W_OK) or path.with_name(path.name + "-wal").exists():
            raise
        return sqlite3.connect(f"{uri}&immutable=1", uri=True)
    except BaseException:
        database.close()
        raise
    return database


def query(
    database: sqlite3.Connection, sql: str, values: Sequence[Any]
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and rows that a question gives; only questions are allowed."""
    _allow_questions(database)
    try:
        found = database.execute(sql, tuple(values))
        if found.description is None:
            raise ValueError(f"expected a question, got {sql!r}")
        return [name for name, *_ in found.description], found.fetchall()
    except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError) as error:
        raise ValueError(f"{sql!r}: {error}") from None
    finally:
        database.set_authorizer(None)


def select_ids(
    database: sqlite3.Connection,
    table: str,
    id_column: str,
    columns: Sequence[str],
    condition: str,
    values: Sequence[Any],
) -> NDArray[np.int64]:
    """Return the ids of the rows for which an SQL condition holds, ascending."""
    return select_numbers(
        database, table, (id_column,), condition, values, order=id_column, columns=columns
    ).reshape(-1)


def select_numbers(
    database: sqlite3.Connection,
    table: str,
    wanted: Sequence[str],
    condition: str,
    values: Sequence[Any],
    *,
    order: str,
    columns: Sequence[str],
) -> NDArray[np.int64]:
    """Return some whole-number columns of the rows for which an SQL condition holds.

    `values` stand for the question marks. Raises `ValueError` for anything that is not a
    condition over `columns`.
    """
    _allow_questions(database)
    # The condition stands in parentheses and on lines of its own: a comment must not swallow the
    # rest. The numbers come as one text, which NumPy reads far faster than Python makes tuples.
    each = " || ' ' || ".join(wanted)
    question = (
        f"SELECT group_concat(numbers, ' ') FROM (SELECT {each} AS numbers FROM {table} WHERE (\n"
        f"{condition}\n) ORDER BY {order})"
    )
    try:
        (found,) = database.execute(question, tuple(values)).fetchone()
    except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError) as error:
        raise ValueError(
            f"where {condition!r}: {error}; the columns are {', '.join(columns)}"
        ) from None
    finally:
        database.set_authorizer(None)
    numbers = np.fromstring(found or "", np.int64, sep=" ")
    return numbers.reshape(-1, len(wanted))


def _allow_questions(database: sqlite3.Connection) -> None:
    """Let SQL read and compute, and nothing else."""
    database.set_authorizer(
        lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY
    )

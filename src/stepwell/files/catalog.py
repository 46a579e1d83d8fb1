"""SQLite, one way: read-only questions about rows that the asker may phrase freely."""

import os
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["in_turn", "open_readonly", "select_ids"]

in_turn = threading.RLock()
"""Held by whoever is inside SQLite, and by whoever forks.

A process that is forked while another of its threads holds one of SQLite's own locks would wait
for that lock for ever.
"""
os.register_at_fork(
    before=in_turn.acquire, after_in_parent=in_turn.release, after_in_child=in_turn.release
)

_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}


def open_readonly(path: Path) -> sqlite3.Connection:
    """Open a database that is there already; nothing can be written through it."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def select_ids(
    database: sqlite3.Connection,
    table: str,
    id_column: str,
    columns: Sequence[str],
    condition: str,
    values: Sequence[Any],
) -> NDArray[np.int64]:
    """Return the ids of the rows for which an SQL condition holds, ascending.

    `values` stand for the question marks. Raises `ValueError` for anything that is not a
    condition over the columns.
    """
    database.set_authorizer(
        lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY
    )
    # Inside parentheses and on lines of its own: a comment must not swallow the rest.
    question = f"SELECT {id_column} FROM {table} WHERE (\n{condition}\n) ORDER BY {id_column}"
    try:
        found = database.execute(question, [_plain(value) for value in values]).fetchall()
    except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError) as error:
        raise ValueError(
            f"where {condition!r}: {error}; the columns are {', '.join(columns)}"
        ) from None
    finally:
        database.set_authorizer(None)
    return np.array(found, np.int64).reshape(-1)


def _plain(value: Any) -> Any:
    """A value as SQLite understands it; it would take a NumPy number for a heap of bytes."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, int | float | str | bytes | None):
        raise TypeError(f"expected a number, text, bytes or None, got {type(value).__name__}")
    return value

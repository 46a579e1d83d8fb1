"""SQLite, one way: databases that commit durably, and queries that users phrase freely."""

import _thread
import errno
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import BusyError, FormatError
from stepwell.files.regular import check_inside

P = ParamSpec("P")
R = TypeVar("R")


class _Turn(threading.local):
    """A lock for each thread: held while the thread is inside SQLite, and by whoever forks.

    A process that is forked while another of its threads holds one of SQLite's own locks would
    wait for that lock for ever. Threads do not wait for each other.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        with _forking:
            _locks.add(self.lock)


_forking = threading.RLock()
_locks: "weakref.WeakSet[threading.RLock]" = weakref.WeakSet()
_held: "list[threading.RLock]" = []
"""By a thread that forks, or is about to."""
_turn = _Turn()


def in_turn() -> "threading.RLock":
    """This thread's lock, to be held inside SQLite."""
    return _turn.lock


def _before_fork() -> None:
    _forking.acquire()
    _held.append(_forking)
    for lock in list(_locks):  # no thread adds one now
        lock.acquire()
        _held.append(lock)


def _after_fork() -> None:
    while _held:
        _held.pop().release()


def _make_way() -> None:
    """Let a process fork in the middle of a query, where SQLite holds no lock that others need."""
    if _held:
        ours: Any = in_turn()
        held = ours._release_save()
        try:
            with _forking:
                pass
        finally:
            ours._acquire_restore(held)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def taking_turns(work: Callable[P, R]) -> Callable[P, R]:
    """A function that nobody is inside of while the process forks."""

    @wraps(work)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with in_turn():
            return work(*args, **kwargs)

    return alone


_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_SYSTEM = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
_STEPS = 100_000  # of SQLite's machine, a few milliseconds
_MAX_S = threading.TIMEOUT_MAX
_AGAIN_S = 0.02
_NOT_THE_USER = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, *_BUSY, *_SYSTEM}


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Errors of SQLite in the block, as those of this package or of the system."""
    try:
        yield
    except sqlite3.Error as error:
        code = _code(error)
        if code == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None
        if code in _BUSY:
            raise BusyError(f"SQLite: {error} - at {path}") from None
        if code in _SYSTEM:
            raise OSError(f"SQLite: {error} - at {path}") from None
        raise FormatError(f"SQLite: {error}", path=str(path)) from None
    except UnicodeDecodeError as error:  # names and messages that were damaged
        raise FormatError(f"SQLite: {error}", path=str(path)) from None


def check_files(path: Path) -> None:
    """Raise `FormatError` when a database, or a file that SQLite puts beside it, is no regular one.

    SQLite would follow a link, wait at a pipe for ever, and make a database of an empty file.
    Raises `FileNotFoundError` when there is none.
    """
    names = (path.name + suffix for suffix in ("", "-wal", "-shm", "-journal"))
    check_inside(path.parent, *names)
    if not path.stat().st_size:
        raise FormatError("expected a database, the file is empty", path=str(path))


def connect(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """A connection whose transactions survive a power cut, for any thread, one at a time."""
    if not create:
        check_files(path)
    uri = f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
    with in_turn(), translated(path):
        database = sqlite3.connect(
            uri, uri=True, timeout=60, isolation_level=None, check_same_thread=False
        )
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            _check_schema(database, path, "view", "trigger")
        except BaseException:
            database.close()
            raise
    return database


@contextmanager
def transaction(database: sqlite3.Connection, path: Path) -> Iterator[None]:
    """A transaction: the changes of the block, or none; nobody else writes meanwhile."""
    with in_turn(), translated(path):
        database.execute("BEGIN IMMEDIATE")
        try:
            yield
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write, for the block; what SQLite raises is translated.

    Raises `FileNotFoundError` when there is no database.
    """
    check_files(path)
    with in_turn(), translated(path), closing(open_readonly(path)) as database:
        yield database


def open_readonly(path: Path) -> sqlite3.Connection:
    """Open a database that is there already; nothing can be written through it."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    database = sqlite3.connect(uri, uri=True)
    try:
        _check_schema(database, path, "view")
    except sqlite3.OperationalError:
        database.close()
        # A database in WAL mode wants to put files beside itself. Where nobody can write, nobody
        # is writing, and it can be read as it lies there.
        log, index = (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))
        if os.access(path.parent, os.W_OK) or index.exists():
            raise
        if not log.exists():
            return sqlite3.connect(f"{uri}&immutable=1", uri=True)
        # The log of a writer that was killed counts; alone, SQLite keeps the index of it in memory.
        database = sqlite3.connect(f"{uri}&vfs=unix-none", uri=True)
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        return database
    except BaseException:
        database.close()
        raise
    return database


def _check_schema(database: sqlite3.Connection, path: Path, *refused: str) -> None:
    """Raise `FormatError` for what would run statements of its own, for ever maybe: a view in the
    place of a table, or a trigger on one."""
    found = database.execute(
        "SELECT type, tbl_name FROM sqlite_master WHERE lower(tbl_name) IN "
        "('runs', 'episodes', 'steps', 'meta') AND type IN ('view', 'trigger')"
    )
    for kind, name in found.fetchall():
        if kind in refused:
            raise FormatError(f"expected {name} to be a plain table, got a {kind}", path=str(path))


def query(
    database: sqlite3.Connection,
    sql: str,
    values: Sequence[Any],
    *,
    timeout_s: float | None = None,
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and rows of a query; nothing but queries is allowed."""
    with _user_sql(database, repr(sql), "", timeout_s):
        found = database.execute(sql, [_plain(value) for value in values])
        if found.description is None:
            raise ValueError(f"expected a query, got {sql!r}")
        return [name for name, *_ in found.description], found.fetchall()


def show_only(
    database: sqlite3.Connection, table: str, id_column: str, wanted: Sequence[int] | int
) -> None:
    """Let a table have only the rows with these ids, or all up to one, for a connection."""
    condition = f"{id_column} <= {wanted}"
    if not isinstance(wanted, int):
        condition = f"{id_column} IN (SELECT id FROM temp.chosen)"
        database.execute("PRAGMA temp_store = MEMORY")
        database.execute("CREATE TEMP TABLE chosen (id INTEGER PRIMARY KEY)")
        database.executemany("INSERT INTO temp.chosen VALUES (?)", ((each,) for each in wanted))
    database.execute(f"CREATE TEMP VIEW {table} AS SELECT * FROM main.{table} WHERE {condition}")


def select_ids(
    database: sqlite3.Connection,
    table: str,
    id_column: str,
    columns: Sequence[str],
    condition: str,
    values: Sequence[Any],
    *,
    timeout_s: float | None = None,
) -> NDArray[np.int64]:
    """Return the ids of the rows for which an SQL condition holds, ascending."""
    wanted = (id_column,)
    (ids,) = select_numbers(
        database, table, wanted, condition, values, columns=columns, timeout_s=timeout_s
    )
    return ids


def select_numbers(
    database: sqlite3.Connection,
    table: str,
    wanted: Sequence[str],
    condition: str,
    values: Sequence[Any],
    *,
    columns: Sequence[str],
    timeout_s: float | None = None,
) -> list[NDArray[np.int64]]:
    """Return some whole-number columns of the rows for which an SQL condition holds.

    The rows are in the order of the first of `wanted`, which should be the primary key.
    `values` are bound to the `?`. Raises `ValueError` for anything that is not a
    condition over `columns`, `TimeoutError` for one that takes longer than `timeout_s`, and
    SQLite's own error for a damaged database.
    """
    # The condition stands in parentheses and on lines of its own: a comment must not swallow the
    # rest. Each column comes as one text, which NumPy reads far faster than Python makes tuples.
    # In the order of the table, SQLite goes through it once instead of jumping about in it.
    texts = ", ".join(f"group_concat({name}, ' ')" for name in wanted)
    sql = (
        f"SELECT count(*), {texts} FROM (SELECT {', '.join(wanted)} FROM {table} "
        f"WHERE (\n{condition}\n) ORDER BY {wanted[0]})"
    )
    hint = f"; the columns are {', '.join(columns)}"
    with _user_sql(database, f"where {condition!r}", hint, timeout_s):
        bound = [_plain(value) for value in values]
        # One that closes the parentheses does not parse without them, and what would follow it
        # here (THEN) does not parse there.
        database.execute(f"EXPLAIN SELECT CASE WHEN\n{condition}\nTHEN 1 END FROM {table}", bound)
        count, *found = database.execute(sql, bound).fetchone()
    numbers = []
    for name in wanted:
        try:
            column = np.fromstring(found.pop(0) or "", np.int64, sep=" ")
        except ValueError:
            column = np.empty(0, np.int64)
        if len(column) != count:
            raise sqlite3.DatabaseError(f"{name}: not all whole numbers")
        numbers.append(column)
    return numbers


@contextmanager
def _user_sql(
    database: sqlite3.Connection, sql: str, hint: str, timeout_s: float | None
) -> Iterator[None]:
    """SQL of a user's: it may read and compute, and nothing else.

    A mistake in it is a `ValueError`; damage, a busy database and Ctrl-C stay what they are.
    """
    if timeout_s is not None and not timeout_s > 0:
        raise ValueError(f"timeout_s must be above 0, got {timeout_s}")
    raised: list[BaseException] = []
    denied: list[int] = []

    def allow(action: int, *_: object) -> int:
        if action in _ALLOWED:
            return sqlite3.SQLITE_OK
        denied.append(action)
        return sqlite3.SQLITE_DENY

    def stop() -> bool:
        try:
            _make_way()
        except BaseException as error:  # SQLite makes an error of its own of it
            raised.append(error)
        return bool(raised)

    def watch(seconds: float) -> None:
        while not over.wait(seconds):
            seconds = _AGAIN_S  # SQLite forgets it where a statement begins
            with turn:
                if over.is_set():
                    return
                if not raised:
                    raised.append(TimeoutError(f"{sql}: not done within {timeout_s} s"))
                database.interrupt()

    turn, over = threading.Lock(), threading.Event()
    database.set_authorizer(allow)
    # Python gets a turn now and then, so that Ctrl-C ends a query that never would.
    database.set_progress_handler(stop, _STEPS)
    try:
        if timeout_s is not None:
            # A thread, not the progress handler: a row may take seconds and only a few of SQLite's
            # steps. A bare one: Ctrl-C that comes while one waits for it to begin gets lost.
            _thread.start_new_thread(watch, (min(float(timeout_s), _MAX_S),))
        yield
    except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError) as error:
        if _code(error) == sqlite3.SQLITE_INTERRUPT:
            raise (raised[0] if raised else KeyboardInterrupt()) from None
        by_us = str(error).startswith("not authorized to use function:")
        if (by_us or _code(error) == sqlite3.SQLITE_AUTH) and not denied:
            raise KeyboardInterrupt from None  # it came inside of `allow`
        if _code(error) in _NOT_THE_USER or "decode to UTF-8" in str(error):  # Python's words
            raise
        words = str(error)
        if "then" not in sql.lower():  # where a condition is tried, words of ours are behind it
            if 'near "THEN"' in words:
                words = "the condition ends too early"
            elif words.startswith("unrecognized token") and "THEN" in words:
                words = "a quote is not closed"
        raise ValueError(f"{sql}: {words}{hint}") from None
    finally:
        with turn:
            over.set()
        database.set_progress_handler(None, 0)
        database.set_authorizer(None)


def _code(error: Exception) -> int:
    """SQLite's code of an error; 0 for errors of others."""
    return int(getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def _plain(value: Any) -> Any:
    """A value as SQLite understands it; it would take a NumPy number for a heap of bytes."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, int | float | str | bytes | None):
        raise TypeError(f"expected a number, text, bytes or None, got {type(value).__name__}")
    return value


# Checksums of rows: a column `checksum` behind the others has the CRC32C of their values.


def with_checksums(rows: Sequence[Sequence[Any]], count: int) -> list[tuple[Any, ...]]:
    """Rows of `count` values as they are to be written, each with its checksum behind them."""
    made = [tuple(row) for row in rows]
    found = _core.checksum_values(made, count)
    return [(*row, checksum) for row, checksum in zip(made, found, strict=True)]


def checksum_sql(database: sqlite3.Connection, table: str) -> str:
    """What to select as the checksum of a row: NULL in tables that were made without."""
    found = {name: required for _, name, _, required, *_ in _columns(database, table)}
    if "checksum" not in found:
        return "NULL"
    # None is a row from before the table had the column. Where it always had, it is damage.
    return "coalesce(checksum, -1)" if found["checksum"] else "checksum"


def _columns(database: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    return database.execute(f"PRAGMA table_info({table})").fetchall()


def damaged_rows(rows: list[tuple[Any, ...]], count: int) -> list[tuple[int, str]]:
    """Of rows of `count` values and what `checksum_sql` selects, which are damaged, and how."""
    found = _core.checksum_values(rows, count)
    return [
        (i, f"expected a checksum of {row[count]!r:.20}, got {checksum}")
        for i, (row, checksum) in enumerate(zip(rows, found, strict=True))
        if row[count] != checksum and row[count] is not None
    ]

"""A writer: one process that changes a store.

    with XWriter(path, <what rows are>, mode="x") as writer:    # "x": new; "a": go on, or new
        writer.append(…)
        writer.commit()             # on return it survives kill -9 and power loss
        writer.append(…)
        writer.rollback()           # drops what was not committed
    # leaving the block commits; leaving it by an exception rolls back

Here, once for all stores: the lock; one thread at a time; what a forked child, a closed writer, a
writer whose commit failed, one whose change was interrupted, and one whose folder was moved away
may do; outputs that exist already.
"""

import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import ClassVar, Concatenate, Literal, ParamSpec, Self, TypeVar

from stepwell.description import html
from stepwell.errors import BusyError
from stepwell.files.atomic import make_folder
from stepwell.files.lock import WriterLock
from stepwell.files.remote import is_url
from stepwell.store import what_is_at

Mode = Literal["x", "a"]
"""As Python's `open` has it: "x" creates, "a" goes on with what is there or creates."""

_process = os.getpid()
"""This one; a system call for each append would cost as much as the append."""


def _in_child() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_in_child)

P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W", bound="Writer")


def exclusive(method: Callable[Concatenate[W, P], R]) -> Callable[Concatenate[W, P], R]:
    """A public method of a writer: one thread at a time, and only while it may be used.

    Raises `RuntimeError` in a forked child, and in a signal handler that came in the middle of
    another call; `ValueError` when the writer is closed, or failed before.
    """

    @wraps(method)
    def alone(self: W, /, *args: P.args, **options: P.kwargs) -> R:
        with self._turn():
            if self._closed or self._failed or self._torn:
                self._check_usable()
            return method(self, *args, **options)

    return alone


def local_path(path: str | os.PathLike[str], noun: str) -> Path:
    """Where to write, wherever the process goes later.

    Raises `ValueError` for a URL: as a path it would name a folder here.
    """
    if is_url(path):
        raise ValueError(
            f"expected a path for {noun}, got the URL {path}; a bucket takes what StepWriter and "
            "ShardWriter write"
        )
    return Path(path).absolute()


def check_mode(mode: str) -> None:
    """Raise `ValueError` for a mode that there is not."""
    if mode not in ("x", "a"):
        raise ValueError(f"mode: expected 'x' or 'a', got {mode!r}")


def check_unused(root: Path, noun: str, is_left_over: Callable[[Path], bool]) -> None:
    """Raise `FileExistsError` when more is at a path than a writer that never committed left."""
    if not root.exists():
        return
    if not root.is_dir():
        raise FileExistsError(f"expected {noun} or nothing, got {what_is_at(root)}: {root}")
    others = [path.name for path in sorted(root.iterdir()) if not is_left_over(path)]
    if others:
        raise FileExistsError(
            f"expected {noun} or an empty folder, got {what_is_at(root)} "
            f"with {', '.join(others[:3])}: {root}"
        )


class Writer(ABC):
    """One process changing a store. Others see its changes after `commit`."""

    noun: ClassVar[str]
    """The store in messages: "a step dataset"."""

    _lock: WriterLock | None = None
    _closed = True
    """Until the constructor has come to its end, and after `close`."""
    _failed = False
    """A write went wrong half-way: the next writer finds out what is on the disk."""
    _torn = False
    """A change to what is in memory was interrupted: `rollback` forgets it."""

    # Provided by a store.

    @abstractmethod
    def _commit(self) -> None:
        """Make what was appended durable; wrap what must not stop half-way in `_at_risk`."""

    @abstractmethod
    def _rollback(self) -> None:
        """Drop what was not committed."""

    @abstractmethod
    def _release(self) -> None:
        """Close files. Called once, at the end, in any state; the lock is let go of afterwards."""

    @classmethod
    def _holds_commits(cls, root: Path) -> bool:
        """Whether something was committed at a path; what was not counts as empty."""
        raise TypeError(f"{cls.__name__} writes to a folder and defines no _holds_commits")

    @classmethod
    def _is_left_over(cls, path: Path) -> bool:
        """Whether a writer that never committed may have left this file or folder."""
        raise TypeError(f"{cls.__name__} writes to a folder and defines no _is_left_over")

    # The same for every writer.

    @exclusive
    def commit(self) -> None:
        """Make everything so far durable: on return it survives kill -9 and power loss."""
        self._commit()

    def rollback(self) -> None:
        """Drop what was not committed; the writer stays usable."""
        with self._turn():
            torn, self._torn = self._torn, False
            try:
                self._check_usable()
                self._rollback()
            except BaseException:
                self._torn = torn
                raise

    def close(self) -> None:
        """Commit, and let others write. Closing twice is fine.

        Raises `ValueError` when a write failed or a change was interrupted before: what was not
        committed is gone.
        """
        self._end(commit=True)

    @property
    def _state(self) -> str:
        return "closed" if self._closed else "failed" if self._failed else "open"

    @property
    def _where(self) -> str:
        """What messages call the store."""
        return str(getattr(self, "_root", ""))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._where!r}, {self._state})"

    def _repr_html_(self) -> str:
        return html(type(self).__name__, {"path": self._where, "state": self._state})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        self._end(commit=kind is None)

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not self._closed and not is_ending():  # there are no names any more
            with suppress(Exception):  # nobody is left to catch it
                self._forget()

    def _forget(self) -> None:
        """What a writer does that nobody has any more, in whatever thread collects garbage."""
        self._end(commit=False)

    # Below this line: for stores.

    def _begin(self, path: str | os.PathLike[str], lock: str, mode: Mode) -> bool:
        """Take the folder at `path`; return whether there is something to go on with.

        Raises `FileExistsError` when something is there that `mode` does not go on with, or that is
        not such a store; `BusyError` beside another writer. Nothing is touched then. To be
        followed by `with self._opening():` around everything else that a constructor does.
        """
        check_mode(mode)
        self._root = root = local_path(path, self.noun)
        self._refuse(mode)
        make_folder(root)
        self._ready(WriterLock(root / lock))
        with self._opening(done=False):
            self._refuse(mode)  # again: another writer may have come and gone meanwhile
            return self._holds_commits(root)

    def _refuse(self, mode: Mode) -> None:
        root = self._root
        if root.is_dir() and self._holds_commits(root):
            if mode == "x":
                raise FileExistsError(f"{root} exists already; mode='a' goes on with it")
        else:
            check_unused(root, self.noun, self._is_left_over)

    def _ready(self, lock: WriterLock | None) -> None:
        """Take over a lock; a writer that has none of its own may have none."""
        self._lock = lock
        self._process = _process
        self._turn_lock = threading.RLock()

    @contextmanager
    def _opening(self, *, done: bool = True) -> Iterator[None]:
        """The rest of a constructor: when it fails, everything is let go of."""
        try:
            yield
        except BaseException:
            self._let_go()
            raise
        self._closed = not done

    def _turn(self) -> "threading.RLock":
        """The lock that a call holds; not waited for where nobody would ever release it."""
        if self._process != _process:
            raise RuntimeError(
                f"the writer of {self._where} belongs to the process that this one was forked "
                "from; open one of its own"
            )
        if self._turn_lock._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError(
                f"the writer of {self._where} is in the middle of a call, which was interrupted"
            )
        return self._turn_lock

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"closed: the writer of {self._where}")

    def _check_usable(self) -> None:
        """Only in turn: another thread's commit counts as failed until it is done."""
        self._check_open()
        if self._failed:
            raise ValueError(f"a write to {self._where} failed; open it again to go on")
        if self._torn:
            raise ValueError(f"a change to {self._where} was interrupted; rollback() drops it")

    @contextmanager
    def _at_risk(self) -> Iterator[None]:
        """A part of a commit that must not be taken for done, or tried again, when it fails.

        Raises `BusyError` before it when the store is not where the lock is.
        """
        self._check_place()
        self._failed = True
        yield
        self._failed = False

    def _changing(self) -> "_Change":
        """A change in memory that an interrupt must not leave by half."""
        return _Change(self)

    def _check_place(self) -> None:
        """Writes go where the lock is: not to a store that was moved or replaced."""
        if self._lock is not None and not self._lock.in_place:
            raise BusyError(f"{self._root} was moved or replaced while it was written to")

    def _end(self, *, commit: bool) -> None:
        """Commit or roll back, if that is possible, and let go of everything."""
        if self._closed:
            return
        if self._process != _process:  # files and lock are those of another process
            self._closed = True
            return
        with self._turn():
            lost = commit and not self._closed and (self._failed or self._torn)
            try:
                if commit and not (self._closed or lost):
                    self._commit()
                elif not (self._closed or self._failed) and self._in_place:
                    self._rollback()
            finally:
                self._let_go()
        if lost:
            raise ValueError(
                f"a write to {self._where} failed or was interrupted before: "
                "uncommitted changes are lost"
            )

    @property
    def _in_place(self) -> bool:
        return self._lock is None or self._lock.in_place

    def _let_go(self) -> None:
        """Close everything. Closing twice is fine, and so is a constructor that got nowhere."""
        self._closed = True
        try:
            self._release()
        finally:
            if self._lock is not None:
                self._lock.release()

    _root: Path
    _process: int
    _turn_lock: "threading.RLock"


class _Change:
    """Not a generator: small appends would notice."""

    __slots__ = ("_writer",)

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        self._writer._torn = True

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self._writer._torn = False

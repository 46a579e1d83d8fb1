"""One writer at a time."""

import fcntl
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from stepwell.errors import BusyError, FormatError
from stepwell.files.regular import is_at, open_inside

T = TypeVar("T")

_PAUSES_S = (0.0, 0.001, 0.002, 0.005, 0.01)

_held: "weakref.WeakSet[WriterLock]" = weakref.WeakSet()


class WriterLock:
    """Held from here on by this object, until it is released, forgotten or its process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        while self._file < 0:
            file = open_inside(path.parent, path.name, os.O_RDWR | os.O_CREAT)
            try:
                take = partial(fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                patiently(take, BlockingIOError)
                if is_at(file, path):  # and was not removed before it was locked
                    self._file = file
            except BlockingIOError:
                raise BusyError(f"another writer is at work in {path.parent}") from None
            finally:
                if self._file < 0:
                    os.close(file)
        _held.add(self)

    @property
    def file(self) -> int:
        """The descriptor of the locked file, for writers of that very file; -1 in a child."""
        return self._file

    @property
    def held(self) -> bool:
        """Whether it is this process that holds it; a forked child does not."""
        return self._file >= 0

    @property
    def in_place(self) -> bool:
        """Whether the file that is locked is still the one at its path."""
        return is_at(self._file, self._path)

    def release(self) -> None:
        if self._file < 0:
            return
        fcntl.flock(self._file, fcntl.LOCK_UN)  # for copies in children that Python did not fork
        self._forget()

    def _forget(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending():  # there are no names any more
            self.release()


def _in_child() -> None:
    """A forked child has copies of the descriptors, which would outlive a parent that dies."""
    for lock in list(_held):
        lock._forget()


os.register_at_fork(after_in_child=_in_child)


def patiently(take: Callable[[], T], busy: type[OSError]) -> T:
    """Take a lock. Others hold it for a moment, to see whether it is free; that is waited for."""
    for pause_s in _PAUSES_S:
        with suppress(busy):
            return take()
        time.sleep(pause_s)
    return take()


@contextmanager
def unlocked(path: Path) -> Iterator[bool]:
    """Whether nobody has a lock of the file at `path`; if so, the block has it alone.

    Whoever takes the file away there has no other process find it between lock and removal. What
    is no file of ours, or cannot be looked at, is as good as locked.
    """
    with ExitStack() as stack:
        free = False
        with suppress(OSError, FormatError):
            file = open_inside(path.parent, path.name)
            stack.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = is_at(file, path)
        yield free


def remove_unlocked(path: Path) -> None:
    """Remove a file that its owner holds a lock of, if that owner is dead."""
    with unlocked(path) as free, suppress(OSError):
        if free:
            path.unlink()


def is_locked(path: Path) -> bool:
    """Whether a writer, of this process or another, holds the lock at `path`."""
    try:
        file = open_inside(path.parent, path.name)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False

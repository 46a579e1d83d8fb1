"""One writer at a time."""

import fcntl
import os
import time
from pathlib import Path

from stepwell.errors import BusyError

__all__ = ["WriterLock", "is_locked"]

_PAUSES_S = (0.0, 0.001, 0.002, 0.005, 0.01)


class WriterLock:
    """Held from here on by this object, until it is released, forgotten or its process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = os.getpid()
        self._file = -1
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _take(file)
        except BlockingIOError:
            os.close(file)
            raise BusyError(f"another writer is at work in {path.parent}") from None
        except BaseException:
            os.close(file)
            raise
        self._file = file

    @property
    def held(self) -> bool:
        """Whether it is this process that holds it; a forked child only has a copy."""
        return self._file >= 0 and self._process == os.getpid()

    @property
    def in_place(self) -> bool:
        """Whether the file that is locked is still the one at its path."""
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False
        mine = os.fstat(self._file)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def release(self) -> None:
        if self._file < 0:
            return
        if self.held:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # for the copies of forked children too
        file, self._file = self._file, -1
        os.close(file)

    def __del__(self) -> None:
        self.release()


def _take(file: int) -> None:
    """Lock a file. Whoever asks `is_locked` holds it for a moment; that is waited for."""
    for pause_s in _PAUSES_S:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(pause_s)
        else:
            return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: Path) -> bool:
    """Whether a writer, of this process or another, holds the lock at `path`."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False

"""One writer at a time."""

import fcntl
import os
from pathlib import Path

from stepwell.errors import BusyError

__all__ = ["WriterLock"]


class WriterLock:
    """Held from here on by this object, until it is released or its process ends."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise BusyError(f"another writer is at work in {path.parent}") from None
        except BaseException:
            os.close(self._file)
            raise

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)  # which lets go of the lock
            self._file = -1

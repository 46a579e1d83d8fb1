"""Where the stand-ins of far files are: a folder that goes with the process, or a cache that stays.

A temporary folder has a lock beside it. Whoever makes one removes those whose owner was killed.
A cache has a folder for each place, as `hashlib` names it, which every process that uses it holds
a shared lock of; folders that nobody uses go first when room is needed.
"""

import fcntl
import os
import secrets
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from stepwell.files.lock import unlocked
from stepwell.files.regular import bytes_on_disk, check_folders, is_at, open_inside

_LOCK = ".lock"
_USED = "mirror.used"
_CHANGING = "mirror.lock"
_FOLDER_LETTERS = 16


class TemporaryPlace:
    """A folder in memory, or where temporary files are; gone with its owner, even a killed one."""

    is_shared = False

    def __init__(self, needed_bytes: int) -> None:
        folder = _roomy(needed_bytes)
        prefix = f"stepwell-{os.getuid()}-mirror-"
        for old in folder.glob(f"{prefix}*{_LOCK}"):
            _remove_dead(old)
        while True:
            self.root = folder / (prefix + secrets.token_hex(8))
            lock = self.root.with_name(self.root.name + _LOCK)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(lock, flags, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            if is_at(file, lock):  # and was not taken for a dead one's
                break
            os.close(file)
        self.root.mkdir(0o700)
        weakref.finalize(self, _remove, self.root, lock, file, os.getpid())

    @contextmanager
    def changing(self) -> Iterator[None]:
        yield

    def make_room(self, max_bytes: int) -> int:
        return 0


class CachePlace:
    """The folder of one place in a cache that the user named."""

    is_shared = True

    def __init__(self, cache: Path, place: str) -> None:
        self._cache = cache.absolute()
        self._cache.mkdir(parents=True, exist_ok=True)
        name = sha256(f"mirror {place}".encode()).hexdigest()[:_FOLDER_LETTERS]
        self.root = self._cache / name
        while True:
            with suppress(FileExistsError):
                self.root.mkdir()
            check_folders(self._cache, f"{name}/")
            self._used = open_inside(self.root, _USED, os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._used, fcntl.LOCK_SH)
            if is_at(self._used, self.root / _USED):
                break
            os.close(self._used)  # of a folder that was removed meanwhile
        os.utime(self._used)
        self._lock = open_inside(self.root, _CHANGING, os.O_RDWR | os.O_CREAT)
        self._turn = threading.RLock()
        self._depth = 0
        weakref.finalize(self, _close, self._used, self._lock)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """For what only one thread of one process does at a time; again inside of itself, too."""
        with self._turn:
            if not self._depth:
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)

    def make_room(self, max_bytes: int) -> int:
        """Remove what nobody uses until all places together have this many bytes; how many they
        have too many then, below 0 where there is room."""
        folders = [each for each in self._cache.iterdir() if _is_mirror(each)]
        sizes = {each: bytes_on_disk(each) for each in folders}
        surplus = sum(sizes.values()) - max_bytes
        others = [each for each in folders if each != self.root]
        for folder in sorted(others, key=_last_use):
            if surplus <= 0:
                break
            if _remove_unused(folder):
                surplus -= sizes[folder]
        return surplus


Place = TemporaryPlace | CachePlace


def _roomy(needed_bytes: int) -> Path:
    """Memory, where there is some; else where temporary files are."""
    shm = Path("/dev/shm")
    with suppress(OSError):
        about = os.statvfs(shm)
        if os.access(shm, os.W_OK) and about.f_bavail * about.f_frsize > 2 * needed_bytes:
            return shm
    return Path(tempfile.gettempdir())


def _remove(root: Path, lock: Path, file: int, process: int) -> None:
    if process != os.getpid():
        return  # a forked child, which has a copy of all this
    shutil.rmtree(root, ignore_errors=True)
    lock.unlink(missing_ok=True)
    os.close(file)


def _remove_dead(lock: Path) -> None:
    """Remove a folder whose owner has ended: its lock is free."""
    with unlocked(lock) as free, suppress(OSError):
        if free:
            shutil.rmtree(lock.with_name(lock.name.removesuffix(_LOCK)), ignore_errors=True)
            lock.unlink(missing_ok=True)


def _close(*files: int) -> None:
    for file in files:
        os.close(file)


def _is_mirror(folder: Path) -> bool:
    name = folder.name
    letters = len(name) == _FOLDER_LETTERS and set(name) <= set("0123456789abcdef")
    return letters and not folder.is_symlink() and (folder / _USED).is_file()


def _last_use(folder: Path) -> float:
    try:
        return (folder / _USED).lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def _remove_unused(folder: Path) -> bool:
    """Remove a folder of the cache unless a process uses it."""
    with unlocked(folder / _USED) as free, suppress(OSError):
        if free:
            away = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
            folder.rename(away)  # whoever waits for the lock finds another folder, or none
            shutil.rmtree(away, ignore_errors=True)
            return True
    return False

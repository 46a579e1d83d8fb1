"""Memory that several processes of one machine fill once and map together.

A block is a file in `/dev/shm`. Whoever comes first fills it while holding its lock alone;
the others wait, then share the lock for as long as they use the block. The last one to let
go removes it. A process that is killed lets go of its locks as well: a block that nobody
holds any more is used again by the next process that needs it, or removed.
"""

import errno
import fcntl
import mmap
import os
import random
import tempfile
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepwell.files.lock import remove_unlocked
from stepwell.files.memory import check_room
from stepwell.files.regular import is_at

_READY = b"stepwell-ready\0\0"
_HEAD = mmap.PAGESIZE  # whether the block was filled; then the data


def shared_block(
    owner: str, version: str, size: int, fill: Callable[[NDArray[np.uint8]], None]
) -> NDArray[np.uint8]:
    """Return `size` bytes that every process with these words sees.

    `fill` is called in one of them. Blocks of the same owner with another version that
    nobody uses are removed.
    """
    folder = _folder()
    prefix = f"stepwell-{os.getuid()}-{sha256(owner.encode()).hexdigest()[:16]}-"
    path = folder / (prefix + sha256(version.encode()).hexdigest()[:16])
    for other in folder.glob(prefix + "*"):
        if other != path:
            remove_unlocked(other)
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(file).st_uid != os.geteuid():
                raise PermissionError(errno.EACCES, "put there by another user", str(path))
            alone = _try_alone(file)
            if not alone:
                fcntl.flock(file, fcntl.LOCK_SH)  # waits while another process fills it
            ready = os.pread(file, len(_READY), 0) == _READY
            if alone:
                if not ready and is_at(file, path):
                    os.ftruncate(file, 0)
                    check_room(size, owner)
                    os.posix_fallocate(file, 0, _HEAD + size)  # ENOSPC now, not SIGBUS later
                    memory = _map(path, _HEAD + size, mmap.ACCESS_WRITE)
                    fill(np.frombuffer(memory, np.uint8, size, _HEAD))
                    del memory
                    os.pwrite(file, _READY, 0)
                    ready = True
                fcntl.flock(file, fcntl.LOCK_SH)  # lets go for a moment
            if not ready or not is_at(file, path):
                # Removed by its last user, or whoever filled it failed: one of us is next.
                os.close(file)
                time.sleep(random.uniform(0, 0.01))
                continue
            if os.fstat(file).st_size != _HEAD + size:
                raise OSError(f"{path}: expected {_HEAD + size} bytes of shared memory")
            mapped = _map(path, _HEAD + size, mmap.ACCESS_READ)
        except BaseException:
            os.close(file)
            remove_unlocked(path)
            raise
        block = np.frombuffer(mapped, np.uint8, size, _HEAD)
        weakref.finalize(mapped, _let_go, file, path)
        return block


def _try_alone(file: int) -> bool:
    """Lock a block for oneself, unless others have it: who is done keeps it for long."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _let_go(file: int, path: Path) -> None:
    os.close(file)  # parent and forked children share the lock until the last of them does so
    remove_unlocked(path)


def _map(path: Path, size: int, access: int) -> mmap.mmap:
    """Map a block that is locked, by a descriptor of its own.

    A mapping keeps a copy of its descriptor. Were it the one with the lock, the block would stay
    locked, and be left behind, by whoever ends with a reference to it.
    """
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        memory = mmap.mmap(file, size, access=access)
    finally:
        os.close(file)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a wish, not a need
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _folder() -> Path:
    shm = Path("/dev/shm")
    return shm if shm.is_dir() else Path(tempfile.gettempdir())

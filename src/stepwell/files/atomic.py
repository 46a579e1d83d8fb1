"""Write beside, then rename: readers see the old thing, the new one, or nothing."""

import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import FormatError

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.tmp", re.DOTALL)
_WRITERS = "00000000"


def temporary_name(target: Path, token: str | None = None) -> Path:
    """A name beside `target` that nobody else uses; with a token, eight digits, always the same."""
    if not target.name:  # "." or "/"
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    return target.with_name(f".{target.name}.{token or secrets.token_hex(4)}.tmp")


def writer_name(target: Path) -> Path:
    """The name of the file beside `target` that its only writer makes, and locks."""
    return temporary_name(target, _WRITERS)


def is_writers(path: Path) -> bool:
    """Whether a name is one that `writer_name` gives."""
    return path.name.startswith(".") and path.name.endswith(f".{_WRITERS}.tmp")


def is_temporary(path: Path, pattern: str) -> bool:
    """Whether a name is one that a writer uses beside targets whose whole names match."""
    beside = _TEMPORARY.fullmatch(path.name)
    return beside is not None and re.fullmatch(pattern, beside[1]) is not None


def sweep(folder: Path, pattern: str) -> None:
    """Remove what killed writers left in a folder, beside targets whose whole names match."""
    for path in folder.iterdir():
        if is_temporary(path, pattern):
            path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """A folder that is still there after a power cut, and so are those above it."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync_path(folder.parent)


def create_beside(target: Path) -> tuple[int, Path]:
    """A new file beside `target`, open for reading and writing, and its name.

    Errors name the target: the other name means nothing to anyone.
    """
    beside = temporary_name(target)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(beside, flags, 0o666), beside
    except OSError as error:
        error.filename = str(target)
        raise


@contextmanager
def new_file(target: Path, *, follow: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, which becomes `target` at the end of the block, whole and on disk.

    When the block fails, `target` is what it was before and nothing is left behind. A link, a pipe
    or a device that has the name is replaced; a folder is a `FormatError`. With `follow`, only for
    outputs that the user named, a link is followed and a pipe or a device is written to.
    """
    if follow:
        target = Path(os.path.realpath(target))
        if target.exists() and not target.is_file():
            with target.open("wb") as file:
                yield file
            return
    elif target.is_dir() and not target.is_symlink():
        raise FormatError("expected a regular file, got a folder", path=str(target))
    descriptor, beside = create_beside(target)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            error.filename = str(target)
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    sync_path(target.parent)


def write_file(target: Path, data: bytes, *, follow: bool = False) -> None:
    """Put `data` into the file `target`, all of it or nothing; see `new_file`."""
    with new_file(target, follow=follow) as file:
        file.write(data)


def publish(beside: Path, target: Path) -> None:
    """Give a finished file or folder its name, once all of it is on the disk."""
    for path in [*beside.rglob("*"), beside]:
        sync_path(path)
    beside.rename(target)
    sync_path(target.parent)


def sync_path(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk; errors name it."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(file)


def write_all(file: int, data: NDArray[np.uint8], at: int, path: Path) -> None:
    """Write all of `data` to a place in an open file; errors name `path`."""
    view = data.data
    while view:
        try:
            written = os.pwrite(file, view, at)
        except OSError as error:
            error.filename = str(path)
            raise
        view, at = view[written:], at + written

"""Regular files inside a folder: no link is followed, no pipe waited at, no device opened."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from stepwell.errors import FormatError

_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path) -> BinaryIO:
    """Open a file that the caller named for reading, as `open_named` does."""
    return os.fdopen(open_named(path), "rb")


def open_named(path: Path) -> int:
    """A descriptor of a file that the caller named: links are followed, nothing is waited for.

    Raises `IsADirectoryError` for a folder and `FormatError` for anything else that is not a
    regular file.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(file).st_mode
    if not stat.S_ISREG(mode):
        os.close(file)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise _not_regular(mode, path)
    return file


def open_inside(root: Path, name: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of the regular file `name` below the folder `root` of a store.

    `name` may have folders before it. Raises `FileNotFoundError`, or `FormatError` when the file
    or a folder on the way is a link, or the file is not a regular one; nothing is touched then.
    """
    path = f"{root}{os.sep}{name}"  # a Path costs more than the call
    folder = _open_folders(root, name) if os.sep in name else None
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        file = os.open(
            path if folder is None else os.path.basename(name), flags, 0o666, dir_fd=folder
        )
    except OSError as error:
        error.filename = path
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _not_regular(os.lstat(path).st_mode, Path(path)) from None
        if error.errno == errno.ENOTDIR:
            raise _no_folder(os.stat(root).st_mode, root) from None
        raise
    finally:
        if folder is not None:
            os.close(folder)
    mode = os.fstat(file).st_mode
    if not stat.S_ISREG(mode):
        os.close(file)
        raise _not_regular(mode, Path(path))
    return file


def read_inside(root: Path, name: str, max_bytes: int) -> bytes:
    """The bytes of a small file of a store. Raises `FormatError` when it is larger."""
    with os.fdopen(open_inside(root, name), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = b"" if size > max_bytes else file.read(size + 1)  # which it makes room for
    if max(len(data), size) > max_bytes:
        raise FormatError(f"expected at most {max_bytes:,} bytes, got more", path=str(root / name))
    return data


def check_inside(root: Path, *names: str) -> None:
    """Raise what `open_inside` would, for files that a library opens by their paths.

    Files that do not exist are fine.
    """
    for name in names:
        check_folders(root, name)
        path = root / name
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(mode):
            raise _not_regular(mode, path)


def is_at(file: int, path: Path) -> bool:
    """Whether an open file is the one at a path."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(file)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def bytes_on_disk(*paths: Path) -> int:
    """Bytes that files take up on the disk, those of folders included; holes are left out."""
    total = 0
    for path in paths:
        try:
            found = os.lstat(path)
        except FileNotFoundError:  # a writer beside us took it away
            continue
        if stat.S_ISDIR(found.st_mode):
            total += bytes_on_disk(*path.iterdir())
        elif stat.S_ISREG(found.st_mode):
            total += min(found.st_size, found.st_blocks * 512)
    return total


def check_folders(root: Path, name: str) -> None:
    """Raise `FormatError` unless the folders between a store and a file of it are folders."""
    at = root
    for part in name.split(os.sep)[:-1]:
        at /= part
        mode = os.lstat(at).st_mode
        if not stat.S_ISDIR(mode):
            raise _no_folder(mode, at)


def _open_folders(root: Path, name: str) -> int:
    """The folder that a file of a store is in, open: what is there later does not matter."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        folder, at = os.open(root, flags), root
    except NotADirectoryError:
        raise _no_folder(os.stat(root).st_mode, root) from None
    for part in name.split(os.sep)[:-1]:
        above, at = folder, at / part
        try:
            folder = os.open(part, flags | os.O_NOFOLLOW, dir_fd=above)
        except OSError as error:
            error.filename = str(at)
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise _no_folder(os.lstat(at).st_mode, at) from None
            raise
        finally:
            os.close(above)
    return folder


def _no_folder(mode: int, path: Path) -> FormatError:
    found = _KINDS.get(stat.S_IFMT(mode), "a file")
    return FormatError(f"expected a folder, got {found}", path=str(path))


def _not_regular(mode: int, path: Path) -> FormatError:
    found = _KINDS.get(stat.S_IFMT(mode), "something else")
    return FormatError(f"expected a regular file, got {found}", path=str(path))

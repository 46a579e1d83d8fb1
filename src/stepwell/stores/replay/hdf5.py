"""HDF5 files of runs: how they are opened, and what their errors mean."""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401 - makes h5py know zstd
from h5py._objects import phil

from stepwell.errors import FormatError, StepwellError
from stepwell.source import Field

__all__ = [
    "FILE_VERSION",
    "LIBVER",
    "UNSUMMED",
    "open_for_reading",
    "row_of",
    "translated",
    "writing",
]

FILE_VERSION = 1
UNSUMMED = ("episodes/starts", "episodes/lengths")  # the database has the same, and is believed
LIBVER = ("v110", "v110")  # what SWMR needs, and what chunk_index.py reads


_written: dict[int, tuple[int, int]] = {}


@contextmanager
def writing(open_file: Callable[[], h5py.File]) -> Iterator[h5py.File]:
    """A file that is open for writing in the block, and that forked children leave alone.

    When a process ends, HDF5 writes what it remembers of every file; a child remembers what was
    true when it was forked. So the child gets another file in that one's place. It has to know of
    it from the beginning: whoever forks waits for h5py's lock.
    """
    with phil:
        file = open_file()
        try:
            number = file.id.get_vfd_handle()
            found = os.fstat(number)
            _written[number] = found.st_dev, found.st_ino
        except BaseException:
            file.close()
            raise
    try:
        yield file
    finally:
        try:
            file.close()
        finally:
            _written.pop(number, None)


def _in_child() -> None:
    for number, identity in _written.items():
        with suppress(OSError):
            found = os.fstat(number)
            if (found.st_dev, found.st_ino) == identity:
                other = os.memfd_create("forked") if hasattr(os, "memfd_create") else -1
                other = other if other >= 0 else os.open(os.devnull, os.O_RDWR)
                os.dup2(other, number)
                os.close(other)
    _written.clear()


os.register_at_fork(after_in_child=_in_child)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """What h5py raises in the block, as an error of this package or of the system."""
    try:
        yield
    except StepwellError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = str(path)
            raise
        code = re.search(r"errno = (\d+)", str(error))
        number = int(code[1]) if code else 0
        if number and (isinstance(error, OSError) or number == errno.ENOSPC):
            raise OSError(number, os.strerror(number), str(path)) from None
        raise FormatError(f"HDF5: {error}", path=str(path)) from None


def open_for_reading(path: Path, run_id: str | None = None) -> h5py.File:
    """Open a file that is being written, was closed, or whose writer was killed.

    Raises `FormatError` when it is not an HDF5 file, or that of another run.
    """
    path.stat()  # h5py's error for a file that is missing does not say so
    with translated(path):
        file = h5py.File(path, "r", libver="latest", swmr=True, locking=False)
    try:
        with translated(path):
            stated = file.attrs.get("run_id")
        if run_id is not None and stated is not None and stated != run_id:
            raise FormatError(f"expected the run {run_id!r}, got {stated!r}", path=str(path))
    except BaseException:
        file.close()
        raise
    return file


def row_of(dataset: h5py.Dataset, compress: str | None = None) -> Field:
    """What a row of a dataset is. Where each element is an array, its axes are the row's last."""
    return Field(dataset.dtype, dataset.shape[1:], compress=compress)

"""HDF5 files of runs: how they are opened, what their errors mean, and calls without the GIL.

h5py keeps the GIL while HDF5 works, and an agent in the same process waits for it. So the writer
calls the functions of the very library that h5py has loaded, under h5py's own lock. What they
refuse goes through h5py once more, which reports why; so does everything where h5py's library
cannot be found.
"""

import ctypes
import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import h5py
import hdf5plugin  # noqa: F401 - makes h5py know zstd
from h5py._objects import phil

from stepwell import _core
from stepwell.errors import FormatError, StepwellError
from stepwell.source import Field

LIBVER = ("v110", "v110")  # what SWMR needs, and what chunk_index.py reads


_written: dict[int, tuple[int, int]] = {}
_stuck: set[tuple[int, int]] = set()  # files that HDF5 could not close


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
        except BaseException:
            _stuck.add(_written[number])
            raise
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
    """Errors of h5py in the block, as those of this package or of the system."""
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
    path.stat()  # h5py's error for a missing file does not name it
    with translated(path):
        access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
        access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
        access.set_libver_bounds(h5py.h5f.LIBVER_LATEST, h5py.h5f.LIBVER_LATEST)
        access.set_file_locking(False, False)
        limit_attempts(access, _ATTEMPTS)
        mode = h5py.h5f.ACC_RDONLY | h5py.h5f.ACC_SWMR_READ
        file = h5py.File(h5py.h5f.open(os.fsencode(path), mode, fapl=access))
    try:
        with translated(path):
            stated = file.attrs.get("run_id")
        if run_id is not None and stated is not None and stated != run_id:
            raise FormatError(f"expected the run {run_id!r}, got {stated!r}", path=str(path))
    except BaseException:
        file.close()
        raise
    return file


def check_metadata(path: Path, names: Iterable[str], *, chunks: bool) -> None:
    """Raise `FormatError` unless HDF5 itself finds these datasets, and all of their `chunks`: its
    own blocks have checksums, which readers of ours do not need."""
    found = path.stat()
    if (found.st_dev, found.st_ino) in (*_stuck, *_written.values()):
        return  # this process has it open in another way, and HDF5 knows a file only once
    with open_for_reading(path) as file, translated(path):
        for name in names:
            dataset = file[name]
            if chunks:
                dataset.id.get_num_chunks()


def row_of(dataset: h5py.Dataset, compress: str | None = None) -> Field:
    """The field of a dataset. Where each element is an array, its axes are the row's last."""
    return Field(dataset.dtype, dataset.shape[1:], compress=compress)


class _Found(NamedTuple):
    """Functions of HDF5: the address of one, and two to call."""

    write: int
    flush: "ctypes._NamedFuncPointer"
    attempts: "ctypes._NamedFuncPointer"


def _find() -> _Found | None:
    try:
        library = ctypes.CDLL(h5py.h5d.__file__)  # and with it all that it is linked to
        write, flush = library.H5Dwrite_chunk, library.H5Fflush
        attempts = library.H5Pset_metadata_read_attempts
    except (OSError, AttributeError):
        return None
    flush.argtypes = [ctypes.c_int64, ctypes.c_int]
    attempts.argtypes = [ctypes.c_int64, ctypes.c_uint]
    flush.restype = attempts.restype = ctypes.c_int
    return _Found(ctypes.cast(write, ctypes.c_void_p).value or 0, flush, attempts)


_FOUND = _find()
_LOCAL = 0  # H5F_SCOPE_LOCAL
_ATTEMPTS = 24  # a few hundredths of a second, in which any writer has written a block


def limit_attempts(access: h5py.h5p.PropFAID, attempts: int) -> None:
    """Let HDF5 read a block of its own only so often when the checksum of that is wrong.

    In SWMR mode it tries a hundred times, and waits twice as long each time: for ever.
    """
    if _FOUND is not None:
        with phil:
            _FOUND.attempts(access.id, attempts)


def inside_h5py() -> bool:
    """Whether the calling thread holds h5py's lock: h5py has called it, as `visititems` does."""
    return bool(phil._is_owned())


def write_chunks(dataset: h5py.Dataset, first: int, rows: _core.PackedRows, raw_mask: int) -> None:
    """Put rows into a dataset that has room for them, a chunk each, from row `first` on."""
    rank = len(dataset.shape)
    done = 0
    if _FOUND is not None:
        with phil:
            done = rows.write(_FOUND.write, dataset.id.id, first, rank, raw_mask)
    for i in range(done, len(rows)):
        mask = raw_mask if rows.raw(i) else 0
        dataset.id.write_direct_chunk((first + i, *(0,) * (rank - 1)), rows.stored(i), mask)


def flush(file: h5py.File) -> None:
    """Hand everything that HDF5 remembers of a file to the system."""
    if _FOUND is not None:
        with phil:
            if _FOUND.flush(file.id.id, _LOCAL) >= 0:
                return
    file.flush()

"""What a writer asks of HDF5 again and again, without the GIL.

h5py keeps the GIL while HDF5 works, and an agent in the same process waits for it. So the writer
calls the functions of the very library that h5py has loaded, under h5py's own lock. What they
refuse is asked of h5py once more, which knows how to say why; so is everything where h5py's library
cannot be found.
"""

import ctypes

import h5py
from h5py._objects import phil

from stepwell import _core

__all__ = ["flush", "inside_h5py", "write_chunks"]


def _find() -> tuple[int, "ctypes._NamedFuncPointer"] | None:
    try:
        library = ctypes.CDLL(h5py.h5d.__file__)  # and with it all that it is linked to
        write, flush = library.H5Dwrite_chunk, library.H5Fflush
    except (OSError, AttributeError):
        return None
    flush.argtypes = [ctypes.c_int64, ctypes.c_int]
    flush.restype = ctypes.c_int
    return ctypes.cast(write, ctypes.c_void_p).value or 0, flush


_FOUND = _find()
_LOCAL = 0  # H5F_SCOPE_LOCAL


def inside_h5py() -> bool:
    """Whether the calling thread holds h5py's lock: h5py has called it, as `visititems` does."""
    return bool(phil._is_owned())


def write_chunks(dataset: h5py.Dataset, first: int, rows: _core.PackedRows, raw_mask: int) -> None:
    """Put rows into a dataset that has room for them, a chunk each, from row `first` on."""
    rank = len(dataset.shape)
    done = 0
    if _FOUND is not None:
        with phil:
            done = rows.write(_FOUND[0], dataset.id.id, first, rank, raw_mask)
    for i in range(done, len(rows)):
        mask = raw_mask if rows.raw(i) else 0
        dataset.id.write_direct_chunk((first + i, *(0,) * (rank - 1)), rows.stored(i), mask)


def flush(file: h5py.File) -> None:
    """Hand everything that HDF5 remembers of a file to the system."""
    if _FOUND is not None:
        with phil:
            if _FOUND[1](file.id.id, _LOCAL) >= 0:
                return
    file.flush()

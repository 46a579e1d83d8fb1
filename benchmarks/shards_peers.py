"""Random rows of activations in other formats, and the bare loop of `shards_probe.cpp`.

Each format is written without compression and read in the quickest way that it documents.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import shards_data as data
from benchmarks.records_data import made
from benchmarks.results import console
from benchmarks.rows import FOLDER

Rows = NDArray[np.int64]
Table = NDArray[np.float32]


@dataclass(frozen=True)
class Peer:
    """A way to take rows of a table."""

    name: str
    take: Callable[[Rows], Any]


def formats(table: Table, folder: Path) -> Iterator[Peer]:
    """Those that are installed, each with its own copy of the table in `folder`."""
    known = {"safetensors": _safetensors, "zarr": _zarr, "h5py": _hdf5}
    for package, readers in known.items():
        if find_spec(package) is None:
            console.print(f"[dim]{package} is left out: not installed[/]")
            continue
        yield from readers(table, folder)


def _safetensors(table: Table, folder: Path) -> Iterator[Peer]:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    path = made(
        folder / "x.safetensors", lambda new: save_file({"x": np.ascontiguousarray(table)}, new)
    )
    opened: Any = safe_open(path, framework="numpy")
    part = opened.get_slice("x")

    def slices(rows: Rows) -> NDArray[Any]:
        return np.concatenate([part[row : row + 1] for row in rows.tolist()])

    yield Peer("safetensors, a slice for each row", slices)


def _zarr(table: Table, folder: Path) -> Iterator[Peer]:
    import zarr

    module: Any = zarr

    def write(new: Path) -> None:
        chunks = (64, data.WIDTH)
        made = module.create_array(
            str(new), shape=table.shape, chunks=chunks, dtype=table.dtype, compressors=None
        )
        made[:] = table

    array = module.open_array(str(made(folder / "x.zarr", write)), mode="r")
    yield Peer("zarr, oindex, chunks of 64 rows", lambda rows: array.oindex[rows])


def _hdf5(table: Table, folder: Path) -> Iterator[Peer]:
    import h5py

    def write(new: Path) -> None:
        with h5py.File(new, "w", libver="latest") as out:
            out.create_dataset("x", data=table)

    array = h5py.File(made(folder / "x.h5", write), "r", libver="latest")["x"]

    def fancy(rows: Rows) -> NDArray[Any]:
        # It wants every row once, in order.
        wanted, places = np.unique(rows, return_inverse=True)
        taken: NDArray[Any] = array[wanted][places]
        return taken

    def one_by_one(rows: Rows) -> NDArray[Any]:
        out = np.empty((len(rows), data.WIDTH), np.float32)
        for i, row in enumerate(rows.tolist()):
            array.read_direct(out, np.s_[row : row + 1], np.s_[i : i + 1])
        return out

    yield Peer("HDF5, sorted rows", fancy)
    yield Peer("HDF5, read_direct of each row", one_by_one)


def bare_loop(paths: Sequence[Path], *, threads: int, streaming: bool) -> Callable[[], None]:
    """A pass over shards: mapped, read and made double, batch by batch, by a loop of C++."""
    library = _probe()
    names = (ctypes.c_char_p * len(paths))(*(os.fsencode(path) for path in paths))
    batch = data.BATCH_ROWS * data.WIDTH

    def work() -> None:
        if library.probe_pass(names, len(paths), batch, threads, streaming):
            raise OSError("the probe cannot map a shard")

    return work


def has_compiler() -> bool:
    return shutil.which(_compiler()) is not None


def _compiler() -> str:
    return os.environ.get("CXX", "c++")


@cache
def _probe() -> ctypes.CDLL:
    source = Path(__file__).with_name("shards_probe.cpp")
    flags = ["-O3", "-march=native", "-std=c++20", "-shared", "-fPIC", "-pthread"]

    def write(new: Path) -> None:
        subprocess.run([_compiler(), *flags, str(source), "-o", str(new)], check=True)

    target = made(FOLDER / f"shards-probe-{source.stat().st_mtime_ns}.so", write)
    library = ctypes.CDLL(str(target.absolute()))
    target.unlink()
    size = ctypes.c_size_t
    library.probe_pass.argtypes = [ctypes.c_void_p, size, size, size, ctypes.c_int]
    return library

"""The rows that are measured: 32 packed bytes each, like the steps of recorded games."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROW = np.dtype(
    [
        ("board", "<u8"),
        ("move", "u1"),
        ("ev_legal", "u1"),
        ("ev_values", "<f4", (4,)),
        ("run_id", "<u4"),
        ("step_index", "<u2"),
    ]
)
FLAT = np.dtype(
    [
        *(("board", "<i8"), ("move", "u1"), ("ev_legal", "u1")),
        *((f"ev_{i}", "<f4") for i in range(4)),
        *(("run_id", "<u4"), ("step_index", "<u2")),
    ]
)
"""The same bytes for those who know neither arrays nor unsigned numbers of 64 bits."""
FIELDS: tuple[str, ...] = ROW.names or ()

FOLDER = Path("bench-data")

RUN_STEPS = 1000
CHUNK_ROWS = 1 << 20


@contextmanager
def folder_for(name: str, *, keep: bool) -> Iterator[Path]:
    """A folder for the data of a benchmark, gone afterwards unless it is kept."""
    path = FOLDER / name
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield path
    finally:
        if not keep:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def steps_file(rows: int, *, keep: bool) -> Iterator[Path]:
    """A `.npy` file of so many rows: found there from an earlier run, or written."""
    path = FOLDER / f"steps-{rows}.npy"
    if not _is_whole(path, rows):
        write_steps(path, rows)
    try:
        yield path
    finally:
        if not keep:
            path.unlink()


def write_steps(path: Path, rows: int) -> None:
    """Write `rows` steps of made-up games; the file appears when it is whole.

    It is on the disk when this returns, so that the kernel does not write it back while
    something is measured.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    rng = np.random.default_rng(0)
    try:
        with beside.open("wb") as file:
            header = {"descr": ROW.descr, "fortran_order": False, "shape": (rows,)}
            np.lib.format.write_array_header_1_0(file, header)
            for begin in range(0, rows, CHUNK_ROWS):
                steps_of(rng, begin, min(rows, begin + CHUNK_ROWS)).tofile(file)
            os.fsync(file.fileno())
        beside.rename(path)
    finally:
        beside.unlink(missing_ok=True)


def first_rows(path: Path, rows: int) -> NDArray[np.int64]:
    """The first row of each run among the first `rows` of a file."""
    return np.flatnonzero(np.load(path, mmap_mode="r")[:rows]["step_index"] == 0)


def row_numbers(batch: Mapping[str, Any], firsts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which rows of the file a batch holds: what proves that an epoch has seen each once."""
    run, step = np.asarray(batch["run_id"]), np.asarray(batch["step_index"])
    numbers: NDArray[np.int64] = firsts[run] + step.astype(np.int64)
    return numbers


def as_void(array: NDArray[Any]) -> NDArray[np.void]:
    """The rows as opaque bytes, which is how NumPy takes them fastest."""
    return array.view(f"V{array.dtype.itemsize}")


def split(packed: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Packed rows as one contiguous array per field: what a stepwell batch is."""
    return {name: np.ascontiguousarray(packed[name]) for name in FIELDS}


def steps_of(rng: np.random.Generator, begin: int, end: int) -> NDArray[Any]:
    """The steps numbered from `begin` to `end`."""
    count = end - begin
    steps = np.empty(count, ROW)
    number = np.arange(begin, end)
    steps["board"] = rng.integers(0, 2**64, count, np.uint64)
    steps["move"] = rng.integers(0, 4, count, np.uint8)
    steps["ev_legal"] = rng.integers(0, 16, count, np.uint8)
    steps["ev_values"] = rng.random((count, 4), np.float32)
    steps["run_id"] = number // RUN_STEPS
    steps["step_index"] = number % RUN_STEPS
    return steps


def _is_whole(path: Path, rows: int) -> bool:
    if not path.exists():
        return False
    found = np.load(path, mmap_mode="r")
    return bool(found.dtype == ROW and found.shape == (rows,))

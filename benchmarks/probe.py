"""The bare C++ loop of `probe.cpp`, compiled here and now by the machine's own compiler."""

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Take = Callable[[NDArray[np.int64]], object]


@contextmanager
def probe(table: NDArray[Any], out: NDArray[Any], *, threads: int) -> Iterator[Take]:
    """A function that copies rows of `table` into `out`.

    Its helpers spin for as long as the context is open and would disturb anything else
    that is measured then.
    """
    library = build()
    team = library.probe_open(threads)
    base, to = table.ctypes.data, out.ctypes.data

    def take(rows: NDArray[np.int64]) -> None:
        library.probe_take(team, base, rows.ctypes.data, len(rows), to)

    try:
        yield take
    finally:
        library.probe_close(team)


@cache
def build() -> ctypes.CDLL:
    """Compile the probe, the first time; call it before anything is timed."""
    source = Path(__file__).with_name("probe.cpp")
    compiler = os.environ.get("CXX", "c++")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "probe.so"
        flags = ["-O3", "-std=c++20", "-shared", "-fPIC", "-pthread"]
        subprocess.run([compiler, *flags, str(source), "-o", str(target)], check=True)
        library = ctypes.CDLL(str(target))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    library.probe_open.restype = pointer
    library.probe_open.argtypes = [size]
    library.probe_close.argtypes = [pointer]
    library.probe_take.argtypes = [pointer, pointer, pointer, size, pointer]
    return library

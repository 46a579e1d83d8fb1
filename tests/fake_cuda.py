"""A CUDA driver for machines without a GPU (native/fake_cuda.cpp), and a loader that feeds it."""

import ctypes
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stepwell as sw
from stepwell import _core, loader as _loader
from stepwell.engine import Engine, FeedEngine
from stepwell.feed import make_feed
from stepwell.source import Batch
from tests import ROOT

SOURCE = ROOT / "tests/native/fake_cuda.cpp"


@cache
def library() -> Path:
    """The driver, built by the compiler that builds the core."""
    made = ROOT / f"build/fake_cuda-{SOURCE.stat().st_mtime_ns}.so"
    if not made.exists():
        made.parent.mkdir(exist_ok=True)
        partial = made.with_suffix(f".{os.getpid()}")
        flags = ["-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        compiler = os.environ.get("CXX", "g++")
        subprocess.run([compiler, *flags, "-pthread", str(SOURCE), "-o", str(partial)], check=True)
        partial.rename(made)
    return made


@cache
def driver() -> Any:
    """The driver of this process: the core's is the same from now on."""
    os.environ["STEPWELL_CUDA_LIBRARY"] = str(library())
    fake = ctypes.CDLL(str(library()))
    address, size = ctypes.c_size_t, ctypes.c_size_t
    fake.fake_stream.restype = address
    fake.fake_read.argtypes = [address, address, size, address]
    fake.fake_synchronize.argtypes = [address]
    fake.fake_capture.argtypes = [address, ctypes.c_int]
    fake.fake_limit.argtypes = [ctypes.c_int, size]
    fake.fake_live.restype = size
    return fake


class Capsule:
    """A capsule of device memory, shown as what it is here: memory of the host."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        self.tensor = pointer(capsule, b"dltensor")
        where = (ctypes.c_int32 * 2).from_address(self.tensor + 8)
        self.device = tuple(where)
        where[:] = [1, 0]

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def array(capsule: Any) -> NDArray[Any]:
    """Memory of the device as an array, which only kernels may read."""
    return np.from_dlpack(Capsule(capsule))


class FakeEngine(FeedEngine):
    def __init__(self, loader: "FakeLoader", reader: Any, order: Any, feed: Any) -> None:
        super().__init__(loader, reader, order, feed, lambda: loader.stream, array)

    def _moved(self, batch: Batch) -> Batch:
        return batch


class FakeLoader(_loader.Loader):
    """Batches on a device of the fake driver, as arrays that only kernels may read."""

    def __init__(
        self,
        source: Any,
        batch_size: int,
        *,
        device: int = 0,
        together: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(source, batch_size, **options)
        self.together = together
        self.stream: int | None = driver().fake_stream(device)
        self.feed: _core.CudaFeed | None = None
        self.device = device

    def _make_engine(self) -> Engine:
        source, order = self._source, self._order
        reader = source._reader
        assert reader is not None
        assert isinstance(order, _core.Order)
        if self.feed is None:
            size, threads, ahead = self._batch_size, self._threads, self._prefetch
            self.feed = make_feed(
                self.device,
                source.schema,
                size,
                threads=threads,
                prefetch=ahead,
                together=self.together,
            )
        return FakeEngine(self, reader, order, self.feed)

    def read(self, values: NDArray[Any], stream: int | None = None) -> NDArray[Any]:
        """Have a kernel read an array; the result is right once the stream is synchronized."""
        out = np.empty(values.shape, values.dtype)
        at = values.__array_interface__["data"][0]
        driver().fake_read(stream or self.stream, at, values.nbytes, out.ctypes.data)
        return out

    def synchronize(self) -> None:
        driver().fake_synchronize(self.stream)


def numbers(rows: int = 1000) -> sw.ArraySource:
    i = np.arange(rows, dtype=np.int64)
    return sw.ArraySource(
        {"i": i, "x": (i[:, None] * [1, 2, 3]).astype(np.float32), "b": i % 2 > 0}
    )


def order(rows: int = 1000, epoch: int = 0, seed: int = 7) -> list[int]:
    found: list[int] = sw.Shuffle(seed).order(rows).rows(epoch, 0, rows).tolist()
    return found

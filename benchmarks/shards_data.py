"""The corpora that `benchmarks.shards` reads: rows of 768 floats."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import stepwell as sw
from benchmarks.records_data import made

WIDTH = 768
ROW_BYTES = WIDTH * 4
BATCH_ROWS = 1024
HEADER_BYTES = 32
_PIECE_ROWS = 8192


def corpus(path: Path, rows: int, *, shard_bytes: int = 1 << 28) -> list[Path]:
    """The shards of a corpus of so many rows, on the disk."""

    def write(new: Path) -> None:
        piece = activations(min(rows, _PIECE_ROWS))
        with sw.ShardWriter(new, WIDTH, shard_bytes=shard_bytes) as writer:
            while len(writer) < rows:
                piece[:, 0] = len(writer)  # no two pieces are the same
                writer.append(piece[: rows - len(writer)])
        os.sync()

    return sorted(made(path, write).glob("*.shard"))


def activations(rows: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((rows, WIDTH), np.float32)


def mapped(path: Path) -> NDArray[np.float32]:
    """The rows of one shard as NumPy maps them."""
    rows = (path.stat().st_size - HEADER_BYTES) // ROW_BYTES
    return np.memmap(path, np.dtype("<f4"), "r", HEADER_BYTES, (rows, WIDTH))


def warm(paths: Sequence[Path]) -> None:
    """Bring files into the page cache."""
    read(paths)


def evict(paths: Sequence[Path]) -> None:
    """Have the system forget files, which nobody may have mapped."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def read(paths: Sequence[Path]) -> None:
    """What `dd bs=1M` does: one read() of 1 MiB after another."""
    buffer = bytearray(1 << 20)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

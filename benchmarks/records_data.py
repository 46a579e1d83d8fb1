"""The records that are measured: rows of equal size, pieces of text, pictures."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

import stepwell as sw

ROWS = 200_000
ROW_BYTES = 2048
IMAGE = (224, 224, 3)
SHORTEST, LONGEST = 64, 2048
"""Bytes of a piece of text."""

Codec = Literal["none", "zstd"]

_WORD_BYTES = 8
_WORDS = 4096


@dataclass(frozen=True)
class Records:
    """Records one behind the other: record i is `values[offsets[i]:offsets[i + 1]]`."""

    values: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    shape: tuple[int, ...] | None
    """Of a record; None where each has its own length."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> NDArray[np.uint8]:
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def __iter__(self) -> Iterator[bytes]:
        return (self[i].tobytes() for i in range(len(self)))

    @property
    def table(self) -> NDArray[np.uint8]:
        """Records of one shape as an array of them."""
        assert self.shape is not None
        return self.values.reshape(len(self), *self.shape)

    def random(self, batch: int) -> Callable[[], NDArray[np.int64]]:
        """A function that picks the records of a batch, anew with each call."""
        rng = np.random.default_rng(1)
        return lambda: rng.integers(0, len(self), batch)


def fixed(count: int, shape: tuple[int, ...]) -> Records:
    """Records of one shape, of bytes that nothing makes smaller."""
    size = int(np.prod(shape))
    rng = np.random.default_rng(0)
    values = np.frombuffer(rng.bytes(count * size), np.uint8)
    return Records(values, np.arange(count + 1) * size, shape)


def texts(count: int) -> Records:
    """Words of eight letters, a few of them often: zstd makes about half of them."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(SHORTEST, LONGEST + 1, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    words = rng.integers(ord("a"), ord("z") + 1, (_WORDS, _WORD_BYTES), np.uint8)
    wanted = rng.random(-(-int(offsets[-1]) // _WORD_BYTES), np.float32) ** 2 * _WORDS
    values = words[wanted.astype(np.int16)].reshape(-1)[: offsets[-1]]
    return Records(values, offsets, None)


def store(records: Records, path: Path, compress: Codec = "none") -> Path:
    """A record store of them, with the field `x`."""

    def write(new: Path) -> None:
        ragged = records.shape is None
        kind = sw.Field(np.dtype("u1"), records.shape or (), ragged, compress=compress)
        with sw.RecordWriter(new, {"x": kind}) as out:
            for begin in range(0, len(records), 10_000):
                out.append({"x": part(records, begin, min(begin + 10_000, len(records)))})
                out.commit()

    return made(path, write)


def part(records: Records, begin: int, end: int) -> NDArray[np.uint8] | sw.Ragged:
    """Neighbouring records, as a store's `append` likes them."""
    if records.shape is not None:
        return records.table[begin:end]
    offsets = records.offsets[begin : end + 1]
    return sw.Ragged(records.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def made(path: Path, write: Callable[[Path], object]) -> Path:
    """What an earlier run left at `path`, or what `write` makes: it gets its name when whole."""
    if not path.exists():
        beside = path.with_name(f"new-{path.name}")
        remove(beside)
        write(beside)
        beside.rename(path)
    return path


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def settle() -> None:
    """Wait until the disk has everything: nothing is to be written back while others are timed."""
    os.sync()

"""Offset tables and their checksums, as files and as memory."""

import mmap
import os
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import ChecksumError
from stepwell.files.atomic import write_all
from stepwell.files.regular import open_inside
from stepwell.source import Rows
from stepwell.stores.records.journal import Change
from stepwell.stores.records.layout import ENTRY, TABLE_BLOCK

_GROW_ENTRIES = 1 << 20
_SUM_BYTES = 4
_SPAN_BYTES = 1 << 16


def map_file(root: Path, name: str) -> NDArray[np.uint8]:
    """The bytes of a file of a store."""
    with open(open_inside(root, name), "rb") as file:
        while size := os.fstat(file.fileno()).st_size:
            try:
                mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
            except ValueError:
                continue  # cut meanwhile, by a writer that closes
            return np.frombuffer(mapped, np.uint8)
    return np.empty(0, np.uint8)


def own_copy(root: Path, name: str, size: int) -> NDArray[np.uint8]:
    """The first bytes of a file in memory of one's own, zeros behind them."""
    made = np.frombuffer(mmap.mmap(-1, max(size, 1)), np.uint8)
    with open(open_inside(root, name), "rb") as file:
        file.readinto(made.data)
    return made


class TableFile:
    """A table and its checksums, open for writing."""

    def __init__(self, root: Path, name: str, sums: str) -> None:
        self.path, self._sums_path = root / name, root / sums
        self._file = open_inside(root, name, os.O_RDWR | os.O_CREAT)
        try:
            self._sums = open_inside(root, sums, os.O_RDWR | os.O_CREAT)
        except BaseException:
            os.close(self._file)
            raise
        self._memory: NDArray[Any] = np.empty(0, ENTRY)
        self._map()
        self._checked: set[int] = set()
        self._add_sums()

    @property
    def size(self) -> int:
        """Entries there is room for."""
        return len(self._memory)

    def entry(self, row: int) -> bytes:
        return bytes(self._memory[row].tobytes())

    def change(self, change: Change, peak: int) -> None:
        """Put new entries where they belong, and sums that fit them."""
        if peak > len(self._memory):
            size = -(-peak // _GROW_ENTRIES) * _GROW_ENTRIES
            os.ftruncate(self._file, size * ENTRY.itemsize)
            os.ftruncate(self._sums, size // TABLE_BLOCK * _SUM_BYTES)
            self._map()
        # Behind the end through the file, for there may be no room for them on the disk. What is
        # there already has its room.
        if len(change.appended):
            data = change.appended.view(np.uint8)
            write_all(self._file, data, change.first * ENTRY.itemsize, self.path)
        if len(change.rows):
            self._put(change.rows, change.changed)
        blocks = _touched(change)
        sums = _core.block_sums(self._memory.view(np.uint8), blocks)
        self._write_sums(blocks, sums.view("<u4"))

    def check(self, change: Change, peak: int) -> None:
        """Raise `ChecksumError` when entries beside those to be changed were damaged before: their
        new sum would hide it."""
        blocks = [int(b) for b in _touched(change) if int(b) not in self._checked]
        there = -(-peak // TABLE_BLOCK)  # those behind have no entries, and no sums
        found = np.array([block for block in blocks if block < there], np.int64)
        if len(found):
            sums = _core.block_sums(self._memory.view(np.uint8), found).view("<u4")
            wrong = found[sums != self._read_sums(int(found[-1]) + 1)[found]]
            if len(wrong):
                raise ChecksumError(
                    "the entries do not fit their checksum",
                    path=str(self.path),
                    offset=int(wrong[0]) * TABLE_BLOCK * ENTRY.itemsize,
                )
        self._checked.update(blocks)

    def sync(self) -> None:
        os.fdatasync(self._file)
        os.fdatasync(self._sums)

    def cut(self, peak: int) -> None:
        """Give back the room that no record needed."""
        for file, size in (
            (self._file, peak * ENTRY.itemsize),
            (self._sums, -(-peak // TABLE_BLOCK) * _SUM_BYTES),
        ):
            if os.fstat(file).st_size > size:
                os.ftruncate(file, size)

    def close(self) -> None:
        self._memory = np.empty(0, ENTRY)
        with ExitStack() as both:
            both.callback(os.close, self._file)
            both.callback(os.close, self._sums)

    def _put(self, rows: Rows, entries: NDArray[Any]) -> None:
        """Replace entries here and there. Tests that watch the disk do it through the file."""
        self._memory[rows] = entries

    def _map(self) -> None:
        size = os.fstat(self._file).st_size // ENTRY.itemsize
        if size:
            mapped = mmap.mmap(self._file, size * ENTRY.itemsize)
            self._memory = np.frombuffer(mapped, ENTRY)

    def _read_sums(self, count: int) -> NDArray[Any]:
        data = os.pread(self._sums, count * _SUM_BYTES, 0)
        return np.frombuffer(data.ljust(count * _SUM_BYTES, b"\0"), "<u4")

    def _add_sums(self) -> None:
        """Sums for a table that has none."""
        blocks = -(-len(self._memory) // TABLE_BLOCK)
        if blocks and not os.fstat(self._sums).st_size:
            every = np.arange(blocks, dtype=np.int64)
            sums = _core.block_sums(self._memory.view(np.uint8), every)
            write_all(self._sums, sums, 0, self._sums_path)

    def _write_sums(self, blocks: Rows, sums: NDArray[Any]) -> None:
        if not len(blocks):
            return
        first, last = int(blocks[0]), int(blocks[-1])
        want = (last + 1 - first) * _SUM_BYTES
        if len(blocks) * _SUM_BYTES < want <= _SPAN_BYTES:
            there = os.pread(self._sums, want, first * _SUM_BYTES)
            span = np.frombuffer(there.ljust(want, b"\0"), "<u4").copy()
            span[blocks - first] = sums
            write_all(self._sums, span.view(np.uint8), first * _SUM_BYTES, self._sums_path)
            return
        cuts = np.flatnonzero(np.diff(blocks) > 1) + 1
        for begin, end in pairwise([0, *cuts.tolist(), len(blocks)]):
            data = np.ascontiguousarray(sums[begin:end]).view(np.uint8)
            write_all(self._sums, data, int(blocks[begin]) * _SUM_BYTES, self._sums_path)


def change_memory(table: NDArray[np.uint8], sums: NDArray[np.uint8], change: Change) -> None:
    """The same in memory of one's own, which is large enough."""
    entries = table[: len(table) // ENTRY.itemsize * ENTRY.itemsize].view(ENTRY)
    end = change.first + len(change.appended)
    entries[change.first : end] = change.appended
    entries[change.rows] = change.changed
    if len(sums):
        blocks = _touched(change)
        sums[: len(sums) // 4 * 4].view("<u4")[blocks] = _core.block_sums(table, blocks).view("<u4")


def _touched(change: Change) -> Rows:
    """Blocks of the table with a new entry, in order."""
    first = change.first // TABLE_BLOCK
    end = (
        -(-(change.first + len(change.appended)) // TABLE_BLOCK) if len(change.appended) else first
    )
    blocks = np.arange(first, end, dtype=np.int64)
    return np.union1d(blocks, change.rows // TABLE_BLOCK) if len(change.rows) else blocks

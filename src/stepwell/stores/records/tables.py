"""Offset tables: changes that are not committed yet, the files, and copies in memory."""

import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field as default
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import ChecksumError
from stepwell.files.atomic import write_all
from stepwell.files.regular import open_inside
from stepwell.source import Rows
from stepwell.stores.records.layout import ENTRY, TABLE_BLOCK, Meta

_GROW_ENTRIES = 1 << 20
_SIZE = ENTRY.itemsize
_CHECKSUM_BYTES = 4

Entries = NDArray[Any]
"""Where records are: entries of one field, or a line for each field."""


@dataclass(frozen=True)
class Change:
    """New entries of one field: some behind the others, and some in the place of others."""

    first: int
    appended: Entries
    rows: Rows = default(default_factory=lambda: np.empty(0, np.int64))
    changed: Entries = default(default_factory=lambda: np.empty(0, ENTRY))

    @property
    def blocks(self) -> Rows:
        """Blocks of the table with a new entry, in order."""
        first, count = self.first // TABLE_BLOCK, len(self.appended)
        end = -(-(self.first + count) // TABLE_BLOCK) if count else first
        blocks = np.arange(first, end, dtype=np.int64)
        return np.union1d(blocks, self.rows // TABLE_BLOCK) if len(self.rows) else blocks


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
    return made[:size]


def change_memory(table: NDArray[np.uint8], checksums: NDArray[np.uint8], change: Change) -> None:
    """Put new entries into such a copy, which is large enough, and matching checksums."""
    entries = table.view(ENTRY)
    entries[change.first : change.first + len(change.appended)] = change.appended
    entries[change.rows] = change.changed
    if len(checksums):
        made = _core.block_checksums(table, change.blocks, "")
        checksums.view("<u4")[change.blocks] = made.view("<u4")


def check_entries(entries: NDArray[np.uint8], meta: Meta, path: Path) -> None:
    """Raise `ChecksumError` when a table has entries that only a later commit can have written:
    that commit is damaged, or the table is."""
    table = entries.view(ENTRY)
    ends = np.full(meta.next_chunk - meta.first_chunk, np.iinfo(np.uint64).max, np.uint64)
    for state in meta.unfull:
        ends[state.id - meta.first_chunk] = state.position
    there = np.flatnonzero(table["offset"])
    chunks = table["chunk"][there].astype(np.int64) - meta.first_chunk
    wrong = (there >= meta.peak) | (chunks < 0) | (chunks >= len(ends))
    known = np.flatnonzero(~wrong)
    stop = table["offset"][there[known]] + table["length"][there[known]]
    wrong[known] = stop > ends[chunks[known]]
    live = there[there < meta.length]
    order = live[np.lexsort((table["offset"][live], table["chunk"][live]))]
    places = table[["offset", "chunk"]][order]
    twice = order[1:][places[1:] == places[:-1]]
    found = [*there[wrong].tolist(), *twice.tolist()]
    if found:
        raise ChecksumError(
            f"the entry of record {min(found)} is of a commit that the journal does not have: "
            "the commit is damaged, or this table; `salvage` makes a new store of what is left",
            path=str(path),
            offset=min(found) * _SIZE,
        )


class TableFile:
    """A table and its checksums, open for writing."""

    def __init__(self, root: Path, name: str, checksums: str) -> None:
        self.path, self._checksums_path = root / name, root / checksums
        self._name = str(self.path)  # the core takes it faster
        self._file = open_inside(root, name, os.O_RDWR | os.O_CREAT)
        try:
            self._checksums = open_inside(root, checksums, os.O_RDWR | os.O_CREAT)
        except BaseException:
            os.close(self._file)
            raise
        self._memory: Entries = np.empty(0, ENTRY)
        self._map()
        self._checked: set[int] = set()
        if not os.fstat(self._checksums).st_size:  # a table of before there were any
            self._write_checksums(np.arange(-(-len(self._memory) // TABLE_BLOCK), dtype=np.int64))

    @property
    def size(self) -> int:
        """Entries there is room for."""
        return len(self._memory)

    def entry(self, row: int) -> bytes:
        return os.pread(self._file, _SIZE, row * _SIZE)

    def change(self, change: Change, peak: int) -> None:
        """Put new entries where they belong, and matching checksums."""
        if peak > len(self._memory):
            size = -(-peak // _GROW_ENTRIES) * _GROW_ENTRIES
            os.ftruncate(self._file, size * _SIZE)
            os.ftruncate(self._checksums, size // TABLE_BLOCK * _CHECKSUM_BYTES)
            self._map()
        # Behind the end through the file, for there may be no room for them on the disk. What is
        # there already has its room.
        if len(change.appended):
            data = change.appended.view(np.uint8)
            write_all(self._file, data, change.first * _SIZE, self.path)
        if len(change.rows):
            self._put(change.rows, change.changed)
        self._write_checksums(change.blocks)

    def check(self, change: Change, peak: int) -> None:
        """Raise `ChecksumError` when entries beside those to be changed were damaged before: their
        new checksum would hide it."""
        blocks = [int(b) for b in change.blocks if int(b) not in self._checked]
        there = -(-peak // TABLE_BLOCK)  # those behind have no entries, and no checksums
        found = np.array([block for block in blocks if block < there], np.int64)
        if len(found):
            stored = self._stored_checksums(found)[found - found[0]]
            wrong = found[self._checksums_of(found) != stored]
            if len(wrong):
                raise ChecksumError(
                    "the entries do not fit their checksum",
                    path=str(self.path),
                    offset=int(wrong[0]) * TABLE_BLOCK * _SIZE,
                )
        self._checked.update(blocks)

    def sync(self) -> None:
        os.fdatasync(self._file)
        os.fdatasync(self._checksums)

    def cut(self, peak: int) -> None:
        """Give back the room that no record needed."""
        for file, size in (
            (self._file, peak * _SIZE),
            (self._checksums, -(-peak // TABLE_BLOCK) * _CHECKSUM_BYTES),
        ):
            if os.fstat(file).st_size > size:
                os.ftruncate(file, size)

    def close(self) -> None:
        self._memory = np.empty(0, ENTRY)
        with ExitStack() as both:
            both.callback(os.close, self._file)
            both.callback(os.close, self._checksums)

    def _put(self, rows: Rows, entries: Entries) -> None:
        """Replace entries here and there. Tests that watch the disk do it through the file."""
        flat = self._memory.view(np.uint8)
        _core.put_entries(flat, rows, np.ascontiguousarray(entries).view(np.uint8), self._name)

    def _map(self) -> None:
        size = os.fstat(self._file).st_size // _SIZE
        if size:
            mapped = mmap.mmap(self._file, size * _SIZE)
            self._memory = np.frombuffer(mapped, ENTRY)

    def _checksums_of(self, blocks: Rows) -> NDArray[Any]:
        flat = self._memory.view(np.uint8)
        return _core.block_checksums(flat, blocks, self._name).view("<u4")

    def _stored_checksums(self, blocks: Rows) -> NDArray[Any]:
        """The checksums that are there, from that of the first of some blocks to the last one's."""
        want = (int(blocks[-1] - blocks[0]) + 1) * _CHECKSUM_BYTES
        data = os.pread(self._checksums, want, int(blocks[0]) * _CHECKSUM_BYTES)
        return np.frombuffer(data.ljust(want, b"\0"), "<u4").copy()

    def _write_checksums(self, blocks: Rows) -> None:
        """Write the checksums of some blocks, and those between them again."""
        if len(blocks):
            checksums = self._stored_checksums(blocks)
            checksums[blocks - blocks[0]] = self._checksums_of(blocks)
            at = int(blocks[0]) * _CHECKSUM_BYTES
            write_all(self._checksums, checksums.view(np.uint8), at, self._checksums_path)


class Staging:
    """A store of `base` committed records, the entries of which are in `tables`, with changes on
    top.

    Rows below `base` that were changed are kept by number; those behind it one after another.
    """

    touched = False
    deletes = 0

    def __init__(self, tables: Sequence[TableFile], base: int) -> None:
        self.base = self.length = self.peak = base
        self._tables = tables
        self._changed: list[dict[int, bytes]] = [{} for _ in tables]
        self._appended = [bytearray() for _ in tables]

    def append(self, count: int, entries: dict[int, Entries]) -> None:
        """Records at the end; `entries` has those of the fields that are given."""
        inside = min(count, max(self.base - self.length, 0))
        for field, appended in enumerate(self._appended):
            given = entries[field].tobytes() if field in entries else bytes(count * _SIZE)
            for i in range(inside):
                self._changed[field][self.length + i] = given[i * _SIZE : (i + 1) * _SIZE]
            appended += given[inside * _SIZE :]
        self.length += count
        self.peak = max(self.peak, self.length)
        self.touched |= count > 0

    def update(self, rows: Rows, entries: dict[int, Entries]) -> None:
        for field, given in entries.items():
            data = given.tobytes()
            for i, row in enumerate(rows.tolist()):
                self._set(field, row, data[i * _SIZE : (i + 1) * _SIZE])
        self.touched |= len(rows) > 0

    def delete(self, rows: Rows) -> None:
        """From the highest number down, the last record takes the place of each."""
        for row in np.sort(rows)[::-1].tolist():
            last = self.length - 1
            for field, appended in enumerate(self._appended):
                if row != last:
                    self._set(field, row, self._entry(field, last))
                if last >= self.base:
                    del appended[-_SIZE:]
                else:
                    self._changed[field].pop(last, None)
            self.length = last
            self.deletes += 1
        self.touched |= len(rows) > 0

    def overlay(self, field: int, rows: Rows, entries: Entries) -> None:
        """Put what was changed over the entries of `rows`."""
        behind, changed = rows >= self.base, self._changed[field]
        appended = np.frombuffer(bytes(self._appended[field]), ENTRY)
        entries[behind] = appended[rows[behind] - self.base]
        for i, row in enumerate(rows.tolist() if changed else ()):
            if (entry := changed.get(row)) is not None:
                entries[i] = np.frombuffer(entry, ENTRY)[0]

    def changes(self) -> tuple[Change, ...]:
        return tuple(map(self._change, self._changed, self._appended))

    def _change(self, changed: dict[int, bytes], appended: bytearray) -> Change:
        rows = sorted(changed)
        return Change(
            min(self.base, self.length),
            np.frombuffer(bytes(appended), ENTRY),
            np.array(rows, np.int64),
            np.frombuffer(b"".join(changed[row] for row in rows), ENTRY),
        )

    def _entry(self, field: int, row: int) -> bytes:
        if row >= self.base:
            at = (row - self.base) * _SIZE
            return bytes(self._appended[field][at : at + _SIZE])
        return self._changed[field].get(row) or self._tables[field].entry(row)

    def _set(self, field: int, row: int, entry: bytes) -> None:
        if row >= self.base:
            at = (row - self.base) * _SIZE
            self._appended[field][at : at + _SIZE] = entry
        else:
            self._changed[field][row] = entry

"""Columns and offset tables: the changes of a commit, files, and copies in memory."""

import mmap
import os
from contextlib import ExitStack
from dataclasses import dataclass, field as default
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError
from stepwell.files.atomic import write_all
from stepwell.files.regular import open_inside
from stepwell.lazy import lazy
from stepwell.source import Rows
from stepwell.stores.records.layout import BLOCK_BYTES, CHECKSUM, COLUMN_CHECKSUM, ENTRY, Meta
from stepwell.stores.records.values import Values

_GROW_ENTRIES = 1 << 20
_NO_ROWS = _NO_COMMITS = np.empty(0, np.int64)

Entries = NDArray[Any]
"""What a table has for some records: places of frames, or the values of a column."""


@dataclass
class Change:
    """New entries of one field: some behind the others, and some in the place of others."""

    first: int
    appended: Entries
    rows: Rows = default(default_factory=lambda: np.empty(0, np.int64))
    changed: Entries = default(default_factory=lambda: np.empty(0, ENTRY))
    checksums: NDArray[Any] | None = None
    """Of a column: those of its `blocks` after the change."""

    @lazy
    def blocks(self) -> Rows:
        """Blocks of the table with a new entry, in order."""
        size, count = self.appended.itemsize, len(self.appended)
        blocks = blocks_of(self.rows, size) if len(self.rows) else _NO_ROWS
        if not count:
            return blocks
        first = self.first * size // BLOCK_BYTES
        new = np.arange(first, block_count(self.first + count, size))
        return np.concatenate([blocks[blocks < first], new])


def blocks_of(rows: Rows, size: int) -> Rows:
    """The blocks that entries of one size are in, in order."""
    found = rows * size // BLOCK_BYTES
    if BLOCK_BYTES % size:  # an entry of a column may be in two blocks
        found = np.concatenate([found, (rows * size + size - 1) // BLOCK_BYTES])
    found.sort()
    return np.concatenate([found[:1], found[1:][found[1:] != found[:-1]]])


def block_count(entries: int, size: int) -> int:
    """The number of blocks that entries of one size are in."""
    return -(-entries * size // BLOCK_BYTES)


def table_bytes(meta: Meta, name: str, records: int) -> int:
    """Bytes of the table of a field, and of its checksums, for a number of records."""
    size = meta.entry(name).itemsize
    checksum = (COLUMN_CHECKSUM if name in meta.columns else CHECKSUM).itemsize
    return records * size + block_count(records, size) * checksum


def column_entries(values: Values, size: int, *, marked: bool) -> Entries:
    """The entries of values of a column, `size` bytes each."""
    if not marked:
        return values.data.view((np.void, size))
    made = np.zeros((values.count, size + 1), np.uint8)
    there = slice(None) if values.there is None else values.there == 1
    made[there, 0] = 1
    made[there, 1:] = values.data.reshape(-1, size)
    return made.reshape(-1).view((np.void, size + 1))


def checksums_of(
    table: NDArray[np.uint8], blocks: Rows, stored: NDArray[Any], path: str
) -> NDArray[Any]:
    """The checksums that blocks should have, for comparison with those that are stored."""
    column = stored.dtype == COLUMN_CHECKSUM
    commits = np.ascontiguousarray(stored["commit"]) if column else _NO_COMMITS
    return _core.block_checksums(table, blocks, commits, path).view("<u4")


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


def change_memory(table: NDArray[np.uint8], checksums: NDArray[Any], change: Change) -> None:
    """Put new entries into such a copy, which is large enough, and matching checksums."""
    size = change.appended.itemsize
    entries = table[: len(table) // size * size].view(change.appended.dtype)
    entries[change.first : change.first + len(change.appended)] = change.appended
    entries[change.rows] = change.changed
    if change.checksums is not None:
        checksums[change.blocks] = change.checksums
    elif len(checksums):
        checksums["crc"][change.blocks] = checksums_of(table, change.blocks, checksums, "")


def check_column(
    table: NDArray[np.uint8], checksums: NDArray[Any], changed: Rows, commit: int, path: Path
) -> None:
    """Raise `ChecksumError` when blocks of a copy are of a later commit than the last, which the
    journal does not have, and when those that were changed are not what the commits made of them:
    something beside the new values is damaged."""
    later = np.flatnonzero(checksums["commit"] > commit)
    if len(later):
        raise ChecksumError(
            f"commit {checksums['commit'][later].max()} was here, and the journal ends with commit "
            f"{commit}: the journal is damaged, or this column; `salvage` makes a new store of "
            "what is left",
            path=str(path),
            offset=int(later[0]) * BLOCK_BYTES,
        )
    stored = checksums[changed]
    wrong = changed[checksums_of(table, changed, stored, "") != stored["crc"]]
    if len(wrong):
        raise ChecksumError(
            "the values do not fit the checksum that the last commit states",
            path=str(path),
            offset=int(wrong[0]) * BLOCK_BYTES,
        )


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
            offset=min(found) * ENTRY.itemsize,
        )


class EntryFile:
    """Entries of one size, mapped, in a file that is open for writing."""

    def __init__(self, root: Path, name: str, dtype: np.dtype[Any]) -> None:
        self.path, self.dtype = root / name, dtype
        self.name = str(self.path)  # the core takes it faster
        self.file = open_inside(root, name, os.O_RDWR | os.O_CREAT)
        self.memory = np.empty(0, np.uint8)
        self._map()

    def __len__(self) -> int:
        return len(self.memory) // self.dtype.itemsize

    def get(self, rows: Rows) -> Entries:
        entries = np.empty(len(rows), self.dtype)
        _core.get_entries(self.memory, rows, entries.view(np.uint8), self.name)
        return entries

    def put(self, rows: Rows, entries: Entries) -> None:
        """Replace entries here and there. Tests that watch the disk do it through the file."""
        flat = np.ascontiguousarray(entries).view(np.uint8)
        _core.put_entries(self.memory, rows, flat, self.name)

    def write(self, at: int, data: NDArray[np.uint8]) -> None:
        """Write to a place that may have no room on the disk yet."""
        write_all(self.file, data, at, self.path)

    def grow(self, count: int) -> None:
        if count > len(self):
            os.ftruncate(self.file, count * self.dtype.itemsize)
            self._map()

    def cut(self, count: int) -> None:
        size = count * self.dtype.itemsize
        if os.fstat(self.file).st_size > size:
            os.ftruncate(self.file, size)

    def close(self) -> None:
        self.memory = np.empty(0, np.uint8)
        os.close(self.file)

    def _map(self) -> None:
        if size := os.fstat(self.file).st_size:
            self.memory = np.frombuffer(mmap.mmap(self.file, size), np.uint8)


class TableFile:
    """A table and its checksums, open for writing."""

    def __init__(self, root: Path, names: tuple[str, str], dtype: np.dtype[Any]) -> None:
        self.dtype, self._size = dtype, dtype.itemsize
        self._column = dtype != ENTRY
        self._table = EntryFile(root, names[0], dtype)
        try:
            checksum = COLUMN_CHECKSUM if self._column else CHECKSUM
            self._checksums = EntryFile(root, names[1], checksum)
        except BaseException:
            self._table.close()
            raise
        blocks = block_count(len(self._table), self._size)
        self._unchecked = np.ones(blocks, np.bool)
        if not (self._column or len(self._checksums.memory)):  # of before there were any
            self._checksums.grow(blocks)
            self._write_checksums(np.arange(blocks), None, 0)

    def need(self, meta: Meta) -> None:
        """Raise `FormatError` when it is shorter than the store, or a column has no checksums."""
        if len(self._table) < meta.length:
            message = f"truncated: expected {meta.length} entries, got {len(self._table)}"
            raise FormatError(message, path=self._table.name)
        if self._column and meta.length and not len(self._checksums.memory):
            raise FormatError("the checksums are missing", path=self._checksums.name)

    def entries(self, rows: Rows, peak: int) -> Entries:
        """Those of some records, to be put elsewhere. Raises `ChecksumError` when they are damaged,
        which a new checksum would hide."""
        if not len(rows):
            return np.empty(0, self.dtype)
        self._check(blocks_of(rows, self._size), peak)
        return self._table.get(rows)

    def seal(self, change: Change, commit: int, peak: int) -> None:
        """Give a change what the journal has of it: of a column, the checksums that its blocks
        will have. Redone, it can then hide no damage to what is beside it.

        Raises `ChecksumError` when entries beside it were damaged before.
        """
        blocks = change.blocks
        if not len(blocks):
            return
        self._check(blocks, peak)
        if self._column:
            known = blocks[blocks < block_count(peak, self._size)]
            change.checksums = _core.seals_after(
                self._table.memory,
                self._size,
                change.first,
                change.appended.view(np.uint8),
                change.rows,
                change.changed.view(np.uint8),
                blocks,
                self._checksums.get(known).view(np.uint8),
                commit,
                self._table.name,
            ).view(COLUMN_CHECKSUM)

    def write_ahead(self, change: Change, before: int, after: int) -> None:
        """Put new entries where no reader looks yet: behind the blocks of the `before` entries that
        there were. There is room for `after` of them then."""
        if not len(change.blocks):
            return
        if after > len(self._table):
            self._table.grow(-(-after // _GROW_ENTRIES) * _GROW_ENTRIES)
        self._checksums.grow(block_count(len(self._table), self._size))
        data, seen = change.appended.view(np.uint8), self._seen(change, before)
        if seen < len(data):
            self._table.write(change.first * self._size + seen, data[seen:])

    def change(self, change: Change, before: int) -> None:
        """Put the rest where it belongs, and matching checksums."""
        if not len(change.blocks):
            return
        # Behind the end through the file, for there may be no room for them on the disk. What is
        # there already has its room.
        if seen := self._seen(change, before):
            self._table.write(change.first * self._size, change.appended.view(np.uint8)[:seen])
        self._table.put(change.rows, change.changed)
        self._write_checksums(change.blocks, change.checksums, before)

    def sync(self) -> None:
        os.fdatasync(self._table.file)
        os.fdatasync(self._checksums.file)

    def cut(self, peak: int) -> None:
        """Give back the room that no record needed."""
        self._table.cut(peak)
        self._checksums.cut(block_count(peak, self._size))

    def close(self) -> None:
        with ExitStack() as both:
            both.callback(self._table.close)
            both.callback(self._checksums.close)

    def _seen(self, change: Change, before: int) -> int:
        """Bytes of appended entries in blocks that a reader may be comparing with checksums."""
        end = block_count(before, self._size) * BLOCK_BYTES - change.first * self._size
        return min(max(end, 0), change.appended.nbytes)

    def _check(self, blocks: Rows, peak: int) -> None:
        """Raise `ChecksumError` when entries of these blocks were damaged: a new checksum would
        hide it."""
        # Those behind have no entries, and no checksums, or this writer has made them.
        there = blocks[blocks < min(block_count(peak, self._size), len(self._unchecked))]
        found = there[self._unchecked[there]]
        if len(found):
            stored = self._checksums.get(found)
            made = checksums_of(self._table.memory, found, stored, self._table.name)
            wrong = found[made != stored["crc"]]
            if len(wrong):
                raise ChecksumError(
                    "the entries do not fit their checksum",
                    path=self._table.name,
                    offset=int(wrong[0]) * BLOCK_BYTES,
                )
            self._unchecked[found] = False

    def _write_checksums(self, blocks: Rows, made: NDArray[Any] | None, before: int) -> None:
        """Write the checksums of some blocks, of which those behind `before` follow one another."""
        if made is None:
            memory, name = self._table.memory, self._table.name
            made = _core.block_checksums(memory, blocks, _NO_COMMITS, name).view(CHECKSUM)
        known = int(blocks.searchsorted(block_count(before, self._size)))
        self._checksums.put(blocks[:known], made[:known])
        if known < len(blocks):
            at = int(blocks[known]) * made.itemsize
            self._checksums.write(at, made[known:].view(np.uint8))

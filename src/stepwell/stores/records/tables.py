"""Columns and offset tables: changes that are not committed yet, files, and copies in memory."""

import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field as default, replace
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
_NO_COMMITS = np.empty(0, np.int64)

Entries = NDArray[Any]
"""What a table has for some records: places of frames, or the values of a column."""


@dataclass(frozen=True)
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
        first = self.first * size // BLOCK_BYTES
        end = block_count(self.first + count, size) if count else first
        blocks = np.arange(first, end, dtype=np.int64)
        if not len(self.rows):
            return blocks
        parts = [blocks, self.rows * size // BLOCK_BYTES]
        if BLOCK_BYTES % size:  # an entry of a column may be in two blocks
            parts.append((self.rows * size + size - 1) // BLOCK_BYTES)
        found = np.sort(np.concatenate(parts))
        return np.asarray(found[np.append(True, found[1:] != found[:-1])])


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


class TableFile:
    """A table and its checksums, open for writing."""

    def __init__(self, root: Path, names: tuple[str, str], dtype: np.dtype[Any]) -> None:
        name, checksums = names
        self.path, self._checksums_path = root / name, root / checksums
        self._name = str(self.path)  # the core takes it faster
        self.dtype, self._size = dtype, dtype.itemsize
        self._column = dtype != ENTRY
        self._checksum = COLUMN_CHECKSUM if self._column else CHECKSUM
        self._file = open_inside(root, name, os.O_RDWR | os.O_CREAT)
        try:
            self._checksums = open_inside(root, checksums, os.O_RDWR | os.O_CREAT)
        except BaseException:
            os.close(self._file)
            raise
        self._memory = np.empty(0, np.uint8)
        self._map()
        self._checked: set[int] = set()
        if not (self._column or os.fstat(self._checksums).st_size):  # of before there were any
            self._write_checksums(np.arange(block_count(self.size, self._size), dtype=np.int64))

    @property
    def size(self) -> int:
        """Entries there is room for."""
        return len(self._memory) // self._size

    def need(self, meta: Meta) -> None:
        """Raise `FormatError` when it is shorter than the store, or a column has no checksums."""
        if self.size < meta.length:
            message = f"truncated: expected {meta.length} entries, got {self.size}"
            raise FormatError(message, path=self._name)
        if self._column and meta.length and not os.fstat(self._checksums).st_size:
            raise FormatError("the checksums are missing", path=str(self._checksums_path))

    def entry(self, row: int) -> bytes:
        return os.pread(self._file, self._size, row * self._size)

    def sealed(self, change: Change, commit: int) -> Change:
        """The change of a commit as the journal has it: of a column, with the checksums that its
        blocks will have. Redone, it can then hide no damage to what is beside it."""
        if not self._column:
            return change
        blocks = change.blocks
        made = np.empty(len(blocks), self._checksum)
        made["commit"] = commit
        made["crc"] = _core.checksums_after(
            self._memory,
            self._size,
            change.first,
            change.appended.view(np.uint8),
            change.rows,
            np.ascontiguousarray(change.changed).view(np.uint8),
            blocks,
            commit,
            self._name,
        ).view("<u4")
        return replace(change, checksums=made)

    def write_ahead(self, change: Change, before: int, after: int) -> None:
        """Put new entries where no reader looks yet: behind the blocks of the `before` entries that
        there were. There is room for `after` of them then."""
        if after > self.size:
            size = -(-after // _GROW_ENTRIES) * _GROW_ENTRIES
            os.ftruncate(self._file, size * self._size)
            blocks = block_count(size, self._size)
            os.ftruncate(self._checksums, blocks * self._checksum.itemsize)
            self._map()
        data, seen = change.appended.view(np.uint8), self._seen(change, before)
        if seen < len(data):
            write_all(self._file, data[seen:], change.first * self._size + seen, self.path)

    def change(self, change: Change, before: int) -> None:
        """Put the rest where it belongs, and matching checksums."""
        # Behind the end through the file, for there may be no room for them on the disk. What is
        # there already has its room.
        if seen := self._seen(change, before):
            data = change.appended.view(np.uint8)[:seen]
            write_all(self._file, data, change.first * self._size, self.path)
        if len(change.rows):
            self._put(change.rows, change.changed)
        self._write_checksums(change.blocks, change.checksums)

    def check(self, change: Change, peak: int) -> None:
        """Raise `ChecksumError` when entries beside those to be changed were damaged before: their
        new checksum would hide it."""
        blocks = [int(b) for b in change.blocks if int(b) not in self._checked]
        there = block_count(peak, self._size)  # those behind have no entries, and no checksums
        found = np.array([block for block in blocks if block < there], np.int64)
        if len(found):
            stored = self._stored_checksums(found)[found - found[0]]
            made = checksums_of(self._memory, found, stored, self._name)
            wrong = found[made != stored["crc"]]
            if len(wrong):
                raise ChecksumError(
                    "the entries do not fit their checksum",
                    path=str(self.path),
                    offset=int(wrong[0]) * BLOCK_BYTES,
                )
        self._checked.update(blocks)

    def sync(self) -> None:
        os.fdatasync(self._file)
        os.fdatasync(self._checksums)

    def cut(self, peak: int) -> None:
        """Give back the room that no record needed."""
        for file, size in (
            (self._file, peak * self._size),
            (self._checksums, block_count(peak, self._size) * self._checksum.itemsize),
        ):
            if os.fstat(file).st_size > size:
                os.ftruncate(file, size)

    def close(self) -> None:
        self._memory = np.empty(0, np.uint8)
        with ExitStack() as both:
            both.callback(os.close, self._file)
            both.callback(os.close, self._checksums)

    def _seen(self, change: Change, before: int) -> int:
        """Bytes of appended entries in blocks that a reader may be comparing with checksums."""
        end = block_count(before, self._size) * BLOCK_BYTES - change.first * self._size
        return min(max(end, 0), change.appended.nbytes)

    def _put(self, rows: Rows, entries: Entries) -> None:
        """Replace entries here and there. Tests that watch the disk do it through the file."""
        flat = np.ascontiguousarray(entries).view(np.uint8)
        _core.put_entries(self._memory, rows, flat, self._name)

    def _map(self) -> None:
        if size := os.fstat(self._file).st_size:
            self._memory = np.frombuffer(mmap.mmap(self._file, size), np.uint8)

    def _stored_checksums(self, blocks: Rows) -> NDArray[Any]:
        """The checksums that are there, from that of the first of some blocks to the last one's."""
        size = self._checksum.itemsize
        want = (int(blocks[-1] - blocks[0]) + 1) * size
        data = os.pread(self._checksums, want, int(blocks[0]) * size)
        return np.frombuffer(data.ljust(want, b"\0"), self._checksum).copy()

    def _write_checksums(self, blocks: Rows, made: NDArray[Any] | None = None) -> None:
        """Write the checksums of some blocks, and those between them again."""
        if len(blocks):
            checksums = self._stored_checksums(blocks)
            at = blocks - blocks[0]
            if made is None:
                checksums["crc"][at] = checksums_of(self._memory, blocks, checksums, self._name)
            else:
                checksums[at] = made
            begin = int(blocks[0]) * self._checksum.itemsize
            write_all(self._checksums, checksums.view(np.uint8), begin, self._checksums_path)


class Staging:
    """A store of `base` committed records, the entries of which are in `tables`, with changes on
    top.

    Rows below `base` that were changed are kept by number; those behind it one after another.
    """

    touched = False
    deletes = 0
    _shared = False
    """What was appended is in someone's arrays."""

    def __init__(self, tables: Sequence[TableFile], base: int) -> None:
        self.base = self.length = self.peak = base
        self._tables = tables
        self._sizes = [table.dtype.itemsize for table in tables]
        self._changed: list[dict[int, bytes]] = [{} for _ in tables]
        self._appended = [bytearray() for _ in tables]

    def append(self, count: int, entries: dict[int, Entries]) -> None:
        """Records at the end; `entries` has those of the fields that are given."""
        self._own()
        inside = min(count, max(self.base - self.length, 0))
        for field, (appended, size) in enumerate(zip(self._appended, self._sizes, strict=True)):
            new = entries[field] if field in entries else np.zeros(count * size, np.uint8)
            given = new.view(np.uint8).data
            for i in range(inside):
                self._changed[field][self.length + i] = bytes(given[i * size : (i + 1) * size])
            appended += given[inside * size :]
        self.length += count
        self.peak = max(self.peak, self.length)
        self.touched |= count > 0

    def update(self, rows: Rows, entries: dict[int, Entries]) -> None:
        self._own()
        for field, given in entries.items():
            data, size = given.tobytes(), self._sizes[field]
            for i, row in enumerate(rows.tolist()):
                self._set(field, row, data[i * size : (i + 1) * size])
        self.touched |= len(rows) > 0

    def delete(self, rows: Rows) -> None:
        """From the highest number down, the last record takes the place of each."""
        self._own()
        for row in np.sort(rows)[::-1].tolist():
            last = self.length - 1
            for field, appended in enumerate(self._appended):
                if row != last:
                    self._set(field, row, self._entry(field, last))
                if last >= self.base:
                    del appended[-self._sizes[field] :]
                else:
                    self._changed[field].pop(last, None)
            self.length = last
            self.deletes += 1
        self.touched |= len(rows) > 0

    def overlay(self, field: int, rows: Rows, entries: Entries) -> None:
        """Put what was changed over the entries of `rows`."""
        behind, changed = rows >= self.base, self._changed[field]
        appended = np.frombuffer(bytes(self._appended[field]), entries.dtype)
        entries[behind] = appended[rows[behind] - self.base]
        for i, row in enumerate(rows.tolist() if changed else ()):
            if (entry := changed.get(row)) is not None:
                entries[i] = np.frombuffer(entry, entries.dtype)[0]

    def changes(self) -> tuple[Change, ...]:
        """All of it. What was appended is not copied, unless the commit fails and there is more."""
        self._shared = True
        return tuple(map(self._change, self._tables, self._changed, self._appended))

    def _change(self, table: TableFile, changed: dict[int, bytes], appended: bytearray) -> Change:
        rows = sorted(changed)
        return Change(
            min(self.base, self.length),
            np.frombuffer(appended, table.dtype),
            np.array(rows, np.int64),
            np.frombuffer(b"".join(changed[row] for row in rows), table.dtype),
        )

    def _own(self) -> None:
        if self._shared:
            self._appended = [bytearray(appended) for appended in self._appended]
            self._shared = False

    def _entry(self, field: int, row: int) -> bytes:
        if row >= self.base:
            size = self._sizes[field]
            at = (row - self.base) * size
            return bytes(self._appended[field][at : at + size])
        return self._changed[field].get(row) or self._tables[field].entry(row)

    def _set(self, field: int, row: int, entry: bytes) -> None:
        if row >= self.base:
            size = self._sizes[field]
            at = (row - self.base) * size
            self._appended[field][at : at + size] = entry
        else:
            self._changed[field][row] = entry

"""Values become frames at the end of chunks: packed by several threads, with dictionaries that are
learned. A rebalance copies frames to new chunks."""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.files.atomic import sync_path, write_all, write_file
from stepwell.files.codecs import train_dictionary
from stepwell.files.regular import check_inside, open_inside
from stepwell.source import Rows
from stepwell.store import Progress
from stepwell.stores.records.layout import (
    CHUNKS,
    ENTRY,
    FRAME_BYTES,
    MAX_CHUNKS,
    ChunkState,
    Meta,
    chunk_name,
    codec_number,
    dictionary_name,
    load_dictionary,
    packing_level,
)
from stepwell.stores.records.tables import Change, Entries, TableFile, column_entries
from stepwell.stores.records.values import Values

# For larger writes the system takes larger pages, and a virtual machine has given those that were
# free for a while back to its host.
_SLAB_BYTES = 1 << 20
_SAMPLE_BYTES = 1 << 24
_LOOK_ROWS = 1 << 16

Make = Callable[[int, int, int, int], tuple[NDArray[np.uint8], NDArray[np.uint8]]]
"""Frames of the records from one to another, for a chunk and a place in it, and their entries."""


class ChunkFile:
    """Frames go to the end of it. It grows ahead of them, so that readers map it once."""

    def __init__(self, root: Path, state: ChunkState, grow_bytes: int) -> None:
        self.id, self.position, self.records = state
        self._root, self._name = root, chunk_name(self.id)
        self.path = root / self._name
        self._grow_bytes = grow_bytes
        self._file = -1
        self._size = 0
        self._dirty = False

    @property
    def state(self) -> ChunkState:
        return ChunkState(self.id, self.position, self.records)

    def write(self, frames: NDArray[np.uint8], records: int) -> None:
        if self._file < 0:
            self._file = open_inside(self._root, self._name, os.O_RDWR | os.O_CREAT)
            self._size = os.fstat(self._file).st_size
        end = self.position + len(frames)
        if end > self._size:
            size = -(-end // self._grow_bytes) * self._grow_bytes
            os.ftruncate(self._file, size)
            self._size = size
        self._dirty = True
        write_all(self._file, frames, self.position, self.path)
        # The disk works while the next frames are made; the sync then waits for less.
        _core.begin_writeback(self._file, self.position, len(frames))
        self.position = end
        self.records += records

    def sync(self) -> None:
        if self._dirty:
            sync_path(self.path) if self._file < 0 else os.fdatasync(self._file)
            self._dirty = False

    def close(self, *, cut: bool) -> None:
        """Let go of it, until it is written to again; with `cut`, it ends where its frames do."""
        file, self._file = self._file, -1
        if file < 0 and cut:
            with suppress(FileNotFoundError):
                file = open_inside(self._root, self._name, os.O_RDWR)
        if file < 0:
            return
        try:
            if cut and os.fstat(file).st_size > self.position:
                os.ftruncate(file, self.position)
        finally:
            os.close(file)


class OpenChunks:
    """The chunks of a store that take frames, some of them not committed yet."""

    def __init__(self, root: Path, meta: Meta, grow_bytes: int) -> None:
        self._root, self._grow_bytes = root, grow_bytes
        self._first, self._full = meta.first_chunk, meta.chunk_records
        self._guard = threading.Lock()
        self._chunks = []
        for state in sorted(meta.unfull):
            chunk = ChunkFile(root, state, grow_bytes)
            check_inside(root, chunk_name(state.id))
            # One that nothing was written to may have no file.
            size = chunk.path.stat().st_size if chunk.path.exists() else 0
            if size < state.position:
                message = f"truncated: expected at least {state.position} bytes, got {size}"
                raise FormatError(message, path=str(chunk.path), offset=size)
            self._chunks.append(chunk)
        self.next = meta.next_chunk
        self._committed()

    @property
    def unfull(self) -> tuple[ChunkState, ...]:
        return tuple(chunk.state for chunk in self._chunks if chunk.records < self._full)

    def with_room(self, count: int) -> list[ChunkFile]:
        """`count` chunks to write to."""
        found = [chunk for chunk in self._chunks if chunk.records < self._full][:count]
        return found + [self._begin() for _ in range(count - len(found))]

    def newest(self) -> ChunkFile:
        """The chunk with the highest id there is, or one with a higher one."""
        last = max(self._chunks, key=lambda chunk: chunk.id, default=None)
        return self._begin() if last is None or last.id < self.next - 1 else last

    def put(self, chunk: ChunkFile, ends: Rows, begin: int, end: int, make: Make) -> Entries:
        """Write records, about a megabyte at a time, to a chunk, and to new ones when it is full.

        `ends` is where each would end if they were one behind the other. Returns their entries,
        a line for each field.
        """
        made = []
        while begin < end:
            if chunk.records >= self._full:
                chunk.close(cut=False)  # the number of open files is limited
                chunk = self._begin()
            limit = (int(ends[begin - 1]) if begin else 0) + _SLAB_BYTES
            fit = max(int(np.searchsorted(ends, limit, "right")), begin + 1)
            stop = min(fit, begin + self._full - chunk.records, end)
            frames, entries = make(begin, stop, chunk.id, chunk.position)
            chunk.write(frames, stop - begin)
            del frames  # their memory is for the next ones
            made.append(entries.view(ENTRY).reshape(-1, stop - begin))
            begin = stop
        return np.concatenate(made, axis=1) if len(made) > 1 else made[0]

    def sync(self) -> None:
        """Everything that was written is on the disk, and so are the names."""
        for chunk in self._chunks:
            chunk.sync()
        if self.next > self._committed_next:
            sync_path(self._root / CHUNKS)

    def committed(self) -> None:
        """Written frames stay; full chunks are let go of."""
        for chunk in self._chunks:
            if chunk.records >= self._full:
                chunk.close(cut=True)
        self._chunks = [chunk for chunk in self._chunks if chunk.records < self._full]
        self._committed()

    def adopt(self, states: Iterable[ChunkState]) -> None:
        """Take over chunks that others wrote, whose files are here by now."""
        for state in states:
            self._chunks.append(ChunkFile(self._root, state, self._grow_bytes))
            self.next = max(self.next, state.id + 1)

    def states(self) -> list[ChunkState]:
        return [chunk.state for chunk in self._chunks]

    def back_to(self, states: Iterable[ChunkState]) -> None:
        """Forget what was written since the chunks were so; the next frames go over it."""
        before = {state.id: state for state in states}
        for chunk in self._chunks:
            _, chunk.position, chunk.records = before.get(chunk.id, ChunkState(chunk.id, 0, 0))

    def rollback(self) -> None:
        """Forget what was written since the last commit, and empty the chunks begun since.

        Not removed: a reader may have one mapped, and must see what is written there next.
        """
        self.back_to(self._committed_states)
        for chunk in self._chunks:
            if chunk.id >= self._committed_next:
                chunk.close(cut=True)
        self._chunks = [chunk for chunk in self._chunks if chunk.id < self._committed_next]
        self.next = self._committed_next

    def close(self, *, cut: bool) -> None:
        for chunk in self._chunks:
            chunk.close(cut=cut)

    def _begin(self) -> ChunkFile:
        with self._guard:
            if self.next - self._first >= MAX_CHUNKS:
                raise ValueError(
                    f"a store has up to {MAX_CHUNKS:,} chunks; "
                    "rebalance it with more records in each"
                )
            chunk = ChunkFile(self._root, ChunkState(self.next, 0, 0), self._grow_bytes)
            self.next += 1
            self._chunks.append(chunk)
        return chunk

    def _committed(self) -> None:
        self._committed_next = self.next
        self._committed_states = self.states()


class FrameWriter:
    """Puts frames into the chunks of a store that take some."""

    def __init__(self, root: Path, meta: Meta, chunks: OpenChunks, threads: int) -> None:
        self._root, self._fields, self._numbers = root, meta.fields, meta.numbers
        self._chunks, self._threads = chunks, threads
        self._dictionaries = {
            name: load_dictionary(root, name, field) for name, field in meta.fields.items()
        }

    def write(
        self, values: Mapping[str, Values], numbers: Rows, *, newest: bool
    ) -> dict[int, Entries]:
        """Write all frames or none; return the entries of each field that is given."""
        given = [self._numbers[name] for name in values]
        if not len(numbers):
            return dict.fromkeys(given, np.empty(0, ENTRY))
        fixed = sum(self._fields[name].row_bytes for name, v in values.items() if v.ends is None)
        ends = np.arange(1, len(numbers) + 1) * (fixed + 32 * len(given))
        for each in values.values():
            if each.ends is not None:
                ends += each.ends[1:] - each.ends[0]
        alone = newest or int(ends[-1]) < _SLAB_BYTES // 8
        threads = 1 if alone else min(self._threads, len(numbers))
        cuts = [len(numbers) * k // threads for k in range(threads + 1)]
        make = partial(self._frames, values, numbers)
        before = self._chunks.states()
        try:
            self.train(values)
            # Each of them has a chunk of its own from the beginning to the end.
            own = [self._chunks.newest()] if newest else self._chunks.with_room(threads)
            parts = [(own[k], ends, cuts[k], cuts[k + 1], make) for k in range(threads)]
            if threads == 1:
                entries = self._chunks.put(*parts[0])
            else:
                with ThreadPoolExecutor(threads) as pool:
                    made = pool.map(lambda part: self._chunks.put(*part), parts)
                    entries = np.concatenate([*made], axis=1)
        except BaseException:
            self._chunks.back_to(before)
            raise
        return dict(zip(given, entries, strict=True))

    def _frames(
        self,
        values: Mapping[str, Values],
        numbers: Rows,
        begin: int,
        end: int,
        chunk: int,
        position: int,
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        fields = []
        for name, given in values.items():
            field = self._fields[name]
            dictionary, codec = self._dictionaries[name], codec_number(field.compress)
            if field.compress == "zstd-dict" and dictionary is None:
                codec = codec_number("zstd")
            size = field.row_bytes
            ends = None if given.ends is None else given.ends[begin : end + 1]
            data = given.data[begin * size : end * size] if ends is None else given.data
            there = None if given.there is None else given.there[begin:end]
            level = packing_level(field)
            fields.append((self._numbers[name], codec, level, dictionary, data, ends, size, there))
        return _core.make_frames(fields, numbers[begin:end], chunk, position)

    def train(self, values: Mapping[str, Values]) -> None:
        """Make the dictionaries that are still to be made, if there is enough to learn from."""
        for name, given in values.items():
            field = self._fields[name]
            if field.compress != "zstd-dict" or self._dictionaries[name] is not None:
                continue
            ends = given.bounds(field.row_bytes)
            last = int(np.searchsorted(ends, ends[0] + _SAMPLE_BYTES, "right")) - 1
            samples = [given.data[a:b] for a, b in pairwise(ends[: last + 1]) if b > a]
            if len(samples) < 16:
                continue
            try:
                made = train_dictionary(samples)
            except ValueError:
                continue
            crc = _core.crc32c(np.frombuffer(made, np.uint8)).to_bytes(4, "little")
            write_file(self._root / dictionary_name(name), made + crc, follow=False)
            self._dictionaries[name] = load_dictionary(self._root, name, field)


def entries_of(
    meta: Meta, frames: FrameWriter, values: Mapping[str, Values], numbers: Rows, *, newest: bool
) -> dict[int, Entries]:
    """The entries of values, those of frames behind what is in the chunks."""
    made = dict[int, Entries]()
    for name in meta.columns & values.keys():
        field = meta.fields[name]
        made[meta.numbers[name]] = column_entries(
            values[name], field.row_bytes, marked=field.optional
        )
    framed = {name: each for name, each in values.items() if name not in meta.columns}
    return made | (frames.write(framed, numbers, newest=newest) if framed else {})


def rebalance(
    root: Path,
    old: Meta,
    records: _core.Records,
    columns: frozenset[str],
    grow_bytes: int,
    progress: Progress | None,
) -> Meta:
    """Write new files, and return the meta.json that will make them the store.

    `columns` are those of the records; `old` has those that there will be, which are more where
    frames become columns. When it is stopped, by a full disk perhaps, it leaves nothing behind.
    """
    made = replace(
        old,
        generation=old.generation + 1,
        peak=old.length,
        first_chunk=old.next_chunk,
        deletes=0,
        unfull=(),
    )

    numbers, framed = made.numbers, [name for name in made.fields if name not in made.columns]

    def copied(
        rows: Rows, places: Entries, begin: int, end: int, chunk: int, position: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        if progress is not None:
            progress(int(rows[end - 1]) + 1, old.length)
        flat = np.ascontiguousarray(places[:, begin:end]).view(np.uint8).reshape(-1)
        of, some = [numbers[name] for name in framed], rows[begin:end]
        return records.copy_frames(of, some, flat, some, chunk, position)

    def as_column(name: str, rows: Rows, places: Entries) -> Entries:
        """What is in the frames at some places."""
        field = made.fields[name]
        data = np.empty(len(rows) * field.row_bytes, np.uint8)
        records.read_fixed(numbers[name], rows, places.view(np.uint8), data)
        there = places["offset"] > 0
        if not (field.optional or there.all()):
            message = f"record {rows[~there][0]} has no {name}, which is not optional"
            raise FormatError(message, path=str(root))
        values = data.reshape(len(rows), -1)[there].reshape(-1)
        given = Values(len(rows), values, None, there.astype(np.uint8))
        return column_entries(given, field.row_bytes, marked=field.optional)

    chunks = OpenChunks(root, made, grow_bytes)
    names = [made.table_names(name) for name in made.fields]
    _remove(root, names)
    try:
        with ExitStack() as opened:
            opened.callback(chunks.close, cut=True)
            tables: dict[str, TableFile] = {}
            for name in made.fields:
                tables[name] = TableFile(root, made.table_names(name), made.entry(name))
                opened.callback(tables[name].close)
            for at in range(0, old.length, _LOOK_ROWS):
                rows = np.arange(at, min(at + _LOOK_ROWS, old.length), dtype=np.int64)
                looked = records.entries(rows, range(len(names)))
                found = dict(zip(made.fields, looked, strict=True))
                if framed:
                    places = np.stack([found[name].view(ENTRY) for name in framed])
                    aligned = (places["length"].astype(np.int64) + 7) // 8 * 8 + FRAME_BYTES
                    ends = np.cumsum(np.where(places["offset"] > 0, aligned, 0).sum(0))
                    (chunk,), make = chunks.with_room(1), partial(copied, rows, places)
                    put = chunks.put(chunk, ends, 0, len(rows), make)
                    found |= dict(zip(framed, put, strict=True))
                for name, table in tables.items():
                    entries = found[name]
                    if name in made.columns and name not in columns:
                        entries = as_column(name, rows, entries.view(ENTRY))
                    change = Change(at, entries.view(table.dtype))
                    table.seal(change, made.commit, at)
                    table.write_ahead(change, at, at + len(rows))
                    table.change(change, at)
                if progress is not None:
                    progress(at + len(rows), old.length)
            chunks.sync()  # of all of them: the disk has been at work all the while
            for table in tables.values():
                table.cut(old.length)
                table.sync()
    except BaseException:
        chunks.rollback()
        _remove(root, names)
        raise
    sync_path(root)
    return replace(made, next_chunk=chunks.next, unfull=chunks.unfull)


def _remove(root: Path, names: list[tuple[str, str]]) -> None:
    for name in (name for both in names for name in both):
        (root / name).unlink(missing_ok=True)

"""Changes to a record store: crash-safe, one writer at a time.

A commit is: payloads synced; the new entries written to the journal and synced, which is what
counts; then the tables, which only follow. Whoever opens the store next does again what the
journal has and meta.json does not.
"""

import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import BusyError, ChecksumError, FormatError
from stepwell.files.atomic import sync_path, write_all, write_file
from stepwell.files.codecs import train_dictionary
from stepwell.files.lock import WriterLock
from stepwell.source import Rows
from stepwell.stores.records.chunk import ChunkFile, OpenChunks
from stepwell.stores.records.control import (
    BYTES as CONTROL_BYTES,
    boot_number,
    map_control,
    read_control,
)
from stepwell.stores.records.journal import Commit, read_commits
from stepwell.stores.records.layout import (
    CHUNKS,
    CODECS,
    JOURNAL,
    LOCK,
    META,
    RecordField,
    dictionary_path,
    need_codec,
    sums_path,
    table_path,
)
from stepwell.stores.records.meta import Meta
from stepwell.stores.records.staging import Staging, entry_bytes, joined
from stepwell.stores.records.tables import TableFile
from stepwell.stores.records.values import Values

__all__ = ["GROW_BYTES", "RecordWriter", "create_store", "load_dictionary"]

GROW_BYTES = 1 << 30
_SLAB_BYTES = 1 << 20
_JOURNAL_BYTES = 1 << 24
_JOURNAL_STEP = 1 << 20
_SAMPLE_BYTES = 1 << 24
_PATIENCE_S = 0.25


class RecordWriter:
    """The one that may change a store, until it is closed."""

    def __init__(
        self, root: Path, *, grow_bytes: int = GROW_BYTES, writers: int | None = None
    ) -> None:
        self.root = root
        Meta.read(root)  # before a lock is made where no store is
        self._lock: WriterLock | None = _patient_lock(root)
        self._grow_bytes = grow_bytes
        self._tables: list[TableFile] = []
        self._chunks: OpenChunks | None = None
        self._journal = -1
        self._journal_end = self._journal_room = 0
        self._attributes: Meta | None = None
        self._failed = self._torn = False
        try:
            self.meta = Meta.read(root)
            for field in self.meta.fields.values():
                need_codec(field.compress)
            self._writers = self._number_of_writers(writers)
            self._open()
        except BaseException:
            self._let_go(cut=False)
            raise

    # Changes, there for others after a commit.

    def append(self, values: Mapping[str, Values]) -> range:
        """Records at the end; returns their numbers."""
        self._check_open()
        count, begin = next(iter(values.values())).count, self.staging.length
        # Numbers that were used before go to the newest chunk, like updates.
        used = begin < max(self.meta.peak, self.staging.peak)
        numbers = np.arange(begin, begin + count, dtype=np.int64)
        entries = self._written(values, numbers, newest=used)
        with self._all_or_torn():
            self.staging.append(count, entries)
        return range(begin, begin + count)

    def update(self, rows: Rows, values: Mapping[str, Values]) -> None:
        self._check_open()
        # To the newest chunk alone: there, the last frame of a record is the newest.
        entries = self._written(values, rows, newest=True)
        with self._all_or_torn():
            self.staging.update(rows, entries)

    def delete(self, rows: Rows) -> None:
        self._check_open()
        with self._all_or_torn():
            self.staging.delete(rows)

    def set_attributes(self, attributes: dict[str, Any]) -> None:
        self._check_open()
        self._attributes = self.meta.with_attributes(attributes)

    @property
    def attributes(self) -> dict[str, Any]:
        return (self._attributes or self.meta).attributes

    def commit(self) -> None:
        """From here on the changes are there for others, and survive a crash or a power cut."""
        self._check_open()
        if self.staging.touched:
            self._check_place()
            changes = self.staging.changes()
            for table, change in zip(self._tables, changes, strict=True):
                table.check(change, self.meta.peak)
            commit = Commit(
                self.meta.commit + 1,
                self.staging.length,
                max(self.staging.length, self.meta.peak),
                self.chunks.next,
                self.meta.deletes + self.staging.deletes,
                self.chunks.unfull,
                changes,
            )
            entry = commit.encode()  # the disk is at work on the payloads meanwhile
            self._failed = True  # unless all goes well
            self.chunks.sync()
            self._to_journal(entry)
            self._apply(commit)
            self.chunks.committed()
            self._failed = False
        if self._attributes is not None or self._journal_end > _JOURNAL_BYTES:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Bring meta.json up to the last commit, so that the journal can begin anew."""
        self._check_open()
        self._check_place()
        self._failed = True
        for table in self._tables:
            table.sync()
        if self._attributes is not None:
            self.meta = replace(self.meta, attributes=self._attributes.attributes)
        self.meta.write(self.root)
        self._attributes = None
        self._journal_end = 0
        self._failed = False

    def abort(self) -> None:
        """Forget what was not committed."""
        self._torn = False
        self._check_open()
        self.chunks.abort()
        self._attributes = None
        self._stage()

    def close(self) -> None:
        """Commit, and leave files of the size of what is in them."""
        if self._lock is None or not self._lock.held:
            return
        try:
            if self._torn:
                self.abort()
            if not self._failed:
                self.commit()
                if self._journal_end:
                    self.checkpoint()
                os.ftruncate(self._journal, 0)
        finally:
            self._let_go(cut=not self._failed)

    def forget(self) -> None:
        """Let others write; what was not committed is gone."""
        if self._lock is None or not self._lock.held:
            return
        if not self._failed:
            self.abort()
        self.close()

    @property
    def held(self) -> bool:
        """Whether this process may write; a forked child of it may not."""
        return self._lock is not None and self._lock.held

    # Below this line: for this package.

    @property
    def chunks(self) -> OpenChunks:
        assert self._chunks is not None
        return self._chunks

    @property
    def grow_bytes(self) -> int:
        return self._grow_bytes

    def append_copies(self, records: _core.Records, rows: Rows) -> None:
        """Append records of another store with the same fields, as they are stored there."""
        self._check_open()
        numbers = list(range(len(self.meta.fields)))
        places = records.places(rows, numbers)
        parts, at = [], 0
        each = places.reshape(len(numbers), len(rows), -1)
        while at < len(rows):
            (chunk,) = self.chunks.with_room(1)
            end = min(len(rows), at + self.meta.chunk_records - chunk.records)
            some = np.ascontiguousarray(each[:, at:end]).reshape(-1)
            new = np.arange(self.staging.length + at, self.staging.length + end, dtype=np.int64)
            frames, made = records.copy_frames(rows[at:end], some, new, chunk.id, chunk.position)
            chunk.write(frames, end - at)
            parts.append(entry_bytes(made, numbers, end - at))
            at = end
        self.staging.append(len(rows), joined(parts))

    def switch(self, meta: Meta) -> None:
        """Go on with the tables and chunks of another generation, which is on the disk."""
        self._check_place()
        self._failed = True
        meta.write(self.root)
        for table in self._tables:
            table.close()
        self.chunks.close(cut=False)
        self._tables, self.meta = [], meta
        self._journal_end = 0
        self._open_files()
        self._clean()
        self._failed = False

    @contextmanager
    def _all_or_torn(self) -> Iterator[None]:
        """A change that is interrupted by Ctrl-C must not be committed by half."""
        self._torn = True
        yield
        self._torn = False

    def _open(self) -> None:
        root = self.root
        (root / CHUNKS).mkdir(exist_ok=True)
        self._journal = os.open(root / JOURNAL, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._journal_room = os.fstat(self._journal).st_size
        self._control = map_control(root, write=True)
        commits = read_commits(root / JOURNAL, self.meta)
        seen, last = read_control(self._control), self.meta.commit + len(commits)
        if seen.of_this_boot and seen.commit > last:
            raise ChecksumError(
                f"expected {seen.commit} commits, found {last}", path=str(root / JOURNAL)
            )
        self._open_files()
        if commits:
            for commit in commits:
                self._apply(commit)
            self.chunks.close(cut=False)
            self._chunks = OpenChunks(root, self.meta, self._grow_bytes)
            self.checkpoint()
        _core.begin_change(self._control)
        _core.end_change(self._control, self.meta.commit, self.meta.length, boot_number())
        self._clean()

    def _open_files(self) -> None:
        root, meta = self.root, self.meta
        self._tables = []
        for name in meta.fields:
            path = table_path(root, name, meta.generation)
            if not path.exists() and meta.peak:
                raise FormatError("a table is missing", path=str(path))
            self._tables.append(TableFile(path, sums_path(root, name, meta.generation)))
            if self._tables[-1].size < meta.length:
                raise FormatError(
                    f"expected {meta.length} entries, got {self._tables[-1].size}", path=str(path)
                )
        self.dictionaries = {
            name: load_dictionary(root, name, field)
            for name, field in meta.fields.items()
            if field.compress == "zstd-dict"
        }
        self._chunks = OpenChunks(root, meta, self._grow_bytes)
        self._stage()

    def _stage(self) -> None:
        """Begin with what is committed."""
        tables = self._tables  # not this object: it would keep itself, and its lock, alive
        self.staging = Staging(
            len(self.meta.fields), self.meta.length, lambda field, row: tables[field].entry(row)
        )

    def _clean(self) -> None:
        """Remove what a killed writer or rebalance left; what is not ours stays."""
        meta, root = self.meta, self.root
        for path in root.glob(f"{CHUNKS}/*.zr"):
            ours = path.stem.isdecimal() and path.stem == str(int(path.stem))
            if ours and int(path.stem) < meta.first_chunk:
                path.unlink(missing_ok=True)
            elif ours and int(path.stem) >= meta.next_chunk:
                # Not removed: a reader may have it mapped, and must see what is written there next.
                with suppress(FileNotFoundError):
                    os.truncate(path, 0)
        names = "|".join(map(re.escape, meta.fields))
        table = re.compile(rf"({names})(\.[1-9][0-9]*)?\.(offset|sums)")
        keep = {
            made(root, name, meta.generation).name
            for name in meta.fields
            for made in (table_path, sums_path)
        }
        for path in root.iterdir():
            if path.name not in keep and table.fullmatch(path.name):
                path.unlink(missing_ok=True)
        for path in root.glob(f".{META}.*.tmp"):
            path.unlink(missing_ok=True)

    def _to_journal(self, data: bytes) -> None:
        """Room is made ahead, in zeros: a sync then has nothing but these bytes to write."""
        end = self._journal_end + len(data)
        if end > self._journal_room:
            room = -(-end // _JOURNAL_STEP) * _JOURNAL_STEP
            zeros = np.zeros(room - self._journal_room, np.uint8)
            write_all(self._journal, zeros, self._journal_room, self.root / JOURNAL)
            os.fsync(self._journal)
            self._journal_room = room
        bytes_of = np.frombuffer(data, np.uint8)
        write_all(self._journal, bytes_of, self._journal_end, self.root / JOURNAL)
        os.fdatasync(self._journal)
        self._journal_end = end

    def _apply(self, commit: Commit) -> None:
        _core.begin_change(self._control)
        for table, change in zip(self._tables, commit.changes, strict=True):
            table.change(change, commit.peak)
        self.meta = replace(
            self.meta,
            commit=commit.number,
            length=commit.length,
            peak=commit.peak,
            next_chunk=commit.next_chunk,
            deletes=commit.deletes,
            unfull=commit.unfull,
        )
        _core.end_change(self._control, commit.number, commit.length, boot_number())
        self._stage()

    def _written(
        self, values: Mapping[str, Values], numbers: Rows, *, newest: bool
    ) -> dict[int, bytes]:
        before = self.chunks.states()
        try:
            self._train(values)
            return self._write(values, numbers, newest=newest)
        except BaseException:
            self.chunks.back_to(before)
            raise

    def _write(
        self, values: Mapping[str, Values], numbers: Rows, *, newest: bool = False
    ) -> dict[int, bytes]:
        """Write frames to chunks; return the entries of each field that is given."""
        names = list(self.meta.fields)
        given = [names.index(name) for name in values]
        if not len(numbers):
            return dict.fromkeys(given, b"")
        sizes = sum(
            (v.sizes(self.meta.fields[name].item_bytes) for name, v in values.items()),
            start=np.zeros(len(numbers), np.int64),
        )
        ends = np.cumsum(sizes + 32 * len(given))
        writers = 1 if newest or int(ends[-1]) < _SLAB_BYTES // 8 else self._writers
        cuts = [len(numbers) * k // writers for k in range(writers + 1)]

        # Each of them has a chunk of its own from the beginning to the end.
        own = [self.chunks.newest()] if newest else self.chunks.with_room(writers)

        def part(writer: int) -> dict[int, bytes]:
            made, at, chunk = [], cuts[writer], own[writer]
            while at < cuts[writer + 1]:
                if chunk.records >= self.meta.chunk_records:
                    chunk.rest()
                    chunk = self.chunks.begin()
                room = self.meta.chunk_records - chunk.records
                limit = (int(ends[at - 1]) if at else 0) + _SLAB_BYTES
                fit = max(int(np.searchsorted(ends, limit, "right")), at + 1)
                end = min(fit, at + room, cuts[writer + 1])
                places = self._write_frames(values, numbers, at, end, chunk)
                made.append(entry_bytes(places, given, end - at))
                at = end
            return joined(made)

        if writers == 1:
            return part(0)
        with ThreadPoolExecutor(writers) as pool:
            return joined([made for made in pool.map(part, range(writers)) if made])

    def _write_frames(
        self, values: Mapping[str, Values], numbers: Rows, begin: int, end: int, chunk: ChunkFile
    ) -> NDArray[np.uint8]:
        """Their entries. The memory of the frames is free afterwards, for the next ones."""
        fields = []
        for name, given in values.items():
            field = self.meta.fields[name]
            dictionary, codec = self.dictionaries.get(name), field.codec
            if field.compress == "zstd-dict" and dictionary is None:
                codec = CODECS["zstd"]
            number = list(self.meta.fields).index(name)
            size = field.item_bytes
            ends = None if given.ends is None else given.ends[begin : end + 1]
            data = given.data[begin * size : end * size] if ends is None else given.data
            there = None if given.there is None else given.there[begin:end]
            fields.append((number, codec, field.packing_level, dictionary, data, ends, size, there))
        frames, places = _core.make_frames(fields, numbers[begin:end], chunk.id, chunk.position)
        chunk.write(frames, end - begin)
        return places

    def _train(self, values: Mapping[str, Values]) -> None:
        """Make the dictionaries that are still to be made, if there is enough to learn from."""
        for name, given in values.items():
            if name not in self.dictionaries or self.dictionaries[name] is not None:
                continue
            field = self.meta.fields[name]
            size = field.item_bytes
            ends = given.ends if given.ends is not None else np.arange(given.count + 1) * size
            most = int(np.searchsorted(ends, ends[0] + _SAMPLE_BYTES, "right")) - 1
            samples = [given.data[a:b] for a, b in pairwise(ends[: most + 1]) if b > a]
            try:
                made = train_dictionary(samples) if len(samples) >= 16 else None
            except ValueError:
                made = None
            if made is None:
                continue
            crc = _core.crc32c(np.frombuffer(made, np.uint8)).to_bytes(4, "little")
            write_file(dictionary_path(self.root, name), made + crc)
            self.dictionaries[name] = load_dictionary(self.root, name, field)

    def _number_of_writers(self, given: int | None) -> int:
        if given is None:
            packed = any(field.compress != "raw" for field in self.meta.fields.values())
            return min(_core.usable_cores(), 4) if packed else 1
        if not 1 <= given <= 4:
            raise ValueError(f"writers: expected 1 to 4, got {given}")
        return given

    def _check_open(self) -> None:
        if self._lock is None:
            raise ValueError(f"{self.root} is not open for writing")
        if not self._lock.held:
            raise ValueError(f"{self.root} is written to by the process this one was forked from")
        if self._failed:
            raise ValueError(f"a commit to {self.root} failed; open it again to go on")
        if self._torn:
            raise ValueError(f"a change to {self.root} was interrupted; abort() forgets it")

    def _check_place(self) -> None:
        if self._lock is None or not self._lock.in_place:
            raise BusyError(f"{self.root} was moved or replaced while it was written to")

    def _let_go(self, *, cut: bool) -> None:
        with ExitStack() as last:  # all of it, whichever part fails; the lock at the end
            if self._lock is not None:
                last.callback(self._lock.release)
            if self._journal >= 0:
                last.callback(os.close, self._journal)
            for table in self._tables:
                last.callback(table.close)
                if cut:
                    last.callback(table.cut, self.meta.peak)
            if self._chunks is not None:
                last.callback(self._chunks.close, cut=cut)
            self._tables, self._chunks, self._journal, self._lock = [], None, -1, None


def _patient_lock(root: Path) -> WriterLock:
    """A reader that does what a killed writer left undone has the lock for a moment."""
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return WriterLock(root / LOCK)
        except BusyError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def create_store(root: Path, meta: Meta) -> None:
    """Begin a store without records, where nothing is."""
    if root.exists() and (not root.is_dir() or not all(map(_is_left_over, root.iterdir()))):
        raise FileExistsError(f"{root} exists already")
    for field in meta.fields.values():
        need_codec(field.compress)
    root.mkdir(parents=True, exist_ok=True)
    lock = WriterLock(root / LOCK)
    try:
        if (root / META).exists():  # by someone else, a moment ago
            raise FileExistsError(f"{root} exists already")
        (root / CHUNKS).mkdir(exist_ok=True)
        (root / JOURNAL).touch()
        for name in meta.fields:
            table_path(root, name, 0).touch()
            sums_path(root, name, 0).touch()
        # Which makes it a store, and syncs the names.
        replace(meta, store_id=secrets.token_hex(8)).write(root)
    finally:
        lock.release()
    sync_path(root.parent)


def _is_left_over(path: Path) -> bool:
    """Whether a `create_store` that was killed may have left this; meta.json comes last."""
    if path.name == CHUNKS:
        return path.is_dir() and not any(path.iterdir())
    if path.name.startswith(f".{META}."):
        return True
    ours = path.name in (LOCK, JOURNAL) or path.suffix in (".offset", ".sums")
    return ours and path.is_file() and path.stat().st_size in (0, CONTROL_BYTES)


def load_dictionary(root: Path, name: str, field: RecordField) -> _core.Dictionary | None:
    """The dictionary of a field; None while there is none."""
    path = dictionary_path(root, name)
    data = b""
    with suppress(FileNotFoundError):
        data = path.read_bytes()
        if len(data) < 5 or _core.crc32c(np.frombuffer(data[:-4], np.uint8)) != int.from_bytes(
            data[-4:], "little"
        ):
            raise FormatError("a damaged dictionary", path=str(path))
    if not data:
        return None
    return _core.Dictionary(np.frombuffer(data[:-4], np.uint8), field.packing_level)

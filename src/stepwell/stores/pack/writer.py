"""Packs, written: beside the target, in one pass, shown when whole."""

import operator
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell import _core
from stepwell.errors import BusyError, FormatError
from stepwell.files.atomic import is_writers, sync_path, write_all, writer_name
from stepwell.files.checked import joined
from stepwell.files.codecs import CODECS, Codec, Packer, codec_names, train_dictionary
from stepwell.files.lock import WriterLock, remove_unlocked
from stepwell.store import what_is_at
from stepwell.stores.pack.layout import (
    ENTRY,
    FIRST_RAW_KIND,
    HAS_DICTIONARY,
    INDEX_AT,
    align_up,
    footer,
    groups,
    header,
)
from stepwell.stores.pack.payload import Payloads, by_type, payload_types
from stepwell.stores.pack.reader import PackReader
from stepwell.stores.pack.stats import StatsBuilder, Tally, stats_block
from stepwell.writer import Mode, Writer, check_mode, exclusive, local_path

Compress = Literal["none", "zstd", "lz4", "zstd-dict"]

_FLUSH_BYTES = 1 << 21
_MOVE_BYTES = 1 << 23
TRAIN_BYTES = 1 << 23  # a dictionary learns from the first payloads
_MAX_ALIGN = 1 << 30
_MIN_ROOM = 64  # what an entry costs in memory, however small its payload


def room_for(lengths: ArrayLike, align: int) -> NDArray[np.int64]:
    """Memory that payloads take up until they are written, their padding included."""
    return np.maximum(align_up(np.asarray(lengths, np.int64), align), _MIN_ROOM)


class Prepared(NamedTuple):
    """Entries as they will stand in the file, except that offsets begin at 0."""

    image: NDArray[np.uint8]
    entries: NDArray[Any]
    tallies: list[Tally]
    """The counts for the statistics."""


class EntryMaker:
    """Makes entries of payloads, as any pack of this alignment and codec has them."""

    def __init__(self, align: int, codec: Codec, level: int, dictionary: bytes | None) -> None:
        self.align = align
        self._codec, self._packer = codec, Packer(codec, level, dictionary)

    def prepare(self, payloads: Sequence[Any], kinds: Sequence[int], first: int = 0) -> Prepared:
        """See `PackWriter.prepare`."""
        image, entries = self._laid_out(payloads, kinds)
        numbers = np.arange(first, first + len(entries))
        tallies = [
            known.tally(known.decode(Payloads(image, entries[mask], numbers[mask])))
            for known, mask in by_type(entries["kind"])
        ]
        if self._codec is not Codec.NONE:
            packed = [self._packer.pack(payload) for payload in payloads]
            smaller = np.array([each is not None for each in packed], bool)
            sizes = entries["length"][smaller]
            stored = [p if s is None else s for p, s in zip(payloads, packed, strict=True)]
            image, entries = self._laid_out(stored, kinds)
            entries["flags"][smaller], entries["reserved"][smaller] = self._codec, sizes
        checksums = _core.checksums_of(image, entries.view(np.uint8), numbers, "")
        entries["crc32c"] = checksums.view(np.uint32)
        return Prepared(image, entries, tallies)

    def _laid_out(
        self, payloads: Sequence[Any], kinds: Sequence[int]
    ) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """Payloads in memory, zeros between them, and entries with the place of each."""
        lengths = np.array([len(payload) for payload in payloads], np.int64)
        padded = align_up(lengths, self.align)
        entries = np.zeros(len(payloads), ENTRY)
        entries["offset"], entries["length"] = np.cumsum(padded) - padded, lengths
        entries["kind"] = kinds
        image = _core.shared_blocks().take(int(padded[:-1].sum() + lengths[-1:].sum()))
        end = 0
        for begin, payload in zip(entries["offset"].tolist(), payloads, strict=True):
            image[end:begin] = 0
            end = begin + len(payload)
            image[begin:end] = np.frombuffer(payload, np.uint8)
        return image, entries


def dictionary_of(samples: Sequence[Any]) -> bytes:
    """A dictionary that is trained on the first payloads."""
    ends = np.cumsum([len(sample) for sample in samples])
    return train_dictionary(samples[: int((ends < TRAIN_BYTES).sum()) + 1])


class PackWriter(Writer):
    """Writes a pack that appears, whole and on disk, when it is committed or closed.

        with PackWriter("games.a2pack") as pack:
            pack.append(run)

    `align` is a power of two. `compress` is "none", "zstd", "lz4" (an extra) or "zstd-dict",
    whose dictionary is trained on the first payloads. `expect` is how many entries will come;
    a good guess saves a copy at the end. A pack has one commit, its end, and at least one
    entry. A block that fails leaves nothing behind.
    """

    noun = PackReader.noun
    _finished = False
    _replaces = False
    _pending: list[tuple[Any, int]]
    _entries: list[NDArray[Any]]
    _written: int
    _data_crc: int
    _end_at: int
    _stats: StatsBuilder
    _dictionary: bytes | None
    _maker: EntryMaker | None
    """None until a dictionary is trained."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: Mode = "x",
        align: int = 4096,
        compress: Compress = "none",
        level: int = 3,
        expect: int = 0,
    ) -> None:
        check_mode(mode)
        if mode == "a":
            raise ValueError("mode: a pack cannot be continued, expected 'x', got 'a'")
        if not 1 <= align <= _MAX_ALIGN or align & (align - 1):
            raise ValueError(f"align: expected a power of two up to 2**30, got {align}")
        if compress not in (names := codec_names("pack")):
            raise ValueError(f"compress: expected one of {', '.join(names)}, got {compress!r}")
        if expect < 0:
            raise ValueError(f"expect: expected 0 or more entries, got {expect}")
        self.align = align
        self._codec, self._level = Codec(CODECS[compress].pack or 0), level
        self._first_maker = None
        if self._codec is not Codec.ZSTD_DICT:
            self._first_maker = EntryMaker(align, self._codec, level, None)
        # Through a link, to what it names.
        self._root = Path(os.path.realpath(local_path(path, self.noun)))
        self._refuse_existing()
        self._first_start = align_up(INDEX_AT + ENTRY.itemsize * expect, align)
        self._beside = writer_name(self._root)
        lock = _lock_beside(self._root)
        self._file = lock.file
        self._ready(lock)
        with self._opening():
            self._refuse_existing()  # again: another writer may have come and gone meanwhile
            with suppress(PermissionError):  # a folder that cannot be listed
                for path in filter(is_writers, self._root.parent.iterdir()):
                    if path != self._beside:
                        remove_unlocked(path)  # what a packer that was killed left
            self._rollback()

    def __len__(self) -> int:
        """Entries appended so far."""
        return self._written + len(self._pending)

    @exclusive
    def append(self, payload: Any, kind: int | None = None) -> int:
        """Add an item of a known type, its bytes, or any bytes with a `kind` from 16 up.

        Returns the number of the entry. Bytes of a known type are checked before the pack is
        committed: `FormatError` then names the entry, and only `rollback` goes on from there.
        """
        if self._finished:
            raise ValueError(f"{self._root} is committed: a pack cannot be continued")
        if type(payload) is bytes and type(kind) is int and FIRST_RAW_KIND <= kind < 2**16:
            data = payload  # the same as below, for small ones at half the cost
        else:
            data, kind = _encoded(payload, kind)
        size = len(data)
        if size >= 2**32:
            raise ValueError(f"a payload has fewer than 2**32 bytes, got {size}")
        self._pending.append((data, kind))
        number = self._written + len(self._pending) - 1
        if self._maker is None:
            self._pending_bytes += size
            full = self._pending_bytes >= TRAIN_BYTES
        else:
            self._pending_bytes += max(size + -size % self.align, _MIN_ROOM)
            full = self._pending_bytes >= _FLUSH_BYTES
        if full:
            self._flush()
        return number

    def extend(self, payloads: Iterable[Any]) -> None:
        """Append items or their bytes, one after another."""
        for payload in payloads:
            self.append(payload)

    # Below this line: for this package.

    @property
    def needs_samples(self) -> bool:
        """Whether there is to be a dictionary, and is none yet."""
        return self._maker is None

    def train(self, samples: Sequence[Any]) -> None:
        """Train the dictionary on the first payloads, if it is needed."""
        if self.needs_samples:
            self.use(dictionary_of(samples))

    def use(self, dictionary: bytes) -> None:
        """Compress with a dictionary that was trained before."""
        self._dictionary = dictionary
        self._maker = EntryMaker(self.align, self._codec, self._level, dictionary)

    def prepare(self, payloads: Sequence[Any], kinds: Sequence[int], first: int = 0) -> Prepared:
        """Check that payloads of a known type decode, compress, and compute checksums.

        Safe from any thread. Raises `FormatError` for one that does not decode; it names the
        entry, counted from `first`.
        """
        assert self._maker is not None
        return self._maker.prepare(payloads, kinds, first)

    @exclusive
    def append_prepared(self, made: Prepared) -> None:
        """Add what `prepare` has made."""
        with self._changing():
            self._write(made)

    @exclusive
    def reserve(self, entries: NDArray[Any], tallies: Iterable[Tally], crc: int, size: int) -> int:
        """Add entries of `prepare` whose image others write to `beside` before the commit.

        `crc` is its checksum. Returns where in that file it begins.
        """
        with self._changing():
            begin = self._add(entries, tallies, size)
            self._data_crc = joined(self._data_crc, crc, size)
        return begin

    @property
    def beside(self) -> Path:
        """The file that becomes the pack."""
        return self._beside

    def _flush(self) -> None:
        """Write what is pending; when that fails, nothing but `rollback` goes on."""
        if not self._pending:
            return
        with self._changing():
            pending, self._pending, self._pending_bytes = self._pending, [], 0
            self.train([payload for payload, _ in pending])
            for part in groups(room_for([len(p) for p, _ in pending], self.align), _FLUSH_BYTES):
                payloads, kinds = zip(*pending[part], strict=True)
                try:
                    made = self.prepare(payloads, kinds, self._written)
                except FormatError as error:
                    error.add_note(f"in a pack for {self._root}")
                    raise
                self._write(made)

    def _write(self, made: Prepared) -> None:
        if not len(made.entries):  # padding is only for what comes after it
            return
        begin = self._add(made.entries, made.tallies, len(made.image))
        self._data_crc = _core.crc32c(made.image, self._data_crc)
        write_all(self._file, made.image, begin, self._root)  # the gap before it reads as zeros

    def _add(self, entries: NDArray[Any], tallies: Iterable[Tally], size: int) -> int:
        """Add entries whose bytes come next; where these begin."""
        begin = align_up(self._end_at, self.align)
        zeros = np.zeros(begin - self._end_at, np.uint8)
        self._data_crc = _core.crc32c(zeros, self._data_crc)
        entries["offset"] += begin
        self._entries.append(entries)
        self._written += len(entries)
        self._end_at = begin + size
        self._stats.add(len(entries), tallies)
        return begin

    def _commit(self) -> None:
        if self._finished:
            return
        if not len(self):
            raise ValueError("a pack has at least one entry, nothing was appended")
        self._flush()
        with self._at_risk():
            self._write_ends()
            os.fsync(self._file)
            self._refuse_existing()
            os.replace(self._beside, self._root)
            self._finished = True
            sync_path(self._root.parent)

    def _write_ends(self) -> None:
        """Write what stands before and behind the data: header, index, statistics, footer."""
        index = np.concatenate(self._entries)
        start = align_up(INDEX_AT + index.nbytes, self.align)
        if by := start - self._start:
            self._move_data(by, INDEX_AT + index.nbytes)
            index["offset"] = index["offset"].astype(np.int64) + by
            self._end_at += by
        needs_2 = bool(index["flags"].any() or (index["kind"] >= FIRST_RAW_KIND).any())
        flags = HAS_DICTIONARY if self._dictionary is not None else 0
        stats = stats_block(self._stats.finish())
        tail = len(stats).to_bytes(4, "little") + stats
        if self._dictionary is not None:
            data = np.frombuffer(self._dictionary, np.uint8)
            tail += len(data).to_bytes(4, "little") + _core.crc32c(data).to_bytes(4, "little")
            tail += self._dictionary
        raw = index.view(np.uint8)
        tail += footer(self._end_at, _core.crc32c(raw), self._data_crc, self._end_at)
        head = header(2 if needs_2 or flags else 1, flags, len(index))
        write_all(self._file, np.frombuffer(head + raw.tobytes(), np.uint8), 0, self._root)
        write_all(self._file, np.frombuffer(tail, np.uint8), self._end_at, self._root)

    def _move_data(self, by: int, index_end: int) -> None:
        """Move the data inside the file, and leave zeros between the index and it."""
        file, start = self._file, self._start
        # The file ends before the data does when an empty payload is its last.
        end = min(self._end_at, os.fstat(file).st_size)
        places = range(start, end, _MOVE_BYTES)
        for at in places if by < 0 else reversed(places):
            part = bytearray()
            while more := os.pread(file, min(_MOVE_BYTES, end - at) - len(part), at + len(part)):
                part += more
            write_all(file, np.frombuffer(part, np.uint8), at + by, self._root)
        if by < 0:
            os.ftruncate(file, max(end + by, 0))
        for at in range(max(start, index_end), min(start + by, end), _MOVE_BYTES):
            zeros = np.zeros(min(_MOVE_BYTES, start + by - at), np.uint8)
            write_all(file, zeros, at, self._root)

    def _rollback(self) -> None:
        """Begin with an empty file, in which there is room for the index."""
        if self._finished:
            return
        os.ftruncate(self._file, 0)
        self._pending, self._entries = [], []
        self._pending_bytes = self._written = self._data_crc = 0
        self._start = self._end_at = self._first_start
        self._stats = StatsBuilder()
        self._dictionary = None
        self._maker = self._first_maker

    def _release(self) -> None:
        if not self._finished and self._in_place:
            with suppress(OSError):
                os.unlink(self._beside)

    def _refuse_existing(self) -> None:
        path = self._root
        if not os.path.lexists(path):
            return
        if not self._replaces:
            raise FileExistsError(f"{path} exists already: {what_is_at(path)}")
        if not PackReader.recognizes(path):
            raise FileExistsError(f"expected a pack or nothing, got {what_is_at(path)}: {path}")


class ReplacingPackWriter(PackWriter):
    """A writer whose pack replaces an existing pack."""

    _replaces = True


def _lock_beside(target: Path) -> WriterLock:
    """The file beside `target` that a pack is written to, locked; that of a dead writer, too."""
    path = writer_name(target)
    while True:
        try:
            lock = WriterLock(path)
        except BusyError:
            raise BusyError(f"another writer is at work on {target}") from None
        except OSError as error:  # the other name means nothing to anyone
            error.filename = str(target)
            raise
        if lock.in_place:  # otherwise its owner has just finished with it
            return lock
        lock.release()


def _encoded(payload: Any, kind: int | None) -> tuple[bytes, int]:
    """The bytes to store of an appended item, and its kind."""
    data: Any = payload
    if not isinstance(payload, bytes):
        for known in payload_types():
            made = known.encode(payload)
            if made is not None:
                if kind not in (None, made[1]):
                    what = type(payload).__name__
                    raise ValueError(f"kind: a {what} is stored as kind {made[1]}, got {kind}")
                return made
        try:
            data = bytes(memoryview(payload))  # of a number, bytes() would make that many zeros
        except TypeError:
            names = " or ".join(["bytes", *(known.name for known in payload_types())])
            raise TypeError(f"payload: expected {names}, got {payload!r:.80}") from None
    if kind is None:
        kind = next((k for known in payload_types() if (k := known.kind_of(data))), None)
    number = 0 if kind is None else operator.index(kind)
    typed = [number for known in payload_types() for number in known.kinds]
    if number not in typed and not FIRST_RAW_KIND <= number < 2**16:
        listed = [", ".join(map(str, typed))] if typed else []
        expected = " or ".join([*listed, f"{FIRST_RAW_KIND} to 65535"])
        raise ValueError(f"kind: expected {expected}, got {kind}")
    return data, number

"""Packs, written: beside the target, in one pass, shown when whole."""

import operator
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.files.atomic import create_beside, sync_path, write_all
from stepwell.files.codecs import Codec, Packer, train_dictionary
from stepwell.stores.pack.layout import (
    ENTRY,
    FIRST_RAW_KIND,
    HAS_DICTIONARY,
    INDEX_AT,
    align_up,
    footer,
    header,
)
from stepwell.stores.pack.payload import by_type, payload_types
from stepwell.stores.pack.stats import StatsBuilder, Tally, stats_block

__all__ = ["Compress", "PackWriter", "Prepared", "Preparer", "lay_out", "room_for"]

Compress = Literal["none", "zstd", "lz4", "zstd-dict"]

_CODECS = {
    "none": Codec.NONE,
    "zstd": Codec.ZSTD,
    "lz4": Codec.LZ4,
    "zstd-dict": Codec.ZSTD_DICT,
}
_FLUSH_BYTES = 1 << 21
_TRAIN_BYTES = 1 << 23  # a dictionary learns from the first payloads
_MOST_ALIGN = 1 << 30
_LEAST_ROOM = 64  # what an entry costs in memory, however small its payload


def room_for(length: int, align: int) -> int:
    """Memory that a payload takes up until it is written, its padding included."""
    return max(align_up(length, align), _LEAST_ROOM)


class Prepared(NamedTuple):
    """Entries as they will stand in the file, except that offsets begin at 0."""

    image: NDArray[np.uint8]
    entries: NDArray[Any]
    tallies: list[Tally]
    """What the statistics count of them."""


def lay_out(
    lengths: Sequence[int], kinds: Sequence[int], align: int
) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Memory for payloads, zero between them, and entries that say where each belongs."""
    entries = np.zeros(len(lengths), ENTRY)
    begins, ends = [], [0]
    for length in lengths:
        begins.append(align_up(ends[-1], align))
        ends.append(begins[-1] + length)
    entries["offset"], entries["length"], entries["kind"] = begins, lengths, kinds
    image = _core.shared_blocks().take(ends[-1])
    for end, begin in zip(ends, begins, strict=False):
        image[end:begin] = 0
    return image, entries


class Preparer:
    """Turns payloads into what is written; knows no file and is safe from any thread."""

    def __init__(self, align: int, packer: Packer, codec: Codec) -> None:
        self._align = align
        self._packer = packer
        self._codec = codec

    def prepare(self, payloads: Sequence[Any], kinds: Sequence[int], first: int = 0) -> Prepared:
        """Lay out payloads, then `finish` them."""
        return self.finish(*self._copied(payloads, kinds), first)

    def finish(self, image: NDArray[np.uint8], entries: NDArray[Any], first: int = 0) -> Prepared:
        """Check that payloads of a known type decode, compress, and compute checksums.

        Raises `FormatError` for one that does not decode; it names the entry, counted from
        `first`.
        """
        numbers = np.arange(first, first + len(entries))
        tallies = [
            known.tally(known.decode(image, entries[mask], numbers[mask]))
            for known, mask in by_type(entries["kind"])
        ]
        if self._codec is not Codec.NONE:
            image, entries = self._packed(image, entries)
        sums = _core.sums_of(image, entries.view(np.uint8), numbers, "")
        entries["crc32c"] = sums.view(np.uint32)
        return Prepared(image, entries, tallies)

    def _packed(
        self, image: NDArray[np.uint8], entries: NDArray[Any]
    ) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        payloads = [image[e["offset"] : e["offset"] + e["length"]].data for e in entries]
        packed = [self._packer.pack(payload) for payload in payloads]
        stored = [p if s is None else s for p, s in zip(payloads, packed, strict=True)]
        image, made = self._copied(stored, entries["kind"].tolist())
        smaller = np.array([s is not None for s in packed], bool)
        made["flags"][smaller] = self._codec
        made["reserved"][smaller] = entries["length"][smaller]
        return image, made

    def _copied(
        self, payloads: Sequence[Any], kinds: Sequence[int]
    ) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        image, entries = lay_out([len(payload) for payload in payloads], kinds, self._align)
        for begin, payload in zip(entries["offset"].tolist(), payloads, strict=True):
            image[begin : begin + len(payload)] = np.frombuffer(payload, np.uint8)
        return image, entries


class PackWriter:
    """Writes a pack that appears, whole and on disk, when it is closed.

        with PackWriter("games.a2pack") as pack:
            pack.append(run)

    `align` is a power of two. `compress` is "none", "zstd", "lz4" (an extra) or "zstd-dict",
    whose dictionary is trained on the first payloads. `expect` is how many entries will come;
    a good guess saves a copy at the end. A block that fails leaves nothing behind.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        align: int = 4096,
        compress: Compress = "none",
        level: int = 3,
        expect: int = 0,
        overwrite: bool = False,
    ) -> None:
        if not 1 <= align <= _MOST_ALIGN or align & (align - 1):
            raise ValueError(f"align: expected a power of two up to 2**30, got {align}")
        if compress not in _CODECS:
            raise ValueError(f"compress: expected one of {', '.join(_CODECS)}, got {compress!r}")
        if expect < 0:
            raise ValueError(f"expect: expected 0 or more entries, got {expect}")
        self._path = Path(os.path.realpath(path))  # through a link, to what it names
        self._overwrite = overwrite
        self._refuse_existing()
        self._align = align
        self._codec = _CODECS[compress]
        self._level = level
        self._dictionary: bytes | None = None
        self._preparer: Preparer | None = None
        if self._codec is not Codec.ZSTD_DICT:
            self._preparer = Preparer(align, Packer(self._codec, level), self._codec)
        self._pending: list[tuple[Any, int]] = []
        self._pending_bytes = 0
        self._failed = False
        self._written = 0
        self._start = self._end = align_up(INDEX_AT + ENTRY.itemsize * expect, align)
        self._data_crc = 0
        self._entries: list[NDArray[Any]] = []
        self._stats = StatsBuilder()
        self._file, self._beside = create_beside(self._path)
        self._forget = weakref.finalize(self, _discard, self._file, self._beside, os.getpid())

    def __len__(self) -> int:
        """Entries appended so far."""
        return self._written + len(self._pending)

    def append(self, payload: Any, kind: int | None = None) -> int:
        """Add an item of a known type, its bytes, or any bytes with a `kind` from 16 up.

        Returns the number of the entry. Bytes of a known type are checked before the pack is
        closed: `FormatError` then names the entry, and the pack is given up.
        """
        self._check_open()
        data, kind = _encoded(payload, kind)
        if len(data) >= 2**32:
            raise ValueError(f"a payload has fewer than 2**32 bytes, got {len(data)}")
        self._pending.append((data, kind))
        number = len(self) - 1
        if self._preparer is None:
            self._pending_bytes += len(data)
            full = self._pending_bytes >= _TRAIN_BYTES
        else:
            self._pending_bytes += room_for(len(data), self._align)
            full = self._pending_bytes >= _FLUSH_BYTES
        if full:
            try:
                self._flush()
            except BaseException:
                self._fail()
                raise
        return number

    def extend(self, payloads: Iterable[Any]) -> None:
        """Append items or their bytes, one after another."""
        for payload in payloads:
            self.append(payload)

    def close(self) -> None:
        """Finish the pack: from here on it is there for others, and survives a power cut.

        Raises `ValueError` for a pack without entries, or one that an error has ended before.
        """
        if not self._forget.alive:
            if self._failed:
                raise ValueError(f"the pack for {self._path} was given up after an error")
            return
        try:
            if not len(self):
                raise ValueError("a pack has at least one entry, nothing was appended")
            self._flush()
            self._finish()
            self._refuse_existing()
            os.replace(self._beside, self._path)
        except BaseException:
            self._fail()
            raise
        self._forget.detach()
        os.close(self._file)
        sync_path(self._path.parent)

    def abort(self) -> None:
        """Give the pack up; nothing of it stays."""
        self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    # Below this line: for this package.

    @property
    def align(self) -> int:
        return self._align

    @property
    def sample_bytes(self) -> int:
        """How much of the first payloads `preparer` needs to see; 0 without a dictionary."""
        return 0 if self._preparer else _TRAIN_BYTES

    def preparer(self, samples: Sequence[Any]) -> Preparer:
        """What prepares entries for this pack; a dictionary is trained on the first `samples`."""
        if self._preparer is None:
            ends = np.cumsum([len(sample) for sample in samples])
            self._dictionary = train_dictionary(samples[: int((ends < _TRAIN_BYTES).sum()) + 1])
            packer = Packer(self._codec, self._level, self._dictionary)
            self._preparer = Preparer(self._align, packer, self._codec)
        return self._preparer

    def write(self, made: Prepared) -> None:
        """Add what a preparer has made."""
        self._check_open()
        if not len(made.entries):  # padding is only for what comes after it
            return
        begin = align_up(self._end, self._align)
        zeros = np.zeros(begin - self._end, np.uint8)
        for part in (zeros, made.image):
            self._data_crc = _core.crc32c(part, self._data_crc)
        write_all(self._file, made.image, begin, self._path)  # the gap before it reads as zeros
        made.entries["offset"] += begin
        self._entries.append(made.entries)
        self._written += len(made.entries)
        self._end = begin + len(made.image)
        self._stats.add(len(made.entries), made.tallies)

    def _flush(self) -> None:
        if not self._pending:
            return
        preparer = self.preparer([payload for payload, _ in self._pending])
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        for part in _cut(pending, self._align):
            payloads, kinds = zip(*part, strict=True)
            try:
                made = preparer.prepare(payloads, kinds, self._written)
            except FormatError as error:
                error.add_note(f"in a pack for {self._path}")
                raise
            self.write(made)

    def _fail(self) -> None:
        self._failed = True
        self.abort()

    def _finish(self) -> None:
        index = np.concatenate(self._entries)
        start = align_up(INDEX_AT + index.nbytes, self._align)
        if start != self._start:
            self._move_data(start)
            index["offset"] = index["offset"].astype(np.int64) + (start - self._start)
            self._end += start - self._start
        needs_2 = bool(index["flags"].any() or (index["kind"] >= FIRST_RAW_KIND).any())
        flags = HAS_DICTIONARY if self._dictionary is not None else 0
        stats = stats_block(self._stats.finish())
        tail = len(stats).to_bytes(4, "little") + stats
        if self._dictionary is not None:
            data = np.frombuffer(self._dictionary, np.uint8)
            tail += len(data).to_bytes(4, "little") + _core.crc32c(data).to_bytes(4, "little")
            tail += self._dictionary
        raw = index.view(np.uint8)
        tail += footer(self._end, _core.crc32c(raw), self._data_crc, self._end)
        head = header(2 if needs_2 or flags else 1, flags, len(index))
        write_all(self._file, np.frombuffer(head + raw.tobytes(), np.uint8), 0, self._path)
        write_all(self._file, np.frombuffer(tail, np.uint8), self._end, self._path)
        os.fsync(self._file)

    def _move_data(self, start: int) -> None:
        """Copy the data to a file in which it begins at `start`."""
        file, beside = create_beside(self._path)
        try:
            at = self._start
            # The file ends before the data does when an empty payload is its last.
            while part := os.pread(self._file, min(1 << 23, self._end - at), at):
                write_all(file, np.frombuffer(part, np.uint8), at - self._start + start, self._path)
                at += len(part)
        except BaseException:
            _discard(file, beside, os.getpid())
            raise
        self._forget()
        self._file, self._beside = file, beside
        self._forget = weakref.finalize(self, _discard, file, beside, os.getpid())

    def _refuse_existing(self) -> None:
        if self._path.exists() and not (self._overwrite and self._path.is_file()):
            why = "exists" if self._path.is_file() else "exists and is no plain file"
            raise FileExistsError(f"{self._path} {why}")

    def _check_open(self) -> None:
        if not self._forget.alive:
            raise ValueError(f"the writer of {self._path} is closed")


def _encoded(payload: Any, kind: int | None) -> tuple[bytes, int]:
    """What is stored of something that was appended, and the kind of it."""
    if isinstance(payload, bytes):
        data = payload
    else:
        for known in payload_types():
            made = known.encode(payload)
            if made is not None:
                if kind not in (None, made[1]):
                    what = type(payload).__name__
                    raise ValueError(f"kind: a {what} is stored as kind {made[1]}, got {kind}")
                return made
        data = bytes(memoryview(payload))  # of a number, bytes() would make that many zeros
    if kind is None:
        kind = next((k for known in payload_types() if (k := known.kind_of(data))), None)
    number = 0 if kind is None else operator.index(kind)
    if not FIRST_RAW_KIND <= number < 2**16:
        typed = [str(number) for known in payload_types() for number in known.kinds]
        if str(number) not in typed:
            expected = [*filter(None, [", ".join(typed)]), f"{FIRST_RAW_KIND} to 65535"]
            raise ValueError(f"kind: expected {' or '.join(expected)}, got {kind}")
    return data, number


def _cut(pending: Sequence[tuple[Any, int]], align: int) -> Iterator[list[tuple[Any, int]]]:
    """Payloads in groups of bounded size once they are laid out."""
    part: list[tuple[Any, int]] = []
    size = 0
    for item in pending:
        part.append(item)
        size += room_for(len(item[0]), align)
        if size >= _FLUSH_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _discard(file: int, path: Path, owner: int) -> None:
    with suppress(OSError):  # what a network file system says of data that nobody wants
        os.close(file)
    if os.getpid() == owner:  # a forked child forgets its copy of the writer, not the file
        with suppress(OSError):
            path.unlink(missing_ok=True)

"""Packs, written: beside the target, in one pass, shown when whole."""

import os
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.files.atomic import sync_path, temporary_name
from stepwell.files.codecs import Codec, Packer, train_dictionary
from stepwell.runs import ENTRY, Run, RunBatch
from stepwell.stores.pack.layout import (
    FIRST_RAW_KIND,
    HAS_DICTIONARY,
    INDEX_AT,
    align_up,
    footer,
    header,
)
from stepwell.stores.pack.stats import StatsBuilder

__all__ = ["Compress", "PackWriter", "Prepared", "Preparer", "lay_out"]

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


class Prepared(NamedTuple):
    """Entries as they will stand in the file, except that offsets begin at 0."""

    image: NDArray[np.uint8]
    entries: NDArray[Any]
    runs: RunBatch
    """The heads of those that are runs."""


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

    def prepare(self, payloads: Sequence[Any], kinds: Sequence[int]) -> Prepared:
        """Lay out payloads, then `finish` them."""
        return self.finish(*self._copied(payloads, kinds))

    def finish(self, image: NDArray[np.uint8], entries: NDArray[Any]) -> Prepared:
        """Check that runs decode, compress, and sum up.

        Raises `FormatError` for a run that does not decode; the entry it names is the
        position among those given.
        """
        numbers = np.arange(len(entries))
        runs = entries["kind"] < FIRST_RAW_KIND
        decoded = RunBatch.decode(image, entries[runs], numbers[runs], threads=1)
        if self._codec is not Codec.NONE:
            image, entries = self._packed(image, entries)
        sums = _core.sums_of(image, entries.view(np.uint8), numbers, "")
        entries["crc32c"] = sums.view(np.uint32)
        return Prepared(image, entries, decoded)

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
        self._path = Path(path)
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
        self._written = 0
        self._start = self._end = align_up(INDEX_AT + ENTRY.itemsize * expect, align)
        self._data_crc = 0
        self._entries: list[NDArray[Any]] = []
        self._stats = StatsBuilder()
        self._beside = temporary_name(self._path)
        self._file = os.open(self._beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._forget = weakref.finalize(self, _discard, self._file, self._beside)

    def __len__(self) -> int:
        """Entries appended so far."""
        return self._written + len(self._pending)

    def append(self, payload: Run | Any, kind: int | None = None) -> int:
        """Add a run, a run's bytes, or any bytes with a `kind` from 16 up; return its number.

        A run's bytes are checked before the pack is closed: `FormatError` then names the
        entry, and the pack is given up.
        """
        self._check_open()
        if isinstance(payload, Run):
            if kind not in (None, 2):
                raise ValueError(f"kind: a Run is stored as kind 2, got {kind}")
            data, kind = payload.to_bytes(), 2
        else:
            data = bytes(payload)
            if kind is None:
                kind = _core.run_kind(np.frombuffer(data, np.uint8))
        if kind not in (1, 2) and not FIRST_RAW_KIND <= kind < 2**16:
            raise ValueError(f"kind: expected 1, 2 or {FIRST_RAW_KIND} to 65535, got {kind}")
        if len(data) >= 2**32:
            raise ValueError(f"a payload has fewer than 2**32 bytes, got {len(data)}")
        self._pending.append((data, kind))
        self._pending_bytes += len(data)
        number = len(self) - 1
        most = _FLUSH_BYTES if self._preparer else _TRAIN_BYTES
        if self._pending_bytes >= most:
            self._flush()
        return number

    def extend(self, payloads: Iterable[Run | Any]) -> None:
        """Append runs or their bytes, one after another."""
        for payload in payloads:
            self.append(payload)

    def close(self) -> None:
        """Finish the pack: from here on it is there for others, and survives a power cut.

        Raises `ValueError` for a pack without entries.
        """
        if not self._forget.alive:
            return
        try:
            if not len(self):
                raise ValueError("a pack has at least one entry, nothing was appended")
            self._flush()
            self._finish()
            self._refuse_existing()
            os.replace(self._beside, self._path)
        except BaseException:
            self.abort()
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

    def preparer(self, samples: Sequence[Any]) -> Preparer:
        """What prepares entries for this pack; a dictionary is trained on `samples`."""
        if self._preparer is None:
            self._dictionary = train_dictionary(samples)
            packer = Packer(self._codec, self._level, self._dictionary)
            self._preparer = Preparer(self._align, packer, self._codec)
        return self._preparer

    def write(self, made: Prepared) -> None:
        """Add what a preparer has made."""
        self._check_open()
        begin = align_up(self._end, self._align)
        zeros = np.zeros(begin - self._end, np.uint8)
        for part in (zeros, made.image):
            self._data_crc = _core.crc32c(part, self._data_crc)
        _write_all(self._file, made.image, begin)  # the gap before it reads as zeros
        made.entries["offset"] += begin
        self._entries.append(made.entries)
        self._written += len(made.entries)
        self._end = begin + len(made.image)
        self._stats.add(made.runs)
        self._stats.add_others(len(made.entries) - len(made.runs))

    def _flush(self) -> None:
        if not self._pending:
            return
        payloads, kinds = zip(*self._pending, strict=True)
        try:
            made = self.preparer(payloads).prepare(payloads, kinds)
        except FormatError as error:
            self.abort()
            error.add_note(f"entries counted from {self._written}, in a pack for {self._path}")
            raise
        self._pending, self._pending_bytes = [], 0
        try:
            self.write(made)
        except BaseException:
            self.abort()
            raise

    def _finish(self) -> None:
        index = np.concatenate(self._entries)
        start = align_up(INDEX_AT + index.nbytes, self._align)
        if start != self._start:
            self._move_data(start)
            index["offset"] = index["offset"].astype(np.int64) + (start - self._start)
            self._end += start - self._start
        needs_2 = bool(index["flags"].any() or (index["kind"] >= FIRST_RAW_KIND).any())
        flags = HAS_DICTIONARY if self._dictionary is not None else 0
        stats = self._stats.finish().to_bytes()
        tail = len(stats).to_bytes(4, "little") + stats
        if self._dictionary is not None:
            data = np.frombuffer(self._dictionary, np.uint8)
            tail += len(data).to_bytes(4, "little") + _core.crc32c(data).to_bytes(4, "little")
            tail += self._dictionary
        raw = index.view(np.uint8)
        tail += footer(self._end, _core.crc32c(raw), self._data_crc, self._end)
        head = header(2 if needs_2 or flags else 1, flags, len(index))
        _write_all(self._file, np.frombuffer(head + raw.tobytes(), np.uint8), 0)
        _write_all(self._file, np.frombuffer(tail, np.uint8), self._end)
        os.fsync(self._file)

    def _move_data(self, start: int) -> None:
        """Copy the data to a file in which it begins at `start`."""
        beside = temporary_name(self._path)
        file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            for at in range(self._start, self._end, 1 << 23):
                part = os.pread(self._file, min(1 << 23, self._end - at), at)
                _write_all(file, np.frombuffer(part, np.uint8), at - self._start + start)
        except BaseException:
            _discard(file, beside)
            raise
        self._forget()
        self._file, self._beside = file, beside
        self._forget = weakref.finalize(self, _discard, file, beside)

    def _refuse_existing(self) -> None:
        if not self._overwrite and self._path.exists():
            raise FileExistsError(f"{self._path} exists")

    def _check_open(self) -> None:
        if not self._forget.alive:
            raise ValueError(f"the writer of {self._path} is closed")


def _write_all(file: int, data: NDArray[np.uint8], at: int) -> None:
    view = data.data
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written


def _discard(file: int, path: Path) -> None:
    os.close(file)
    with suppress(OSError):
        path.unlink(missing_ok=True)

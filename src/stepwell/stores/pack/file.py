"""A pack's file, mapped or read: payloads by their entries, checked and unpacked on the way."""

import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.files.codecs import Codec, Damaged, unpack
from stepwell.files.mirror import Mirror, split_url
from stepwell.files.objects import TRIES
from stepwell.files.regular import open_regular
from stepwell.files.residents import Numbers
from stepwell.lazy import lazy
from stepwell.source import Rows
from stepwell.stores.pack.layout import ENTRY, SELF_CHECKED_KIND, Layout
from stepwell.stores.pack.payload import Payloads, PayloadType

T = TypeVar("T")


class _Reads:
    """The bytes of a file that is not mapped: each look at them is a read. Any thread may."""

    def __init__(self, file: int, size: int, path: str) -> None:
        self._file, self._size, self._path = os.dup(file), size, path

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, wanted: slice | NDArray[np.int64]) -> NDArray[np.uint8]:
        """A stretch; or rows of ascending places, close together in each."""
        if isinstance(wanted, slice):
            begin, end, _ = wanted.indices(self._size)
            return self.joined([begin], [max(end - begin, 0)])
        found = np.empty(wanted.shape, np.uint8)
        for out, places in zip(found, wanted, strict=True):
            out[:] = self[int(places[0]) : int(places[-1]) + 1][places - places[0]]
        return found

    def joined(self, begins: list[int], lengths: list[int]) -> NDArray[np.uint8]:
        """Stretches one after another. Raises `FormatError` where the file has been cut."""
        out = np.empty(sum(lengths), np.uint8)
        at = 0
        for begin, length in zip(begins, lengths, strict=True):
            end = at + length
            while at < end:
                got = os.preadv(self._file, [out[at:end].data], begin)
                if not got:
                    size = os.fstat(self._file).st_size
                    message = f"truncated: expected {self._size} bytes, got {size}"
                    raise FormatError(message, path=self._path, offset=size)
                at, begin = at + got, begin + got
        out.flags.writeable = False
        return out

    def __del__(self) -> None:
        with suppress(AttributeError):  # it was never opened
            os.close(self._file)


class _FarReads(_Reads):
    """The bytes of an object in a bucket: each look brings what of it is not here yet."""

    def __init__(self, mirror: Mirror, name: str) -> None:
        self._mirror, self._stand_in = mirror, mirror.sparse(name)
        with open_regular(self._stand_in.path) as file:
            super().__init__(file.fileno(), self._stand_in.bytes, mirror.url_of(name))

    def __getitem__(self, wanted: slice | NDArray[np.int64]) -> NDArray[np.uint8]:
        if isinstance(wanted, slice) or not len(wanted):
            return super().__getitem__(wanted)
        begins, ends = wanted[:, 0], wanted[:, -1] + 1
        return self._mirror.reading(
            self.units_of(begins, ends - begins), lambda: self._near(wanted)
        )

    def _near(self, wanted: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Rows of places that are here."""
        found = np.empty(wanted.shape, np.uint8)
        for out, places in zip(found, wanted, strict=True):
            first, last = int(places[0]), int(places[-1]) + 1
            out[:] = super().joined([first], [last - first])[places - first]
        return found

    def joined(self, begins: list[int], lengths: list[int]) -> NDArray[np.uint8]:
        found, near = self._units_of(begins, lengths), super().joined
        return self._mirror.reading(found, lambda: near(begins, lengths))

    def units_of(self, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> Numbers:
        """The units that some stretches are in."""
        return self._mirror.units_of(np.full(len(begins), self._stand_in.first), begins, lengths)

    def _units_of(self, begins: list[int], lengths: list[int]) -> Numbers:
        return self.units_of(np.array(begins, np.int64), np.array(lengths, np.int64))

    def forget(self, entries: NDArray[Any]) -> None:
        """Have these brought again: they came damaged."""
        begins = entries["offset"].astype(np.int64)
        self._mirror.forget(self.units_of(begins, entries["length"].astype(np.int64)))


def _bytes_of(memory: mmap.mmap | None, file: int, size: int, path: str) -> Any:
    """The bytes of a file: an array over its mapping, or what reads them slice by slice."""
    return _Reads(file, size, path) if memory is None else np.frombuffer(memory, np.uint8)


class PackFile:
    """Bytes of a pack whose structure was checked. It is unmapped with the last use of it.

    `entries` are rows of the index, whose checksums are compared unless they are 0; `numbers` is
    what errors call them. Of several that are broken the first is named, however many threads look.
    """

    mirror: Mirror | None = None
    """Of a pack in a bucket."""

    def __init__(self, path: Path, *, read: bool = False) -> None:
        self.memory: mmap.mmap | None = None
        """None where the file is read: it is to be, or cannot be mapped."""
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size and not read:
                with suppress(OSError):  # not every file system can
                    self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.data = _bytes_of(self.memory, file.fileno(), size, str(path))
        self.path: Path | str = path.absolute()  # wherever the process goes later
        self._begin(str(path))

    @classmethod
    def of_url(cls, url: str, options: dict[str, Any]) -> "PackFile":
        """One in a bucket, of which parts come as they are needed."""
        made = cls.__new__(cls)
        above, name = split_url(url)
        made.mirror = Mirror(above, listing=False, **options)
        made.memory, made.path = None, url
        made.data = _FarReads(made.mirror, name)
        made._begin(url)
        return made

    def _begin(self, path: str) -> None:
        self.layout = Layout.read(self.data, path)
        self.table: bytes | None = None
        """The database of `where`, once it was used."""

    def check_whole(self) -> None:
        """Raise `FormatError` when the file was cut: its memory would end the process."""
        if self.memory is not None and (size := self.memory.size()) < len(self.data):
            message = f"truncated: expected {len(self.data)} bytes, got {size}"
            raise FormatError(message, path=str(self.path), offset=size)

    @lazy
    def content_checksum(self) -> int:
        """A checksum that identifies this pack.

        The index has the checksum of every entry, but that of a payload with a checksum of its
        own is always the same: the own one is read from where such payloads end.
        """
        layout = self.layout
        found = _core.crc32c(np.array([layout.data_crc], "<u4").view(np.uint8), layout.index_crc)
        index = layout.index
        own = (index["kind"] == SELF_CHECKED_KIND) & (index["flags"] == Codec.NONE)
        own &= index["length"] >= 4
        bare = (index["crc32c"] == 0) & ~own & (index["length"] > 0)  # nobody recorded any
        for entries, size in ((index[own], 4), (index[bare], 8)):
            begins = entries["offset"].astype(np.int64)[:, None]
            tails = begins + entries["length"][:, None] + np.arange(-size, 0)
            found = _core.crc32c(self.data[np.maximum(tails, begins)].reshape(-1), found)
        return found

    def check_size(self) -> None:
        """Raise `FormatError` when someone has cut the file since: touching the pages that are gone
        would end the process."""
        if self.memory is not None and self.memory.size() < len(self.data):
            raise FormatError(
                f"truncated while it was open: expected {len(self.data)} bytes",
                path=str(self.path),
                offset=self.memory.size(),
            )

    def give_back(self, begin: int, end: int) -> None:
        """Let go of pages that a scan is done with.

        They stay in the page cache; only this process stops counting them as its own.
        """
        begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        end = end // mmap.PAGESIZE * mmap.PAGESIZE
        if self.memory is not None and begin < end:
            self.memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def stored(self, entries: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """Where stored bytes are in memory: this file, or what was read of it.

        The entries that come back point there.
        """
        self.check_size()
        if self.memory is not None:
            return self.data, entries
        lengths = entries["length"].tolist()
        found = self.data.joined(entries["offset"].tolist(), lengths)
        placed = entries.copy()
        placed["offset"] = np.cumsum([0, *lengths])[:-1]
        return found, placed

    def checked(
        self, entries: NDArray[Any], numbers: Rows, threads: int
    ) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """The same. Raises `ChecksumError` for bytes that are not those that were written."""
        return self._tried(entries, lambda: self._checked(entries, numbers, threads))

    def _tried(self, entries: NDArray[Any], work: Callable[[], T]) -> T:
        """What `work` returns; payloads that came damaged from a bucket are brought again."""
        for _ in range(0 if self.mirror is None else TRIES - 1):
            try:
                return work()
            except FormatError:
                self.data.forget(entries)
        return work()

    def _checked(
        self, entries: NDArray[Any], numbers: Rows, threads: int
    ) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        found, placed = self.stored(entries)
        try:
            _core.check_entries(found, placed.view(np.uint8), numbers, self.path, threads)
        except FormatError as error:
            raise self._in_file(error, entries, placed) from None
        return found, placed

    def _in_file(
        self, error: FormatError, entries: NDArray[Any], placed: NDArray[Any]
    ) -> FormatError:
        """The error with its offset in the file, if it has that in bytes that were read."""
        if self.memory is None and error.offset is not None:
            entry = int(np.searchsorted(placed["offset"], error.offset, "right")) - 1
            error.offset += int(entries["offset"][entry]) - int(placed["offset"][entry])
        return error

    def payloads(
        self, entries: NDArray[Any], numbers: Rows, threads: int
    ) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """Where payloads are in memory: this file, or what was unpacked of it.

        The entries that come back point there, and have the checksums that are still to be checked.
        """
        packed = entries["flags"].any()
        return self.unpacked(entries, numbers, threads) if packed else self.stored(entries)

    def decode(
        self,
        of: PayloadType,
        entries: NDArray[Any],
        numbers: Rows,
        threads: int,
        *,
        heads_only: bool = False,
    ) -> Sequence[Any]:
        """The items at these entries, as their payload type has them."""
        where, plain = str(self.path), None

        def decoded() -> Sequence[Any]:
            nonlocal plain
            file, plain = self.payloads(entries, numbers, threads)
            found = Payloads(file, plain, numbers, where)
            return of.decode(found, threads=threads, heads_only=heads_only)

        try:
            return self._tried(entries, decoded)
        except FormatError as error:
            # Checksums, heads and bodies are checked in turn; the first broken item is named.
            for i in range(len(entries) if len(entries) > 1 else 0):
                self.decode(of, entries[i : i + 1], numbers[i : i + 1], 1, heads_only=heads_only)
            if plain is None:
                raise
            if not entries["flags"].any():
                raise self._in_file(error, entries, plain) from None
            # The offset is one of the unpacked bytes; the file has only the entry's own.
            raise type(error)(
                f"{error.args[0]} (byte {error.offset} of the unpacked payload)",
                path=where,
                offset=int(entries["offset"][0]),
            ) from None

    def unpacked(
        self, entries: NDArray[Any], numbers: Rows, threads: int
    ) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """Payloads unpacked into one array, and entries that point into it."""
        stored, placed = self.checked(entries, numbers, threads)
        lengths = np.where(entries["flags"] == Codec.NONE, entries["length"], entries["reserved"])
        plain = np.zeros(len(entries), ENTRY)
        plain["length"], plain["kind"] = lengths, entries["kind"]
        plain["offset"][1:] = np.cumsum(lengths[:-1], dtype=np.int64)
        found: list[tuple[int, Any]] = []
        damaged: list[tuple[int, str]] = []
        for codec in Codec:
            places = np.flatnonzero(entries["flags"] == codec)
            try:
                unpacked = unpack(
                    codec,
                    slices(stored.data, placed[places]),
                    lengths[places].tolist(),
                    dictionary=self.layout.dictionary,
                    threads=threads,
                )
                found += zip(places.tolist(), unpacked, strict=True)
            except Damaged as error:
                damaged.append((int(places[error.position]), error.args[0]))
        if damaged:
            place, problem = min(damaged)
            at = int(entries["offset"][place])
            raise FormatError(f"entry {numbers[place]}: {problem}", path=str(self.path), offset=at)
        out = np.empty(int(lengths.sum(dtype=np.int64)), np.uint8)  # as long as they really are
        for place, payload in found:
            begin = int(plain["offset"][place])
            out[begin : begin + len(payload)] = np.frombuffer(payload, np.uint8)
        return out, plain


def slices(view: memoryview, entries: NDArray[Any]) -> list[memoryview]:
    """The bytes of entries in a view."""
    begins, lengths = entries["offset"].tolist(), entries["length"].tolist()
    return [view[b : b + n] for b, n in zip(begins, lengths, strict=True)]

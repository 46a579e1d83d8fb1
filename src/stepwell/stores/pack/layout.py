"""Where things are in a pack, read without trusting a byte (docs/formats/pack.md)."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError, VersionError
from stepwell.files.codecs import Codec

MAGIC = b"A2PACK\0\0"
INDEX_AT = 28
TYPED_KINDS = (1, 2)
SELF_CHECKED_KIND = 1
"""Such payloads end in a CRC32C of the rest, so the CRC32C of each whole one is the same."""
FIRST_RAW_KIND = 16
HAS_DICTIONARY = 1

ENTRY = np.dtype(
    [
        ("offset", "<u8"),
        ("length", "<u4"),
        ("kind", "<u2"),
        ("flags", "<u2"),
        ("crc32c", "<u4"),
        ("reserved", "<u4"),
        ("zero", "<u8"),
    ]
)
"""Where a payload is: an entry of a pack's index, as the core takes it."""

N = TypeVar("N", int, NDArray[np.int64])

_HEADER = struct.Struct("<8sIIQ")
_FOOTER = struct.Struct("<QIIQ")
_FOOTER_BYTES = 32

# The maximum that a stored byte can unpack to: an lz4 match byte, a zstd block of repeats.
_MAX_UNPACKED = {Codec.ZSTD: (1 << 17) // 4, Codec.LZ4: 255, Codec.ZSTD_DICT: (1 << 17) // 4}


def align_up(offset: N, align: int) -> N:
    return -(-offset // align) * align


def groups(sizes: NDArray[Any], max_bytes: int) -> Iterator[slice]:
    """Neighbours of about this many bytes together, at least one."""
    ends = np.cumsum(sizes, dtype=np.int64)
    cuts = (np.flatnonzero(np.diff(ends // max_bytes)) + 1).tolist()
    return map(slice, [0, *cuts] if len(ends) else [], [*cuts, len(ends)])


def header(version: int, flags: int, count: int) -> bytes:
    start = _HEADER.pack(MAGIC, version, flags, count)
    return start + _checksum(start).to_bytes(4, "little")


def footer(data_end: int, index_crc: int, data_crc: int, stats_offset: int) -> bytes:
    start = _FOOTER.pack(data_end, index_crc, data_crc, stats_offset)
    return start + _checksum(start).to_bytes(4, "little") + bytes(4)


@dataclass(frozen=True)
class Layout:
    """A pack whose structure was checked: every entry lies inside the data, none overlaps."""

    version: int
    index: NDArray[Any]
    index_crc: int
    data_start: int
    data_end: int
    data_crc: int
    """CRC32C of data_start to data_end; 0 when it was not recorded."""
    stats: bytes | None
    dictionary: bytes | None

    @classmethod
    def read(cls, file: NDArray[np.uint8], path: str) -> "Layout":
        """Check everything but the payloads. Raises `FormatError` naming what is wrong where."""
        check = _Checker(file, path)
        version, flags, count = check.header()
        # A copy: a closed pack still knows what it held.
        index = file[INDEX_AT : INDEX_AT + ENTRY.itemsize * count].view(ENTRY).copy()
        data_end, index_crc, data_crc, stats_offset = check.footer(index)
        check.entries(index, version, data_end)
        data_start = int(index["offset"][0])
        end, stats, dictionary = data_end, None, None
        if stats_offset:
            if stats_offset != data_end:
                raise check.refuse(
                    f"expected statistics at {data_end}, behind the data, got {stats_offset}",
                    check.footer_at + 16,
                )
            stats, end = check.block(data_end, 4, "statistics")
        if flags & HAS_DICTIONARY:
            at = end
            dictionary, end = check.block(at, 8, "dictionary")
            check.check_crc("dictionary", at + 8, end, at + 4)
        if end != check.footer_at:
            left = check.footer_at - end
            raise check.refuse(f"expected the footer, got {left} other bytes", end)
        coded = index["flags"] == Codec.ZSTD_DICT
        if coded.any() and dictionary is None:
            check.refuse_entry(int(coded.argmax()), "flags", "needs a dictionary, there is none")
        return cls(version, index, index_crc, data_start, data_end, data_crc, stats, dictionary)


class _Checker:
    """The parts of a file, each read and checked in turn."""

    def __init__(self, file: NDArray[np.uint8], path: str) -> None:
        self._file = file
        self._path = path
        self.footer_at = len(file) - _FOOTER_BYTES

    def refuse(self, message: str, offset: int) -> FormatError:
        return FormatError(message, path=self._path, offset=offset)

    def refuse_entry(self, i: int, field: str, message: str) -> None:
        fields = ENTRY.fields
        assert fields is not None
        raise self.refuse(f"entry {i}: {message}", INDEX_AT + 32 * i + fields[field][1])

    def check_crc(self, what: str, begin: int, end: int, stored_at: int) -> None:
        stored = int.from_bytes(self._file[stored_at : stored_at + 4].tobytes(), "little")
        found = _core.crc32c(self._file[begin:end])
        if stored != found:
            raise ChecksumError(
                f"{what}: expected CRC32C {stored:08x}, got {found:08x}",
                path=self._path,
                offset=begin,
            )

    def header(self) -> tuple[int, int, int]:
        start = self._file[:INDEX_AT].tobytes()
        if start[:8] != MAGIC[: len(start)]:
            raise self.refuse(f"expected magic {MAGIC!r}, got {start[:8]!r}", 0)
        smallest = INDEX_AT + ENTRY.itemsize + _FOOTER_BYTES
        if (size := len(self._file)) < smallest:
            raise self.refuse(f"truncated: expected at least {smallest} bytes, got {size}", size)
        _, version, flags, count = _HEADER.unpack_from(start)
        if version not in (1, 2):
            raise VersionError(f"expected version 1 or 2, got {version}", path=self._path, offset=8)
        self.check_crc("header", 0, 24, 24)
        if flags & ~(HAS_DICTIONARY if version == 2 else 0):
            raise VersionError(
                f"version {version} with unknown flags {flags:#x}", path=self._path, offset=12
            )
        room = (self.footer_at - INDEX_AT) // ENTRY.itemsize
        if count > room:  # with a header as it was written
            raise self.refuse(f"truncated: {count} entries, but only {room} fit into the file", 16)
        if count < 1:
            raise self.refuse("expected at least 1 entry, got 0", 16)
        return version, flags, count

    def footer(self, index: NDArray[Any]) -> tuple[int, int, int, int]:
        at = self.footer_at
        raw = self._file[at:].tobytes()
        expected = int(index["offset"][-1]) + int(index["length"][-1]) + _FOOTER_BYTES
        try:
            self.check_crc("footer", at, at + 24, at + 24)
        except ChecksumError as error:
            if expected > (size := len(self._file)):
                error.args = (f"truncated: expected at least {expected} bytes, got {size}",)
            raise
        if any(raw[28:]):
            raise self.refuse(f"expected four zero bytes, got {raw[28:].hex()}", at + 28)
        data_end, index_crc, data_crc, stats_offset = _FOOTER.unpack_from(raw)
        self.check_crc("index", INDEX_AT, INDEX_AT + index.nbytes, at + 8)
        return data_end, index_crc, data_crc, stats_offset

    def entries(self, index: NDArray[Any], version: int, data_end: int) -> None:
        """Every entry in its place: ascending, inside the data, aligned, of a known kind."""

        def refuse_where(bad: NDArray[np.bool], field: str, message: str) -> None:
            if bad.any():
                i = int(bad.argmax())
                self.refuse_entry(i, field, message.format(index[field][i], i=i))

        refuse_where(
            index["offset"] > np.uint64(self.footer_at), "offset", "offset {} lies behind the data"
        )
        begins = index["offset"].astype(np.int64)
        ends = begins + index["length"]
        refuse_where(ends > self.footer_at, "length", "length {} reaches behind the data")
        before = np.concatenate([[INDEX_AT + index.nbytes], ends[:-1]])
        refuse_where(begins < before, "offset", "offset {} lies inside what comes before it")
        if data_end != ends[-1]:
            raise self.refuse(
                f"expected the data to end at {ends[-1]}, where the last entry does, "
                f"got {data_end}",
                self.footer_at,
            )
        step = np.gcd.reduce(begins)
        refuse_where(begins - before >= step, "offset", f"offset {{}} is not aligned to {step}")
        typed = np.isin(index["kind"], TYPED_KINDS)
        raw = index["kind"] >= FIRST_RAW_KIND if version == 2 else np.zeros_like(typed)
        refuse_where(~(typed | raw), "kind", f"kind {{}} is not of version {version}")
        last = Codec.ZSTD_DICT if version == 2 else Codec.NONE
        refuse_where(index["flags"] > last, "flags", f"codec {{}} is not of version {version}")
        refuse_where(index["zero"] != 0, "zero", "expected eight zero bytes, got {:#x}")
        unpacked = index["reserved"].astype(np.int64)
        plain = index["flags"] == Codec.NONE
        refuse_where(plain & (unpacked != 0), "reserved", "reserved: expected 0, got {}")
        for codec, factor in _MAX_UNPACKED.items():
            max_bytes = (index["length"].astype(np.int64) + 1) * factor
            bad = (index["flags"] == codec) & (unpacked > max_bytes)
            refuse_where(bad, "reserved", f"no {codec.name.lower()} payload unpacks to {{}} bytes")

    def block(self, at: int, head: int, what: str) -> tuple[bytes, int]:
        """A block that begins with its length; what follows its head, and where it ends."""
        room = self.footer_at - at - head
        length = int.from_bytes(self._file[at : at + 4].tobytes(), "little")
        if room < 0 or length > room:
            raise self.refuse(f"{what}: expected at most {max(room, 0)} bytes, got {length}", at)
        begin = at + head
        return self._file[begin : begin + length].tobytes(), begin + length


def _checksum(data: bytes) -> int:
    return _core.crc32c(np.frombuffer(data, np.uint8))

"""Checksums of small blocks of rows, in a file beside them, checked when a block is first met.

A file of checksums has 16 bytes (`STEPCRC\\0`, the version and the bytes of a block, 32 bits each),
then the CRC32C of each block, 32 bits each. Blocks begin with the first row of a file; the last one
of a file may be short.
"""

import os
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError, VersionError
from stepwell.files.atomic import write_all
from stepwell.files.regular import open_inside

BLOCK_BYTES = 1 << 12
MAX_BLOCK_BYTES = 1 << 14
ENTRY_BYTES = 4
_MAGIC = b"STEPCRC\0"
_VERSION = 1
_HEADER = struct.Struct("<8sII")
_NONE = np.empty(0, np.uint8)


def header_bytes(block_bytes: int = BLOCK_BYTES) -> bytes:
    return _HEADER.pack(_MAGIC, _VERSION, block_bytes)


def parse_header(data: bytes, path: str) -> int:
    """The bytes of a block. Raises `FormatError` for what is no file of checksums."""
    if len(data) < _HEADER.size:
        message = f"truncated: expected a header of {_HEADER.size} bytes, got {len(data)}"
        raise FormatError(message, path=path, offset=len(data))
    magic, version, block_bytes = _HEADER.unpack(data[: _HEADER.size])
    if magic != _MAGIC:
        raise FormatError(f"expected magic {_MAGIC!r}, got {magic!r}", path=path, offset=0)
    if version != _VERSION:
        raise VersionError(f"expected version {_VERSION}, got {version}", path=path, offset=8)
    if block_bytes.bit_count() != 1 or block_bytes > MAX_BLOCK_BYTES:
        message = f"expected blocks of a power of two up to {MAX_BLOCK_BYTES}, got {block_bytes}"
        raise FormatError(message, path=path, offset=12)
    return int(block_bytes)


def joined(first: int, second: int, size: int) -> int:
    """The CRC32C of two pieces one behind the other, of the checksums of both and the bytes of the
    second: pieces are then summed where they are made, in any order."""
    power, factor = size, 1 << 31  # of x to the 8 * size, by squares
    square = 1 << 23
    while power:
        if power & 1:
            factor = _product(square, factor)
        square = _product(square, square)
        power >>= 1
    return _product(factor, first) ^ second


def _product(a: int, b: int) -> int:
    """The product of two polynomials modulo that of CRC32C; the highest bit is the number 1."""
    made = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            made ^= b
        b = b >> 1 ^ (0x82F63B78 if b & 1 else 0)
    return made


def block_count(size: int, block_bytes: int) -> int:
    """The number of blocks that `size` bytes of one file have."""
    return -(-size // block_bytes)


def entry_place(entry: int) -> int:
    """Where the checksum of a block is in its file."""
    return _HEADER.size + ENTRY_BYTES * entry


class Checksums:
    """The checksums of blocks of a store: those of its file, or the first `stored`; then `rest`.

    Raises `FormatError` when the file is missing, not one of checksums, or has fewer.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        stored: int | None = None,
        rest: bytes = b"",
        block_bytes: int | None = None,
    ) -> None:
        self._path = root / name
        self._rest = np.frombuffer(rest, np.uint8)
        try:
            file = open_inside(root, name)
        except FileNotFoundError:
            message = "expected the checksums of the rows, there is no such file"
            raise FormatError(message, path=str(self._path)) from None
        try:
            found = os.pread(file, _HEADER.size, 0)
            self.block_bytes = parse_header(found, str(self._path))
            if block_bytes not in (None, self.block_bytes):
                message = f"expected blocks of {block_bytes} bytes, got {self.block_bytes}"
                raise FormatError(message, path=str(self._path), offset=12)
            size = os.fstat(file).st_size
            if stored is None:
                stored = (size - _HEADER.size) // ENTRY_BYTES
            self.stored, end = stored, entry_place(stored)
            if size < end:
                message = f"truncated: expected {end} bytes, got {size}"
                raise FormatError(message, path=str(self._path), offset=size)
            self._stored = _core.map_file(file, end, self._path)[_HEADER.size :]
        finally:
            os.close(file)

    @classmethod
    def of_files(cls, root: Path, files: list[tuple[str, int]], block_bytes: int) -> "Checksums":
        """Those of several files, each with how many it has, one behind the other."""
        each = [cls(root, name, count, block_bytes=block_bytes) for name, count in files]
        made = cls.__new__(cls)
        made._path, made._rest, made.block_bytes = root, _NONE, block_bytes
        made.stored = sum(count for _, count in files)
        made._stored = np.concatenate([_NONE, *(found._stored for found in each)])
        return made

    def of(
        self,
        data: NDArray[np.uint8],
        first: int,
        path: Path | str,
        begin: int,
        inside: int = 0,
        crc: int = 0,
    ) -> _core.CheckedBlocks:
        """Bytes from byte `begin` of a file on, whose checksums begin with the `first`; that block
        has `inside` bytes before them, of the checksum `crc`."""
        last = first + block_count(inside + len(data), self.block_bytes)
        at, end, known = first * ENTRY_BYTES, last * ENTRY_BYTES, len(self._stored)
        if not len(data):
            at = end = 0
        rest = self._rest[max(at - known, 0) : end - known] if end > known else _NONE
        if (there := len(self._stored[at:end]) + len(rest)) != end - at:
            message = f"expected checksums of {last - first} blocks, got {there // ENTRY_BYTES}"
            raise FormatError(message, path=str(self._path))
        stored = self._stored[at:end]
        return _core.CheckedBlocks(
            data, self.block_bytes, stored, rest, path, begin, self._path, inside, crc
        )

    def entries(self, first: int, count: int) -> bytes:
        """The checksums of some blocks, as they are stored."""
        every = np.concatenate([self._stored, self._rest])
        return every[first * ENTRY_BYTES : (first + count) * ENTRY_BYTES].tobytes()

    def differing(self, first: int, found: bytes) -> NDArray[np.int64]:
        """Which checksums are not those that were found, from the `first` on."""
        every = np.concatenate([self._stored, self._rest])
        begin = first * ENTRY_BYTES
        wanted = every[begin : begin + len(found)].view("<u4")
        return np.flatnonzero(wanted != np.frombuffer(found, "<u4")[: len(wanted)]) + first


def cut_to(root: Path, name: str, stored: int) -> None:
    """Remove checksums behind the first `stored`, which belong to nothing."""
    file = open_inside(root, name, os.O_RDWR)
    try:
        if os.fstat(file).st_size > entry_place(stored):
            os.ftruncate(file, entry_place(stored))
    finally:
        os.close(file)


@dataclass
class Growing:
    """Checksums of rows as they are written; the last one is never stored, for it may grow."""

    block_bytes: int = BLOCK_BYTES
    stored: int = 0
    """Checksums that are in the file."""
    rest: bytearray = field(default_factory=bytearray)
    """Those behind."""

    def add(self, data: NDArray[np.uint8], at: int) -> None:
        """Continue with the bytes behind byte `at` of the rows of a file."""
        inside = at % self.block_bytes
        crc = int.from_bytes(self.rest[-ENTRY_BYTES:], "little") if inside else 0
        made = _core.stream_checksums(data, self.block_bytes, inside, crc)
        if inside and len(data):
            del self.rest[-ENTRY_BYTES:]
        self.rest += made.tobytes()

    def copy(self) -> "Growing":
        """The same as it is now, whatever is added."""
        return replace(self, rest=bytearray(self.rest))

    def store(self, root: Path, name: str, *, keep: int) -> None:
        """Put all but the last into the file, on the disk, when there are more than `keep`."""
        if len(self.rest) <= keep * ENTRY_BYTES:
            return
        last = self.rest[-ENTRY_BYTES:]
        del self.rest[-ENTRY_BYTES:]
        self.store_all(root, name, self.stored)
        self.stored += len(self.rest) // ENTRY_BYTES
        self.rest = last

    def store_all(self, root: Path, name: str, first: int) -> int:
        """Put all into the file, on the disk, as the last that it has; where they begin."""
        file = open_inside(root, name, os.O_RDWR)
        try:
            found = parse_header(os.pread(file, _HEADER.size, 0), str(root / name))
            if found != self.block_bytes or os.fstat(file).st_size < entry_place(first):
                message = f"expected {first} checksums of {self.block_bytes} bytes each, got others"
                raise FormatError(message, path=str(root / name))
            data = np.frombuffer(bytes(self.rest), np.uint8)
            write_all(file, data, entry_place(first), root / name)
            os.ftruncate(file, entry_place(first) + len(data))
            os.fsync(file)
        finally:
            os.close(file)
        return first

"""Where things are in a step dataset (docs/formats/steps.md), and its rows as arrays."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError
from stepwell.field import FieldLike, as_fields
from stepwell.files.memory import check_room
from stepwell.files.npy import NpyHeader, header_bytes, read_header
from stepwell.files.regular import open_inside
from stepwell.files.shared import shared_block

if TYPE_CHECKING:
    from stepwell.stores.steps.blocks import Checks

VERSION = 1
DATABASE = "metadata.db"
DATASET = "dataset.json"
MANIFEST = "manifest.json"
CHECKSUMS = "steps.crc"
LOCK = "writer.lock"
SHARDS = "shards"
FILLED = ("run_id", "step_index")
"""Fields that a writer fills in, where rows have them."""
_READ_BYTES = 1 << 28  # between two chances of a Ctrl-C
_NONE = np.empty(0, np.uint8)


def piece_name(number: int, shard_rows: int) -> str:
    """The file of a shard, or the only file of a dataset without shards."""
    return f"{SHARDS}/steps_{number:05}.npy" if shard_rows else "steps.npy"


class Segment(NamedTuple):
    """Rows in memory, and the checksums that they are compared with when they are first met."""

    rows: NDArray[Any]
    blocks: _core.CheckedBlocks | None = None
    path: Path | None = None
    """Of the file that they are mapped from."""
    begin: int = 0
    """In that file."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows that are in one file."""

    root: Path
    name: str
    inside: int
    """The first of the rows, counted in the file."""
    rows: int
    number: int = 0
    """Of the file."""

    @property
    def path(self) -> Path:
        return self.root / self.name

    def place(self, header: NpyHeader) -> int:
        """Where the rows begin in the file."""
        return header.data_offset + self.inside * header.dtype.itemsize

    @contextmanager
    def open(
        self, dtype: np.dtype[Any] | None, rows: int = 0, flags: int = os.O_RDONLY
    ) -> Iterator[tuple[BinaryIO, NpyHeader]]:
        """The file, for a block; it has this dtype and at least `rows` rows.

        The shape in the header is not used: a writer that was killed may have left it behind.
        Raises `FormatError` for a file that is something else or too short.
        """
        with os.fdopen(open_inside(self.root, self.name, flags), "rb") as file:
            yield file, _checked(file, self.path, dtype, rows)


def pieces(root: Path, rows: int, shard_rows: int, first: int = 0) -> list[Piece]:
    """The rows from `first` to `rows`, file by file; the first file is there even if empty."""
    if not shard_rows or not rows:
        return [Piece(root, piece_name(0, shard_rows), first, rows - first)]
    found = []
    while first < rows:
        number, inside = divmod(first, shard_rows)
        count = min(shard_rows - inside, rows - first)
        found.append(Piece(root, piece_name(number, shard_rows), inside, count, number))
        first += count
    return found


class Part(NamedTuple):
    """A shard of as many rows as it was given, in a dataset that was written in a bucket."""

    name: str
    rows: int
    bytes: int
    """Of the whole file."""

    @property
    def checksums(self) -> str:
        """The file of the checksums of its rows."""
        return self.name.removesuffix(".npy") + ".crc"


class Metadata(NamedTuple):
    """The database of a commit of such a dataset."""

    name: str
    bytes: int
    crc32c: int

    @classmethod
    def of(cls, name: str, file: BinaryIO) -> "Metadata":
        """That of a file."""
        size, crc = os.fstat(file.fileno()).st_size, 0
        for at in range(0, size, _READ_BYTES):
            data = os.pread(file.fileno(), _READ_BYTES, at)
            crc = _core.crc32c(np.frombuffer(data, np.uint8), crc)
        return cls(name, size, crc)

    def check(self, file: BinaryIO, where: str) -> None:
        """Raise `FormatError` when a file is shorter or longer, and `ChecksumError` when it is
        a different one."""
        found = self.of(self.name, file)
        if found.bytes != self.bytes:
            message = f"truncated: expected {self.bytes} bytes, got {found.bytes}"
            raise FormatError(message, path=where, offset=min(found.bytes, self.bytes))
        if found != self:
            message = f"expected CRC32C {self.crc32c:08x}, got {found.crc32c:08x}"
            raise ChecksumError(message, path=where)


def listed_pieces(root: Path, parts: Sequence[Part], first: int = 0, end: int = -1) -> list[Piece]:
    """The same of shards that have a list."""
    found, begin = [], 0
    for number, part in enumerate(parts):
        last = begin + part.rows if end < 0 else min(begin + part.rows, end)
        if last > max(first, begin):
            inside = max(first - begin, 0)
            found.append(Piece(root, part.name, inside, last - begin - inside, number))
        begin += part.rows
    return found


def _checked(file: BinaryIO, path: Path, dtype: np.dtype[Any] | None, rows: int) -> NpyHeader:
    header = read_header(file, path, whole=False)
    if len(header.shape) != 1:
        raise FormatError(f"expected one axis of rows, got {header.shape}", path=str(path))
    if not header.dtype.names or not header.dtype.itemsize:
        raise FormatError(
            f"expected rows with fields, got {header.dtype}", path=str(path), offset=10
        )
    if dtype is not None and header.dtype != dtype:
        raise FormatError(
            f"expected rows of {dtype}, got {header.dtype}", path=str(path), offset=10
        )
    there = (os.fstat(file.fileno()).st_size - header.data_offset) // header.dtype.itemsize
    if there < rows:
        raise FormatError(
            f"truncated: expected {rows} rows, as the database has, got {there}",
            path=str(path),
            offset=header.data_offset + there * header.dtype.itemsize,
        )
    return header


def row_dtype(given: DTypeLike | Mapping[str, FieldLike]) -> np.dtype[Any]:
    """The dtype of rows: packed fields of plain numbers, given as NumPy has them or as `Field`s.

    The fields that a writer fills in must be whole numbers. Raises `ValueError` for others.
    """
    wanted: Any = given
    if isinstance(wanted, Mapping) and not {"names", "formats"} <= set(wanted):
        wanted = [(name, *_plain(name, each)) for name, each in wanted.items()]
    dtype: np.dtype[Any] = np.dtype(wanted)
    if not dtype.names:
        raise ValueError(f"expected a dtype with fields, got {dtype}")
    if dtype.hasobject:
        raise ValueError(f"expected plain numbers, got {dtype}")
    packed = np.dtype([(name, dtype[name]) for name in dtype.names])
    if packed != dtype or dtype.itemsize == 0:
        raise ValueError(f"expected packed fields, {packed.itemsize} bytes a row, got {dtype}")
    for name in FILLED:
        if name in dtype.names and dtype[name].kind not in "iu":
            raise ValueError(f"{name} is filled in: expected a whole number, got {dtype[name]}")
    header_bytes(dtype, 0)  # which some names cannot be in
    return dtype


def _plain(name: str, given: FieldLike) -> tuple[np.dtype[Any], tuple[int, ...]]:
    if isinstance(given, tuple) and any(isinstance(part, int) for part in given):
        raise ValueError(f"field {name!r}: expected a dtype and a tuple as shape, got {given}")
    field = as_fields({name: given})[name]
    if field.ragged or field.compress or field.optional:
        raise ValueError(
            f"field {name!r}: expected rows of one size, kept as they are, got {field!r}"
        )
    return field.dtype, field.shape


def map_rows(
    pieces: list[Piece], dtype: np.dtype[Any] | None, checks: "Checks | None" = None
) -> list[Segment]:
    """An array over each file. The files must not shrink while the arrays are used."""
    segments = []
    for piece in pieces:
        with piece.open(dtype, piece.inside + piece.rows) as (file, header):
            if not piece.rows:
                segments.append(Segment(np.empty(0, header.dtype)))
                continue
            begin = piece.place(header)
            end = begin + piece.rows * header.dtype.itemsize
            # Not NumPy's, which keeps a descriptor for each of a thousand files.
            data = _core.map_file(file.fileno(), end, piece.path)[begin:]
            blocks = None if checks is None else checks.of(piece, file, header, data)
            segments.append(Segment(data.view(header.dtype), blocks, piece.path, begin))
    return segments


def load_rows(
    pieces: list[Piece],
    dtype: np.dtype[Any] | None,
    owner: str | None = None,
    checks: "Checks | None" = None,
) -> NDArray[Any]:
    """All rows in one array on huge pages; shared by all who name the same `owner`."""
    headers, about = [], []
    for piece in pieces:
        with piece.open(dtype, piece.inside + piece.rows) as (file, header):
            headers.append(header)
            dtype = header.dtype
            if owner is not None:
                s = os.fstat(file.fileno())
                now = s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns
                about.append((*now, _checksum(file, header, piece)))
    kind = headers[0].dtype

    def fill(block: NDArray[np.uint8]) -> None:
        at = 0
        for piece, header in zip(pieces, headers, strict=True):
            data = block[at : at + piece.rows * kind.itemsize]
            with os.fdopen(open_inside(piece.root, piece.name), "rb") as file:
                blocks = None if checks is None else checks.of(piece, file, header, data)
                _load(file, header, piece, data, blocks)
            at += len(data)
        if checks is not None:
            checks.check_loaded(block)

    size = sum(piece.rows for piece in pieces) * kind.itemsize
    if owner is None or not size:
        check_room(size, pieces[0].root)
        block = _core.allocate(size)
        fill(block)
    else:
        places = [(piece.inside, piece.rows) for piece in pieces]
        block = shared_block(owner, f"{kind} {places} {about} {checks is not None}", size, fill)
    return block.view(kind)


def _load(
    file: BinaryIO,
    header: NpyHeader,
    piece: Piece,
    data: NDArray[np.uint8],
    blocks: "_core.CheckedBlocks | None",
) -> None:
    """Parts of a file one after another, which end where blocks end."""
    begin = 0
    skew = piece.inside * header.dtype.itemsize % _READ_BYTES
    for end in [*range(_READ_BYTES - skew, len(data), _READ_BYTES), len(data)]:
        place = piece.place(header) + begin
        _core.load(file.fileno(), piece.path, place, data[begin:end], blocks, begin)
        begin = end


def _checksum(file: BinaryIO, header: NpyHeader, piece: Piece) -> int:
    """A checksum of some of the bytes: a new dataset may get the inode of the old one."""
    begin = piece.place(header)
    size = piece.rows * header.dtype.itemsize
    crc = 0
    for k in range(64):
        data = os.pread(file.fileno(), min(size, 4096), begin + max(size - 4096, 0) * k // 63)
        crc = _core.crc32c(np.frombuffer(data, np.uint8), crc)
    return crc

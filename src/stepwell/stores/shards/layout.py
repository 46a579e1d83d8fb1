"""The header of a shard, and the list beside the shards; docs/formats/shards.md has the bytes."""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import ChecksumError, FormatError, VersionError
from stepwell.files.document import Document, whole_number
from stepwell.files.regular import read_inside

MAGIC = b"GAMSAE01"
HEADER = struct.Struct("<8sQQII")
HEADER_BYTES = HEADER.size
SUFFIX = ".shard"
LIST = Document("shards.json", "stepwell-shards", 1)
BUCKET_LIST = Document(LIST.name, LIST.format, 2, older=(1,), checksummed=True)
"""One that was written in a bucket; those of before are read as well."""
CHECKSUMS = "shards.crc"

KINDS = ("float32", "float16", "bfloat16")
"""The dtypes of the tags 0, 1 and 2. NumPy has no bfloat16."""
_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
_MAX_BYTES = 1 << 62
_MAX_NAME = 255


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard: rows of `width` floats."""

    name: str
    rows: int
    width: int
    kind: str
    crc32c: int | None = None
    """Of the payload, where a manifest has it."""
    first_block: int | None = None
    """Where the checksums of its blocks begin in their file, where that has them."""
    checksums: str = CHECKSUMS
    """That file: `shards.crc`, or in a bucket one for each shard."""

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """None of bfloat16, which NumPy does not have."""
        return _DTYPES.get(self.kind)

    @property
    def row_bytes(self) -> int:
        return self.width * _SIZES[self.kind]

    @property
    def payload_bytes(self) -> int:
        return self.rows * self.row_bytes


def kind_of(dtype: Any) -> str:
    """The kind that keeps floats of a dtype, of NumPy's or torch's: float16 and bfloat16, and
    float32 for others."""
    given = str(dtype).removeprefix("torch.")
    if given in KINDS:
        return given
    made = np.dtype(given if str(dtype) != given else dtype)
    if made.name in KINDS:
        return made.name
    if made.kind != "f":
        raise TypeError(f"expected floats, got {made.name}")
    return "float32"


def header_bytes(rows: int, width: int, kind: str) -> bytes:
    return HEADER.pack(MAGIC, rows, width, KINDS.index(kind), 0)


def parse_header(data: bytes, name: str, path: str, size: int | None = None) -> Shard:
    """Raises `FormatError` for what is no header, or one of more than the file of `size` has."""

    def broken(message: str, offset: int) -> FormatError:
        return FormatError(message, path=path, offset=offset)

    if len(data) < HEADER_BYTES:
        message = f"truncated: expected a header of {HEADER_BYTES} bytes, got {len(data)}"
        raise broken(message, len(data))
    magic, rows, width, tag, reserved = HEADER.unpack(data[:HEADER_BYTES])
    if magic != MAGIC:
        raise broken(f"expected magic {MAGIC!r}, got {magic!r}", 0)
    if tag >= len(KINDS):
        raise VersionError(f"expected a dtype tag of 0 to 2, got {tag}", path=path, offset=24)
    if reserved:
        raise broken(f"expected zeros, got {reserved}", 28)
    if not width:
        raise broken("expected rows of at least one value, got 0", 16)
    shard = Shard(name, rows, width, KINDS[tag])
    if rows * shard.row_bytes > _MAX_BYTES:
        raise broken(f"expected a file of up to 2**62 bytes, got {rows} rows of {width} values", 8)
    if size is not None and HEADER_BYTES + shard.payload_bytes > size:
        expected = HEADER_BYTES + shard.payload_bytes
        raise broken(f"truncated: expected {expected} bytes, got {size}", size)
    return shard


def listing(shards: Sequence[Shard]) -> dict[str, Any]:
    """The content of a list of shards."""
    return {
        "shards": [
            {
                "name": shard.name,
                "rows": shard.rows,
                "width": shard.width,
                "dtype": shard.kind,
                "crc32c": None if shard.crc32c is None else f"{shard.crc32c:08x}",
                **({} if shard.first_block is None else {"first_block": shard.first_block}),
                **({} if shard.checksums == CHECKSUMS else {"checksums": shard.checksums}),
            }
            for shard in shards
        ],
    }


@dataclass(frozen=True)
class ShardList:
    """What a list has, of a corpus that is or was written in a bucket."""

    shards: tuple[Shard, ...]
    """In the order of their rows."""
    width: int
    kind: str
    change: int = 0
    """How many lists there were before this one."""
    by: str = ""
    """Who wrote it: no two writers write the same list."""
    is_ordered: bool = True
    """Whether the order is that of the list; else names are sorted."""

    def changed(self, by: str, shards: Sequence[Shard] = ()) -> "ShardList":
        """The next list, with further shards."""
        every = (*self.shards, *shards)
        return replace(self, shards=every, change=self.change + 1, by=by, is_ordered=True)

    @property
    def names(self) -> set[str]:
        """Every object that it names."""
        files = {name for shard in self.shards for name in (shard.name, shard.checksums)}
        return {LIST.name, CHECKSUMS} | files

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    def dump(self) -> bytes:
        """The list."""
        about = {"change": self.change, "by": self.by, "width": self.width, "dtype": self.kind}
        return BUCKET_LIST.dump({**about, **listing(self.shards)})

    @classmethod
    def parse(cls, data: bytes, path: str) -> "ShardList":
        """Raises `FormatError` for what is no list of shards."""
        with BUCKET_LIST.parsing_bytes(data, path) as text:
            shards = _from_list(text)
            if text["version"] == LIST.version:
                shards.sort(key=lambda shard: shard.name.encode())
                width, kind = (shards[0].width, shards[0].kind) if shards else (0, KINDS[0])
                return cls(tuple(shards), width, kind, is_ordered=False)
            width = whole_number(text["width"], _MAX_BYTES, min_=1)
            kind, change = text["dtype"], whole_number(text["change"], _MAX_BYTES)
            if kind not in KINDS or any((s.width, s.kind) != (width, kind) for s in shards):
                raise ValueError(f"expected shards of {width} x {kind}")
            return cls(tuple(shards), width, kind, change, str(text["by"]))


def list_in(folder: Path) -> ShardList | None:
    """The list in a folder; None where there is none.

    Raises `FormatError` for what is no list of shards.
    """
    try:
        data = read_inside(folder, LIST.name, LIST.max_bytes)
    except FileNotFoundError:
        return None
    return ShardList.parse(data, str(folder / LIST.name))


def listed_in(folder: Path) -> list[Shard]:
    """The shards of the list in a folder; none where there is no list."""
    found = list_in(folder)
    return [] if found is None else list(found.shards)


def _from_list(text: dict[str, Any]) -> list[Shard]:
    shards = [_from_json(each) for each in text["shards"]]
    if len({shard.name for shard in shards}) < len(shards):
        raise ValueError("a shard is named more than once")
    return shards


def check_crc(shard: Shard, crc: int, path: str) -> None:
    """Raise `ChecksumError` unless this is the checksum of the shard, where that is known."""
    if shard.crc32c is not None and crc != shard.crc32c:
        raise ChecksumError(f"expected CRC32C {shard.crc32c:08x}, got {crc:08x}", path=path)


def with_checksum(shard: Shard, listed: Shard | None, path: str) -> Shard:
    """A shard with the checksum that the list at `path` has of it.

    Raises `FormatError` when the list has another shard by that name.
    """
    if listed is None:
        return shard
    if (listed.rows, listed.width, listed.kind) != (shard.rows, shard.width, shard.kind):
        raise FormatError(
            f"expected {shard.name} with {shard.rows} rows of {shard.width} x {shard.kind}, "
            f"got {listed.rows} rows of {listed.width} x {listed.kind}",
            path=path,
        )
    return listed


def _from_json(text: Any) -> Shard:
    name, crc = text["name"], text.get("crc32c")
    if not isinstance(name, str) or {"/", "\0"} & set(name) or not name.endswith(SUFFIX):
        raise ValueError(f"expected the name of a shard, got {name!r}")
    if (size := len(os.fsencode(name))) > _MAX_NAME:
        raise ValueError(f"expected a name of at most {_MAX_NAME} bytes, got {size}")
    rows = whole_number(text["rows"], _MAX_BYTES)
    width = whole_number(text["width"], _MAX_BYTES, min_=1)
    if text["dtype"] not in KINDS or rows * width * 4 > _MAX_BYTES:
        raise ValueError(f"{name}: {rows!r} rows of {width!r} values of {text['dtype']!r}")
    if crc is not None and not 0 <= int(crc, 16) < 1 << 32:
        raise ValueError(f"{name}: expected a CRC32C of 32 bits, got {crc}")
    first = text.get("first_block")
    if first is not None:
        first = whole_number(first, _MAX_BYTES)
    checksums = text.get("checksums", CHECKSUMS)
    if checksums not in (CHECKSUMS, name.removesuffix(SUFFIX) + ".crc"):
        raise ValueError(f"{name}: expected the name of its checksums, got {checksums!r}")
    crc = None if crc is None else int(crc, 16)
    return Shard(name, rows, width, text["dtype"], crc, first, checksums)

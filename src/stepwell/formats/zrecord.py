"""Record stores as the plan of loaderx draws them, without frames and checksums: read, not written.

    meta.json      {"length": 2, "chunks": {"num": 1, ...},
                    "fields": [{"name": "A", "dtype": "f32", "compress": "flate"}]}
    A.offset       for each record chunk u32, offset u64 and length u32, 16 bytes
    chunk/0.zr     payloads: `raw`, or `flate`, which is raw deflate

Records of a field that all have the same size are arrays of one shape, others ragged. A length of 0
stands for a record that does not have the field: it has no items, so such a field is ragged.
"""

import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import FormatError
from stepwell.files.document import whole_number
from stepwell.files.extras import damage_in
from stepwell.files.regular import open_inside, read_inside
from stepwell.formats.streams import Stream, batches_of
from stepwell.source import Batch, Field

_META = "meta.json"
_MAX_META = 1 << 24
_ENTRY = np.dtype([("chunk", "<u4"), ("offset", "<u8"), ("length", "<u4")])
_ENTRIES_AT_ONCE = 1 << 16
_MAX_RECORD = 1 << 30
_MAX_OPEN = 64
_DTYPE = re.compile(r"([fiu])(8|16|32|64)")
_CODECS = ("raw", "flate")
_BROKEN = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)


@dataclass(frozen=True)
class _Stored:
    """A field as meta.json has it."""

    name: str
    field: Field
    flate: bool
    table: str


class ZrecordSource(Stream):
    """The records of such a store, in order."""

    kind = "zrecord"
    noun = "a record store as loaderx draws it"

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        self._root = Path(path).absolute()
        with damage_in(self._root / _META, *_BROKEN):
            meta = _parsed(read_inside(self._root, _META, _MAX_META))
            rows = whole_number(meta["length"], 1 << 58)
            self._chunks = whole_number(meta["chunks"]["num"], 1 << 32)
            found = [_stored(self._root, each) for each in meta["fields"]]
            if not found or len({each.name for each in found}) < len(found):
                raise ValueError(f"expected fields of different names, got {len(found)}")
        made = {each.name: each for each in found}
        self._stored = {name: made[name] for name in fields or () if name in made} or made
        self._length = rows
        for each in self._stored.values():
            self._check_table(each)
        shaped = {name: self._shaped(each) for name, each in self._stored.items()}
        super().__init__(str(self._root), shaped, rows)

    def _from(self, first: int, names: Sequence[str]) -> Iterator[Batch]:
        return batches_of(self._rows_from(first, names), names, self.schema)

    def _rows_from(self, first: int, names: Sequence[str]) -> Iterator[tuple[dict[str, Any], int]]:
        columns = [self._payloads(self._stored[name], first) for name in names]
        for payloads in zip(*columns, strict=True):
            found = zip(names, payloads, strict=True)
            values = {name: self._value(name, data) for name, data in found}
            yield values, sum(map(len, payloads))

    def _value(self, name: str, data: bytes) -> Any:
        field = self.schema[name]
        if field.kind != "array":
            return data.decode() if field.kind == "str" else data
        return np.frombuffer(data, field.dtype).reshape(-1 if field.ragged else field.shape)

    def _payloads(self, of: _Stored, first: int) -> Iterator[bytes]:
        """The records of a field from one on, unpacked."""
        with ExitStack() as opened:
            files: dict[int, int] = {}
            for begin, entries in self._entries(of, first):
                for row, (chunk, offset, length) in enumerate(entries.tolist(), begin):
                    if not length:
                        yield b""
                        continue
                    if chunk not in files and len(files) == _MAX_OPEN:
                        opened.close()
                        files.clear()
                    if chunk not in files:
                        files[chunk] = self._open_chunk(of, row, chunk, opened)
                    try:
                        data = _payload(of, files[chunk], offset, length)
                    except (ValueError, zlib.error) as error:
                        where = str(self._root / f"chunk/{chunk}.zr")
                        message = f"{of.name!r}, record {row}: {error}"
                        raise FormatError(message, path=where, offset=offset) from None
                    yield data

    def _open_chunk(self, of: _Stored, row: int, chunk: int, opened: ExitStack) -> int:
        try:
            if chunk >= self._chunks:
                raise FileNotFoundError
            file = open_inside(self._root, f"chunk/{chunk}.zr")
        except FileNotFoundError:
            raise FormatError(
                f"{of.name!r}, record {row}: expected one of {self._chunks} chunks, got {chunk}",
                path=str(self._root / of.table),
                offset=row * _ENTRY.itemsize,
            ) from None
        opened.callback(os.close, file)
        return file

    def _entries(self, of: _Stored, first: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Some entries of a table at a time, and the number of the first of them."""
        with os.fdopen(open_inside(self._root, of.table), "rb") as file:
            for begin in range(first, self._length, _ENTRIES_AT_ONCE):
                count = min(_ENTRIES_AT_ONCE, self._length - begin)
                size, at = count * _ENTRY.itemsize, begin * _ENTRY.itemsize
                data = os.pread(file.fileno(), size, at)
                if len(data) < size:
                    raise self._truncated(of, at + len(data))
                yield begin, np.frombuffer(data, _ENTRY)

    def _check_table(self, of: _Stored) -> None:
        """Raise `FormatError` for a table of fewer records than the store has, or none at all."""
        try:
            with os.fdopen(open_inside(self._root, of.table), "rb") as file:
                size = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            size = 0
        if size < self._length * _ENTRY.itemsize:
            raise self._truncated(of, size)

    def _truncated(self, of: _Stored, size: int) -> FormatError:
        needed = self._length * _ENTRY.itemsize
        where = str(self._root / of.table)
        return FormatError(f"truncated: expected {needed} bytes, got {size}", path=where)

    def _shaped(self, of: _Stored) -> Field:
        """A field with the shape that all of its records have, else ragged; those that are packed
        are unpacked for it, up to the first of a different size."""
        if of.field.kind != "array" or not self._length:
            return of.field
        if of.flate:
            sizes = (len(data) for data in self._payloads(of, 0))
        else:
            sizes = (size for _, entries in self._entries(of, 0) for size in _extremes(entries))
        size, item = next(sizes), of.field.row_bytes
        if not size or size % item or any(each != size for each in sizes):
            return of.field
        return Field(of.field.dtype, () if size == item else (size // item,))


def _extremes(entries: NDArray[Any]) -> tuple[int, int]:
    return int(entries["length"].min()), int(entries["length"].max())


def _parsed(data: bytes) -> Any:
    text = data.decode()
    # The plan draws "unfull" as a set, which JSON does not have.
    return json.loads(re.sub(r"\{(\s*\[[^{}]*\]\s*)\}", r"[\1]", text))


def _stored(root: Path, text: Any) -> _Stored:
    """Raises `ValueError`, `KeyError` or `TypeError` for what is no field."""
    name, dtype, codec = text["name"], text["dtype"], text["compress"]
    if not isinstance(name, str) or not name.isprintable() or re.search(r"/|^\.*$|.{200}", name):
        raise ValueError(f"expected the name of a field, got {name!r}")
    if codec not in _CODECS:
        raise ValueError(f"{name!r}: expected compress {' or '.join(_CODECS)}, got {codec!r}")
    number = _DTYPE.fullmatch(dtype)
    if number:  # 8 is bits here, bytes in NumPy
        field = Field(f"<{number[1]}{int(number[2]) // 8}", ragged=True)
    elif dtype in ("str", "bytes"):
        field = Field(dtype)
    else:
        raise ValueError(f"{name!r}: expected a dtype such as f32, i64 or bytes, got {dtype!r}")
    tables = (f"{name}.offset", f"{name}_offset.zr")  # the plan has both
    table = next((each for each in tables if os.path.lexists(root / each)), tables[0])
    return _Stored(name, field, codec == "flate", table)


def _payload(of: _Stored, file: int, offset: int, length: int) -> bytes:
    """Raises `ValueError` or `zlib.error` for what is none."""
    size = os.fstat(file).st_size
    if offset + length > size:
        raise ValueError(f"expected {offset + length} bytes, got {size}")
    data = os.pread(file, length, offset)
    if len(data) < length:
        raise ValueError(f"expected {length} bytes, got {len(data)}")
    if of.flate:
        unpacking = zlib.decompressobj(-zlib.MAX_WBITS)
        data = unpacking.decompress(data, _MAX_RECORD)
        if not unpacking.eof or unpacking.unused_data:
            raise ValueError(f"expected {length} bytes of raw deflate, of up to 1 GiB")
    if len(data) % of.field.row_bytes:
        raise ValueError(f"expected items of {of.field.row_bytes} bytes, got {len(data)} bytes")
    if of.field.kind == "str":
        data.decode()
    return data

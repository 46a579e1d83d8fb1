"""`.npz` files: an array for each field.

Ragged fields are two arrays: `tokens` has the items of all rows one after the other, and row i is
`tokens[offsets[i]:offsets[i + 1]]` with `offsets` from `tokens.offsets`. Text and bytes are such
arrays of uint8; the archive's comment names them, so that they come back as such.
"""

import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stepwell import batches
from stepwell.batches import in_order, rows_of
from stepwell.errors import SchemaError
from stepwell.files.atomic import new_file
from stepwell.files.extras import damage_in
from stepwell.files.npy import FORTRAN, NpyHeader, array_header, parse_header
from stepwell.formats.runs import equally_long
from stepwell.formats.streams import Progress, Stream, contiguous, part_of
from stepwell.source import Batch, Field, Ragged, Source

_DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError, OSError
)  # fmt: skip
_OFFSETS = ".offsets"
_INT64 = np.dtype(np.int64)


class NpzSource(Stream):
    """The arrays of an archive as fields, equally long; see `equally_long`.

    To begin in the middle of a compressed archive, everything before is unpacked.
    """

    kind = "npz"
    noun = "an npz file"

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        where = Path(path)
        with damage_in(where, *_DAMAGE), zipfile.ZipFile(where) as archive:
            names = [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
            looked = {name: _look(archive, where, name) for name in names}
            kinds = _kinds_of(archive.comment)
        self._members = {name: header for name, (header, _) in looked.items()}
        self._ragged = [name for name in names if _is_ragged(name, self._members, kinds)]
        apart = {name + _OFFSETS for name in self._ragged}
        lengths: dict[str, int | None] = {}
        for name, member in self._members.items():
            if name not in apart:
                counted = self._members[name + _OFFSETS] if name in self._ragged else member
                lengths[name] = counted.shape[0] - (name in self._ragged) if member.shape else None
        kept, rows = equally_long(where, lengths, fields)
        for name in kept:
            if looked[name][1]:
                raise SchemaError(
                    f"{where}: {name!r}: {FORTRAN}; np.ascontiguousarray makes them so"
                )
        made = {name: self._field(name, (kinds or {}).get(name)) for name in kept}
        super().__init__(str(where), made, rows)

    def _field(self, name: str, kind: str | None) -> Field:
        member = self._members[name]
        plain = member.dtype == np.uint8 and len(member.shape) == 1
        if name in self._ragged and kind in ("str", "bytes") and plain:
            return Field(str if kind == "str" else bytes)
        return Field(member.dtype, member.shape[1:], ragged=name in self._ragged)

    def _from(self, first: int, names: Sequence[str]) -> Iterator[Batch]:
        path = Path(str(self.path))
        ragged = [name for name in names if name in self._ragged]
        with damage_in(path, *_DAMAGE), ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(path))

            def opened(name: str, row: int) -> _Rows:
                file = stack.enter_context(archive.open(f"{name}.npy"))
                return _Rows(file, name, self._members[name], row)

            bounds = {name: opened(name + _OFFSETS, first) for name in ragged}
            # One bound more than there are rows.
            offsets = {name: self._bounds(name, first, bounds[name].take(1)) for name in ragged}
            items = {
                name: opened(name, int(offsets[name][0]) if name in bounds else first)
                for name in names
            }
            fixed = sum(self.schema[name].row_bytes for name in names if name not in bounds)
            max_rows = rows_of(fixed + 8 * len(ragged))
            for begin in range(first, len(self), max_rows):
                left = min(max_rows, len(self) - begin)
                for name in ragged:
                    known = np.concatenate([offsets[name][-1:], bounds[name].take(left)])
                    offsets[name] = self._bounds(name, begin, known)
                while left:
                    fits = min([left, *(self._fitting(name, offsets[name]) for name in ragged)])
                    batch: Batch = {}
                    for name in names:
                        if name not in bounds:
                            batch[name] = items[name].take(fits)
                            continue
                        within = offsets[name][: fits + 1] - offsets[name][0]
                        values = items[name].take(int(within[-1]))
                        batch[name] = Ragged(values, within, self.schema[name].kind)
                        offsets[name] = offsets[name][fits:]
                    yield batch
                    left -= fits

    def _bounds(self, name: str, row: int, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bounds of rows from `row` on. Raises `ValueError` for what cannot be bounds."""
        items = self._members[name].shape[0]
        if (np.diff(offsets) < 0).any():
            raise ValueError(f"{name}{_OFFSETS}: expected ascending offsets")
        low, high = offsets[0], offsets[-1]
        last = row + len(offsets) - 1 == len(self)
        if low < 0 or high > items or (row == 0 and low != 0) or (last and high != items):
            raise ValueError(f"{name}{_OFFSETS}: expected 0 to {items}, got {low} to {high}")
        return offsets

    def _fitting(self, name: str, offsets: NDArray[np.int64]) -> int:
        """How many of the next rows are read at once: at least one."""
        sizes = (offsets[1:] - offsets[0]) * self.schema[name].row_bytes
        return max(1, int(np.searchsorted(sizes, batches.BATCH_BYTES, side="right")))


class _Rows:
    """An array of an archive, read from one row to the next."""

    def __init__(self, file: Any, name: str, header: NpyHeader, first: int) -> None:
        self._file, self._name = file, name
        self._row = Field(header.dtype, header.shape[1:])
        file.seek(header.data_offset + first * self._row.row_bytes)

    def take(self, count: int) -> NDArray[Any]:
        size = count * self._row.row_bytes
        data: bytes = self._file.read(size)
        if len(data) != size:
            raise ValueError(f"{self._name}: truncated: expected {size} bytes, got {len(data)}")
        return np.frombuffer(data, self._row.dtype).reshape(count, *self._row.shape)


def _look(archive: zipfile.ZipFile, path: Path, name: str) -> tuple[NpyHeader, bool]:
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as file:
        header, fortran = parse_header(file, info.file_size, path / info.filename)
    size = header.data_bytes
    if not header.dtype.hasobject and header.data_offset + size != info.file_size:
        raise ValueError(f"{name}: expected {size} bytes of data, got a file of {info.file_size}")
    return header, fortran


def _is_ragged(name: str, members: Mapping[str, NpyHeader], kinds: dict[str, str] | None) -> bool:
    offsets = members.get(name + _OFFSETS)
    if offsets is None or offsets.dtype != _INT64 or len(offsets.shape) != 1:
        return False
    if not members[name].shape or not offsets.shape[0]:
        return False
    if kinds is not None:
        return name in kinds
    return members[name].shape[0] != offsets.shape[0]  # else they may well be two columns


def _kinds_of(comment: bytes) -> dict[str, str] | None:
    """The kinds of ragged fields, as `write` noted them; None for the files of others."""
    try:
        kinds = json.loads(comment)["stepwell"]
        return {str(name): str(kind) for name, kind in kinds.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def write(source: Source, path: Path, *, progress: Progress) -> None:
    """Write all fields, one after the other. A ragged field is read twice: offsets, then items."""
    ragged = {name: str(f.kind) for name, f in source.schema.items() if f.ragged}
    taken = {f"{name}{_OFFSETS}" for name in ragged} & set(source.schema)
    if taken:
        raise SchemaError(f"{taken.pop()!r} would be there twice; choose one field")
    total = len(source)
    passes = count()
    with (
        new_file(path, follow=True) as out,
        zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive,
    ):

        def batches(name: str) -> Iterator[Any]:
            share = part_of(progress, next(passes), len(source.schema) + len(ragged))
            return (batch[name] for batch in in_order(source.columns([name]), progress=share))

        for name, field in source.schema.items():
            rows = total
            if name in ragged:
                rows = 0
                with _member(archive, name + _OFFSETS, _INT64, (total + 1,)) as file:
                    file.write(bytes(8))
                    for values in batches(name):
                        file.write((values.offsets[1:] + rows).astype("<i8").tobytes())
                        rows += int(values.offsets[-1])
            with _member(archive, name, field.dtype, (rows, *field.shape)) as file:
                for values in batches(name):
                    file.write(contiguous(values.values if name in ragged else values))
        archive.comment = json.dumps({"stepwell": ragged}).encode()


def _member(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> BinaryIO:
    member: Any = archive.open(f"{name}.npy", "w", force_zip64=True)
    member.write(array_header(dtype, shape))
    return member  # type: ignore[no-any-return]

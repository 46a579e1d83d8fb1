"""`.npz` files: an array for each field.

Ragged fields are two arrays: `tokens` has the items of all rows one after the other, and row i is
`tokens[offsets[i]:offsets[i + 1]]` with `offsets` from `tokens.offsets`. Text and bytes are such
arrays of uint8; the archive's comment says which is what, so that they come back as such.
"""

import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import SchemaError
from stepwell.files.atomic import new_file
from stepwell.formats import streams
from stepwell.formats.npy import header_of
from stepwell.formats.runs import equally_long
from stepwell.formats.streams import (
    Progress,
    Stream,
    contiguous,
    damage_in,
    fixed_field,
    in_order,
    rows_of,
)
from stepwell.source import Batch, Field, Ragged, Source

__all__ = ["NpzSource", "write"]

_DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError, OSError
)  # fmt: skip
_OFFSETS = ".offsets"
_INT64 = np.dtype(np.int64)


class _Member(NamedTuple):
    """What the header of an array in an archive says."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape[1:])


class NpzSource(Stream):
    """The arrays of an archive as fields, equally long; see `equally_long`.

    An array in Fortran's order is read whole. To begin in the middle of a compressed archive,
    everything before is unpacked.
    """

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        where = Path(path)
        with damage_in(where, *_DAMAGE), zipfile.ZipFile(where) as archive:
            names = [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
            self._members = {name: _look(archive, name) for name in names}
            kinds = _kinds_of(archive.comment)
        self._ragged = [name for name in names if _is_ragged(name, self._members, kinds)]
        apart = {name + _OFFSETS for name in self._ragged}
        lengths: dict[str, int | None] = {}
        for name, member in self._members.items():
            if name not in apart:
                counted = self._members[name + _OFFSETS] if name in self._ragged else member
                lengths[name] = counted.shape[0] - (name in self._ragged) if member.shape else None
        kept, rows = equally_long(where, lengths, fields)
        try:
            made = {name: self._field(name, (kinds or {}).get(name)) for name in kept}
        except SchemaError as error:
            raise SchemaError(f"{where}: {error}") from None
        super().__init__(str(where), made, rows)

    def _field(self, name: str, kind: str | None) -> Field:
        member = self._members[name]
        field = fixed_field(name, member.dtype, member.shape[1:])
        if name not in self._ragged:
            return field
        if kind in ("str", "bytes") and field == Field(np.dtype(np.uint8)):
            return Field(str if kind == "str" else bytes)
        return Field(field.dtype, field.shape, ragged=True)

    def _from(self, first: int, names: Sequence[str]) -> Iterator[Batch]:
        path = Path(str(self.path))
        with damage_in(path, *_DAMAGE), ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(path))
            rows: dict[str, _Rows] = {}
            items: dict[str, _Items] = {}
            for name in names:
                if name in self._ragged:
                    kind = self.schema[name].kind
                    items[name] = _Items(stack, archive, name, self._members, first, kind)
                else:
                    rows[name] = _Rows(stack, archive, name, self._members[name], first)
            fixed = sum(self._members[name].row_bytes for name in rows)
            count = rows_of(fixed + 8 * len(items))
            for begin in range(first, len(self), count):
                left = min(count, len(self) - begin)
                for part in items.values():
                    part.prepare(left)
                while left:
                    fits = min([left, *(part.fits() for part in items.values())])
                    yield {n: (items.get(n) or rows[n]).take(fits) for n in names}
                    left -= fits


class _Rows:
    """An array of an archive, read from one row to the next."""

    def __init__(
        self, stack: ExitStack, archive: zipfile.ZipFile, name: str, member: _Member, first: int
    ) -> None:
        self._name, self._member, self._row = name, member, first
        self._file = stack.enter_context(archive.open(f"{name}.npy"))
        _read_header(self._file, name)
        self._whole: NDArray[Any] | None = None
        if member.fortran:
            data = self._read(member.shape[0])
            self._whole = np.frombuffer(data, member.dtype).reshape(member.shape, order="F")
        elif first:
            self._file.seek(first * member.row_bytes, os.SEEK_CUR)

    def take(self, count: int) -> NDArray[Any]:
        self._row += count
        if self._whole is not None:
            return np.ascontiguousarray(self._whole[self._row - count : self._row])
        data = self._read(count)
        return np.frombuffer(data, self._member.dtype).reshape(count, *self._member.shape[1:])

    def _read(self, count: int) -> bytes:
        size = count * self._member.row_bytes
        data = self._file.read(size)
        if len(data) != size:
            raise ValueError(f"{self._name} ends early")
        return data


class _Items:
    """The two arrays of a ragged field, read from one row to the next."""

    def __init__(
        self,
        stack: ExitStack,
        archive: zipfile.ZipFile,
        name: str,
        members: Mapping[str, _Member],
        first: int,
        kind: Any,
    ) -> None:
        self._name, self._kind, self._item_bytes = name, kind, members[name].row_bytes
        self._items = members[name].shape[0]
        bounds = members[name + _OFFSETS]
        self._rows = bounds.shape[0] - 1
        self._row = first
        self._bounds = _Rows(stack, archive, name + _OFFSETS, bounds, first)
        # One bound more than there are rows.
        self._ahead = self._checked(self._bounds.take(1), first)
        self._values = _Rows(stack, archive, name, members[name], int(self._ahead[0]))

    def _checked(self, bounds: NDArray[np.int64], row: int) -> NDArray[np.int64]:
        if (row == 0 and bounds[0] != 0) or bounds.min() < 0 or bounds.max() > self._items:
            raise ValueError(f"{self._name}{_OFFSETS} does not fit {self._name}")
        return bounds

    def prepare(self, count: int) -> None:
        """Read the bounds of the next `count` rows."""
        bounds = np.concatenate([self._ahead, self._bounds.take(count)])
        if (np.diff(bounds) < 0).any():
            raise ValueError(f"{self._name}{_OFFSETS} goes back")
        self._ahead = self._checked(bounds, self._row)
        if self._row + count == self._rows and bounds[-1] != self._items:
            raise ValueError(f"{self._name}{_OFFSETS} does not fit {self._name}")

    def fits(self) -> int:
        """How many of the next rows are read at once: at least one."""
        sizes = (self._ahead[1:] - self._ahead[0]) * self._item_bytes
        return max(1, int(np.searchsorted(sizes, streams.BATCH_BYTES, side="right")))

    def take(self, count: int) -> Ragged:
        offsets = self._ahead[: count + 1] - self._ahead[0]
        self._ahead = self._ahead[count:]
        self._row += count
        return Ragged(self._values.take(int(offsets[-1])), offsets, self._kind)


def _look(archive: zipfile.ZipFile, name: str) -> _Member:
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as file:
        shape, fortran, dtype = _read_header(file, name)
        member = _Member(dtype, shape, fortran and len(shape) > 1)
        size = member.row_bytes * (shape[0] if shape else 1)
        if not dtype.hasobject and file.tell() + size != info.file_size:
            raise ValueError(f"{name}: {size} bytes of data in a file of {info.file_size}")
    return member


def _read_header(file: Any, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"{name}: .npy version {version[0]}.{version[1]}")


def _is_ragged(name: str, members: Mapping[str, _Member], kinds: dict[str, str] | None) -> bool:
    offsets = members.get(name + _OFFSETS)
    if offsets is None or offsets.dtype != _INT64 or len(offsets.shape) != 1:
        return False
    if not members[name].shape or not offsets.shape[0] or members[name].fortran:
        return False
    if kinds is not None:
        return name in kinds
    return members[name].shape[0] != offsets.shape[0]  # else they may well be two columns


def _kinds_of(comment: bytes) -> dict[str, str] | None:
    """What `write` noted of its ragged fields; None for the files of others."""
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
    work = total * (len(source.schema) + len(ragged))
    done = 0
    with new_file(path) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress(done * total // work, total)

        for name, field in source.schema.items():
            one = source.columns([name])
            rows = total
            if name in ragged:
                rows = 0
                with _member(archive, name + _OFFSETS, _INT64, (total + 1,)) as file:
                    file.write(bytes(8))
                    for batch in in_order(one):
                        values = batch[name]
                        file.write((values.offsets[1:] + rows).astype("<i8").tobytes())
                        rows += int(values.offsets[-1])
                        advance(len(values))
            with _member(archive, name, field.dtype, (rows, *field.shape)) as file:
                for batch in in_order(one):
                    values = batch[name]
                    file.write(contiguous(values.values if name in ragged else values))
                    advance(len(values))
        archive.comment = json.dumps({"stepwell": ragged}).encode()
    progress(total, total)


def _member(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> BinaryIO:
    member: Any = archive.open(f"{name}.npy", "w", force_zip64=True)
    member.write(header_of(dtype, shape))
    return member  # type: ignore[no-any-return]

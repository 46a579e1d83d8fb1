"""`.npz` files: an array for each field.

Ragged fields are two arrays: `tokens` has the items of all records one after the other, and record
i is `tokens[offsets[i]:offsets[i + 1]]` with `offsets` from `tokens.offsets`. Texts and bytes are
such arrays of uint8; the archive's comment says which is what, so that they come back as such.
"""

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell.converters.incoming import (
    BATCH_BYTES,
    Column,
    Incoming,
    damage_in,
    files_sum,
    rows_of,
)
from stepwell.converters.npy import header_of
from stepwell.converters.outgoing import Records
from stepwell.errors import FormatError, SchemaError
from stepwell.files.atomic import new_file
from stepwell.source import Batch, Ragged

__all__ = ["open_npz", "write_npz"]

_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError)
_OFFSETS = ".offsets"
_INT64 = np.dtype(np.int64)
_BYTE = np.dtype(np.uint8)
_TYPES: dict[str, type[str] | type[bytes]] = {"str": str, "bytes": bytes}


class _Member(NamedTuple):
    """What the header of an array in an archive says."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))


def open_npz(path: Path) -> Incoming:
    """The arrays of an archive, equally long, as columns.

    Going on after a kill reads what is converted already once more, if it is compressed.
    """
    stat = path.stat()
    with damage_in(path, *_DAMAGE), zipfile.ZipFile(path) as archive:
        names = [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
        members = {name: _look(archive, name, path) for name in names}
        kinds = _kinds_of(archive.comment)
    if not members:
        raise FormatError("there are no arrays", path=str(path))
    ragged = [name for name in members if _is_ragged(name, members, kinds)]
    columns: dict[str, Column] = {}
    lengths: dict[str, int] = {}
    for name, member in members.items():
        if name.endswith(_OFFSETS) and name.removesuffix(_OFFSETS) in ragged:
            continue
        if not member.shape:
            raise SchemaError(f"{path}: {name!r} is a single value, expected a row for each record")
        if member.dtype.fields:
            raise SchemaError(
                f"{path}: {name!r} is structured ({member.dtype}); convert it as a .npy file"
            )
        column = Column.of(name, member.dtype, member.shape[1:])
        if name in ragged:
            kind = _TYPES.get((kinds or {}).get(name, ""))
            is_bytes = column == Column(_BYTE)
            columns[name] = Column(
                kind if kind and is_bytes else column.dtype, column.shape, ragged=True
            )
            lengths[name] = members[name + _OFFSETS].shape[0] - 1
        else:
            columns[name] = column
            lengths[name] = member.shape[0]
    if len(set(lengths.values())) != 1:
        told = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise SchemaError(f"{path}: expected arrays of equal length, got {told}")
    total = next(iter(lengths.values()))

    def batches(first: int) -> Iterator[Batch]:
        with damage_in(path, *_DAMAGE), ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(path))
            rows = {
                name: _Rows(stack, archive, name, members, first)
                for name in columns
                if name not in ragged
            }
            items = {name: _Items(stack, archive, name, members, first) for name in ragged}
            fixed = sum(members[name].row_bytes for name in rows)
            count = rows_of(fixed + 8 * len(items))
            for begin in range(first, total, count):
                left = min(count, total - begin)
                for part in items.values():
                    part.prepare(left)
                while left:
                    fits = min([left, *(part.fits() for part in items.values())])
                    yield {n: (items.get(n) or rows[n]).take(fits) for n in columns}
                    left -= fits

    return Incoming("npz", columns, total, files_sum([(path.name, stat)]), batches)


class _Rows:
    """An array of an archive, read from one row to the next."""

    def __init__(
        self,
        stack: ExitStack,
        archive: zipfile.ZipFile,
        name: str,
        members: dict[str, _Member],
        first: int,
    ) -> None:
        self._name, self._member = name, members[name]
        self._file = stack.enter_context(archive.open(f"{name}.npy"))
        _read_header(self._file, name)
        if first:
            self._file.seek(first * self._member.row_bytes, os.SEEK_CUR)

    def take(self, count: int) -> NDArray[Any]:
        size = count * self._member.row_bytes
        data = self._file.read(size)
        if len(data) != size:
            raise ValueError(f"{self._name} ends early")
        return np.frombuffer(data, self._member.dtype).reshape(count, *self._member.shape[1:])


class _Items:
    """The two arrays of a ragged field, read from one record to the next."""

    def __init__(
        self,
        stack: ExitStack,
        archive: zipfile.ZipFile,
        name: str,
        members: dict[str, _Member],
        first: int,
    ) -> None:
        self._name, self._item_bytes = name, members[name].row_bytes
        self._items = members[name].shape[0]
        self._records = members[name + _OFFSETS].shape[0] - 1
        self._record = first
        self._bounds = _Rows(stack, archive, name + _OFFSETS, members, first)
        # One bound more than there are records.
        self._ahead = self._checked(self._bounds.take(1), first)
        self._values = _Rows(stack, archive, name, members, int(self._ahead[0]))

    def _checked(self, bounds: NDArray[np.int64], record: int) -> NDArray[np.int64]:
        if (record == 0 and bounds[0] != 0) or bounds.min() < 0 or bounds.max() > self._items:
            raise ValueError(f"{self._name}{_OFFSETS} does not fit {self._name}")
        return bounds

    def prepare(self, count: int) -> None:
        """Read the bounds of the next `count` records."""
        bounds = np.concatenate([self._ahead, self._bounds.take(count)])
        if (np.diff(bounds) < 0).any():
            raise ValueError(f"{self._name}{_OFFSETS} goes back")
        self._ahead = self._checked(bounds, self._record)
        if self._record + count == self._records and bounds[-1] != self._items:
            raise ValueError(f"{self._name}{_OFFSETS} does not fit {self._name}")

    def fits(self) -> int:
        """How many of the next records are read at once: at least one."""
        sizes = (self._ahead[1:] - self._ahead[0]) * self._item_bytes
        return max(1, int(np.searchsorted(sizes, BATCH_BYTES, side="right")))

    def take(self, count: int) -> Ragged:
        offsets = self._ahead[: count + 1] - self._ahead[0]
        self._ahead = self._ahead[count:]
        self._record += count
        return Ragged(self._values.take(int(offsets[-1])), offsets)


def _look(archive: zipfile.ZipFile, name: str, path: Path) -> _Member:
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as file:
        shape, fortran, dtype = _read_header(file, name)
        member = _Member(dtype, shape)
        if dtype.hasobject:
            raise FormatError(
                f"{name}: expected plain numbers, got Python objects ({dtype})", path=str(path)
            )
        if fortran and len(shape) > 1:
            raise FormatError(
                f"{name}: rows of a Fortran-ordered array are not contiguous; "
                "save it with np.ascontiguousarray",
                path=str(path),
            )
        size = member.row_bytes * (shape[0] if shape else 1)
        if file.tell() + size != info.file_size:
            raise ValueError(f"{name}: {size} bytes of data in a file of {info.file_size}")
    return member


def _read_header(file: Any, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"{name}: .npy version {version[0]}.{version[1]}")


def _is_ragged(name: str, members: dict[str, _Member], kinds: dict[str, str] | None) -> bool:
    offsets = members.get(name + _OFFSETS)
    if offsets is None or offsets.dtype != _INT64 or len(offsets.shape) != 1:
        return False
    if not members[name].shape or not offsets.shape[0]:
        return False
    if kinds is not None:
        return name in kinds
    return members[name].shape[0] != offsets.shape[0]  # else they may well be two columns


def _kinds_of(comment: bytes) -> dict[str, str] | None:
    """What `write_npz` noted of its ragged fields; None for the files of others."""
    try:
        kinds = json.loads(comment)["stepwell"]
        return {str(name): str(kind) for name, kind in kinds.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def write_npz(source: Records, path: Path, on_progress: Callable[[int, int], None]) -> None:
    """Write all fields, one after the other. After a kill this begins anew.

    A ragged field is read twice, for its offsets and for its items.
    """
    ragged = [name for name, column in source.columns.items() if column.ragged]
    taken = {f"{name}{_OFFSETS}" for name in ragged} & set(source.columns)
    if taken:
        raise SchemaError(f"{taken.pop()!r} would be there twice; choose one field")
    kinds = {name: _kind(source.columns[name]) for name in ragged}
    work = source.total * (len(source.columns) + len(ragged))
    done = 0
    with new_file(path) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:

        def told(count: int) -> None:
            nonlocal done
            done += count
            on_progress(done * source.total // work, source.total)

        for name in source.columns:
            one = source.only(name)
            field = one.schema(name)
            items = 0
            if name in ragged:
                with _member(archive, name + _OFFSETS, _INT64, (source.total + 1,)) as file:
                    file.write(bytes(8))
                    for batch in one.batches(0):
                        values = batch[name]
                        file.write((values.offsets[1:] + items).astype("<i8").tobytes())
                        items += int(values.offsets[-1])
                        told(len(values))
            rows = items if name in ragged else source.total
            with _member(archive, name, field.dtype, (rows, *field.shape)) as file:
                for batch in one.batches(0):
                    values = batch[name]
                    flat = values.values if isinstance(values, Ragged) else values
                    file.write(np.ascontiguousarray(flat).tobytes())
                    told(len(values))
        archive.comment = json.dumps({"stepwell": kinds}).encode()


def _kind(column: Column) -> str:
    return column.dtype.__name__ if isinstance(column.dtype, type) else "ragged"


def _member(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> BinaryIO:
    member: Any = archive.open(f"{name}.npy", "w", force_zip64=True)
    member.write(header_of(dtype, shape))
    return member  # type: ignore[no-any-return]

"""Activation shards of an array in a file, and an array in a file of shards.

The array is in a `.npy` file, or in a `.npz` or `.safetensors` file with others: rows of floats,
two axes. float64 is rounded to float32, which is what a shard can hold; bfloat16 becomes float32
where NumPy has to read it.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.converters.formats import Array, Format
from stepwell.converters.incoming import Column, files_sum, rows_of
from stepwell.converters.npy import open_npy, write_npy
from stepwell.converters.npz import open_npz, write_npz
from stepwell.converters.parts import PartFolder
from stepwell.converters.safetensors import KINDS, header_of, read_tensors
from stepwell.errors import FormatError, SchemaError
from stepwell.files.regular import open_regular
from stepwell.source import Batch, Field
from stepwell.stores import ShardReader, ShardWriter
from stepwell.stores.shards.layout import Span

__all__ = ["fill_shards", "write_from_shards"]

Progress = Callable[[int, int], None]

_NAME = "data"
_WINDOW_BYTES = 8 << 20


@dataclass(frozen=True)
class _Rows:
    """An array that is to become shards."""

    kind: str
    width: int
    total: int
    files: str
    batches: Callable[[int], Iterator[NDArray[Any]]]


def fill_shards(
    source: Path,
    known: Format,
    target: Path,
    field: str | None,
    shard_bytes: int,
    *,
    overwrite: bool,
    on_progress: Progress,
) -> tuple[int, int]:
    """Write all rows; return how many there are, and how many an earlier attempt had written."""
    rows = _open_tensor(source, field) if known == "safetensors" else _open(source, known, field)
    about = {
        "source": os.path.realpath(source),
        "files": rows.files,
        "field": field,
        "to": "shards",
        "shard_bytes": shard_bytes,
    }
    folder = PartFolder(target, about, overwrite=overwrite)
    with folder:
        with ShardWriter(
            folder.path, rows.width, rows.kind, mode="a", shard_bytes=shard_bytes
        ) as writer:
            begin = done = writer.rows
            on_progress(done, rows.total)
            for batch in rows.batches(begin):
                writer.append(batch)
                done += len(batch)
                on_progress(done, rows.total)
        folder.finish_folder()
    return rows.total, begin


def _open(path: Path, known: Format, field: str | None) -> _Rows:
    """The rows of a `.npy` file, or of one array of a `.npz` file."""
    incoming = open_npy(path) if known == "npy" else open_npz(path)
    name = _chosen(path, list(incoming.columns), field)
    dtype, shape, ragged = incoming.columns[name]
    if isinstance(dtype, type) or ragged or dtype.kind != "f" or len(shape) != 1:
        raise SchemaError(f"{path}: {name!r} is no array of floats with two axes")
    if not incoming.total:
        raise SchemaError(f"{path}: {name!r} has no rows, a corpus has some")

    def batches(first: int) -> Iterator[NDArray[Any]]:
        return (batch[name] for batch in incoming.batches(first))

    kind = "float16" if dtype.itemsize == 2 else "float32"
    return _Rows(kind, shape[0], incoming.total, incoming.files, batches)


def _open_tensor(path: Path, field: str | None) -> _Rows:
    """The rows of one tensor of a `.safetensors` file."""
    tensors = read_tensors(path)
    name = _chosen(path, list(tensors), field)
    tag, shape, offset = tensors[name]
    if tag not in KINDS or len(shape) != 2 or 0 in shape:
        raise SchemaError(
            f"{path}: {name!r} is {tag} {list(shape)}; expected rows of {', '.join(KINDS)}"
        )
    total, width = shape
    dtype = np.dtype("<f4" if tag == "F32" else "<f2" if tag == "F16" else "<u2")

    def batches(first: int) -> Iterator[NDArray[Any]]:
        count = rows_of(width * dtype.itemsize)
        with open_regular(path) as file:
            file.seek(offset + first * width * dtype.itemsize)
            for begin in range(first, total, count):
                values = np.fromfile(file, dtype, min(count, total - begin) * width)
                if len(values) != min(count, total - begin) * width:
                    raise FormatError("became shorter while it was read", path=str(path))
                yield (_floats(values) if tag == "BF16" else values).reshape(-1, width)

    return _Rows(KINDS[tag], width, total, files_sum([(path.name, path.stat())]), batches)


def _chosen(path: Path, names: list[str], field: str | None) -> str:
    if field is None and len(names) == 1:
        return names[0]
    if field is None or field not in names:
        raise SchemaError(f"{path}: expected to choose one of {', '.join(names)}, got {field!r}")
    return field


def _floats(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 as float32, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


# Out.


def write_from_shards(
    path: Path, target: Path, to: Array, *, overwrite: bool, on_progress: Progress
) -> tuple[int, int]:
    """Write all rows; return how many there are, and how many were written before."""
    source = _Shards(ShardReader.open(path))
    if to == "npz":
        if target.is_dir() or (target.exists() and not overwrite):
            raise FileExistsError(f"{target} exists; overwrite replaces it")
        target.parent.mkdir(parents=True, exist_ok=True)
        write_npz(source, target, on_progress)
        return source.total, 0
    resumed: list[int] = []

    def told(done: int, total: int) -> None:
        resumed.append(done)
        del resumed[1:]  # the first call says where it begins
        on_progress(done, total)

    files = [path / shard.name if path.is_dir() else path for shard in source.reader.shards]
    about = {
        "source": os.path.realpath(path),
        "files": files_sum((file.name, file.stat()) for file in files),
        "to": to,
    }
    folder = PartFolder(target, about, overwrite=overwrite)
    with folder:
        write = write_npy if to == "npy" else _write_tensor
        folder.finish_file(write(source, folder, told))
    return source.total, resumed[0]


@dataclass(frozen=True)
class _Shards:
    """A corpus as what writes arrays wants it: one field."""

    reader: ShardReader

    @property
    def total(self) -> int:
        return len(self.reader)

    @property
    def columns(self) -> dict[str, Column]:
        return {_NAME: Column(self.reader.dtype, (self.reader.width,))}

    def only(self, name: str) -> "_Shards":
        return self

    def schema(self, name: str) -> Field:
        return self.reader.schema[name]

    def describe(self, name: str) -> str:
        return str(self.schema(name))

    def batches(self, first: int) -> Iterator[Batch]:
        for data in self.stored(first):
            rows: NDArray[Any] = (
                _floats(data.view("<u2"))
                if self.reader.stored_dtype == "bfloat16"
                else data.view(self.reader.dtype)
            )
            yield {_NAME: rows.reshape(-1, self.reader.width)}

    def stored(self, first: int) -> Iterator[NDArray[np.uint8]]:
        """The bytes of the rows from `first` on, as they are in the files."""
        spans, start = [], 0
        for number, shard in enumerate(self.reader.shards):
            begin = min(max(first - start, 0), shard.rows)
            spans.append(Span(number, begin, shard.rows, rows_of(shard.row_bytes)))
            start += shard.rows
        return self.reader._shards.parts(spans, _WINDOW_BYTES)


def _write_tensor(source: _Shards, folder: PartFolder, on_progress: Progress) -> Path:
    """Write the tensor `data` to a file in `folder`, whose size says where to go on."""
    path = folder.path / "data.safetensors"
    shape = (source.total, source.reader.width)
    header = header_of(_NAME, source.reader.stored_dtype, shape)
    row_bytes = source.reader.shards[0].row_bytes
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with open(file, "r+b") as out:
        size = os.fstat(file).st_size
        done = max(0, size - len(header)) // row_bytes
        if size < len(header):
            out.write(header)
        end = len(header) + done * row_bytes
        out.truncate(end)
        out.seek(end)
        on_progress(done, source.total)
        for data in source.stored(done):
            out.write(data.data)
            done += len(data) // row_bytes
            on_progress(done, source.total)
        out.flush()
        os.fsync(file)
    return path

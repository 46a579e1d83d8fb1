"""`.npy` files.

In: a plain array becomes the field `data`, a structured array one field for each of its own.
Out: one field becomes a plain array, several become a structured array without padding.
"""

import os
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.converters.incoming import Column, Incoming, files_sum, rows_of
from stepwell.converters.outgoing import Records
from stepwell.errors import SchemaError
from stepwell.files.npy import read_header
from stepwell.files.regular import open_regular
from stepwell.source import Batch

if TYPE_CHECKING:
    from stepwell.converters.parts import PartFolder

__all__ = ["header_of", "open_npy", "table_columns", "write_npy"]


def open_npy(path: Path) -> Incoming:
    """The rows of an array. Raises `FormatError` when the file is none, or in Fortran order."""
    with open_regular(path) as file:
        header = read_header(file, path)
        stat = os.fstat(file.fileno())
    shape = header.shape[1:]
    columns = table_columns(header.dtype, shape)
    row_dtype = np.dtype((header.dtype, shape))

    def batches(first: int) -> Iterator[Batch]:
        count = rows_of(row_dtype.itemsize)
        with open_regular(path) as file:
            file.seek(header.data_offset + first * row_dtype.itemsize)
            for begin in range(first, header.shape[0], count):
                # Read, not mapped: pages of a map would count as this process's memory.
                rows = np.fromfile(file, row_dtype, min(count, header.shape[0] - begin))
                yield {n: rows[n] for n in columns} if header.dtype.names else {"data": rows}

    return Incoming("npy", columns, header.shape[0], files_sum([(path.name, stat)]), batches)


def table_columns(dtype: np.dtype[Any], shape: tuple[int, ...]) -> dict[str, Column]:
    """The columns of rows: `data`, or those of a structured dtype."""
    if dtype.fields is None:
        return {"data": Column.of("data", dtype, shape)}
    if shape:
        raise SchemaError(f"expected one axis of structured rows, got {len(shape) + 1}")
    return {name: Column.of(name, dtype.fields[name][0], ()) for name in dtype.names or ()}


def write_npy(
    source: Records, folder: "PartFolder", on_progress: Callable[[int, int], None]
) -> Path:
    """Write all rows to a file in `folder`, whose size says where to go on; return its path."""
    for name, column in source.columns.items():
        if column.ragged:
            raise SchemaError(
                f"{name!r} is {source.describe(name)}: a .npy file has rows of one size; "
                "choose another field, or write a .npz file"
            )
    dtype = _row_dtype(source)
    path = folder.path / "data.npy"
    # A plain array's rows have their shape in the header, a structured one's in the dtype.
    plain = dtype.fields is None
    header = header_of(dtype.base if plain else dtype, (source.total, *dtype.shape))
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    with open(file, "r+b") as out:
        size = os.fstat(file).st_size
        done = max(0, size - len(header)) // dtype.itemsize
        if size < len(header):
            out.write(header)
        end = len(header) + done * dtype.itemsize
        out.truncate(end)
        out.seek(end)
        on_progress(done, source.total)
        for batch in source.batches(done):
            count = len(next(iter(batch.values())))
            if plain:
                (rows,) = batch.values()
            else:
                rows = np.empty(count, dtype)
                for name, values in batch.items():
                    rows[name] = values
            out.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
            done += count
            on_progress(done, source.total)
        out.flush()
        os.fsync(file)
    return path


def header_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header that NumPy writes, for names of fields in any script too."""
    out = BytesIO()
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    try:
        np.lib.format.write_array_header_1_0(out, about)
    except (UnicodeError, ValueError):  # names beyond Latin-1, or more than 64 KiB of them
        text = repr(about).encode()
        text += b" " * (-(len(text) + 13) % 64) + b"\n"
        return b"\x93NUMPY\x03\x00" + len(text).to_bytes(4, "little") + text
    return out.getvalue()


def _row_dtype(source: Records) -> np.dtype[Any]:
    fields = [(name, column.dtype, column.shape) for name, column in source.columns.items()]
    if len(fields) == 1:
        _, dtype, shape = fields[0]
        return np.dtype((dtype, shape))
    return np.dtype(fields)

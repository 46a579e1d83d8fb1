"""ArrayRecord files as a source, and arrays as ArrayRecord files.

A directory holds `*.array_record` files, read in the order of their names. Files written
by `convert_to_arrayrecord` have `stepwell.json` beside them, which says what a record is;
records of other files are bytes of any length unless `dtype` and `shape` are given.
"""

import json
import os
import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from stepwell.errors import FormatError, SchemaError
from stepwell.source import Batch, Field, Ragged, Rows, Schema, Source

__all__ = ["ArrayRecordSource", "convert_to_arrayrecord"]

SUFFIX = ".array_record"
ABOUT = "stepwell.json"


class ArrayRecordSource(Source):
    """Records of a directory of ArrayRecord files, as the field `data`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: DTypeLike | None = None,
        shape: Sequence[int] | None = None,
    ) -> None:
        _library()
        self._path = Path(path)
        self._options = {"dtype": dtype, "shape": shape}
        self._files = sorted(self._path.glob(f"*{SUFFIX}"), key=lambda file: os.fsencode(file.name))
        if not self._files:
            self._path.stat()  # a missing directory is named as such
            raise FileNotFoundError(f"no *{SUFFIX} file in {self._path}")
        if dtype is None and shape is None and (self._path / ABOUT).exists():
            dtype, shape = _read_about(self._path / ABOUT)
        if dtype is None:
            self._field = Field(np.dtype(np.uint8), ragged=True)
        else:
            self._field = Field(np.dtype(dtype), tuple(shape or ()))
        if self._field.dtype.hasobject:
            raise SchemaError(f"records hold plain numbers, not {self._field.dtype}")
        counts = [reader.num_records() for reader in self._readers]
        self._starts = np.cumsum([0, *counts], dtype=np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._path, self._options)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def schema(self) -> Schema:
        return {"data": self._field}

    @property
    def path(self) -> Path:
        return self._path

    @cached_property
    def _open(self) -> dict[int, list[Any]]:
        return {}

    @property
    def _readers(self) -> list[Any]:
        # One set for each process: a reader's file position must not be shared across fork.
        process = os.getpid()
        if process not in self._open:
            # Without read-ahead: random records are the point.
            options = "readahead_buffer_size:0,max_parallelism:0"
            reader = _library().ArrayRecordReader
            self._open[process] = [_guard(file, reader, str(file), options) for file in self._files]
        return self._open[process]

    def _fill(self, rows: Rows, out: Batch) -> None:
        file_of = np.searchsorted(self._starts, rows, side="right") - 1
        records: list[bytes] = [b""] * len(rows)
        for k in np.unique(file_of):
            places = np.flatnonzero(file_of == k)
            wanted = (rows[places] - self._starts[k]).tolist()
            for place, record in zip(
                places, _guard(self._files[k], self._readers[k].read, wanted), strict=True
            ):
                records[place] = record
        if self._field.ragged:
            arrays = [np.frombuffer(record, np.uint8) for record in records]
            out["data"] = Ragged.from_list(arrays, self._field)
            return
        size = self._field.row_bytes
        for row, record in zip(rows, records, strict=True):
            if len(record) != size:
                raise FormatError(
                    f"expected {size} bytes for {self._field}, record {row} has {len(record)}",
                    path=str(self._path),
                )
        joined = np.frombuffer(b"".join(records), self._field.dtype)
        out["data"][...] = joined.reshape(out["data"].shape)

    def close(self) -> None:
        for reader in self._open.pop(os.getpid(), []):
            reader.close()


def _rebuild(path: Path, options: dict[str, Any]) -> ArrayRecordSource:
    return ArrayRecordSource(path, **options)


def convert_to_arrayrecord(
    array: ArrayLike, out: str | os.PathLike[str], *, file_rows: int = 65536
) -> ArrayRecordSource:
    """Write each row of an array as a record, `file_rows` to a file, and open the result.

    The directory `out` appears when it is whole, under a temporary name until then.
    Raises `FileExistsError` when it is there already.
    """
    module = _library()
    rows = np.asarray(array) if not isinstance(array, np.memmap) else array
    if rows.ndim == 0 or rows.dtype.hasobject or file_rows < 1:
        raise SchemaError(f"expected rows of plain numbers, got {rows.dtype} {rows.shape}")
    target = Path(out)
    if target.exists():
        raise FileExistsError(f"{target} exists")
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    beside.mkdir(parents=True)
    try:
        files = max(1, -(-len(rows) // file_rows))
        for k in range(files):
            path = beside / f"data-{k:05d}-of-{files:05d}{SUFFIX}"
            writer = module.ArrayRecordWriter(str(path), "group_size:1")
            for row in rows[k * file_rows : (k + 1) * file_rows]:
                writer.write(np.ascontiguousarray(row).tobytes())
            writer.close()
        descr = np.lib.format.dtype_to_descr(rows.dtype)
        about = {"format": "arrayrecord", "version": 1, "dtype": descr, "shape": rows.shape[1:]}
        (beside / ABOUT).write_text(json.dumps(about) + "\n")
        beside.rename(target)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return ArrayRecordSource(target)


def _read_about(path: Path) -> tuple[np.dtype[Any], tuple[int, ...]]:
    try:
        about = json.loads(path.read_text())
        descr, shape = about["dtype"], about["shape"]
        if isinstance(descr, list):  # JSON has no tuples, NumPy's descriptions need them
            descr = [(f[0], f[1], *(tuple(n) for n in f[2:])) for f in descr]
        dtype = np.lib.format.descr_to_dtype(descr)
        if not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"shape {shape}")
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise FormatError(f"does not describe records: {error}", path=str(path)) from None
    return dtype, tuple(shape)


def _guard(file: Path, call: Any, *args: Any) -> Any:
    """Call the library; what it finds wrong with the file becomes a `FormatError`."""
    try:
        return call(*args)
    except (ValueError, RuntimeError, IndexError) as error:
        raise FormatError(f"ArrayRecord: {error}", path=str(file)) from error


def _library() -> Any:
    try:
        from array_record.python import array_record_module
    except ImportError as error:
        raise ImportError(
            "ArrayRecord files need an extra: pip install 'stepwell[arrayrecord]'"
        ) from error
    return array_record_module

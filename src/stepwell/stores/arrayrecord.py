"""ArrayRecord files as a source.

A directory holds `*.array_record` files, read in the order of their names. Files written
by `stepwell.convert` have `stepwell.json` beside them, with the dtype of a record;
records of other files are bytes of any length unless `dtype` and `shape` are given.
"""

import math
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from stepwell.errors import FormatError, SchemaError
from stepwell.files import extras
from stepwell.files.document import Document
from stepwell.files.extras import damage_in
from stepwell.files.npy import dtype_from_json
from stepwell.files.regular import check_inside
from stepwell.lazy import lazy
from stepwell.source import Batch, Field, Ragged, Rows, Schema
from stepwell.store import Progress, Report, Store

SUFFIX = ".array_record"
ABOUT = Document("stepwell.json", "arrayrecord", 1, indent=None)
_PIECE_ROWS = 1024
_DAMAGE = (ValueError, RuntimeError, IndexError)

library = partial(extras.library, "array_record.python.array_record_module", "arrayrecord")


class ArrayRecordSource(Store):
    """Records of a directory of ArrayRecord files, as the field `data`."""

    kind = "arrayrecord"
    noun = "a folder of array records"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: DTypeLike | None = None,
        shape: Sequence[int] | None = None,
    ) -> None:
        library()
        self._path = Path(path)
        self._options: dict[str, Any] = {"dtype": dtype, "shape": shape}
        self._files = sorted(self._path.glob(f"*{SUFFIX}"), key=lambda file: os.fsencode(file.name))
        if not self._files:
            self._path.stat()  # a missing directory is named as such
            raise FileNotFoundError(f"no *{SUFFIX} file in {self._path}")
        check_inside(self._path, *(file.name for file in self._files))
        rows: int | None = None
        if dtype is not None:
            self._field = _field_of(np.dtype(dtype), tuple(shape or ()))
        elif shape is not None:
            raise ValueError("a shape needs a dtype")
        elif os.path.lexists(self._path / ABOUT.name):
            self._field, rows = _read_about(self._path)
        else:
            self._field = Field(np.dtype(np.uint8), ragged=True)
        counts = [reader.num_records() for reader in self._readers]
        self._starts = np.cumsum([0, *counts], dtype=np.int64)
        if rows not in (None, len(self)):
            raise FormatError(
                f"expected {rows} records, got {len(self)}",
                path=str(self._path / ABOUT.name),
            )
        if len(self) and not self._field.ragged:
            self._read(np.zeros(1, np.int64))  # a wrong dtype or shape is found now

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(ArrayRecordSource, **self._options), (self._path,)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def schema(self) -> Schema:
        return {"data": self._field}

    @classmethod
    def recognizes(cls, path: Path) -> bool:
        return path.is_dir() and any(path.glob(f"*{SUFFIX}"))

    @property
    def path(self) -> str:
        return str(self._path)

    @lazy
    def _open(self) -> dict[int, list[Any]]:
        return {}

    @property
    def _readers(self) -> list[Any]:
        self._check_open()
        # One set for each process: a reader's file position must not be shared across fork.
        process = os.getpid()
        if process not in self._open:
            self._open[process] = [_open_file(file) for file in self._files]
        return self._open[process]

    def _fill(self, rows: Rows, out: Batch) -> None:
        records = self._read(rows)
        if self._field.ragged:
            arrays = [np.frombuffer(record, np.uint8) for record in records]
            out["data"] = Ragged.from_list(arrays, self._field)
        else:
            shape = out["data"].shape
            out["data"][...] = np.ndarray(shape, self._field.dtype, b"".join(records))

    def _read(self, rows: Rows) -> list[bytes]:
        file_of = np.searchsorted(self._starts, rows, side="right") - 1
        records: list[bytes] = [b""] * len(rows)
        for k in np.unique(file_of):
            places = np.flatnonzero(file_of == k)
            wanted = (rows[places] - self._starts[k]).tolist()
            reader = self._readers[k]
            with damage_in(self._files[k], *_DAMAGE):
                found = reader.read(wanted)
            for place, record in zip(places, found, strict=True):
                records[place] = record
        size = self._field.row_bytes
        for row, record in zip(rows, records, strict=True):
            if len(record) != size and not self._field.ragged:
                raise FormatError(
                    f"record {row}: expected {size} bytes for {self._field}, got {len(record)}",
                    path=str(self._path),
                )
        return records

    def _verified(self, quick: bool, progress: Progress) -> Report:
        problems: list[FormatError] = []
        progress(0, len(self))
        for begin in range(0, 0 if quick else len(self), _PIECE_ROWS):
            rows = np.arange(begin, min(begin + _PIECE_ROWS, len(self)))
            try:
                self._read(rows)
            except FormatError:
                problems += filter(None, map(self._problem, rows.tolist()))
            progress(begin + len(rows), len(self))
        if quick:
            progress(len(self), len(self))
        checked = f"{len(self._files)} files open and have {len(self):,} records"
        read = "every record was read, and its checksum compared by the library that reads it"
        unchecked = ("the records: a quick check does not read them",) if quick else ()
        done = (checked,) if quick else (checked, read)
        return Report(self.kind, self.path, tuple(problems), done, unchecked)

    def _problem(self, row: int) -> FormatError | None:
        try:
            self._read(np.array([row], np.int64))
        except FormatError as error:
            return error
        return None

    def close(self) -> None:
        super().close()
        for reader in self._open.pop(os.getpid(), []):
            reader.close()


def _read_about(folder: Path) -> tuple[Field, int]:
    """The field of a record and the number of records, from `stepwell.json`."""
    with ABOUT.parsing(folder) as about:
        shape, rows = about["shape"], about["rows"]
        if type(shape) is not list or not all(type(n) is int and n >= 0 for n in (rows, *shape)):
            raise ValueError(f"expected rows and a shape, got {rows!r} and {shape!r}")
        return _field_of(dtype_from_json(about["dtype"]), tuple(shape)), rows


def _field_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Field:
    """Records of this kind as a field."""
    if dtype.hasobject:
        raise SchemaError(f"expected records of plain numbers, got {dtype}")
    field = Field(dtype.base, (*shape, *dtype.shape))
    extents = [field.dtype.itemsize, *field.shape]
    if len(extents) > 60 or math.prod(max(n, 1) for n in extents) >= 2**63:
        raise SchemaError(f"expected records below 2**63 bytes, got {field}")
    return field


def _open_file(file: Path) -> Any:
    # Without read-ahead: random records are the point.
    options = "readahead_buffer_size:0,max_parallelism:0"
    with damage_in(file, *_DAMAGE):
        reader = library().ArrayRecordReader(str(file), options)
        if not reader.ok():
            reader.close()  # raises what is wrong
        return reader

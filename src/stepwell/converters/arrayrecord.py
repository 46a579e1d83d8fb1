"""Directories of ArrayRecord files.

In: each record becomes the field `data`, of bytes, unless the files are of
`convert_to_arrayrecord`, which says what a record is. Out: one field; records of fixed shape are
written so that `ArrayRecordSource` knows what they are.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.converters.incoming import (
    BATCH_BYTES,
    Column,
    Incoming,
    damage_in,
    files_sum,
)
from stepwell.converters.npy import table_columns
from stepwell.converters.outgoing import Outgoing
from stepwell.converters.parts import PartFolder
from stepwell.converters.series import write_series
from stepwell.errors import FormatError, SchemaError
from stepwell.files.atomic import write_file
from stepwell.source import Batch, Ragged
from stepwell.stores.arrayrecord import ABOUT, SUFFIX, VERSION, ArrayRecordSource

__all__ = ["open_arrayrecord", "write_arrayrecord"]

_DAMAGE = (ValueError, RuntimeError, IndexError)


def open_arrayrecord(path: Path) -> Incoming:
    """All records of all files, in the order of the files' names."""
    with ArrayRecordSource(path) as source:
        field, total = source.schema["data"], len(source)
    files = sorted(path.glob(f"*{SUFFIX}"), key=lambda file: os.fsencode(file.name))
    columns = (
        {"data": Column(bytes, ragged=True)}
        if field.ragged
        else table_columns(field.dtype, field.shape)
    )

    def batches(first: int) -> Iterator[Batch]:
        for records in _batches(files, first):
            if field.ragged:
                offsets = np.zeros(len(records) + 1, np.int64)
                np.cumsum([len(record) for record in records], out=offsets[1:])
                yield {"data": Ragged(np.frombuffer(b"".join(records), np.uint8), offsets)}
                continue
            wrong = next((r for r in records if len(r) != field.row_bytes), None)
            if wrong is not None:
                raise FormatError(
                    f"expected {field.row_bytes} bytes for {field}, a record has {len(wrong)}",
                    path=str(path),
                )
            shape = (len(records), *field.shape)
            rows: Any = np.ndarray(shape, field.dtype, b"".join(records))
            yield {name: rows[name] for name in columns} if field.dtype.names else {"data": rows}

    listed = [(file.name, file.stat()) for file in files]
    return Incoming("arrayrecord", columns, total, files_sum(listed), batches)


def _batches(files: list[Path], first: int) -> Iterator[list[bytes]]:
    records: list[bytes] = []
    size = 0
    for file in files:
        with damage_in(file, *_DAMAGE):
            # One read-ahead of 1 MiB; without the options each reader has one per core.
            reader = _library().ArrayRecordReader(
                str(file), "readahead_buffer_size:1M,max_parallelism:1"
            )
            count = reader.num_records()
            if first < count:
                reader.seek(first)
        for _ in range(first, count):
            with damage_in(file, *_DAMAGE):
                record = reader.read()
            records.append(record)
            size += len(record) + 64  # an object of Python's
            if size >= BATCH_BYTES:
                yield records
                records, size = [], 0
        first = max(0, first - count)
        reader.close()
    if records:
        yield records


def write_arrayrecord(
    source: Outgoing,
    folder: PartFolder,
    part_bytes: int,
    on_progress: Callable[[int, int], None],
) -> None:
    """Write the records of one field."""
    if len(source.columns) != 1:
        raise SchemaError(
            f"a record of ArrayRecord is one field; choose one of {', '.join(source.columns)}"
        )
    ((name, column),) = source.columns.items()
    if column.ragged and (not isinstance(column.dtype, type)):
        raise SchemaError(
            f"{name!r} is {source.describe(name)}: expected bytes, text or a fixed shape"
        )
    module = _library()

    def write_part(path: Path, batches: Iterator[Batch]) -> None:
        try:
            writer = module.ArrayRecordWriter(str(path), "group_size:1")
            for batch in batches:
                values = batch[name]
                for i in range(len(values)):
                    # A slice: a single value would be in native byte order.
                    row = values[i] if column.ragged else values[i : i + 1]
                    writer.write(row.tobytes())
            writer.close()
        except RuntimeError as error:  # how the library reports what the system refused
            raise OSError(f"{path}: ArrayRecord: {error}") from error

    write_series(source, folder, SUFFIX, write_part, part_bytes, on_progress)
    if not isinstance(column.dtype, type):
        about = {
            "format": "arrayrecord",
            "version": VERSION,
            "rows": source.total,
            "dtype": np.lib.format.dtype_to_descr(column.dtype),
            "shape": column.shape,
        }
        write_file(folder.path / ABOUT, json.dumps(about).encode() + b"\n")


def _library() -> Any:
    try:
        from array_record.python import array_record_module
    except ImportError as error:
        raise ImportError(
            "ArrayRecord files need an extra: pip install 'stepwell[arrayrecord]'"
        ) from error
    return array_record_module

"""Step datasets as Parquet, NPZ and CSV, in bounded memory."""

import csv
import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import SchemaError
from stepwell.files.atomic import new_file
from stepwell.files.npy import array_header
from stepwell.source import Batch, Field

if TYPE_CHECKING:
    import pyarrow as pa

    from stepwell.stores.steps.reader import StepReader

__all__ = ["runs_to_csv", "to_npz", "to_parquet"]

Progress = Callable[[int, int], None]

_AT_ONCE = 1 << 18


def to_parquet(steps: "StepReader", path: Path, on_progress: Progress | None) -> None:
    """A column for each field; fields of several numbers become lists of fixed length."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("this needs an extra: pip install 'stepwell[parquet]'") from error
    schema = arrow.schema(
        [arrow.field(n, _arrow_type(arrow, n, f), nullable=False) for n, f in steps.schema.items()]
    )
    with new_file(path) as out, parquet.ParquetWriter(out, schema) as writer:
        for batch in _batches(steps, on_progress):
            arrays = [
                _arrow_array(arrow, values, schema.field(name).type)
                for name, values in batch.items()
            ]
            writer.write_batch(arrow.record_batch(arrays, schema=schema))


def to_npz(steps: "StepReader", path: Path, on_progress: Progress | None) -> None:
    """One array for each field, as `np.load` reads them."""
    count, done = len(steps), 0
    total = count * len(steps.schema)
    with new_file(path) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, field in steps.schema.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(array_header(field.dtype, (count, *field.shape)))
                for batch in _batches(steps.columns([name]), None):
                    member.write(np.ascontiguousarray(batch[name]).tobytes())
                    done += len(batch[name])
                    if on_progress is not None:
                        on_progress(done, total)


def runs_to_csv(steps: "StepReader", path: Path) -> None:
    """The table of runs, a line each."""
    table = steps.runs
    names = table.columns
    with new_file(path) as out:
        text = io.TextIOWrapper(out, encoding="utf-8", newline="")
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(table)
        text.flush()
        text.detach()


def _batches(source: Any, on_progress: Progress | None) -> Iterator[Batch]:
    for begin in range(0, len(source), _AT_ONCE):
        end = min(begin + _AT_ONCE, len(source))
        yield source.take(np.arange(begin, end))
        if on_progress is not None:
            on_progress(end, len(source))


def _arrow_type(arrow: Any, name: str, field: Field) -> "pa.DataType":
    try:
        kind = arrow.from_numpy_dtype(field.dtype.newbyteorder("="))
    except arrow.ArrowNotImplementedError:
        raise SchemaError(f"{name}: Parquet has no type for {field}") from None
    if 0 in field.shape:
        raise SchemaError(f"{name}: Parquet has no type for {field}")
    for size in reversed(field.shape):
        kind = arrow.list_(arrow.field("item", kind, nullable=False), size)
    return kind


def _arrow_array(arrow: Any, values: NDArray[Any], kind: "pa.DataType") -> "pa.Array":
    if values.ndim == 1:
        return arrow.array(values.astype(values.dtype.newbyteorder("="), copy=False))
    flat = values.reshape(len(values) * values.shape[1], *values.shape[2:])
    return arrow.FixedSizeListArray.from_arrays(
        _arrow_array(arrow, flat, kind.value_type), type=kind
    )

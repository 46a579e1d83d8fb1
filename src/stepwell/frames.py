"""Pandas: the rows of a source as a data frame, and the columns of a data frame as arrays."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepwell import arrow, batches
from stepwell.errors import SchemaError
from stepwell.field import Batch, Field, Ragged, objects_of

if TYPE_CHECKING:
    import pandas as pd

    from stepwell.source import Source


def frame_of(source: "Source") -> "pd.DataFrame":
    """All rows of a source as a data frame."""
    import pandas

    times = batches.attributes_of(source).get(arrow.TYPES)
    columns = {}
    for name, values in batches.whole(source).items():
        if source.schema[name].kind == "str":
            columns[name] = pandas.Series(values.to_list(), dtype=str)
        elif isinstance(values, Ragged) or values.ndim > 1:
            columns[name] = pandas.Series(objects_of(values), dtype=object)
        elif isinstance(times, dict) and name in times:
            one = source.columns([name])
            made = arrow.record_batch({name: values}, arrow.schema_of(one))
            columns[name] = made.column(0).to_pandas()
        else:
            columns[name] = values.astype(values.dtype.newbyteorder("="), copy=False)
    return pandas.DataFrame(columns, copy=False)


def columns_of(frame: "pd.DataFrame") -> tuple[Batch, dict[str, Any]]:
    """The columns of a data frame, those of numbers where they are, and the attributes of times.

    The index is left out. Raises `SchemaError` that names a column with a missing value, or with
    objects that are neither text, bytes nor arrays.
    """
    columns: Batch = {}
    notes: dict[str, Any] = {}
    for k, label in enumerate(frame.columns):
        name = str(label)
        if name in columns:
            raise SchemaError(f"two columns are named {name!r}")
        columns[name], more = _column(name, frame.iloc[:, k])
        notes |= more.get(arrow.TYPES, {})
    return columns, {arrow.TYPES: notes} if notes else {}


def _column(name: str, series: "pd.Series[Any]") -> tuple[Any, dict[str, Any]]:
    series = series.infer_objects()
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biufc":
        return series.to_numpy(), {}
    missing = series.isna().to_numpy()
    if missing.any():
        raise arrow.null_at(name, int(missing.argmax()))
    cells: Any = series
    if series.dtype == object:
        cells = series.to_list()
        if not cells:
            raise SchemaError(f"column {name!r} has neither rows nor a type; astype gives it one")
        if all(isinstance(cell, np.ndarray) for cell in cells):
            return _arrays(name, cells), {}
    pa = arrow.library()
    try:
        made = pa.array(cells)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(
            f"column {name!r}: expected numbers, text, bytes or arrays, got {series.dtype}: {error}"
        ) from None
    chunks = made.chunks if isinstance(made, pa.ChunkedArray) else [made]
    notes = arrow.notes_of(pa.schema([(name, made.type)]))
    return arrow.column_of(name, chunks, made.type, even=True), notes


def _arrays(name: str, rows: list[NDArray[Any]]) -> Any:
    """Arrays as one array where they are of one shape, else as rows of a ragged field."""
    first = rows[0]
    field = Field(first.dtype, first.shape[1:], ragged=True)
    for i, row in enumerate(rows):
        if (row.ndim, row.dtype, row.shape[1:]) != (first.ndim, field.dtype, field.shape):
            raise SchemaError(
                f"column {name!r}, row {i}: expected {field}, got {row.dtype} {row.shape}"
            )
    if len({row.shape for row in rows}) == 1:
        return np.stack(rows)
    return Ragged.from_list(rows, field)

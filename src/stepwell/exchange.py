"""`stepwell.as_source`: what people hold, as a source.

What is in memory is used where it is, or copied once; no library is imported that its data has
not brought along.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from stepwell import arrow, frames
from stepwell.batches import whole
from stepwell.errors import SchemaError
from stepwell.formats.streams import Stream
from stepwell.opening import open
from stepwell.source import Batch, Ragged, Source
from stepwell.stores import ArraySource
from stepwell.views import Join
from stepwell.writer import Writer

_HINTS = {
    "LazyFrame": "collect() makes a table of it",
    "IterableDataset": "it has no rows by number; load it without streaming=True",
    "Mix": "a Loader takes it as it is; map and columns are for its sources",
    "DataLoader": "give what it loads from",
}


def as_source(given: Any) -> Source:
    """A source of arrays, tensors, data frames, Arrow tables, Hugging Face datasets or a path.

        sw.as_source({"x": torch.zeros(100, 4), "y": np.arange(100)})
        sw.as_source(pd.read_csv("train.csv"))
        sw.as_source("train.parquet")

    A mapping of any of these is their fields side by side. Arrays, tensors and columns of numbers
    in one piece are used where they are; everything else is copied once. A column of text is a
    `str` field, one of lists a ragged field, one of arrays or of lists of fixed size a field of
    that shape; so are lists in pandas and Hugging Face datasets, which have one type for both, that
    all have one length. Of a data frame the index is left out. A file of another format is read
    into memory, for its rows to be taken in any order; `open` reads it row by row.

    Raises `SchemaError` that names a column with missing values or with objects, and `TypeError`
    for anything else.
    """
    if isinstance(given, Source):
        return given
    if isinstance(given, str | os.PathLike):
        return _of_path(given)
    if isinstance(given, np.ndarray):
        return ArraySource(given)
    if isinstance(given, Ragged):
        return ArraySource({"data": given})
    if _is("torch", "Tensor", given):
        return ArraySource(_of_tensor(given))
    if _is("datasets", "Dataset", given):
        return _of_dataset(given)
    if _is("datasets", "DatasetDict", given):
        raise TypeError(f"expected one split, got {', '.join(given)}: choose one by its name")
    if isinstance(given, Mapping):
        return Join({name: as_source(part) for name, part in given.items()})
    if _is("pandas", "Series", given):
        given = given.to_frame("data" if given.name is None else given.name)
    if _is("pandas", "DataFrame", given):
        return _columns(*frames.columns_of(given))
    if _is("polars", "DataFrame", given) or _is("polars", "Series", given):
        _check_polars(given)
    if hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
        return _of_arrow(given)
    if hasattr(given, "__array__") and hasattr(given, "__dlpack__"):  # JAX and others
        return ArraySource(np.asarray(given))
    name = type(given).__name__
    if isinstance(given, Writer):
        hint = f"{name.replace('Writer', 'Reader')}.open gives a source"
    else:
        hint = _HINTS.get(name, "ArraySource wraps what NumPy makes an array of")
    raise TypeError(
        "expected a source, an array, a tensor, a data frame, an Arrow table, a Hugging Face "
        f"dataset, a path or a mapping of those, got {type(given)}; {hint}"
    )


def _is(module: str, name: str, given: Any) -> bool:
    """Whether it is of a library's class: who has one has imported the library."""
    found = getattr(sys.modules.get(module), name, None)
    return isinstance(found, type) and isinstance(given, found)


def _of_path(path: str | os.PathLike[str]) -> Source:
    source = open(path)
    if not isinstance(source, Stream):
        return source
    columns = whole(source)
    if source.kind == "huggingface":
        columns = {
            name: arrow.evened(values) if isinstance(values, Ragged) else values
            for name, values in columns.items()
        }
    read = _columns(columns, source.attributes)
    read.runs = source.runs
    read._made_by = as_source, (os.fspath(path),)
    return read


def _columns(columns: Batch, attributes: Mapping[str, Any]) -> ArraySource:
    if not columns:
        raise SchemaError("expected at least one column, got none")
    source = ArraySource(columns)
    source.attributes = dict(attributes)
    return source


def _of_tensor(tensor: Any) -> Any:
    """The memory of a tensor; of one on a device, a copy."""
    try:
        return tensor.numpy(force=True)
    except (TypeError, RuntimeError) as error:  # bfloat16, sparse, quantized, meta or nested
        raise TypeError(
            f"expected a tensor that NumPy can hold, got {tensor.dtype}, {tensor.layout}: {error}"
        ) from None


def _check_polars(given: Any) -> None:
    """Refuse objects: Polars hands over their addresses as if they were bytes."""
    columns = [given] if hasattr(given, "dtype") else given.get_columns()
    for column in columns:
        if column.dtype == sys.modules["polars"].Object:
            raise SchemaError(
                f"column {column.name!r}: expected numbers, text, bytes or lists, got objects"
            )


def _of_arrow(given: Any) -> ArraySource:
    """Tables and streams of them, which are read to their end; a single array is `data`."""
    pa = arrow.library()
    try:
        table = pa.table(given)
    except (pa.ArrowException, TypeError, ValueError) as error:
        try:
            column = pa.chunked_array(given)
        except (pa.ArrowException, TypeError, ValueError):
            raise error from None
        if pa.types.is_struct(column.type):  # a table, whose rows could not be read to their end
            raise
        table = pa.table({"data": column})
    return _of_table(table)


def _of_dataset(given: Any) -> ArraySource:
    """The rows of a Hugging Face dataset, in the order that it shows them."""
    format = given.format
    if format["type"] == "custom":
        raise TypeError(
            "expected rows, got a dataset with a transform, which stepwell would not apply: "
            "map() keeps what it makes, reset_format() leaves it out"
        )
    table = given.with_format("arrow", columns=format["columns"])[:]
    return _of_table(table, even=True)


def _of_table(table: Any, *, even: bool = False) -> ArraySource:
    names = table.column_names
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise SchemaError(f"two columns are named {twice.pop()!r}")
    columns = {
        name: arrow.column_of(name, column.chunks, column.type, even=even)
        for name, column in zip(names, table.columns, strict=True)
    }
    return _columns(columns, arrow.notes_of(table.schema))

"""Arrow's types and arrays as columns, and columns as Arrow's.

| Arrow | a record's field is |
|---|---|
| numbers, bool | a number |
| fixed_size_list of those, fixed_size_binary, fixed_shape_tensor | an array of that shape |
| list of those | any number of them |
| string, binary, large or not | text, bytes |
| timestamp, date, time, duration | a whole number; the store's attributes say of what |
| dictionary | what its values are |

Everything else, and every null, is refused by name: a record store has no such thing.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepwell.converters.incoming import Column
from stepwell.errors import SchemaError
from stepwell.source import Batch, Ragged

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TYPES", "batch_of", "columns_of", "library", "record_batch", "schema_of", "times_of"]

TYPES = "arrow_types"
"""The attribute that says which whole numbers are times."""


def library() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("this needs an extra: pip install 'stepwell[parquet]'") from error
    return pyarrow


# In.


def columns_of(schema: "pa.Schema") -> dict[str, Column]:
    """What records of a schema are. Raises `SchemaError` naming the column that cannot be one."""
    names = schema.names
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise SchemaError(f"two columns are named {twice.pop()!r}")
    return {field.name: _column(field.name, field.type) for field in schema}


def times_of(schema: "pa.Schema") -> dict[str, dict[str, str]]:
    """For columns of times: their type, by which `schema_of` finds it again."""
    return {field.name: note for field in schema if (note := _time(field.type))}


def batch_of(rows: "pa.RecordBatch", first: int) -> Batch:
    """The columns of some rows; `first` is the number of their first one, for errors."""
    batch: Batch = {}
    for name, array in zip(rows.schema.names, rows.columns, strict=True):
        try:
            batch[name] = _values(array)
        except _Null as null:
            raise SchemaError(
                f"column {name!r}, row {first + null.index}: expected a value, got null"
            ) from None
    return batch


class _Null(Exception):
    """There is a null, in the row `index` of an array."""

    def __init__(self, index: int) -> None:
        self.index = index


def _column(name: str, kind: "pa.DataType", whole: "pa.DataType | None" = None) -> Column:
    types = library().types
    whole = kind if whole is None else whole
    kind = _plain(kind)
    if types.is_string(kind) or types.is_large_string(kind) or _is_view(kind, "string"):
        column = Column(str, ragged=True)
    elif types.is_binary(kind) or types.is_large_binary(kind) or _is_view(kind, "binary"):
        column = Column(bytes, ragged=True)
    elif types.is_fixed_size_binary(kind) and not types.is_decimal(kind):
        column = Column(np.dtype(np.uint8), (kind.byte_width,))
    elif types.is_fixed_size_list(kind):
        inner = _column(name, kind.value_type, whole)
        column = inner._replace(shape=(kind.list_size, *inner.shape))
    elif types.is_list(kind) or types.is_large_list(kind):
        inner = _column(name, kind.value_type, whole)
        column = inner._replace(ragged=True)
    elif _time(kind):
        return Column(np.dtype(f"<i{kind.bit_width // 8}"))
    elif types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return Column(np.dtype(kind.to_pandas_dtype()))
    else:
        raise _refused(name, whole)
    nested = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
    if (nested and inner.ragged) or 0 in column.shape:
        raise _refused(name, whole)
    return column


def _refused(name: str, kind: "pa.DataType") -> SchemaError:
    return SchemaError(
        f"column {name!r} is {kind}: expected numbers, lists of numbers, text, bytes or times"
    )


def _plain(kind: "pa.DataType") -> "pa.DataType":
    """A type without what only says how its values are kept or meant."""
    arrow = library()
    if isinstance(kind, arrow.FixedShapeTensorType):
        order = kind.permutation
        if order is not None and list(order) != sorted(order):
            return arrow.null()  # not in the order of its bytes: refused
        inner = kind.value_type
        for size in reversed(kind.shape):
            inner = arrow.list_(inner, size)
        return inner
    if isinstance(kind, arrow.BaseExtensionType):
        return _plain(kind.storage_type)
    return _plain(kind.value_type) if arrow.types.is_dictionary(kind) else kind


def _is_view(kind: "pa.DataType", of: str) -> bool:
    return str(kind) == f"{of}_view"


def _time(kind: "pa.DataType") -> dict[str, str] | None:
    types = library().types
    if types.is_timestamp(kind):
        return {"type": "timestamp", "unit": kind.unit, **({"tz": kind.tz} if kind.tz else {})}
    if types.is_duration(kind) or types.is_time(kind):
        return {"type": str(kind).partition("[")[0], "unit": kind.unit}
    return {"type": str(kind).partition("[")[0]} if types.is_date(kind) else None


def _values(array: "pa.Array") -> Any:
    """An array of Arrow's as one of NumPy's, or a `Ragged`. Raises `_Null`."""
    arrow = library()
    types = arrow.types
    if array.null_count:
        raise _Null(int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0]))
    if isinstance(array.type, arrow.FixedShapeTensorType):
        flat = _values(array.storage)
        return flat.reshape(len(array), *array.type.shape)
    if isinstance(array.type, arrow.BaseExtensionType):
        return _values(array.storage)
    kind = array.type
    if types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if _is_view(kind, "string") or _is_view(kind, "binary"):
        array = array.cast(arrow.large_binary())
        kind = array.type
    if types.is_string(kind) or types.is_binary(kind):
        return _bytes(array, np.int32)
    if types.is_large_string(kind) or types.is_large_binary(kind):
        return _bytes(array, np.int64)
    if types.is_fixed_size_binary(kind):
        data = array.buffers()[1]
        flat = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        begin = array.offset * kind.byte_width
        size = len(array) * kind.byte_width
        return flat[begin : begin + size].reshape(len(array), kind.byte_width)
    if types.is_fixed_size_list(kind):
        try:
            inner = _values(array.flatten())
        except _Null as null:
            raise _Null(null.index // kind.list_size) from None
        return inner.reshape(len(array), kind.list_size, *inner.shape[1:])
    if types.is_list(kind) or types.is_large_list(kind):
        offsets = array.offsets.to_numpy().astype(np.int64)
        offsets -= offsets[0]
        try:
            return Ragged(_values(array.flatten()), offsets)
        except _Null as null:
            raise _Null(int(np.searchsorted(offsets, null.index, side="right")) - 1) from None
    if _time(kind):
        array = array.view(arrow.int32() if kind.bit_width == 32 else arrow.int64())
    return array.to_numpy(zero_copy_only=False)


def _bytes(array: "pa.Array", offset: type[np.int32] | type[np.int64]) -> Ragged:
    """Texts or bytes; the items are not copied."""
    _, bounds, data = array.buffers()
    if len(array) == 0 or bounds is None:
        return Ragged(np.empty(0, np.uint8), np.zeros(len(array) + 1, np.int64))
    offsets = np.frombuffer(bounds, offset)[array.offset : array.offset + len(array) + 1]
    offsets = offsets.astype(np.int64)
    items = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return Ragged(items[offsets[0] : offsets[-1]], offsets - offsets[0])


# Out.


def schema_of(columns: Mapping[str, Column], times: Any) -> "pa.Schema":
    """The schema for columns; `times` is what `times_of` gave for those that were times."""
    arrow = library()
    notes = times if isinstance(times, dict) else {}
    fields = []
    for name, column in columns.items():
        kind = _type_of(name, column)
        if name in notes and column in (Column(np.dtype("<i4")), Column(np.dtype("<i8"))):
            kind = _time_of(notes[name]) or kind
        fields.append(arrow.field(name, kind, nullable=False))
    return arrow.schema(fields)


def record_batch(batch: Batch, schema: "pa.Schema") -> "pa.RecordBatch":
    """A batch as rows of a schema that `schema_of` made for its fields."""
    arrow = library()
    arrays = [_array(name, values, schema.field(name).type) for name, values in batch.items()]
    return arrow.record_batch(arrays, schema=schema)


def _type_of(name: str, column: Column) -> "pa.DataType":
    arrow = library()
    if isinstance(column.dtype, type):
        return arrow.string() if column.dtype is str else arrow.binary()
    if column.dtype.kind not in "biufMm":  # fixed texts would lose the zeros at their ends
        raise SchemaError(f"{name!r}: Arrow has no type for {column.dtype}")
    try:
        kind = arrow.from_numpy_dtype(column.dtype.newbyteorder("="))
    except arrow.ArrowNotImplementedError:
        raise SchemaError(f"{name!r}: Arrow has no type for {column.dtype}") from None
    for size in reversed(column.shape):
        kind = arrow.list_(arrow.field("item", kind, nullable=False), size)
    return arrow.list_(arrow.field("item", kind, nullable=False)) if column.ragged else kind


def _time_of(note: Any) -> "pa.DataType | None":
    arrow = library()
    try:
        if note["type"] == "timestamp":
            return arrow.timestamp(note["unit"], note.get("tz"))
        if note["type"] == "duration":
            return arrow.duration(note["unit"])
        return {
            "date32": arrow.date32,
            "date64": arrow.date64,
            "time32": lambda: arrow.time32(note["unit"]),
            "time64": lambda: arrow.time64(note["unit"]),
        }[note["type"]]()
    except (KeyError, TypeError, ValueError):
        return None  # a user's own attribute of that name


def _array(name: str, values: Any, kind: "pa.DataType") -> "pa.Array":
    arrow = library()
    types = arrow.types
    if isinstance(values, Ragged):
        if values.offsets[-1] > np.iinfo(np.int32).max:
            raise SchemaError(
                f"{name!r}: a batch has {values.offsets[-1]} items, Parquet's lists end at 2**31"
            )
        offsets = values.offsets.astype(np.int32)
        if types.is_list(kind):
            inner = _array(name, values.values, kind.value_type)
            return arrow.ListArray.from_arrays(arrow.array(offsets), inner, type=kind)
        data = np.ascontiguousarray(values.values)
        buffers = [None, arrow.py_buffer(offsets), arrow.py_buffer(data)]
        return arrow.Array.from_buffers(kind, len(values), buffers)
    if types.is_fixed_size_list(kind):
        flat = values.reshape(len(values) * values.shape[1], *values.shape[2:])
        return arrow.FixedSizeListArray.from_arrays(_array(name, flat, kind.value_type), type=kind)
    native: NDArray[Any] = values.astype(values.dtype.newbyteorder("="), copy=False)
    array = arrow.array(native)
    return array if array.type == kind else array.view(kind)

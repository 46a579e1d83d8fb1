"""Arrow's types as fields, its arrays as rows, and back.

docs/converting.md has the table of types. Everything else, and every null, is refused by name:
rows of a source have no such thing.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepwell.batches import attributes_of, in_order
from stepwell.errors import SchemaError
from stepwell.field import Batch, Field, Ragged, offsets_of
from stepwell.files import extras

if TYPE_CHECKING:
    import pyarrow as pa

    from stepwell.source import Source

TYPES = "arrow_types"
"""The attribute that lists the whole numbers that are times."""

_BYTES: dict[str, type] = {
    **{"string": str, "large_string": str, "string_view": str},
    **{"binary": bytes, "large_binary": bytes, "binary_view": bytes},
}
_TIMES = ("timestamp", "duration", "time32", "time64", "date32", "date64")

library = partial(extras.library, "pyarrow", "parquet")


def fields_of(schema: "pa.Schema") -> dict[str, Field]:
    names = schema.names
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise SchemaError(f"two columns are named {twice.pop()!r}")
    return {field.name: _field(field.name, field.type, field.type) for field in schema}


def notes_of(schema: "pa.Schema") -> dict[str, Any]:
    """The attributes of such fields: the types of times."""
    times = {field.name: note for field in schema if (note := _time(field.type))}
    return {TYPES: times} if times else {}


def _field(name: str, kind: "pa.DataType", whole: "pa.DataType") -> Field:
    types = library().types
    kind = _plain(kind)
    if str(kind) in _BYTES:
        return Field(_BYTES[str(kind)])
    if types.is_fixed_size_binary(kind) and not types.is_decimal(kind) and kind.byte_width:
        return Field(np.dtype(np.uint8), (kind.byte_width,))
    if types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
        inner = _field(name, kind.value_type, whole)
        fixed = types.is_fixed_size_list(kind)
        if not inner.ragged and not (fixed and not kind.list_size):
            shape = (kind.list_size, *inner.shape) if fixed else inner.shape
            return Field(inner.dtype, shape, ragged=not fixed)
    elif _time(kind):
        return Field(np.dtype(f"<i{kind.bit_width // 8}"))
    elif types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return Field(np.dtype(kind.to_pandas_dtype()))
    raise _no_field(name, whole)


def _no_field(name: str, kind: "pa.DataType") -> SchemaError:
    return SchemaError(
        f"column {name!r} is {kind}: expected numbers, lists of numbers, text, bytes or times"
    )


def _plain(kind: "pa.DataType") -> "pa.DataType":
    """A type without the parts that only describe how its values are kept or meant."""
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


def items_of(kind: "pa.DataType") -> "pa.DataType":
    """The type of the items of lists, however deep they are."""
    kind, types = _plain(kind), library().types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return items_of(kind.value_type) if is_list else kind


def _time(kind: "pa.DataType") -> dict[str, str] | None:
    """The meaning of whole numbers of this type; None where it is no time."""
    name = str(kind).partition("[")[0]
    facts = {fact: value for fact in ("unit", "tz") if (value := getattr(kind, fact, None))}
    return {"type": name, **facts} if name in _TIMES else None


def values_of(name: str, array: "pa.Array", field: Field, first: int = 0) -> Any:
    """An array as rows of a field, where it is if it can be.

    Raises `SchemaError` that names the row of a null, counted from `first`.
    """
    _check_nulls(name, array, first)
    return _values(array, field)


def column_of(
    name: str, chunks: "Sequence[pa.Array]", kind: "pa.DataType", *, even: bool = False
) -> Any:
    """A column in one piece: where it is, if it is one chunk that can be used so, else a copy.

    With `even`, lists that are all of one length are arrays of that shape.
    """
    first = 0
    for chunk in chunks:
        _check_nulls(name, chunk, first)
        first += len(chunk)
    return _joined(name, chunks, kind, kind, even)


def _joined(
    name: str, chunks: "Sequence[pa.Array]", kind: "pa.DataType", whole: "pa.DataType", even: bool
) -> Any:
    arrow, plain = library(), _plain(kind)
    if even and (arrow.types.is_list(plain) or arrow.types.is_large_list(plain)):
        chunks = [_stored(chunk) for chunk in chunks]
        flat = [chunk.flatten() for chunk in chunks]
        items = _joined(name, flat, plain.value_type, whole, even)
        if isinstance(items, Ragged):
            raise _no_field(name, whole)
        lengths = [np.diff(_offsets(chunk)) for chunk in chunks]
        return evened(Ragged(items, offsets_of(np.concatenate([np.empty(0, int), *lengths]))))
    field = _field(name, kind, whole)
    parts = [_values(chunk, field) for chunk in chunks]
    if len(parts) == 1:
        return parts[0]
    if field.ragged:
        return Ragged.joined(parts, field)
    return np.concatenate([np.empty((0, *field.shape), field.dtype), *parts])


def evened(rows: Ragged) -> NDArray[Any] | Ragged:
    """Arrays that are all of one length as one array; others, and texts, as they are."""
    lengths = rows.lengths
    unlike = not len(lengths) or not lengths[0] or (lengths != lengths[0]).any()
    if rows.kind != "array" or unlike:
        return rows
    return rows.values.reshape(len(rows), int(lengths[0]), *rows.values.shape[1:])


def _values(array: "pa.Array", field: Field) -> Any:
    arrow = library()
    types = arrow.types
    sizes = iter(field.shape)  # of lists, from the outermost on
    while True:
        array = _stored(array)
        kind = array.type
        if types.is_dictionary(kind):
            array = _decoded(array)
        elif types.is_fixed_size_list(kind):
            next(sizes, None)
            array = array.flatten()
        elif not field.ragged and (types.is_list(kind) or types.is_large_list(kind)):
            size, lengths = next(sizes), np.diff(_offsets(array))
            if (lengths != size).any():
                raise SchemaError(f"expected lists of {size}, got one of {lengths.max()}")
            array = array.flatten()
        else:
            break
    if field.ragged and field.kind == "array":
        items = _values(array.flatten(), Field(field.dtype, field.shape))
        return Ragged(items, _offsets(array))
    if field.ragged or types.is_fixed_size_binary(kind):
        found = _bytes(array)
        found.kind = field.kind
        return found if field.ragged else found.values.reshape(-1, *field.shape)
    if _time(kind):
        array = array.view(arrow.int32() if kind.bit_width == 32 else arrow.int64())
    return array.to_numpy(zero_copy_only=False).reshape(-1, *field.shape)


def _stored(array: "pa.Array") -> "pa.Array":
    """An array without what only describes how its values are meant."""
    while isinstance(array.type, library().BaseExtensionType):
        array = array.storage
    return array


def _decoded(array: "pa.DictionaryArray") -> "pa.Array":
    """The values of a dictionary's rows; Polars keeps those of categories as views."""
    arrow, values = library(), array.dictionary
    if str(values.type) in ("string_view", "binary_view"):
        values = values.cast(arrow.large_binary())
        array = arrow.DictionaryArray.from_arrays(array.indices, values)
    return array.dictionary_decode()


def _offsets(lists: "pa.Array") -> NDArray[np.int64]:
    offsets: NDArray[np.int64] = np.asarray(lists.offsets.to_numpy(), np.int64)
    from_zero: NDArray[np.int64] = offsets - offsets[0]
    return from_zero


def _check_nulls(name: str, array: "pa.Array", first: int) -> None:
    null = _first_null(array)
    if null is not None:
        raise null_at(name, first + null)


def null_at(name: str, row: int) -> SchemaError:
    """The error about a missing value."""
    return SchemaError(
        f"column {name!r}, row {row}: expected a value, got null; fill or drop missing values first"
    )


def _first_null(array: "pa.Array") -> int | None:
    """The first row that is null, or has a null in it."""
    types, array = library().types, _stored(array)
    if array.null_count:
        return int(array.is_null().to_numpy(zero_copy_only=False).argmax())
    if types.is_dictionary(array.type):
        return _first_null(_decoded(array)) if array.dictionary.null_count else None
    if types.is_fixed_size_list(array.type):
        inner = _first_null(array.flatten())
        return None if inner is None else inner // array.type.list_size
    if types.is_list(array.type) or types.is_large_list(array.type):
        inner = _first_null(array.flatten())
        return None if inner is None else int(_offsets(array).searchsorted(inner, "right")) - 1
    return None


def _bytes(array: "pa.Array") -> Ragged:
    """Texts or bytes; the items are not copied where they have offsets."""
    array = array.cast(library().large_binary())
    _, bounds, data = array.buffers()
    if len(array) == 0 or bounds is None:
        return Ragged(np.empty(0, np.uint8), np.zeros(len(array) + 1, np.int64))
    offsets = np.frombuffer(bounds, np.int64)[array.offset : array.offset + len(array) + 1]
    items = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return Ragged(items[offsets[0] : offsets[-1]], offsets - offsets[0])


# Fields and batches as types and arrays.


def stream(source: "Source") -> "pa.RecordBatchReader":
    """The rows of a source, read a few MiB at a time as the reader is."""
    source._check_open()
    schema = schema_of(source)
    rows = (record_batch(batch, schema) for batch in in_order(source))
    return library().RecordBatchReader.from_batches(schema, rows)


def schema_of(source: "Source") -> "pa.Schema":
    """The Arrow schema for the fields of a source. Raises `SchemaError` for what has no type."""
    arrow = library()
    notes = attributes_of(source).get(TYPES)
    notes = notes if isinstance(notes, dict) else {}
    fields = []
    for name, field in source.schema.items():
        kind = _type_of(name, field)
        if name in notes and field in (Field(np.dtype("<i4")), Field(np.dtype("<i8"))):
            kind = _time_of(notes[name]) or kind
        fields.append(arrow.field(name, kind, nullable=False))
    return arrow.schema(fields)


def record_batch(batch: Batch, schema: "pa.Schema") -> "pa.RecordBatch":
    """A batch as rows of a schema that `schema_of` made for its fields."""
    arrow = library()
    arrays = [_array(name, values, schema.field(name).type) for name, values in batch.items()]
    return arrow.record_batch(arrays, schema=schema)


def _type_of(name: str, field: Field) -> "pa.DataType":
    arrow = library()
    if field.kind != "array":
        return arrow.string() if field.kind == "str" else arrow.binary()
    try:
        # Fixed texts would lose the zeros at their ends.
        if field.dtype.kind not in "biufMm" or 0 in field.shape:
            raise SchemaError
        kind = arrow.from_numpy_dtype(field.dtype.newbyteorder("="))
    except (SchemaError, arrow.ArrowNotImplementedError):
        raise SchemaError(f"{name!r}: Arrow has no type for {field}") from None
    for size in reversed(field.shape):
        kind = arrow.list_(arrow.field("item", kind, nullable=False), size)
    return arrow.list_(arrow.field("item", kind, nullable=False)) if field.ragged else kind


def _time_of(note: Any) -> "pa.DataType | None":
    try:
        facts = dict(note)
        name = facts.pop("type")
        return getattr(library(), name)(**facts) if name in _TIMES else None
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

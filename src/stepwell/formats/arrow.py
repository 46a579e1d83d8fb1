"""Arrow's types as fields, its arrays as batches, and back; and files of Arrow's own.

docs/converting.md has the table of types. Everything else, and every null, is refused by name:
rows of a source have no such thing.
"""

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import SchemaError
from stepwell.files import extras
from stepwell.files.atomic import new_file
from stepwell.formats.streams import (
    Progress,
    Stream,
    attributes_of,
    in_order,
    rows_of,
)
from stepwell.source import Batch, Field, Ragged, Source

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES = "arrow_types"
"""The attribute that lists the whole numbers that are times."""

_MAGIC = b"ARROW1"
_BYTES: dict[str, type] = {
    **{"string": str, "large_string": str, "string_view": str},
    **{"binary": bytes, "large_binary": bytes, "binary_view": bytes},
}
_TIMES = ("timestamp", "duration", "time32", "time64", "date32", "date64")


library = partial(extras.library, "pyarrow", "parquet")


def arrow_damage(path: Path) -> Any:
    """Arrow's error about a damaged file, as a `FormatError`."""
    return extras.damage_in(path, library().ArrowException, EOFError, OSError)


class Tables(Stream):
    """The rows of files with one schema, one file after the other."""

    def __init__(
        self,
        path: Path,
        files: Sequence[Path],
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self._files = list(files)
        self._counts = []
        schema: pa.Schema = None
        for file in files:
            found, count = self._look(file)
            self._counts.append(count)
            if schema is None:
                schema = found.remove_metadata()
            elif not found.remove_metadata().equals(schema):
                raise SchemaError(f"{file}: expected the columns of {files[0].name}, got others")
        try:
            fields = _fields_of(schema)
        except SchemaError as error:
            raise SchemaError(f"{path}: {error}") from None
        times = {field.name: note for field in schema if (note := _time(field.type))}
        known = {_TYPES: times} if times else {}
        super().__init__(str(path), fields, sum(self._counts), {**known, **(attributes or {})})

    @abstractmethod
    def _look(self, file: Path) -> "tuple[pa.Schema, int]":
        """The schema of a file and its number of rows."""

    @abstractmethod
    def _tables(
        self, file: Path, skip: int, names: list[str]
    ) -> "Iterator[tuple[int, pa.RecordBatch]]":
        """Rows of a file, behind the number of the first of them, from row `skip` on or from
        somewhat before: the rest is not looked at."""

    def _from(self, first: int, names: Sequence[str]) -> Iterator[Batch]:
        start = 0
        for file, count in zip(self._files, self._counts, strict=True):
            skip = max(0, first - start)
            if skip < count:
                for at, rows in self._tables(file, skip, list(names)):
                    part = rows.slice(max(0, skip - at))
                    if len(part):
                        yield self._batch(file, part.select(list(names)), start + max(at, skip))
            start += count

    def _batch(self, file: Path, rows: "pa.RecordBatch", first: int) -> Batch:
        batch: Batch = {}
        for name, array in zip(rows.schema.names, rows.columns, strict=True):
            try:
                batch[name] = _values(array, self.schema[name])
            except _Null:
                for i in range(len(rows) if len(rows) > 1 else 0):  # which of them it is
                    self._batch(file, rows.slice(i, 1).select([name]), first + i)
                raise SchemaError(
                    f"{file}: column {name!r}, row {first}: expected a value, got null"
                ) from None
        return batch


class ArrowTables(Tables):
    """The rows of Arrow's own files, in the format of files or of streams."""

    def _look(self, file: Path) -> "tuple[pa.Schema, int]":
        file.stat()
        # Of a map only the headers are read.
        with arrow_damage(file), library().memory_map(str(file)) as opened:
            schema, found = _batches_in(opened)
            return schema, sum(len(rows) for rows in found)

    def _tables(
        self, file: Path, skip: int, names: list[str]
    ) -> "Iterator[tuple[int, pa.RecordBatch]]":
        begin = 0
        with arrow_damage(file), library().OSFile(str(file)) as opened:
            for rows in _batches_in(opened)[1]:
                count = rows_of(rows.nbytes // max(1, len(rows)))
                for at in range(0, len(rows), count):
                    yield begin + at, rows.slice(at, count)
                begin += len(rows)


class ArrowSource(ArrowTables):
    """The rows of an Arrow file."""

    kind = "arrow"
    noun = "an Arrow file"

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        super().__init__(Path(path), [Path(path)])


def _batches_in(opened: Any) -> "tuple[pa.Schema, Iterator[pa.RecordBatch]]":
    ipc = library().ipc
    is_file = opened.read(len(_MAGIC)) == _MAGIC
    opened.seek(0)
    if not is_file:
        stream = ipc.open_stream(opened)
        return stream.schema, iter(stream)
    reader = ipc.open_file(opened)
    return reader.schema, map(reader.get_batch, range(reader.num_record_batches))


def write(source: Source, path: Path, *, progress: Progress) -> None:
    """Write an Arrow file. After a kill this begins again."""
    schema, ipc = schema_of(source), library().ipc
    with new_file(path) as out, ipc.new_file(out, schema) as writer:
        for batch in in_order(source, progress=progress):
            writer.write_batch(record_batch(batch, schema))


class _Null(Exception):
    """There is a null in an array."""


# Types and arrays as fields and batches.


def _fields_of(schema: "pa.Schema") -> dict[str, Field]:
    names = schema.names
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise SchemaError(f"two columns are named {twice.pop()!r}")
    return {field.name: _field(field.name, field.type, field.type) for field in schema}


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
    raise SchemaError(
        f"column {name!r} is {whole}: expected numbers, lists of numbers, text, bytes or times"
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


def _time(kind: "pa.DataType") -> dict[str, str] | None:
    """The meaning of whole numbers of this type; None where it is no time."""
    name = str(kind).partition("[")[0]
    facts = {fact: value for fact in ("unit", "tz") if (value := getattr(kind, fact, None))}
    return {"type": name, **facts} if name in _TIMES else None


def _values(array: "pa.Array", field: Field) -> Any:
    """An array of Arrow's as the rows of a field. Raises `_Null`."""
    arrow = library()
    types = arrow.types
    while True:
        kind = array.type
        if array.null_count:
            raise _Null
        if isinstance(kind, arrow.BaseExtensionType):
            array = array.storage
        elif types.is_dictionary(kind):
            array = array.dictionary_decode()
        elif types.is_fixed_size_list(kind):
            array = array.flatten()
        else:
            break
    if field.ragged and field.kind == "array":
        offsets = array.offsets.to_numpy().astype(np.int64)
        items = _values(array.flatten(), Field(field.dtype, field.shape))
        return Ragged(items, offsets - offsets[0])
    if field.ragged or types.is_fixed_size_binary(kind):
        found = _bytes(array)
        found.kind = field.kind
        return found if field.ragged else found.values.reshape(-1, *field.shape)
    if _time(kind):
        array = array.view(arrow.int32() if kind.bit_width == 32 else arrow.int64())
    return array.to_numpy(zero_copy_only=False).reshape(-1, *field.shape)


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


def schema_of(source: Source) -> "pa.Schema":
    """The Arrow schema for the fields of a source. Raises `SchemaError` for what has no type."""
    arrow = library()
    notes = attributes_of(source).get(_TYPES)
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

"""Values of records as the core wants them: bytes one behind the other, and where each ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import SchemaError
from stepwell.fit import fit_into
from stepwell.source import Field, Ragged, Rows, is_masked

_MAX_BYTES = 1 << 32


@dataclass(frozen=True)
class Values:
    """One field of some records."""

    count: int
    data: NDArray[np.uint8]
    ends: Rows | None
    """Where each record begins, and the last one ends; None: all are of the same size."""
    there: NDArray[np.uint8] | None
    """0 for a record that has no such field; None: all have it."""

    def bounds(self, item_bytes: int) -> Rows:
        """Where each record begins, and the last one ends, in any case."""
        return np.arange(self.count + 1) * item_bytes if self.ends is None else self.ends


def as_values(
    batch: Mapping[str, Any], fields: Mapping[str, Field], *, whole: bool
) -> dict[str, Values]:
    """The values of each field, checked; with `whole`, only optional ones may be left out.

    Raises `SchemaError` for unknown and for forgotten fields, unequal lengths, another dtype or
    shape, a value that does not fit and a record of 4 GiB.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(f"expected a dict of arrays or lists, got {type(batch).__name__}")
    unknown = [name for name in batch if name not in fields]
    if unknown or not batch:
        raise SchemaError(f"fields: expected some of {list(fields)}, got {list(batch)}")
    forgotten = [name for name, field in fields.items() if name not in batch and not field.optional]
    if forgotten and whole:
        raise SchemaError(
            f"fields: expected {list(fields)}, got {list(batch)}; "
            f"{', '.join(forgotten)}: not optional"
        )
    made = {name: _values(name, fields[name], given) for name, given in batch.items()}
    lengths = {name: values.count for name, values in made.items()}
    if len(set(lengths.values())) > 1:
        raise SchemaError(f"fields must have equal lengths, got {lengths}")
    for name, values in made.items():
        if values.ends is not None and values.count:
            sizes = np.diff(values.ends)
            if sizes.max() >= _MAX_BYTES:
                raise SchemaError(f"{name}: record {sizes.argmax()} of the batch has 4 GiB or more")
    return made


def _values(name: str, field: Field, given: Any) -> Values:
    several = isinstance(given, (Ragged, list, tuple)) or (
        np.ndim(given) > 0 if hasattr(given, "__array__") else isinstance(given, Sequence)
    )
    if not several or isinstance(given, (str, bytes, bytearray)):
        raise SchemaError(f"{name}: expected one value for each record, got {type(given).__name__}")
    if is_masked(given) or (isinstance(given, list | tuple) and any(map(is_masked, given))):
        raise TypeError(f"{name}: a masked array would lose its mask; fill it first")
    if isinstance(given, (list, tuple)) and any(value is None for value in given):
        return _sparse(name, field, given)
    if field.kind != "array" and not isinstance(given, Ragged):
        return _opaque(name, field, given)
    return (_ragged if field.ragged else _fixed)(name, field, given)


def _sparse(name: str, field: Field, given: Sequence[Any]) -> Values:
    """Values of some records among others that have none."""
    there = np.array([value is not None for value in given], np.uint8)
    if not field.optional:
        raise SchemaError(
            f"{name}: record {there.argmin()} of the batch: expected {field}, got None; "
            "it is not optional"
        )
    values = _values(name, field, [value for value in given if value is not None])
    sizes = np.zeros(len(there), np.int64)
    sizes[there == 1] = np.diff(values.bounds(field.row_bytes))
    return Values(len(there), values.data, _ends(sizes), there)


def _fixed(name: str, field: Field, given: Any) -> Values:
    if isinstance(given, Ragged):
        raise SchemaError(f"{name}: expected records of {field}, got ragged ones")
    array = _array(name, given)
    if not len(array) and array.ndim == 1:  # NumPy calls an empty list floats
        array = np.zeros((0, *field.shape), field.dtype)
    return Values(len(array), _bytes_of(name, field, array), None, None)


def _ragged(name: str, field: Field, given: Any) -> Values:
    if isinstance(given, Ragged):
        values, offsets = np.asarray(given.values), np.asarray(given.offsets, np.int64)
        if len(offsets) < 1 or (np.diff(offsets) < 0).any() or offsets[0] < 0:
            raise SchemaError(f"{name}: offsets that do not ascend")
        if offsets[-1] > len(values):
            raise SchemaError(f"{name}: offsets up to {offsets[-1]}, {len(values)} values")
        if field.kind != "array" and (values.dtype != np.uint8 or values.ndim != 1):
            raise SchemaError(f"{name}: expected bytes, got {values.dtype}")
        if field.kind == "str":
            try:
                Ragged(values, offsets, "str").to_list()
            except UnicodeDecodeError:
                raise SchemaError(f"{name}: a record of the batch is not UTF-8") from None
    else:
        rows = [_array(name, row) for row in given]
        for i, row in enumerate(rows):
            if row.ndim != 1 + len(field.shape) or (row.size and row.shape[1:] != field.shape):
                raise SchemaError(
                    f"{name}: record {i} of the batch: expected {field}, got {row.shape}"
                )
        offsets = _ends([len(row) for row in rows])
        filled = [row for row in rows if row.size]
        values = np.concatenate(filled) if filled else np.empty((0, *field.shape), field.dtype)
    data = _bytes_of(name, field, values)
    return Values(len(offsets) - 1, data, offsets * field.row_bytes, None)


def _opaque(name: str, field: Field, given: Any) -> Values:
    if isinstance(given, np.ndarray) and given.dtype.kind == "S":
        raise SchemaError(f"{name}: NumPy's {given.dtype} loses zeros at the end; give a list")
    rows = given.tolist() if isinstance(given, np.ndarray) else list(given)
    wanted = str if field.kind == "str" else (bytes, bytearray, memoryview)
    for i, row in enumerate(rows):
        if not isinstance(row, wanted):
            raise SchemaError(
                f"{name}: record {i} of the batch: expected {field.kind}, got {type(row).__name__}"
            )
    try:
        rows = [row.encode() for row in rows] if field.kind == "str" else rows
    except UnicodeEncodeError as error:
        row = error.object
        raise SchemaError(
            f"{name}: record {rows.index(row)} of the batch is not text: {row!r}"
        ) from None
    ends = _ends([memoryview(row).nbytes for row in rows])
    return Values(len(rows), np.frombuffer(b"".join(rows), np.uint8), ends, None)


def _array(name: str, given: Any) -> NDArray[Any]:
    try:
        return np.asarray(given)
    except (ValueError, TypeError) as error:
        raise SchemaError(f"{name}: not an array: {error}") from None


def _bytes_of(name: str, field: Field, values: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of values, each of which the field can hold."""
    if values.dtype != field.dtype or values.shape[1:] != field.shape:
        ready = np.zeros((len(values), *field.shape), field.dtype)
        fit_into(name, values, ready)
        values = ready
    return np.require(values, requirements=["C", "A"]).reshape(-1).view(np.uint8)


def _ends(sizes: Any) -> Rows:
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends

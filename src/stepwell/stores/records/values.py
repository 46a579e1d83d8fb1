"""Values of records as the core wants them: bytes one behind the other, and where each ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import SchemaError
from stepwell.fit import fit_into
from stepwell.source import Field, Ragged, Rows, is_masked

MAX_BYTES = (1 << 32) - 1


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
    """What is given for each field, checked; with `whole`, only optional ones may be left out.

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
        if values.ends is not None and values.count and np.diff(values.ends).max() > MAX_BYTES:
            row = int(np.diff(values.ends).argmax())
            raise SchemaError(f"{name}: record {row} of the batch has 4 GiB or more")
    return made


def _values(name: str, field: Field, given: Any) -> Values:
    several = isinstance(given, (Ragged, list, tuple)) or (
        np.ndim(given) > 0 if hasattr(given, "__array__") else isinstance(given, Sequence)
    )
    if not several or isinstance(given, (str, bytes, bytearray)):
        raise SchemaError(f"{name}: expected one value for each record, got {type(given).__name__}")
    if is_masked(given) or (isinstance(given, list | tuple) and any(map(is_masked, given))):
        raise TypeError(f"{name}: a masked array would lose its mask; fill it first")
    there = None
    if isinstance(given, (list, tuple)) and any(value is None for value in given):
        if not field.optional:
            row = next(i for i, value in enumerate(given) if value is None)
            raise SchemaError(
                f"{name}: record {row} of the batch: expected {field}, got None; it is not optional"
            )
        there = np.array([value is not None for value in given], np.uint8)
        given = [value for value in given if value is not None]
    if field.kind != "array":
        made = _opaque(name, field, given)
    elif field.ragged:
        made = _ragged(name, field, given)
    else:
        made = _fixed(name, field, given)
    return made if there is None else _spread(made, there, field)


def _spread(values: Values, there: NDArray[np.uint8], field: Field) -> Values:
    """Values of some records among others that have none."""
    sizes = np.zeros(len(there), np.int64)
    sizes[there == 1] = np.diff(values.bounds(field.row_bytes))
    return Values(len(there), values.data, _ends(sizes), there)


def _fixed(name: str, field: Field, given: Any) -> Values:
    if isinstance(given, Ragged):
        raise SchemaError(f"{name}: expected records of {field}, got ragged ones")
    array = _array(name, given)
    shape = (len(array), *field.shape)
    if not len(array) and array.ndim == 1:  # NumPy calls an empty list floats
        array = np.zeros(shape, field.dtype)
    if array.dtype == field.dtype and array.shape == shape:
        ready = np.require(array, requirements=["C", "A"])
    else:
        ready = np.zeros(shape, field.dtype)
        fit_into(name, array, ready)
    return Values(len(ready), _bytes_of(ready), None, None)


def _array(name: str, given: Any) -> NDArray[Any]:
    try:
        return np.asarray(given)
    except (ValueError, TypeError) as error:
        raise SchemaError(f"{name}: not an array: {error}") from None


def _ragged(name: str, field: Field, given: Any) -> Values:
    if isinstance(given, Ragged):
        values, offsets = np.asarray(given.values), np.asarray(given.offsets, np.int64)
        if len(offsets) < 1 or (np.diff(offsets) < 0).any() or offsets[0] < 0:
            raise SchemaError(f"{name}: offsets that do not ascend")
        if offsets[-1] > len(values):
            raise SchemaError(f"{name}: offsets up to {offsets[-1]}, {len(values)} values")
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
    if values.dtype != field.dtype or values.shape[1:] != field.shape:
        ready = np.zeros((len(values), *field.shape), field.dtype)
        fit_into(name, values, ready)
        values = ready
    values = np.require(values, requirements=["C", "A"])
    return Values(len(offsets) - 1, _bytes_of(values), offsets * field.row_bytes, None)


def _opaque(name: str, field: Field, given: Any) -> Values:
    if isinstance(given, Ragged):
        if given.values.dtype != np.uint8 or given.values.ndim != 1:
            raise SchemaError(f"{name}: expected bytes, got {given.values.dtype}")
        made = _ragged(name, field, given)
        if field.kind == "str":
            _check_text(name, made)
        return made
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


def _check_text(name: str, values: Values) -> None:
    """All of it at once: whole text that is cut only before characters is text in each part."""
    assert values.ends is not None
    begin, end = int(values.ends[0]), int(values.ends[-1])
    starts = values.ends[:-1][np.diff(values.ends) > 0]
    try:
        values.data[begin:end].tobytes().decode()
        inside = (values.data[starts] & 0xC0) == 0x80
        if not inside.any():
            return
    except UnicodeDecodeError:
        pass
    raise SchemaError(f"{name}: a record of the batch is not UTF-8")


def _ends(sizes: Any) -> Rows:
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)

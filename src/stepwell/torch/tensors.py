"""Batches as tensors, in types that torch computes with."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from stepwell import _core
from stepwell.errors import SchemaError
from stepwell.source import Batch, Field, Ragged, Schema, Source

Tensors = dict[str, Any]
"""A tensor for each field; of a ragged one `(values, offsets)`, of text a list of `str`."""

_INT64: np.dtype[Any] = np.dtype(np.int64)
_SIGNED: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.uint16): np.dtype(np.int32),
    np.dtype(np.uint32): _INT64,
}
"""torch adds, compares, sorts and pickles neither of these; the signed types hold every value."""


def as_tensors(batch: Batch, as_int64: Sequence[str] = ()) -> Tensors:
    """Tensors over the memory of a batch; a `Ragged` becomes `(values, offsets)`, text a list.

    uint16 and uint32 are copied to int32 and int64, and fields named in `as_int64` become int64:
    exactly, or for uint64 as the same bits.
    """
    return tensors_of(signed(batch, as_int64))


def signed(batch: Batch, as_int64: Sequence[str] = ()) -> Batch:
    """The batch with types that torch computes with; whatever has one stays the same array."""
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"expected a dict of arrays, as a transform too must give, got {type(batch)}"
        )
    for name in as_int64:
        if name not in batch:
            raise _no_field(name, batch)
    return {name: _signed(name, values, name in as_int64) for name, values in batch.items()}


def tensors_of(batch: Batch) -> Tensors:
    """Tensors over the memory of a batch of such types."""
    return {name: _tensor_of(name, values) for name, values in batch.items()}


def _tensor_of(name: str, values: Any) -> Any:
    if isinstance(values, Ragged) and values.kind == "str":
        return values.to_list()
    if isinstance(values, Ragged):
        return _tensor_of(name, values.values), _tensor_of(name, values.offsets)
    if isinstance(values, torch.Tensor):
        return values
    try:
        return torch.from_numpy(values)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"field {name!r}: torch has no tensors of {values.dtype}") from error


def _signed(name: str, values: Any, as_int64: bool) -> Any:
    if isinstance(values, Ragged):
        if as_int64 and values.kind != "array":
            raise _no_number(name, values.kind)
        wide = _signed(name, values.values, as_int64)
        return values if wide is values.values else Ragged(wide, values.offsets, values.kind)
    if isinstance(values, torch.Tensor):  # a transform's own
        return values.to(torch.int64) if as_int64 else values
    dtype = _signed_dtype(name, values.dtype, as_int64)
    if dtype == values.dtype:
        return values
    return values.view(dtype) if dtype.itemsize == values.itemsize else values.astype(dtype)


def _signed_dtype(name: str, dtype: np.dtype[Any], as_int64: bool) -> np.dtype[Any]:
    if not as_int64:
        return _SIGNED.get(dtype, dtype)
    if dtype.kind not in "iu" or not dtype.isnative:
        raise _no_number(name, dtype)
    return _INT64


def int64_names(as_int64: Sequence[str], source: Source, transform: Any) -> tuple[str, ...]:
    """The names, checked; those of fields that a transform makes are checked with a batch."""
    if isinstance(as_int64, str):
        raise TypeError(f"as_int64: expected a list of names, got {as_int64!r}")
    if transform is None:
        signed_types(source.schema, as_int64)
    return tuple(as_int64)


def signed_types(schema: Schema, as_int64: Sequence[str]) -> dict[str, np.dtype[Any]]:
    """The fields that get another type for torch, and that type."""
    for name in as_int64:
        if name not in schema:
            raise _no_field(name, schema)
        if schema[name].kind != "array":
            raise _no_number(name, schema[name].kind)
    types = {name: _signed_dtype(name, f.dtype, name in as_int64) for name, f in schema.items()}
    return {name: dtype for name, dtype in types.items() if dtype != schema[name].dtype}


def _no_field(name: str, fields: Mapping[str, Any]) -> KeyError:
    return KeyError(f"as_int64: no field {name!r}; there are {sorted(fields)}")


def _no_number(name: str, dtype: Any) -> SchemaError:
    return SchemaError(f"as_int64: expected whole numbers, field {name!r} is {dtype}")


class Signed(Source):
    """A source as native threads read it for torch: they widen while they fill a batch."""

    def __init__(self, base: Source, types: Mapping[str, np.dtype[Any]]) -> None:
        self._base = base
        self._schema = {
            name: dataclasses.replace(field, dtype=types.get(name, field.dtype))
            for name, field in base.schema.items()
        }

    @property
    def schema(self) -> Mapping[str, Field]:
        return self._schema

    def __len__(self) -> int:
        return len(self._base)

    def _native(self, names: Sequence[str]) -> _core.Reader | None:
        reader = self._base._reader
        if reader is None:
            return None
        old, new = self._base.schema, self._schema
        widths = [
            (old[name].dtype.itemsize, new[name].dtype.itemsize, old[name].dtype.kind == "i")
            if old[name].dtype != new[name].dtype
            else (1, 1, False)
            for name in names
        ]
        return _core.widened_reader(reader, widths)

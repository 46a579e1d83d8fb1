"""`.safetensors` files: a header of JSON behind its length, then the bytes of all tensors.

NumPy has no bfloat16: such tensors are read as float32, exactly, and the attribute `bfloat16` names
them, so that they are written as what they were.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell.batches import attributes_of, in_order, rows_of
from stepwell.errors import FormatError, SchemaError
from stepwell.files.regular import open_regular
from stepwell.formats.parts import Part, grow_file
from stepwell.formats.runs import equally_long
from stepwell.formats.streams import Progress, Stream, contiguous, only_fixed, part_of
from stepwell.source import Batch, Field, Source

BFLOAT16 = "bfloat16"

_DTYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"},
    **{"I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1"},
    "BOOL": "?",
}
_TAGS = {np.dtype(code): tag for tag, code in _DTYPES.items() if tag != "BF16"}
_MAX_HEADER_BYTES = 100_000_000  # its own readers refuse more


class _Tensor(NamedTuple):
    """Where a tensor is in its file."""

    tag: str
    shape: tuple[int, ...]
    offset: int

    @property
    def row_bytes(self) -> int:
        return np.dtype(_DTYPES[self.tag]).itemsize * math.prod(self.shape[1:])


class SafetensorsSource(Stream):
    """The tensors of a file as fields, equally long, or those that are chosen."""

    kind = "safetensors"
    noun = "a safetensors file"

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        where = Path(path)
        found = _read_tensors(where)
        lengths = {n: tensor.shape[0] if tensor.shape else None for n, tensor in found.items()}
        kept, rows = equally_long(where, lengths, fields)
        self._tensors = {name: found[name] for name in kept}
        made = {}
        for name, (tag, shape, _) in self._tensors.items():
            if tag not in _DTYPES:
                raise SchemaError(
                    f"{where}: {name!r} is {tag} {list(shape)}; expected {', '.join(_DTYPES)}"
                )
            made[name] = Field(np.dtype("<f4" if tag == "BF16" else _DTYPES[tag]), shape[1:])
        odd = [name for name, tensor in self._tensors.items() if tensor.tag == "BF16"]
        super().__init__(str(where), made, rows, {BFLOAT16: odd} if odd else None)

    def _from(self, first: int, names: Sequence[str]) -> Iterator[Batch]:
        count = rows_of(sum(self._tensors[name].row_bytes for name in names))
        with open_regular(Path(str(self.path))) as file:
            for begin in range(first, len(self), count):
                rows = min(count, len(self) - begin)
                yield {name: self._read(file, self._tensors[name], begin, rows) for name in names}

    def _read(self, file: Any, tensor: _Tensor, begin: int, rows: int) -> NDArray[Any]:
        file.seek(tensor.offset + begin * tensor.row_bytes)
        values = np.fromfile(file, _DTYPES[tensor.tag], rows * math.prod(tensor.shape[1:]))
        if values.nbytes != rows * tensor.row_bytes:
            raise FormatError("truncated while it was read", path=self.path)
        if tensor.tag == "BF16":
            values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return values.reshape(rows, *tensor.shape[1:])


def _read_tensors(path: Path) -> dict[str, _Tensor]:
    """The tensors of a file. Raises `FormatError` for one that is none, or is truncated."""

    def broken(message: str, offset: int) -> FormatError:
        return FormatError(message, path=str(path), offset=offset)

    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(start := file.read(8), "little")
        if length > _MAX_HEADER_BYTES:
            raise broken(f"header: expected at most {_MAX_HEADER_BYTES} bytes, got {length}", 0)
        if len(start) < 8 or length > size - 8:
            raise broken(f"truncated: expected a header of {8 + length} bytes, got {size}", size)
        text = file.read(length)
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("expected an object")
        found.pop("__metadata__", None)
        made = {name: _tensor(name, about, 8 + length) for name, about in found.items()}
        end = 8 + length + max((about["data_offsets"][1] for about in found.values()), default=0)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise broken(f"the header does not parse: {error!r}", 8) from None
    if end > size:
        raise broken(f"truncated: expected {end} bytes, got {size}", size)
    return made


def _tensor(name: str, about: Mapping[str, Any], base: int) -> _Tensor:
    dtype, shape, (begin, end) = about["dtype"], about["shape"], about["data_offsets"]
    numbers = [*shape, begin, end]
    if any(type(n) is not int or not 0 <= n < 1 << 62 for n in numbers) or begin > end:
        raise ValueError(f"{name}: expected a shape and offsets, got {shape}, {begin} and {end}")
    if dtype in _DTYPES and end - begin != np.dtype(_DTYPES[dtype]).itemsize * math.prod(shape):
        raise ValueError(f"{name}: expected the bytes of {dtype} {shape}, got {end - begin}")
    return _Tensor(str(dtype), tuple(shape), base + begin)


def write(source: Source, part: Part, *, progress: Progress) -> None:
    """Write a tensor for each field, one after the other; the file's size shows where to go on."""
    only_fixed(source, "a tensor")
    odd = attributes_of(source).get(BFLOAT16)
    total, at = len(source), 0
    about: dict[str, Any] = {}
    for name, field in source.schema.items():
        tag = _TAGS.get(field.dtype.newbyteorder("<"))
        if tag is None:
            raise SchemaError(f"{name!r}: safetensors has no type for {field}")
        if tag == "F32" and isinstance(odd, list) and name in odd:
            tag = "BF16"
        shape = (total, *field.shape)
        end = at + np.dtype(_DTYPES[tag]).itemsize * math.prod(shape)
        about[name] = {"dtype": tag, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(about).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    with grow_file(part.path, header) as out:
        there = out.tell() - len(header)
        for k, (name, field) in enumerate(source.schema.items()):
            begin, end = about[name]["data_offsets"]
            if there >= end:
                continue
            row_bytes = (end - begin) // total
            done = max(0, there - begin) // row_bytes
            out.seek(len(header) + begin + done * row_bytes)
            out.truncate()
            one = source.columns([name])
            for batch in in_order(one, done, part_of(progress, k, len(about))):
                values = batch[name].astype(field.dtype.newbyteorder("<"), copy=False)
                if about[name]["dtype"] == "BF16":
                    values = (np.ascontiguousarray(values).view("<u4") >> 16).astype("<u2")
                out.write(contiguous(values))

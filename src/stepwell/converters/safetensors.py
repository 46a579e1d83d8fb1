"""`.safetensors` files: a header of JSON behind its length, then the bytes of all tensors."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from stepwell.errors import FormatError
from stepwell.files.regular import open_regular

__all__ = ["KINDS", "Tensor", "header_of", "read_tensors"]

KINDS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Those of its dtypes that shards have."""

_MOST_HEADER_BYTES = 100_000_000  # its own readers refuse more
_SIZES = {"F32": 4, "F16": 2, "BF16": 2}


class Tensor(NamedTuple):
    """Where a tensor is in its file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


def read_tensors(path: Path) -> dict[str, Tensor]:
    """What is in a file. Raises `FormatError` for one that is none, or that ends early."""

    def broken(message: str, offset: int) -> FormatError:
        return FormatError(message, path=str(path), offset=offset)

    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(start := file.read(8), "little")
        if len(start) < 8 or length > min(size - 8, _MOST_HEADER_BYTES):
            raise broken(f"a header of {length} bytes does not fit the file", 0)
        text = file.read(length)
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("no object")
        found.pop("__metadata__", None)
        return {name: _tensor(name, about, 8 + length, size) for name, about in found.items()}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise broken(f"the header does not parse: {error!r}", 8) from None


def _tensor(name: str, about: Mapping[str, Any], base: int, size: int) -> Tensor:
    dtype, shape, (begin, end) = about["dtype"], about["shape"], about["data_offsets"]
    numbers = [*shape, begin, end]
    if any(type(n) is not int or not 0 <= n < 1 << 62 for n in numbers) or begin > end:
        raise ValueError(f"{name}: {shape} at {begin} to {end}")
    if base + end > size:
        raise ValueError(f"{name}: ends at {base + end}, the file at {size}")
    if dtype in _SIZES and end - begin != _SIZES[dtype] * math.prod(shape):
        raise ValueError(f"{name}: {end - begin} bytes for {dtype} {shape}")
    return Tensor(str(dtype), tuple(shape), base + begin)


def header_of(name: str, kind: str, shape: tuple[int, ...]) -> bytes:
    """The beginning of a file with one tensor; its values are at a multiple of 8."""
    dtype = next(tag for tag, known in KINDS.items() if known == kind)
    end = _SIZES[dtype] * math.prod(shape)
    about = {name: {"dtype": dtype, "shape": list(shape), "data_offsets": [0, end]}}
    text = json.dumps(about).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text

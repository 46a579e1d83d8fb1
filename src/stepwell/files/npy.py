"""The header of a `.npy` file, read strictly and without trusting it."""

import ast
import math
import os
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from stepwell.errors import FormatError, VersionError

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 1 << 20
MAX_AXES = 64
FORTRAN = "rows of a Fortran-ordered array are not contiguous"


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """The header of a `.npy` file that is large enough for it."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    data_offset: int

    @property
    def data_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


def read_header(file: BinaryIO, path: Path, *, whole: bool = True) -> NpyHeader:
    """Return the header of an open file whose rows (first axis) are contiguous.

    Raises `FormatError` for anything that is not such a file: what `parse_header` refuses, Python
    objects (never unpickled), Fortran order, a truncated file (unless the caller checks that
    itself: `whole=False`).
    """
    size = os.fstat(file.fileno()).st_size
    header, fortran = parse_header(file, size, path)
    dtype, shape = header.dtype, header.shape

    def refuse(message: str, offset: int = 10) -> FormatError:
        return FormatError(message, path=str(path), offset=offset)

    if dtype.hasobject:
        raise refuse(f"expected plain numbers, got Python objects ({dtype})")
    if not shape:
        raise refuse("expected rows, got a single value")
    if fortran:
        raise refuse(f"{FORTRAN}; save it with np.save(path, np.ascontiguousarray(array))")
    if whole and header.data_offset + header.data_bytes > size:
        raise refuse(
            f"truncated: expected {header.data_bytes} bytes of data for {dtype} {shape}, "
            f"got {size - header.data_offset}",
            size,
        )
    return header


def parse_header(file: Any, size: int, path: Path | str) -> tuple[NpyHeader, bool]:
    """The header, and whether its rows are not contiguous (Fortran's order).

    Raises `FormatError` for a wrong magic, a header that does not parse, and what no array is.
    """

    def refuse(message: str, offset: int) -> FormatError:
        return FormatError(message, path=str(path), offset=offset)

    start = file.read(12)
    if start[:6] != MAGIC[: len(start)]:
        raise refuse(f"expected magic {MAGIC!r}, got {start[:6]!r}", 0)
    if len(start) < 12:
        raise refuse(f"truncated: expected 12 bytes or more, got {len(start)}", len(start))
    version = (start[6], start[7])
    if version not in {(1, 0), (2, 0), (3, 0)}:
        raise VersionError(
            f"expected .npy version 1.0, 2.0 or 3.0, got {version[0]}.{version[1]}",
            path=str(path),
            offset=6,
        )
    text_at = 10 if version == (1, 0) else 12
    length = int.from_bytes(start[8:text_at], "little")
    if length > MAX_HEADER_BYTES:
        raise refuse(f"header: expected at most {MAX_HEADER_BYTES} bytes, got {length}", 8)
    if length > size - text_at:
        raise refuse(f"truncated: expected a header of {length} bytes, got {size - text_at}", size)
    file.seek(text_at)
    text = file.read(length)
    try:
        dtype, fortran, shape = _parse(text, "utf-8" if version == (3, 0) else "latin-1")
    except Exception as error:  # whatever a damaged literal makes Python or NumPy raise
        raise refuse(f"the header does not parse: {error}", 10) from None
    # Larger than NumPy itself could hold, were the bytes there.
    size_of_all = max(dtype.itemsize, 1) * math.prod(n for n in shape if n > 0)
    if dtype.subdtype is not None or len(shape) > MAX_AXES or size_of_all >= 2**63:
        raise refuse(f"expected an array that NumPy can hold, got {dtype} {shape}", text_at)
    return NpyHeader(dtype, shape, text_at + length), fortran and len(shape) > 1


def array_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header that NumPy writes, for names of fields in any script too."""
    out = BytesIO()
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    try:
        np.lib.format.write_array_header_1_0(out, about)
    except (UnicodeError, ValueError):  # names beyond Latin-1, or more than 64 KiB of them
        text = repr(about).encode()
        text += b" " * (-(len(text) + 13) % 64) + b"\n"
        return MAGIC + b"\x03\x00" + len(text).to_bytes(4, "little") + text
    return out.getvalue()


def header_bytes(dtype: np.dtype[Any], rows: int, size: int | None = None) -> bytes:
    """The header of an array of `rows` in version 1.0.

    NumPy leaves room for a longer number of rows; with `size` the header is made to fill
    exactly `size` bytes, so that one array's header can be replaced by a later one's. Raises
    `ValueError` when it does not fit.
    """
    made = array_header(dtype, (rows,))
    if made[6] != 1:
        raise ValueError(f"names of fields must be Latin-1 and below 64 KiB, got {dtype.names}")
    if size is None or len(made) == size:
        return made
    text = made[10:].rstrip() + b"\n"
    if not 10 + len(text) <= size < 1 << 16:
        raise ValueError(f"header: expected {10 + len(text)} bytes for {rows} rows, got {size}")
    return made[:8] + (size - 10).to_bytes(2, "little") + text[:-1].ljust(size - 11) + b"\n"


def padded_header(start: bytes, size: int, multiple: int, path: str) -> tuple[bytes, int]:
    """The header of the same array with spaces in it, up to a multiple of bytes, and where the rows
    begin behind the header as it is. `start` has all of that."""
    found, _ = parse_header(BytesIO(start), size, path)
    at = found.data_offset
    text_at = 10 if start[6] == 1 else 12
    length = -(-at // multiple) * multiple
    if text_at == 10 and length - text_at >= 1 << 16:
        raise FormatError(f"expected a header below 60 KiB, got {at:,} bytes", path=path)
    text = start[text_at:at].rstrip(b" \n").ljust(length - text_at - 1) + b"\n"
    return start[:8] + (length - text_at).to_bytes(text_at - 8, "little") + text, at


def header_length(start: bytes) -> int:
    """How many bytes the header has of which these are the first 12; 0 of what is none."""
    if start[:6] != MAGIC or len(start) < 12:
        return 0
    text_at = 10 if start[6] == 1 else 12
    return text_at + min(int.from_bytes(start[8:text_at], "little"), MAX_HEADER_BYTES)


def dtype_to_json(dtype: np.dtype[Any]) -> Any:
    """A dtype as JSON can keep it. Raises `ValueError` for one that has no description."""
    return np.lib.format.dtype_to_descr(dtype)


def dtype_from_json(parts: Any) -> np.dtype[Any]:
    """The dtype again, whose tuples JSON turned into lists. Raises `ValueError` for nonsense."""
    try:
        dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(_as_descr(parts))
    except Exception as error:  # whatever it makes NumPy raise
        raise ValueError(f"expected a dtype, got {parts!r}: {error!r}") from None
    return dtype


def _as_descr(parts: Any) -> Any:
    if not isinstance(parts, list):
        return parts
    return [
        (tuple(name) if isinstance(name, list) else name, _as_descr(descr), *map(tuple, shape))
        for name, descr, *shape in parts
    ]


@lru_cache(maxsize=64)  # the files of one store have the same, or nearly so
def _parse(text: bytes, encoding: str) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    header = ast.literal_eval(text.decode(encoding))
    dtype = np.lib.format.descr_to_dtype(header["descr"])
    fortran, shape = header["fortran_order"], header["shape"]
    whole = all(type(n) is int and 0 <= n < 2**62 for n in shape)
    if set(header) != {"descr", "fortran_order", "shape"} or type(fortran) is not bool:
        raise ValueError("unexpected keys or values")
    if type(shape) is not tuple or not whole:
        raise ValueError(f"shape {shape!r}")
    return dtype, fortran, shape

"""`.npy` files. They are read by `ArraySource`, and written from fields of fixed shape: one field
becomes a plain array, several become a structured array without padding.
"""

from io import BytesIO
from typing import Any

import numpy as np

from stepwell.formats.parts import Part, grow_file
from stepwell.formats.streams import Progress, contiguous, count_of, in_order, only_fixed
from stepwell.source import Source

__all__ = ["header_of", "write"]


def write(source: Source, part: Part, *, progress: Progress) -> None:
    """Write all rows to a file, whose size says where to go on."""
    only_fixed(source, "a .npy file", "; choose another field, or write a .npz file")
    fields = [(name, field.dtype, field.shape) for name, field in source.schema.items()]
    plain = len(fields) == 1
    dtype = np.dtype(fields[0][1:] if plain else fields)
    # A plain array's rows have their shape in the header, a structured one's in the dtype.
    header = header_of(dtype.base if plain else dtype, (len(source), *dtype.shape))
    with grow_file(part.path, header) as out:
        done = min(len(source), (out.tell() - len(header)) // max(1, dtype.itemsize))
        out.seek(len(header) + done * dtype.itemsize)
        out.truncate()
        for batch in in_order(source, done, progress):
            if plain:
                (rows,) = batch.values()
            else:
                rows = np.empty(count_of(batch), dtype)
                for name, values in batch.items():
                    rows[name] = values
            out.write(contiguous(rows))


def header_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header that NumPy writes, for names of fields in any script too."""
    out = BytesIO()
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    try:
        np.lib.format.write_array_header_1_0(out, about)
    except (UnicodeError, ValueError):  # names beyond Latin-1, or more than 64 KiB of them
        text = repr(about).encode()
        text += b" " * (-(len(text) + 13) % 64) + b"\n"
        return b"\x93NUMPY\x03\x00" + len(text).to_bytes(4, "little") + text
    return out.getvalue()

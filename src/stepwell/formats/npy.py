"""`.npy` files. They are read by `ArraySource`, and written from fields of fixed shape: one field
becomes a plain array, several become a structured array without padding.
"""

import numpy as np

from stepwell.batches import count_of, in_order
from stepwell.files.npy import array_header
from stepwell.formats.parts import Part, grow_file
from stepwell.formats.streams import Progress, contiguous, only_fixed
from stepwell.source import Source


def write(source: Source, part: Part, *, progress: Progress) -> None:
    """Write all rows to a file, whose size shows where to go on."""
    only_fixed(source, "a .npy file", "; choose another field, or write a .npz file")
    fields = [(name, field.dtype, field.shape) for name, field in source.schema.items()]
    plain = len(fields) == 1
    dtype = np.dtype(fields[0][1:] if plain else fields)
    # A plain array's rows have their shape in the header, a structured one's in the dtype.
    header = array_header(dtype.base if plain else dtype, (len(source), *dtype.shape))
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

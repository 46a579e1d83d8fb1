"""Batches on a CUDA device, copied there by the core's own threads.

A feed has memory on one device. Threads read rows into pinned memory and begin the copy, of several
batches where they are small; `next` has the consumer's stream wait for it, and hands out a DLPack
capsule for each field. When the last tensor over these batches is gone, their memory is used again,
behind the work of that stream.
"""

import math

from stepwell import _core
from stepwell.errors import SchemaError
from stepwell.source import Schema

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
"""DLPack's code of each of NumPy's kinds."""

_TOGETHER, _TOGETHER_BYTES = 16, 1 << 21
"""What batches that cross together may be: so much is kept by whoever keeps one of them."""


def make_feed(
    device: int,
    schema: Schema,
    rows: int,
    *,
    threads: int,
    prefetch: int,
    together: int | None = None,
) -> _core.CudaFeed:
    """Memory on a device for batches of up to `rows`, of which `prefetch` wait for the consumer and
    up to `together` cross at once; as many as is good for their size by default.

    Raises `DeviceError` where there is no driver, `ValueError` for a device that is not there and
    `SchemaError` for a field of which there are no tensors.
    """
    fields = []
    for name, field in schema.items():
        dtype = field.dtype
        if dtype.name == "bfloat16":
            code = 4
        elif dtype.kind in _CODES and dtype.isnative and dtype.itemsize <= 16 and dtype.char != "g":
            code = _CODES[dtype.kind]
        else:
            raise SchemaError(f"field {name!r}: a device has no tensors of {dtype}")
        fields.append((name, code, 8 * dtype.itemsize, list(field.shape)))
    if together is None:
        size = rows * sum(
            field.dtype.itemsize * math.prod(field.shape) for field in schema.values()
        )
        together = min(max(_TOGETHER_BYTES // max(size, 1), 1), _TOGETHER)
    groups = -(-(prefetch + threads) // together) + 2
    return _core.CudaFeed(device, fields, rows, together, threads, groups)

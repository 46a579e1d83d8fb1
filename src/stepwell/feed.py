"""Batches on a CUDA device, copied there by the core's own threads.

A feed has memory on one device. Threads read rows into pinned memory and begin the copy; `next` has
the consumer's stream wait for it, and hands out a DLPack capsule for each field. When the last
tensor over a batch is gone, its memory is used again, behind the work of that stream.
"""

from stepwell import _core
from stepwell.errors import SchemaError
from stepwell.source import Schema

_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
"""DLPack's code of each of NumPy's kinds."""


def make_feed(
    device: int, schema: Schema, rows: int, *, threads: int, prefetch: int
) -> _core.CudaFeed:
    """Memory on a device for batches of up to `rows`, of which `prefetch` wait for the consumer.

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
    return _core.CudaFeed(device, fields, rows, threads, prefetch + threads + 2)

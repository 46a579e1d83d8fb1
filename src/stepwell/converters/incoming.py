"""What every format that can become a record store is to the converter.

An `Incoming` says what its records are and how many there are, and reads them in order from any
record on, a few MiB at a time. That is all that going on after a kill needs.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepwell.errors import FormatError, SchemaError, StepwellError
from stepwell.source import Batch, Ragged

__all__ = [
    "BATCH_BYTES",
    "Column",
    "Incoming",
    "damage_in",
    "files_sum",
    "rows_of",
    "size_of",
]

BATCH_BYTES = 8 << 20
"""About so many bytes are read, and written, at once."""


class Column(NamedTuple):
    """What a record of one column is."""

    dtype: np.dtype[Any] | type[str] | type[bytes]
    shape: tuple[int, ...] = ()
    ragged: bool = False

    @classmethod
    def of(cls, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> "Column":
        """A column of fixed shape. Raises `SchemaError` for what no field can be."""
        base, whole = dtype.base, (*shape, *dtype.shape)
        if base.names is not None or base.hasobject:
            raise SchemaError(f"{name!r}: expected plain numbers, got {dtype}")
        if 0 in (base.itemsize, *whole):
            raise SchemaError(f"{name!r}: a record of {dtype} {shape} has no bytes")
        return cls(base, whole)


@dataclass(frozen=True)
class Incoming:
    """Records to be converted."""

    format: str
    columns: Mapping[str, Column]
    total: int
    files: str
    """Changes when the files do."""
    batches: Callable[[int], Iterator[Batch]]
    """The records from the given one on, as a store's `append` takes them."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """What else is known, to be kept with the store."""


def files_sum(files: Iterable[tuple[str, os.stat_result]]) -> str:
    """A sum of names, sizes and times, to tell whether files are still the same."""
    total = hashlib.blake2b(digest_size=16)
    for name, stat in files:
        line = f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n"
        total.update(line.encode(errors="surrogateescape"))
    return total.hexdigest()


def rows_of(row_bytes: int) -> int:
    """How many rows of this size are read at once."""
    return max(1, BATCH_BYTES // max(row_bytes, 1))


def size_of(batch: Batch) -> int:
    """Bytes of what is in a batch."""
    return sum(
        values.values.nbytes + values.offsets.nbytes
        if isinstance(values, Ragged)
        else values.nbytes
        for values in batch.values()
    )


@contextmanager
def damage_in(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """What a library says about a damaged file, as a `FormatError` that names it."""
    try:
        yield
    except StepwellError:
        raise
    except kinds as error:
        if isinstance(error, OSError) and error.errno is not None:  # the system's, not the file's
            raise
        raise FormatError(f"cannot be read: {error}", path=str(path)) from error

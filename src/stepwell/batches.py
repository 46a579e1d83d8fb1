"""Rows in order, a few MiB at a time: what formats are written from, and other libraries read."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.errors import FormatError
from stepwell.field import Batch, Ragged

if TYPE_CHECKING:
    from stepwell.source import Source

Progress = Callable[[int, int], None]
"""Called with how much is done, and of how much."""

BATCH_BYTES = 8 << 20
"""Bytes that are read, and written, at once."""

MAX_RAGGED = 1 << 16
_MAX_UNKNOWN = 1 << 10
"""Ragged rows that are read at once where only reading shows how large they are."""


def in_order(
    source: "Source",
    first: int = 0,
    progress: Progress = lambda done, total: None,
    *,
    max_bytes: int | None = None,
) -> Iterator[Batch]:
    """The rows from `first` on, a few MiB or `max_bytes` at a time, at least one row.

    `progress` is called before the first batch, and behind each. Raises `FormatError` when there
    are fewer rows than `len(source)`.
    """
    total = len(source)
    progress(first, total)
    for batch in _batches(source, first, max_bytes):
        yield batch
        first += count_of(batch)
        progress(first, total)
    if first < total:
        raise FormatError(f"truncated: expected {total} rows, got {first}", path=source.path)


def whole(source: "Source") -> Batch:
    """All rows as one batch, read in order into arrays of their own."""
    source._check_open()
    batch = source._empty(len(source))
    parts: dict[str, list[Ragged]] = {name: [] for name in source.schema if name not in batch}
    first = 0
    for rows in in_order(source):
        end = first + count_of(rows)
        for name, values in rows.items():
            if name in parts:
                parts[name].append(values)
            else:
                batch[name][first:end] = values
        first = end
    batch |= {name: Ragged.joined(some, source.schema[name]) for name, some in parts.items()}
    return {name: batch[name] for name in source.schema}


def _batches(source: "Source", first: int, max_bytes: int | None) -> Iterator[Batch]:
    stored = source._from(first, list(source.schema))
    if stored is not None:
        yield from stored
        return
    limit = min(BATCH_BYTES, max_bytes or BATCH_BYTES)
    ragged = [name for name, field in source.schema.items() if field.ragged]
    fixed = sum(field.row_bytes for field in source.schema.values() if not field.ragged)
    max_rows = max(1, limit // max(1, fixed + 8 * len(ragged)))
    at_once = max_rows = min(max_rows, MAX_RAGGED) if ragged else max_rows
    known = source._sizes(np.arange(0), ragged) is not None if ragged else True
    if ragged:
        max_rows = max_rows if known else min(max_rows, _MAX_UNKNOWN)
        at_once = min(max_rows, _MAX_UNKNOWN if known else 16)
    unpacked = 1.0  # how much larger rows are than what is stored of them
    while first < len(source):
        end = min(first + at_once, len(source))
        if ragged and known:
            sizes: Any = source._sizes(np.arange(first, end), ragged)
            ends = np.cumsum(sizes * unpacked + fixed)
            end = min(end, first + max(1, int(np.searchsorted(ends, limit, side="right"))))
        taken = source.take(np.arange(first, end))
        batch = {name: _from_zero(values) for name, values in taken.items()}
        yield batch
        if ragged and known:
            size = sum(batch[name].values.nbytes for name in ragged)
            unpacked = max(1.0, size / max(1, int(sizes[: end - first].sum())))
            at_once = max_rows if unpacked == 1 else min(max_rows, _MAX_UNKNOWN)
        elif ragged:
            fits = limit * (end - first) // max(1, size_of(batch))
            at_once = max(1, min(max_rows, 2 * at_once, fits))
        first = end


def _from_zero(values: Any) -> Any:
    """A ragged field whose items begin with those of the first row, and end with the last's."""
    if isinstance(values, Ragged) and (
        values.offsets[0] or values.offsets[-1] != len(values.values)
    ):
        items = values.values[values.offsets[0] : values.offsets[-1]]
        return Ragged(items, values.offsets - values.offsets[0], values.kind)
    return values


def attributes_of(source: "Source") -> dict[str, Any]:
    """The metadata of a source, or of the source that it is a view of."""
    found = getattr(source, "attributes", None)
    if getattr(source, "stored_dtype", "") == "bfloat16":  # read as float32
        found = {"bfloat16": list(source.schema)}
    if found is None and (base := getattr(source, "_base", None)) is not None:
        return attributes_of(base)
    return dict(found or {})


def count_of(batch: Batch) -> int:
    """The rows of a batch."""
    return len(next(iter(batch.values())))


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

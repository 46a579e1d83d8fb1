"""Rows in order, a few MiB at a time: how formats are read, and what they are written from.

A format that is read gives a `Stream`: a source that reads from any row on to the end. A format
that is written takes any source, through `in_order`. Memory is a few batches of `BATCH_BYTES`,
however large the file is.
"""

import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import FormatError, SchemaError
from stepwell.source import Batch, Field, Ragged, Rows, Schema, Source
from stepwell.store import Progress as Progress, Report, Runs, Store
from stepwell.views import Columns

BATCH_BYTES = 8 << 20
"""Bytes that are read, and written, at once."""

_MAX_RAGGED = 1 << 16
_MAX_UNKNOWN = 1 << 10
"""Ragged rows that are read at once where only reading shows how large they are."""


class _Held(NamedTuple):
    """Where the last `take` stopped."""

    process: int
    names: tuple[str, ...]
    begin: int
    batch: Batch
    rest: Iterator[Batch]


class Stream(Store):
    """The rows of a file that is read from one row to the next.

    `take` works in any order, but reads everything between the rows; what follows the rows of the
    last `take` is found at once.
    """

    kind = ""
    """The name of the format."""
    runs: Runs | None = None
    """The runs of the rows, where the file knows of any."""

    @classmethod
    def recognizes(cls, path: Path) -> bool:
        from stepwell.formats import BY_NAME  # which has this module in it

        return cls.kind in BY_NAME and BY_NAME[cls.kind].recognizes(path)

    def _verified(self, quick: bool, progress: Progress) -> Report:
        """Read every row: a format without our checksums allows no more."""
        problems: tuple[FormatError, ...] = ()
        checked = ["the header"]
        if not quick:
            checked.append(f"that its {len(self):,} rows can be read")
            try:
                for _ in in_order(self, progress=progress):
                    pass
            except FormatError as error:
                problems = (error,)
            except SchemaError as error:  # rows that a source cannot have: nulls
                problems = (FormatError(str(error), path=self.path),)
        unchecked = ("the values: there are no checksums of ours",)
        return Report(self.kind, self.path, problems, tuple(checked), unchecked)

    def __init__(
        self,
        path: str,
        fields: Schema,
        rows: int,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises `SchemaError` for fields of Python objects and of structures."""
        for name, field in fields.items():
            if field.dtype.hasobject:
                raise SchemaError(
                    f"{path}: {name!r}: expected plain numbers, got Python objects ({field.dtype})"
                )
            if field.dtype.names is not None:
                raise SchemaError(
                    f"{path}: {name!r} is structured ({field.dtype}): save it as a .npy file"
                )
        self._path = path
        self._fields = dict(fields)
        self._rows = rows
        self.attributes: dict[str, Any] = dict(attributes or {})
        """Metadata of the file, to be kept with the rows."""

    @abstractmethod
    def _from(self, first: int, names: Sequence[str]) -> Iterator[Batch]:
        """These fields of the rows from `first` on, none of the batches empty."""

    def __len__(self) -> int:
        return self._rows

    @property
    def schema(self) -> Schema:
        return self._fields

    @property
    def path(self) -> str:
        return self._path

    def _runs(self) -> tuple[Rows, Rows]:
        return super()._runs() if self.runs is None else (self.runs.starts, self.runs.counts)

    def _fill_columns(self, rows: Rows, out: Batch, names: Sequence[str]) -> None:
        ragged: dict[str, list[Any]] = {
            name: [None] * len(rows) for name in names if self._fields[name].ragged
        }
        for begin, batch in self._stretch(rows, names):
            here = np.flatnonzero((rows >= begin) & (rows < begin + count_of(batch)))
            within = rows[here] - begin
            for name in names:
                values = batch[name]
                if name not in ragged:
                    out[name][here] = values[within]
                    continue
                for place, row in zip(here.tolist(), within.tolist(), strict=True):
                    low, high = values.offsets[row : row + 2]
                    ragged[name][place] = values.values[low:high]
        for name, parts in ragged.items():
            field = self._fields[name]
            out[name] = Ragged.from_list(parts, Field(field.dtype, field.shape, ragged=True))
            out[name].kind = field.kind

    def _stretch(self, rows: Rows, names: Sequence[str]) -> Iterator[tuple[int, Batch]]:
        """The batches that these rows are in, each with the number of its first row."""
        if not len(rows):
            return
        low, high, wanted = int(rows.min()), int(rows.max()), tuple(names)
        # Taken out while it is used: another thread begins where it has to.
        held: _Held | None = self.__dict__.pop("_held", None)
        usable = held is not None and held.process == os.getpid() and held.names == wanted
        if held is None or not usable or held.begin > low:
            rest = iter(self._from(low, wanted))
            held = _Held(os.getpid(), wanted, low, self._next(rest), rest)
        begin, batch = held.begin, held.batch
        while True:
            end = begin + count_of(batch)
            if end > low:
                yield begin, batch
            if end > high:
                break
            begin, batch = end, self._next(held.rest)
        self._held = held._replace(begin=begin, batch=batch)

    def _next(self, rest: Iterator[Batch]) -> Batch:
        batch = next(rest, None)
        if batch is None:
            raise FormatError(f"truncated: expected {self._rows} rows, got fewer", path=self._path)
        return batch

    def __getstate__(self) -> dict[str, Any]:
        return {name: v for name, v in super().__getstate__().items() if name != "_held"}

    def close(self) -> None:
        super().close()
        self.__dict__.pop("_held", None)


def in_order(
    source: Source,
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


def _batches(source: Source, first: int, max_bytes: int | None) -> Iterator[Batch]:
    base = source._base if isinstance(source, Columns) else source
    if isinstance(base, Stream):
        names = source._names if isinstance(source, Columns) else {n: n for n in source.schema}
        for batch in base._from(first, list(dict.fromkeys(names.values()))):
            yield {name: batch[old] for name, old in names.items()}
        return
    limit = min(BATCH_BYTES, max_bytes or BATCH_BYTES)
    ragged = [name for name, field in source.schema.items() if field.ragged]
    fixed = sum(field.row_bytes for field in source.schema.values() if not field.ragged)
    max_rows = max(1, limit // max(1, fixed + 8 * len(ragged)))
    at_once = max_rows = min(max_rows, _MAX_RAGGED) if ragged else max_rows
    known = source._sizes(np.arange(0), ragged) is not None if ragged else True
    if ragged:
        max_rows = max_rows if known else min(max_rows, _MAX_UNKNOWN)
        at_once = min(max_rows, _MAX_UNKNOWN if known else 16)
    unpacked = 1.0  # how much larger rows are than what is stored of them
    while first < len(source):
        end = min(first + at_once, len(source))
        if ragged and known:
            stored: Any = source._sizes(np.arange(first, end), ragged)
            ends = np.cumsum(stored * unpacked + fixed)
            end = min(end, first + max(1, int(np.searchsorted(ends, limit, side="right"))))
        taken = source.take(np.arange(first, end))
        batch = {name: _from_zero(values) for name, values in taken.items()}
        yield batch
        if ragged and known:
            size = sum(batch[name].values.nbytes for name in ragged)
            unpacked = max(1.0, size / max(1, int(stored[: end - first].sum())))
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


def attributes_of(source: Source) -> dict[str, Any]:
    """The metadata of a source, or of the source that it is a view of."""
    found = getattr(source, "attributes", None)
    if getattr(source, "stored_dtype", "") == "bfloat16":  # read as float32
        found = {"bfloat16": list(source.schema)}
    if found is None and (base := getattr(source, "_base", None)) is not None:
        return attributes_of(base)
    return dict(found or {})


def part_of(progress: Progress, number: int, parts: int) -> Progress:
    """The progress of one of several times that all rows are read."""
    return lambda done, total: progress((number * total + done) // parts, total)


def batches_of(
    rows: Iterable[tuple[Mapping[str, Any], int]], names: Sequence[str], schema: Schema
) -> Iterator[Batch]:
    """Rows of Python's values, each with its size, as batches of these fields."""
    held: list[Mapping[str, Any]] = []
    size = 0
    for row, row_bytes in rows:
        held.append(row)
        size += row_bytes
        if size >= BATCH_BYTES or len(held) == _MAX_RAGGED:
            yield {name: _column(schema[name], [row[name] for row in held]) for name in names}
            held, size = [], 0
    if held:
        yield {name: _column(schema[name], [row[name] for row in held]) for name in names}


def _column(field: Field, values: list[Any]) -> Any:
    if not field.ragged:
        return np.array(values, field.dtype).reshape(len(values), *field.shape)
    if field.kind == "array":
        values = [np.array(v, field.dtype).reshape(len(v), *field.shape) for v in values]
    return Ragged.from_list(values, field)


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


def only_fixed(source: Source, what: str, hint: str = "") -> None:
    """Raise `SchemaError` for a field whose rows are not all of one size."""
    for name, field in source.schema.items():
        if field.ragged:
            raise SchemaError(f"{name!r} is {field}: {what} has rows of one size{hint}")


def contiguous(values: NDArray[Any]) -> memoryview:
    """The bytes of an array in C order."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data

"""How formats are read: a `Stream` is a source that reads from any row on to the end.

Memory is a few batches of `batches.BATCH_BYTES`, however large the file is; what is written of a
source comes from `batches.in_order`.
"""

import copy
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell import batches
from stepwell.batches import count_of, in_order
from stepwell.errors import FormatError, SchemaError
from stepwell.source import Batch, Field, Ragged, Rows, Schema, Source
from stepwell.store import Progress as Progress, Report, Runs, Store


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
            # Of a copy: with this source in it, its open file would wait for a collection.
            rest = iter(copy.copy(self)._from(low, wanted))
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
        if size >= batches.BATCH_BYTES or len(held) == batches.MAX_RAGGED:
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


def only_fixed(source: Source, what: str, hint: str = "") -> None:
    """Raise `SchemaError` for a field whose rows are not all of one size."""
    for name, field in source.schema.items():
        if field.ragged:
            raise SchemaError(f"{name!r} is {field}: {what} has rows of one size{hint}")


def contiguous(values: NDArray[Any]) -> memoryview:
    """The bytes of an array in C order."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data

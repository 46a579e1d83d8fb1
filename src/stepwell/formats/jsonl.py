"""JSON lines: an object for each row, which all have the same keys.

Whole numbers are int64 (uint64 where they need it), others float64; lists of equal shape are
arrays, lists of any length are ragged. The file is read once to find that out. JSON has no bytes,
no NaN and no infinity: they are refused.
"""

import json
import math
import os
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.batches import in_order
from stepwell.errors import FormatError, SchemaError
from stepwell.files.atomic import new_file
from stepwell.files.regular import open_regular
from stepwell.formats.streams import Progress, Stream, batches_of
from stepwell.source import Batch, Field, Ragged, Source

_RANK = {bool: 0, int: 1, float: 2}


class _Seen:
    """The types and shapes of the values of one key so far."""

    def __init__(self) -> None:
        self.kinds: set[type] = set()
        self.low = self.high = 0
        self.shape: tuple[int, ...] | None = None
        self.ragged = False

    def add(self, value: Any) -> None:
        """Raises `ValueError` for what no field can hold."""
        shape = self._shape(value)
        if self.shape is None:
            self.shape = shape
        elif shape != self.shape:
            if not shape or not self.shape or str in self.kinds:
                raise ValueError("expected values or lists, got both")
            # Empty lists do not show the shape inside others.
            inner = {s[1:] for s in (shape, self.shape) if s[0]}
            if len(inner) > 1:
                raise ValueError("expected lists of equal shapes")
            self.shape, self.ragged = (1, *next(iter(inner), ())), True
        if len(self.kinds) > 1 and not self.kinds <= {int, float}:
            names = ", ".join(sorted(kind.__name__ for kind in self.kinds))
            raise ValueError(f"expected values of one kind, got {names}")

    def _shape(self, value: Any) -> tuple[int, ...]:
        if isinstance(value, list):
            shapes = {self._shape(inner) for inner in value}
            if len(shapes) > 1:
                raise ValueError("expected lists of equal shapes")
            return (len(value), *next(iter(shapes), ()))
        if type(value) not in (bool, int, float, str):
            got = "null" if value is None else type(value).__name__
            raise ValueError(f"expected a number, text or a list, got {got}")
        self.kinds.add(type(value))
        if type(value) is int:
            self.low, self.high = min(self.low, value), max(self.high, value)
        return ()

    def field(self) -> Field:
        if str in self.kinds:
            if self.shape:
                raise ValueError("expected text or lists of numbers, got lists of text")
            return Field(str)
        shape = self.shape or ()
        if 0 in shape[1:]:
            raise ValueError("expected lists of values, got lists of empty lists")
        ragged = self.ragged or 0 in shape
        return Field(np.dtype(self._dtype()), shape[1:] if ragged else shape, ragged=ragged)

    def _dtype(self) -> str:
        kind = max(self.kinds, key=_RANK.__getitem__, default=float)
        if kind is not int:
            return "?" if kind is bool else "f8"
        if self.low >= -(2**63) and self.high < 2**63:
            return "i8"
        if self.low < 0 or self.high >= 2**64:
            raise ValueError("expected whole numbers of up to 64 bits")
        return "u8"


class JsonlSource(Stream):
    """The lines of a file."""

    kind = "jsonl"
    noun = "a JSON lines file"

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        where = Path(path)
        seen: dict[str, _Seen] = {}
        rows = 0
        for rows, (row, _) in enumerate(_lines(where), 1):
            if rows > 1 and set(row) != set(seen):
                raise SchemaError(
                    f"{where}: line {rows}: expected {', '.join(seen)}, got {', '.join(row)}"
                )
            for name, value in row.items():
                try:
                    seen.setdefault(name, _Seen()).add(value)
                except ValueError as error:
                    raise SchemaError(f"{where}: line {rows}: {name!r}: {error}") from None
        if not seen:
            raise FormatError("expected rows with fields, got none", path=str(where))
        made = {}
        for name, known in seen.items():
            try:
                made[name] = known.field()
            except ValueError as error:
                raise SchemaError(f"{where}: {name!r}: {error}") from None
        super().__init__(str(where), made, rows)

    def _from(self, first: int, names: Sequence[str]) -> Iterator[Batch]:
        return batches_of(_lines(Path(str(self.path)), first), names, self.schema)


def _lines(path: Path, first: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """The objects of the lines that are not empty, from one on, and about their sizes in memory."""
    with open_regular(path) as file:
        lines = filter(bytes.strip, file)
        for number, line in enumerate(islice(lines, first, None), first + 1):
            try:
                row = json.loads(line, parse_constant=_refused)
                if not isinstance(row, dict):
                    raise ValueError(f"expected an object, got {type(row).__name__}")
            except (ValueError, RecursionError) as error:
                raise FormatError(f"line {number}: {error}", path=str(path)) from None
            yield row, 8 * len(line)


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def write(source: Source, path: Path, *, progress: Progress) -> None:
    """Write a line for each row. After a kill this begins again."""
    for name, field in source.schema.items():
        if field.kind == "bytes" or field.dtype.kind not in "biuf" or field.dtype.itemsize > 8:
            raise SchemaError(f"{name!r}: JSON has no type for {field}")
    done = 0
    with new_file(path, follow=True) as out:
        text = TextIOWrapper(out, encoding="utf-8", newline="\n")
        for batch in in_order(source, progress=progress):
            columns = [_plain(values) for values in batch.values()]
            for values in zip(*columns, strict=True):
                text.write(_line(dict(zip(batch, values, strict=True)), done) + "\n")
                done += 1
        text.flush()
        text.detach()


def _line(row: dict[str, Any], number: int) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False)
    except ValueError:
        for name, value in row.items():
            for item in np.ravel(value).tolist():
                if isinstance(item, float) and not math.isfinite(item):
                    raise SchemaError(f"{name!r}, row {number}: JSON has no {item}") from None
        raise


def _plain(values: Any) -> list[Any]:
    if not isinstance(values, Ragged):
        return values.tolist()  # type: ignore[no-any-return]
    return [v.tolist() if values.kind == "array" else v for v in values.to_list()]

"""Record stores to test with, and what is in them: everything follows from a record's number."""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import Field, Ragged, RecordReader, RecordWriter
from tests.contract import Expected
from tests.reference import records as reference
from tests.reference.records import Compress, Record

CODECS: dict[Compress, str] = {
    "raw": "none",
    "flate": "gzip",
    "zstd": "zstd",
    "zstd-dict": "zstd-dict",
    "lz4": "lz4",
}
"""What the page calls a codec, and what `compress=` does."""
WORDS = ["one ", "two ", "three ", "ä", "δ ", "", "so ", "and "]

Values = dict[str, NDArray[Any] | None]
"""The fields of a record; None where it has none."""


SCHEMA = {
    "x": Field(np.dtype("<f4"), (2,)),
    "n": Field(np.dtype("<i8")),
    "image": Field(np.dtype("u1"), (9, 9)),
    "tokens": Field(np.dtype("<i4"), ragged=True),
    "pairs": Field(np.dtype("<u2"), (2,), ragged=True),
    "text": Field(str),
    "blob": Field(bytes),
}
"""A field of every kind, as a source has it; stored raw, the first two are columns."""

NAMES = list(SCHEMA)


def fields(compress: Compress = "raw", names: Sequence[str] = NAMES) -> dict[str, Field]:
    """All of them optional, as most tests leave some out."""
    return {name: replace(SCHEMA[name], compress=CODECS[compress], optional=True) for name in names}


def described(compress: Compress = "raw", names: Sequence[str] = NAMES) -> list[reference.Field]:
    """The same fields as the reference has them."""
    return [described_as(name, SCHEMA[name], compress) for name in names]


def described_as(name: str, field: Field, compress: Compress) -> reference.Field:
    dtype = field.dtype.str if field.kind == "array" else str(field.kind)
    shape: list[int | None] = [*([None] if field.ragged else []), *field.shape]
    column = compress == "raw" and not field.ragged and field.row_bytes <= 64
    return reference.Field(name, dtype, shape, compress, field.level, column=column)


def values(number: int) -> dict[str, NDArray[Any]]:
    """The fields of a record; those that are long enough can be packed."""
    random = np.random.default_rng(number)
    text = "".join(WORDS[i] for i in random.integers(len(WORDS), size=random.integers(0, 40)))
    blob = random.bytes(int(random.integers(0, 4))) * int(random.integers(0, 30))
    return {
        "x": np.array([number, -number / 2], "<f4"),
        "n": np.array(number * 1_000_003, "<i8"),
        "image": (np.arange(81, dtype="u1") // 9 + number % 200).astype("u1").reshape(9, 9),
        "tokens": np.repeat(random.integers(0, 1000, number % 5), number % 7).astype("<i4"),
        "pairs": np.full((number % 4 * 3, 2), number, "<u2"),
        "text": np.frombuffer(text.encode(), "u1"),
        "blob": np.frombuffer(blob, "u1"),
    }


def given(name: str, value: NDArray[Any]) -> Any:
    """A value of a ragged field as a user has it."""
    return bytes(value).decode() if name == "text" else bytes(value) if name == "blob" else value


def batch(numbers: Iterable[int], names: Sequence[str] = NAMES) -> dict[str, Any]:
    """What append and update take."""
    chosen = [values(number) for number in numbers]
    made: dict[str, Any] = {}
    for name in names:
        if SCHEMA[name].ragged:
            made[name] = [given(name, record[name]) for record in chosen]
        else:
            column = [record[name] for record in chosen]
            field = SCHEMA[name]
            made[name] = np.array(column, field.dtype).reshape(len(column), *field.shape)
    return made


def nothing(name: str) -> NDArray[Any]:
    """What a missing field reads as."""
    field = SCHEMA[name]
    return np.zeros((0, *field.shape) if field.ragged else field.shape, field.dtype)


def columns(records: Iterable[Mapping[str, Any]], names: Sequence[str] = NAMES) -> Expected:
    """What a take of the records gives; a field that is None or not there is missing."""
    rows = list(records)
    made: Expected = {}
    for name in names:
        field = SCHEMA[name]
        found = [nothing(name) if r.get(name) is None else r[name] for r in rows]
        if field.ragged:
            made[name] = found
        else:
            made[name] = np.array(found, field.dtype).reshape(len(found), *field.shape)
    return made


def expected(numbers: Iterable[int], names: Sequence[str] = NAMES) -> Expected:
    return columns([values(number) for number in numbers], names)


def stored(record: Mapping[str, Any], names: Sequence[str] = NAMES) -> Record:
    """A record as the reference has it."""
    return {name: None if record.get(name) is None else record[name].tobytes() for name in names}


def build(path: Path, numbers: Iterable[int], compress: Compress = "raw", **options: Any) -> None:
    """A store of whole records, closed."""
    with RecordWriter(path, fields(compress), **options) as writer:
        writer.append(batch(numbers))


def contents(store: RecordReader | RecordWriter) -> list[Record]:
    """Everything in a store, as the reference has it."""
    rows = np.arange(len(store))
    found, there = store.take(rows), store.present(rows)
    parts = {
        name: Ragged(values.values, values.offsets)
        if isinstance(values, Ragged)
        else [*values[:, None]]
        for name, values in found.items()
    }
    return [
        {name: parts[name][row].tobytes() if there[name][row] else None for name in found}
        for row in rows.tolist()
    ]


def copy(path: Path, to: Path) -> None:
    """A store as it is on the disk at this moment: holes stay holes, and cost nothing."""
    subprocess.run(["cp", "-r", "--sparse=always", path, to], check=True)

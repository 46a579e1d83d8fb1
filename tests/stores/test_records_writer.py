"""Writing record stores: what is refused, in which words, and that nothing of it stays."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import (
    Field,
    FormatError,
    Loader,
    Ragged,
    RecordReader,
    RecordWriter,
    SchemaError,
)
from stepwell.writer import Mode
from tests.records import batch, contents, fields
from tests.reference.records import read_store
from tests.writer_contract import snapshot

NAMES = ["x", "n", "tokens", "text", "blob"]
MODES: tuple[Mode, ...] = ("x", "a")


@pytest.fixture
def store(quick_path: Path) -> RecordWriter:
    made = RecordWriter(quick_path / "a", fields("raw", NAMES), chunk_records=4)
    made.append(batch(range(6), NAMES))
    made.commit()
    return made


def unchanged(
    store: RecordWriter, call: Callable[[], Any], kind: type[Exception], says: str
) -> None:
    """A call is refused in these words, and all goes on as if it had not been made."""
    before, length = contents(store), len(store)
    with pytest.raises(kind, match=says):
        call()
    assert len(store) == length
    assert contents(store) == before
    assert store.append(batch([90, 91], NAMES)) == range(length, length + 2)
    store.commit()
    assert read_store(Path(store.path)).records == contents(store)
    store.delete([length, length + 1])


# Batches.

X, N = np.zeros((2, 2), "f4"), np.zeros(2, "i8")
BATCHES: list[tuple[Any, type[Exception], str]] = [
    ({"x": X, "n": np.zeros(3, "i8")}, SchemaError, r"equal lengths, got \{'x': 2, 'n': 3\}"),
    ({"x": X, "y": X}, SchemaError, r"expected some of \['x', 'n', .*\], got \['x', 'y'\]"),
    ({}, SchemaError, r"expected some of .* got \[\]"),
    ([X, N], TypeError, "expected a dict of arrays or lists, got list"),
    ({"x": np.zeros((2, 3), "f4")}, SchemaError, "x: "),
    ({"x": [[1, 2], [3]]}, (SchemaError, ValueError), "x: |inhomogeneous"),  # type: ignore[list-item]
    ({"x": 1.5}, SchemaError, "x: expected one value for each record, got float"),
    ({"n": np.array([0.5, 1])}, SchemaError, "n: "),
    ({"n": np.array([2**63, 1], "u8")}, SchemaError, "n: "),
    ({"n": ["1", "2"]}, SchemaError, "n: "),
    ({"tokens": np.zeros(2, "i4")}, SchemaError, r"tokens: record 0 of the batch: expected int32"),
    ({"tokens": [[1], [[2]]]}, SchemaError, "tokens: record 1 of the batch: expected int32"),
    ({"tokens": [[1], [2**31]]}, SchemaError, "tokens: "),
    ({"tokens": Ragged(np.zeros(3, "i4"), np.array([0, 2, 4]))}, SchemaError, "offsets up to 4"),
    ({"tokens": Ragged(np.zeros(3, "i4"), np.array([0, 2, 1]))}, SchemaError, "do not ascend"),
    ({"text": "ab"}, SchemaError, "text: expected one value for each record, got str"),
    ({"text": ["a", b"b"]}, SchemaError, "text: record 1 of the batch: expected str, got bytes"),
    ({"text": ["\ud800"]}, SchemaError, "text: record 0 of the batch is not text"),
    ({"text": Ragged(np.array([195, 164], "u1"), np.array([0, 1, 2]))}, SchemaError, "not UTF-8"),
    ({"blob": [b"a", "b"]}, SchemaError, "blob: record 1 of the batch: expected bytes, got str"),
    ({"blob": np.array([b"a\0", b"b"])}, SchemaError, "blob: NumPy's .S2 loses zeros"),
    ({"blob": b"ab"}, SchemaError, "blob: expected one value for each record, got bytes"),
    ({"n": np.ma.array([1, 2], mask=[False, True])}, TypeError, "n: a masked array"),
]


@pytest.mark.parametrize(("given", "kind", "says"), BATCHES)
def test_a_batch_that_does_not_fit(
    store: RecordWriter, given: Any, kind: type[Exception], says: str
) -> None:
    with store:
        unchanged(store, lambda: store.append(given), kind, says)
        unchanged(store, lambda: store.update([1, 2], given), kind, says)


@pytest.mark.parametrize("name", ["tokens", "blob"])
def test_a_record_of_4_gib(store: RecordWriter, name: str) -> None:
    """Room that is asked for and never touched costs nothing."""
    dtype = np.dtype("i4" if name == "tokens" else "u1")
    values = np.zeros((1 << 32) // dtype.itemsize, dtype)
    given = {name: Ragged(values, np.array([0, 0, len(values)]))}
    with store:
        unchanged(
            store, lambda: store.append(given), SchemaError, "record 1 of the batch has 4 GiB"
        )


# Rows.

ROWS: list[tuple[Any, type[Exception], str]] = [
    ([6], IndexError, "row 6 is outside a source of 6 rows"),
    ([0, 3, 2, 3], ValueError, "record 3 is named more than once"),
    ([0.5], TypeError, "expected whole numbers"),
    (0, ValueError, "one-dimensional"),
    (np.ones(3, bool), IndexError, "expected a mask of 6 rows, got 3"),
]


@pytest.mark.parametrize(("rows", "kind", "says"), ROWS)
def test_rows_that_are_none(
    store: RecordWriter, rows: Any, kind: type[Exception], says: str
) -> None:
    with store:
        unchanged(store, lambda: store.delete(rows), kind, says)
        given = {"n": np.arange(np.size(rows))}
        unchanged(store, lambda: store.update(rows, given), kind, says)


def test_an_update_of_another_number_of_records(store: RecordWriter) -> None:
    with store:
        for rows, count in (([0, 1], 1), ([], 1), ([0], 0), (np.ones(6, bool), 5)):
            says = f"expected values for {np.size(rows)} records, got {count}"
            given = batch(range(count), NAMES)
            unchanged(store, lambda r=rows, g=given: store.update(r, g), ValueError, says)  # type: ignore[misc]


# Where.


def test_open_where_nothing_is(quick_path: Path) -> None:
    (quick_path / "empty").mkdir()
    for path in (quick_path / "none", quick_path / "empty"):
        with pytest.raises(FileNotFoundError, match=f"no record store at {path}"):
            RecordWriter(path, mode="a")
        with pytest.raises(ValueError, match="fields: expected those of the new store"):
            RecordWriter(path)
    with pytest.raises(FileNotFoundError):
        RecordReader.open(quick_path / "none")
    with pytest.raises(FormatError, match="expected a record store, got an empty folder"):
        RecordReader.open(quick_path / "empty")
    assert list((quick_path / "empty").iterdir()) == []


def test_a_store_of_other_fields(store: RecordWriter) -> None:
    store.close()
    mine = fields("raw", NAMES)
    others: list[Any] = [fields("raw", NAMES[1:]), fields("zstd", NAMES), {**mine, "x": "<f8"}]
    for other in [*others, {**mine, "n": "<i8"}]:  # not optional
        with pytest.raises(
            SchemaError, match=r"fields x: float32\[2\] \(none, optional\), n: int64"
        ):
            RecordWriter(store.path, other, mode="a")


def test_a_store_without_its_meta_is_not_taken_for_an_empty_folder(store: RecordWriter) -> None:
    store.close()
    (Path(store.path) / "meta.json").unlink()
    for mode in MODES:
        with pytest.raises(FileExistsError, match=r"expected a record store or an empty folder"):
            RecordWriter(store.path, fields("raw", NAMES), mode=mode)


NO_FIELDS: list[tuple[Any, str]] = [
    ({}, "at least one field"),
    ({"a.b": "<i8"}, "'a.b' cannot name a field"),
    ({"../a": "<i8"}, "cannot name a field"),
    ({"n" * 64: "<i8"}, "cannot name a field"),
    ({"a": "<i8", "A": "<i8"}, "names differ only in case: a, A"),
    ({"a": "O"}, "expected a plain dtype"),
    ({"a": [("x", "<i8")]}, "expected a plain dtype"),
    ({"a": ("u1", (0,))}, "expected items of 1 byte"),
    ({"a": str, "b": ("u1", (-1,))}, "expected items of 1 byte"),
    ({"a": ("f8", (1 << 29,))}, "expected items of 1 byte to 4 GiB"),
    ({"a": ("u1", (1 << 40, 1 << 40))}, "expected items of 1 byte to 4 GiB"),
    ({"a": Field("<i8", compress="lzf")}, "expected none, zstd, zstd-dict, lz4, gzip, got 'lzf'"),
    ({"a": Field("<i8", compress="gzip", level=10)}, "level: gzip has 1 to 9, got 10"),
    ({"a": Field("<i8", compress="lz4", level=1)}, "level: lz4 has none, got 1"),
]


@pytest.mark.parametrize(("given", "says"), NO_FIELDS)
def test_fields_that_are_none(quick_path: Path, given: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RecordWriter(quick_path / "a", given)
    assert not (quick_path / "a").exists()


def test_a_folder_of_others_with_a_meta_json(quick_path: Path) -> None:
    (quick_path / "meta.json").write_text('{"format": "mine"}')
    before = snapshot(quick_path)
    with pytest.raises(FormatError, match="expected a record store, got a folder"):
        RecordReader.open(quick_path)
    with pytest.raises(FormatError, match="expected the format 'zrecord'"):
        RecordWriter(quick_path, {"x": "<i8"}, mode="a")
    with pytest.raises(FileExistsError):
        RecordWriter(quick_path, {"x": "<i8"})
    assert snapshot(quick_path) == before


# Fields that may be left out, and those that may not.


def test_a_field_that_is_forgotten(quick_path: Path) -> None:
    made: Any = {"x": "<i8", "label": Field(str, optional=True)}
    with RecordWriter(quick_path / "a", made) as writer:
        for given, says in (
            ({"label": ["a"]}, r"expected \['x', 'label'\], got \['label'\]; x: not optional"),
            ({"x": [1, None]}, "x: record 1 of the batch: expected int64, got None"),
            ({"x": [None], "label": ["a"]}, "x: record 0 of the batch"),
        ):
            with pytest.raises(SchemaError, match=says):
                writer.append(given)
        writer.append({"x": [1, 2], "label": ["a", None]})
        writer.append({"x": [3]})
        with pytest.raises(SchemaError, match="x: record 0 of the batch"):
            writer.update([0], {"x": [None]})
        writer.update([0], {"label": [None]})
    reader = RecordReader.open(quick_path / "a")
    assert reader.present([0, 1, 2])["label"].tolist() == [False, False, False]
    assert [f.optional for f in reader.schema.values()] == [False, True]
    assert [f.optional for f in read_store(quick_path / "a").fields] == [False, True]
    with RecordWriter(quick_path / "a", mode="a") as writer:
        with pytest.raises(SchemaError, match="x: not optional"):
            writer.append({"label": ["b"]})
        writer.rebalance()
    assert [f.optional for f in RecordReader.open(quick_path / "a").schema.values()] == [
        False,
        True,
    ]


def test_stores_of_before_take_every_field_for_optional(store: RecordWriter) -> None:
    store.close()
    text = json.loads((Path(store.path) / "meta.json").read_text())
    assert all("optional" not in each for each in text["fields"])
    with RecordWriter(store.path, mode="a") as again:
        again.append({"n": [7]})
    assert RecordReader.open(store.path).present([6])["text"].tolist() == [False]


def test_a_loader_asks_for_the_reader(store: RecordWriter) -> None:
    with store, pytest.raises(TypeError, match=r"RecordReader.open gives"):
        Loader(store, 2)

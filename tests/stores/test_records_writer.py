"""Writing record stores: what is refused, in which words, and that nothing of it stays."""

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import (
    BusyError,
    ChecksumError,
    FormatError,
    Ragged,
    RecordField,
    RecordStore,
    SchemaError,
    VersionError,
)
from tests import children
from tests.contract import assert_batch
from tests.records import CODECS, batch, build, contents, copy, expected, fields
from tests.reference.records import Compress, read_store

NAMES = ["x", "n", "tokens", "text", "blob"]


@pytest.fixture
def store(quick_path: Path) -> RecordStore:
    made = RecordStore.create(quick_path / "a", fields("raw", NAMES), chunk_records=4)
    made.append(batch(range(6), NAMES))
    made.commit()
    return made


def unchanged(
    store: RecordStore, call: Callable[[], Any], kind: type[Exception], says: str
) -> None:
    """A call is refused in these words, and all goes on as if it had not been made."""
    before, length = contents(store), len(store)
    with pytest.raises(kind, match=says):
        call()
    assert len(store) == length
    assert contents(store) == before
    assert store.append(batch([90, 91], NAMES)) == range(length, length + 2)
    store.commit()
    assert read_store(store.path).records == contents(store)
    store.delete([length, length + 1])


# Batches.

X, N = np.zeros((2, 2), "f4"), np.zeros(2, "i8")
BATCHES: list[tuple[Any, type[Exception], str]] = [
    ({"x": X, "n": np.zeros(3, "i8")}, SchemaError, r"equal lengths, got \{'x': 2, 'n': 3\}"),
    ({"x": X, "text": ["a"]}, SchemaError, r"equal lengths, got \{'x': 2, 'text': 1\}"),
    ({"x": X, "y": X}, SchemaError, r"expected some of \['x', 'n', .*\], got \['x', 'y'\]"),
    ({}, SchemaError, r"expected some of .* got \[\]"),
    ([X, N], TypeError, "expected a dict of arrays or lists, got list"),
    ({"x": np.zeros((2, 3), "f4")}, SchemaError, "x: "),
    ({"x": np.zeros(2, "f4")}, SchemaError, "x: "),
    ({"x": [[1, 2], [3]]}, (SchemaError, ValueError), "x: |inhomogeneous"),  # type: ignore[list-item]
    ({"x": 1.5}, SchemaError, "x: expected one value for each record, got float"),
    ({"n": np.array([0.5, 1])}, SchemaError, "n: "),
    ({"n": np.array([2**63, 1], "u8")}, SchemaError, "n: "),
    ({"n": ["1", "2"]}, SchemaError, "n: "),
    ({"n": np.zeros((2, 1), "i8")}, SchemaError, "n: "),
    ({"tokens": np.zeros(2, "i4")}, SchemaError, r"tokens: record 0 of the batch: expected int32"),
    ({"tokens": [[1], [[2]]]}, SchemaError, "tokens: record 1 of the batch: expected int32"),
    ({"tokens": [[1], [0.5]]}, SchemaError, "tokens: "),
    ({"tokens": [[1], [2**31]]}, SchemaError, "tokens: "),
    ({"tokens": Ragged(np.zeros(3, "i4"), np.array([0, 2, 4]))}, SchemaError, "offsets up to 4"),
    ({"tokens": Ragged(np.zeros(3, "i4"), np.array([0, 2, 1]))}, SchemaError, "do not ascend"),
    ({"tokens": Ragged(np.zeros(3, "i4"), np.array([-1, 2]))}, SchemaError, "do not ascend"),
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
    store: RecordStore, given: Any, kind: type[Exception], says: str
) -> None:
    with store:
        unchanged(store, lambda: store.append(given), kind, says)
        unchanged(store, lambda: store.update([1, 2], given), kind, says)


@pytest.mark.parametrize("name", ["tokens", "blob"])
def test_a_record_of_4_gib(store: RecordStore, name: str) -> None:
    """Room that is asked for and never touched costs nothing."""
    dtype = np.dtype("i4" if name == "tokens" else "u1")
    values = np.zeros((1 << 32) // dtype.itemsize, dtype)
    given = {name: Ragged(values, np.array([0, 0, len(values)]))}
    with store:
        unchanged(
            store, lambda: store.append(given), SchemaError, "record 1 of the batch has 4 GiB"
        )


def test_a_field_of_4_gib(quick_path: Path) -> None:
    for dtype, shape in (("u1", (1 << 32,)), ("f8", (1 << 29,)), ("u1", (1 << 40, 1 << 40))):
        with pytest.raises(ValueError, match="expected items of 1 byte to 4 GiB"):
            RecordField(dtype, shape)


# Rows.

ROWS: list[tuple[Any, type[Exception], str]] = [
    ([6], IndexError, "row 6 is outside a source of 6 rows"),
    ([0, -1], IndexError, "row -1 is outside a source of 6 rows"),
    ([2**63], IndexError, "row 9223372036854775808 is outside"),
    ([1, 1], ValueError, "record 1 is named more than once"),
    ([0, 3, 2, 3], ValueError, "record 3 is named more than once"),
    ([0.5], TypeError, "expected whole numbers"),
    (["0"], TypeError, "expected whole numbers"),
    ([[0]], ValueError, "one-dimensional"),
    (0, ValueError, "one-dimensional"),
    (np.ones(3, bool), IndexError, "expected a mask of 6 rows, got 3"),
]


@pytest.mark.parametrize(("rows", "kind", "says"), ROWS)
def test_rows_that_are_none(
    store: RecordStore, rows: Any, kind: type[Exception], says: str
) -> None:
    with store:
        unchanged(store, lambda: store.delete(rows), kind, says)
        given = {"n": np.arange(np.size(rows))}
        unchanged(store, lambda: store.update(rows, given), kind, says)


def test_an_update_of_another_number_of_records(store: RecordStore) -> None:
    with store:
        for rows, count in (([0, 1], 1), ([], 1), ([0], 0), (np.ones(6, bool), 5)):
            says = f"expected values for {np.size(rows)} records, got {count}"
            given = batch(range(count), NAMES)
            unchanged(store, lambda r=rows, g=given: store.update(r, g), ValueError, says)  # type: ignore[misc]


# Who may write, and where.


def test_a_second_writer(store: RecordStore) -> None:
    path, says = store.path, "another writer is at work in "
    with pytest.raises(BusyError, match=f"{says}{path}"):
        RecordStore.open(path, "a")
    script = (
        "import sys, stepwell as sw\n"
        "try: sw.RecordStore.open(sys.argv[1], 'a')\n"
        "except sw.BusyError as error: print(error)"
    )
    assert children.answer(script, path) == f"{says}{path}"
    assert_batch(RecordStore.open(path)[:], expected(range(6), NAMES))
    store.close()
    with RecordStore.open(path, "a") as again:
        assert again.append(batch([6], NAMES)) == range(6, 7)


def test_a_store_that_may_only_be_read(store: RecordStore) -> None:
    store.close()
    for reader in (store, RecordStore.open(store.path)):
        calls: list[Callable[[], Any]] = [
            lambda r=reader: r.append(batch([1], NAMES)),  # type: ignore[misc]
            lambda r=reader: r.update([0], batch([1], NAMES)),  # type: ignore[misc]
            lambda r=reader: r.delete([0]),  # type: ignore[misc]
            reader.commit,
            reader.abort,
            reader.rebalance,
        ]
        for call in calls:
            with pytest.raises(ValueError, match='is open for reading; open it with mode="a"'):
                call()
        assert_batch(reader[:], expected(range(6), NAMES))


def test_create_where_something_is(store: RecordStore, quick_path: Path) -> None:
    store.close()
    (quick_path / "file").write_bytes(b"x")
    for path in (store.path, quick_path / "file"):
        with pytest.raises(FileExistsError, match=str(path)):
            RecordStore.create(path, fields("raw", NAMES))
    assert len(RecordStore.open(store.path)) == 6
    (quick_path / "empty").mkdir()
    RecordStore.create(quick_path / "empty", {"n": "<i8"}).close()


def test_open_where_nothing_is(quick_path: Path) -> None:
    (quick_path / "empty").mkdir()
    for path in (quick_path / "none", quick_path / "empty"):
        for mode in ("r", "a"):
            with pytest.raises(FileNotFoundError, match=f"no record store at {path}"):
                RecordStore.open(path, mode)
    assert list((quick_path / "empty").iterdir()) == []


NO_FIELDS: list[tuple[Any, str]] = [
    ({}, "at least one field"),
    ({"a.b": "<i8"}, "'a.b' cannot name a field"),
    ({"": "<i8"}, "'' cannot name a field"),
    ({"../a": "<i8"}, "cannot name a field"),
    ({"ä": "<i8"}, "cannot name a field"),
    ({"n" * 64: "<i8"}, "cannot name a field"),
    ({"a": "<i8", "A": "<i8"}, "names differ only in case: a, A"),
    ({"a": "O"}, "expected a plain dtype"),
    ({"a": [("x", "<i8")]}, "expected a plain dtype"),
    ({"a": ("u1", (0,))}, "expected items of 1 byte"),
    ({"a": RecordField(str), "b": ("u1", (-1,))}, "expected items of 1 byte"),
]


@pytest.mark.parametrize(("given", "says"), NO_FIELDS)
def test_fields_that_are_none(quick_path: Path, given: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RecordStore.create(quick_path / "a", given)
    assert not (quick_path / "a").exists()


def test_an_exception_in_a_with_block(store: RecordStore) -> None:
    def fails() -> None:
        with store:
            store.append(batch([6], NAMES))
            store.commit()
            store.delete([0])
            store.append(batch([7, 8], NAMES))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fails()
    assert_batch(RecordStore.open(store.path)[:], expected(range(7), NAMES))
    with RecordStore.open(store.path, "a") as again:  # the lock is free
        assert len(again) == 7


# Stores that are damaged.


def meta(**members: Any) -> Callable[[Path], None]:
    """Edit meta.json by hand, without its sum."""

    def change(path: Path) -> None:
        text = json.loads((path / "meta.json").read_text())
        del text["crc32c"]
        (path / "meta.json").write_text(json.dumps({**text, **members}))
        (path / "writer.lock").unlink()  # it knows what was committed

    return change


def write(name: str, data: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        (path / name).write_bytes(data)

    return change


def gone(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).unlink()


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path / name, (path / name).stat().st_size - size)


DAMAGES: list[tuple[Callable[[Path], None], type[Exception], str, str]] = [
    (write("meta.json", b""), FormatError, "not a meta.json of records", "meta.json"),
    (write("meta.json", b"{}"), FormatError, "expected the format 'zrecord'", "meta.json"),
    (write("meta.json", b"[" * 10**5), FormatError, "RecursionError", "meta.json"),
    (write("meta.json", b"\xff"), FormatError, "UnicodeDecodeError", "meta.json"),
    (meta(version=2), VersionError, "expected version 1, got 2", "meta.json"),
    (meta(length="x"), FormatError, "expected a number below .* got 'x'", "meta.json"),
    (meta(length=7), FormatError, "7 records, and never more than 6", "meta.json"),
    (meta(length=7, peak=7), FormatError, "expected 7 entries, got 6", "x.offset"),
    (meta(crc32c="00000000"), ChecksumError, "expected CRC32C 00000000, got ", "meta.json"),
    (gone("n.offset"), FormatError, "the file is missing", "n.offset"),
    (cut("n.offset", 1), FormatError, "expected 6 entries, got 5", "n.offset"),
    (gone("chunk/0.zr"), FormatError, "the chunk is missing", "chunk/0.zr"),
    (cut("chunk/0.zr", 30), FormatError, "expected at least .* bytes, got ", "chunk/0.zr"),
    (cut("chunk/1.zr", 60), FormatError, "expected at least .* bytes, got ", "chunk/1.zr"),
    (write("chunk/0.zr", b""), FormatError, "expected at least .* bytes, got 0", "chunk/0.zr"),
]


@pytest.mark.parametrize(("change", "kind", "says", "file"), DAMAGES)
def test_a_damaged_store(
    store: RecordStore, change: Callable[[Path], None], kind: type[Exception], says: str, file: str
) -> None:
    store.close()
    change(store.path)
    with pytest.raises(kind, match=says) as caught:
        RecordStore.open(store.path)[:]
    assert str(store.path / file) in str(caught.value)
    with pytest.raises(kind) as caught:
        RecordStore.open(store.path, "a")[:]
    assert str(store.path / file) in str(caught.value)


def test_a_store_edited_by_hand(store: RecordStore) -> None:
    store.close()
    meta(attributes={"seen": "by me"})(store.path)
    with RecordStore.open(store.path, "a") as again:
        assert again.attributes == {"seen": "by me"}
        again.append(batch([6], NAMES))
    assert read_store(store.path).attributes == {"seen": "by me"}


# Readers beside changes.


@pytest.mark.parametrize("compress", CODECS)
def test_a_rebalance_under_a_reader(quick_path: Path, compress: Compress) -> None:
    path = quick_path / "a"
    build(path, range(30), compress, chunk_records=4)
    used, unused = RecordStore.open(path), RecordStore.open(path)
    column = used["image"]
    views = column.views(np.arange(30))
    with RecordStore.open(path, "a") as store:
        store.delete([3, 8])
        store.rebalance()
        store.update([0], batch([50]))
    for reader in (used, unused):
        got = reader[:]
        assert len(got["n"]) == 30
        assert got["n"][5] == 5 * 1_000_003
        assert reader.refresh() == -2
        assert_batch(reader[:], expected([50, 1, 2, 28, 4, 5, 6, 7, 29, *range(9, 28)]))
    for i, view in enumerate(views):
        assert view.tobytes() == expected([i], ["image"])["image"][0].tobytes()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_that_cannot_be_written(store: RecordStore) -> None:
    store.append(batch([6], NAMES))
    store.commit()
    there = store.path.with_name("b")
    copy(store.path, there)
    for folder in (there, there / "chunk"):
        for file in folder.iterdir():
            file.chmod(0o555 if file.is_dir() else 0o444)
    assert_batch(RecordStore.open(there)[:], expected(range(7), NAMES))


def test_a_store_that_is_forgotten(store: RecordStore) -> None:
    store.append(batch([6], NAMES))
    path = store.path
    copied = path.with_name("b")
    copy(path, copied)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        store.abort()
        store.close()
    for each in (path, copied):
        assert_batch(RecordStore.open(each)[:], expected(range(6), NAMES))
    shutil.rmtree(copied)

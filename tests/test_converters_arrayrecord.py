"""ArrayRecord files become a record store, and come back."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

import stepwell as sw
from stepwell import FormatError, SchemaError
from stepwell.stores.arrayrecord import convert_to_arrayrecord
from tests.converters import assert_same, contents, mixed, store_of


def files_of(path: Path, records: list[list[bytes]]) -> Path:
    path.mkdir()
    for k, part in enumerate(records):
        writer = ArrayRecordWriter(str(path / f"part-{k}.array_record"), "group_size:1")
        for record in part:
            writer.write(record)
        writer.close()
    return path


@pytest.mark.parametrize(
    "records",
    [[[]], [[b""]], [[b"a", b""], [], [os.urandom(10_000), b"\0"]]],
    ids=["none", "empty", "some"],
)
def test_files_of_others(records: list[list[bytes]], tmp_path: Path) -> None:
    path = files_of(tmp_path / "in", records)
    flat = [record for part in records for record in part]
    report = sw.convert(path, tmp_path / "store")
    assert report == (tmp_path / "store", "arrayrecord", "records", len(flat), 0)
    assert_same(contents(tmp_path / "store"), {"data": flat})
    sw.convert(tmp_path / "store", tmp_path / "out.array_record", part_bytes=5000)
    sw.convert(tmp_path / "out.array_record", tmp_path / "again")
    assert_same(contents(tmp_path / "again"), {"data": flat})


@pytest.mark.parametrize("field", ["image", "label", "text", "blob"])
def test_one_field(field: str, tmp_path: Path) -> None:
    records = mixed()
    store = store_of(tmp_path / "store", records)
    sw.convert(store, tmp_path / "out", to="arrayrecord", field=field, part_bytes=200)
    assert len(list((tmp_path / "out").glob("data-*.array_record"))) > 1
    with sw.ArrayRecordSource(tmp_path / "out") as source:
        got = source[:]["data"]
    sw.convert(tmp_path / "out", tmp_path / "again")
    want: Any = records[field]
    if field in ("text", "blob"):
        want = [r.encode() if isinstance(r, str) else r for r in want]
        assert [row.tobytes() for row in got] == want
    else:
        assert_same({"data": got}, {"data": want})
    assert_same(contents(tmp_path / "again"), {"data": want})


def test_rows_of_structures(tmp_path: Path) -> None:
    rows = np.zeros(50, [("a", ">i4"), ("b", "f4", (2,))])
    rows["a"] = np.arange(50)
    convert_to_arrayrecord(rows, tmp_path / "in", file_rows=20).close()
    sw.convert(tmp_path / "in", tmp_path / "store")
    assert_same(contents(tmp_path / "store"), {"a": rows["a"], "b": rows["b"]})


def test_fields_that_are_refused(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", mixed())
    with pytest.raises(SchemaError, match="is one field; choose one of image, label"):
        sw.convert(store, tmp_path / "out.array_record")
    with pytest.raises(SchemaError, match=r"'tokens' is .*: expected bytes, text or a fixed shape"):
        sw.convert(store, tmp_path / "out.array_record", field="tokens")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_damaged_file(tmp_path: Path) -> None:
    path = files_of(tmp_path / "in", [[os.urandom(100_000) for _ in range(10)]])
    file = path / "part-0.array_record"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(FormatError, match=r"cannot be read: .* - at .*part-0.array_record"):
        sw.convert(path, tmp_path / "store")
    assert not (tmp_path / "store").exists()

"""ArrayRecord files of others, and of ours."""

import os
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

import stepwell as sw
from tests.formats.rows import assert_same, contents, refused


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
    [[[b""]], [[b"a", b""], [], [os.urandom(10_000), b"\0"]]],
    ids=["empty", "some"],
)
def test_files_of_others(records: list[list[bytes]], tmp_path: Path) -> None:
    path = files_of(tmp_path / "in", records)
    flat = [record for part in records for record in part]
    sw.convert(path, tmp_path / "store")
    assert_same(contents(tmp_path / "store"), {"data": flat})


def test_rows_of_structures(tmp_path: Path) -> None:
    rows = np.zeros(50, [("a", ">i4"), ("b", "f4", (2,))])
    rows["a"] = np.arange(50)
    packed = sw.ArraySource(rows).packed()
    sw.convert(packed, tmp_path / "in", to="arrayrecord", part_bytes=200)
    sw.convert(tmp_path / "in", tmp_path / "store")
    assert_same(contents(tmp_path / "store"), {"a": rows["a"], "b": rows["b"]})


def test_a_damaged_file(tmp_path: Path) -> None:
    path = files_of(tmp_path / "in", [[os.urandom(100_000) for _ in range(10)]])
    file = path / "part-0.array_record"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    refused(path, r"part-0.array_record")

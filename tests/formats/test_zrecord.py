"""Record stores as seed 002 draws them come in; whatever is wrong with one is named."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import stepwell as sw
from stepwell import FormatError, StepwellError
from tests import scaled

A = np.arange(30, dtype="<f4").reshape(10, 3)
TEXT = ["", "a", "ü" * 5, *"1234567"]


def entry(chunk: int, offset: int, length: int) -> bytes:
    return struct.pack("<IQI", chunk, offset, length)


def drawn(root: Path) -> Path:
    """A store of ten records in two chunks that were grown ahead, as were its tables."""
    fields = [("A", "f32", "flate"), ("label", "i32", "raw"), ("u8", "u8", "raw")]
    fields += [("text", "str", "raw"), ("odd", "f64", "flate")]
    values: dict[str, list[bytes]] = {
        "A": [row.tobytes() for row in A],
        "label": [struct.pack("<i", -i) for i in range(10)],
        "u8": [bytes([i, 255]) for i in range(10)],
        "text": [text.encode() for text in TEXT],
        "odd": [np.arange(i % 3, dtype="<f8").tobytes() for i in range(10)],
    }
    (root / "chunk").mkdir(parents=True)
    chunks = [bytearray(), bytearray()]
    for name, _, codec in fields:
        table = b""
        for i, data in enumerate(values[name]):
            if codec == "flate" and data:
                data = zlib.compress(data, wbits=-15)
            chunk = chunks[i % 2]
            table += entry(i % 2, len(chunk), len(data)) if data else bytes(16)
            chunk += data
        (root / f"{name}.offset").write_bytes(table + bytes(64))
    for number, chunk in enumerate(chunks):
        (root / f"chunk/{number}.zr").write_bytes(chunk + bytes(500))
    write_meta(root, [dict(zip(("name", "dtype", "compress"), f, strict=True)) for f in fields])
    return root


def write_meta(root: Path, fields: Any, length: Any = 10) -> None:
    text = json.dumps({"length": length, "chunks": {"num": 2, "size": 8192}, "fields": fields})
    drawing = '"size": 8192, "unfull": {[0, 400, 5], [1, 410, 5]}'
    (root / "meta.json").write_text(text.replace('"size": 8192', drawing))


def test_a_store_as_the_seed_draws_it_is_converted(tmp_path: Path) -> None:
    root = drawn(tmp_path / "theirs")
    assert sw.open(root).verify().ok
    report = sw.convert(root, tmp_path / "ours")
    assert (report.source_kind, report.target_kind, report.rows) == ("zrecord", "records", 10)
    ours = sw.RecordReader.open(tmp_path / "ours")
    assert np.array_equal(ours["A"][:], A)
    assert ours["label"][:].tolist() == [-i for i in range(10)]
    assert ours["u8"][3].tolist() == [3, 255]
    assert ours["text"][:] == TEXT
    assert [row.tolist() for row in ours["odd"][:]] == [list(range(i % 3)) for i in range(10)]
    assert (ours.schema["label"].shape, ours.schema["odd"].ragged) == ((), True)
    again = sw.open(root)  # in any order, too
    assert np.array_equal(again.take([7, 2, 7])["A"], A[[7, 2, 7]])


def test_tables_may_have_the_other_name(tmp_path: Path) -> None:
    root = drawn(tmp_path / "theirs")
    (root / "A.offset").rename(root / "A_offset.zr")
    assert np.array_equal(sw.open(root)["A"][:], A)


def test_a_record_without_a_field_gets_no_zeros(tmp_path: Path) -> None:
    root = drawn(tmp_path / "theirs")
    table = bytearray((root / "label.offset").read_bytes())
    table[16:32] = bytes(16)
    (root / "label.offset").write_bytes(table)
    labels = sw.open(root)["label"][:3]
    assert [row.tolist() for row in labels] == [[0], [], [-2]]


BROKEN: list[tuple[str, Any, str]] = [
    ("meta.json", b'{"length": 1, "chunks": 1, "fields"', "cannot be read"),
    ("meta.json", b'{"length": -1, "chunks": {"num": 1}, "fields": []}', "whole number"),
    ("meta.json", b'{"length": 1, "chunks": {"num": 1}, "fields": []}', "different names"),
    ("label.offset", entry(0, 0, 4), "truncated: expected 160 bytes, got 16"),
    ("label.offset", None, "truncated: expected 160 bytes, got 0"),
    ("label.offset", entry(2, 0, 4) * 10, "'label', record 0: expected one of 2 chunks, got 2"),
    ("label.offset", entry(0, 1 << 63, 4) * 10, "'label', record 0: expected 9223372036854775812"),
    ("label.offset", entry(0, 0, 3) * 10, "expected items of 4 bytes, got 3 bytes"),
    ("A.offset", entry(0, 4, 9) * 10, "'A', record 0: "),
    ("text.offset", entry(0, 1, 3) * 10, "'text', record 0: 'utf-8' codec"),
    ("chunk/1.zr", None, "expected one of 2 chunks, got 1"),
    ("chunk/1.zr", b"", "bytes, got 0"),
]


@pytest.mark.parametrize(("name", "data", "message"), BROKEN)
def test_what_is_broken_is_named(tmp_path: Path, name: str, data: Any, message: str) -> None:
    root = drawn(tmp_path / "theirs")
    (root / name).unlink() if data is None else (root / name).write_bytes(data)
    with pytest.raises(FormatError, match=message) as caught:
        sw.convert(root, tmp_path / "ours")
    assert caught.value.path is not None
    assert str(root) in caught.value.path


FIELDS = [
    {"name": "../A", "dtype": "f32", "compress": "raw"},
    {"name": "..", "dtype": "f32", "compress": "raw"},
    {"name": "A", "dtype": "f4", "compress": "raw"},
    {"name": "A", "dtype": "f8", "compress": "raw"},
    {"name": "A", "dtype": None, "compress": "raw"},
    {"name": "A", "dtype": "f32", "compress": "zstd"},
    {"name": "A", "dtype": "f32"},
    7,
]


@pytest.mark.parametrize("field", FIELDS)
def test_fields_that_are_none(tmp_path: Path, field: Any) -> None:
    root = drawn(tmp_path / "theirs")
    write_meta(root, [field])
    with pytest.raises(FormatError, match=r"meta\.json"):
        sw.open(root)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    root = drawn(tmp_path / "theirs")
    (root / "chunk/1.zr").rename(tmp_path / "elsewhere")
    (root / "chunk/1.zr").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match="expected a regular file, got a link"):
        sw.convert(root, tmp_path / "ours")


@settings(max_examples=scaled(60))
@given(data=st.data())
def test_any_bytes_are_an_error_or_rows(quick_path: Path, data: st.DataObject) -> None:
    root = quick_path / "theirs"
    if not root.exists():
        drawn(root)
    name = data.draw(st.sampled_from(["meta.json", "A.offset", "label.offset", "chunk/0.zr"]))
    whole = (root / name).read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    (root / name).write_bytes(whole[:at] + data.draw(st.binary(max_size=8)) + whole[at + 8 :])
    try:
        with sw.open(root) as source:
            source[:]
    except (StepwellError, sw.KindError):
        pass
    finally:
        (root / name).write_bytes(whole)

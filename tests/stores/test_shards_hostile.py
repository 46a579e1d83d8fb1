"""Damaged and contradictory shards: the exact rows, or an error that says where."""

import json
import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import ChecksumError, FormatError, ShardReader, ShardWriter, VersionError
from tests.reference import shards as reference
from tests.reference.shards import header
from tests.shards import WIDTH, assert_same, build, shard_bytes, values

ROWS = values(4, 3)
WHOLE = shard_bytes(ROWS, "float32")


@pytest.fixture
def path(quick_path: Path) -> Path:
    return quick_path / "a.shard"


def refused(path: Path, message: str, kind: type[FormatError] = FormatError) -> FormatError:
    """Opened in every way, it is refused in the same words, which name it."""
    for where in (path, path.parent, [path]):
        with pytest.raises(kind, match=message) as caught:
            ShardReader(where)
        assert caught.value.path == str(path)
        assert type(caught.value) is kind
    return caught.value


# Headers.


@pytest.mark.parametrize(
    ("data", "message", "offset"),
    [
        (b"", "header of 32 bytes, got 0", 0),
        (b"GAMSAE01", "header of 32 bytes, got 8", 8),
        (b"GAMSAE02" + WHOLE[8:], "expected b'GAMSAE01', got b'GAMSAE02'", 0),
        (b"PK\3\4" + bytes(60), "expected b'GAMSAE01'", 0),
        (header(1, 0, 0) + bytes(8), "rows of no values", 16),
        (header(0, 0, 0), "rows of no values", 16),
        (header(1, 1, 0, 1) + bytes(4), "expected zeros, got 1", 28),
        (header(1, 1, 0, 2**31) + bytes(4), "expected zeros", 28),
        (header(2**62, 2**62, 0), "more than any file has", 8),
        (header(2**32, 2**32, 0), "more than any file has", 8),  # 0 modulo 2^64
        (header(2**63, 2, 1), "more than any file has", 8),
        (header(2**64 - 1, 2**64 - 1, 2), "more than any file has", 8),
        (header(2**60, 1, 0) + bytes(64), "the file has 96", 96),
        (header(1, 2**61, 1) + bytes(64), "the file has 96", 96),
        (header(3, 3, 0) + bytes(35), "expected 68 bytes, the file has 67", 67),
    ],
)
def test_headers(path: Path, data: bytes, message: str, offset: int) -> None:
    path.write_bytes(data)
    assert refused(path, message).offset == offset


@pytest.mark.parametrize("tag", [3, 4, 255, 2**31, 2**32 - 1])
def test_dtypes_that_nobody_knows(path: Path, tag: int) -> None:
    path.write_bytes(header(1, 1, tag) + bytes(64))
    assert refused(path, f"got {tag}", VersionError).offset == 24


def test_every_length(path: Path) -> None:
    for size in range(len(WHOLE)):
        path.write_bytes(WHOLE[:size])
        assert refused(path, "expected").offset == size


def test_every_byte_of_the_header(path: Path) -> None:
    """The rows, as many as the header says then; or an error."""
    read = 0
    for at in range(32):
        for bit in range(8):
            data = bytearray(WHOLE)
            data[at] ^= 1 << bit
            path.write_bytes(data)
            try:
                want = reference.read_shard(bytes(data))
                if not want.rows:
                    raise reference.Broken("no rows")
            except reference.BrokenVersion:
                refused(path, "dtype tag", VersionError)
                continue
            except reference.Broken:
                refused(path, "expected|more than|no values")
                continue
            read += 1
            reader = ShardReader.open(path)
            assert_same(reader[:]["data"], want.rows)
            assert reader.verify().ok == (not want.surplus)
    assert read > 2  # fewer rows, or another dtype


# Corpora.


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (header(1, 4, 0) + bytes(16), "expected 3 x float32, as in a.shard, got 4 x float32"),
        (header(1, 3, 1) + bytes(6), "got 3 x float16"),
        (header(0, 4, 0), "got 4 x float32"),
    ],
)
def test_shards_that_differ(path: Path, second: bytes, message: str) -> None:
    path.write_bytes(WHOLE)
    path.with_name("b.shard").write_bytes(second)
    with pytest.raises(FormatError, match=message) as caught:
        ShardReader.open(path.parent)
    assert caught.value.path == str(path.with_name("b.shard"))


def test_no_shards_and_no_rows(path: Path) -> None:
    with pytest.raises(FormatError, match="expected a folder of shards, got an empty folder"):
        ShardReader.open(path.parent)
    with pytest.raises(ValueError, match="at least one"):
        ShardReader([])
    path.write_bytes(header(0, 3, 0))
    refused(path, "expected a corpus with rows")


def test_shards_without_rows_are_fine(quick_path: Path) -> None:
    rows = build(quick_path, [0, 2, 0, 0, 3, 0], sums=True)
    reader = ShardReader.open(quick_path)
    assert reader.verify().ok
    assert_same(np.concatenate([batch.rows for batch in reader.batches(2)]), rows)
    assert_same(reader.take([4, 0, 2])["data"], rows[[4, 0, 2]])


def test_bytes_behind_the_last_row(path: Path) -> None:
    path.write_bytes(WHOLE + b"more")
    reader = ShardReader.open(path)
    assert_same(reader[:]["data"], ROWS)
    assert_same(np.concatenate([batch.rows for batch in reader.batches(3)]), ROWS)
    (problem,) = reader.verify().problems
    assert "4 bytes behind the last row" in str(problem)
    assert (problem.path, problem.offset) == (str(path), len(WHOLE))


def test_something_that_is_no_file(path: Path) -> None:
    os.mkfifo(path)  # to open it would wait for ever
    refused(path, "expected a regular file, got a pipe")
    path.unlink()
    path.mkdir()
    with pytest.raises((FormatError, IsADirectoryError)):
        ShardReader.open(path.parent)


# shards.json.

ENTRY = {"name": "000000.shard", "rows": 3, "width": WIDTH, "dtype": "float32", "crc32c": None}


WRONG: dict[str, list[Any]] = {
    "name": [None, 3, "", "x", "../a.shard", "/a.shard", "\0.shard"],
    "rows": [None, -1, 1.5, "3", True, 2**62, 10**30],
    "width": [None, 0, -1, 2.0, 2**61],
    "dtype": [None, "", "float64", 0, []],
    "crc32c": ["", "xyz", "-1", "123456789", 5, []],
}


def listing(*entries: Any, **others: Any) -> bytes:
    text = {"format": "stepwell-shards", "version": 1, "shards": list(entries)}
    return json.dumps({**text, **others}).encode()


NONSENSE = [
    *(b"", b"\0", b"{", b"[]", b"null", b"7", b'"text"', b"{}", b"\xff\xfe", b"[" * 100_000),
    *(b"9" * 10_000, b'{"format": "stepwell-shards", "version": 1}'),
    listing(format="other"),
    listing(shards=None),
    listing(shards=7),
    listing(None),
    listing([]),
    listing({}),
    *(listing({**ENTRY, name: value}) for name, many in WRONG.items() for value in many),
    listing(ENTRY, ENTRY),
]


@pytest.mark.parametrize("data", NONSENSE, ids=lambda data: repr(data[-60:]))
def test_lists_that_are_none(quick_path: Path, data: bytes) -> None:
    build(quick_path, [3])
    (quick_path / "shards.json").write_bytes(data)
    for attempt in (ShardReader.open, partial(ShardWriter, mode="a")):
        with pytest.raises(FormatError) as caught:
            attempt(quick_path)
        assert caught.value.path == str(quick_path / "shards.json")


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_list_of_another_version(quick_path: Path, version: Any) -> None:
    build(quick_path, [3])
    (quick_path / "shards.json").write_bytes(listing(version=version))
    with pytest.raises(VersionError, match="expected version 1"):
        ShardReader.open(quick_path)


def damages(data: bytes) -> list[bytes]:
    flipped = [
        data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :]
        for i in range(len(data))
        for bit in (0, 4, 7)
    ]
    return [*(data[:size] for size in range(len(data))), *flipped]


def test_every_byte_of_the_list(quick_path: Path) -> None:
    """What the shards have is right whatever the list says; verify may have doubts."""
    rows = build(quick_path, [3, 2], sums=True)
    text = (quick_path / "shards.json").read_bytes()
    doubts = refusals = named = 0
    for data in damages(text):
        (quick_path / "shards.json").write_bytes(data)
        try:
            reader = ShardReader.open(quick_path)
        except FormatError as error:
            named += error.path == str(quick_path / "shards.json")
            refusals += 1
            continue
        assert_same(reader[:]["data"], rows)
        problems = list(reader.verify().problems)
        doubts += bool(problems)
        assert all(isinstance(problem, ChecksumError) for problem in problems)
    assert doubts > 10
    assert named == refusals > 100


def differently(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda entry: entry.update(changes)


@pytest.mark.parametrize(
    "change", [differently(rows=4), differently(width=6), differently(dtype="float16")]
)
def test_a_list_that_contradicts_a_shard(
    quick_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    build(quick_path, [3, 2], sums=True)
    text = json.loads((quick_path / "shards.json").read_text())
    change(text["shards"][1])
    (quick_path / "shards.json").write_text(json.dumps(text))
    for attempt in (ShardReader.open, partial(ShardWriter, mode="a")):
        with pytest.raises(FormatError, match=r"000001\.shard"):
            attempt(quick_path)


def test_a_list_that_does_not_have_a_shard(quick_path: Path) -> None:
    rows = build(quick_path, [3, 2], sums=True)
    build(quick_path / "more", [4], names=["000002.shard"])
    (quick_path / "more" / "000002.shard").rename(quick_path / "000002.shard")
    reader = ShardReader.open(quick_path)  # the shards are believed
    assert len(reader) == 9
    assert_same(reader[:5]["data"], rows)
    assert [shard.crc32c is None for shard in reader.shards] == [False, False, True]
    assert reader.verify().ok


@pytest.mark.parametrize("name", ["000000.shard", "000001.shard"])
def test_a_shard_that_is_listed_and_gone(quick_path: Path, name: str) -> None:
    """Without it other rows would have its ids."""
    build(quick_path, [3, 2], sums=True)
    (quick_path / name).unlink()
    for attempt in (ShardReader.open, partial(ShardWriter, mode="a")):
        with pytest.raises(FormatError, match=f"expected {name}, which is listed") as caught:
            attempt(quick_path)
        assert caught.value.path == str(quick_path / "shards.json")
    others = sorted(quick_path.glob("*.shard"))
    assert len(ShardReader(others)) == (2 if name == "000000.shard" else 3)  # as asked for


def test_every_byte_of_the_rows(quick_path: Path) -> None:
    build(quick_path, [3, 2], sums=True)
    path = quick_path / "000001.shard"
    whole = path.read_bytes()
    for at in range(32, len(whole)):
        path.write_bytes(whole[:at] + struct.pack("B", whole[at] ^ 16) + whole[at + 1 :])
        (problem,) = ShardReader.open(quick_path).verify().problems
        assert isinstance(problem, ChecksumError)
        assert problem.path == str(path)
    path.write_bytes(whole)
    assert ShardReader.open(quick_path).verify().ok

"""Damaged and contradictory shards: the exact rows, or an error that says where."""

import json
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from stepwell import ChecksumError, FormatError, ShardReader, ShardWriter, VersionError
from tests.reference import shards as reference
from tests.reference.shards import header
from tests.shards import WIDTH, assert_same, build, shard_bytes, values

ROWS = values(3)
WHOLE = shard_bytes(ROWS, "float32")
ENTRY = {"name": "000000.shard", "rows": 3, "width": WIDTH, "dtype": "float32", "crc32c": None}
SHARD, LIST = "000000.shard", "shards.json"


def listing(*entries: Any, **others: Any) -> bytes:
    text = {"format": "stepwell-shards", "version": 1, "shards": list(entries)}
    return json.dumps({**text, **others}).encode()


class Case(NamedTuple):
    """Files beside a sound shard, or in its place, and what is said of them."""

    files: dict[str, bytes | None]
    """None: no such file."""
    message: str
    at: str
    offset: int | None = None
    kind: type[FormatError] = FormatError
    writer: bool = True
    """Whether a writer refuses it, too."""


def bad_header(
    data: bytes, message: str, offset: int, kind: type[FormatError] = FormatError
) -> Case:
    return Case({SHARD: data}, message, SHARD, offset, kind)


def bad_list(data: bytes, message: str = "not a shards.json", **options: Any) -> Case:
    return Case({LIST: data}, message, LIST, **options)


WRONG: dict[str, list[Any]] = {
    "name": [
        None,
        3,
        "",
        "x",
        "../a.shard",
        "/a.shard",
        "\0.shard",
        "n" * 394 + ".shard",
        "\ud800.shard",
    ],
    "rows": [None, -1, 1.5, "3", True, 2**62, 10**30],
    "width": [None, 0, -1, 2.0, 2**61],
    "dtype": [None, "", "float64", 0, []],
    "crc32c": ["", "xyz", "-1", "123456789", 5, []],
}
NONSENSE = [
    *(b"", b"\0", b"{", b"[]", b"null", b"7", b'"text"', b"{}", b"\xff\xfe", b"[" * 100_000),
    *(b"9" * 10_000, b'{"format": "stepwell-shards", "version": 1}'),
    *(listing(format="other"), listing(shards=None), listing(shards=7)),
    *(listing(None), listing([]), listing({}), listing(ENTRY, ENTRY)),
]
OTHER = "000001.shard"
LISTED = {**ENTRY, "name": OTHER}
HOSTILE: dict[str, Case] = {
    "no header": bad_header(b"", "header of 32 bytes, got 0", 0),
    "a short header": bad_header(b"GAMSAE01", "header of 32 bytes, got 8", 8),
    "another magic": bad_header(b"GAMSAE02" + WHOLE[8:], "expected magic b'GAMSAE01', got", 0),
    "a zip file": bad_header(b"PK\3\4" + bytes(60), "expected magic b'GAMSAE01'", 0),
    "no width": bad_header(header(1, 0, 0) + bytes(8), "rows of at least one value", 16),
    "nothing at all": bad_header(header(0, 0, 0), "rows of at least one value", 16),
    "reserved": bad_header(header(1, 1, 0, 1) + bytes(4), "expected zeros, got 1", 28),
    "reserved, high": bad_header(header(1, 1, 0, 2**31) + bytes(4), "expected zeros", 28),
    "2^124 values": bad_header(header(2**62, 2**62, 0), "a file of up to", 8),
    "0 modulo 2^64": bad_header(header(2**32, 2**32, 0), "a file of up to", 8),
    "2^64 halves": bad_header(header(2**63, 2, 1), "a file of up to", 8),
    "all ones": bad_header(header(2**64 - 1, 2**64 - 1, 2), "a file of up to", 8),
    "2^60 rows": bad_header(header(2**60, 1, 0) + bytes(64), "truncated: expected .* got 96", 96),
    "2^61 wide": bad_header(header(1, 2**61, 1) + bytes(64), "truncated: expected .* got 96", 96),
    "a byte less": bad_header(
        header(3, 3, 0) + bytes(35), "truncated: expected 68 bytes, got 67", 67
    ),
    **{
        f"dtype tag {tag}": bad_header(
            header(1, 1, tag) + bytes(64), f"got {tag}", 24, VersionError
        )
        for tag in (3, 4, 255, 2**31, 2**32 - 1)
    },
    "other width": Case(
        {OTHER: header(1, 4, 0) + bytes(16)},
        "expected 5 x float32, as in 000000.shard, got 4 x float32",
        OTHER,
        writer=False,
    ),
    "other dtype": Case(
        {OTHER: header(1, 5, 1) + bytes(10)}, "got 5 x float16", OTHER, writer=False
    ),
    "other width, empty": Case({OTHER: header(0, 4, 0)}, "got 4 x float32", OTHER, writer=False),
    "no rows": Case({SHARD: header(0, 3, 0)}, "expected a corpus with rows", SHARD, writer=False),
    **{f"list {data[-60:]!r}": bad_list(data) for data in NONSENSE},
    **{
        f"list, {name}: {value!r:.20}": bad_list(listing({**ENTRY, name: value}))
        for name, many in WRONG.items()
        for value in many
    },
    **{
        f"list of version {version!r}": bad_list(
            listing(version=version), f"expected version 2, got {version!r}", kind=VersionError
        )
        for version in (0, 3, "1", None)
    },
    "listed with more rows": bad_list(listing({**ENTRY, "rows": 4}), "000000.shard with 3 rows"),
    "listed as wider": bad_list(listing({**ENTRY, "width": 6}), "000000.shard with 3 rows"),
    "listed as halves": bad_list(listing({**ENTRY, "dtype": "float16"}), "000000.shard with 3"),
    "listed and gone": bad_list(listing(ENTRY, LISTED), "expected 000001.shard, which is listed"),
    "all gone": Case({SHARD: None, LIST: listing(ENTRY)}, "expected|found none", LIST),
}


@pytest.mark.parametrize("name", HOSTILE, ids=str)
def test_hostile(quick_path: Path, name: str) -> None:
    """Readers, of buckets too, and writers refuse it in the same words, which name it."""
    case = HOSTILE[name]
    files = {SHARD: WHOLE, **case.files}
    for file, data in files.items():
        if data is not None:
            (quick_path / file).write_bytes(data)
    before = sorted(os.listdir(quick_path))
    with pytest.raises(case.kind, match=case.message) as caught:
        ShardReader.open(quick_path)
    assert type(caught.value) is case.kind
    assert caught.value.path == str(quick_path / case.at)
    assert caught.value.offset == case.offset
    assert sorted(os.listdir(quick_path)) == before
    if case.at == SHARD:
        with pytest.raises(case.kind, match=case.message) as caught:
            ShardReader.open(f"file://{quick_path}")
        assert caught.value.path == f"file://{quick_path / SHARD}"
        assert caught.value.offset == case.offset
    if not case.writer:
        return
    with pytest.raises(case.kind, match=case.message) as caught:
        ShardWriter(quick_path, mode="a")
    assert (caught.value.path, caught.value.offset) == (str(quick_path / case.at), case.offset)


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


def test_what_is_no_corpus(path: Path) -> None:
    with pytest.raises(FormatError, match="expected a folder of shards, got an empty folder"):
        ShardReader.open(path.parent)
    with pytest.raises(ValueError, match="at least one"):
        ShardReader([])
    os.mkfifo(path)  # to open it would wait for ever
    refused(path, "expected a regular file, got a pipe")
    path.unlink()
    path.mkdir()
    with pytest.raises(FormatError, match="expected a regular file, got a folder"):
        ShardReader.open(path.parent)


def test_the_callers_own_files_may_be_links(path: Path) -> None:
    (path.parent / "elsewhere").write_bytes(WHOLE)
    path.symlink_to("elsewhere")
    for where in (path, [path]):
        assert_same(ShardReader(where)[:]["data"], ROWS)
    with pytest.raises(FormatError, match="expected a regular file, got a link"):
        ShardReader.open(path.parent)


def test_bytes_behind_the_last_row(path: Path) -> None:
    path.write_bytes(WHOLE + b"more")
    reader = ShardReader.open(path)
    assert_same(reader[:]["data"], ROWS)
    assert_same(np.concatenate([batch.rows for batch in reader.batches(3)]), ROWS)
    far = ShardReader.open(f"file://{path.parent}")
    for there, where in ((reader, str(path)), (far, f"file://{path}")):
        assert there.describe().health == f"bytes behind the last row of {where}"
        for quick in (False, True):
            (problem,) = there.verify(quick=quick).problems
            assert "4 bytes behind the last row" in str(problem)
            assert (problem.path, problem.offset) == (where, len(WHOLE))


# shards.json.


def damages(data: bytes) -> list[bytes]:
    flipped = [
        data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :]
        for i in range(len(data))
        for bit in (0, 4, 7)
    ]
    return [*(data[:size] for size in range(len(data))), *flipped]


def test_every_byte_of_the_list(quick_path: Path) -> None:
    """What the shards have is right whatever the list says; verify may have doubts."""
    rows = build(quick_path, [3, 2], checksums=True)
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
        problems = reader.verify().problems
        doubts += bool(problems)
        assert all(isinstance(problem, ChecksumError) for problem in problems)
    assert doubts > 10
    assert named == refusals > 100


def test_a_list_that_does_not_have_a_shard(quick_path: Path) -> None:
    rows = build(quick_path, [3, 2], checksums=True)
    build(quick_path / "more", [4], names=["000002.shard"])
    (quick_path / "more" / "000002.shard").rename(quick_path / "000002.shard")
    reader = ShardReader.open(quick_path)  # the shards are believed
    assert len(reader) == 9
    assert_same(reader[:5]["data"], rows)
    assert [shard.crc32c is None for shard in reader.shards] == [False, False, True]
    report = reader.verify()
    assert report.ok
    assert report.unchecked == (
        "the values of 1 shards without a checksum in shards.json: 000002.shard",
    )


def test_others_than_the_one_that_is_listed_and_gone(quick_path: Path) -> None:
    build(quick_path, [3, 2], checksums=True)
    (quick_path / "000000.shard").unlink()
    assert len(ShardReader(sorted(quick_path.glob("*.shard")))) == 2  # as asked for


def test_every_byte_of_the_rows(quick_path: Path) -> None:
    build(quick_path, [3, 2], checksums=True)
    path = quick_path / "000001.shard"
    whole = path.read_bytes()
    for at in range(32, len(whole)):
        path.write_bytes(whole[:at] + struct.pack("B", whole[at] ^ 16) + whole[at + 1 :])
        (problem,) = ShardReader.open(quick_path).verify().problems
        assert isinstance(problem, ChecksumError)
        assert problem.path == str(path)
    path.write_bytes(whole)
    assert ShardReader.open(quick_path).verify().ok

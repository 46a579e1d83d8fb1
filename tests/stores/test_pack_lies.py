"""Packs whose sums are right and whose contents are not: each lie is refused where it stands."""

import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lz4.block
import pytest
import zstandard

from stepwell import (
    ChecksumError,
    FormatError,
    PackReader,
    VersionError,
)
from tests import children
from tests.packs import (
    PACKS,
    PAYLOAD,
    WORDS,
    changed,
    check_error,
    contents,
    summed,
    without_sums,
)
from tests.reference import pack, runs
from tests.reference.pack import LZ4, ZSTD, ZSTD_DICTIONARY, Entry, read_pack, write_pack
from tests.reference.runs import Broken
from tests.runs import RUN_V1, RUN_V2

ENTRY_0, ENTRY_1 = 28, 60
"""Where the index entries begin."""


@pytest.fixture
def at(tmp_path: Path) -> Callable[[bytes], Path]:
    def put(data: bytes) -> Path:
        path = tmp_path / "p.a2pack"
        path.write_bytes(data)
        return path

    return put


# A structure that lies, with right sums.


@pytest.mark.parametrize(
    ("offset", "new", "error", "match"),
    [
        (0, b"PK\3\4", FormatError, "expected magic"),
        (8, b"\0", VersionError, "version 1 or 2, got 0"),
        (8, b"\3", VersionError, "version 1 or 2, got 3"),
        (12, b"\2", VersionError, "unknown flags 0x2"),
        (15, b"\x80", VersionError, "unknown flags 0x80000000"),
        (ENTRY_0, struct.pack("<Q", 64), FormatError, "entry 0: offset 64 lies inside"),
        (ENTRY_0, struct.pack("<Q", 0), FormatError, "entry 0: offset 0 lies inside"),
        (
            ENTRY_0,
            struct.pack("<Q", 2**64 - 1),
            FormatError,
            "entry 0: offset 18446744073709551615",
        ),
        (ENTRY_1, struct.pack("<Q", 2**63), FormatError, "entry 1: offset 9223372036854775808"),
        (ENTRY_1, struct.pack("<Q", 2**64 - 64), FormatError, "entry 1: offset"),
        (ENTRY_1, struct.pack("<Q", 128), FormatError, "entry 1: offset 128 lies inside"),
        (ENTRY_1, struct.pack("<Q", 204), FormatError, "entry 1: offset 204 lies inside"),
        (ENTRY_1, struct.pack("<Q", 453), FormatError, "entry 1"),
        (ENTRY_0 + 8, struct.pack("<I", 2**32 - 1), FormatError, "entry 0: length 4294967295"),
        (ENTRY_0 + 8, struct.pack("<I", 129), FormatError, "entry 1: offset 256 lies inside"),
        (ENTRY_0 + 8, struct.pack("<I", 0), FormatError, "not aligned"),
        (ENTRY_1 + 8, struct.pack("<I", 106), FormatError, "expected the data to end at 362"),
        (ENTRY_1 + 8, struct.pack("<I", 2**31), FormatError, "entry 1: length"),
        (ENTRY_0 + 12, b"\0", FormatError, "entry 0: kind 0"),
        (ENTRY_0 + 12, b"\3", FormatError, "entry 0: kind 3"),
        (ENTRY_0 + 12, b"\x10", FormatError, "kind 16 is not of version 1"),
        (ENTRY_0 + 14, b"\1", FormatError, "codec 1 is not of version 1"),
        (ENTRY_0 + 15, b"\1", FormatError, "codec 256"),
        (ENTRY_0 + 20, b"\1", FormatError, "reserved: expected 0, got 1"),
        (ENTRY_0 + 24, b"\1", FormatError, "eight zero bytes"),
        (ENTRY_1 + 31, b"\x80", FormatError, "eight zero bytes"),
        (-32, struct.pack("<Q", 360), FormatError, "expected the data to end at 361"),
        (-32, struct.pack("<Q", 0), FormatError, "expected the data to end at 361"),
        (-32, struct.pack("<Q", 2**64 - 1), FormatError, "expected the data to end at 361"),
        (-16, struct.pack("<Q", 1), FormatError, "expected statistics at 361"),
        (-16, struct.pack("<Q", 128), FormatError, "expected statistics at 361"),
        (-16, struct.pack("<Q", 2**64 - 1), FormatError, "expected statistics at 361"),
        (-16, struct.pack("<Q", 0), FormatError, "expected the footer, got 60 other bytes"),
        (361, struct.pack("<I", 57), FormatError, "statistics: 57 bytes do not fit into 56"),
        (361, struct.pack("<I", 2**32 - 1), FormatError, "statistics: 4294967295 bytes"),
        (361, struct.pack("<I", 55), FormatError, "expected the footer, got 1 other bytes"),
        (-4, b"\1", FormatError, "four zero bytes"),
    ],
)
def test_a_structure_that_lies(
    at: Callable[[bytes], Path], offset: int, new: bytes, error: type[FormatError], match: str
) -> None:
    data = changed(PACKS["v1"], offset, new)
    with pytest.raises(Broken):
        read_pack(data)
    path = at(data)
    with pytest.raises(error, match=match) as info:
        PackReader.open(path)
    assert type(info.value) is error
    check_error(info.value, path)


def test_sums_that_do_not_fit(at: Callable[[bytes], Path]) -> None:
    data = PACKS["v1"]
    for offset, what in ((24, "header"), (-8, "footer"), (-24, "footer"), (44, "index")):
        broken = bytearray(data)
        broken[offset] ^= 1
        with pytest.raises(ChecksumError, match=f"{what}: expected CRC32C"):
            PackReader.open(at(bytes(broken)))


@pytest.mark.parametrize("count", [0, 3, 2**31, 2**32, 2**59, 2**63, 2**64 - 1])
def test_counts(at: Callable[[bytes], Path], count: int) -> None:
    data = bytearray(PACKS["v2"])
    data[16:24] = struct.pack("<Q", count)
    data[24:28] = struct.pack("<I", runs.crc32c(bytes(data[:24])))
    with pytest.raises(FormatError, match=f"expected 1 to 2 entries, as many as fit, got {count}"):
        PackReader.open(at(bytes(data)))


def test_entries_out_of_order(at: Callable[[bytes], Path]) -> None:
    data = PACKS["v1"]
    swapped = data[:28] + data[60:92] + data[28:60] + data[92:]
    with pytest.raises(FormatError, match="entry 1: offset 128 lies inside"):
        PackReader.open(at(summed(swapped)))
    twice = data[:60] + data[28:60] + data[92:]
    with pytest.raises(FormatError, match="entry 1: offset 128 lies inside"):
        PackReader.open(at(summed(twice)))


def test_padding_is_verified_with_and_without_sums(at: Callable[[bytes], Path]) -> None:
    for data in (PACKS["v1"], without_sums(PACKS["v1"])):
        for place in (92, 127, 205, 255):
            broken = bytearray(data)
            broken[place] = 1
            problems = PackReader.open(at(bytes(broken))).verify().problems
            assert [p.offset for p in problems if "zero bytes" in str(p)] == [place]


def test_statistics_that_lie_are_found_by_verify(at: Callable[[bytes], Path]) -> None:
    entries = [Entry(1, RUN_V1), Entry(2, RUN_V2)]
    good = pack.stats_of([(1, RUN_V1), (2, RUN_V2)])
    for name, value in (
        ("count", 3),
        ("total_steps", 2**64 - 1),
        ("mean_len", float("nan")),
        ("p50", 2),
        ("highest_tile_hist", [(512, 2)]),
        ("engine_counts", [("test-engine", 1)]),
    ):
        stats = pack.Stats(**{**vars(good), name: value})
        packed = PackReader.open(at(write_pack(entries, 64, stats)))
        (problem,) = packed.verify().problems
        assert f"statistics: expected {name}" in str(problem)
        assert problem.path == packed.path


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\2\5\2\3",
        pack.encode_stats(pack.Stats(2)) + b"\1",
        pack.encode_stats(pack.Stats(2)) + runs.varint(2**64 - 1),
        pack.encode_stats(pack.Stats(2)) + b"\0" + runs.varint(2**63),
        pack.encode_stats(pack.Stats(2)) + b"\0\1" + runs.varint(2**64 - 1),
        pack.encode_stats(pack.Stats(2)) + b"\0\1\1\xff\1",
        pack.encode_stats(pack.Stats(2)) + b"\0\0abc",
        pack.encode_stats(pack.Stats(2)) + b"\0\0abcd",
        pack.encode_stats(pack.Stats(2)) + b"\0\0abcde",
        b"\xff" * 12,
    ],
    ids=bytes.hex,
)
def test_statistics_that_are_none(at: Callable[[bytes], Path], block: bytes) -> None:
    data = write_pack([Entry(1, RUN_V1), Entry(2, RUN_V2)], 64)
    end = data[-32:-24]
    tail = end + data[-24:-16] + end + data[-8:]
    path = at(summed(data[:-32] + struct.pack("<I", len(block)) + block + tail))
    packed = PackReader.open(path)
    assert packed.decode(1).to_bytes() == RUN_V2
    with pytest.raises(FormatError, match="statistics") as info:
        packed.stats  # noqa: B018
    check_error(info.value, path)
    (problem,) = packed.verify().problems
    assert "statistics" in str(problem)


# Compression that lies.


def one(stored: bytes, codec: int, size: int, kind: int = 16, **options: Any) -> bytes:
    return write_pack([Entry(kind, stored, codec, size)], 8, **options)


FRAME = zstandard.compress(PAYLOAD)
BLOCK = lz4.block.compress(PAYLOAD, store_size=False)
UNSIZED = zstandard.ZstdCompressor(write_content_size=False).compress(PAYLOAD)


def test_frames_without_a_size_are_read(at: Callable[[bytes], Path]) -> None:
    packed = PackReader.open(at(one(UNSIZED, ZSTD, len(PAYLOAD))))
    assert bytes(packed.slice(0)) == PAYLOAD
    assert packed.verify().ok


@pytest.mark.parametrize(
    ("stored", "codec", "size"),
    [
        (FRAME, ZSTD, len(PAYLOAD) - 1),
        (FRAME, ZSTD, len(PAYLOAD) + 1),
        (FRAME, ZSTD, 0),
        (FRAME, ZSTD, 400_000),
        (FRAME[:-1], ZSTD, len(PAYLOAD)),
        (FRAME[:5], ZSTD, len(PAYLOAD)),
        (UNSIZED, ZSTD, len(PAYLOAD) - 1),
        (UNSIZED, ZSTD, len(PAYLOAD) + 1),
        (UNSIZED[:-1], ZSTD, len(PAYLOAD)),
        (b"", ZSTD, 5),
        (b"garbage", ZSTD, 5),
        (BLOCK, ZSTD, len(PAYLOAD)),
        (BLOCK, LZ4, len(PAYLOAD) - 1),
        (BLOCK, LZ4, len(PAYLOAD) + 1),
        (BLOCK[:-1], LZ4, len(PAYLOAD)),
        (b"\xff" * 9, LZ4, 50),
        (b"", LZ4, 5),
        (FRAME, LZ4, len(PAYLOAD)),
        (FRAME, ZSTD_DICTIONARY, 3),
        (b"garbage", ZSTD_DICTIONARY, 5),
    ],
)
def test_what_does_not_unpack(
    at: Callable[[bytes], Path], stored: bytes, codec: int, size: int
) -> None:
    path = at(one(stored, codec, size, dictionary=WORDS))
    for checksums in (True, False):
        packed = PackReader.open(path, checksums=checksums)
        calls: list[Callable[[PackReader], Any]] = [
            lambda p: p.slice(0),
            lambda p: p.take([0]),
            lambda p: p.slices([0]),
        ]
        for call in calls:
            with pytest.raises(FormatError, match="entry 0: ") as info:
                call(packed)
            check_error(info.value, path)
        (problem,) = packed.verify().problems
        check_error(problem, path)


@pytest.mark.parametrize("codec", [ZSTD, LZ4, ZSTD_DICTIONARY])
def test_a_large_claim_for_a_few_bytes_is_refused(at: Callable[[bytes], Path], codec: int) -> None:
    path = at(one(b"few bytes", codec, 2**32 - 1, dictionary=WORDS))
    with pytest.raises(FormatError, match=r"entry 0: no .* payload unpacks to 4294967295") as info:
        PackReader.open(path)
    assert info.value.offset == ENTRY_0 + 20


def test_hostile_packs_ask_for_no_memory(at: Callable[[bytes], Path]) -> None:
    def work() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + (128 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        refused = 0
        huge = runs.varint(2**32 - 1) + RUN_V2[1:30] + runs.varint(2**32 - 1)
        for data in (
            *(one(b"few bytes", codec, 2**32 - 1, dictionary=WORDS) for codec in (1, 2, 3)),
            one(FRAME, ZSTD, 500_000),
            write_pack([Entry(2, huge)], 8),
            changed(PACKS["v1"], ENTRY_0 + 8, b"\xff" * 4),
        ):
            try:
                contents(PackReader.open(at(data)))
            except FormatError:
                refused += 1
        return refused

    assert children.in_fork(work) == 6


def test_dictionaries(at: Callable[[bytes], Path]) -> None:
    data = PACKS["codecs"]
    start = data.index(WORDS)
    assert PackReader.open(at(data)).verify().ok
    with pytest.raises(FormatError, match="entry 0: needs a dictionary"):
        PackReader.open(
            at(changed(changed(data, 12, b"\0"), ENTRY_0 + 14, b"\3")[: start - 8] + data[-32:])
        )
    for offset in (start, start + len(WORDS) - 1, start - 1):
        broken = bytearray(data)
        broken[offset] ^= 1
        with pytest.raises(ChecksumError, match="dictionary"):
            PackReader.open(at(bytes(broken)))
    for length in (0, len(WORDS) - 1, len(WORDS) + 1, 2**32 - 1):
        with pytest.raises(FormatError, match=r"dictionary|footer"):
            PackReader.open(at(changed(data, start - 8, struct.pack("<I", length))))
    other = summed(data.replace(WORDS, WORDS[::-1]))
    other = changed(other, start - 4, struct.pack("<I", runs.crc32c(WORDS[::-1])))
    packed = PackReader.open(at(other))  # a dictionary, but not the one that was used
    assert bytes(packed.slice(1)) == PAYLOAD
    assert not packed.verify().ok or len(packed.slice(0)) == len(PAYLOAD)


# Kinds that lie.


def test_kinds_are_believed_not_guessed(at: Callable[[bytes], Path]) -> None:
    path = at(write_pack([Entry(2, RUN_V1), Entry(1, RUN_V2), Entry(2, RUN_V2)], 8))
    packed = PackReader.open(path)
    for i, error in ((0, FormatError), (1, ChecksumError)):
        with pytest.raises(FormatError, match=f"entry {i}: ") as info:
            packed.decode(i)
        assert type(info.value) is error
        check_error(info.value, path)
    assert packed.decode(2).to_bytes() == RUN_V2
    assert [str(problem)[:7] for problem in packed.verify().problems] == ["entry 0", "entry 1"]


def test_another_version_under_kind_1(at: Callable[[bytes], Path]) -> None:
    body = RUN_V1[:4] + b"\2" + RUN_V1[5:-4]
    path = at(write_pack([Entry(1, body + struct.pack("<I", runs.crc32c(body)))], 8))
    with pytest.raises(FormatError, match="entry 0: version: expected 1, got 2") as info:
        PackReader.open(path).decode(0)
    assert type(info.value) is FormatError


# What is no file of ours.


def test_no_pack(at: Callable[[bytes], Path], tmp_path: Path) -> None:
    for data in (b"", b"A2PACK", b"A2PACK\0\0", bytes(92), RUN_V1, RUN_V2):
        path = at(data)
        with pytest.raises(FormatError) as info:
            PackReader.open(path)
        check_error(info.value, path)
    with pytest.raises(FileNotFoundError):
        PackReader.open(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("not ours")
    for other in (tmp_path, tmp_path / "pipe", tmp_path / "text"):
        with pytest.raises(FormatError, match="expected a pack, got"):
            PackReader.open(other)

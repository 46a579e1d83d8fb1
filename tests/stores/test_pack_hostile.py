"""Damaged and hostile packs: the exact data, or an error that says where, and nothing else."""

import os
import resource
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import lz4.block
import numpy as np
import pytest
import zstandard

from stepwell import ChecksumError, FormatError, PackReader, StepwellError, VersionError
from stepwell.stores.pack.layout import Layout
from tests import children, packs, scaled
from tests.packs import (
    PACKS,
    PAYLOAD,
    WORDS,
    changed,
    check_error,
    contents,
    summed,
    without_checksums,
)
from tests.reference import pack, runs
from tests.reference.pack import LZ4, ZSTD, ZSTD_DICTIONARY, Entry, read_pack, write_pack
from tests.reference.runs import Broken, BrokenChecksum, BrokenVersion
from tests.runs import RUN_V1, RUN_V2

ENTRY_0, ENTRY_1 = 28, 60
"""Where the index entries begin."""
EACH = pytest.mark.parametrize("name", PACKS)

At = Callable[[bytes], Path]


@pytest.fixture
def at(tmp_path: Path) -> At:
    def put(data: bytes) -> Path:
        path = tmp_path / "p.a2pack"
        path.write_bytes(data)
        return path

    return put


# Files that lie, their checksums right.


class Lie(NamedTuple):
    """A file, and what is said about it."""

    data: bytes
    match: str
    error: type[FormatError] = FormatError
    found: str = "open"
    """By which call: "open", "read" (of entry 0) or "stats"."""


# In the pack of the page: what is written where, and what it is refused with.
STRUCTURE: list[tuple[int, bytes, type[FormatError], str]] = [
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
    (361, struct.pack("<I", 57), FormatError, "statistics: expected at most 56 bytes, got 57"),
    (361, struct.pack("<I", 2**32 - 1), FormatError, "statistics: .* got 4294967295"),
    (361, struct.pack("<I", 55), FormatError, "expected the footer, got 1 other bytes"),
    (-4, b"\1", FormatError, "four zero bytes"),
]

FRAME = zstandard.compress(PAYLOAD)
BLOCK = lz4.block.compress(PAYLOAD, store_size=False)
UNSIZED = zstandard.ZstdCompressor(write_content_size=False).compress(PAYLOAD)

# What does not unpack to the length that the entry has.
UNPACKED: list[tuple[bytes, int, int]] = [
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
]

SHORT = pack.encode_stats(pack.Stats(2))
# Statistics that are none.
BLOCKS = [
    b"",
    b"\2\5\2\3",
    SHORT + b"\1",
    SHORT + runs.varint(2**64 - 1),
    SHORT + b"\0" + runs.varint(2**63),
    SHORT + b"\0\1" + runs.varint(2**64 - 1),
    SHORT + b"\0\1\1\xff\1",
    SHORT + b"\0\0abc",
    SHORT + b"\0\0abcd",
    SHORT + b"\0\0abcde",
    b"\xff" * 12,
]


def one(stored: bytes, codec: int, size: int) -> bytes:
    return write_pack([Entry(16, stored, codec, size)], 8, dictionary=WORDS)


def with_count(count: int) -> bytes:
    data = bytearray(PACKS["v2"])
    data[16:24] = struct.pack("<Q", count)
    data[24:28] = struct.pack("<I", runs.crc32c(bytes(data[:24])))
    return bytes(data)


def with_stats(block: bytes) -> bytes:
    data = write_pack([Entry(2, RUN_V2), Entry(1, RUN_V1)], 64)
    end = data[-32:-24]
    tail = end + data[-24:-16] + end + data[-8:]
    return summed(data[:-32] + struct.pack("<I", len(block)) + block + tail)


def gaps() -> Iterator[bytes]:
    """Bytes that no part explains: behind the index, between payloads, before the footer."""
    tight = write_pack([Entry(16, bytes(size)) for size in (8, 4, 8)], 4)
    for at, moved in [(124, (0, 1, 2)), (132, (1, 2)), (136, (2,)), (144, ())]:
        data = bytearray(tight[:at] + bytes(4) + tight[at:])
        for i in moved:
            data[ENTRY_0 + 32 * i] += 4
        data[-32] += 4 * bool(moved)
        yield summed(bytes(data))


def flipped(data: bytes, *places: int) -> bytes:
    broken = bytearray(data)
    for place in places:
        broken[place] ^= 1
    return bytes(broken)


def lies() -> Iterator[tuple[str, Lie]]:
    """Every lie, with a name for it."""
    page, codecs = PACKS["v1"], PACKS["codecs"]
    for offset, new, error, match in STRUCTURE:
        yield f"{new.hex()} at {offset}", Lie(changed(page, offset, new), match, error)
    for at, byte, match in ((40, 15, "kind 15"), (42, 4, "codec 4"), (42, 3, "dictionary")):
        data = changed(PACKS["v2"], at, bytes([byte]))
        yield f"{byte} at {at} of version 2", Lie(data, f"entry 0: .*{match}")
    for place, part in ((24, "header"), (-8, "footer"), (-24, "footer"), (44, "index")):
        match = f"{part}: expected CRC32C"
        yield f"checksum of the {part}, {place}", Lie(flipped(page, place), match, ChecksumError)
    yield "cut", Lie(page[:300], "truncated: expected at least 393 bytes, got 300", ChecksumError)
    yield "no entries", Lie(with_count(0), "expected at least 1 entry, got 0")
    for count in (3, 2**31, 2**32, 2**59, 2**63, 2**64 - 1):
        match = f"truncated: {count} entries, but only 2 fit into the file"
        yield f"count {count}", Lie(with_count(count), match)
    inside = "entry 1: offset 128 lies inside"
    yield "swapped", Lie(summed(page[:28] + page[60:92] + page[28:60] + page[92:]), inside)
    yield "twice", Lie(summed(page[:60] + page[28:60] + page[92:]), inside)
    for number, data in enumerate(gaps()):
        yield f"gap {number}", Lie(data, r"not aligned to 4|expected the footer, got 4 other")
    start = codecs.index(WORDS)
    cut = changed(changed(codecs, 12, b"\0"), ENTRY_0 + 14, b"\3")[: start - 8] + codecs[-32:]
    yield "no dictionary", Lie(cut, "entry 0: needs a dictionary")
    for place in (start, start + len(WORDS) - 1, start - 1):
        yield f"dictionary, {place}", Lie(flipped(codecs, place), "dictionary", ChecksumError)
    for length in (0, len(WORDS) - 1, len(WORDS) + 1, 2**32 - 1):
        data = changed(codecs, start - 8, struct.pack("<I", length))
        error = ChecksumError if length < len(WORDS) else FormatError
        yield f"dictionary of {length}", Lie(data, r"dictionary|footer", error)
    for codec in (ZSTD, LZ4, ZSTD_DICTIONARY):
        match = r"entry 0: no .* payload unpacks to 4294967295"
        yield f"large claim {codec}", Lie(one(b"few bytes", codec, 2**32 - 1), match)
    for stored, codec, size in UNPACKED:
        name = f"{stored[:12].hex()} ({len(stored)}) by {codec} to {size}"
        yield name, Lie(one(stored, codec, size), "entry 0: ", found="read")
    v1_as_v2, v2_as_v1 = (write_pack([Entry(k, p)], 8) for k, p in ((2, RUN_V1), (1, RUN_V2)))
    yield "v1 under kind 2", Lie(v1_as_v2, "entry 0: ", found="read")
    yield "v2 under kind 1", Lie(v2_as_v1, "entry 0: ", ChecksumError, found="read")
    body = RUN_V1[:4] + b"\2" + RUN_V1[5:-4]
    other = write_pack([Entry(1, body + struct.pack("<I", runs.crc32c(body)))], 8)
    yield "another version", Lie(other, "entry 0: version: expected 1, got 2", found="read")
    for block in BLOCKS:
        error = ChecksumError if block.endswith(b"abcd") else FormatError
        yield f"statistics {block.hex()}", Lie(with_stats(block), "statistics", error, "stats")
    for short in (b"", b"A2PACK", b"A2PACK\0\0", bytes(92), RUN_V1, RUN_V2):
        yield (
            f"no pack, {short[:8].hex()} ({len(short)})",
            Lie(short, r"magic|truncated: expected at least 92 bytes"),
        )


LIES = dict(lies())
BY_REFERENCE = {FormatError: Broken, VersionError: BrokenVersion, ChecksumError: BrokenChecksum}


@pytest.mark.parametrize("name", LIES)
def test_lies(name: str, at: At) -> None:
    lie = LIES[name]
    path = at(lie.data)
    if lie.found == "open":
        if "large claim" not in name:  # by the bound that keeps us from asking for memory
            with pytest.raises(BY_REFERENCE[lie.error]) as refused:
                read_pack(lie.data)
            assert type(refused.value) is BY_REFERENCE[lie.error]
        calls: list[Callable[[], Any]] = [lambda: PackReader.open(path)]
    else:
        packed, careless = PackReader.open(path), PackReader.open(path, checksums=False)
        if lie.found == "stats":
            assert packed.decode(0).to_bytes() == RUN_V2
            calls = [lambda: packed.stats]
        else:
            calls = [lambda p=p: p.take([0]) for p in (packed, careless)]  # type: ignore[misc]
            calls.append(lambda: packed.decode_batch([0]))
            if packed.kind(0) == "raw:16":
                calls += [lambda: packed.slice(0), lambda: careless.slices([0])]
        (problem,) = packed.verify().problems
        check_error(problem, path)
        assert lie.match.split(":")[0] in str(problem)
    for call in calls:
        with pytest.raises(lie.error, match=lie.match) as info:
            call()
        assert type(info.value) is lie.error
        check_error(info.value, path)


def test_padding_is_verified_with_and_without_checksums(at: At) -> None:
    for data in (PACKS["v1"], without_checksums(PACKS["v1"])):
        for place in (92, 127, 205, 255):
            broken = bytearray(data)
            broken[place] = 1
            problems = PackReader.open(at(bytes(broken))).verify().problems
            assert [p.offset for p in problems if "zero bytes" in str(p)] == [place]


def test_statistics_that_lie_are_found_by_verify(at: At) -> None:
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


def test_frames_without_a_size_are_read(at: At) -> None:
    packed = PackReader.open(at(one(UNSIZED, ZSTD, len(PAYLOAD))))
    assert bytes(packed.slice(0)) == PAYLOAD
    assert packed.verify().ok


def test_hostile_packs_ask_for_no_memory(at: At) -> None:
    def work() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + (128 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        refused = 0
        huge = runs.varint(2**32 - 1) + RUN_V2[1:30] + runs.varint(2**32 - 1)
        for data in (
            *(one(b"few bytes", codec, 2**32 - 1) for codec in (1, 2, 3)),
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


def test_a_dictionary_that_is_not_the_one_that_was_used(at: At) -> None:
    data = PACKS["codecs"]
    other = summed(data.replace(WORDS, WORDS[::-1]))
    crc = struct.pack("<I", runs.crc32c(WORDS[::-1]))
    packed = PackReader.open(at(changed(other, data.index(WORDS) - 4, crc)))
    assert bytes(packed.slice(1)) == PAYLOAD
    assert not packed.verify().ok or len(packed.slice(0)) == len(PAYLOAD)


def test_a_dictionary_that_is_none(tmp_path: Path) -> None:
    payloads = [b"some words that come again %d" % i * 9 for i in range(200)]
    path = packs.write(tmp_path / "p.a2pack", payloads, [16] * 200, compress="zstd-dict")
    data = bytearray(path.read_bytes())
    at = bytes(data).rindex((0xEC30A437).to_bytes(4, "little"))  # how a dictionary begins
    (length,) = struct.unpack_from("<I", data, at - 8)
    data[at + 8 : at + 200] = bytes(192)  # the tables behind the magic and the number
    data[at - 4 : at] = struct.pack("<I", runs.crc32c(bytes(data[at : at + length])))
    path.write_bytes(data)
    opened = PackReader.open(path)
    with pytest.raises(FormatError, match="zstd"):
        opened.slices(np.arange(200))
    assert all(isinstance(problem, FormatError) for problem in opened.verify().problems)


def test_what_is_no_file_of_ours(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PackReader.open(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("not ours")
    for other in (tmp_path, tmp_path / "pipe", tmp_path / "text"):
        with pytest.raises(FormatError, match="expected a pack, got"):
            PackReader.open(other)


def look(path: Path, want: tuple[Any, ...], *, checked: bool = True) -> str:
    """What becomes of a damaged file: nothing wrong may come out of it."""
    try:
        packed = PackReader.open(path)
    except StepwellError as error:
        check_error(error, path)
        return "refused"
    try:
        found = contents(packed)
    except StepwellError as error:
        check_error(error, path)
        assert not packed.verify().ok
        return "found in reading"
    problems = packed.verify().problems
    for problem in problems:
        check_error(problem, path)
    if checked:
        assert found == want
    elif found != want:
        return "unseen"
    return "found by verify" if problems else "harmless"


# Damage.


@EACH
def test_every_byte_changed(name: str, at: At) -> None:
    data = PACKS[name]
    packed = PackReader.open(at(data))
    assert packed.verify().ok
    want = contents(packed)
    (count,) = struct.unpack_from("<Q", data, 16)
    structure = {*range(28 + 32 * count), *range(len(data) - 32, len(data))}
    random = Random(1)
    seen = set()
    for place in range(len(data)):
        bits = [1 << bit for bit in range(8)]
        few = 1 if place in structure else {"v1": 2, "v2": 8}.get(name, 1)
        for value in random.sample(bits, scaled(few)):
            broken = bytearray(data)
            broken[place] ^= value
            become = look(at(bytes(broken)), want, checked=name != "no checksums")
            if place in structure:
                assert become == "refused", (place, value)
            seen.add(become)
    assert {"refused", "found by verify"} <= seen
    assert ("unseen" in seen) == (name == "no checksums")


@EACH
def test_structure_with_every_value_of_every_byte(name: str) -> None:
    """What `open` does with a file, without the file: there are many of them."""
    data = np.frombuffer(PACKS[name], np.uint8).copy()
    Layout.read(data, "p.a2pack")
    (count,) = struct.unpack_from("<Q", PACKS[name], 16)
    for place in (*range(28 + 32 * count), *range(len(data) - 32, len(data))):
        right = data[place]
        for value in range(0, 256, 1 if name in ("v1", "v2") else scaled(17)):
            data[place] = value
            if value != right:
                with pytest.raises(FormatError) as info:
                    Layout.read(data, "p.a2pack")
                assert 0 <= (info.value.offset or 0) <= len(data)
        data[place] = right


@EACH
def test_every_truncation(name: str, at: At) -> None:
    data = PACKS[name]
    want = contents(PackReader.open(at(data)))
    for size in range(len(data)):
        assert look(at(data[:size]), want) == "refused"
        with pytest.raises(Broken):
            read_pack(data[:size])
    for more in (b"\0", b"\xff", bytes(32), data[-32:], data, data[:28]):
        assert look(at(data + more), want) == "refused"
        assert look(at(more + data), want) == "refused"
    for cut in (1, 28, 32, 60, len(data) // 2):
        assert look(at(data[cut:]), want) == "refused"


def test_random_damage(at: At) -> None:
    random = Random(2)
    wants = {name: contents(PackReader.open(at(data))) for name, data in PACKS.items()}
    for _ in range(scaled(600)):
        name = random.choice(["v1", "v2", "codecs"])
        data = bytearray(PACKS[name])
        for _ in range(random.randint(1, 3)):
            place, size = random.randrange(len(data)), random.randrange(1, 9)
            data[place : place + size] = random.randbytes(random.choice([0, size, size]))
        look(at(bytes(data)), wants[name])


def test_random_structure_with_right_checksums(at: At) -> None:
    """Our reader and the reference agree on what a pack is."""
    random = Random(3)
    opened = 0
    for _ in range(scaled(1500)):
        data = bytearray(PACKS[random.choice(list(PACKS))])
        (count,) = struct.unpack_from("<Q", data, 16)
        places = [*range(8, 28 + 32 * count), *range(len(data) - 32, len(data))]
        for _ in range(random.randint(1, 2)):
            data[random.choice(places)] = random.choice([0, 1, 2, 3, 16, 32, 64, 255])
        try:
            whole = summed(bytes(data))
        except (struct.error, OverflowError):
            continue
        path = at(whole)
        found = _verdicts(whole, path)
        opened += found == "both open it"
        assert found in ("both open it", "both refuse it", "nothing unpacks to that")
    assert opened > 20


def _verdicts(data: bytes, path: Path) -> str:
    try:
        want = read_pack(data)
    except Broken:
        want = None
    try:
        packed = PackReader.open(path)
    except StepwellError as error:
        check_error(error, path)
        if "unpacks to" in str(error):  # by the bound that keeps us from asking for memory
            return "nothing unpacks to that"
        return "both refuse it" if want is None else f"only ours refuses it: {error}"
    if want is None:
        return "only the reference refuses it"
    assert [bytes(packed._opened.data[o : o + 1]) for o in want.offsets] == [
        data[o : o + 1] for o in want.offsets
    ]
    return "both open it"

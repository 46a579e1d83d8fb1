"""Damaged and hostile runs: two readers of the page agree on what is refused."""

import resource
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from stepwell import ChecksumError, FormatError, game2048
from tests import children
from tests.reference import runs
from tests.reference.runs import (
    Broken,
    BrokenChecksum,
    crc32c,
    encode_v2,
    varint,
)
from tests.runs import RUN_V1, RUN_V2

BOTH = pytest.mark.parametrize("whole", [RUN_V1, RUN_V2], ids=["v1", "v2"])

# The varints of the v2 file: where each begins, and the bits of its type.
VARINTS = {
    **{"steps": (0, 32), "start_unix_s": (1, 64), "max_score": (10, 64), "highest_tile": (12, 32)},
    **{"engine": (15, 64), "list": (30, 64)},
    **{"board 0": (31, 64), "board 1": (58, 64), "board 2": (85, 64), "final_board": (96, 64)},
    **{"move 0": (40, 32), "move 2": (94, 32), "branch Up": (42, 32), "branch Left": (52, 32)},
}


def with_varint(offset: int, new: bytes) -> bytes:
    """The v2 file with another varint at an offset."""
    end = offset
    while RUN_V2[end] >= 128:
        end += 1
    return RUN_V2[:offset] + new + RUN_V2[end + 1 :]


def verdict(payload: bytes) -> str:
    """Both readers refuse the payload in the same way, or both read the same: which of it."""
    try:
        want = runs.decode(payload)
    except Broken as broken:
        error = ChecksumError if isinstance(broken, BrokenChecksum) else FormatError
        with pytest.raises(FormatError) as info:
            game2048.Run.from_bytes(payload, path="game.a2run2")
        assert type(info.value) is error, payload.hex()
        assert info.value.path == "game.a2run2"
        assert info.value.offset is not None
        assert 0 <= info.value.offset <= len(payload)
        return "refused"
    run = game2048.Run.from_bytes(payload)
    again = run.to_bytes(1 if runs.kind_of(payload) == runs.V1 else 2)
    assert encode_v2(runs.decode(again)) == encode_v2(want), payload.hex()
    assert again == payload or len(again) < len(payload)  # by varints longer than needed
    return "read"


# Damaged and hostile.


@BOTH
def test_every_byte_changed(whole: bytes) -> None:
    changes = {1 << bit for bit in range(8)} | set(range(1, 256, 9) if whole is RUN_V2 else [255])
    seen = set()
    for at in range(len(whole)):
        for change in changes:
            data = bytearray(whole)
            data[at] ^= change
            seen.add(verdict(bytes(data)))
    assert seen == ({"refused", "read"} if whole is RUN_V2 else {"refused"})


@BOTH
def test_every_truncation(whole: bytes) -> None:
    for size in range(len(whole)):
        assert verdict(whole[:size]) == "refused"
    for more in (b"\0", b"\xff", whole):
        assert verdict(whole + more) == "refused"


@given(st.data())
def test_random_changes(data: st.DataObject) -> None:
    payload = bytearray(data.draw(st.sampled_from([RUN_V1, RUN_V2])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(payload)))
        payload[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    if bytes(payload[:4]) == b"A2T1":
        payload[-4:] = struct.pack("<I", crc32c(bytes(payload[:-4])))  # so that more is looked at
    verdict(bytes(payload))


@pytest.mark.parametrize(
    ("offset", "new"),
    [
        (5, b"\1"),
        (6, b"\3"),
        (9, b"\xff"),
        (34, b"\xff\xff"),
        (36, b"\xff"),
        (36, b"\xed\xa0\x80"),
        (71, b"\4"),
    ],
)
def test_v1_with_a_right_sum_is_refused_where_it_is_wrong(offset: int, new: bytes) -> None:
    body = RUN_V1[:offset] + new + RUN_V1[offset + len(new) : -4]
    payload = body + struct.pack("<I", crc32c(body))
    assert verdict(payload) == "refused"


@pytest.mark.parametrize("name", VARINTS)
def test_varints_longer_than_needed(name: str) -> None:
    offset, bits = VARINTS[name]
    value = runs.Cursor(RUN_V2[offset:]).varint(bits, name)
    short, most = varint(value), -(-bits // 7)
    run = game2048.Run.from_bytes(RUN_V2)
    for size in range(len(short), most + 1):
        padded = short
        if size > len(short):
            padded = (
                short[:-1] + bytes([short[-1] | 128]) + b"\x80" * (size - len(short) - 1) + b"\0"
            )
        assert verdict(with_varint(offset, padded)) == "read"
        assert game2048.Run.from_bytes(with_varint(offset, padded)) == run
    assert verdict(with_varint(offset, short[:-1] + b"\x80" * most + b"\0")) == "refused"


@pytest.mark.parametrize("offset", [14, 41, 68, 95])
def test_the_byte_of_an_optional_is_no_varint(offset: int) -> None:
    assert RUN_V2[offset] in (0, 1)
    wide = RUN_V2[:offset] + bytes([RUN_V2[offset] | 128, 0]) + RUN_V2[offset + 1 :]
    assert verdict(wide) == "refused"


HUGE = [2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 3, 2**64 - 1, 2**64, 2**69, 2**70 - 1]


def huge_counts() -> Iterator[bytes]:
    for offset, _ in VARINTS.values():
        for count in HUGE:
            yield with_varint(offset, varint(count))
    for count in HUGE:  # meta and list agree
        yield varint(count) + with_varint(30, varint(count))[1:]
    for steps in (2**28, 2**31, 2**32 - 1):
        body = RUN_V1[:6] + struct.pack("<I", steps) + RUN_V1[10:-4]
        yield body + struct.pack("<I", crc32c(body))


def test_huge_counts_are_refused_without_memory() -> None:
    def work() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + (64 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        return [verdict(payload) for payload in huge_counts()].count("refused")

    refused = children.in_fork(work)
    assert refused >= len(HUGE) * 10  # scores and boards may be huge

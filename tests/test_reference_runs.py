"""docs/formats/runs.md and its reference agree: on files, on vectors, on what is refused."""

import re
import struct
from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests import ROOT
from tests.reference import runs
from tests.reference.runs import (
    BEST,
    Broken,
    BrokenChecksum,
    Meta,
    Run,
    Step,
    crc32c,
    decode,
    decode_v1,
    decode_v2,
    encode_v1,
    encode_v2,
    slide,
    varint,
)
from tests.runs import RUN_V1 as WHOLE_V1, RUN_V2 as WHOLE_V2, any_runs, f32_of, u64

PAGE = "runs.md"

# The page's files.


def test_the_v1_file_of_the_page() -> None:
    run = decode(WHOLE_V1)
    assert run == Run(
        Meta(2, 1_700_000_000, f32_of(12.34), 12345, 2048, "test-engine"),
        [Step(0, runs.LEFT), Step(0x1000000000000000, runs.UP)],
        0x1100000000000000,
    )
    assert encode_v1(run) == WHOLE_V1
    assert decode_v2(encode_v2(run)) == run


def test_the_v2_file_of_the_page() -> None:
    run = decode(WHOLE_V2)
    assert run == Run(
        Meta(3, 1_700_000_000, 5.25, 4096, 512, "test-engine-v2"),
        [
            Step(0x1000000000000000, runs.UP, [f32_of(0.8), f32_of(0.2), None, 0.5]),
            Step(0x1100000000000000, runs.RIGHT, [f32_of(0.9), None, f32_of(0.1), 0.0]),
            Step(0x1110000000000000, runs.DOWN),
        ],
        0x2220000000000000,
    )
    assert encode_v2(run) == WHOLE_V2


@pytest.mark.parametrize("name", ["run-v1", "run-v2"])
def test_the_breakdown_is_the_file(name: str) -> None:
    at = 0
    whole = runs.file_of(PAGE, name)
    for offset, part in runs.breakdown_of(PAGE, name):
        assert (offset, part) == (at, whole[at : at + len(part)])
        at += len(part)
    assert at == len(whole)


def test_crc() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(WHOLE_V1) == 0x48674BC7


# Boards.

VECTOR = re.compile(r"^\| `([0-9a-f]{16})` \| (Up|Down|Left|Right) \| `([0-9a-f]{16})` \|$", re.M)
VECTORS = [
    (int(board, 16), runs.MOVES.index(move.upper()), int(after, 16))
    for board, move, after in VECTOR.findall((ROOT / "docs/formats" / PAGE).read_text())
]


def test_the_page_has_all_vectors() -> None:
    assert len(VECTORS) == 7
    assert {move for _, move, _ in VECTORS} == set(range(4))


@pytest.mark.parametrize(("board", "move", "after"), VECTORS)
def test_vectors(board: int, move: int, after: int) -> None:
    assert f"{slide(board, move):016x}" == f"{after:016x}"
    assert bool(runs.legal(board) >> move & 1) == (after != board)


@given(st.lists(st.integers(0, 15), min_size=16, max_size=16))
def test_slides_mirror_each_other(exponents: list[int]) -> None:
    board = runs.board_of(exponents)
    assert runs.cells(board) == exponents
    grid = np.array(exponents).reshape(4, 4)

    def after(turned: np.ndarray, move: int) -> np.ndarray:
        moved = slide(runs.board_of(turned.flatten().tolist()), move)
        return np.array(runs.cells(moved)).reshape(4, 4)

    left = after(grid, runs.LEFT)
    assert np.array_equal(after(grid[:, ::-1], runs.RIGHT)[:, ::-1], left)
    assert np.array_equal(after(grid.T, runs.UP).T, left)
    assert np.array_equal(after(grid.T[::-1], runs.DOWN)[::-1].T, left)
    assert sum(1 << e for e in exponents if e) == sum(1 << e for e in left.flatten().tolist() if e)


def test_a_tile_merges_once() -> None:
    assert slide(0x1111, runs.LEFT) == 0x2200
    assert slide(0x2211, runs.LEFT) == 0x3200
    assert slide(0x1110, runs.RIGHT) == 0x0012


def test_score_and_highest_tile() -> None:
    assert runs.score(0x1111) == 0
    assert runs.score(0x2300) == 4 + 16
    assert runs.highest_tile(0x1B00) == 2048
    assert runs.highest_tile(0) == 0
    assert runs.score(0xFFFFFFFFFFFFFFFF) == 16 * 14 * 32768


# Branch values.


def test_branch_values() -> None:
    assert struct.pack("<f", BEST) == bytes.fromhex("feff7f3f")
    assert runs.normalise([None, None, None, None]) == [None, None, None, None]
    assert runs.normalise([None, 7.0, None, None]) == [None, BEST, None, None]
    assert runs.normalise([3.0, None, 3.0, 3.0]) == [0.5, None, 0.5, 0.5]
    assert runs.normalise([1.0, 2.0, None, 3.0]) == [0.0, 0.5, None, BEST]
    assert runs.choose([0.5, None, 0.5, None]) == runs.LEFT
    assert runs.choose([BEST, 0.0, None, 0.5]) == runs.UP


@given(st.lists(st.none() | st.floats(-1e6, 1e6, width=32), min_size=4, max_size=4))
def test_branch_values_stay_below_one(values: list[float | None]) -> None:
    for value, stored in zip(values, runs.normalise(values), strict=True):
        assert (stored is None) == (value is None)
        assert stored is None or (0 <= stored < 1 and f32_of(stored) == stored)


# Round trips.


@given(any_runs(v1=True))
def test_v1_comes_back(run: Run) -> None:
    data = encode_v1(run)
    assert decode(data) == run
    assert crc32c(data) == 0x48674BC7


@given(any_runs())
def test_v2_comes_back(run: Run) -> None:
    data = encode_v2(run)
    assert decode_v2(data) == run
    assert encode_v2(decode_v2(data)) == data


@given(u64)
def test_varints(value: int) -> None:
    data = varint(value)
    assert len(data) == max(1, -(-value.bit_length() // 7))
    assert runs.Cursor(data).varint(64, "") == value
    padded = data[:-1] + bytes([data[-1] | 128]) + b"\x80" * (9 - len(data)) + b"\0"
    assert len(data) == 10 or runs.Cursor(padded).varint(64, "") == value


def test_a_longer_varint_is_read_and_not_written() -> None:
    run = decode(WHOLE_V2)
    start = WHOLE_V2.index(b"\x80\x20")  # max_score
    longer = WHOLE_V2[:start] + b"\x80\xa0\x80\x00" + WHOLE_V2[start + 2 :]
    assert decode(longer) == run
    assert encode_v2(decode(longer)) == WHOLE_V2


@pytest.mark.parametrize("last", ["10", "7f", "8000", "8100"])
def test_a_varint_above_its_type_is_refused(last: str) -> None:
    assert runs.Cursor(bytes.fromhex("ffffffff0f")).varint(32, "") == 2**32 - 1
    with pytest.raises(Broken):
        runs.Cursor(bytes.fromhex("ffffffff" + last)).varint(32, "")
    with pytest.raises(Broken):
        runs.Cursor(bytes.fromhex("ff" * 9 + last)).varint(64, "")


def test_no_name_and_an_empty_name_stay_apart() -> None:
    run = decode(WHOLE_V1)
    run.meta.engine = ""
    assert decode(encode_v1(run)).meta.engine == ""
    assert decode(encode_v2(decode(encode_v1(run)))).meta.engine == ""
    run.meta.engine = None
    assert decode(encode_v2(run)).meta.engine is None


def test_kinds() -> None:
    assert runs.kind_of(WHOLE_V1) == runs.V1
    assert runs.kind_of(WHOLE_V2) == runs.V2
    assert runs.kind_of(b"A2T1") == runs.V2
    assert runs.kind_of(b"A2T1\x02") == runs.V2


# What the page refuses.


def changed(data: bytes, offset: int, new: bytes, crc: bool = False) -> bytes:
    out = data[:offset] + new + data[offset + len(new) :]
    return out[:-4] + struct.pack("<I", crc32c(out[:-4])) if crc else out


@pytest.mark.parametrize("whole", [WHOLE_V1, WHOLE_V2], ids=["v1", "v2"])
def test_every_truncation_is_refused(whole: bytes) -> None:
    for size in range(len(whole)):
        with pytest.raises(Broken):
            decode(whole[:size])
    with pytest.raises(Broken):
        decode(whole + b"\0")


def test_every_flip_of_v1_is_refused() -> None:
    for bit in range(8 * len(WHOLE_V1)):
        data = bytearray(WHOLE_V1)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Broken):
            decode_v1(bytes(data))


def test_flips_of_v2_are_refused_or_make_another_run() -> None:
    random = Random(7)
    refused = 0
    for _ in range(2000):
        data = bytearray(WHOLE_V2)
        for _ in range(random.randint(1, 3)):
            data[random.randrange(len(data))] = random.randrange(256)
        try:
            run = decode_v2(bytes(data))
        except Broken:
            refused += 1
        else:
            # NaN is not equal to itself, but its bytes are.
            assert encode_v2(decode_v2(encode_v2(run))) == encode_v2(run)
    assert 500 < refused < 1900


@pytest.mark.parametrize(
    ("offset", "new", "error"),
    [
        (0, b"A2T2", Broken),
        (4, b"\2", Broken),
        (5, b"\1", Broken),
        (6, b"\3", Broken),
        (34, b"\xff\xff", Broken),
        (36, b"\xff", Broken),
        (36, b"\xed\xa0\x80", Broken),
        (71, b"\4", Broken),
    ],
)
def test_v1_is_refused_by_more_than_its_sum(offset: int, new: bytes, error: type[Broken]) -> None:
    with pytest.raises(error) as info:
        decode_v1(changed(WHOLE_V1, offset, new, crc=True))
    assert type(info.value) is error


def test_v1_says_that_its_sum_is_wrong() -> None:
    for offset in (0, 4, 5, 6, 10, 34, 36, 50, 71, 73):
        with pytest.raises(BrokenChecksum):
            decode_v1(changed(WHOLE_V1, offset, b"\xff"))
    for size in range(4, len(WHOLE_V1)):
        with pytest.raises(BrokenChecksum):
            decode_v1(WHOLE_V1[:size])


@pytest.mark.parametrize(
    ("offset", "new"),
    [
        (0, b"\2"),  # meta.steps is not the list's length
        (14, b"\2"),  # engine: no option
        (16, b"\xff"),  # engine: no UTF-8
        (30, b"\2"),  # the list is not as long as meta.steps
        (40, b"\4"),  # no move
        (41, b"\2"),  # branches: no option
        (42, b"\2"),  # no branch
    ],
)
def test_v2_is_refused_where_it_is_wrong(offset: int, new: bytes) -> None:
    with pytest.raises(Broken) as info:
        decode_v2(changed(WHOLE_V2, offset, new))
    assert info.value.offset == (offset or 30)


def test_a_list_longer_than_the_file_is_refused_at_once() -> None:
    head = varint(2**32 - 1) + WHOLE_V2[1:30]
    for count in (2**32 - 1, 2**64 - 1):
        with pytest.raises(Broken, match="do not fit"):
            decode_v2(head + varint(count) + bytes(100))

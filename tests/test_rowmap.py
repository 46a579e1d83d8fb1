"""Maps from the rows of a view to those of its base, against NumPy."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from stepwell import _core

Ints = NDArray[np.int64]


def expand(starts: Ints, counts: Ints, step: int, width: int) -> Ints:
    """Every base row, view row by view row."""
    firsts = [np.arange(n, dtype=np.int64) * step + s for s, n in zip(starts, counts, strict=True)]
    rows = np.concatenate([np.empty(0, np.int64), *firsts])
    return (rows[:, None] + np.arange(width)).reshape(-1)


def check(starts: Ints, counts: Ints, step: int, width: int, seed: int = 0) -> None:
    """All rows in order, backwards, and at random, some of them several times."""
    made = _core.range_map(starts, counts, step, width)
    want = expand(starts, counts, step, width).reshape(-1, width)
    assert (made.length, made.width) == (len(want), width)
    random = np.random.default_rng(seed)
    everything = np.arange(len(want))
    some = random.integers(0, max(len(want), 1), min(len(want) * 2, 5000))
    for rows in (everything, everything[::-1].copy(), some, everything[-1:], everything[:1]):
        assert (made.apply(rows) == want[rows].reshape(-1)).all()
    for outside in (-1, len(want), 2**63 - 1, -(2**63)):
        with pytest.raises(IndexError, match=f"row {outside} "):
            made.apply(np.array([outside]))


LENGTHS = st.one_of(
    st.integers(0, 2),  # many tiny ones
    st.integers(0, 40),
    st.integers(1000, 3000),  # next to huge ones
)
STEPS = st.sampled_from([1, 1, 2, 3, 7, 1000, -1, -2, -13, 0])


@given(
    counts=st.lists(LENGTHS, max_size=60),
    step=STEPS,
    width=st.sampled_from([1, 1, 2, 3, 17]),
    seed=st.integers(0, 2**32 - 1),
)
def test_ranges_are_what_numpy_makes_of_them(
    counts: list[int], step: int, width: int, seed: int
) -> None:
    starts = np.random.default_rng(seed).integers(-(2**40), 2**40, len(counts))
    check(starts, np.array(counts, np.int64), step, width, seed)


@pytest.mark.parametrize("step", [1, 5, -3])
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(
    "counts",
    [
        [],
        [0, 0, 0],
        [1] * 500,
        [1] * 300 + [20_000],
        [20_000] + [1] * 300,
        [0, 1] * 100 + [0, 0, 5000, 0, 0] + [1, 0] * 100,
        [3, 4000] * 6,
        [2**k - 1 for k in range(14)],
        [2**k for k in range(15)][::-1],
        [2**k + 1 for k in range(14)],
        [63, 64, 65] * 40,
    ],
    ids=lambda counts: f"{len(counts)} ranges of {sum(counts)}",
)
def test_skewed_lengths(counts: list[int], step: int, width: int) -> None:
    starts = np.random.default_rng(len(counts)).integers(0, 2**40, len(counts))
    check(starts, np.array(counts, np.int64), step, width)


@given(
    counts=st.lists(st.one_of(st.integers(0, 3), st.integers(1, 2**58)), min_size=1, max_size=16),
    step=STEPS,
    seed=st.integers(0, 2**32 - 1),
)
def test_ranges_too_long_to_write_down(counts: list[int], step: int, seed: int) -> None:
    """Rows near both ends of every range, by whole numbers of Python."""
    random = np.random.default_rng(seed)
    starts = [int(s) for s in random.integers(-(2**20), 2**20, len(counts))]
    if any(abs(s + (n - 1) * step) >= 2**63 for s, n in zip(starts, counts, strict=True) if n):
        step = 1
    made = _core.range_map(np.array(starts), np.array(counts, np.int64), step, 1)
    assert made.length == sum(counts)
    begin = 0
    for start, count in zip(starts, counts, strict=True):
        inside = sorted({0, 1, 2, count // 3, count // 2, count - 2, count - 1})
        inside = [k for k in inside if 0 <= k < count]
        rows = np.array([begin + k for k in inside], np.int64)
        assert made.apply(rows).tolist() == [start + k * step for k in inside]
        begin += count


def test_a_single_range_of_all_rows() -> None:
    most = 2**63 - 1
    made = _core.range_map(np.array([0]), np.array([most]))
    assert made.length == most
    rows = np.array([0, 1, 2**40, 2**62, most - 1])
    assert made.apply(rows).tolist() == rows.tolist()
    back = _core.range_map(np.array([most - 1]), np.array([most]), -1)
    assert back.apply(rows).tolist() == (most - 1 - rows).tolist()


@pytest.mark.parametrize(
    ("starts", "counts", "step", "width", "message"),
    [
        ([0], [1, 2], 1, 1, "the same length"),
        ([0], [-1], 1, 1, "negative"),
        ([0], [1], 1, 0, "at least one row wide"),
        ([0, 0], [2**63 - 1, 1], 1, 1, "more than 2"),
        ([2**63 - 1], [2], 1, 1, "more than 2"),
        ([0], [2**62], 4, 1, "more than 2"),
        ([-(2**63)], [2], -1, 1, "more than 2"),
    ],
)
def test_no_such_ranges(
    starts: list[int], counts: list[int], step: int, width: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _core.range_map(np.array(starts), np.array(counts), step, width)


def test_more_rows_than_memory() -> None:
    made = _core.range_map(np.array([0]), np.array([10]), 1, 2**61)
    with pytest.raises(MemoryError):
        made.apply(np.arange(10))


def test_a_map_by_numbers_knows_its_rows() -> None:
    rowmap = _core.index_map(np.arange(5))
    for wrong in (-1, 5, 2**62):
        with pytest.raises(IndexError, match=f"row {wrong} "):
            rowmap.apply(np.array([0, wrong]))

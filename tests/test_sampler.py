"""The samplers: every row where docs/sampling.md says it is, and clear words for what cannot be."""

import pickle
import zlib
from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

import stepwell as sw
from tests import ROOT, scaled
from tests.deviates import LIMIT, chi_square
from tests.reference import sampling as reference

Rows = NDArray[np.int64]

BIGGEST = 2**62
SMALL = reference.SMALL
SQUARES = [64, 65, 71, 255, 256, 1000, 1001, 65_536, 10**6, 2**20 + 1, 2**31 - 1, 2**31]

words = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**32, 2**63, 2**64 - 1])
sizes = (
    st.sampled_from([0, 1, 2, 3, SMALL - 1, SMALL, SMALL + 1, 5000, 10**6 + 3, 10**12, BIGGEST])
    | st.builds(
        lambda root, off: min(max(root * root + off, 0), BIGGEST),
        st.sampled_from(SQUARES) | st.integers(1, 2**31),
        st.integers(-1, 1),
    )
    | st.integers(0, 200)
    | st.integers(0, BIGGEST)
)


@st.composite
def stretches(draw: st.DrawFn, length: int, most: int = 40) -> range:
    """Some neighbouring positions of an epoch, its first and last ones more often."""
    count = draw(st.integers(0, min(most, length)))
    start = draw(st.integers(0, length - count) | st.sampled_from([0, length - count]))
    return range(start, start + count)


def rows_of(sampler: sw.Sampler, length: int, epoch: int, positions: range) -> list[int]:
    rows = sampler.order(length).rows(epoch, positions.start, len(positions))
    assert rows.dtype == np.int64
    assert rows.shape == (len(positions),)
    return list(map(int, rows))


def whole(sampler: sw.Sampler, length: int, epoch: int = 0) -> Rows:
    order = sampler.order(length)
    return order.rows(epoch, 0, order.length)


# The same as the page.

Model = Callable[[int, int], int]
"""The row at a position of an epoch, as the page has it."""
Case = tuple[sw.Sampler, int, int, Model]
"""A sampler, the rows of a source, how many positions an epoch has, and what is where."""


def shuffled(length: int, seed: int) -> Case:
    return sw.Shuffle(seed), length, length, partial(reference.shuffle, length, seed)


def in_blocks(length: int, k: int, group: int, lanes: int, seed: int) -> Case:
    lanes = min(lanes, group)
    model = partial(reference.block, length, seed, k, group, lanes)
    return sw.Block(k, seed=seed, group=group, lanes=lanes), length, length, model


def in_windows(length: int, window: int, stride: int | None) -> Case:
    step = window if stride is None else stride
    positions = reference.sequential_length(length, window, step)

    def model(epoch: int, position: int) -> int:
        return reference.sequential(length, window, step, position)

    return sw.Sequential(window, stride), length, positions, model


def drawn(length: int, seed: int) -> Case:
    return sw.Iid(seed), length, length, partial(reference.iid, length, seed)


def weighed(weights: list[float], seed: int) -> Case:
    count = len(weights)
    return sw.Weighted(weights, seed=seed), count, count, reference.Weighted(weights, seed)


any_weight = st.one_of(
    st.floats(0, 1e300, allow_subnormal=False),
    st.floats(0, 1),
    st.integers(0, 5).map(float),
)
ON_THE_PAGE = {
    "shuffle": st.builds(shuffled, sizes, words),
    "block": st.builds(
        in_blocks,
        st.integers(0, 300) | sizes,
        st.integers(1, 40) | st.integers(1, 2**63 - 1),
        st.integers(1, 8) | st.sampled_from([64, 1000]),
        st.just(1) | st.integers(1, 9) | st.sampled_from([64, 1000]),
        words,
    ),
    "sequential": st.builds(
        in_windows,
        st.integers(0, 60) | st.integers(0, 2**40),
        st.integers(1, 20) | st.integers(1, 2**20),
        st.none() | st.integers(1, 20) | st.integers(1, 2**40),
    ),
    "iid": st.builds(drawn, sizes | st.just(2**63 - 1), words),
    "weighted": st.builds(
        weighed,
        st.lists(any_weight, min_size=1, max_size=50).filter(lambda w: 0 < sum(w) < 1e305),
        words,
    ),
}
many = settings(max_examples=scaled(150, smallest=40))


@pytest.mark.parametrize("name", ON_THE_PAGE)
@many
@given(words, st.data())
def test_every_row_is_where_the_page_says(name: str, epoch: int, data: st.DataObject) -> None:
    sampler, length, positions, model = data.draw(ON_THE_PAGE[name])
    order: Any = sampler.order(length)
    assert order.length == positions
    some = data.draw(stretches(positions))
    assert rows_of(sampler, length, epoch, some) == [model(epoch, p) for p in some]
    every = data.draw(st.integers(1, 9) | st.sampled_from([2**20, 2**62]))
    some = range(some.start, positions, every)[: len(some)]
    rows = order.rows(epoch, some.start, len(some), every)
    assert rows.tolist() == [model(epoch, p) for p in some]


@many
@given(sizes, words, words, st.data())
def test_shuffle_can_be_undone(length: int, seed: int, epoch: int, data: st.DataObject) -> None:
    # No two positions have the same row when every row leads back to its position.
    positions = data.draw(stretches(length))
    order = reference.permutation(length, reference.key_of(seed, epoch))
    rows = rows_of(sw.Shuffle(seed), length, epoch, positions)
    assert [order.index(row) for row in rows] == list(positions)


# Golden vectors. They are never to change: a run that stopped on one machine and release
# continues on another. Most are in docs/sampling.md, in its tables and its Python examples.


@pytest.mark.parametrize(
    ("sampler", "length", "epoch", "rows"),
    [
        (sw.Sequential(3), 7, 9, [0, 1, 2, 3, 4, 5, 6, 0, 1]),
        (sw.Iid(7), 10, 0, [1, 2, 9, 2, 0, 2, 5, 3, 2, 7]),
        (sw.Iid(7), 10, 1, [1, 8, 4, 4, 8, 7, 2, 4, 3, 3]),
        (sw.Iid(7), 10**12, 0, [171737198552, 206485417443, 954308361559]),
        (sw.Weighted([0.5, 0, 0, *[1.5] * 5], seed=7), 8, 0, [3, 3, 7, 4, 0, 3, 5, 4]),
    ],
    ids=str,
)
def test_golden(sampler: sw.Sampler, length: int, epoch: int, rows: list[int]) -> None:
    assert rows_of(sampler, length, epoch, range(len(rows))) == rows


@pytest.mark.parametrize(
    ("sampler", "length", "crc"),
    [
        (sw.Shuffle(7), 4096, 0xA51C9F14),
        (sw.Shuffle(7), 4097, 0x3EAFA1EC),
        (sw.Shuffle(7), 100_000, 0x53DAC941),
        (sw.Shuffle(7), 2**62, 0xAEF05C60),
        (sw.Block(100, seed=7), 99_999, 0x02B00017),
        (sw.Block(2**20, seed=7), 2**62, 0x25705CF2),
        (sw.Block(100, seed=7, lanes=8), 99_999, 0x2AF7778D),
        (sw.Block(2**20, seed=7, group=1000, lanes=96), 2**62, 0x7B2D7291),
        (sw.Iid(7), 10**12, 0xDDEDB9CD),
        (sw.Weighted(np.arange(100_000), seed=7), 100_000, 0x2DD42F2E),
    ],
    ids=str,
)
def test_golden_sum_of_a_hundred_thousand_rows(sampler: sw.Sampler, length: int, crc: int) -> None:
    order = sampler.order(length)
    rows = order.rows(3, 0, min(length, 100_000))
    assert zlib.crc32(rows.astype("<i8").tobytes()) == crc


PAGE = (ROOT / "docs" / "sampling.md").read_text()


def page_table(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    part = PAGE.split(f"### {heading}\n")[1].split("\n### ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines[2:]]


def number(cell: str) -> int:
    return int(eval(cell.replace(",", "").replace("^", "**")))


def test_the_pages_tables() -> None:
    shuffles, blocks = page_table("Shuffle"), page_table("Block")
    assert len(shuffles) == 12
    assert len(blocks) == 8
    for *numbers, rows in shuffles + blocks:
        n, *block, seed, epoch, start = map(number, numbers)
        named = dict(zip(("k", "group", "lanes"), block, strict=False))
        sampler = sw.Block(**named, seed=seed) if block else sw.Shuffle(seed)
        expected = list(map(int, rows.split()))
        assert rows_of(sampler, n, epoch, range(start, start + len(expected))) == expected


def test_the_pages_words() -> None:
    words = {cell: word for cell, word in page_table("Numbers") if " for " not in cell}
    assert len(words) == 9
    scope = {"mix": reference.mix, "key": reference.key_of}
    for cell, word in words.items():
        assert f"{eval(cell.replace('^', '**'), scope):016x}" == word
    drawn = page_table("Numbers")[-1][1].replace("`", "").split()
    key = reference.key_of(7, 0)
    assert drawn == [f"{reference.draw(key, position):016x}" for position in range(3)]


# Every row once.


LARGER = [
    *(4095, 4096, 4097, 4098, 4159, 4160, 4161, 4224, 4225, 4226, 5000, 9999, 10_000, 10_001),
    *(65_535, 65_536, 65_537, 123_457, 999_999, 1_000_000, 1_000_001, 1_000_003),
]


@pytest.mark.parametrize("lengths", [range(601), LARGER], ids=["small", "around its seams"])
def test_shuffle_is_a_bijection(lengths: Sequence[int]) -> None:
    for length in lengths:
        for seed in (0, 1, length * 31, 2**64 - 1):
            counts = np.bincount(whole(sw.Shuffle(seed), length, epoch=seed % 3), minlength=length)
            assert len(counts) == length
            assert np.all(counts == 1)


@pytest.mark.parametrize("length", [10**9, 10**12, 2**62 - 1, 2**62])
def test_positions_of_a_huge_source_have_as_many_rows(length: int) -> None:
    order = sw.Shuffle(5).order(length)
    count = scaled(100_000)
    for start in (0, length // 3, length - count):
        rows = order.rows(2, start, count)
        assert rows.min() >= 0
        assert rows.max() < length
        assert len(np.unique(rows)) == count


# Block.


def spread(rows: Rows, k: int) -> int:
    """How far apart two rows of one block come at most."""
    position = np.empty(len(rows), np.int64)
    position[rows] = np.arange(len(rows))
    return max(int(np.ptp(position[first : first + k])) for first in range(0, len(rows), k))


@given(
    length=st.integers(1, 400),
    k=st.integers(1, 30),
    group=st.integers(1, 6),
    seed=words,
    epoch=st.integers(0, 5),
)
@settings(max_examples=scaled(400, smallest=40))
def test_block_keeps_what_it_states(length: int, k: int, group: int, seed: int, epoch: int) -> None:
    rows = whole(sw.Block(k, seed=seed, group=group), length, epoch)
    assert sorted(rows.tolist()) == list(range(length))
    assert spread(rows, k) < k * group


# Draws with replacement.


def draws(sampler: sw.Sampler, length: int, count: int) -> Rows:
    """At least `count` draws, from as many epochs as that takes."""
    epochs = -(-count // length)
    return np.concatenate([whole(sampler, length, epoch) for epoch in range(epochs)])


@pytest.mark.parametrize("length", [100, 1000, 99_991])
def test_iid_is_uniform(length: int) -> None:
    drawn = draws(sw.Iid(11), length, max(scaled(1_000_000), 10 * length))
    counts = np.bincount(drawn, minlength=length)
    assert len(counts) == length
    assert abs(chi_square(counts, len(drawn) / length)) < LIMIT


def test_iid_draws_are_independent_of_their_neighbours() -> None:
    drawn = draws(sw.Iid(11), 16, scaled(1_000_000))
    for lag in (1, 2, 3, 16):
        pairs = np.bincount(drawn[:-lag] * 16 + drawn[lag:], minlength=256)
        assert abs(chi_square(pairs, (len(drawn) - lag) / 256)) < LIMIT


@pytest.mark.parametrize(
    "weights",
    [
        [1, 2, 3, 4, 5],
        [0, 0, 1, 0, 3, 0, 0],
        [1, 1e3, 30.5],
        (0.1 + np.random.default_rng(0).exponential(size=500)) * (np.arange(500) % 7 != 0),
        np.array([3, 1, 4, 1, 5], np.uint8),
        [True, False, True],
        [1e300, 3e300],
        [5e-310, 5e-310, 1e-309],
    ],
    ids=lambda weights: f"{len(weights)} weights",
)
def test_weighted_draws_each_row_as_often_as_it_weighs(weights: Any) -> None:
    share = np.asarray(weights, np.float64)
    share = share / share.sum()
    drawn = draws(sw.Weighted(weights, seed=11), len(share), scaled(max(60_000, 1000 * len(share))))
    counts = np.bincount(drawn, minlength=len(share))
    assert np.all(counts[share == 0] == 0)
    some = share > 0
    assert abs(chi_square(counts[some], share[some] * len(drawn))) < LIMIT


def test_weighted_keeps_its_own_copy() -> None:
    weights = np.array([1.0, 0.0])
    sampler = sw.Weighted(weights)
    weights[:] = [0.0, 1.0]
    assert set(draws(sampler, 2, 100).tolist()) == {0}


# What cannot be.


def given_as(value: object) -> Any:
    """A value that the type checker would not let through."""
    return value


@pytest.mark.parametrize(
    "sampler",
    [sw.Shuffle(3), sw.Block(7), sw.Sequential(4, 3), sw.Iid(3), sw.Weighted([1] * 10)],
    ids=repr,
)
@pytest.mark.parametrize(
    ("start", "count"),
    [(-1, 1), (0, -1), (-5, 10), (10**6, 1), (0, 10**6), (3, 2**62), (2**62, 2**62), (10**6, 0)],
)
def test_positions_outside_an_epoch(sampler: sw.Sampler, start: int, count: int) -> None:
    # Named before memory is asked for: 2**62 positions would be more than there is.
    order: Any = sampler.order(10)
    with pytest.raises(IndexError, match=rf"\[{start}, {start} \+ {count}\).* {order.length}$"):
        order.rows(0, start, count)
    with pytest.raises(IndexError, match=rf"\[{start}, {start} \+ {count} \* 3\)"):
        order.rows(0, start, count, 3)


def test_positions_with_a_stride_end_inside_an_epoch() -> None:
    order = sw.Block(3, group=4, lanes=2).order(10)
    assert len(order.rows(0, 1, 3, 4)) == 3  # 1, 5 and 9
    assert len(order.rows(0, 10, 0, 4)) == 0
    for start, count, stride in [(2, 3, 4), (9, 2, 2**62), (0, 2**62, 2**62)]:
        with pytest.raises(IndexError, match=rf"{start} \+ {count} \* {stride}\) leave an epoch"):
            order.rows(0, start, count, stride)
    for stride in (0, -1):
        with pytest.raises(ValueError, match=f"stride must be at least 1, got {stride}"):
            order.rows(0, 0, 1, stride)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sw.Shuffle(-1), r"seed: expected a whole number in \[0, 2\*\*64\), got -1"),
        (lambda: sw.Shuffle(2**64), "got 18446744073709551616"),
        (lambda: sw.Shuffle(given_as(np.int64(-1))), r"seed.*got np.int64\(-1\)"),
        (lambda: sw.Iid(given_as(1.5)), r"seed.*got 1.5"),
        (lambda: sw.Block(4, seed=given_as("x")), r"seed.*got 'x'"),
        (lambda: sw.Weighted([1], seed=given_as(None)), r"seed.*got None"),
        (lambda: sw.Block(0), "a block has at least one row"),
        (lambda: sw.Block(4, group=0), "a group has 1 to 65536 blocks"),
        (lambda: sw.Block(4, group=65_537), "a group has 1 to 65536 blocks"),
        (lambda: sw.Block(4, lanes=0), "lanes: expected 1 to 64, the blocks of a group, got 0"),
        (lambda: sw.Block(4, group=8, lanes=9), "lanes: expected 1 to 8, .*, got 9"),
        (lambda: sw.Sequential(0), "window must be positive"),
        (lambda: sw.Sequential(4, -2), "stride must be positive"),
        (lambda: sw.Sequential(2**62, 1).order(2), "too large together"),
        (lambda: sw.Sequential(1, 2**62).order(2**63 - 1), "too large together"),
        (lambda: sw.Weighted([]), "weights are empty"),
        (lambda: sw.Weighted([0, 0.0]), "add up to more than 0"),
        (lambda: sw.Weighted([1, -1, 3]), "must not be negative"),
        (lambda: sw.Weighted([1, np.nan, 1]), "must be finite"),
        (lambda: sw.Weighted([1, np.inf]), "must be finite"),
        (lambda: sw.Weighted([1, 2]).order(3), "expected 3 weights, got 2"),
        *(
            (partial(sampler.order, -1), "count must not be negative")
            for sampler in (sw.Shuffle(), sw.Block(4), sw.Iid(), sw.Sequential())
        ),
        (lambda: sw.Shuffle().order(2**62 + 1), r"count is above 2\*\*62"),
        (lambda: sw.Block(4).order(2**62 + 1), r"count is above 2\*\*62"),
    ],
)
def test_numbers_that_make_no_sense(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: sw.Block(given_as(1.5)),
        lambda: sw.Block(2**63),
        lambda: sw.Sequential(given_as(2.0)),
        lambda: sw.Shuffle().order(2**63),
        lambda: sw.Shuffle().order(given_as(10.0)),
        lambda: sw.Weighted(["heavy"]),
        *(
            lambda arguments=arguments: sw.Shuffle().order(10).rows(*arguments)
            for arguments in [(-1, 0, 1), (2**64, 0, 1), (0, 2**63, 1), (0, 0, 2**64), (0, 0.0, 1)]
        ),
    ],
)
def test_what_is_no_number_is_a_type_error(make: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        make()


# Samplers are values.

VALUES: list[Any] = [
    *(sw.Shuffle(7), sw.Block(4, seed=7, group=3), sw.Block(4, seed=7, group=3, lanes=2)),
    *(sw.Iid(7), sw.Sequential(4, 2)),
]


@pytest.mark.parametrize("sampler", VALUES, ids=repr)
def test_samplers_are_compared_by_value_and_cannot_change(sampler: Any) -> None:
    twin = pickle.loads(pickle.dumps(sampler))
    assert twin == sampler
    assert hash(twin) == hash(sampler)
    assert [other for other in VALUES if other == sampler] == [sampler]
    with pytest.raises(FrozenInstanceError):
        sampler.seed = 8


@pytest.mark.parametrize("sampler", [*VALUES, sw.Weighted(np.arange(50), seed=7)], ids=repr)
def test_samplers_can_be_pickled(sampler: Any) -> None:
    twin = pickle.loads(pickle.dumps(sampler))
    assert (twin.name, twin.seed, repr(twin)) == (sampler.name, sampler.seed, repr(sampler))
    np.testing.assert_array_equal(whole(twin, 50, 3), whole(sampler, 50, 3))


def test_reprs_say_how_to_make_one() -> None:
    assert repr(sw.Shuffle(7)) == "Shuffle(seed=7)"
    assert repr(sw.Block(4, seed=7)) == "Block(k=4, seed=7, group=64, lanes=1)"
    assert repr(sw.Weighted(np.ones(10_000), seed=7)) == "Weighted(10,000 weights, seed=7)"


def test_names_tell_orders_apart() -> None:
    named: list[sw.Sampler] = [
        *(sw.Shuffle(), sw.Iid(), sw.Block(4), sw.Block(5), sw.Block(4, group=3)),
        *(sw.Block(4, lanes=2), sw.Block(4, lanes=3)),
        *(sw.Sequential(), sw.Sequential(2), sw.Sequential(2, 1)),
        *(sw.Weighted([1, 2]), sw.Weighted([2, 1]), sw.Weighted([1, 2, 0])),
    ]
    assert len({sampler.name for sampler in named}) == len(named)
    assert sw.Sequential(3).name == sw.Sequential(3, 3).name  # the same order, said twice
    assert sw.Block(4).name == "Block(k=4, group=64)"  # states from before there were lanes
    assert sw.Weighted([1, 2]).name == sw.Weighted(np.array([1.0, 2.0])).name


def test_numpy_integers_are_seeds() -> None:
    for seed in (np.int64(7), np.uint8(7), np.uint64(2**64 - 1)):
        assert sw.Shuffle(given_as(seed)) == sw.Shuffle(int(seed))
        rows = whole(sw.Shuffle(given_as(seed)), 99)
        np.testing.assert_array_equal(rows, whole(sw.Shuffle(int(seed)), 99))

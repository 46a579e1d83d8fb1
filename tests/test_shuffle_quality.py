"""The shuffle is a shuffle: statistics that an ideal one passes, at a chance of about 1e-6.

Every seed is fixed, so a run cannot fail by bad luck; it fails when the order changes for the
worse. `test_the_statistics_catch_what_is_no_shuffle` gives the same statistics (tests/deviates.py)
orders that look random and are not.

docs/sampling.md tells what longer runs of the same statistics found.
"""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest

import stepwell as sw
from tests import scaled
from tests.deviates import (
    LIMIT,
    Rows,
    Shuffled,
    buckets,
    chi_square,
    coincidences,
    derivative,
    differences,
    distances,
    fixed_points,
    patterns,
    poisson,
    rank_correlation,
    residues,
    runs,
    serial_correlation,
    short_cycles,
)
from tests.reference import sampling as reference


def epochs_of(length: int, seed: int = 17) -> Shuffled:
    order = sw.Shuffle(seed).order(length)
    return lambda epoch: order.rows(epoch, 0, length)


# Small sources: Fisher-Yates.


def every_epoch(length: int, count: int) -> Iterator[Rows]:
    order = sw.Shuffle(17).order(length)
    return (order.rows(epoch, 0, length) for epoch in range(count))


def every_seed(length: int, count: int) -> Iterator[Rows]:
    return (sw.Shuffle(seed).order(length).rows(0, 0, length) for seed in range(count))


@pytest.mark.parametrize("each", [every_epoch, every_seed])
def test_all_120_orders_of_five_rows_are_as_likely(
    each: Callable[[int, int], Iterator[Rows]],
) -> None:
    count = scaled(120_000)
    codes = np.array(list(each(5, count))) @ 5 ** np.arange(5)
    ways, counts = np.unique(codes, return_counts=True)
    assert len(ways) == 120
    assert abs(chi_square(counts, count / 120)) < LIMIT


# One position, many epochs and seeds.


@pytest.mark.parametrize("length", [60, 4096, 4097, 2**62])
def test_a_position_sees_every_row_as_often(length: int) -> None:
    parts, count = min(length, 500), scaled(30_000)
    edges = [-(-length * part // parts) for part in range(parts + 1)]
    share = np.array([(end - begin) / length for begin, end in pairwise(edges)])
    for position in (0, length // 2, length - 1):
        one_seed = sw.Shuffle(3).order(length)
        by_epoch = [one_seed.rows(epoch, position, 1)[0] for epoch in range(count)]
        by_seed = [sw.Shuffle(s).order(length).rows(0, position, 1)[0] for s in range(count)]
        for rows in (by_epoch, by_seed):
            counts = np.bincount([int(row) * parts // length for row in rows], minlength=parts)
            assert abs(chi_square(counts, share * count)) < LIMIT


# Whole orders, on both sides of 4096 and far above.

SIZES = {  # rows: how many orders
    1000: 2000,
    4096: 500,
    4097: 500,
    4225: 500,
    100_003: 20,
    1_000_003: 2,
}


@pytest.fixture(scope="module", params=SIZES, ids=lambda length: f"{length} rows")
def sample(request: pytest.FixtureRequest) -> tuple[Shuffled, int]:
    length: int = request.param
    keys = scaled(SIZES[length], smallest=5)
    orders = [epochs_of(length)(key) for key in range(keys)]
    return orders.__getitem__, keys


def test_rows_and_positions_do_not_know_each_other(sample: tuple[Shuffled, int]) -> None:
    shuffled, keys = sample
    assert abs(buckets(shuffled, keys)) < LIMIT
    for modulus in (2, 3, 4, 5, 7, 8, 16, 64):
        assert abs(residues(shuffled, keys, modulus)) < LIMIT, modulus


def special_lags(length: int) -> list[int]:
    """1 to 8, and the width of the network's rectangle: there is where a weak one shows."""
    wide = -(-length // (math.isqrt(length - 1) + 1))
    return [*range(1, 9), wide - 1, wide, wide + 1, 2 * wide]


def test_neighbours_do_not_know_each_other(sample: tuple[Shuffled, int]) -> None:
    shuffled, keys = sample
    for lag in special_lags(len(shuffled(0))):
        assert abs(serial_correlation(shuffled, keys, lag)) < LIMIT, lag
        assert abs(differences(shuffled, keys, lag)) < LIMIT, lag
    assert abs(distances(shuffled, keys)) < LIMIT
    assert abs(patterns(shuffled, keys)) < LIMIT


def test_runs(sample: tuple[Shuffled, int]) -> None:
    shuffled, keys = sample
    assert abs(runs(shuffled, min(keys, 200))) < LIMIT


@pytest.mark.parametrize("length", [1000, 4096, 4097, 5000])
def test_fixed_points_and_short_cycles_are_poisson(length: int) -> None:
    shuffled, keys = epochs_of(length), scaled(2000, smallest=500)
    assert abs(fixed_points(shuffled, keys)) < LIMIT
    assert abs(short_cycles(shuffled, keys, 2)) < LIMIT
    assert abs(short_cycles(shuffled, keys, 3)) < LIMIT


@pytest.mark.parametrize("length", [1000, 4097, 100_003])
def test_epochs_and_seeds_do_not_know_each_other(length: int) -> None:
    keys = scaled(2_000_000 // length, smallest=5)
    here, neighbour = epochs_of(length, seed=17), epochs_of(length, seed=18)

    def following(epoch: int) -> Rows:
        return here(epoch + 1)

    for one, other in [(here, following), (here, neighbour), (following, neighbour)]:
        for deviate in (coincidences, rank_correlation, derivative):
            assert abs(deviate(one, other, keys)) < LIMIT


@pytest.mark.parametrize("length", [1000, 4097])
def test_each_bit_of_seed_and_epoch_changes_everything(length: int) -> None:
    def unchanged(bit: int) -> Rows:
        return epochs_of(length, seed=17)(5)

    def other_seed(bit: int) -> Rows:
        return epochs_of(length, seed=17 ^ 1 << bit)(5)

    def other_epoch(bit: int) -> Rows:
        return epochs_of(length, seed=17)(5 ^ 1 << bit)

    for other in (other_seed, other_epoch):
        for deviate in (coincidences, rank_correlation, derivative):
            assert abs(deviate(unchanged, other, 64)) < LIMIT


# What a batch sees.


@pytest.mark.parametrize("length", [100_000, 1_000_000, 10_000_019])
def test_a_batch_shares_pages_as_chance_has_it(length: int) -> None:
    """4096 rows of 32 bytes: how many pairs are in the same 4 KiB page?"""
    batch, page, batches = 4096, 128, scaled(200, smallest=40)
    order = sw.Shuffle(23).order(length)
    pairs = 0
    for number in range(batches):
        start = number * batch * 7 % (length - batch)
        on_page = np.bincount(order.rows(number, start, batch) // page)
        pairs += int(np.sum(on_page * (on_page - 1))) // 2
    sizes = np.bincount(np.arange(length) // page)
    chance = float(np.sum(sizes * (sizes - 1.0))) / (length * (length - 1.0))
    assert abs(poisson(pairs, batches * batch * (batch - 1) / 2 * chance)) < LIMIT


@pytest.mark.parametrize("length", [10**9, 10**12, 2**62])
def test_a_stretch_of_a_huge_source(length: int) -> None:
    """Uniform, its neighbours unrelated, and its gaps as many twins as chance has them."""
    # Birthday spacings: among m sorted rows, m**3 / (4 n) gaps occur a second time.
    size = min(round((8 * 4 * length) ** (1 / 3)), 100_000)
    stretches = scaled(40, smallest=10)
    order = sw.Shuffle(29).order(length)
    twins = 0
    high, low, ways = (np.zeros(256, np.int64) for _ in range(3))
    for number in range(stretches):
        rows = order.rows(number, number * (length // stretches), size)
        twins += size - 1 - len(np.unique(np.diff(np.sort(rows))))
        high += np.bincount((rows / length * 256).astype(np.int64), minlength=256)
        low += np.bincount((rows[:-1] % 16) * 16 + rows[1:] % 16, minlength=256)
        way = (rows[1:] - rows[:-1]) % length
        ways += np.bincount((way / length * 256).astype(np.int64), minlength=256)
    for counts in (high, low, ways):
        assert abs(chi_square(counts, counts.sum() / 256)) < LIMIT
    expected = stretches * size**3 / (4 * length)
    if expected > 5:
        assert abs(poisson(twins, expected)) < LIMIT
    else:
        assert twins <= 3


# Block's stated quality.


def test_two_rows_of_a_block_are_as_far_apart_as_two_rows_of_a_window() -> None:
    k, group, length = 20, 10, 200_000
    window = k * group
    rows = sw.Block(k, seed=31, group=group).order(length).rows(0, 0, length)
    position = np.empty(length, np.int64)
    position[rows] = np.arange(length)
    pairs = position.reshape(-1, 2)  # rows 0 and 1, 2 and 3, ...: always of the same block
    apart = np.abs(pairs[:, 0] - pairs[:, 1])
    counts = np.bincount(apart, minlength=window)
    assert len(counts) == window
    assert counts[0] == 0
    ideal = 2 * (window - np.arange(1, window)) / (window * (window - 1))
    tail = window - 8  # the farthest are rare: one class
    merged = np.append(counts[1:tail], counts[tail:].sum())
    expected = np.append(ideal[: tail - 1], ideal[tail - 1 :].sum()) * counts.sum()
    assert abs(chi_square(merged, expected)) < LIMIT
    assert abs(float(apart.mean()) - (window + 1) / 3) < 1


def test_blocks_are_shuffled_as_rows_are() -> None:
    k, blocks = 4, 5000
    order = sw.Block(k, seed=31, group=1).order(k * blocks)

    keys = scaled(100, smallest=10)
    shuffled: Shuffled = [
        order.rows(epoch, 0, k * blocks)[::k] // k for epoch in range(keys)
    ].__getitem__
    assert abs(buckets(shuffled, keys)) < LIMIT
    assert abs(differences(shuffled, keys, 1)) < LIMIT
    assert abs(distances(shuffled, keys)) < LIMIT


# Can these tests fail?


def network(length: int, rounds: int) -> Shuffled:
    """The page's network with fewer rounds."""

    def shuffled(number: int) -> Rows:
        order = reference.Network(length, reference.key_of(17, number), rounds)
        return np.array([order[position] for position in range(length)])

    return shuffled


def multiplied(key: int) -> Rows:
    """A linear congruence with other numbers for each key."""
    return (np.arange(4225) * (1_000_003 + 2 * key) + key * 7919) % 4225


def one_cycle(key: int) -> Rows:
    """No row ever stays where it is."""
    way = np.random.default_rng(key).permutation(200)
    rows = np.empty(200, np.int64)
    rows[way] = np.roll(way, 1)
    return rows


def in_a_buffer(key: int) -> Rows:
    """What many loaders do: draw from a buffer that is filled in order."""
    generator = np.random.default_rng(key)
    buffer, rows = list(range(500)), []
    for following in range(500, 4225 + 500):
        slot = int(generator.integers(0, len(buffer)))
        rows.append(buffer[slot])
        buffer[slot] = following
    return np.argsort(np.argsort(rows, kind="stable"), kind="stable")


def by_added_seed(seed: int) -> Shuffled:
    """Seed and epoch added, not mixed."""
    return lambda epoch: np.random.default_rng(seed + epoch).permutation(1000)


CAUGHT: dict[str, Callable[[], float]] = {
    "linear, by neighbours": lambda: differences(multiplied, 20, 1),
    "linear, by patterns": lambda: patterns(multiplied, 20),
    "linear, by runs": lambda: runs(multiplied, 20),
    "no fixed points, by fixed points": lambda: fixed_points(one_cycle, 500),
    "no fixed points, by cycles of two": lambda: short_cycles(one_cycle, 500, 2),
    "a shuffle buffer, by buckets": lambda: buckets(in_a_buffer, 5),
    "a shuffle buffer, by distances": lambda: distances(in_a_buffer, 5),
    "added seeds, by coincidences": lambda: coincidences(
        by_added_seed(1), lambda epoch: by_added_seed(0)(epoch + 1), 20
    ),
    "2 rounds, by neighbours": lambda: differences(network(4225, 2), 20, 1),
    "4 rounds, one column": lambda: differences(network(4225, 4), 30, 65),
}


@pytest.mark.parametrize("case", CAUGHT)
def test_the_statistics_catch_what_is_no_shuffle(case: str) -> None:
    assert abs(CAUGHT[case]()) > 2 * LIMIT

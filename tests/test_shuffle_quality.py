"""The shuffle is a shuffle: statistics that an ideal one passes, at a chance of about 1e-6.

Every seed is fixed, so a run cannot fail by bad luck; it fails when the order changes for the
worse. Each statistic is a normal deviate: 0 on average, within ±1 two times out of three, beyond
±5 less than once in a million. `test_the_statistics_catch_what_is_no_shuffle` gives the same
statistics orders that look random and are not.

docs/sampling.md tells what longer runs of the same statistics found.
"""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise, permutations

import numpy as np
import pytest
from numpy.typing import NDArray

import stepwell as sw
from tests import scaled
from tests.reference import sampling as reference

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]
Shuffled = Callable[[int], Rows]
"""One whole order of the same rows for each number."""

LIMIT = 5.0


def epochs_of(length: int, seed: int = 17) -> Shuffled:
    order = sw.Shuffle(seed).order(length)
    return lambda epoch: order.rows(epoch, 0, length)


# Deviates.


def chi_square(counts: Rows, expected: Floats | float, freedom: int | None = None) -> float:
    """Counts against expectation, by the approximation of Wilson and Hilferty."""
    expected = np.broadcast_to(np.asarray(expected, np.float64), counts.shape)
    assert expected.min() > 5, "too few for chi-square"
    if freedom is None:
        freedom = counts.size - 1
    ratio = float(np.sum((counts - expected) ** 2 / expected)) / freedom
    variance = 2 / (9 * freedom)
    return float((ratio ** (1 / 3) - (1 - variance)) / math.sqrt(variance))


def poisson(count: float, expected: float) -> float:
    return (count - expected) / math.sqrt(expected)


def contingency(
    shuffled: Shuffled,
    keys: int,
    of_position: Callable[[Rows], Rows],
    of_row: Callable[[Rows], Rows],
) -> float:
    """Do positions of one class prefer rows of another? None does when every order is as likely."""
    first = shuffled(0)
    length = len(first)
    positions = of_position(np.arange(length))
    sizes = np.bincount(positions), np.bincount(of_row(np.arange(length)))
    cells = len(sizes[0]) * len(sizes[1])
    counts = np.zeros(cells, np.int64)
    for key in range(keys):
        counts += np.bincount(positions * len(sizes[1]) + of_row(shuffled(key)), minlength=cells)
    expected = np.outer(*sizes).ravel().astype(np.float64) * (keys / length)
    freedom = (len(sizes[0]) - 1) * (len(sizes[1]) - 1)
    return chi_square(counts, expected, freedom)


# The statistics.


def buckets(shuffled: Shuffled, keys: int) -> float:
    """Position against row, both in 32 parts."""
    length = len(shuffled(0))
    return contingency(shuffled, keys, lambda p: p * 32 // length, lambda r: r * 32 // length)


def residues(shuffled: Shuffled, keys: int, modulus: int) -> float:
    """Position against row, both by their remainder; powers of two are the low bits."""
    return contingency(shuffled, keys, lambda p: p % modulus, lambda r: r % modulus)


def serial_correlation(shuffled: Shuffled, keys: int, lag: int) -> float:
    """Are rows `lag` positions apart alike in size?"""
    total = 0.0
    for key in range(keys):
        rows = shuffled(key)
        length = len(rows)
        centred = rows - (length - 1) / 2
        variance = (length**2 - 1) / 12
        pairs = length - lag
        correlation = float(centred[:-lag] @ centred[lag:]) / (pairs * variance)
        # Without replacement two rows correlate by -1 / (length - 1).
        total += (correlation + 1 / (length - 1)) * math.sqrt(pairs)
    return total / math.sqrt(keys)


def differences(shuffled: Shuffled, keys: int, lag: int, parts: int = 64) -> float:
    """The way around the ring from a row to the one `lag` positions later is uniform."""
    length = len(shuffled(0))
    counts = np.zeros(parts, np.int64)
    for key in range(keys):
        rows = shuffled(key)
        ways = (rows[lag:] - rows[:-lag]) % length
        counts += np.bincount(ways * parts // length, minlength=parts)
    ideal = np.bincount(np.arange(1, length) * parts // length, minlength=parts) / (length - 1)
    return chi_square(counts, ideal * counts.sum())


def distances(shuffled: Shuffled, keys: int, parts: int = 50) -> float:
    """How far neighbours are apart: distance d has 2 (n - d) of the n (n - 1) pairs."""
    length = len(shuffled(0))
    # Pairs nearer than x: x (2 n - x - 1) of n (n - 1), with distance 0 left out.
    edges = np.unique(np.linspace(1, length, parts + 1).astype(np.int64))
    below = (edges - 1) * (2 * length - edges) / (length * (length - 1))
    counts = np.zeros(len(edges) - 1, np.int64)
    for key in range(keys):
        apart = np.abs(np.diff(shuffled(key)))
        counts += np.histogram(apart, edges)[0]
    return chi_square(counts, np.diff(below) * counts.sum())


def patterns(shuffled: Shuffled, keys: int) -> float:
    """Which of five neighbours is smallest, second smallest, ...: 120 ways, each as likely."""
    counts = np.zeros(5**5, np.int64)
    for key in range(keys):
        rows = shuffled(key)
        fives = rows[: len(rows) // 5 * 5].reshape(-1, 5)
        counts += np.bincount(np.argsort(fives, axis=1) @ 5 ** np.arange(5), minlength=5**5)
    ways = [sum(i * 5**at for at, i in enumerate(way)) for way in permutations(range(5))]
    assert counts[ways].sum() == counts.sum()
    return chi_square(counts[ways], counts.sum() / 120)


def runs(shuffled: Shuffled, keys: int) -> float:
    """Lengths of ascending runs. The row after a run is skipped, so that runs are independent
    (Knuth, volume 2, 3.3.2 G): length k then has probability 1/k! - 1/(k+1)!.
    """
    counts = np.zeros(7, np.int64)
    for key in range(keys):
        rises = np.diff(shuffled(key)) > 0
        falls = np.flatnonzero(~rises)
        begin = 0
        lengths = []
        for fall in falls.tolist():
            if fall >= begin:
                lengths.append(fall - begin + 1)
                begin = fall + 2
        counts += np.bincount(np.minimum(lengths, 7) - 1, minlength=7)
    chances = [1 / math.factorial(k) - 1 / math.factorial(k + 1) for k in range(1, 7)]
    return chi_square(counts, np.array([*chances, 1 - sum(chances)]) * counts.sum())


def fixed_points(shuffled: Shuffled, keys: int) -> float:
    """Rows that stay where they are: one on average, their number a Poisson variable."""
    own = np.arange(len(shuffled(0)))
    fixed = [int(np.count_nonzero(shuffled(key) == own)) for key in range(keys)]
    counts = np.bincount(np.minimum(fixed, 4), minlength=5)
    chances = [math.exp(-1) / math.factorial(k) for k in range(4)]
    return chi_square(counts, np.array([*chances, 1 - sum(chances)]) * keys)


def short_cycles(shuffled: Shuffled, keys: int, length: int) -> float:
    """Cycles of a length: 1 / length of them in each order on average."""
    found = 0
    for key in range(keys):
        rows = shuffled(key)
        own = np.arange(len(rows))
        at, shorter = rows, np.zeros(len(rows), bool)
        for _ in range(length - 1):
            shorter |= at == own
            at = rows[at]
        found += int(np.count_nonzero((at == own) & ~shorter))
    return poisson(found / length, keys / length)


def coincidences(shuffled: Shuffled, other: Shuffled, keys: int) -> float:
    """Positions with the same row in two orders: one on average."""
    same = sum(int(np.count_nonzero(shuffled(key) == other(key))) for key in range(keys))
    return poisson(same, keys)


def rank_correlation(shuffled: Shuffled, other: Shuffled, keys: int) -> float:
    """Spearman's, between two orders."""
    total = 0.0
    for key in range(keys):
        rows, others = shuffled(key), other(key)
        mean, variance = (len(rows) - 1) / 2, (len(rows) ** 2 - 1) / 12
        total += float((rows - mean) @ (others - mean)) / (len(rows) * variance)
    return total * math.sqrt((len(shuffled(0)) - 1) / keys)


def derivative(shuffled: Shuffled, other: Shuffled, keys: int, parts: int = 64) -> float:
    """The way around the ring from a position's row in one order to that in another."""
    length = len(shuffled(0))
    counts = np.zeros(parts, np.int64)
    for key in range(keys):
        counts += np.bincount((shuffled(key) - other(key)) % length * parts // length)
    ideal = np.bincount(np.arange(length) * parts // length, minlength=parts) / length
    return chi_square(counts, ideal * counts.sum())


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


def test_all_pairs_of_seven_rows_at_all_pairs_of_positions() -> None:
    count = scaled(60_000)
    orders = np.array(list(every_epoch(7, count)))
    for i in range(7):
        for j in range(i + 1, 7):
            pairs = np.bincount(orders[:, i] * 7 + orders[:, j], minlength=49).reshape(7, 7)
            assert np.all(np.diag(pairs) == 0)
            apart = pairs[~np.eye(7, dtype=bool)]
            assert abs(chi_square(apart, count / 42)) < LIMIT


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


@pytest.mark.parametrize("modulus", [2, 3, 4, 5, 7, 8, 16, 64])
def test_remainders_and_low_bits(sample: tuple[Shuffled, int], modulus: int) -> None:
    shuffled, keys = sample
    assert abs(residues(shuffled, keys, modulus)) < LIMIT


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
        assert abs(coincidences(one, other, keys)) < LIMIT
        assert abs(rank_correlation(one, other, keys)) < LIMIT
        assert abs(derivative(one, other, keys)) < LIMIT


@pytest.mark.parametrize("length", [1000, 4097])
def test_each_bit_of_seed_and_epoch_changes_everything(length: int) -> None:
    def unchanged(bit: int) -> Rows:
        return epochs_of(length, seed=17)(5)

    def other_seed(bit: int) -> Rows:
        return epochs_of(length, seed=17 ^ 1 << bit)(5)

    def other_epoch(bit: int) -> Rows:
        return epochs_of(length, seed=17)(5 ^ 1 << bit)

    for other in (other_seed, other_epoch):
        assert abs(coincidences(unchanged, other, 64)) < LIMIT
        assert abs(rank_correlation(unchanged, other, 64)) < LIMIT
        assert abs(derivative(unchanged, other, 64)) < LIMIT


def test_ten_million_rows() -> None:
    length = scaled(10_000_000)
    shuffled: Shuffled = [epochs_of(length)(0)].__getitem__
    assert abs(buckets(shuffled, 1)) < LIMIT
    for modulus in (2, 16, 7):
        assert abs(residues(shuffled, 1, modulus)) < LIMIT
    for lag in (1, 2, special_lags(length)[-3]):
        assert abs(serial_correlation(shuffled, 1, lag)) < LIMIT
        assert abs(differences(shuffled, 1, lag)) < LIMIT


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


WORD = np.uint64
Words = NDArray[np.uint64]
LOW = WORD(2**32 - 1)


def network(length: int, rounds: int) -> Shuffled:
    """The page's network with fewer rounds, over a rectangle without a remainder."""
    high = math.isqrt(length - 1) + 1
    wide = length // high
    assert high * wide == length

    def keyed(values: Words, key: int, bound: int) -> Words:
        z = (values * WORD(0x9E3779B1) + WORD(key)) & LOW
        z = ((z ^ (z >> WORD(15))) * WORD(0x2C1B3C6D)) & LOW
        z = ((z ^ (z >> WORD(12))) * WORD(0x297A2D39)) & LOW
        z ^= z >> WORD(15)
        return (z * WORD(bound)) >> WORD(32)

    def shuffled(number: int) -> Rows:
        key = reference.key_of(17, number)
        left, right = np.divmod(np.arange(length, dtype=WORD), WORD(wide))
        for i in range(0, rounds, 2):
            round_keys = [reference.mix(key + i + odd) >> 32 for odd in (0, 1)]
            left = (left + keyed(right, round_keys[0], high)) % WORD(high)
            right = (right + keyed(left, round_keys[1], wide)) % WORD(wide)
        return (left * WORD(wide) + right).astype(np.int64)

    return shuffled


def multiplied(key: int) -> Rows:
    """A linear congruence with other numbers for each key."""
    return (np.arange(4225) * (1_000_003 + 2 * key) + key * 7919) % 4225


def swapped_badly(key: int) -> Rows:
    """The classic mistake: each row swapped with any other, not with a later one."""
    generator = np.random.default_rng(key)
    rows = np.arange(200)
    for i, j in enumerate(generator.integers(0, 200, 200).tolist()):
        rows[i], rows[j] = rows[j], rows[i]
    return rows


def one_cycle(key: int) -> Rows:
    """Sattolo's shuffle: no row ever stays where it is."""
    generator = np.random.default_rng(key)
    rows = np.arange(200)
    for i in range(199, 0, -1):
        j = int(generator.integers(0, i))
        rows[i], rows[j] = rows[j], rows[i]
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
    "bad swaps, by buckets": lambda: buckets(swapped_badly, 500),
    "no fixed points, by fixed points": lambda: fixed_points(one_cycle, 500),
    "no fixed points, by cycles of two": lambda: short_cycles(one_cycle, 500, 2),
    "a shuffle buffer, by buckets": lambda: buckets(in_a_buffer, 5),
    "a shuffle buffer, by distances": lambda: distances(in_a_buffer, 5),
    "added seeds, by coincidences": lambda: coincidences(
        by_added_seed(1), lambda epoch: by_added_seed(0)(epoch + 1), 20
    ),
    "2 rounds, by neighbours": lambda: differences(network(4225, 2), 50, 1),
    "2 rounds, by runs": lambda: runs(network(4225, 2), 300),
    "2 rounds, by fixed points": lambda: fixed_points(network(4225, 2), 500),
    "4 rounds, one column": lambda: differences(network(4225, 4), 50, 65),
}


@pytest.mark.parametrize("case", CAUGHT)
def test_the_statistics_catch_what_is_no_shuffle(case: str) -> None:
    assert abs(CAUGHT[case]()) > 2 * LIMIT


def test_the_network_of_eight_rounds_is_the_shuffle() -> None:
    np.testing.assert_array_equal(network(4225, 8)(3), epochs_of(4225)(3))

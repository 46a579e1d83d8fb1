"""Statistics of orders, each as a normal deviate: 0 on average, within ±1 two times out of three,
beyond ±5 less than once in a million."""

import math
from collections.abc import Callable
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]
Shuffled = Callable[[int], Rows]
"""One whole order of the same rows for each number."""

LIMIT = 5.0


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

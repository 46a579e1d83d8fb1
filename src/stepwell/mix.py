"""Batches of several sources, each with its share.

    mix = Mix({web: 0.7, code: 0.3}, seed=7)
    for batch in Loader(mix, 4096): ...

Which source a row comes from is a pattern that repeats: after any number of rows each source has
had its share of them, rounded up or down. Which row of the source it is, is the next one of its
own shuffled order. Both are pure functions of seed and position (docs/sampling.md), so a loader
stops and resumes as over any source.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.exchange import as_source
from stepwell.lazy import lazy
from stepwell.sampler import Iid, Sampler, Shuffle
from stepwell.source import Rows, Source
from stepwell.views import Concat

MAX_PERIOD = 1_000_000
"""Rows after which the pattern repeats, at most."""


class Mix:
    """Several sources with the same fields, and the share of rows that each gives.

    It is what a `Loader` takes instead of a source, with the order in it. Shares are any numbers
    above 0, such as 0.7 and 0.3 or 7 and 3. Those that have no common denominator up to a million
    are rounded to that; `shares` is what they are. A source is anything that `as_source` takes;
    pairs instead of a mapping hold what no mapping can have as a key.

    Every row of a source comes once before one of them comes again, however often another source
    has begun again meanwhile. An epoch is `length` rows, by default as many as there are in all
    sources; the next one goes on where it ended, so shares are exact across epochs too.
    """

    def __init__(
        self,
        shares: Mapping[Any, float] | Sequence[tuple[Any, float]],
        seed: int = 0,
        *,
        length: int | None = None,
    ) -> None:
        pairs = list(shares.items() if isinstance(shares, Mapping) else shares)
        pair: Any
        for i, pair in enumerate(pairs):
            if not isinstance(pair, Sequence) or len(pair) != 2:
                got = f"{type(pair).__name__} as item {i}"
                raise TypeError(f"expected pairs of a source and its share, got {got}")
        if not pairs:
            raise ValueError("expected at least one source and its share, got none")
        parts = [as_source(given) for given, _ in pairs]
        for i, part in enumerate(parts):
            if not len(part):
                raise ValueError(f"source {i}: expected rows, got none")
        self._counts = _whole_shares([_share(i, share) for i, (_, share) in enumerate(pairs)])
        self._source = Concat(parts)
        self._seed = Shuffle(seed).seed  # which checks it
        self._length = len(self._source) if length is None else operator.index(length)
        if not 1 <= self._length < 2**63:
            raise ValueError(f"length: expected at least 1 and below 2**63, got {length}")

    @lazy
    def _pattern(self) -> NDArray[np.int32]:
        return _pattern(self._counts)

    @property
    def source(self) -> Source:
        """The rows of all sources, one after another."""
        return self._source

    @property
    def shares(self) -> tuple[Fraction, ...]:
        """The share of each source, exactly."""
        return tuple(Fraction(count, sum(self._counts)) for count in self._counts)

    @property
    def seed(self) -> int:
        """The number that the order is computed from."""
        return self._seed

    @property
    def name(self) -> str:
        """What a loader's state is compared by, with the seed."""
        sizes = np.diff(self._source._starts).tolist()
        parts = [f"{count} of {size}" for count, size in zip(self._counts, sizes, strict=True)]
        return f"Mix({', '.join(parts)}; length={self._length})"

    def order(self, length: int) -> "MixOrder":
        """The order of the rows of all sources."""
        if length != len(self._source):
            raise ValueError(f"expected {length} rows, the sources had {len(self._source)}")
        return MixOrder(self._source._starts, self._pattern, self._seed, self._length)

    def __repr__(self) -> str:
        shares = ", ".join(f"{float(share):.4g}" for share in self.shares)
        return f"Mix({len(self._source):,} rows, shares {shares}, seed={self.seed})"


def of_mix(given: Any, sampler: Sampler | None, ordered: bool) -> tuple[Any, Sampler | None]:
    """The rows of a mix and their order, which is the mix itself; anything else as it is."""
    if not isinstance(given, Mix):
        return given, sampler
    if sampler is not None or ordered:
        raise ValueError("a Mix has an order of its own: give it the seed, and no sampler")
    return given.source, given


class MixOrder:
    """The rows of every epoch of a mix, by position."""

    def __init__(self, starts: Rows, pattern: NDArray[np.int32], seed: int, length: int) -> None:
        self._starts, self._pattern, self._length = starts.tolist(), pattern, length
        self._sizes = np.diff(starts).tolist()
        seeds = Iid(seed).order(2**62).rows(0, 0, len(self._sizes)).tolist()
        self._orders: list[_core.Order] = [
            Shuffle(each).order(size) for each, size in zip(seeds, self._sizes, strict=True)
        ]
        self._counts = np.bincount(pattern, minlength=len(self._sizes)).tolist()
        self._before = np.empty(len(pattern), np.int64)  # draws of the same source, in the pattern
        for k, count in enumerate(self._counts):
            self._before[pattern == k] = np.arange(count)

    @property
    def length(self) -> int:
        """Positions in one epoch."""
        return self._length

    def rows(self, epoch: int, start: int, count: int) -> Rows:
        """Return the rows at `count` positions from `start` on."""
        if start < 0 or count < 0 or start + count > self._length:
            raise IndexError(
                f"positions {start} to {start + count} are outside an epoch of {self._length}"
            )
        turn, at = divmod(epoch * self._length + start, len(self._pattern))
        turns, places = np.divmod(at + np.arange(count), len(self._pattern))
        owners = self._pattern[places]
        rows = np.empty(count, np.int64)
        for k, each in enumerate(self._counts):
            here = np.flatnonzero(owners == k)
            if len(here):  # its draws follow one another, whatever is between them
                first = (turn + int(turns[here[0]])) * each + int(self._before[places[here[0]]])
                rows[here] = self._draws(k, first, len(here)) + self._starts[k]
        return rows

    def _draws(self, k: int, first: int, count: int) -> Rows:
        """Rows of a source, epoch after epoch of its own."""
        parts = [np.empty(0, np.int64)]
        while count:
            epoch, at = divmod(first, self._sizes[k])
            part = min(count, self._sizes[k] - at)
            parts.append(self._orders[k].rows(epoch % 2**64, at, part))
            first, count = first + part, count - part
        return np.concatenate(parts)


def _share(i: int, given: Any) -> Fraction:
    """A share as a fraction: for 0.7 that is 7/10, not what binary digits have of it."""
    try:
        given = float(given) if isinstance(given, np.floating) else given
        exact = Fraction(int(given) if isinstance(given, np.integer) else given)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"share of source {i}: expected a finite number, got {given!r}") from None
    if exact <= 0:
        raise ValueError(f"share of source {i}: expected a number above 0, got {given!r}")
    simple = exact.limit_denominator(MAX_PERIOD)
    return simple if isinstance(given, float) and float(simple) == given else exact


def _whole_shares(shares: Sequence[Fraction]) -> list[int]:
    """How many rows of a period each source has."""
    parts = [share / sum(shares) for share in shares]
    period = math.lcm(*(part.denominator for part in parts))
    if period <= MAX_PERIOD:
        return [int(part * period) for part in parts]
    if len(parts) > MAX_PERIOD:
        raise ValueError(f"expected up to {MAX_PERIOD} sources, got {len(parts)}")
    counts = [max(1, int(part * MAX_PERIOD)) for part in parts]
    lacks = [part * MAX_PERIOD - count for part, count in zip(parts, counts, strict=True)]
    while rest := MAX_PERIOD - sum(counts):
        way = 1 if rest > 0 else -1
        able = [k for k in range(len(parts)) if way > 0 or counts[k] > 1]
        k = max(able, key=lambda k: way * lacks[k])
        counts[k], lacks[k] = counts[k] + way, lacks[k] - way
    return [count // math.gcd(*counts) for count in counts]


def _pattern(counts: Sequence[int]) -> NDArray[np.int32]:
    """Which source each row of a period comes from.

    Draw j of a source with the share s is neither before row floor(j / s) nor behind row
    ceil((j + 1) / s) - 1, so its number of draws is never off by 1. Of those that may come the one
    that has to come first does: if there is any such order, this is one, and there is (Tijdeman
    1980).
    """
    period = sum(counts)
    pattern = np.empty(period, np.int32)
    drawn = [0] * len(counts)
    waiting = [(0, k) for k in range(len(counts))]  # by the row at which they may come
    due: list[tuple[int, int]] = []
    for at in range(period):
        while waiting and waiting[0][0] <= at:
            k = heappop(waiting)[1]
            heappush(due, (-((drawn[k] + 1) * -period // counts[k]), k))
        k = pattern[at] = heappop(due)[1]
        drawn[k] += 1
        heappush(waiting, (drawn[k] * period // counts[k], k))
    return pattern

"""Which rows come next: pure functions from position to row.

A sampler is a description. `sampler.order(length)` binds it to a number of rows, and

    sampler.order(length).rows(epoch, start, count)

are the rows at positions `start .. start + count` of that epoch: the same on every machine,
after every restart and in every release (docs/sampling.md defines them to the bit). No
order stores a permutation or needs set-up, so 1e12 rows are as easy as ten. Anything with
`name`, `seed` and `order` is a sampler; one written in Python makes the loader use Python.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell import _core
from stepwell.source import Rows


class Order(Protocol):
    """The rows of every epoch, by position."""

    @property
    def length(self) -> int:
        """Positions in one epoch."""

    def rows(self, epoch: int, start: int, count: int) -> Rows:
        """Return the rows at `count` positions from `start` on."""


class Sampler(Protocol):
    """A seeded way to visit the rows of any source."""

    @property
    def name(self) -> str:
        """Decides, with the seed, which rows come; a loader's state is compared by it."""

    @property
    def seed(self) -> int:
        """The number that the order is computed from."""

    def order(self, length: int) -> Order:
        """The order of a source of `length` rows."""


@dataclass(frozen=True, slots=True)
class _Uniform:
    """An order that has nothing but a seed."""

    seed: int = 0

    def __post_init__(self) -> None:
        _check_seed(self.seed)

    @property
    def name(self) -> str:
        """What a loader's state is compared by, with the seed."""
        return type(self).__name__


class Shuffle(_Uniform):
    """Every row once an epoch, in uniformly random order, a new one each epoch.

    >>> Shuffle(seed=7).order(10).rows(epoch=0, start=0, count=10)
    array([7, 8, 2, 6, 9, 0, 1, 3, 5, 4])
    """

    __slots__ = ()

    def order(self, length: int) -> _core.Order:
        """The order of a source of `length` rows."""
        return _core.shuffle_order(length, self.seed)


@dataclass(frozen=True, slots=True)
class Block:
    """Every row once an epoch: blocks of `k` neighbouring rows in random order.

    Rows are then shuffled inside windows of up to `group` blocks that follow one another, so
    a batch mixes rows of that many places of the source. Reads are `k` rows long instead of
    one, which is what mapped or remote data larger than memory needs; the price is that
    two rows of a block stay within `k * group` positions of each other.

    With `lanes`, the blocks of a window are dealt to that many lanes, each is shuffled alone, and
    positions go to them in turn, as ranks then do: each rank meets only blocks of its own, where
    lanes are a multiple of the number of ranks. The order is the same for any number of ranks.
    """

    k: int
    seed: int = 0
    group: int = 64
    lanes: int = 1

    def __post_init__(self) -> None:
        _check_seed(self.seed)
        self.order(0)  # the other numbers are checked there

    @property
    def name(self) -> str:
        """What a loader's state is compared by, with the seed."""
        lanes = "" if self.lanes == 1 else f", lanes={self.lanes}"
        return f"Block(k={self.k}, group={self.group}{lanes})"

    def order(self, length: int) -> _core.Order:
        """The order of a source of `length` rows."""
        return _core.block_order(length, self.seed, self.k, self.group, self.lanes)


@dataclass(frozen=True, slots=True)
class Sequential:
    """Rows in order, or a window sliding over them.

    Window number i is rows `i * stride .. i * stride + window`; the source is a ring, so the
    last windows continue at row 0 and nothing is cut off. Without a stride, windows follow
    one another.
    """

    window: int = 1
    stride: int | None = None
    seed: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        self.order(0)

    @property
    def name(self) -> str:
        """What a loader's state is compared by, with the seed."""
        return f"Sequential(window={self.window}, stride={self.stride or self.window})"

    def order(self, length: int) -> _core.Order:
        """The order of a source of `length` rows."""
        stride = self.window if self.stride is None else self.stride
        return _core.sequential_order(length, self.window, stride)


class Iid(_Uniform):
    """As many independent uniform draws an epoch as there are rows: with replacement."""

    __slots__ = ()

    def order(self, length: int) -> _core.Order:
        """The order of a source of `length` rows."""
        return _core.iid_order(length, self.seed)


class Weighted:
    """Independent draws, row i with probability `weights[i] / sum(weights)`.

    The weights are kept as one running sum of 8 bytes a row; a draw is a binary search.
    """

    __slots__ = ("_cumulative", "seed")

    def __init__(self, weights: ArrayLike, seed: int = 0) -> None:
        _check_seed(seed)
        each = np.asarray(weights)
        if each.dtype.kind not in "biuf" and each.size:
            raise TypeError(f"weights must be numbers, got {each.dtype}")
        if each.ndim != 1:
            raise ValueError(f"weights must have one dimension, got {each.ndim}")
        each = each.astype(np.float64)
        if not np.isfinite(each).all():
            raise ValueError("weights must be finite")
        if (each < 0).any():
            raise ValueError("weights must not be negative")
        self.seed = seed
        with np.errstate(over="ignore"):  # an infinite sum is refused below
            self._cumulative: NDArray[np.float64] = np.cumsum(each)
        self._cumulative.flags.writeable = False
        self.order(len(self._cumulative))

    @property
    def name(self) -> str:
        """What a loader's state is compared by, with the seed."""
        return f"Weighted({_core.crc32c(self._cumulative.view(np.uint8)):08x})"

    def order(self, length: int) -> _core.Order:
        """The order of a source of `length` rows."""
        if length != len(self._cumulative):
            raise ValueError(f"expected {length} weights, got {len(self._cumulative)}")
        return _core.weighted_order(self._cumulative, self.seed)

    def __repr__(self) -> str:
        return f"Weighted({len(self._cumulative):,} weights, seed={self.seed})"


def _check_seed(seed: int) -> None:
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise ValueError(f"seed: expected a whole number in [0, 2**64), got {seed!r}")


def split_runs(count: int, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Two parts of `range(count)`, each ascending, the first with `fraction` of it."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction: expected 0 to 1, got {fraction}")
    order = Shuffle(seed).order(count).rows(0, 0, count) if count else np.empty(0, np.int64)
    first, second = np.split(order, [round(fraction * count)])
    return np.sort(first), np.sort(second)


def check_sampler(sampler: object) -> None:
    """Raise `TypeError` for what is not a sampler: a name, or a class instead of one of it."""
    usable = all(hasattr(sampler, name) for name in ("name", "seed", "order"))
    if not usable or isinstance(sampler, type):
        raise TypeError(
            "sampler: expected Shuffle(seed), Block(k), Sequential(), Iid(seed), Weighted(weights) "
            f"or an object with name, seed and order, got {sampler!r}"
        )

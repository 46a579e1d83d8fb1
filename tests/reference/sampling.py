"""docs/sampling.md in plain Python: every order and the schedule, one position at a time.

Whole numbers only, but for the weights. Nothing here is shared with the package, so where
the two agree, two readers of the page did.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from math import isqrt
from typing import NamedTuple

ONES = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
SMALL = 4096
ROUNDS = 8


# Mixing.


def mix(x: int) -> int:
    x = (x + GOLDEN) & ONES
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & ONES
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & ONES
    return x ^ (x >> 31)


def scale(bits: int, bound: int) -> int:
    return (bits * bound) >> 64


def key_of(seed: int, epoch: int, stream: int = 0) -> int:
    return mix(mix(mix(seed) ^ epoch) ^ stream)


def draw(key: int, position: int) -> int:
    return mix(key + position * GOLDEN)


# The keyed permutation.


def fisher_yates(count: int, key: int) -> list[int]:
    order = list(range(count))
    for i in range(count, 1, -1):
        j = scale(mix(key + i), i)
        order[i - 1], order[j] = order[j], order[i - 1]
    return order


def keyed(value: int, key: int, bound: int) -> int:
    z = (value * 0x9E3779B1 + key) % 2**32
    z = ((z ^ (z >> 15)) * 0x2C1B3C6D) % 2**32
    z = ((z ^ (z >> 12)) * 0x297A2D39) % 2**32
    z ^= z >> 15
    return (z * bound) >> 32


class Network:
    """The permutation of more than 4096 rows: a walk over the cells of a rectangle."""

    def __init__(self, count: int, key: int, rounds: int = ROUNDS) -> None:
        self.count = count
        self.high = isqrt(count - 1) + 1
        self.wide = -(-count // self.high)
        self.keys = [mix(key + i) >> 32 for i in range(rounds)]

    def __getitem__(self, position: int) -> int:
        cell = self._forward(position)
        while cell >= self.count:
            cell = self._forward(cell)
        return cell

    def index(self, row: int) -> int:
        cell = self._backward(row)
        while cell >= self.count:
            cell = self._backward(cell)
        return cell

    def _forward(self, cell: int) -> int:
        left, right = divmod(cell, self.wide)
        for i in range(0, len(self.keys), 2):
            left = (left + keyed(right, self.keys[i], self.high)) % self.high
            right = (right + keyed(left, self.keys[i + 1], self.wide)) % self.wide
        return left * self.wide + right

    def _backward(self, cell: int) -> int:
        left, right = divmod(cell, self.wide)
        for i in reversed(range(0, len(self.keys), 2)):
            right = (right - keyed(left, self.keys[i + 1], self.wide)) % self.wide
            left = (left - keyed(right, self.keys[i], self.high)) % self.high
        return left * self.wide + right


@lru_cache(maxsize=256)
def permutation(count: int, key: int) -> list[int] | Network:
    """`p[position]` is a row, `p.index(row)` its position."""
    return fisher_yates(count, key) if count <= SMALL else Network(count, key)


# The orders: the row at a position of an epoch.


def shuffle(count: int, seed: int, epoch: int, position: int) -> int:
    return permutation(count, key_of(seed, epoch))[position]


def block(count: int, seed: int, k: int, group: int, lanes: int, epoch: int, position: int) -> int:
    k = min(k, count)
    blocks = -(-count // k)
    order = permutation(blocks, key_of(seed, epoch))
    missing = blocks * k - count
    gap = (order.index(blocks - 1) + 1) * k - missing
    place = position if position < gap else position + missing

    rounds = -(-blocks // lanes)
    windows = -(-rounds // (group // lanes))
    number = ((place // k // lanes + 1) * windows - 1) // rounds
    first = min(number * rounds // windows * lanes, blocks) * k
    last = min((number + 1) * rounds // windows * lanes, blocks) * k
    begin = first if first < gap else first - missing
    end = last if last < gap else last - missing

    turn, lane = divmod(position - begin, lanes)
    sizes = [len(range(each, end - begin, lanes)) for each in range(lanes)]
    within = permutation(sizes[lane], key_of(seed, epoch, number * lanes + lane + 1))

    moved = begin + sum(sizes[:lane]) + within[turn]
    if moved >= gap:
        moved += missing
    return order[moved // k] * k + moved % k


def sequential_length(count: int, window: int, stride: int) -> int:
    return -(-count // stride) * window


def sequential(count: int, window: int, stride: int, position: int) -> int:
    number, within = divmod(position, window)
    return (number * stride + within) % count


def iid(count: int, seed: int, epoch: int, position: int) -> int:
    return scale(draw(key_of(seed, epoch), position), count)


class Weighted:
    def __init__(self, weights: Iterable[float], seed: int) -> None:
        self.sums = list(accumulate(float(weight) for weight in weights))
        self.seed = seed
        self.last = bisect_left(self.sums, self.sums[-1])

    def __call__(self, epoch: int, position: int) -> int:
        unit = (draw(key_of(self.seed, epoch), position) >> 11) * 2.0**-53
        return min(bisect_right(self.sums, unit * self.sums[-1]), self.last)


# The schedule.


class Step(NamedTuple):
    epoch: int
    positions: Sequence[int]
    after: int


def steps(
    length: int,
    batch: int,
    rank: int,
    world: int,
    drop_last: bool,
    epoch: int,
    position: int,
    in_turn: bool = False,
) -> Iterator[Step]:
    """What one rank reads, step after step, without end."""
    while True:
        while position < length:
            left = length - position
            after = min(position + batch * world, length)
            if drop_last and left < batch * world:
                break
            share = min(batch, -(-left // world))
            everyones = range(position, position + share * world)
            part = everyones[rank::world] if in_turn else everyones[rank * share :][:share]
            yield Step(epoch, [p % length for p in part], after)
            position = after
        epoch, position = epoch + 1, 0

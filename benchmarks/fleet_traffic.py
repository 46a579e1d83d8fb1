"""From the rows of steps to the requests that bring them, and what a disk saves of these.

The orders are the package's own, at full size: one gives the rows of any position, so a stretch of
an epoch of 1e11 rows costs no more than one of 1e6. Only what a disk keeps from one epoch to the
next is taken from a smaller dataset, because whole epochs are needed for that; it depends on shares
alone.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import stepwell as sw
from benchmarks.fleet_queue import Request
from stepwell.sampler import Block, Sampler
from stepwell.source import Rows

UNIT_BYTES = 1 << 12
RANGE_BYTES = 1 << 22
NEAR_BYTES = 1 << 14

_NEVER = 1 << 62


def rows_of_rank(
    sampler: Sampler, length: int, batch: int, rank: int, world: int, steps: int
) -> list[Rows]:
    """The rows of some steps of an epoch, as the schedule gives them to a rank."""
    if isinstance(sampler, Block) and sampler.lanes > 1:  # positions go to ranks in turn
        lanes = sampler.order(length)
        starts = [step * world * batch + rank for step in range(steps)]
        return [lanes.rows(0, start, batch, world) for start in starts]
    order = sampler.order(length)
    starts = [(step * world + rank) * batch for step in range(steps)]
    return [order.rows(0, start, batch) for start in starts]


class Plan(NamedTuple):
    """What a reader asks for, in the order of first use, and the steps before which plans ended."""

    requests: list[Request]
    cuts: list[int]


def plan(
    steps: Sequence[Rows], row_bytes: int, window_bytes: int, near_bytes: int = NEAR_BYTES
) -> Plan:
    """The requests that bring the rows of some steps.

    A reader plans as many steps at a time as half of its window has room for, or fewer where that
    leaves fewer units to be needed before and after: what these steps need is brought together,
    neighbours in one request, and what the next ones need too stays. Gaps of up to `near_bytes` are
    read through. Without a window each step brings what it needs.
    """
    of_step, units = _units(steps, row_bytes)
    room = window_bytes // 2 // UNIT_BYTES
    found: list[tuple[int, int, int]] = []
    kept = kept_in = np.empty(0, np.int64)  # units that are there, and the request of each
    cuts: list[int] = []
    begin = 0
    while begin < len(steps):
        left = slice(np.searchsorted(of_step, begin), None)
        each, uses, of = np.unique(units[left], return_index=True, return_inverse=True)
        first, last = of_step[left][uses], np.zeros(len(each), np.int64)
        last[of] = of_step[left]  # the last one stays
        end = _cut(begin, first, last, room, len(steps))
        now = slice(left.start, np.searchsorted(of_step, end))
        inside = first < end
        each, first = each[inside], first[inside]
        last = np.zeros(len(each), np.int64)
        last[np.searchsorted(each, units[now])] = of_step[now]

        there = np.isin(each, kept, assume_unique=True)
        came_in = np.empty(len(each), np.int64)
        came_in[there] = kept_in[np.searchsorted(kept, each[there])]
        for number, until in zip(came_in[there].tolist(), last[there].tolist(), strict=True):
            size, needed, before = found[number]
            found[number] = size, needed, max(before, until)
        missing = ~there
        group = _groups(each[missing], near_bytes)
        came_in[missing] = group + len(found)
        found += _merged(each[missing], first[missing], last[missing], group)
        begin = end
        if room:
            kept, kept_in = each, came_in
        cuts.append(end)
    return Plan(sorted((Request(*each) for each in found), key=lambda r: r.first), cuts)


def _cut(
    begin: int, first: NDArray[np.int64], last: NDArray[np.int64], room: int, steps: int
) -> int:
    """The step before which a plan ends that begins with this one."""
    new = np.bincount(first - begin, minlength=steps - begin)
    fits = max(int(np.searchsorted(np.cumsum(new), room, side="right")), 1)
    if begin + fits == steps:
        return steps
    across = np.cumsum(new) - np.cumsum(np.bincount(last - begin, minlength=steps - begin))
    half = across[(fits - 1) // 2 : fits]
    return begin + fits - int(np.argmin(half[::-1]))


def _units(steps: Sequence[Rows], row_bytes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Steps and the units of their rows, in the order of use."""
    rows = np.concatenate(steps)
    of_step = np.repeat(np.arange(len(steps)), [len(each) for each in steps])
    first = rows * row_bytes // UNIT_BYTES
    count = ((rows + 1) * row_bytes - 1) // UNIT_BYTES - first + 1
    ends = np.cumsum(count)
    inside = np.arange(ends[-1]) - np.repeat(ends - count, count)
    return np.repeat(of_step, count), np.repeat(first, count) + inside


def _groups(units: NDArray[np.int64], near_bytes: int) -> NDArray[np.int64]:
    """For each of ascending units the number of its request."""
    if not len(units):
        return np.empty(0, np.int64)
    apart = np.diff(units, prepend=units[0]) > near_bytes // UNIT_BYTES + 1
    starts = np.maximum.accumulate(np.where(apart, np.arange(len(units)), 0))
    piece = (units - units[starts]) // (RANGE_BYTES // UNIT_BYTES)
    return np.cumsum(apart | (np.diff(piece, prepend=0) > 0))


def _merged(
    units: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    group: NDArray[np.int64],
) -> list[tuple[int, int, int]]:
    """Bytes, first and last step of each request."""
    if not len(units):
        return []
    cuts = np.flatnonzero(np.diff(group, prepend=-1))
    ends = np.append(cuts[1:], len(units)) - 1
    sizes = (units[ends] - units[cuts] + 1) * UNIT_BYTES
    of = np.minimum.reduceat(first, cuts), np.maximum.reduceat(last, cuts)
    return list(zip(sizes.tolist(), of[0].tolist(), of[1].tolist(), strict=True))


@cache
def missed(nodes: int, share: float, rows_in_unit: int, epochs: int) -> tuple[float, ...]:
    """The share of rows that a node fetches in each epoch of a uniform shuffle.

    Its disk holds this share of the data. What is needed last goes first (Belady's rule), which
    is the least that any cache of the size fetches.
    """
    units = max(4096, 256 * nodes)
    length = units * rows_in_unit
    order = sw.Shuffle(seed=1).order(length)
    mine = [
        order.rows(epoch, 0, length).reshape(-1, nodes)[:, 0] // rows_in_unit
        for epoch in range(epochs + 1)  # the order beyond the last epoch is known, too
    ]
    misses = belady(np.concatenate(mine).tolist(), int(share * units))
    ends = np.cumsum([0, *map(len, mine)]).tolist()
    counted = [bisect_right(misses, end - 1) for end in ends]
    return tuple((b - a) / len(mine[0]) for a, b in pairwise(counted[:-1]))


def belady(uses: Sequence[int], capacity: int) -> list[int]:
    """Which uses have to fetch, with the best choice of what to keep."""
    next_use = [_NEVER] * len(uses)
    seen: dict[int, int] = {}
    for at in range(len(uses) - 1, -1, -1):
        next_use[at] = seen.get(uses[at], _NEVER)
        seen[uses[at]] = at
    kept: dict[int, int] = {}
    furthest: list[tuple[int, int]] = []
    fetched = []
    for at, unit in enumerate(uses):
        if kept.pop(unit, None) is None:
            fetched.append(at)
        kept[unit] = next_use[at]
        heappush(furthest, (-next_use[at], unit))
        while len(kept) > capacity:
            until, gone = heappop(furthest)
            if kept.get(gone) == -until:
                del kept[gone]
    return fetched

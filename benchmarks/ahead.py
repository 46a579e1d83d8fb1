"""Look-ahead: how close what is fetched comes to the least that any cache could fetch.

A full shuffle of rows of 2 KiB, units of 4 KiB, and room for a quarter of them. No network and no
disk: units are counted. Beside the loader's plan stand Belady's optimum, computed over all of it
afterwards, and a cache that lets go of what was used longest ago.
"""

import heapq
import time
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

import stepwell as sw
from benchmarks.results import Case, Measured, Target, arguments, publish
from stepwell.ahead import Ahead
from stepwell.units import NEVER, Bringing, Numbers

_UNIT, _ROW, _BATCH = 4096, 2048, 4096
_EPOCHS = 2


class Counted:
    """A cache of units of which only the numbers are kept."""

    unit_bytes = _UNIT

    def __init__(self, room: int) -> None:
        self.budget_bytes = room * _UNIT
        self.fetched = 0
        self._room, self._here = room, set[int]()
        self._pins: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._wanted = set[int]()
        self._last: list[tuple[int, int]] = []  # what is needed last comes first; some are old

    @property
    def empty(self) -> int:
        return self._room - len(self._here)

    @property
    def spare(self) -> int:
        return self._room - len(self._wanted)

    def _changed(self, units: list[int]) -> None:
        for unit in units:
            if unit in self._here and (self._pins.get(unit) or self._next.get(unit, NEVER) < NEVER):
                self._wanted.add(unit)
            else:
                self._wanted.discard(unit)

    def of(self, rows: sw.source.Rows) -> Numbers:
        return np.unique(rows * _ROW // _UNIT)

    def missing(self, units: Numbers) -> Numbers:
        return np.array([unit for unit in units.tolist() if unit not in self._here], np.int64)

    def bring(self, units: Numbers) -> Bringing:
        missing = self.missing(units).tolist()
        for unit in units.tolist():
            self._pins[unit] = self._pins.get(unit, 0) + 1
        self.fetched += len(missing)
        self._here.update(missing)
        self._changed(units.tolist())
        kept = []
        while len(self._here) > self._room and self._last:
            key, unit = heapq.heappop(self._last)
            if unit not in self._here or -key != self._next.get(unit, NEVER):
                continue
            if self._pins.get(unit):
                kept.append((key, unit))
            else:
                self._here.remove(unit)
                self._wanted.discard(unit)
        for each in kept:
            heapq.heappush(self._last, each)
        return _Held(self, units)

    def expect(self, units: Numbers, next_use: NDArray[np.int64]) -> None:
        for unit, step in zip(units.tolist(), next_use.tolist(), strict=True):
            self._next[unit] = step
            if unit in self._here:
                heapq.heappush(self._last, (-step, unit))
        self._changed(units.tolist())

    def release(self, units: Numbers) -> None:
        for unit in units.tolist():
            self._pins[unit] -= 1
        self._changed(units.tolist())


class _Held:
    def __init__(self, units: Counted, numbers: Numbers) -> None:
        self._units, self._numbers = units, numbers

    is_there = True

    def wait(self, units: Numbers | None = None) -> None: ...

    def release(self) -> None:
        self._units.release(self._numbers)


def main() -> None:
    args = arguments(__doc__, rows=1_000_000).parse_args()
    order = sw.Shuffle(7).order(args.rows)
    starts = range(0, args.rows - _BATCH + 1, _BATCH)
    room = args.rows * _ROW // _UNIT // 4
    units = Counted(room)
    begin = time.perf_counter()
    steps = [units.of(order.rows(e, at, _BATCH)) for e in range(_EPOCHS) for at in starts]
    mapped_ms = (time.perf_counter() - begin) * 1e3 / len(steps)
    ahead = Ahead(units, lambda step: steps[step % len(steps)], 2 * len(starts))
    planned = []
    for number in range(len(steps)):
        while True:
            begin = time.perf_counter()
            if not ahead.plan():
                break
            planned.append((time.perf_counter() - begin) * 1e3)
        while ahead.bring() is not None:
            pass
        ahead.finish()
        if number == len(steps) - 1:
            fetched = units.fetched
    uses = sum(map(len, steps))
    best, recent = belady(steps, room), least_recent(steps, room)
    case = Case(
        f"look-ahead: {uses:,} uses of {4 * room:,} units by a full shuffle, room for a quarter",
        "fetches",
        Measured.of([fetched]),
        {"Belady's optimum": Measured.of([best]), "least recently used": Measured.of([recent])},
        [Target("times Belady's optimum", fetched / best, at_most=1.1)],
        f"planning a step of {_BATCH:,} rows takes {np.median(planned):.2f} ms, "
        f"and finding its rows and units {mapped_ms:.2f} ms",
    )
    publish([case], args.json)


def belady(steps: list[Numbers], room: int) -> int:
    """Fetches, when what is needed last goes: all units of a step are needed at once."""
    next_use, seen = [np.full(len(units), NEVER) for units in steps], dict[int, int]()
    for number in range(len(steps) - 1, -1, -1):
        for i, unit in enumerate(steps[number].tolist()):
            next_use[number][i] = seen.get(unit, NEVER)
            seen[unit] = number
    here, last, fetched = dict[int, int](), list[tuple[int, int]](), 0
    for units, following in zip(steps, next_use, strict=True):
        wanted = units.tolist()
        fetched += sum(unit not in here for unit in wanted)
        here.update(zip(wanted, following.tolist(), strict=True))
        needed, kept = set(wanted), []
        while len(here) > room and last:
            key, unit = heapq.heappop(last)
            if unit in needed:
                kept.append((key, unit))
            elif here.get(unit) == -key:
                del here[unit]
        for unit in wanted:
            heapq.heappush(last, (-here[unit], unit))
    return fetched


def least_recent(steps: list[Numbers], room: int) -> int:
    here, fetched = OrderedDict[int, None](), 0
    for units in steps:
        for unit in units.tolist():
            fetched += unit not in here
            here[unit] = None
            here.move_to_end(unit)
        while len(here) > room:
            here.popitem(last=False)
    return fetched


if __name__ == "__main__":
    main()

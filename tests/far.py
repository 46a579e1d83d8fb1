"""Rows that are far away: they come when somebody waits for them, in an order that a seed gives."""

import random
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.source import Batch, Rows
from stepwell.units import NEVER, Bringing, Numbers
from tests.plain import PlainSource


class FarUnits:
    """A cache of the units of rows of one size; what is needed last goes first."""

    def __init__(self, row_bytes: int, unit_bytes: int, budget: int, seed: int = 0) -> None:
        self.row_bytes, self.unit_bytes, self.budget_bytes = row_bytes, unit_bytes, budget
        self.here: set[int] = set()
        self.fetched: Counter[int] = Counter()
        self.pins: Counter[int] = Counter()
        self.max_pinned = 0
        self.widest = 0  # the most units of a step
        self.broken: dict[int, Exception] = {}  # raised once by whoever waits for the unit
        self.gate = threading.Event()  # nothing comes while it is not set
        self.gate.set()
        self.waiting = threading.Event()  # somebody waits at the gate
        self._coming: list[int] = []
        self._failed: dict[int, Exception] = {}
        self._next: dict[int, int] = {}
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def of(self, rows: Rows) -> Numbers:
        first = rows * self.row_bytes // self.unit_bytes
        last = ((rows + 1) * self.row_bytes - 1) // self.unit_bytes
        return np.unique(
            np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)])
        )

    def missing(self, units: Numbers) -> Numbers:
        with self._lock:
            known = self.here | set(self._coming)
            return np.array([u for u in units.tolist() if u not in known], np.int64)

    def bring(self, units: Numbers) -> Bringing:
        missing = self.missing(units).tolist()
        with self._lock:
            self.widest = max(self.widest, len(units))
            self.pins.update(units.tolist())
            self.max_pinned = max(self.max_pinned, sum(n > 0 for n in self.pins.values()))
            self.fetched.update(missing)
            self._coming += missing
            free = sorted((self._next.get(u, NEVER), u) for u in self.here if self.pins[u] <= 0)
            while free and self.bytes_kept() > self.budget_bytes:
                self.here.remove(free.pop()[1])
        return _Coming(self, units)

    @property
    def empty(self) -> int:
        with self._lock:
            return (self.budget_bytes - self.bytes_kept()) // self.unit_bytes

    @property
    def spare(self) -> int:
        with self._lock:
            kept = self.here | set(self._coming)
            wanted = sum(self.pins[u] > 0 or self._next.get(u, NEVER) != NEVER for u in kept)
        return self.budget_bytes // self.unit_bytes - wanted

    def bytes_kept(self) -> int:
        return (len(self.here) + len(self._coming)) * self.unit_bytes

    def expect(self, units: Numbers, next_use: NDArray[np.int64]) -> None:
        with self._lock:
            self._next.update(zip(units.tolist(), next_use.tolist(), strict=True))

    def wait_for(self, units: Numbers) -> None:
        if not self.gate.is_set():
            self.waiting.set()
            assert self.gate.wait(60)
        with self._lock:
            wanted = set(units.tolist())
            while wanted & set(self._coming):
                unit = self._coming.pop(self._random.randrange(len(self._coming)))
                if unit in self.broken:
                    self._failed[unit] = self.broken.pop(unit)
                else:
                    self.here.add(unit)
            for unit in wanted & self._failed.keys():
                raise self._failed.pop(unit)
            lost = wanted - self.here
            assert not lost, f"units {lost} were let go although somebody wants them"

    def release(self, units: Numbers) -> None:
        with self._lock:
            self.pins.subtract(units.tolist())

    @property
    def pinned(self) -> int:
        with self._lock:
            assert all(count >= 0 for count in self.pins.values())
            return sum(self.pins.values())


class _Coming:
    def __init__(self, units: FarUnits, numbers: Numbers) -> None:
        self._units, self._numbers = units, numbers

    is_there = False  # so that everybody waits for their own

    def wait(self, units: Numbers | None = None) -> None:
        self._units.wait_for(self._numbers if units is None else units)

    def release(self) -> None:
        self._units.release(self._numbers)


class FarSource(PlainSource):
    """Rows whose units must be there, and pinned, when a thread of a loader takes them."""

    def __init__(self, values: Mapping[str, NDArray[Any]], units: FarUnits) -> None:
        super().__init__(values)
        self.units = units

    def _units(self) -> FarUnits:
        return self.units

    def _fill(self, rows: Rows, out: Batch) -> None:
        wanted = self.units.of(rows)
        if not threading.current_thread().name.startswith("stepwell"):
            return super()._fill(rows, out)  # a fingerprint
        assert all(self.units.pins[unit] for unit in wanted.tolist())
        bringing = self.units.bring(wanted)
        bringing.wait()
        super()._fill(rows, out)
        bringing.release()

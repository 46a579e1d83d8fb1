"""Which units of some files are here or on their way, and which of them go when there is no room.

This only keeps the books: bytes are `stand_in.py`'s, requests `mirror.py`'s. Each unit that is here
or on its way has a slot; what is known of it is in arrays by slot, so whatever concerns many
units is a few calls of NumPy. Nothing here waits, and its owner holds a lock around it.
"""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
"""Units by their numbers, ascending, each once."""

UNKNOWN = np.iinfo(np.int32).max
"""The next use of a unit that no plan has."""

Slots = NDArray[np.int32]

LEFT = -1
"""In the place of a request: it failed, or what it brought is gone."""

_MANY = 1 << 17  # slots: from here on some more go at once, since looking for them takes a while


class Residents:
    """The units that are here: up to `budget` of them, and those that are pinned."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._count = 0
        self._slot = np.zeros(0, np.int32)  # of each unit; 0 for one that has none
        self.unit = np.full(1, -1, np.int64)
        self.generation = np.zeros(1, np.uint32)
        """Of the bytes that are here, as their file counts them; 0 for those on their way."""
        self.request = np.zeros(1, np.int64)
        """Which brings a unit; 0 once it is here."""
        self._pins = np.zeros(1, np.int32)
        self._next = np.zeros(1, np.int64)
        self._touched = np.zeros(1, np.int64)
        self._free = np.zeros(0, np.int32)
        self._free_count = 0
        self._clock = 0
        self._wanted_count = 0

    def __len__(self) -> int:
        """Units with a slot."""
        return len(self.unit) - 1 - self._free_count

    @property
    def empty(self) -> int:
        """How many more there is room for."""
        return max(self.budget - len(self), 0)

    @property
    def spare(self) -> int:
        """The same, if all go that are neither pinned nor have a next use."""
        return max(self.budget - self._wanted_count, 0)

    def extend(self, count: int) -> int:
        """Have `count` more units; the number of the first."""
        first, self._count = self._count, self._count + count
        if self._count > len(self._slot):  # pages of zeros take no memory until they change
            made = np.zeros(max(2 * len(self._slot), self._count), np.int32)
            held = self.unit[self.unit >= 0]
            made[held] = self._slot[held]
            self._slot = made
        return first

    def slots(self, units: Numbers) -> Slots:
        """The slot of each unit; 0 for one without."""
        return self._slot[units]

    def generations(self, units: Numbers) -> NDArray[np.uint32]:
        """Of the bytes of these units, 0 of those that are not here. Without the lock, too: what is
        the same before and after was here all the time."""
        slots = self._slot[units]
        return self.generation[slots]

    def touch(self, units: Numbers) -> None:
        """They were used. Without the lock, too: at worst others are taken for used."""
        self._touched[self._slot[units]] = self._clock

    def here(self, slots: Slots) -> NDArray[np.bool]:
        found: NDArray[np.bool] = self.generation[slots] != 0
        return found

    def coming(self, slots: Slots) -> NDArray[np.bool]:
        return self.request[slots] > 0

    def claim(self, units: Numbers) -> Slots:
        """Slots for units that have none."""
        count = len(units)
        if self._free_count < count:
            self._grow(count)
        self._free_count -= count
        slots = self._free[self._free_count : self._free_count + count].copy()
        self._slot[units], self.unit[slots] = slots, units
        self.generation[slots], self.request[slots], self._pins[slots] = 0, LEFT, 0
        self._next[slots], self._touched[slots] = UNKNOWN, self._clock
        return slots

    def pin(self, slots: Slots) -> None:
        """Keep these, each once more."""
        self._clock += 1
        self._wanted_count += len(slots) - self._wanted(slots)
        self._pins[slots] += 1
        self._touched[slots] = self._clock

    def unpin(self, slots: Slots) -> None:
        """The opposite; those that are neither here nor on their way lose their slots."""
        self._clock += 1
        self._pins[slots] -= 1
        self._wanted_count -= len(slots) - self._wanted(slots)
        self._touched[slots] = self._clock
        lost = (self._pins[slots] == 0) & (self.generation[slots] == 0)
        self._release(slots[lost & (self.request[slots] == LEFT)])

    def arrived(self, slots: Slots, generations: NDArray[np.uint32]) -> None:
        self.generation[slots], self.request[slots] = generations, 0

    def lose(self, slots: Slots) -> None:
        """What is in these slots is not here, after all, and not on its way."""
        self.generation[slots], self.request[slots] = 0, LEFT
        self._release(slots[self._pins[slots] == 0])

    def expect(self, units: Numbers, next_use: NDArray[np.int64]) -> None:
        slots = self._slot[units]
        there = slots > 0
        slots = slots[there]
        self._wanted_count -= self._wanted(slots)
        self._next[slots] = np.minimum(next_use[there], UNKNOWN)
        self._wanted_count += self._wanted(slots)

    def surplus(self) -> Numbers:
        """Units to let go of, so that the budget is kept; their slots are gone then.

        Of those that are here and not pinned: whose next use is unknown, then furthest away, and
        among equals those that were used longest ago.
        """
        count = len(self) - self.budget
        if count <= 0:
            return np.empty(0, np.int64)
        if len(self) > _MANY:
            count += self.budget // 256
        slots = np.flatnonzero((self._pins == 0) & (self.generation != 0))
        if count < len(slots):
            age = self._clock - self._touched[slots]
            order = self._next[slots] << 32 | np.minimum(age, (1 << 32) - 1)
            slots = slots[np.argpartition(order, len(slots) - count)[len(slots) - count :]]
        units = np.sort(self.unit[slots])
        self._release(slots.astype(np.int32))
        return units

    def _wanted(self, slots: Slots) -> int:
        return int(np.count_nonzero((self._pins[slots] > 0) | (self._next[slots] != UNKNOWN)))

    def _release(self, slots: Slots) -> None:
        if not len(slots):
            return
        self._wanted_count -= self._wanted(slots)
        self._slot[self.unit[slots]] = 0
        self.unit[slots], self.generation[slots] = -1, 0
        self._free[self._free_count : self._free_count + len(slots)] = slots
        self._free_count += len(slots)

    def _grow(self, count: int) -> None:
        old = len(self.unit)
        new = max(2 * old, old + count, 1024)
        for name in ("unit", "generation", "request", "_pins", "_next", "_touched"):
            before = getattr(self, name)
            made = np.zeros(new, before.dtype)
            made[:old] = before
            setattr(self, name, made)
        self.unit[old:] = -1
        free = np.zeros(new, np.int32)
        free[: self._free_count] = self._free[: self._free_count]
        free[self._free_count : self._free_count + new - old] = np.arange(old, new)
        self._free, self._free_count = free, self._free_count + new - old


def spanned(firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> Numbers:
    """All numbers from each first to its last one, ascending, each once."""
    if not len(firsts):
        return np.empty(0, np.int64)
    if (lasts - firsts).max() <= 1:  # small rows: sorting numbers is much faster than an order
        both = firsts if np.array_equal(firsts, lasts) else np.concatenate([firsts, lasts])
        both = np.sort(both)
        found: Numbers = both[np.concatenate([[True], both[1:] != both[:-1]])]
        return found
    order = np.argsort(firsts, kind="stable")
    firsts, ends = firsts[order], np.maximum.accumulate(lasts[order])
    apart = np.flatnonzero(firsts[1:] > ends[:-1])
    begins = firsts[np.concatenate([[0], apart + 1])]
    counts = ends[np.concatenate([apart, [len(ends) - 1]])] - begins + 1
    before = np.cumsum(counts) - counts
    return np.repeat(begins - before, counts) + np.arange(int(counts.sum()))

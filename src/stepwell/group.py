"""Steps that follow one another and are brought together."""

from typing import NamedTuple

import numpy as np

from stepwell.units import Numbers

_MAX_STEPS = 64
_ALONE = 16
"""The part of the room that the units of a group may take, whatever they are."""

_MAX = 2
"""The same where its steps have most of them in common."""

_IN_COMMON = 2
"""Steps that need a unit, on average, where they have most of them in common."""

_SPARSE = 64
"""Numbers for each unit from which on marking all of them takes longer than sorting."""


class Taken(NamedTuple):
    steps: int
    units: Numbers

    def with_next(self, more: "Taken", room: int) -> "Taken | None":
        """These steps and the next ones as one group, where most units of those are in this one,
        and there is room; else None."""
        both = np.union1d(self.units, more.units)
        if len(both) > room or 2 * (len(both) - len(self.units)) > len(more.units):
            return None
        return Taken(self.steps + more.steps, both)


class Group:
    """Collects steps until it is known which of them are one group.

    A group holds its units until its last step is over, and has them before the first one. That is
    as good as each step on its own where they need the same ones again and again, and takes room
    from others where they do not.
    """

    def __init__(self, room: int) -> None:
        self._alone = room // _ALONE
        self.max = room // _MAX if self._alone else 0  # or there is no room for groups
        self._steps: list[Numbers] = []
        self._uses = 0
        self._seen = 0  # units of the steps when they were last counted

    @property
    def steps(self) -> int:
        return len(self._steps)

    def add(self, units: Numbers) -> None:
        self._steps.append(units)
        self._uses += len(units)

    @property
    def is_full(self) -> bool:
        """Whether enough steps are here to see what they have in common."""
        if len(self._steps) >= (_MAX_STEPS if self._alone else 1):
            return True
        if self._uses > max(self.max, 2 * self._seen):
            self._seen = len(_first_uses(self._steps)[0])
            return self._seen > self.max
        return False

    def taken(self, max_steps: int | None = None) -> Taken:
        """Take out the steps that are brought next, and their units: up to `max_steps`, or more
        where they have most of their units in common."""
        units, first = _first_uses(self._steps)
        count, uses = len(self._steps), np.array([len(each) for each in self._steps])
        fresh = np.bincount(first, minlength=count)
        begins = np.flatnonzero((2 * fresh > uses)[1:] & (4 * fresh < uses)[:-1]) + 1
        if len(begins):  # elsewhere: those after it go there too
            count = int(begins[0])
        if not self._is_common(uses, first, count):
            count = min(count, max_steps or count)
            if np.count_nonzero(first < count) > self._alone:
                ends = np.cumsum(uses[:count])
                count = max(int(np.searchsorted(ends, self._alone, side="right")), 1)
        del self._steps[:count]
        self._uses = int(uses[count:].sum())
        self._seen = 0
        return Taken(count, units[first < count])

    def _is_common(self, uses: Numbers, first: Numbers, count: int) -> bool:
        return bool(uses[:count].sum() >= _IN_COMMON * np.count_nonzero(first < count))


def _first_uses(steps: list[Numbers]) -> tuple[Numbers, Numbers]:
    """The units of some steps, ascending, each once, and the step that needs each first."""
    units = np.concatenate(steps)
    if not len(units):
        return units, units
    begin, end = int(units.min()), int(units.max()) + 1
    if end - begin > _SPARSE * len(units):
        units, at = np.unique(units, return_index=True)
        ends = np.cumsum([len(each) for each in steps])
        return units, np.searchsorted(ends, at, side="right")
    first = np.full(end - begin, -1, np.int8)
    for number in range(len(steps) - 1, -1, -1):
        first[steps[number] - begin] = number
    there = np.flatnonzero(first >= 0)
    return there + begin, first[there].astype(np.int64)

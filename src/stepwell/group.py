"""Steps that follow one another and are brought together."""

from typing import NamedTuple

import numpy as np

from stepwell.units import Numbers

_MAX_STEPS = 64
_ALONE = 16
"""The part of the room that the units of a group may take, whatever they are."""

_MAX = 4
"""The same where its steps have most of them in common."""

_IN_COMMON = 2
"""Steps that need a unit, on average, where they have most of them in common."""


class Taken(NamedTuple):
    steps: int
    units: Numbers


class Group:
    """Collects steps until it is known which of them are one group.

    A group holds its units until its last step is over, and has them before the first one. That is
    as good as each step on its own where they need the same ones again and again, and takes room
    from others where they do not.
    """

    def __init__(self, room: int) -> None:
        self._alone, self._max = room // _ALONE, room // _MAX
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
        """Whether enough steps are here to tell."""
        if len(self._steps) >= _MAX_STEPS:
            return True
        if self._uses > max(self._max, 2 * self._seen):
            self._seen = len(union(self._steps))
            return self._seen > self._max
        return False

    def taken(self) -> Taken:
        """Take out the steps that are brought next, and their units."""
        count, units = len(self._steps), union(self._steps)
        if len(units) > self._alone and self._uses < _IN_COMMON * len(units):
            uses = np.cumsum([len(each) for each in self._steps])
            count = max(int(np.searchsorted(uses, self._alone, side="right")), 1)
            units = union(self._steps[:count])
        del self._steps[:count]
        self._uses = sum(len(each) for each in self._steps)
        self._seen = 0
        return Taken(count, units)


def union(parts: list[Numbers]) -> Numbers:
    if len(parts) <= 1:
        return parts[0] if parts else np.empty(0, np.int64)
    return np.unique(np.concatenate(parts))

"""Rows that are far away: in which units of a file they are, and how these are brought.

A source whose rows are memory has none of this. One whose files are behind a URL, or on a disk and
not in memory, answers `Source._units` with a `Units`; a take brings what it needs by itself, and a
loader, which knows what it will take, has it brought before.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stepwell.source import Rows

Numbers = NDArray[np.int64]
"""Units by their numbers, ascending, each once."""

NEVER = 2**63 - 1
"""The next use of what is not needed any more, as far as anybody knows."""


class Bringing(Protocol):
    """Units that are on their way, and stay once they are there, until `release`."""

    @property
    def is_there(self) -> bool:
        """Whether all of them came, so that there is nothing to wait for."""

    def wait(self, units: Numbers | None = None) -> None:
        """Wait until some of them, or all, are there; raises what went wrong with these."""

    def release(self) -> None:
        """Let them go: others may take their room. Also of what never came."""


class Units(Protocol):
    """The small pieces of files in which rows are brought, 4 KiB or so each."""

    unit_bytes: int
    budget_bytes: int
    """Bytes of units that are kept at a time, those included that are on their way."""

    @property
    def empty(self) -> int:
        """How many units could come, and no other would have to go."""

    @property
    def spare(self) -> int:
        """The same, and none would have to go that is held or has a next use."""

    def of(self, rows: Rows) -> Numbers:
        """The units that a take of these rows reads."""

    def missing(self, units: Numbers) -> Numbers:
        """Those of them that are neither here nor on their way."""

    def bring(self, units: Numbers) -> Bringing:
        """Begin to bring those that are missing, neighbours in one read, and keep all of them."""

    def expect(self, units: Numbers, next_use: NDArray[np.int64]) -> None:
        """When each is needed next, in steps of whoever plans, or `NEVER`; what is needed last
        goes first. Nothing is known of the others; those that are not here need not be remembered.
        """


Reading = tuple[Units, Callable[[Rows], Rows]]
"""Units, and which of their rows some rows are made of."""


def composed(parts: Iterable[tuple[Units | None, Callable[[Rows], Rows]]]) -> Units | None:
    """The units of a view that is made of several sources; None where all of them are at hand."""
    readings: list[Reading] = []
    for units, rows_of in parts:
        if isinstance(units, _Composed):
            readings += [(root, _chained(rows_of, inner)) for root, inner in units.readings]
        elif units is not None:
            readings.append((units, rows_of))
    return _Composed(readings) if readings else None


def _chained(
    first: Callable[[Rows], Rows], second: Callable[[Rows], Rows]
) -> Callable[[Rows], Rows]:
    return lambda rows: second(first(rows))


class _Composed:
    """Units of several kinds, or of one that is read in several ways; their numbers take turns."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        self.readings = readings
        self._roots: list[Units] = []
        for root, _ in readings:
            if not any(root is known for known in self._roots):
                self._roots.append(root)
        self.unit_bytes = max(root.unit_bytes for root in self._roots)
        self.budget_bytes = min(root.budget_bytes for root in self._roots)

    @property
    def empty(self) -> int:
        return min(root.empty for root in self._roots)

    @property
    def spare(self) -> int:
        return min(root.spare for root in self._roots)

    def of(self, rows: Rows) -> Numbers:
        found = []
        for k, root in enumerate(self._roots):
            each = [root.of(rows_of(rows)) for of, rows_of in self.readings if of is root]
            units = each[0] if len(each) == 1 else np.unique(np.concatenate(each))
            found.append(units * len(self._roots) + k)
        return _merged(found)

    def missing(self, units: Numbers) -> Numbers:
        count = len(self._roots)
        return _merged(
            [root.missing(mine) * count + k for k, (root, mine) in enumerate(self.split(units))]
        )

    def bring(self, units: Numbers) -> Bringing:
        begun = _All(self)
        try:
            for root, mine in self.split(units):
                begun.parts.append(root.bring(mine))
        except BaseException:
            begun.release()
            raise
        return begun

    def expect(self, units: Numbers, next_use: NDArray[np.int64]) -> None:
        for k, root in enumerate(self._roots):
            mine = units % len(self._roots) == k
            root.expect(units[mine] // len(self._roots), next_use[mine])

    def split(self, units: Numbers) -> list[tuple[Units, Numbers]]:
        count = len(self._roots)
        return [(root, units[units % count == k] // count) for k, root in enumerate(self._roots)]


class _All:
    """Units of several kinds that are on their way."""

    def __init__(self, units: _Composed) -> None:
        self._units = units
        self.parts: list[Bringing] = []

    @property
    def is_there(self) -> bool:
        return all(part.is_there for part in self.parts)

    def wait(self, units: Numbers | None = None) -> None:
        if units is None:
            for part in self.parts:
                part.wait()
            return
        for part, (_, mine) in zip(self.parts, self._units.split(units), strict=True):
            part.wait(mine)

    def release(self) -> None:
        for part in self.parts:
            part.release()


def _merged(parts: Sequence[Numbers]) -> Numbers:
    return parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))

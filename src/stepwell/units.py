"""Rows that are far away: in which units of a file they are, and how these are brought.

A source whose rows are memory has none of this. One whose files are behind a URL, or on a disk and
not in memory, answers `Source._units` with a `Units`; a take brings what it needs by itself, and a
loader, which knows what it will take, has it brought before.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from stepwell.source import Rows

Numbers = NDArray[np.int64]
"""Units by their numbers, ascending, each once."""


class Bringing(Protocol):
    """Units that are on their way, and stay once they are there, until `release`."""

    def wait(self) -> None:
        """Wait until all of them are there; raises what went wrong on the way."""

    def release(self) -> None:
        """Let them go: others may take their room. Also of what never came."""


class Units(Protocol):
    """The small pieces of files in which rows are brought, 4 KiB or so each."""

    unit_bytes: int

    def of(self, rows: "Rows") -> Numbers:
        """The units that a take of these rows reads."""

    def missing(self, units: Numbers) -> Numbers:
        """Those of them that are neither here nor on their way."""

    def bring(self, units: Numbers) -> Bringing:
        """Begin to bring those that are missing, neighbours in one read, and keep all of them."""

    def expect(self, units: Numbers, next_use: NDArray[np.int64]) -> None:
        """When each is needed next, in steps of whoever plans; what is needed last goes first."""


class Moved:
    """The units of a view whose rows are those of a base under other numbers."""

    def __init__(self, base: Units, rows_of: "Callable[[Rows], Rows]") -> None:
        self._base, self._rows_of, self.unit_bytes = base, rows_of, base.unit_bytes
        self.missing, self.bring, self.expect = base.missing, base.bring, base.expect

    def of(self, rows: "Rows") -> Numbers:
        return self._base.of(self._rows_of(rows))


class Several:
    """The units of n sources side by side or one behind the other: u * n + k for unit u of part k.

    `rows_of` gives the rows that each part takes; a part in memory has no units.
    """

    def __init__(
        self, parts: Sequence[Units | None], rows_of: "Callable[[Rows], Iterable[Rows]]"
    ) -> None:
        self._parts, self._rows_of = parts, rows_of
        self.unit_bytes = max(part.unit_bytes for part in parts if part is not None)

    @classmethod
    def of_parts(
        cls, parts: Sequence[Units | None], rows_of: "Callable[[Rows], Iterable[Rows]]"
    ) -> "Several | None":
        """None where all parts are in memory."""
        return None if all(part is None for part in parts) else cls(parts, rows_of)

    def of(self, rows: "Rows") -> Numbers:
        count, found = len(self._parts), [np.empty(0, np.int64)]
        for k, (part, mine) in enumerate(zip(self._parts, self._rows_of(rows), strict=True)):
            if part is not None and len(mine):
                found.append(part.of(mine) * count + k)
        return np.sort(np.concatenate(found))

    def missing(self, units: Numbers) -> Numbers:
        count = len(self._parts)
        found = [part.missing(mine) * count + k for k, part, mine, _ in self._each(units)]
        return np.sort(np.concatenate([np.empty(0, np.int64), *found]))

    def bring(self, units: Numbers) -> Bringing:
        return _AllOf([part.bring(mine) for _, part, mine, _ in self._each(units)])

    def expect(self, units: Numbers, next_use: NDArray[np.int64]) -> None:
        for _, part, mine, places in self._each(units):
            part.expect(mine, next_use[places])

    def _each(self, units: Numbers) -> Iterator[tuple[int, Units, Numbers, NDArray[np.bool]]]:
        count = len(self._parts)
        for k, part in enumerate(self._parts):
            places = units % count == k
            if part is not None and places.any():
                yield k, part, units[places] // count, places


class _AllOf:
    def __init__(self, parts: Sequence[Bringing]) -> None:
        self._parts = parts

    def wait(self) -> None:
        for part in self._parts:
            part.wait()

    def release(self) -> None:
        for part in self._parts:
            part.release()

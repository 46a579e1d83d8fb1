"""Rows that are far away: in which units of a file they are, and how these are brought.

A source whose rows are memory has none of this. One whose files are behind a URL, or on a disk and
not in memory, answers `Source._units` with a `Units`; a take brings what it needs by itself, and a
loader, which knows what it will take, has it brought before.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

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

    def of(self, rows: Rows) -> Numbers:
        """The units that a take of these rows reads."""

    def missing(self, units: Numbers) -> Numbers:
        """Those of them that are neither here nor on their way."""

    def bring(self, units: Numbers) -> Bringing:
        """Begin to bring those that are missing, neighbours in one read, and keep all of them."""

    def expect(self, units: Numbers, next_use: NDArray[np.int64]) -> None:
        """When each is needed next, in steps of whoever plans; what is needed last goes first."""

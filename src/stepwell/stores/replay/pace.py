"""How much of the machine the writing thread takes from the agent.

While nobody waits for it, it works alone and lets others have the interpreter every few dozen
microseconds: a thread that asks for the GIL would otherwise wait until the switch interval, five
milliseconds, is over. When the queue fills or someone waits for a commit, it hurries.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["HURRIED", "Pace"]

Item = TypeVar("Item")
_AT_ONCE = 256  # that are looked at before others get the interpreter
_REST_S = 50e-6  # long enough for a thread that waits for the GIL to wake up


class Pace:
    """Asked by whoever works for long; `hurried` says whether anybody waits."""

    def __init__(self, hurried: Callable[[], bool]) -> None:
        self._hurried = hurried

    @property
    def hurried(self) -> bool:
        return self._hurried()

    def rest(self) -> None:
        """Let the agent go on, unless it is waiting for us."""
        if not self._hurried():
            time.sleep(_REST_S)

    def slowly(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, with a rest after every few."""
        for number, item in enumerate(items, 1):
            yield item
            if number % _AT_ONCE == 0:
                self.rest()


HURRIED = Pace(lambda: True)

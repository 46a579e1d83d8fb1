"""Items that are handed over to the disk: scalars here, arrays in buffers."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from stepwell import _core
from stepwell.stores.replay.channels import KINDS, Channel

Item = TypeVar("Item")
BATCH_STEPS = 512  # of a commit, at most
_AT_ONCE = 256  # that are looked at before others get the interpreter
_REST_S = 50e-6  # long enough for a thread that waits for the GIL to wake up


class Rows(NamedTuple):
    """How many rows of each kind there are."""

    frames: int
    observations: int
    actions: int

    def of(self, kind: str) -> int:
        return self[KINDS.index(kind)]


def rows_after(item: "Step | Ending") -> Rows:
    """Rows that were handed over up to an item."""
    return Rows(item.frames, item.observations, item.actions)


class Inlet:
    """A channel, and the memory in which its rows wait."""

    __slots__ = ("buffer", "channel", "dtype", "kind", "row_bytes", "shape", "whole")

    def __init__(self, channel: Channel, first: int) -> None:
        """Rows from number `first` of the dataset on."""
        self.channel = channel
        self.kind = channel.kind
        self.dtype = channel.field.dtype
        self.shape = channel.field.shape
        self.whole = not self.shape and self.dtype == np.int64  # as Python's ints are
        self.row_bytes = channel.field.row_bytes
        self.buffer = _core.RowBuffer(self.row_bytes, first)


class Step(NamedTuple):
    """A step on its way.

    Its scalars are its own members, not in tuples: thousands of steps wait at a time, and
    Python's garbage collector, which may run in any call of the agent's, looks at every tuple.
    """

    episode_id: str
    step_index: int
    action: Any
    reward: float
    terminated: int
    truncated: int
    frame_ref: str | None
    obs_ref: str | None
    info: bytes | None
    agent_id: str | None
    time: str | float
    episode: int
    frame_row: int
    obs_row: int
    action_row: int
    """-1 for none."""
    frames: int
    observations: int
    actions: int
    """Rows of each kind that were handed over, those of this step too."""


class Ending(NamedTuple):
    """The end of an episode, with what was seen after its last step."""

    episode_id: str
    episode: int
    agent_id: str | None
    step_index: int
    """Steps of the episode, dropped ones too."""
    terminated: int
    truncated: int
    final_obs_ref: str | None
    time: str | float
    frames: int
    observations: int
    actions: int


class Counters(NamedTuple):
    """Counts of the steps of a run, as the database keeps them."""

    enqueued: int
    dropped: int
    lag_steps: int
    lag_seconds: float


class Pace:
    """How much of the machine the writing thread takes from the agent; `hurried` is whether
    anybody waits.

    While nobody does, it works alone and lets others have the interpreter every few dozen
    microseconds: a thread that wants the GIL would otherwise wait until the switch interval,
    five milliseconds, is over. When the queue fills or someone waits for a commit, it hurries.
    """

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

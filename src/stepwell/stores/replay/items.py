"""What is handed over on the way to the disk."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell.stores.replay.channels import Channel

__all__ = ["Counters", "Ending", "Payload", "Rows", "Step"]

Payload = bytes | NDArray[np.uint8]
"""The bytes of an array."""


class Rows(NamedTuple):
    """How many rows of each kind were handed over so far."""

    frames: int
    observations: int
    actions: int


class Step(NamedTuple):
    """A step on its way.

    Its numbers are its own and not in tuples of theirs: thousands of steps wait at a time, and
    Python's garbage collector, which may run in any call of the agent's, looks at every tuple.
    """

    episode: int
    agent_id: str | None
    step_index: int
    action: Any
    reward: float
    terminated: bool
    truncated: bool
    frame_ref: str | None
    obs_ref: str | None
    info: bytes | None
    time: float
    acted: bool
    frames: int
    observations: int
    actions: int
    """Rows of each kind that were handed over before it."""
    channels: tuple[Channel, ...]
    data: tuple[Payload, ...]
    """Its arrays, one of each channel."""

    @property
    def places(self) -> tuple[int, int, int]:
        """Rows of frame, observation and action; -1 for none."""
        return (
            -1 if self.frame_ref is None else self.frames,
            -1 if self.obs_ref is None else self.observations,
            self.actions if self.acted else -1,
        )

    @property
    def after(self) -> Rows:
        return Rows(
            self.frames + (self.frame_ref is not None),
            self.observations + (self.obs_ref is not None),
            self.actions + self.acted,
        )


class Ending(NamedTuple):
    """The end of an episode, with what was seen after its last step."""

    episode: int
    agent_id: str | None
    step_index: int
    """Steps of the episode, dropped ones too."""
    terminated: bool
    truncated: bool
    final_obs_ref: str | None
    time: float
    channels: tuple[Channel, ...]
    data: tuple[Payload, ...]
    after: Rows


class Counters(NamedTuple):
    """What became of the steps of a run, as the database keeps it."""

    enqueued: int
    dropped: int
    lag_steps: int
    lag_seconds: float

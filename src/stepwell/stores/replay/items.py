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
    """A step on its way."""

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
    places: tuple[int, int, int]
    """Rows of frame, observation and action; -1 for none."""
    payloads: list[tuple[Channel, Payload]]
    after: Rows


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
    payloads: list[tuple[Channel, Payload]]
    after: Rows


class Counters(NamedTuple):
    """What became of the steps of a run, as the database keeps it."""

    enqueued: int
    dropped: int
    lag_steps: int
    lag_seconds: float

"""Records the steps of a run: the caller hands them over, a thread puts them on the disk."""

import json
import math
import os
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import SchemaError
from stepwell.stores.replay.arrays import CODECS
from stepwell.stores.replay.channels import ACTIONS, FRAMES, OBSERVATIONS, Channel, Tree, leaves
from stepwell.stores.replay.disk import RunDisk
from stepwell.stores.replay.items import Ending, Payload, Step
from stepwell.stores.replay.pipeline import Pipeline
from stepwell.stores.replay.refs import check_run_id
from stepwell.stores.replay.slots import LEAST_BYTES

__all__ = ["ReplayWriter", "StepRefs"]


_NUMBERS = (np.ndarray, np.generic, int, float)
_Arrays = Sequence[tuple[Channel, NDArray[Any]]]


class StepRefs(NamedTuple):
    """Where a step is, or will be once it is written."""

    episode_id: str
    step_index: int
    frame_ref: str | None
    obs_ref: str | None
    action_ref: str | None


class _Stream:
    """Where an agent is in its episode."""

    __slots__ = ("episode_id", "number", "over", "steps")

    def __init__(self, number: int, episode_id: str) -> None:
        self.number = number
        self.episode_id = episode_id
        self.steps = 0
        self.over = False


class ReplayWriter:
    """Writes one run below `root`, or goes on with one; `close` it, or use it in a `with`.

    Steps are handed over, and a thread writes them: `flush` waits until everything is on the disk;
    by itself a step waits `flush_every` seconds at most. When `queue_bytes` are waiting,
    `record_step` waits too, or, with `when_full="drop"`, the step is dropped and counted.

    Any thread may call it. A signal handler may too, but gets a `RuntimeError` when the signal came
    in the middle of another call.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        run_id: str,
        *,
        codec: str = "zstd",
        when_full: str = "block",
        queue_bytes: int = 128 << 20,
        flush_every: float = 0.5,
    ) -> None:
        check_run_id(run_id)
        if codec not in CODECS:
            raise ValueError(f"codec: expected one of {', '.join(CODECS)}, got {codec!r}")
        if when_full not in ("block", "drop"):
            raise ValueError(f"when_full: expected 'block' or 'drop', got {when_full!r}")
        if queue_bytes < 1:
            raise ValueError(f"queue_bytes: expected at least 1, got {queue_bytes}")
        if not flush_every > 0:
            raise ValueError(f"flush_every: expected more than 0 seconds, got {flush_every}")
        self.run_id = run_id
        self.root = Path(root).absolute()  # wherever the process goes later
        self._codec = codec
        self._refs = f"h5://{run_id}/"
        self._last_channels: tuple[Channel, ...] = ()
        disk = RunDisk(self.root, run_id)
        self._channels = {channel.name: channel for channel in disk.channels}
        self._next_episode = disk.next_episode
        self._streams: dict[str | None, _Stream] = {}
        self._pipeline = Pipeline(disk, when_full == "drop", queue_bytes, flush_every)
        self._finalizer = weakref.finalize(self, _abandoned, self._pipeline, run_id)

    def record_step(
        self,
        *,
        reward: float,
        observation: Tree = None,
        action: Tree = None,
        terminated: bool = False,
        truncated: bool = False,
        frame: Any = None,
        info: Mapping[str, Any] | None = None,
        agent_id: str | None = None,
    ) -> StepRefs | None:
        """Hand over a step: what the agent saw, what it did, and what came of it.

        Everything is copied before it returns. Each `agent_id` has episodes of its own. `info`
        is kept as JSON, for people: of what JSON does not know, NumPy's numbers and arrays of up
        to 256 become numbers, anything else its `str`; keys that are no text, number or None are
        left out. Returns None when the step was dropped. Raises `SchemaError` when an array is
        not like those of the steps before; nothing is recorded then.
        """
        now = time.time()
        number = float(reward)
        if not math.isfinite(number):
            raise ValueError(f"reward: expected a finite number, got {number}")
        text = _json(info) if info else None
        if agent_id is not None:
            _check_agent(agent_id)
        terminated, truncated = bool(terminated), bool(truncated)
        pipeline = self._pipeline
        with pipeline.turn():
            pipeline.check()
            given = self._copied(observation, action, frame)
            if pipeline.has_room(given.size):
                return self._put_step(given, number, terminated, truncated, text, agent_id, now)
        kept = pipeline.wait_for_room(given.size)
        with pipeline.lock:
            pipeline.check()  # again: it may have been closed meanwhile
            if kept:
                return self._put_step(given, number, terminated, truncated, text, agent_id, now)
            self._drop_step(given, terminated, truncated, agent_id, now)
            return None

    def _put_step(
        self,
        given: "_Given",
        reward: float,
        terminated: bool,
        truncated: bool,
        info: bytes | None,
        agent_id: str | None,
        now: float,
    ) -> StepRefs:
        stream, pipeline = self._stream(agent_id), self._pipeline
        frames, observations, actions = pipeline.rows
        frame_ref = f"{self._refs}{FRAMES}/{frames}" if given.framed else None
        obs_ref = f"{self._refs}{OBSERVATIONS}/{observations}" if given.observed else None
        action_ref = f"{self._refs}{ACTIONS}/{actions}" if given.acted else None
        index, stream.steps = stream.steps, stream.steps + 1
        stream.over = terminated or truncated
        pipeline.put(
            Step(
                stream.number,
                agent_id,
                index,
                action_ref if given.number is None else given.number,
                reward,
                terminated,
                truncated,
                frame_ref,
                obs_ref,
                info,
                now,
                given.acted,
                frames,
                observations,
                actions,
                given.channels,
                given.data,
            ),
            given.size,
        )
        return StepRefs(stream.episode_id, index, frame_ref, obs_ref, action_ref)

    def _drop_step(
        self, given: "_Given", terminated: bool, truncated: bool, agent_id: str | None, now: float
    ) -> None:
        stream = self._stream(agent_id)
        stream.steps += 1
        stream.over = terminated or truncated
        self._pipeline.slots.give_back(given.data)
        self._pipeline.drop()
        if stream.over:
            self._put_ending(stream, _NOTHING, terminated, truncated, agent_id, now)

    def end_episode(self, *, observation: Tree = None, agent_id: str | None = None) -> None:
        """End an agent's episode, with what it saw last; the next step begins another.

        A step that was terminated or truncated has ended it already: this adds the observation.
        """
        with self._pipeline.turn():
            self._pipeline.check()
            stream = self._streams.get(agent_id)
            if stream is None:
                if observation is not None:
                    raise ValueError("there is no episode that this observation could end")
                return
            seen = self._copied(observation, None, None)
            stream.over = True  # before it is said, for no step may follow that
            self._put_ending(stream, seen, False, False, agent_id, time.time())
            del self._streams[agent_id]

    def flush(self) -> None:
        """Return when every step recorded so far is on the disk."""
        self._pipeline.flush()

    def close(self) -> None:
        """Write what is left and end. Episodes that did not end stay as they are."""
        try:
            self._pipeline.close()
        finally:
            if self._pipeline.ended:
                self._finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ReplayWriter({str(self.root)!r}, {self.run_id!r})"

    def _stream(self, agent_id: str | None) -> _Stream:
        stream = self._streams.get(agent_id)
        if stream is None or stream.over:
            number, self._next_episode = self._next_episode, self._next_episode + 1
            stream = self._streams[agent_id] = _Stream(number, f"{self.run_id}-ep{number:04d}")
        return stream

    def _copied(self, observation: Tree, action: Tree, frame: Any) -> "_Given":
        """Copies of what a step carries. New channels count once all of it has been accepted."""
        new: dict[str, Channel] = {}
        observed = self._arrays(OBSERVATIONS, observation, new)
        acted = self._arrays(ACTIONS, action, new)
        framed = self._arrays(FRAMES, frame, new)
        if new:
            self._channels |= new
        arrays = (*observed, *acted, *framed)
        channels = tuple([channel for channel, _ in arrays])
        if channels == self._last_channels:
            channels = self._last_channels  # steps share it while they are alike
        self._last_channels = channels
        copy = self._pipeline.slots.copy
        data = tuple(
            [array.tobytes() if array.nbytes < LEAST_BYTES else copy(array) for _, array in arrays]
        )
        return _Given(
            channels,
            data,
            sum(map(len, data)),
            bool(observed),
            bool(acted),
            bool(framed),
            _number(*acted[0]) if len(acted) == 1 else None,
        )

    def _arrays(self, kind: str, tree: Tree, new: dict[str, Channel]) -> _Arrays:
        if tree is None:
            return ()
        channel = self._channels.get(kind)
        if channel is not None:
            if type(tree) is np.ndarray:
                return ((channel, channel.fitting(tree)),)
            if type(tree) is int and -(2**63) <= tree < 2**63:
                return ((channel, channel.fitting(np.int64(tree))),)  # sooner than by asarray
            if isinstance(tree, _NUMBERS):
                return ((channel, channel.fitting(np.asarray(tree))),)
        found = list(leaves(kind, tree))
        known = [name for name in self._channels if name == kind or name.startswith(kind + "/")]
        if not known:
            if kind == FRAMES:
                _check_frame(found)
            new |= {name: Channel.like(name, array, self._codec) for name, array in found}
        else:
            found.sort(key=lambda leaf: known.index(leaf[0]) if leaf[0] in known else -1)
            if known != [name for name, _ in found]:
                raise SchemaError(f"{kind}: expected {known}, got {[name for name, _ in found]}")
        channels = [self._channels.get(name) or new[name] for name, _ in found]
        return [(c, c.fitting(array)) for c, (_, array) in zip(channels, found, strict=True)]

    def _put_ending(
        self,
        stream: _Stream,
        seen: "_Given",
        terminated: bool,
        truncated: bool,
        agent_id: str | None,
        now: float,
    ) -> None:
        row = self._pipeline.rows.observations
        ref = f"{self._refs}{OBSERVATIONS}/{row}" if seen.observed else None
        ending = Ending(
            stream.number,
            agent_id,
            stream.steps,
            terminated,
            truncated,
            ref,
            now,
            seen.channels,
            seen.data,
            self._pipeline.rows._replace(observations=row + seen.observed),
        )
        self._pipeline.put(ending, seen.size)


class _Given(NamedTuple):
    """Copies of the arrays that came with a step."""

    channels: tuple[Channel, ...]
    data: tuple[Payload, ...]
    size: int
    observed: bool
    acted: bool
    framed: bool
    number: int | float | None
    """The action, when it is a single number that SQLite can hold."""


_NOTHING = _Given((), (), 0, False, False, False, None)


def _abandoned(pipeline: Pipeline, run_id: str) -> None:
    if pipeline.own:
        try:
            message = f"the writer of run {run_id!r} was not closed"
            warnings.warn(message, ResourceWarning, stacklevel=2)
        finally:
            pipeline.close()


def _check_agent(agent_id: str | None) -> None:
    if agent_id is None:
        return
    if not isinstance(agent_id, str):
        raise TypeError(f"agent_id: expected text, got {type(agent_id).__name__}")
    try:
        agent_id.encode()
    except UnicodeEncodeError:
        raise ValueError(f"agent_id: expected text, got {agent_id!r}") from None


def _check_frame(found: list[tuple[str, Any]]) -> None:
    name, array = found[0]
    if len(found) > 1 or name != FRAMES or array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise SchemaError(
            f"frame: expected uint8 (height, width, channels), got {array.dtype} {array.shape}"
        )


def _number(channel: Channel, array: NDArray[Any]) -> int | float | None:
    if array.ndim or channel.name != ACTIONS:
        return None
    value: int | float = array.item()
    fits = isinstance(value, float) or -(2**63) <= value < 2**63
    return value if fits and value == value else None


def _json(info: Mapping[str, Any]) -> bytes:
    if not isinstance(info, Mapping):
        raise TypeError(f"info: expected a dict, got {type(info).__name__}")
    try:
        return _ENCODER.encode(dict(info)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"info: {error}") from None


def _described(value: Any) -> Any:
    """What JSON does not know: NumPy's numbers, small arrays, and a word for anything else."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size <= 256):
        plain = value.tolist()
        return plain if not isinstance(plain, np.generic) else str(plain)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    return str(value)


_ENCODER = json.JSONEncoder(default=_described, skipkeys=True)

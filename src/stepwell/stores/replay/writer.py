"""Records the steps of a run: the caller hands them over, a thread puts them on the disk."""

import atexit
import json
import math
import operator
import os
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepwell.errors import SchemaError
from stepwell.files.codecs import codec_names
from stepwell.stores.replay.channels import (
    ACTIONS,
    FRAMES,
    OBSERVATIONS,
    Channel,
    Tree,
    as_array,
    as_json,
    as_scalar,
    check_frame,
    leaves,
)
from stepwell.stores.replay.database import database_path, find_episode, reading
from stepwell.stores.replay.disk import RunDisk, committed_steps, is_left_over
from stepwell.stores.replay.items import Ending, Inlet, Step
from stepwell.stores.replay.layout import array_path, is_replay
from stepwell.stores.replay.pipeline import Pipeline
from stepwell.stores.replay.scalars import is_scalar, require_hdf5
from stepwell.writer import Mode, Writer, local_path

_NUMBERS = (np.ndarray, np.generic, int, float)
_MAX_SECONDS = 2**63 / 1e6  # of which NumPy counts microseconds
_Arrays = Sequence[tuple[Inlet, Any]]
_made = tuple.__new__  # what a named tuple's own function does besides takes longer


class StepRefs(NamedTuple):
    """Where a step is, or will be once it is written."""

    episode_id: str
    step_index: int
    frame_ref: str | None
    obs_ref: str | None
    action_ref: str | None


@dataclass(slots=True)
class _Stream:
    """Where an agent is in its episode."""

    number: int
    episode_id: str
    steps: int = 0
    over: bool = False


class ReplayWriter(Writer):
    """Writes one run below `root`; `close` it, or use it in a `with`.

    `mode` is about the run, not the root: "x" refuses one that has steps, "a" goes on with it.
    Steps are handed over, and a thread writes them: `commit` waits until everything is on the disk;
    by itself a step waits `flush_every` seconds at most. When `queue_bytes` are waiting,
    `record_step` waits too, or, with `when_full="drop"`, the step is dropped and counted.
    `action_names` are what the actions 0, 1, 2, … are called, for people.

    A block that fails commits what was handed over, for a crash is when the last steps matter, and
    ends the episodes that were going on, neither terminated nor truncated; there is no rollback.

    Any thread may call it. A signal handler may too, but gets a `RuntimeError` when the signal came
    in the middle of another call.
    """

    noun = "a replay store"

    def __init__(
        self,
        root: str | os.PathLike[str],
        run_id: str,
        *,
        mode: Mode = "x",
        compress: str = "zstd",
        when_full: str = "block",
        queue_bytes: float = 128 << 20,
        flush_every: float = 0.5,
        action_names: Sequence[str] = (),
    ) -> None:
        check_compress(compress)
        if when_full not in ("block", "drop"):
            raise ValueError(f"when_full: expected 'block' or 'drop', got {when_full!r}")
        if not 1 <= queue_bytes < math.inf:
            raise ValueError(f"queue_bytes: expected at least 1, got {queue_bytes}")
        if not flush_every > 0:
            raise ValueError(f"flush_every: expected more than 0 seconds, got {flush_every}")
        self.run_id = run_id
        self.root = local_path(root, self.noun)
        self._root = array_path(self.root, run_id)  # what sentences call it
        self._compress = compress
        self._action_names = tuple(map(str, action_names))
        self._refs = f"h5://{run_id}/"
        with suppress(ImportError):  # now, and not in a step
            require_hdf5()
        disk = RunDisk(self.root, run_id, mode)
        self._next_episode, self._taken = disk.next_episode, disk.names_given
        self._scalar = disk.is_scalar
        self._streams: dict[str | None, _Stream] = {}
        self._named: dict[str, _Stream] = {}
        self._names = False  # whether it has given an episode its name
        self._ready(None)  # the disk has the lock of the run
        self._pipeline = Pipeline(
            disk,
            self._turn_lock,
            drops=when_full == "drop",
            queue_bytes=int(queue_bytes),
            flush_every=flush_every,
        )
        self._inlets, self._queue = self._pipeline.inlets, self._pipeline.queue
        self._finalizer = weakref.finalize(self, _abandoned, self._pipeline, run_id, os.getpid())

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
        episode_id: str | None = None,
        step_index: int | None = None,
        timestamp: str | float | datetime | None = None,
    ) -> StepRefs | None:
        """Hand over a step: observation, action, reward and the end of the episode.

        Everything is copied before it returns. Each `agent_id` has episodes of its own. `info`
        is kept as JSON, for people: of what JSON does not know, NumPy's numbers and arrays of up
        to 256 become numbers, anything else its `str`; keys that are no text, number or None are
        left out. Returns None when the step was dropped. Raises `SchemaError` when an array is
        not like those of the steps before; nothing is recorded then.

        Episodes, steps and times are named here unless the caller does: `episode_id` begins an
        episode of that name, or goes on with it, `step_index` is at least that of the step before
        plus one, and `timestamp` is kept as it is, or as UTC where it is seconds or a `datetime`
        that has a time zone.
        """
        now = time.time() if timestamp is None else _moment(timestamp)
        number = float(reward)
        if not math.isfinite(number):
            raise ValueError(f"reward: expected a finite number, got {number}")
        text = as_json("info", info, _ENCODER) if info else None
        if agent_id is not None:
            _check_text("agent_id", agent_id)
        ended, cut = 1 if terminated else 0, 1 if truncated else 0
        pipeline, size, waited = self._pipeline, 0, False
        # In one piece: an agent has emptied the caches since its last step, and each function on
        # the way would have to be fetched again.
        while True:
            if waited:
                pipeline.wait_for_room(size)
            with self._turn():
                if pipeline.refuses:
                    pipeline.check()
                new: list[Inlet] = []
                observed = () if observation is None else self._fit(OBSERVATIONS, observation, new)
                acted = () if action is None else self._fit(ACTIONS, action, new)
                framed = () if frame is None else self._fit(FRAMES, frame, new)
                if new:  # which counts once all of the step has been accepted
                    self._open_inlets(new)
                size = 0
                for inlet, _ in (*observed, *acted, *framed):
                    size += inlet.row_bytes
                room = waited or pipeline.has_room(size)
                if not room and not pipeline.drops:
                    waited = True
                    continue
                stream = self._streams.get(agent_id)
                if episode_id is not None:
                    stream = self._named_episode(agent_id, episode_id)
                elif stream is None or stream.over:
                    stream = self._begin_episode(agent_id)
                index = stream.steps
                if step_index is not None:
                    index = _next_index(step_index, index)
                # Rows that nobody counts yet: if this is interrupted, the next step's replace them.
                last = self._queue[-1] if self._queue else pipeline.last
                frames, observations, actions = last[-3:]
                frame_row = obs_row = action_row = -1
                frame_ref = obs_ref = action_ref = value = None
                if framed and room:
                    frame_row, frame_ref = frames, f"{self._refs}{FRAMES}/{frames}"
                    for inlet, array in framed:
                        inlet.buffer.put(frames, array)
                    frames += 1
                if observed and room:
                    obs_row, obs_ref = observations, f"{self._refs}{OBSERVATIONS}/{observations}"
                    for inlet, array in observed:
                        inlet.buffer.put(observations, array)
                    observations += 1
                if acted and room:
                    action_row, action_ref = actions, f"{self._refs}{ACTIONS}/{actions}"
                    for inlet, array in acted:
                        inlet.buffer.put(actions, array)
                    actions += 1
                    value = array if type(array) is int else _number(acted)
                    if self._scalar and value is None:
                        self._need_file()
                    action_ref = None if self._scalar else action_ref
                stream.steps = index + 1
                stream.over = bool(ended or cut)
                if not room:
                    pipeline.drop()
                    if stream.over:
                        self._put_ending(stream, (), ended, cut, agent_id, now)
                    return None
                step = (
                    stream.episode_id, index, action_ref if value is None else value, number, ended,
                    cut, frame_ref, obs_ref, text, agent_id, now, stream.number, frame_row, obs_row,
                    action_row, frames, observations, actions,
                )  # fmt: skip
                pipeline.put(_made(Step, step), size)
                return StepRefs(stream.episode_id, index, frame_ref, obs_ref, action_ref)

    def end_episode(
        self,
        *,
        observation: Tree = None,
        agent_id: str | None = None,
        episode_id: str | None = None,
        timestamp: str | float | datetime | None = None,
    ) -> None:
        """End an agent's episode, or that of a name, with what it saw last; the next step begins
        another.

        A step that was terminated or truncated has ended it already: this adds the observation,
        unless the queue is full and steps are dropped.
        """
        now = time.time() if timestamp is None else _moment(timestamp)
        size, waited = 0, False
        while True:
            if waited:
                self._pipeline.wait_for_room(size)
            with self._turn():
                self._pipeline.check()
                stream = self._streams.get(agent_id)
                if episode_id is not None and (stream is None or stream.episode_id != episode_id):
                    stream = self._named_episode(agent_id, episode_id)
                if stream is None:
                    if observation is not None:
                        raise ValueError("there is no episode that this observation could end")
                    return
                new: list[Inlet] = []
                seen = () if observation is None else self._fit(OBSERVATIONS, observation, new)
                if new:
                    self._open_inlets(new)
                size = sum(inlet.row_bytes for inlet, _ in seen)
                if not waited and not self._pipeline.has_room(size):
                    if not self._pipeline.drops:
                        waited = True
                        continue
                    self._pipeline.hurry()
                    seen = ()
                stream.over = True  # before it is handed over, for no step may follow that
                self._put_ending(stream, seen, 0, 0, agent_id, now)
                del self._streams[agent_id]
                return

    def commit(self) -> None:
        """Return when every step recorded so far is on the disk."""
        self._commit()

    def rollback(self) -> None:
        """Not of this writer: steps that were handed over are on their way to the disk."""
        raise TypeError("a replay writer has no rollback: steps that were handed over stay")

    # The methods of `Writer`. Whoever waits for the thread must not hold the lock meanwhile.

    def _commit(self) -> None:
        self._turn()  # raises where nobody may wait
        self._pipeline.commit()

    def _rollback(self) -> None:
        """End the episodes that are going on, without what would have been seen next."""
        with self._turn():
            if self._pipeline.refuses:
                return
            for agent_id, stream in self._streams.items():
                if not stream.over:
                    stream.over = True
                    self._put_ending(stream, (), 0, 0, agent_id, time.time())

    def _release(self) -> None:
        self._turn()  # as above
        try:
            self._pipeline.close()
        finally:
            if self._pipeline.ended:
                self._finalizer.detach()

    def _end(self, *, commit: bool) -> None:
        """Write what is left and end. Episodes that did not end stay as they are, in a commit."""
        if self._process != os.getpid():
            return
        try:
            if not commit:
                self._rollback()
        finally:
            self._release()

    def __del__(self, is_ending: Any = None) -> None:
        """The finalizer does it, which also runs when the interpreter ends."""

    @classmethod
    def _holds_commits(cls, root: Path) -> bool:
        return is_replay(root) and committed_steps(root) > 0

    @classmethod
    def _is_left_over(cls, path: Path) -> bool:
        return is_left_over(path)

    def __repr__(self) -> str:
        return f"ReplayWriter({str(self.root)!r}, {self.run_id!r})"

    def _begin_episode(self, agent_id: str | None) -> _Stream:
        self._names = True
        number = max(self._next_episode, self._taken)
        self._next_episode = number + 1
        stream = self._streams[agent_id] = _Stream(number, f"{self.run_id}-ep{number:04d}")
        return stream

    def _named_episode(self, agent_id: str | None, name: str) -> _Stream:
        """An agent's episode of this name, which the store may have. Raises `ValueError` for one
        that has ended."""
        stream = self._streams.get(agent_id)
        if stream is None or stream.episode_id != name:
            stream = self._named[name] = self._named.get(name) or self._find_episode(name)
            self._streams[agent_id] = stream
        if stream.over:
            raise ValueError(f"episode {name!r} has ended")
        return stream

    def _find_episode(self, name: str) -> _Stream:
        _check_text("episode_id", name)
        with reading(self.root) as database:
            found = find_episode(database, name, database_path(self.root))
            sql = "SELECT max(step_index) FROM steps WHERE episode_id = ?"
            (last,) = database.execute(sql, (name,)).fetchone()
        if found is None:
            own = name.removeprefix(f"{self.run_id}-ep")
            number, self._next_episode = self._next_episode, self._next_episode + 1
            if own != name and own.isdecimal():  # so that no other gets that name
                if self._names:
                    raise ValueError(f"episode_id: {name!r} is a name that this writer gives")
                self._taken = max(self._taken, int(own) + 1)
            return _Stream(number, name)
        if found.run_id != self.run_id:
            raise ValueError(
                f"episode {name!r} is one of the run {found.run_id!r}, not {self.run_id!r}"
            )
        return _Stream(found.number, name, 0 if last is None else last + 1, found.over)

    def _fit(self, kind: str, tree: Tree, new: list[Inlet]) -> _Arrays:
        """The arrays of a kind in a step, with their inlets. `new` are inlets that are not open.

        Raises `SchemaError` when it is not like that of the steps before.
        """
        inlet = self._inlets.get(kind)
        if inlet is not None:
            # NumPy has one object for each plain dtype, and the objects are compared in no time.
            if type(tree) is np.ndarray:
                if tree.dtype is inlet.dtype and tree.shape == inlet.shape:
                    return ((inlet, tree),)
                return ((inlet, inlet.channel.fitting(tree)),)
            if type(tree) is int and inlet.whole and -(2**63) <= tree < 2**63:
                return ((inlet, tree),)
            if isinstance(tree, _NUMBERS):
                return ((inlet, inlet.channel.fitting(as_array(kind, tree))),)
        found = dict(leaves(kind, tree))
        known = {i.channel.name: i for i in self._inlets.values() if i.kind == kind}
        if not known:
            if kind == FRAMES:
                check_frame(found)
            row = self._pipeline.rows.of(kind)
            names = self._action_names if kind == ACTIONS else ()
            channels = [Channel.like(*each, self._compress, names) for each in found.items()]
            known = {channel.name: Inlet(channel, row) for channel in channels}
            new += known.values()
        elif known.keys() != found.keys():
            raise SchemaError(f"{kind}: expected {list(known)}, got {list(found)}")
        return [(inlet, inlet.channel.fitting(found[name])) for name, inlet in known.items()]

    def _open_inlets(self, new: list[Inlet]) -> None:
        if not all(is_scalar(inlet.channel) for inlet in new):
            self._need_file()
        self._pipeline.open(new)

    def _need_file(self) -> None:
        require_hdf5()
        self._scalar = False

    def _put_ending(
        self,
        stream: _Stream,
        seen: _Arrays,
        terminated: int,
        truncated: int,
        agent_id: str | None,
        now: str | float,
    ) -> None:
        rows, ref, size = self._pipeline.rows, None, 0
        if seen:
            ref = f"{self._refs}{OBSERVATIONS}/{rows.observations}"
            for inlet, array in seen:
                inlet.buffer.put(rows.observations, array)
                size += inlet.row_bytes
            rows = rows._replace(observations=rows.observations + 1)
        about = (stream.episode_id, stream.number, agent_id, stream.steps, terminated, truncated)
        ending = Ending(*about, ref, now, *rows)
        self._pipeline.put(ending, size)


def check_compress(compress: str) -> None:
    """Raise `ValueError` for a codec that replay stores do not have."""
    known = codec_names("replay")
    if compress not in known:
        raise ValueError(f"compress: expected one of {', '.join(known)}, got {compress!r}")


def _abandoned(pipeline: Pipeline, run_id: str, process: int) -> None:
    if process == os.getpid():
        try:
            message = f"the writer of run {run_id!r} was not closed"
            warnings.warn(message, ResourceWarning, stacklevel=2)
        finally:
            if pipeline.can_be_waited_for:
                pipeline.close()
            else:  # whatever was interrupted by the collection has to go on first
                pipeline.end()
                atexit.register(pipeline.close)


def _check_text(name: str, value: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected text, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name}: expected text, got {value!r}") from None


def _moment(given: str | float | datetime) -> str | float:
    """A time as text, or in seconds."""
    if isinstance(given, datetime):
        return given.isoformat() if given.tzinfo is None else given.timestamp()
    if isinstance(given, str):
        _check_text("timestamp", given)
        return given
    seconds = float(given)
    if not abs(seconds) < _MAX_SECONDS:
        raise ValueError(f"timestamp: expected text, seconds or a datetime, got {given!r}")
    return seconds


def _next_index(given: int, min_: int) -> int:
    index = operator.index(given)
    if not min_ <= index <= 2**62:  # steps behind it count on, in 64 bits
        raise ValueError(f"step_index: expected at least {min_}, up to 2**62, got {index}")
    return index


def _number(acted: _Arrays) -> int | float | None:
    """An action that is a single number which SQLite can hold."""
    inlet, array = acted[0]
    if inlet.shape or inlet.channel.name != ACTIONS:
        return None
    return as_scalar(array)


def _described(value: Any) -> Any:
    """Values beyond JSON: NumPy's scalars, small arrays, and a description of anything else."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.size <= 256):
        plain = value.tolist()
        return plain if not isinstance(plain, np.generic) else str(plain)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    return str(value)


_ENCODER = json.JSONEncoder(default=_described, skipkeys=True)

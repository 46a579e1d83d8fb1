"""Gymnasium environments that record themselves: wrap one, and go on as before.

A step is what the agent saw, what it did, and what came of it: reward, flags, info. Its frame shows
what the agent saw, so it is rendered before the action. The observation after the last step of an
episode goes with `end_episode`.

Vectors reset their members in three ways. Next step: after the end of an episode a step resets, and
its action and reward are nobody's. Same step: the step that ends an episode already shows the first
observation of the next one, and `final_obs` in its infos the last of this one. Disabled: whoever
steps also resets, by a mask.
"""

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, overload

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate

from stepwell.errors import BusyError
from stepwell.stores.replay.channels import ACTIONS, OBSERVATIONS, Tree
from stepwell.stores.replay.lane import LaneView
from stepwell.stores.replay.layout import lock_path
from stepwell.stores.replay.scalars import require_hdf5
from stepwell.stores.replay.spaces import check_space, value_of
from stepwell.stores.replay.writer import ReplayWriter
from stepwell.writer import Mode

_EVERY = re.compile(r"every:([1-9][0-9]{0,8})", re.ASCII)
_FINAL = ("final_obs", "final_observation")  # by Gymnasium 1, and by vectors of before


@overload
def Record(
    env: gym.Env[Any, Any],
    root: str | os.PathLike[str],
    *,
    frames: str | None = "all",
    observations: bool = True,
    infos: bool = True,
    lane: bool = False,
    run_id: str | None = None,
    mode: Mode = "x",
    compress: str = "zstd",
    when_full: str = "block",
    queue_bytes: float = 128 << 20,
    flush_every: float = 0.5,
) -> "RecordedEnv": ...
@overload
def Record(
    env: VectorEnv[Any, Any, Any],
    root: str | os.PathLike[str],
    *,
    frames: str | None = "all",
    observations: bool = True,
    infos: bool = True,
    lane: bool = False,
    run_id: str | None = None,
    mode: Mode = "x",
    compress: str = "zstd",
    when_full: str = "block",
    queue_bytes: float = 128 << 20,
    flush_every: float = 0.5,
) -> "RecordedVectorEnv": ...
def Record(
    env: Any,
    root: str | os.PathLike[str],
    *,
    frames: str | None = "all",
    observations: bool = True,
    infos: bool = True,
    lane: bool = False,
    run_id: str | None = None,
    mode: Mode = "x",
    compress: str = "zstd",
    when_full: str = "block",
    queue_bytes: float = 128 << 20,
    flush_every: float = 0.5,
) -> "RecordedEnv | RecordedVectorEnv":
    """The same environment, which from here on records what happens in it below `root`.

    `frames` is "all", "every:4" (the first step of an episode and each fourth) or None; they
    need `render_mode="rgb_array"`. The frame of a step shows what the agent saw when it acted.
    With `observations=False` or `infos=False` those of steps are left out. `run_id` is made of the
    environment's name and the time when it is not given; the rest is as in `ReplayWriter`. An
    environment with `get_action_meanings`, as Atari's have it, has the names of its actions kept.

    `lane=True` shows the frame of every step, in a vector of the first environment, to whoever
    opens `LaneReader(env.run_id)`, whether it is recorded or not.

    `close` closes the writer too; it and `reset` end an episode that is going on. Each environment
    of a Gymnasium vector is an agent, "env0", "env1", …. Vectors of others (stable-baselines3,
    TorchRL) are given environments that record themselves, each a run of its own. Raises
    `SchemaError` for spaces other than Box, Discrete, MultiBinary, MultiDiscrete, and Dict and
    Tuple of these; so does a step for a value that does not fit its space's dtype, but for the
    digits of floats.
    """
    if not isinstance(env, gym.Env | VectorEnv):
        raise TypeError(
            f"env: expected a Gymnasium environment, got {type(env).__name__}"
            + _line_for(env, root, frames)
        )
    writer = partial(
        ReplayWriter,
        root,
        action_names=_action_names(env),
        mode=mode,
        compress=compress,
        when_full=when_full,
        queue_bytes=queue_bytes,
        flush_every=flush_every,
    )
    given = (env, root, frames, run_id, observations, infos, lane, writer)
    if isinstance(env, VectorEnv):
        if env.metadata.get("autoreset_mode") is None:
            raise ValueError(f"{env}: expected metadata['autoreset_mode'], got none")
        resets = AutoresetMode(env.metadata["autoreset_mode"])
        return RecordedVectorEnv(env, Recording(*given), resets)
    return RecordedEnv(env, Recording(*given))


def _line_for(env: Any, root: Any, frames: str | None) -> str:
    """The line to write for an environment of a library whose environments hold Gymnasium's."""
    drawn = "" if frames is None else ", render_mode='rgb_array'"
    which = "" if frames == "all" else f", frames={frames!r}"
    inner = f"Record(gym.make(...{drawn}), {str(root)!r}{which})"
    kind = "SubprocVecEnv" if type(env).__name__ == "SubprocVecEnv" else "DummyVecEnv"
    lines = {
        "stable_baselines3": f"{kind}([lambda: {inner}] * {getattr(env, 'num_envs', 1)})",
        "torchrl": f"GymWrapper({inner})",
    }
    homes = (base.__module__.partition(".")[0] for base in type(env).__mro__)
    return next((f"; record inside it: {lines[home]}" for home in homes if home in lines), "")


def _frame_interval(frames: str | None, render_mode: str | None) -> int:
    """Of how many steps one has a frame, 0 for none.

    Raises `ValueError` when frames are wanted and the environment does not render any.
    """
    if frames is None:
        return 0
    every = _EVERY.fullmatch(frames) if isinstance(frames, str) else None
    if frames != "all" and every is None:
        raise ValueError(f"frames: expected 'all', 'every:N' or None, got {frames!r}")
    _check_renders(f"frames={frames!r}", render_mode, "frames=None records without")
    return int(every[1]) if every else 1


def _check_renders(what: str, render_mode: str | None, hint: str) -> None:
    if render_mode != "rgb_array":
        raise ValueError(
            f"{what}: expected an environment made with render_mode='rgb_array', "
            f"got {render_mode!r}; {hint}"
        )


@dataclass(slots=True)
class Actor:
    """One agent: its observation, None before a reset, and the steps of its episode so far."""

    agent_id: str | None
    seen: Tree = None
    steps: int = 0


_UNRECORDED: Tree = ()  # an observation, where observations are left out


class Recording:
    """The writer of a run, and the spaces that its agents live in."""

    def __init__(
        self,
        env: Any,
        root: str | os.PathLike[str],
        frames: str | None,
        run_id: str | None,
        observations: bool,
        infos: bool,
        lane: bool,
        writer: Callable[[str], ReplayWriter],
    ) -> None:
        single, agents = "", list[str | None]([None])
        if isinstance(env, VectorEnv):
            single, agents = "single_", [f"env{i}" for i in range(env.num_envs)]
        self._observation_space = getattr(env, f"{single}observation_space")
        self._action_space = getattr(env, f"{single}action_space")
        self._every = _frame_interval(frames, env.render_mode)
        self._infos, self._observations = infos, observations
        if lane:
            _check_renders("lane=True", env.render_mode, "lane=False records without")
        if observations:
            check_space(OBSERVATIONS, self._observation_space)
        scalar = check_space(ACTIONS, self._action_space)
        if observations or self._every or not scalar:
            require_hdf5("gym")
        self.actors = [Actor(agent) for agent in agents]
        if run_id is None:
            self.writer = _unused_run(Path(root), _name_of(env), writer)
        else:
            self.writer = writer(run_id)
        self._view = LaneView(self.writer.run_id) if lane else None

    def begin(self, actor: Actor, observation: Any) -> None:
        """An agent sees the first observation of an episode."""
        actor.seen = self._seen(observation)
        actor.steps = 0

    def _seen(self, observation: Any) -> Tree:
        if observation is None or not self._observations:
            return None if observation is None else _UNRECORDED
        return value_of(OBSERVATIONS, self._observation_space, observation)

    def cut(self, actor: Actor) -> None:
        """End an episode that has not ended by itself."""
        seen, actor.seen = actor.seen, None
        if seen is not None and actor.steps:
            self._end(actor, seen)

    def _end(self, actor: Actor, seen: Tree) -> None:
        last = seen if self._observations else None
        self.writer.end_episode(observation=last, agent_id=actor.agent_id)

    def wants_frame(self, actor: Actor) -> bool:
        """Whether a frame is to be rendered, for the run or for the lane."""
        return actor.seen is not None and (self._keeps_frame(actor) or self._shows(actor))

    def _keeps_frame(self, actor: Actor) -> bool:
        return bool(self._every) and actor.steps % self._every == 0

    def _shows(self, actor: Actor) -> bool:
        return self._view is not None and actor is self.actors[0]

    def action_of(self, action: Any) -> Tree:
        """A copy of an action, which the environment may change."""
        return value_of(ACTIONS, self._action_space, action)

    def add(
        self,
        actor: Actor,
        action: Tree,
        frame: Any,
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        info: Mapping[str, Any],
    ) -> None:
        """Hand over a step after which `observation` was seen. Nothing happens before a reset."""
        if actor.seen is None:
            return
        following = self._seen(observation)
        refs = self.writer.record_step(
            observation=actor.seen if self._observations else None,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            frame=frame if self._keeps_frame(actor) else None,
            info=info if self._infos else None,
            agent_id=actor.agent_id,
        )
        if self._view is not None and self._shows(actor):
            step = {"episode_id": refs.episode_id, "step": refs.step_index} if refs else {}
            self._view.show(frame, float(reward), step, begins=actor.steps == 0)
        actor.steps += 1
        actor.seen = following
        if terminated or truncated:
            actor.seen = None
            self._end(actor, following)

    def close(self) -> None:
        """End what goes on and close the writer. Once; later calls do nothing."""
        actors, self.actors = self.actors, []
        try:
            for actor in actors:
                self.cut(actor)
        finally:
            if self._view is not None:
                self._view.close()
            self.writer.close()


def picture(frame: Any) -> Any:
    """A copy of what was rendered; the environment may draw into it again."""
    return np.array(frame) if isinstance(frame, np.ndarray) else frame


def _name_of(env: Any) -> str:
    """The name of an environment: "breakout" for "ALE/Breakout-v5"."""
    spec = env.spec
    if spec is None and hasattr(env.unwrapped, "get_attr"):  # a vector, made by hand
        spec = env.unwrapped.get_attr("spec")[0]
    text = spec.id if spec is not None else type(env.unwrapped).__name__
    text = re.sub(r"-v\d+$", "", text.rpartition("/")[2])
    return re.sub(r"[^A-Za-z0-9_]+", "-", text, flags=re.ASCII).strip("-").lower()[:64] or "run"


def _action_names(env: Any) -> tuple[str, ...]:
    """What Atari's and other environments call their actions; nothing where they do not."""
    inner = getattr(env, "envs", [env])[0].unwrapped  # of a vector in this process, the first one
    meanings = getattr(inner, "get_action_meanings", None)
    found = meanings() if callable(meanings) else ()
    return tuple(found) if all(isinstance(each, str) for each in found) else ()


def _unused_run(root: Path, name: str, writer: Callable[[str], ReplayWriter]) -> ReplayWriter:
    """A writer of a run that is not there yet, called after the environment and the time."""
    name = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in count(1):
        run_id = name if number == 1 else f"{name}-{number}"
        if lock_path(root, run_id).exists():
            continue
        try:
            return writer(run_id)
        except BusyError:  # somebody had the same idea in the same moment
            continue
    raise AssertionError


class _Recorded:
    """The members of an environment that records itself."""

    _recording: Recording

    @property
    def writer(self) -> ReplayWriter:
        """What the steps are given to."""
        return self._recording.writer

    @property
    def run_id(self) -> str:
        """The name of the run that is recorded."""
        return self.writer.run_id

    def close(self, **kwargs: Any) -> None:
        """Close the environment and the writer."""
        try:
            self._recording.close()
        finally:
            super().close(**kwargs)  # type: ignore[misc]


class RecordedEnv(_Recorded, gym.Wrapper[Any, Any, Any, Any]):
    """A Gymnasium environment that records itself; see `Record`."""

    def __init__(self, env: gym.Env[Any, Any], recording: Recording) -> None:
        super().__init__(env)
        self._recording = recording
        (self._actor,) = self._recording.actors

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; one that is going on has ended."""
        self._recording.cut(self._actor)
        observation, info = self.env.reset(seed=seed, options=options)
        self._recording.begin(self._actor, observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """A step, recorded once it has been made. Steps after the end of an episode are not."""
        taken = self._recording.action_of(action)
        wanted = self._recording.wants_frame(self._actor)
        frame = picture(self.env.render()) if wanted else None
        result = self.env.step(action)
        self._recording.add(self._actor, taken, frame, *result)
        return result


class RecordedVectorEnv(_Recorded, VectorWrapper):
    """A vector of environments that records itself; see `Record`."""

    def __init__(
        self, env: VectorEnv[Any, Any, Any], recording: Recording, mode: AutoresetMode
    ) -> None:
        super().__init__(env)
        self._recording = recording
        self.autoreset_mode = mode

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes, of all or of those in `options["reset_mask"]`; theirs have ended."""
        mask = np.ones(self.num_envs, bool)
        if options is not None and "reset_mask" in options:
            mask = np.array(options["reset_mask"], bool)
        # Fewer than there are environments, where some were stopped.
        here = [i for i in np.flatnonzero(mask).tolist() if i < len(self._recording.actors)]
        for i in here:
            self._recording.cut(self._recording.actors[i])
        observations, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        each = self._each(observations)
        for i in here:
            self._recording.begin(self._recording.actors[i], each[i])
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """A step of all, recorded once it has been made."""
        recording = self._recording
        taken = [recording.action_of(a) for a in iterate(self.action_space, actions)]
        wanted = [recording.wants_frame(actor) for actor in recording.actors]
        frames = self._frames() if any(wanted) else ()
        result = self.env.step(actions)
        observations, rewards, terminated, truncated, infos = result
        over = np.logical_or(terminated, truncated)
        following = self._each(observations)
        for i, actor in enumerate(recording.actors):
            if actor.seen is None:  # this step was a reset, or unexpected
                if self.autoreset_mode == AutoresetMode.NEXT_STEP:
                    recording.begin(actor, following[i])
                continue
            last, info = following[i], _info_of(infos, i)
            if over[i] and self.autoreset_mode == AutoresetMode.SAME_STEP:
                last, info = self._final(infos, i), info.get("final_info", {})
            for name in _FINAL:  # of another environment; the vector of the ALE masks nothing
                info.pop(name, None)
            frame = picture(frames[i]) if wanted[i] else None
            came = (last, rewards[i], terminated[i], truncated[i], info)
            recording.add(actor, taken[i], frame, *came)
            if over[i] and self.autoreset_mode == AutoresetMode.SAME_STEP:
                recording.begin(actor, following[i])
        return result

    def stop(self, first: int) -> None:
        """Record no more of the environments from this one on; their episodes are cut."""
        actors = self._recording.actors
        for actor in actors[first:]:
            self._recording.cut(actor)
        del actors[first:]

    def _each(self, observations: Any) -> list[Any]:
        return list(iterate(self.observation_space, observations))

    def _frames(self) -> Any:
        frames = self.env.render()
        if frames is None or len(frames) != self.num_envs:
            raise ValueError(f"render: expected {self.num_envs} frames, one for each environment")
        return frames

    def _final(self, infos: Any, i: int) -> Any:
        """The last observation of an episode whose environment has been reset since."""
        own = infos[i] if isinstance(infos, list) else infos
        found = next((own[name] for name in _FINAL if name in own), None)
        if isinstance(infos, list):
            return found
        if isinstance(found, Mapping | tuple):
            return self._each(found)[i]
        return None if found is None else found[i]


def _info_of(infos: Any, i: int) -> dict[str, Any]:
    """The infos of one environment, out of a list (`DictInfoToList`) or a dict of arrays.

    In a dict, `_key` marks the environments that `key` is for.
    """
    if isinstance(infos, list):
        return dict(infos[i])
    found: dict[str, Any] = {}
    for key, value in infos.items():
        there = infos.get(f"_{key}")
        if key.startswith("_") or (there is not None and not there[i]):
            continue
        if isinstance(value, Mapping):
            inner = _info_of(value, i)
            if inner:
                found[key] = inner
        elif isinstance(value, np.ndarray) and value.ndim and i < len(value):
            found[key] = value[i]
    return found

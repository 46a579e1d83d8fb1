"""Gymnasium environments that record themselves: wrap one, and go on as before.

Vectors reset their members in three ways. Next step: after the end of an episode a step resets, and
its action and reward are nobody's. Same step: the step that ends an episode already shows the first
observation of the next one, and `final_obs` in its infos the last of this one. Disabled: whoever
steps also resets, by a mask.
"""

import os
from collections.abc import Mapping
from typing import Any, overload

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate

from stepwell.stores.replay.recording import Recording, picture
from stepwell.stores.replay.writer import ReplayWriter

__all__ = ["Record", "RecordedEnv", "RecordedVectorEnv"]


@overload
def Record(
    env: gym.Env[Any, Any],
    root: str | os.PathLike[str],
    *,
    frames: str | None = "all",
    run_id: str | None = None,
    infos: bool = True,
    **options: Any,
) -> "RecordedEnv": ...
@overload
def Record(
    env: VectorEnv[Any, Any, Any],
    root: str | os.PathLike[str],
    *,
    frames: str | None = "all",
    run_id: str | None = None,
    infos: bool = True,
    **options: Any,
) -> "RecordedVectorEnv": ...
def Record(
    env: Any,
    root: str | os.PathLike[str],
    *,
    frames: str | None = "all",
    run_id: str | None = None,
    infos: bool = True,
    **options: Any,
) -> "RecordedEnv | RecordedVectorEnv":
    """The same environment, which from here on records what happens in it below `root`.

    `frames` is "all", "every:4" (the first step of an episode and each fourth) or None; they
    need `render_mode="rgb_array"`. The frame of a step shows what the agent saw when it acted.
    `run_id` is made of the environment's name and the time when it is not given. `options` go to
    `ReplayWriter`.

    `close` closes the writer too; it and `reset` end an episode that is going on. Each environment
    of a vector is an agent, "env0", "env1", …. Raises `SchemaError` for spaces other than Box,
    Discrete, MultiBinary, MultiDiscrete, and Dict and Tuple of these.
    """
    if not isinstance(env, gym.Env | VectorEnv):
        raise TypeError(f"env: expected a Gymnasium environment, got {type(env).__name__}")
    given = (env, root, frames, run_id, infos, options)
    if isinstance(env, VectorEnv):
        if env.metadata.get("autoreset_mode") is None:
            raise ValueError(f"{env}: expected metadata['autoreset_mode'], got none")
        mode = AutoresetMode(env.metadata["autoreset_mode"])
        return RecordedVectorEnv(env, Recording(*given), mode)
    return RecordedEnv(env, Recording(*given))


class _Recorded:
    """What an environment that records itself can be asked."""

    _recording: Recording

    @property
    def writer(self) -> ReplayWriter:
        return self._recording.writer

    @property
    def run_id(self) -> str:
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
        """A step, recorded once it has been made. What comes after the end of an episode is not."""
        taken = self._recording.action_of(action)
        wanted = self._recording.wants_frame(self._actor)
        frame = picture(self.env.render()) if wanted else None
        result = self.env.step(action)
        observation, reward, terminated, truncated, info = result
        self._recording.add(
            self._actor, taken, reward, terminated, truncated, observation, info, frame
        )
        return result


class RecordedVectorEnv(_Recorded, VectorWrapper):
    """A vector of environments that records itself; see `Record`."""

    def __init__(
        self, env: VectorEnv[Any, Any, Any], recording: Recording, mode: AutoresetMode
    ) -> None:
        super().__init__(env)
        self._recording = recording
        self._mode = mode

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
        actors = [actor for actor, here in zip(self._recording.actors, mask, strict=True) if here]
        for actor in actors:
            self._recording.cut(actor)
        observations, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        each = self._each(observations)
        for i in np.flatnonzero(mask):
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
            if actor.seen is None:  # this step was a reset, or nothing that anybody asked for
                if self._mode == AutoresetMode.NEXT_STEP:
                    recording.begin(actor, following[i])
                continue
            last, info = following[i], infos
            if over[i] and self._mode == AutoresetMode.SAME_STEP:
                last, info = self._final(infos, i), infos.get("final_info", {})
            recording.add(
                actor,
                taken[i],
                rewards[i],
                terminated[i],
                truncated[i],
                last,
                _info_of(info, i),
                picture(frames[i]) if wanted[i] else None,
            )
            if over[i] and self._mode == AutoresetMode.SAME_STEP:
                recording.begin(actor, following[i])
        return result

    def _each(self, observations: Any) -> list[Any]:
        return list(iterate(self.observation_space, observations))

    def _frames(self) -> Any:
        frames = self.env.render()
        if frames is None or len(frames) != self.num_envs:
            raise ValueError(f"render: expected {self.num_envs} frames, one for each environment")
        return frames

    def _final(self, infos: Mapping[str, Any], i: int) -> Any:
        """The last observation of an episode whose environment has been reset since."""
        found = infos.get("final_obs")
        if isinstance(found, Mapping | tuple):
            return self._each(found)[i]
        return None if found is None else found[i]


def _info_of(infos: Mapping[str, Any], i: int) -> dict[str, Any]:
    """What infos say of one environment; `_key` tells for which of them `key` says anything."""
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

"""Gymnasium environments that record themselves: wrap one, and go on as before."""

import os
from typing import Any, overload

import gymnasium as gym
from gymnasium.vector import VectorEnv

from stepwell.stores.replay.recording import Recorded, Recording, frame_interval, picture
from stepwell.stores.replay.vector_recorder import RecordedVectorEnv

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
) -> RecordedVectorEnv: ...
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
    if isinstance(env, VectorEnv):
        return RecordedVectorEnv(env, root, frames, run_id, infos, options)
    if isinstance(env, gym.Env):
        return RecordedEnv(env, root, frames, run_id, infos, options)
    raise TypeError(f"env: expected a Gymnasium environment, got {type(env).__name__}")


class RecordedEnv(Recorded, gym.Wrapper[Any, Any, Any, Any]):
    """A Gymnasium environment that records itself; see `Record`."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        root: str | os.PathLike[str],
        frames: str | None,
        run_id: str | None,
        infos: bool,
        options: dict[str, Any],
    ) -> None:
        super().__init__(env)
        self._recording = Recording(
            root,
            run_id,
            env,
            env.observation_space,
            env.action_space,
            [None],
            every=frame_interval(frames, env.render_mode),
            infos=infos,
            options=options,
        )
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

    def close(self) -> None:
        """Close the environment and the writer."""
        try:
            self._recording.close()
        finally:
            super().close()

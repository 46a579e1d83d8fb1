"""What a recorder of environments keeps between two steps, and what it hands to the writer.

A step is what the agent saw, what it did, and what came of it: reward, flags, info. Its frame shows
what the agent saw, so it is rendered before the action. What was seen after the last step of an
episode goes with `end_episode`.
"""

import os
import re
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from stepwell.errors import BusyError
from stepwell.stores.replay.channels import ACTIONS, OBSERVATIONS, Tree
from stepwell.stores.replay.layout import lock_path
from stepwell.stores.replay.spaces import check_space, value_of
from stepwell.stores.replay.writer import ReplayWriter

__all__ = ["Actor", "Recording", "picture"]

_EVERY = re.compile(r"every:([1-9][0-9]{0,8})", re.ASCII)


def _frame_interval(frames: str | None, render_mode: str | None) -> int:
    """Of how many steps one has a frame, 0 for none.

    Raises `ValueError` when frames are wanted and the environment does not render any.
    """
    if frames is None:
        return 0
    every = _EVERY.fullmatch(frames) if isinstance(frames, str) else None
    if frames != "all" and every is None:
        raise ValueError(f"frames: expected 'all', 'every:N' or None, got {frames!r}")
    if render_mode != "rgb_array":
        raise ValueError(
            f"frames={frames!r}: expected an environment made with render_mode='rgb_array', "
            f"got {render_mode!r}; frames=None records without"
        )
    return int(every[1]) if every else 1


class Actor:
    """One agent: what it sees now, None before a reset, and the steps of its episode so far."""

    __slots__ = ("agent_id", "seen", "steps")

    def __init__(self, agent_id: str | None) -> None:
        self.agent_id = agent_id
        self.seen: Tree = None
        self.steps = 0


class Recording:
    """The writer of a run, and the spaces that its agents live in."""

    def __init__(
        self,
        env: Any,
        root: str | os.PathLike[str],
        frames: str | None,
        run_id: str | None,
        infos: bool,
        options: Mapping[str, Any],
    ) -> None:
        single, agents = "", list[str | None]([None])
        if isinstance(env, VectorEnv):
            single, agents = "single_", [f"env{i}" for i in range(env.num_envs)]
        self._observation_space = getattr(env, f"{single}observation_space")
        self._action_space = getattr(env, f"{single}action_space")
        self._every = _frame_interval(frames, env.render_mode)
        self._infos = infos
        check_space(OBSERVATIONS, self._observation_space)
        check_space(ACTIONS, self._action_space)
        self.actors = [Actor(agent) for agent in agents]
        if run_id is None:
            self.writer = _unused_run(Path(root), _name_of(env), options)
        else:
            self.writer = ReplayWriter(root, run_id, **options)

    def begin(self, actor: Actor, observation: Any) -> None:
        """An agent sees the first observation of an episode."""
        actor.seen = value_of(OBSERVATIONS, self._observation_space, observation)
        actor.steps = 0

    def cut(self, actor: Actor) -> None:
        """End an episode that has not ended by itself."""
        seen, actor.seen = actor.seen, None
        if seen is not None and actor.steps:
            self.writer.end_episode(observation=seen, agent_id=actor.agent_id)

    def wants_frame(self, actor: Actor) -> bool:
        return bool(self._every) and actor.seen is not None and actor.steps % self._every == 0

    def action_of(self, action: Any) -> Tree:
        """A copy of an action, which the environment may change."""
        return value_of(ACTIONS, self._action_space, action)

    def add(
        self,
        actor: Actor,
        action: Tree,
        reward: Any,
        terminated: Any,
        truncated: Any,
        observation: Any,
        info: Mapping[str, Any],
        frame: Any,
    ) -> None:
        """Hand over a step after which `observation` was seen. Nothing happens before a reset."""
        if actor.seen is None:
            return
        following = None
        if observation is not None:
            following = value_of(OBSERVATIONS, self._observation_space, observation)
        self.writer.record_step(
            observation=actor.seen,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            frame=frame,
            info=info if self._infos else None,
            agent_id=actor.agent_id,
        )
        actor.steps += 1
        actor.seen = following
        if terminated or truncated:
            actor.seen = None
            self.writer.end_episode(observation=following, agent_id=actor.agent_id)

    def close(self) -> None:
        """End what goes on and close the writer. Once; later calls do nothing."""
        actors, self.actors = self.actors, []
        try:
            for actor in actors:
                self.cut(actor)
        finally:
            self.writer.close()


def picture(frame: Any) -> Any:
    """A copy of what was rendered; the environment may draw into it again."""
    return np.array(frame) if isinstance(frame, np.ndarray) else frame


def _name_of(env: Any) -> str:
    """What an environment is called: "breakout" for "ALE/Breakout-v5"."""
    spec = env.spec
    if spec is None and hasattr(env.unwrapped, "get_attr"):  # a vector, made by hand
        spec = env.unwrapped.get_attr("spec")[0]
    text = spec.id if spec is not None else type(env.unwrapped).__name__
    text = re.sub(r"-v\d+$", "", text.rpartition("/")[2])
    return re.sub(r"[^A-Za-z0-9_]+", "-", text, flags=re.ASCII).strip("-").lower()[:64] or "run"


def _unused_run(root: Path, name: str, options: Mapping[str, Any]) -> ReplayWriter:
    """A writer of a run that is not there yet, called after the environment and the time."""
    name = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in count(1):
        run_id = name if number == 1 else f"{name}-{number}"
        if lock_path(root, run_id).exists():
            continue
        try:
            return ReplayWriter(root, run_id, **options)
        except BusyError:  # somebody had the same idea in the same moment
            continue
    raise AssertionError

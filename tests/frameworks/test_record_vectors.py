"""`Record` in loops as CleanRL has them: around a vector, or around each environment inside it.

What was recorded is compared row by row with what the loop itself kept.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

import stepwell as sw
from stepwell.replay import Record, ReplayReader

Rows = list[list[dict[str, Any]]]
MODES = list(AutoresetMode)
SHORT = 15  # steps after which an episode is cut, so that some end either way


def make(root: Path | None = None, number: int = 0) -> gym.Env[Any, Any]:
    env = gym.make("CartPole-v1", max_episode_steps=SHORT)
    return env if root is None else Record(env, root, frames=None, run_id=f"env{number}")


def loop(envs: VectorEnv[Any, Any, Any], steps: int = 200) -> Rows:
    """A loop as in CleanRL: the transitions of each environment, without the steps that reset."""
    mode = envs.metadata["autoreset_mode"]
    step: Callable[[Any], Any] = envs.step  # infos may be a list
    rows: Rows = [[] for _ in range(envs.num_envs)]
    envs.action_space.seed(1)
    seen, _ = envs.reset(seed=1)
    done = np.zeros(envs.num_envs, bool)
    for _ in range(steps):
        seen = np.array(seen)
        actions = envs.action_space.sample()
        following, rewards, terminated, truncated, infos = step(actions)
        over = np.logical_or(terminated, truncated)
        for i in range(envs.num_envs):
            if mode == AutoresetMode.NEXT_STEP and done[i]:
                continue  # it was reset, whatever the action
            last = np.array(following[i])
            if mode == AutoresetMode.SAME_STEP and over[i]:
                last = infos[i]["final_obs"] if isinstance(infos, list) else infos["final_obs"][i]
            rows[i].append(
                {
                    "observation": seen[i],
                    "action": actions[i],
                    "reward": rewards[i],
                    "terminated": terminated[i],
                    "truncated": truncated[i],
                    "next_observation": np.array(last),
                }
            )
        if mode == AutoresetMode.DISABLED and over.any():
            following, _ = envs.reset(options={"reset_mask": over})
        seen, done = following, over
    return rows


def check(rows: Rows, recorded: Callable[[int], sw.Source]) -> None:
    """Compare the loop's transitions with the rows that were recorded of each environment."""
    for i, expected in enumerate(rows):
        found = recorded(i).take(np.arange(len(expected)))
        assert len(recorded(i)) == len(expected)
        for name in ("observation", "action", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(found[name], [row[name] for row in expected], name)
        whole = [row["next_observation"] for row in expected]
        np.testing.assert_array_equal(found["next_observation"], whole)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wrap", [None, RecordEpisodeStatistics, DictInfoToList])
def test_around_a_vector(tmp_path: Path, mode: AutoresetMode, wrap: Any) -> None:
    vector: Any = SyncVectorEnv([make] * 3, autoreset_mode=mode)
    envs = Record(vector if wrap is None else wrap(vector), tmp_path, frames=None)
    rows = loop(envs)
    envs.close()
    with ReplayReader.open(tmp_path) as replays:
        check(rows, lambda i: replays.where("agent_id = ?", f"env{i}"))
        assert len(replays.where("terminated").runs) > 5
        assert len(replays.where("truncated").runs) > 5
        ended = replays.where("ended").runs["total_reward"]
        assert {row["truncated"] for agent in rows for row in agent} == {False, True}
        assert max(ended) == SHORT


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_inside_a_vector(tmp_path: Path, mode: AutoresetMode, kind: Any) -> None:
    options = {"context": "forkserver"} if kind is AsyncVectorEnv else {}
    makers = [lambda i=i: make(tmp_path, i) for i in range(3)]
    envs = RecordEpisodeStatistics(kind(makers, autoreset_mode=mode, **options))
    rows = loop(envs)
    envs.close()
    with ReplayReader.open(tmp_path) as replays:
        assert set(replays.recordings) == {"env0", "env1", "env2"}
        check(rows, lambda i: replays.where("run_id = ?", f"env{i}"))


def test_around_vectors_that_are_none_of_many(tmp_path: Path) -> None:
    """Vectors that step all at once, without environments in them."""
    gym.register_envs(ale_py)
    envs: Any = gym.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")
    envs = Record(envs, tmp_path / "cartpole", frames=None)
    rows = loop(envs)
    envs.close()
    with ReplayReader.open(tmp_path / "cartpole") as replays:
        check(rows, lambda i: replays.where("agent_id = ?", f"env{i}"))

    atari = ale_py.AtariVectorEnv("breakout", 2, autoreset_mode=AutoresetMode.SAME_STEP)
    envs = Record(atari, tmp_path / "breakout", frames=None)
    rows = loop(envs, 400)
    envs.close()
    with ReplayReader.open(tmp_path / "breakout") as replays:
        check(rows, lambda i: replays.where("agent_id = ?", f"env{i}"))
        assert len(replays.where("terminated").runs) > 1
        for episode in replays.episodes:
            infos = replays.episode(episode.episode_id).infos
            assert set().union(*infos) <= {
                "env_id",
                "lives",
                "frame_number",
                "episode_frame_number",
            }

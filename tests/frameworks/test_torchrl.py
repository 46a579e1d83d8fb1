"""TorchRL drives environments that record themselves, and its buffers take what was recorded.

TorchRL 0.7 and older refuse Gymnasium 1; newer ones want tensordict below 0.15. It is imported by
tests alone: it takes longer than torch, and no other test of a process wants it.
"""

import re
import runpy
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from stepwell.replay import Record, ReplayReader
from tests.test_examples import EXAMPLES, losses, printed, run_block

STEPS, SHORT = 100, 15  # an episode is cut after 15 steps, so that some end either way
PROGRAM = EXAMPLES / "train_torchrl.py"


def make() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", max_episode_steps=SHORT)


def gym_wrapper(env: Any) -> Any:
    from torchrl.envs import GymWrapper

    return GymWrapper(env, categorical_action_encoding=True)


def wrapped(root: Path) -> Any:
    return gym_wrapper(Record(make(), root, frames=None))


def rollout(env: Any) -> Any:
    """Steps of TorchRL across episodes, without the last ones that were not played to the end."""
    torch.manual_seed(1)
    env.set_seed(1)
    steps = env.rollout(STEPS, break_when_any_done=False)
    env.close()
    return steps


def check(steps: Any, batch: Any) -> None:
    """Compare what TorchRL returned with the rows that were recorded, all of them."""
    after = steps["next"]
    np.testing.assert_array_equal(steps["observation"], batch["observation"])
    np.testing.assert_array_equal(steps["action"], batch["action"])
    np.testing.assert_array_equal(after["observation"], batch["next_observation"])
    np.testing.assert_array_equal(after["reward"][:, 0], batch["reward"].astype(np.float32))
    np.testing.assert_array_equal(after["terminated"][:, 0], batch["terminated"])
    np.testing.assert_array_equal(after["truncated"][:, 0], batch["truncated"])
    assert batch["terminated"].any()
    assert batch["truncated"].any()


def test_one_environment(tmp_path: Path) -> None:
    steps = rollout(wrapped(tmp_path))
    with ReplayReader.open(tmp_path) as replays:
        check(steps, replays[:])


def test_several_environments(tmp_path: Path) -> None:
    """TorchRL makes one more to look at its spaces, which leaves a run without a step."""
    from torchrl.envs import SerialEnv

    env = SerialEnv(2, partial(wrapped, tmp_path))
    steps = rollout(env)
    with ReplayReader.open(tmp_path) as replays:
        played = [name for name, run in replays.recordings.items() if run.steps]
        assert (len(played), len(replays.recordings), len(replays)) == (2, 3, 2 * STEPS)
        runs = [replays.where("run_id = ?", name) for name in played]
        for run in runs:
            batch = run[:]
            (which,) = (i for i in range(2) if (steps["action"][i] == batch["action"]).all())
            check(steps[which], batch)


def test_a_vector_of_gymnasium(tmp_path: Path) -> None:
    vector = SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.DISABLED)
    recorded = Record(vector, tmp_path, frames=None)
    steps = rollout(gym_wrapper(recorded))
    with ReplayReader.open(tmp_path) as replays:
        for i in range(2):
            check(steps[i], replays.where("agent_id = ?", f"env{i}")[:])


def test_a_buffer_holds_what_was_recorded(tmp_path: Path) -> None:
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    steps = rollout(wrapped(tmp_path))
    buffer = ReplayBuffer(storage=LazyTensorStorage(STEPS), batch_size=32)
    with ReplayReader.open(tmp_path) as replays:
        runpy.run_path(str(PROGRAM))["fill"](buffer, replays)
    assert len(buffer) == STEPS
    held = buffer[:]
    for key in ("observation", "action"):
        assert torch.equal(held[key], steps[key])
    for key in ("observation", "reward", "terminated", "truncated", "done"):
        assert torch.equal(held["next", key], steps["next", key])
        assert held["next", key].dtype == steps["next", key].dtype
    assert buffer.sample().batch_size == (32,)


def test_an_environment_of_torchrl_is_refused_with_the_line_to_write(tmp_path: Path) -> None:
    env = gym_wrapper(make())
    line = "GymWrapper(Record(gym.make(...), 'replays', frames=None))"
    with pytest.raises(TypeError, match=re.escape(f"got GymWrapper; record inside it: {line}")):
        Record(env, "replays", frames=None)
    env.close()


def test_the_program(tmp_path: Path) -> None:
    options = ["--record", "3000", "--steps", "300", "--games", "2"]
    lines = printed(PROGRAM, tmp_path / "replays", *options)
    assert re.search(r"recorded: reward \S+ in \d+ episodes", lines[0])
    assert list(losses(lines)) == [300]
    assert re.match(r"learned: reward \S+ in 2 games", lines[-2])
    assert re.match(r"300 steps, \d+ s; the recording is in ", lines[-1])


def test_the_lines_in_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_block("from torchrl")

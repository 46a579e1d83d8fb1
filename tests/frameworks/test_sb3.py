"""stable-baselines3 trains on environments that record themselves.

What was recorded is compared row by row with the buffers that PPO and DQN fill themselves.
"""

import re
import runpy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from stepwell.replay import Record, ReplayReader
from tests.test_examples import EXAMPLES, printed, run_block

pytestmark = pytest.mark.row("gym")
PROGRAM = EXAMPLES / "train_sb3.py"
ENVS, SHORT = 3, 15  # an episode is cut after 15 steps, so that some end either way


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small get slower by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make(root: Path, number: int) -> gym.Env[Any, Any]:
    env = gym.make("CartPole-v1", max_episode_steps=SHORT)
    return Record(env, root, frames=None, run_id=f"env{number}")


def vector(kind: Callable[..., VecEnv], root: Path) -> VecEnv:
    return kind([partial(make, root, number) for number in range(ENVS)])


def columns(root: Path, names: list[str]) -> dict[str, Any]:
    """What each environment recorded, side by side as in a buffer: [step, environment]."""
    with ReplayReader.open(root) as replays:
        assert replays.verify().ok
        runs = [replays.where("run_id = ?", name) for name in names]
        batches = [run.take(np.arange(len(run))) for run in runs]
    return {name: np.stack([batch[name] for batch in batches], 1) for name in batches[0]}


NAMES = [f"env{number}" for number in range(ENVS)]


@pytest.mark.parametrize("kind", [DummyVecEnv, SubprocVecEnv])
def test_what_dqn_puts_into_its_buffer(tmp_path: Path, kind: Callable[..., VecEnv]) -> None:
    envs = vector(kind, tmp_path)
    model = DQN("MlpPolicy", envs, learning_starts=60, buffer_size=1000, seed=1, device="cpu")
    model.learn(360)
    envs.close()
    buffer = model.replay_buffer
    assert isinstance(buffer, ReplayBuffer)
    found, size = columns(tmp_path, NAMES), buffer.size()
    assert size == len(found["reward"]) == 120
    np.testing.assert_array_equal(buffer.observations[:size], found["observation"])
    np.testing.assert_array_equal(buffer.next_observations[:size], found["next_observation"])
    np.testing.assert_array_equal(buffer.actions[:size, :, 0], found["action"])
    np.testing.assert_array_equal(buffer.rewards[:size], found["reward"])
    over = found["terminated"] | found["truncated"]
    np.testing.assert_array_equal(buffer.dones[:size], over)
    np.testing.assert_array_equal(buffer.timeouts[:size], found["truncated"] & ~found["terminated"])
    assert found["terminated"].any()
    assert found["truncated"].any()


class Rollouts(BaseCallback):
    """Keeps what PPO's buffer holds before it is trained on, and what its critic makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[dict[str, Any]] = []
        self.values: list[Callable[[Any], Any]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        buffer = self.locals["rollout_buffer"]
        names = ("observations", "actions", "rewards", "episode_starts")
        self.kept.append({name: getattr(buffer, name).copy() for name in names})
        with torch.no_grad():
            weights = {k: v.clone() for k, v in self.model.policy.state_dict().items()}
        self.values.append(partial(self._value, weights))

    def _value(self, weights: dict[str, Any], observations: Any) -> Any:
        self.model.policy.load_state_dict(weights)
        with torch.no_grad():
            seen = torch.from_numpy(observations)
            return self.model.policy.predict_values(seen).numpy()[:, 0]  # type: ignore[operator]


def test_what_ppo_puts_into_its_buffer(tmp_path: Path) -> None:
    envs, rollouts = vector(DummyVecEnv, tmp_path), Rollouts()
    model = PPO("MlpPolicy", envs, n_steps=64, batch_size=64, n_epochs=1, seed=1, device="cpu")
    model.learn(2 * 64 * ENVS, callback=rollouts)
    envs.close()
    found = columns(tmp_path, NAMES)
    assert len(found["reward"]) == 128
    over = found["terminated"] | found["truncated"]
    cut = found["truncated"] & ~found["terminated"]
    assert cut.any()
    starts = np.concatenate([np.ones((1, ENVS), bool), over[:-1]])
    for number, (kept, value_of) in enumerate(zip(rollouts.kept, rollouts.values, strict=True)):
        part = slice(64 * number, 64 * (number + 1))
        np.testing.assert_array_equal(kept["observations"], found["observation"][part])
        np.testing.assert_array_equal(kept["actions"][:, :, 0], found["action"][part])
        np.testing.assert_array_equal(kept["episode_starts"], starts[part])
        # PPO adds to the reward what its critic expects after an episode that was cut.
        expected = found["reward"][part].astype(np.float32)
        last = found["next_observation"][part][cut[part]]
        expected[cut[part]] += np.float32(0.99) * value_of(last)
        np.testing.assert_allclose(kept["rewards"], expected, rtol=1e-5)


def test_the_line_with_make_vec_env(tmp_path: Path) -> None:
    envs = make_vec_env(
        "CartPole-v1",
        n_envs=2,
        seed=1,
        wrapper_class=Record,  # type: ignore[arg-type]
        wrapper_kwargs={"root": tmp_path, "frames": None},
    )
    model = PPO("MlpPolicy", envs, n_steps=64, batch_size=64, n_epochs=1, device="cpu")
    model.learn(128)
    names = envs.get_attr("run_id")
    envs.close()
    assert len(set(names)) == 2
    found = columns(tmp_path, names)
    assert found["reward"].shape == (64, 2)
    with ReplayReader.open(tmp_path) as replays:
        (first, *_) = replays.episodes
        last = replays.episode(first.episode_id).infos[-1]
        assert last["episode"]["l"] == first.steps  # of SB3's own Monitor


def test_one_environment(tmp_path: Path) -> None:
    """SB3 makes a vector of it by itself."""
    model = DQN("MlpPolicy", make(tmp_path, 0), learning_starts=500, seed=1, device="cpu")
    model.learn(100)
    envs = model.get_env()
    assert envs is not None
    envs.close()
    assert columns(tmp_path, ["env0"])["reward"].shape == (100, 1)


def test_a_vector_of_sb3_is_refused_with_the_line_to_write(tmp_path: Path) -> None:
    envs = DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2)
    with pytest.raises(TypeError) as refused:
        Record(envs, "replays", frames=None)  # type: ignore[call-overload]
    message, line = str(refused.value).split("; record inside it: ")
    assert message == "env: expected a Gymnasium environment, got DummyVecEnv"
    assert line == "DummyVecEnv([lambda: Record(gym.make(...), 'replays', frames=None)] * 2)"
    written = line.replace("...", "'CartPole-v1'").replace("'replays'", f"{str(tmp_path)!r}")
    made = eval(written, {"DummyVecEnv": DummyVecEnv, "Record": Record, "gym": gym})
    made.reset()
    made.step(np.array([0, 1]))
    made.close()
    with ReplayReader.open(tmp_path) as replays:
        assert len(replays) == 2
    with pytest.raises(
        TypeError, match=r"got VecNormalize; .*render_mode='rgb_array'\), 'r'\)\] \* 2"
    ):
        Record(VecNormalize(envs), "r")  # type: ignore[call-overload]
    envs.close()


def test_a_buffer_filled_from_the_recording_is_that_of_the_training(tmp_path: Path) -> None:
    envs = DummyVecEnv([partial(make, tmp_path, 0)])
    model = DQN("MlpPolicy", envs, learning_starts=60, buffer_size=200, seed=1, device="cpu")
    model.learn(120)
    envs.close()
    filled = ReplayBuffer(200, envs.observation_space, envs.action_space, device="cpu")
    with ReplayReader.open(tmp_path) as replays:
        runpy.run_path(str(PROGRAM))["fill"](filled, replays)
    own = model.replay_buffer
    assert isinstance(own, ReplayBuffer)
    assert (filled.pos, own.pos) == (120, 120)
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        np.testing.assert_array_equal(getattr(filled, name)[:120], getattr(own, name)[:120], name)
    assert filled.timeouts.any()


def test_the_program(tmp_path: Path) -> None:
    options = ["--record", "2048", "--envs", "2", "--steps", "150", "--games", "2"]
    lines = printed(PROGRAM, tmp_path / "replays", *options)
    assert re.match(r"recorded: reward \S+ in \d+ episodes", lines[0])
    assert re.match(r"learned: reward \S+ in 2 games", lines[-2])
    assert re.match(r"150 steps, \d+ s; the recording is in ", lines[-1])
    with ReplayReader.open(tmp_path / "replays") as replays:
        assert [run.steps for run in replays.recordings.values()] == [1024, 1024]


def test_the_lines_in_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_block("from stable_baselines3")

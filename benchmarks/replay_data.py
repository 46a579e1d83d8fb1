"""Atari as it is recorded: frames of 210 x 160 x 3, and what an agent sees of them, 84 x 84 x 4.

Played by chance with a fixed seed, every frame the fourth of the console's own. Kept in
bench-data for the next run.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.rows import FOLDER

GAMES = ("Breakout", "Seaquest", "MsPacman")
STEPS = 1000
"""Steps of each game."""
FRAME, OBSERVATION = (210, 160, 3), (84, 84, 4)
FRAME_BYTES, OBSERVATION_BYTES = 210 * 160 * 3, 84 * 84 * 4

gymnasium.register_envs(ale_py)
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


@dataclass(frozen=True)
class Played:
    """Steps of one game or of several, one behind the other."""

    frames: NDArray[np.uint8]
    observations: NDArray[np.uint8]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.frames)

    def around(self, count: int) -> Iterator[dict[str, Any]]:
        """So many steps, as a writer takes them; from the front again after the last."""
        for i in range(count):
            k = i % len(self)
            yield {
                "frame": self.frames[k],
                "observation": self.observations[k],
                "action": int(self.actions[k]),
                "reward": float(self.rewards[k]),
            }


def environment(game: str) -> Any:
    return gymnasium.make(f"ALE/{game}-v5", frameskip=4, repeat_action_probability=0)


class Sight:
    """What an agent sees: the last four frames, small and grey."""

    def __init__(self) -> None:
        self._planes = np.zeros(OBSERVATION, np.uint8)

    def __call__(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        grey = Image.fromarray(frame).convert("L").resize((84, 84), Image.Resampling.BILINEAR)
        self._planes = np.concatenate([self._planes[..., 1:], np.asarray(grey)[..., None]], axis=2)
        return self._planes


def played(game: str, steps: int = STEPS) -> Played:
    """A game, from the last run or played now."""
    path = FOLDER / f"atari-{game}-{steps}.npz"
    if not path.exists():
        FOLDER.mkdir(exist_ok=True)
        beside = path.with_name(f"new-{path.name}")
        np.savez(beside, **_play(game, steps))
        beside.rename(path)
    with np.load(path) as found:
        return Played(*(found[name] for name in Played.__dataclass_fields__))


def all_played(steps: int = STEPS) -> Played:
    """All games, a stretch of each in turn as three environments side by side would give them."""
    games = [played(game, steps) for game in GAMES]
    return Played(
        *(
            np.stack([getattr(game, name) for game in games], axis=1).reshape(
                -1, *getattr(games[0], name).shape[1:]
            )
            for name in Played.__dataclass_fields__
        )
    )


def _play(game: str, steps: int) -> dict[str, Any]:
    env = environment(game)
    rng = np.random.default_rng(0)
    frames, observations, actions, rewards = [], [], [], []
    frame, _ = env.reset(seed=0)
    sight = Sight()
    for _ in range(steps):
        action = int(rng.integers(env.action_space.n))
        frames.append(frame)
        observations.append(sight(frame))
        actions.append(action)
        frame, reward, terminated, truncated, _ = env.step(action)
        rewards.append(float(reward))
        if terminated or truncated:
            frame, _ = env.reset()
            sight = Sight()
    env.close()
    return {
        "frames": np.array(frames),
        "observations": np.array(observations),
        "actions": np.array(actions),
        "rewards": np.array(rewards),
    }


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """An empty folder, gone afterwards."""
    path = FOLDER / f"replay-{name}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())

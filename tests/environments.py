"""Environments for tests: one with every kind of space, and one that keeps a log of its own."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

__all__ = ["Everything", "Log", "make_everything"]


class Everything(gym.Env[Any, Any]):
    """Observations and actions of nested spaces; pictures that tell the step.

    What it returns is in an order that is not that of its space and, with `reuse`, its own memory,
    which the next step changes.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (6, 8, 3), np.uint8),
            "place": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(9))),
            "switches": spaces.MultiBinary(5),
        }
    )
    action_space = spaces.Dict(
        {"push": spaces.Box(-1, 1, (3,), np.float32), "mode": spaces.Discrete(4)}
    )

    def __init__(
        self, length: int = 7, render_mode: str | None = "rgb_array", reuse: bool = True
    ) -> None:
        self.render_mode = render_mode
        self._reuse = reuse
        self._length = length
        self._episode = self._step = 0
        self._camera = np.zeros((6, 8, 3), np.uint8)
        self._screen = np.zeros((10, 12, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._step = self._episode + 1, 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        reward = float(action["push"].sum()) + int(action["mode"])
        action["push"][:] = 0  # an environment may do that
        over = self._step == self._length
        even = self._episode % 2 == 0
        return self._see(), reward, over and even, over and not even, {"step": self._step}

    def render(self) -> Any:
        self._screen[...] = (self._episode * 16 + self._step) % 256
        return self._screen

    def _see(self) -> dict[str, Any]:
        self._camera[...] = self.np_random.integers(256, size=self._camera.shape)
        place = self.np_random.uniform(-1, 1, 2)  # float64, where the space says float32
        return {
            "switches": [self._step % 2] * 5,
            "place": (place, self._step % 9),
            "camera": self._camera if self._reuse else self._camera.copy(),
        }


def make_everything(length: int = 7) -> gym.Env[Any, Any]:
    return Everything(length)


class Log(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps what happens in an environment, in the plainest way, to compare with."""

    def __init__(self, env: gym.Env[Any, Any], frames: bool = False) -> None:
        super().__init__(env)
        self.frames = frames
        self.log: list[dict[str, Any]] = []

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        self.log.append({"seen": [copied(observation)], "steps": [], "frames": []})
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        given = copied(action)
        if self.frames:
            self.log[-1]["frames"].append(copied(self.env.render()))
        result = self.env.step(action)
        observation, reward, terminated, truncated, info = result
        self.log[-1]["steps"].append((given, float(reward), terminated, truncated, dict(info)))
        self.log[-1]["seen"].append(copied(observation))
        return result


def copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(copied(inner) for inner in value)
    return np.array(value)

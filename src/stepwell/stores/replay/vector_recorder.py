"""Vector environments that record themselves, whenever and however they reset their members.

Next step: after the end of an episode a step resets, and its action and reward are nobody's.
Same step: the step that ends an episode already shows the first observation of the next one, and
`final_obs` in its infos the last of this one. Disabled: whoever steps also resets, by a mask.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate

from stepwell.stores.replay.recording import Recorded, Recording, frame_interval, picture

__all__ = ["RecordedVectorEnv"]


class RecordedVectorEnv(Recorded, VectorWrapper):
    """A vector of environments that records itself; see `Record`."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        root: str | os.PathLike[str],
        frames: str | None,
        run_id: str | None,
        infos: bool,
        options: dict[str, Any],
    ) -> None:
        super().__init__(env)
        self._mode = _autoreset_mode(env)
        self._recording = Recording(
            root,
            run_id,
            env,
            env.single_observation_space,
            env.single_action_space,
            [f"env{i}" for i in range(env.num_envs)],
            every=frame_interval(frames, env.render_mode),
            infos=infos,
            options=options,
        )

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

    def close(self, **kwargs: Any) -> None:
        """Close the environments and the writer."""
        try:
            self._recording.close()
        finally:
            super().close(**kwargs)

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


def _autoreset_mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    stated = env.metadata.get("autoreset_mode")
    if stated is None:
        raise ValueError(f"{env}: expected metadata['autoreset_mode'], got none")
    return AutoresetMode(stated)


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

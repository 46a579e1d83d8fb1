"""Episodes of a replay store: as a table, and everything recorded of one."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from stepwell.errors import FormatError
from stepwell.lazy import lazy
from stepwell.source import Rows
from stepwell.store import QueryTable, Runs, Table
from stepwell.stores.replay.channels import ACTIONS, FRAMES, OBSERVATIONS, Tree
from stepwell.stores.replay.database import EPISODE_COLUMNS, STEP_COLUMNS, Episode
from stepwell.stores.replay.refs import FrameRef
from stepwell.stores.replay.resolver import FrameResolver


class EpisodeTable(QueryTable, Runs):
    """Episodes as the runs of a reader's rows, with their columns of the database."""

    def __init__(
        self, rows: Sequence[tuple[Any, ...]], extents: Callable[[], tuple[Rows, Rows]]
    ) -> None:
        super().__init__(EPISODE_COLUMNS, rows)
        self._extents = extents

    @property
    def starts(self) -> Rows:
        return self._extents()[0]

    @property
    def counts(self) -> Rows:
        return self._extents()[1]


class EpisodeList(Table[Episode]):
    """Episodes as objects: `episodes[7].total_reward`; their fields are the columns."""

    def __init__(self, episodes: Sequence[Episode]) -> None:
        self._episodes = episodes

    def __len__(self) -> int:
        return len(self._episodes)

    @property
    def columns(self) -> list[str]:
        return list(EPISODE_COLUMNS)

    def _select(self, names: Sequence[str], wanted: range) -> list[tuple[Any, ...]]:
        return [tuple(getattr(each, name) for name in names) for each in self._dicts(wanted)]

    def _dicts(self, wanted: range) -> list[Any]:
        return list(self._episodes[wanted.start : wanted.stop])


class EpisodeSteps:
    """The steps of an episode in order, arrays with a row for each.

    `observations` and `actions` are arrays, or dicts of arrays, with a row for each step that has
    one: all of them, or those that `observation_steps` and `action_steps` count. `frames` has
    those of the steps in `frame_steps`.
    """

    def __init__(
        self,
        resolver: FrameResolver,
        episode: Episode,
        rows: Sequence[Sequence[Any]],
        observations: bool,
        frames: bool,
        action_dtype: np.dtype[Any] | None = None,
    ) -> None:
        """`rows` are those of the database, in the order of its columns; `action_dtype` is that
        which scalar actions were recorded in."""
        self.episode = episode
        columns: Any = list(zip(*rows, strict=True)) or [()] * len(STEP_COLUMNS)
        columns = dict(zip(STEP_COLUMNS, columns, strict=False))
        self.step_index = np.array(columns["step_index"], np.int64)
        self.rewards = np.array(columns["reward"], np.float64)
        self.terminated = np.array(columns["terminated"], bool)
        self.truncated = np.array(columns["truncated"], bool)
        self.timestamps: tuple[str, ...] = columns["timestamp"]
        self._infos = columns["info"]
        self.frame_steps, self.frames = _resolved(resolver, FRAMES, columns["frame_ref"], frames)
        self.observation_steps, self.observations = _resolved(
            resolver, OBSERVATIONS, columns["obs_ref"], observations
        )
        self.final_observation: Tree = None
        if observations and episode.final_obs_ref is not None:
            self.final_observation = resolver.resolve(episode.final_obs_ref, missing="raise")
        self.action_steps, self.actions = _actions(resolver, columns["action"], action_dtype)

    def __len__(self) -> int:
        return len(self.rewards)

    @lazy
    def infos(self) -> list[dict[str, Any]]:
        """The info of each step, a dict."""
        return [_info(self.episode.episode_id, info) for info in self._infos]

    def __repr__(self) -> str:
        return (
            f"EpisodeSteps({self.episode.episode_id!r}, {len(self)} steps, "
            f"{len(self.frame_steps)} frames, reward {self.rewards.sum():g})"
        )


class RecordedStep(NamedTuple):
    """One step: its row of the database, with the arrays that its references lead to."""

    episode_id: str
    step_index: int
    action: Tree
    reward: float
    terminated: bool
    truncated: bool
    frame_ref: str | None
    obs_ref: str | None
    info: dict[str, Any]
    timestamp: str
    agent_id: str | None
    run_id: str
    frame: Tree = None
    observation: Tree = None


def recorded_steps(
    resolver: FrameResolver, rows: Sequence[Sequence[Any]], observations: bool, frames: bool
) -> list[RecordedStep]:
    """Rows of the database as objects, in their order."""
    made = [RecordedStep(*row[: len(STEP_COLUMNS)]) for row in rows]
    resolve = partial(resolver.resolve_batch, missing="raise")
    drawn = resolve([step.frame_ref if frames else None for step in made])
    seen = resolve([step.obs_ref if observations else None for step in made])
    acted = resolve([step.action if isinstance(step.action, str) else None for step in made])
    return [
        step._replace(
            action=step.action if action is None else action,
            terminated=bool(step.terminated),
            truncated=bool(step.truncated),
            info=_info(step.episode_id, step.info),
            frame=frame,
            observation=observation,
        )
        for step, frame, observation, action in zip(made, drawn, seen, acted, strict=True)
    ]


def _resolved(
    resolver: FrameResolver, kind: str, refs: Sequence[str | None], wanted: bool
) -> tuple[Rows, Tree]:
    """Which steps have a reference, and the arrays of those."""
    steps = np.array([i for i, ref in enumerate(refs) if ref is not None], np.int64)
    if not wanted or not len(steps):
        return steps, None
    groups = FrameRef.grouped(refs, strict=True)
    if len(groups) > 1:
        raise FormatError(f"{kind}: the references of an episode lead to several datasets")
    (((run_id, dataset), found),) = groups.items()
    return steps, resolver.read(run_id, dataset, [row for _, row in found])


def _actions(
    resolver: FrameResolver, values: Sequence[Any], dtype: np.dtype[Any] | None
) -> tuple[Rows, Tree]:
    """Numbers stand in the database, where it can hold them; anything else in the file."""
    there = [value for value in values if value is not None]
    if not there or all(isinstance(value, str) for value in there):
        return _resolved(resolver, ACTIONS, values, True)
    steps = np.array([i for i, value in enumerate(values) if value is not None], np.int64)
    numbers = [
        resolver.resolve(value, missing="raise") if isinstance(value, str) else value
        for value in there
    ]
    return steps, np.array(numbers, dtype)


def _info(episode_id: str, text: Any) -> dict[str, Any]:
    if not text:
        return {}
    try:
        info = json.loads(text)
        if not isinstance(info, dict):
            raise TypeError(f"expected a dict, got {type(info).__name__}")
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"{episode_id}: an info that is not JSON: {error}") from None
    return info

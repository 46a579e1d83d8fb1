"""The steps of episodes as a source: what was seen, done and received, and what was seen next."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import FormatError, SchemaError
from stepwell.source import Batch, Field, Rows, Schema, Source
from stepwell.stores.replay.channels import ACTIONS, FRAMES, OBSERVATIONS, Channel
from stepwell.stores.replay.layout import STEP_COLUMNS, STEPS
from stepwell.stores.replay.resolver import FrameResolver
from stepwell.stores.replay.rows import RunFile

__all__ = ["EpisodeSpan", "ReplaySteps", "RunSteps", "Steps"]


class EpisodeSpan(NamedTuple):
    """An episode as a source needs it."""

    number: int
    steps: int
    dropped: int
    final_row: int
    """The row of what was seen after the last step, -1 where nothing was."""


@dataclass(frozen=True)
class RunSteps:
    """Some episodes of a run, and what the run's file holds."""

    run_id: str
    steps: int
    channels: tuple[Channel, ...]
    episodes: Sequence[EpisodeSpan]


class Steps(NamedTuple):
    """Columns of numbers, a row a step, episode after episode."""

    run: NDArray[np.int32]
    frame: Rows
    observation: Rows
    action: Rows
    next_observation: Rows
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    discount: NDArray[np.float64]


class ReplaySteps(Source):
    """Steps of a replay store. Rows are in order inside an episode, episodes one after another.

    Fields are `observation`, `action`, `reward`, `next_observation`, `terminated` and
    `truncated`, and `frame` when asked for; of a dict observation each array is a field,
    `observation/camera`. With `n_step` above 1, `reward` is the sum of the next n rewards, each
    discounted by `gamma` once more than the one before, `next_observation` is what was seen after
    them, and `discount` is what the value of that has to be multiplied by.

    A step after which nothing was seen is left out when there is a `next_observation`, unless it
    was terminated: then it is zeros, and not to be used. Steps without a frame are left out when
    frames are asked for.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        runs: Sequence[RunSteps],
        *,
        next_observation: bool = True,
        frames: bool = False,
        n_step: int = 1,
        gamma: float = 0.99,
    ) -> None:
        if n_step < 1:
            raise ValueError(f"n_step: expected at least 1, got {n_step}")
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma: expected 0 to 1, got {gamma}")
        self._root = Path(root).absolute()  # wherever the process goes later
        self._given = list(runs)
        self._options: dict[str, Any] = {
            "next_observation": next_observation,
            "frames": frames,
            "n_step": n_step,
            "gamma": gamma,
        }
        self._resolver = FrameResolver(root)
        used = [run for run in runs if run.episodes and run.steps]
        self._run_ids = [run.run_id for run in used]
        self._channels = _common(used, frames)
        self._schema = self._make_schema()
        parts = [self._load(number, run) for number, run in enumerate(used)]
        columns, lengths = zip(*parts, strict=True) if parts else ((), ())
        self._steps = _joined(columns)
        self._lengths = np.concatenate(lengths) if parts else np.empty(0, np.int64)

    @property
    def schema(self) -> Schema:
        return self._schema

    def __len__(self) -> int:
        return 0 if self._steps is None else len(self._steps.reward)

    @property
    def path(self) -> Path:
        return self._root

    def close(self) -> None:
        self._resolver.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._root, self._given, self._options)

    @property
    def episode_lengths(self) -> Rows:
        """The rows of each episode, in the order of the rows: run after run."""
        return self._lengths

    def _runs(self) -> tuple[Rows, Rows]:
        return np.cumsum(self._lengths) - self._lengths, self._lengths

    def _make_schema(self) -> dict[str, Field]:
        fields: dict[str, Field] = {}
        wanted = [OBSERVATIONS, ACTIONS, *([FRAMES] if self._options["frames"] else [])]
        for channel in self._channels:
            kind, _, rest = channel.name.partition("/")
            if kind in wanted:
                fields[_field_name(kind, rest)] = Field(channel.dtype, channel.shape)
        if self._options["next_observation"]:
            for name, field in list(fields.items()):
                if name.split("/")[0] == "observation":
                    fields["next_" + name] = field
        fields["reward"] = Field(np.dtype(np.float64))
        fields["terminated"] = fields["truncated"] = Field(np.dtype(bool))
        if self._options["n_step"] > 1:
            fields["discount"] = Field(np.dtype(np.float64))
        return fields

    def _load(self, number: int, run: RunSteps) -> tuple[Steps, Rows]:
        """The columns of a run, and the number of rows of each of its episodes."""
        file = self._resolver.file(run.run_id)
        if not isinstance(file, RunFile):
            raise FormatError("expected a file of a replay store", path=str(file.path))
        places = file.read_all(STEPS, run.steps)
        rewards = file.read_all("rewards", run.steps)
        dones = file.read_all("dones", run.steps)
        if places.shape != (run.steps, len(STEP_COLUMNS)):
            raise FormatError(f"{STEPS}: rows of {places.shape[1:]}", path=str(file.path))
        rows, episode = _rows_of(places[:, 0], np.array([e.number for e in run.episodes]))
        _, index, frame, observation, action = places[rows].T
        # A stretch is a part of an episode without a gap. What follows its last step is nothing,
        # or what was seen after the episode.
        last = np.append((np.diff(episode) != 0) | (np.diff(index) != 1), [True])[: len(rows)]
        following = np.append(observation[1:], -1)[: len(rows)]
        following[last] = -1
        whole = np.array([e.steps + e.dropped for e in run.episodes], np.int64)[episode]
        final = np.array([e.final_row for e in run.episodes], np.int64)[episode]
        at_end = last & (index + 1 == whole)
        following[at_end] = final[at_end]
        reached, reward, discount = _look_ahead(
            rewards[rows], last, self._options["n_step"], self._options["gamma"]
        )
        done = dones[rows[reached]]
        terminated, truncated = (done & 1).astype(bool), (done & 2).astype(bool)
        following = following[reached]
        discount[terminated] = 0
        kept = np.ones(len(rows), bool)
        kinds = {channel.name.split("/")[0] for channel in self._channels}
        if OBSERVATIONS in kinds:
            kept &= observation >= 0
            if self._options["next_observation"]:
                kept &= (following >= 0) | terminated
        if ACTIONS in kinds:
            kept &= action >= 0
        if self._options["frames"]:
            kept &= frame >= 0
        runs = np.full(len(rows), number, np.int32)
        columns = (
            runs, frame, observation, action, following, reward, terminated, truncated, discount
        )  # fmt: skip
        lengths = np.bincount(episode[kept], minlength=len(run.episodes))
        return Steps(*(np.ascontiguousarray(column[kept]) for column in columns)), lengths

    def _fill(self, rows: Rows, out: Batch) -> None:
        steps = self._steps
        if steps is None:  # nothing is there, and nothing was asked for
            return
        for name in ("reward", "terminated", "truncated", "discount"):
            if name in out:
                getattr(steps, name).take(rows, out=out[name])
        runs = steps.run[rows]
        for number in np.unique(runs):
            here = np.flatnonzero(runs == number)
            for channel in self._channels:
                kind, _, rest = channel.name.partition("/")
                name = _field_name(kind, rest)
                if name in out:
                    wanted = getattr(steps, kind[:-1])[rows[here]]
                    self._read(int(number), channel.name, wanted, out[name], here)
                if "next_" + name in out:
                    wanted = steps.next_observation[rows[here]]
                    self._read(int(number), channel.name, wanted, out["next_" + name], here)

    def _fill_columns(self, rows: Rows, out: Batch, names: Sequence[str]) -> None:
        self._fill(rows, out)  # which leaves alone what is not in `out`

    def _read(self, run: int, name: str, wanted: Rows, out: NDArray[Any], here: Rows) -> None:
        """Put rows of a dataset to the places `here` of `out`; zeros where there is no row."""
        file = self._resolver.file(self._run_ids[run])
        there = wanted >= 0
        if len(here) == len(out) and there.all():
            file.read(name, wanted, out)
            return
        out[here[~there]] = 0
        out[here[there]] = file.read(name, wanted[there])


def _joined(parts: Sequence[Steps]) -> Steps | None:
    return Steps(*map(np.concatenate, zip(*parts, strict=True))) if parts else None


def _again(root: Path, runs: Sequence[RunSteps], options: dict[str, Any]) -> ReplaySteps:
    return ReplaySteps(root, runs, **options)


def _field_name(kind: str, rest: str) -> str:
    return f"{kind[:-1]}/{rest}" if rest else kind[:-1]


def _common(runs: Sequence[RunSteps], frames: bool) -> list[Channel]:
    """The channels of all runs. Raises `SchemaError` when two runs do not agree on them."""

    def fields(run: RunSteps) -> dict[str, str]:
        kinds = (OBSERVATIONS, ACTIONS, FRAMES) if frames else (OBSERVATIONS, ACTIONS)
        return {
            c.name: f"{c.dtype} {c.shape}" for c in run.channels if c.name.split("/")[0] in kinds
        }

    for run in runs[1:]:
        if fields(run) != fields(runs[0]):
            raise SchemaError(
                f"run {run.run_id!r} has {fields(run)}, run {runs[0].run_id!r} {fields(runs[0])}"
            )
    return list(runs[0].channels) if runs else []


def _rows_of(numbers: NDArray[np.int64], wanted: NDArray[np.int64]) -> tuple[Rows, Rows]:
    """The rows of each wanted episode, in order, and which of them each row belongs to."""
    order = np.argsort(numbers, kind="stable")
    first = np.searchsorted(numbers, wanted, "left", sorter=order)
    counts = np.searchsorted(numbers, wanted, "right", sorter=order) - first
    episode = np.repeat(np.arange(len(wanted)), counts)
    within = np.arange(len(episode)) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[np.repeat(first, counts) + within], episode


def _look_ahead(
    reward: NDArray[np.float64], last: NDArray[np.bool_], n: int, gamma: float
) -> tuple[Rows, NDArray[np.float64], NDArray[np.float64]]:
    """For each step the one n - 1 later or the last of its stretch, the rewards up to there, and
    the discount behind it."""
    count = len(reward)
    ends = np.flatnonzero(last)
    end = ends[np.searchsorted(ends, np.arange(count))] if count else np.empty(0, np.int64)
    reached = np.minimum(np.arange(count) + n - 1, end)
    total = np.zeros(count)
    for k in range(n):
        there = np.flatnonzero(np.arange(count) + k <= reached)
        if not len(there):
            break
        total[there] += gamma**k * reward[there + k]
    discount = np.power(np.float64(gamma), reached - np.arange(count) + 1)
    return reached, total, discount

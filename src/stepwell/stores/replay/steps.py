"""The steps of episodes as rows: observation, action, reward and next observation.

Everything here is columns of scalars, which come from the run's file without its arrays. Where the
arrays of a row are is one of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import FormatError, SchemaError
from stepwell.source import Field, Rows
from stepwell.stores.replay.channels import ACTIONS, FRAMES, KINDS, OBSERVATIONS
from stepwell.stores.replay.database import Episode, RunRow
from stepwell.stores.replay.layout import CHECKSUMS
from stepwell.stores.replay.rows import RunFile
from stepwell.stores.replay.scalars import ScalarRun
from stepwell.transitions import check_steps, look_ahead, reach, to_go

OpenRun = Callable[[RunRow, Sequence[Episode]], RunFile | ScalarRun]


@dataclass(frozen=True)
class StepOptions:
    """Which rows and fields a reader makes of steps."""

    next_observation: bool = True
    frames: bool = False
    n_step: int = 1
    gamma: float = 0.99
    returns: float | None = None
    """With it rewards are returns to go, discounted by this."""
    every_step: bool = False
    """Whether none is left out: one without a frame has that of a step before, zeros stand for
    whatever else was not recorded."""

    def __post_init__(self) -> None:
        check_steps(self.n_step, self.gamma)


class StepTable(NamedTuple):
    """Columns of scalars, a row a step, episode after episode."""

    run: NDArray[np.int32]
    frame: Rows
    observation: Rows
    action: Rows
    next_observation: Rows
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    discount: NDArray[np.float64]


def load_steps(
    open_run: OpenRun,
    runs: Iterable[tuple[RunRow, Sequence[Episode]]],
    options: StepOptions,
) -> tuple[StepTable, Rows]:
    """The rows of some episodes of some runs, and how many each episode has."""
    parts = [_load(open_run, i, run, some, options) for i, (run, some) in enumerate(runs)]
    if not parts:
        return _NOTHING, np.empty(0, np.int64)
    tables, lengths = zip(*parts, strict=True)
    return StepTable(*map(np.concatenate, zip(*tables, strict=True))), np.concatenate(lengths)


_TYPES = ("i4", *["i8"] * 4, "f8", "?", "?", "f8")
_NOTHING = StepTable(*(np.empty(0, dtype) for dtype in _TYPES))


def _load(
    open_run: OpenRun,
    number: int,
    run: RunRow,
    episodes: Sequence[Episode],
    options: StepOptions,
) -> tuple[StepTable, Rows]:
    """The same for one run."""
    if not run.steps:
        return _NOTHING, np.zeros(len(episodes), np.int64)
    file = open_run(run, episodes)
    if run.steps > run.written:
        message = f"run {run.run_id!r}: expected at most {run.written:,} steps, got {run.steps:,}"
        raise FormatError(message, path=str(file.path))
    places, rewards, dones = file.read_steps(run.written)
    rows, episode = _rows_of(places[:, 0], np.array([e.number for e in episodes], np.int64))
    _check(run, episodes, episode, places, file.path)
    _, index, frame, observation, action = places[rows].T
    # A stretch is a part of an episode without a gap. Nothing follows its last step,
    # or what was seen after the episode.
    last = np.append((np.diff(episode) != 0) | (np.diff(index) != 1), [True])[: len(rows)]
    last |= dones[rows] != 0  # old telemetry goes on with the name of an episode that ended
    following = np.append(observation[1:], -1)[: len(rows)]
    following[last] = -1
    whole = np.array([e.steps + e.dropped for e in episodes], np.int64)[episode]
    final = np.array([e.final_row for e in episodes], np.int64)[episode]
    at_end = last & (index + 1 == whole)
    following[at_end] = final[at_end]
    reached = reach(last, options.n_step)
    reward, discount = look_ahead(rewards[rows], reached, options.n_step, options.gamma)
    if options.returns is not None:
        reward = to_go(rewards[rows], last, at_end | (dones[rows] != 0), options.returns)
    done = dones[rows[reached]]
    terminated, truncated = (done & 1).astype(bool), (done & 2).astype(bool)
    following = following[reached]
    discount[terminated] = 0
    kept = np.ones(len(rows), bool)
    kinds = {channel.kind for channel in run.channels}
    if options.every_step:
        frame, kinds, options = _filled(frame, episode), set(), replace(options, frames=False)
    if OBSERVATIONS in kinds:
        kept &= observation >= 0
        if options.next_observation:
            kept &= (following >= 0) | terminated
    if ACTIONS in kinds:
        kept &= action >= 0
    if options.frames:
        kept &= frame >= 0
    runs = np.full(len(rows), number, np.int32)
    columns = (
        runs, frame, observation, action, following, reward, terminated, truncated, discount
    )  # fmt: skip
    lengths = np.bincount(episode[kept], minlength=len(episodes))
    return StepTable(*(np.ascontiguousarray(column[kept]) for column in columns)), lengths


def _filled(frame: Rows, episode: Rows) -> Rows:
    """For each step the last frame up to it, of its episode."""
    last = np.maximum.accumulate(np.where(frame >= 0, np.arange(len(frame)), 0))
    return np.where(episode[last] == episode, frame[last], -1)


def _check(
    run: RunRow, episodes: Sequence[Episode], episode: Rows, places: Rows, path: Path
) -> None:
    """Raise `FormatError` unless the database has the steps that the file has, and their arrays."""
    found = np.bincount(episode, minlength=len(episodes))
    for each, count in zip(episodes, found.tolist(), strict=True):
        if each.steps != count:
            message = f"{each.episode_id}: expected {each.steps:,} steps, got {count:,}"
            raise FormatError(message, path=str(path))
    if run.rows:
        check_arrays(run, places, max((e.final_row for e in episodes), default=-1), path)


def check_arrays(run: RunRow, places: Rows, final: int, path: Path) -> None:
    """Raise `FormatError` when the database counts fewer rows of an array than its steps, or what
    was seen in the end, are in."""
    last = dict(zip(KINDS, places[:, 2:].max(0, initial=-1).tolist(), strict=True))
    last[OBSERVATIONS] = max(last[OBSERVATIONS], final)
    for kind, row in last.items():
        for name in [c.name for c in run.channels if c.kind == kind] or [kind]:
            counts = {run.rows.get(each, 0) for each in (name, f"{CHECKSUMS}/{name}")}
            if min(counts) <= row:
                message = f"{name}: expected at least {row + 1:,} rows, got {min(counts):,}"
                raise FormatError(f"run {run.run_id!r}: {message}", path=str(path))


def common_fields(runs: Sequence[RunRow], options: StepOptions) -> dict[str, Field]:
    """The fields of the rows of all runs, in order.

    Raises `SchemaError`, naming them, when two runs recorded unlike arrays.
    """
    kinds = (OBSERVATIONS, ACTIONS, FRAMES) if options.frames else (OBSERVATIONS, ACTIONS)
    found = [_fields(run, kinds) for run in runs]
    for run, fields in zip(runs[1:], found[1:], strict=True):
        if fields != found[0]:
            raise SchemaError(
                f"expected runs that recorded the same arrays, got {_words(found[0])} in the run "
                f"{runs[0].run_id!r} and {_words(fields)} in the run {run.run_id!r}; choose some "
                f'with run={run.run_id!r} or where("run_id = {run.run_id!r}")'
            )
    fields = found[0] if found else {}
    made = dict(fields)
    if options.next_observation:
        made |= {f"next_{n}": f for n, f in fields.items() if n.split("/")[0] == "observation"}
    made["reward"] = Field(np.dtype(np.float64))
    made["terminated"] = made["truncated"] = Field(np.dtype(bool))
    if options.n_step > 1:
        made["discount"] = Field(np.dtype(np.float64))
    return made


def _fields(run: RunRow, kinds: Sequence[str]) -> dict[str, Field]:
    return {field_name(c.name): c.field for c in run.channels if c.kind in kinds}


def fields_in_words(run: RunRow) -> str:
    """Every array of a run."""
    return _words(_fields(run, KINDS))


def _words(fields: Mapping[str, Field]) -> str:
    return ", ".join(f"{name}: {field}" for name, field in fields.items()) or "none"


def field_name(dataset: str) -> str:
    """The name of an array in a row: that of `observations/camera` is `observation/camera`."""
    kind, slash, rest = dataset.partition("/")
    return f"{kind[:-1]}{slash}{rest}"


def dataset_name(field: str) -> str:
    """The reverse; what is seen next is in the same dataset."""
    kind, slash, rest = field.removeprefix("next_").partition("/")
    return f"{kind}s{slash}{rest}"


def _rows_of(numbers: NDArray[np.int64], wanted: NDArray[np.int64]) -> tuple[Rows, Rows]:
    """The rows of each wanted episode, in order, and which of them each row belongs to."""
    if len(wanted) == 1:
        rows = np.flatnonzero(numbers == wanted[0])
        return rows, np.zeros(len(rows), np.int64)
    order = np.argsort(numbers, kind="stable")
    first = np.searchsorted(numbers, wanted, "left", sorter=order)
    counts = np.searchsorted(numbers, wanted, "right", sorter=order) - first
    episode = np.repeat(np.arange(len(wanted)), counts)
    within = np.arange(len(episode)) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[np.repeat(first, counts) + within], episode

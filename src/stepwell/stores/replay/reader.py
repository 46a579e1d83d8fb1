"""Runs and episodes of a replay store, and everything that was recorded of them."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, overload

import numpy as np

from stepwell.errors import FormatError
from stepwell.files.catalog import query, select_ids
from stepwell.files.lock import is_locked
from stepwell.lazy import lazy
from stepwell.source import Rows
from stepwell.stores.replay.channels import ACTIONS, FRAMES, OBSERVATIONS, Tree, assemble
from stepwell.stores.replay.database import EPISODE_COLUMNS, RunRow, reading, run_rows
from stepwell.stores.replay.layout import database_path, lock_path
from stepwell.stores.replay.refs import FrameRef
from stepwell.stores.replay.resolver import FrameResolver
from stepwell.stores.replay.rows import RunFile
from stepwell.stores.replay.source import EpisodeSpan, ReplaySteps, RunSteps
from stepwell.stores.replay.verify import find_problems

__all__ = ["Episode", "EpisodeSteps", "Episodes", "ReplayReader"]


@dataclass(frozen=True, slots=True)
class Episode:
    """A row of the table of episodes. `number` counts the episodes of a run."""

    episode_id: str
    run_id: str
    number: int
    agent_id: str | None
    total_reward: float
    steps: int
    dropped: int
    ended: bool
    terminated: bool
    truncated: bool
    started_at: str
    ended_at: str | None
    final_obs_ref: str | None


class ReplayReader:
    """A replay store. Every question is answered with what was committed by then.

    Safe from any thread, and beside writers.
    """

    def __init__(self, root: str | os.PathLike[str], *, open_files: int = 16) -> None:
        self.root = Path(root).absolute()  # wherever the process goes later
        self._database = database_path(self.root)
        with reading(self._database):
            pass
        self.resolver = FrameResolver(self.root, open_files=open_files)

    @property
    def runs(self) -> dict[str, RunRow]:
        """Every run by its name; `state` is "recording", "closed" or "interrupted"."""
        with reading(self._database) as database:
            found = run_rows(database, self._database)
        return {name: self._with_state(run) for name, run in found.items()}

    def _with_state(self, run: RunRow) -> RunRow:
        """A writer that was killed has left its run as "recording", and its lock to anyone."""
        if run.state == "recording" and not is_locked(lock_path(self.root, run.run_id)):
            return run.replaced(state="interrupted")
        return run

    @property
    def episodes(self) -> "Episodes":
        """Every episode, those that are still going on too."""
        return self.where("1")

    def where(self, condition: str, *values: Any) -> "Episodes":
        """The episodes for which an SQL condition over their columns holds."""
        with reading(self._database) as database:
            chosen = select_ids(database, "episodes", "rowid", EPISODE_COLUMNS, condition, values)
            rows = database.execute(
                f"SELECT rowid, {', '.join(EPISODE_COLUMNS)} FROM episodes ORDER BY rowid"
            ).fetchall()
        wanted = set(chosen.tolist())
        return Episodes(self, [self._episode(row[1:]) for row in rows if row[0] in wanted])

    def query(self, sql: str, *values: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The columns and rows that any SQL question gives; nothing can be changed."""
        with reading(self._database) as database:
            return query(database, sql, values)

    def episode(
        self, episode_id: str, *, observations: bool = True, frames: bool = True
    ) -> "EpisodeSteps":
        """Everything that was recorded of an episode. Raises `KeyError` when there is none."""
        with reading(self._database) as database:
            found = database.execute(
                f"SELECT {', '.join(EPISODE_COLUMNS)} FROM episodes WHERE episode_id = ?",
                (episode_id,),
            ).fetchone()
            if found is None:
                raise KeyError(f"there is no episode {episode_id!r} - at {self._database}")
            rows = database.execute(
                "SELECT step_index, action, reward, terminated, truncated, frame_ref, obs_ref, "
                "info, timestamp FROM steps WHERE episode_id = ? ORDER BY step_index",
                (episode_id,),
            ).fetchall()
        return EpisodeSteps(self, self._episode(found), rows, observations, frames)

    def steps(self, *runs: str, **options: Any) -> ReplaySteps:
        """The steps of these runs, or of all, as a source; for `options` see `ReplaySteps`."""
        known = self.runs
        for name in runs:
            if name not in known:
                raise KeyError(f"there is no run {name!r}; there are {list(known)}")
        places = ", ".join("?" * len(runs))
        chosen = self.where(f"run_id IN ({places})", *runs) if runs else self.episodes
        return chosen.steps(**options)

    def sizes(self, run_id: str) -> dict[str, tuple[int, int]]:
        """Bytes of each array of a run: of its rows, and of the same in the file."""
        run = self.runs[run_id]
        found = {}
        for channel in run.channels:
            file, rows = self.resolver.file(run_id), run.rows.get(channel.name, 0)
            raw = rows * channel.row_bytes
            stored = file.stored_bytes(channel.name, rows) if isinstance(file, RunFile) else raw
            found[channel.name] = (raw, stored)
        return found

    def verify(self, *, on_progress: Callable[[int, int], None] | None = None) -> list[FormatError]:
        """What is wrong with the store, at most a hundred of it: every array against its sum, every
        reference, and the numbers in SQLite against those in HDF5."""
        return find_problems(self.root, self.resolver, on_progress)

    def close(self) -> None:
        self.resolver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ReplayReader({str(self.root)!r}, {len(self.runs)} runs)"

    def _episode(self, row: Sequence[Any]) -> Episode:
        values = dict(zip(EPISODE_COLUMNS, row, strict=True))
        for name in ("number", "steps", "dropped"):
            if not isinstance(values[name], int):
                raise FormatError(
                    f"{values['episode_id']!r}: {name}: expected a number, got {values[name]!r}",
                    path=str(self._database),
                )
        for name in ("ended", "terminated", "truncated"):
            values[name] = bool(values[name])
        return Episode(**values)


class Episodes(Sequence[Episode]):
    """Some episodes of a store, in the order in which they began."""

    def __init__(self, reader: ReplayReader, episodes: Sequence[Episode]) -> None:
        self.reader = reader
        self._episodes = list(episodes)

    def __len__(self) -> int:
        return len(self._episodes)

    @overload
    def __getitem__(self, i: int) -> Episode: ...
    @overload
    def __getitem__(self, i: slice) -> "Episodes": ...
    def __getitem__(self, i: int | slice) -> "Episode | Episodes":
        if isinstance(i, slice):
            return Episodes(self.reader, self._episodes[i])
        return self._episodes[i]

    def where(self, condition: str, *values: Any) -> "Episodes":
        """Those of these for which a condition holds, too."""
        chosen = {episode.episode_id for episode in self.reader.where(condition, *values)}
        return Episodes(self.reader, [e for e in self._episodes if e.episode_id in chosen])

    def steps(
        self,
        *,
        next_observation: bool = True,
        frames: bool = False,
        n_step: int = 1,
        gamma: float = 0.99,
    ) -> ReplaySteps:
        """Their steps as a source; see `ReplaySteps`."""
        known = self.reader.runs
        by_run: dict[str, list[EpisodeSpan]] = {}
        for episode in self._episodes:
            span = EpisodeSpan(episode.number, episode.steps, episode.dropped, _final_row(episode))
            by_run.setdefault(episode.run_id, []).append(span)
        runs = []
        for run_id, spans in by_run.items():
            if run_id not in known:
                raise FormatError(
                    f"there are episodes of {run_id!r}, which is not a run",
                    path=str(database_path(self.reader.root)),
                )
            run = known[run_id]
            runs.append(RunSteps(run_id, run.steps, run.channels, spans))
        return ReplaySteps(
            self.reader.root,
            runs,
            next_observation=next_observation,
            frames=frames,
            n_step=n_step,
            gamma=gamma,
        )

    def __repr__(self) -> str:
        return f"Episodes({len(self)} of {str(self.reader.root)!r})"


class EpisodeSteps:
    """The steps of an episode in order, arrays with a row for each.

    `observations` and `actions` are arrays, or dicts of arrays, with a row for each step that has
    one: all of them, or those that `observation_steps` and `action_steps` count. `frames` has
    those of the steps in `frame_steps`.
    """

    def __init__(
        self,
        reader: ReplayReader,
        episode: Episode,
        rows: Sequence[Sequence[Any]],
        observations: bool,
        frames: bool,
    ) -> None:
        self.episode = episode
        columns: Any = list(zip(*rows, strict=True)) or [()] * 9
        self.step_index = np.array(columns[0], np.int64)
        self.rewards = np.array(columns[2], np.float64)
        self.terminated = np.array(columns[3], bool)
        self.truncated = np.array(columns[4], bool)
        self.timestamps: tuple[str, ...] = tuple(columns[8])
        self._infos = columns[7]
        resolver = reader.resolver
        self.frame_steps, self.frames = _resolved(resolver, FRAMES, columns[5], frames)
        self.observation_steps, self.observations = _resolved(
            resolver, OBSERVATIONS, columns[6], observations
        )
        self.final_observation: Tree = None
        if observations and episode.final_obs_ref is not None:
            self.final_observation = resolver.resolve(episode.final_obs_ref, missing="raise")
        self.action_steps, self.actions = _actions(resolver, episode.run_id, columns[1])

    def __len__(self) -> int:
        return len(self.rewards)

    @lazy
    def infos(self) -> list[dict[str, Any]]:
        """What came with each step, a dict of it."""
        return [_info(self.episode, info) for info in self._infos]

    def __repr__(self) -> str:
        return (
            f"EpisodeSteps({self.episode.episode_id!r}, {len(self)} steps, "
            f"{len(self.frame_steps)} frames, reward {self.rewards.sum():g})"
        )


def _final_row(episode: Episode) -> int:
    """The row of what was seen last, -1 where nothing was."""
    if episode.final_obs_ref is None:
        return -1
    final = FrameRef.of(episode.final_obs_ref)
    if (final.run_id, final.dataset) != (episode.run_id, OBSERVATIONS):
        raise FormatError(f"{episode.episode_id}: {final} is no observation of its run")
    return final.index


def _resolved(
    resolver: FrameResolver, kind: str, refs: Sequence[str | None], wanted: bool
) -> tuple[Rows, Tree]:
    """Which steps have a reference, and the arrays of those."""
    steps = np.array([i for i, ref in enumerate(refs) if ref is not None], np.int64)
    if not wanted or not len(steps):
        return steps, None
    found = FrameRef.rows([ref for ref in refs if ref is not None])
    if found is None:
        raise FormatError(f"{kind}: the references of an episode lead to several datasets")
    first, rows = found[0], np.array(found[1], np.int64)
    file = resolver.file(first.run_id)
    names = file.leaves(first.dataset)
    if not names:
        raise FormatError(f"there is no dataset {first.dataset!r}", path=str(file.path))
    return steps, assemble(first.dataset, {name: file.read(name, rows) for name in names})


def _actions(resolver: FrameResolver, run_id: str, values: Sequence[Any]) -> tuple[Rows, Tree]:
    """Numbers stand in the database, where it can hold them; anything else in the file."""
    there = [value for value in values if value is not None]
    if not there or all(isinstance(value, str) for value in there):
        return _resolved(resolver, ACTIONS, values, True)
    steps = np.array([i for i, value in enumerate(values) if value is not None], np.int64)
    numbers = [
        resolver.resolve(value, missing="raise") if isinstance(value, str) else value
        for value in there
    ]
    return steps, np.array(numbers, _type_of_actions(resolver, run_id))


def _type_of_actions(resolver: FrameResolver, run_id: str) -> np.dtype[Any] | None:
    """What they were before they became numbers of the database, if the file is there to say."""
    try:
        return resolver.file(run_id).field(ACTIONS)[0]
    except (FileNotFoundError, KeyError):
        return None


def _info(episode: Episode, text: Any) -> dict[str, Any]:
    if not text:
        return {}
    try:
        info = json.loads(text)
        if not isinstance(info, dict):
            raise TypeError(f"expected a dict, got {type(info).__name__}")
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"{episode.episode_id}: an info that is not JSON: {error}") from None
    return info

"""Everything in a replay store checked against everything else.

What is looked at is what was committed when it began: a run may be growing meanwhile, and the first
steps of an episode never change.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import FormatError, StepwellError
from stepwell.files.regular import read_inside
from stepwell.store import Progress, Report
from stepwell.stores.replay.channels import ACTIONS, FRAMES, OBSERVATIONS, Channel
from stepwell.stores.replay.database import (
    EPISODE_COLUMNS,
    Episode,
    RunRow,
    database_path,
    reading,
    run_rows,
)
from stepwell.stores.replay.layout import CHECKSUM, CHECKSUMS, INDEX, NUMBERS, STEPS
from stepwell.stores.replay.resolver import FrameResolver
from stepwell.stores.replay.rows import RunFile

__all__ = ["verify"]

_KINDS = (FRAMES, OBSERVATIONS, ACTIONS)
_MAX_PROBLEMS = 100
_MAX_INDEX = 1 << 30
_READ_BYTES = 1 << 25
_STEPS = 4096


def verify(root: Path, resolver: FrameResolver, quick: bool, progress: Progress) -> Report:
    """What is wrong, at most a hundred of it; `quick` reads no rows of the files."""
    checked = [
        "the pages of the database, and its rows against each other",
        "the datasets of each run's file: names, types and rows",
    ]
    unchecked = ["info, timestamp and agent_id of steps, which have no checksum"]
    if quick:
        unchecked.append("the rows of the files, for quick was asked for")
    else:
        checked += [
            "every row of every array against its checksum",
            "every step of the database against the file, references and totals too",
        ]
    problems = list(islice(_problems(root, resolver, quick, progress), _MAX_PROBLEMS))
    return Report("replay", str(root), tuple(problems), tuple(checked), tuple(unchecked))


def _problems(
    root: Path, resolver: FrameResolver, quick: bool, progress: Progress
) -> Iterator[FormatError]:
    path = database_path(root)
    try:
        with reading(root) as database:
            broken = [text for (text,) in database.execute("PRAGMA integrity_check(20)")]
            if broken != ["ok"]:
                raise FormatError(f"SQLite: {'; '.join(broken)}", path=str(path))
            runs = run_rows(database, path)
            columns = ", ".join(EPISODE_COLUMNS)
            found = database.execute(f"SELECT {columns} FROM episodes ORDER BY rowid")
            episodes = [Episode.of(row, path) for row in found]
            lost = _lost(database)
    except FormatError as error:
        yield error
        return
    yield from [FormatError(text, path=str(path)) for text in lost]
    counter = _Counter(runs.values(), progress)
    for run in runs.values():
        here = [episode for episode in episodes if episode.run_id == run.run_id]
        yield from _Run(root, resolver, run, here, counter).problems(quick)
    counter.finish()


def _lost(database: sqlite3.Connection) -> list[str]:
    """Rows that belong to nothing."""
    queries = {
        "episode {} is of a run that is not there": "SELECT episode_id FROM episodes "
        "WHERE run_id NOT IN (SELECT run_id FROM runs) LIMIT 20",
        "steps of the episode {}, which is not there": "SELECT DISTINCT episode_id FROM steps "
        "WHERE episode_id NOT IN (SELECT episode_id FROM episodes) LIMIT 20",
    }
    return [
        text.format(repr(name))
        for text, sql in queries.items()
        for (name,) in database.execute(sql)
    ]


class _Counter:
    """Counts steps and rows of arrays."""

    def __init__(self, runs: Any, progress: Progress) -> None:
        self._progress = progress
        self._done = 0
        self._total = sum(
            run.steps + sum(run.rows.get(c.name, 0) for c in run.channels) for run in runs
        )

    def add(self, count: int) -> None:
        self._done += count
        self._progress(min(self._done, self._total), self._total)

    def finish(self) -> None:
        self._progress(self._total, self._total)


class _Run:
    """One run: its row, its episodes, its file."""

    def __init__(
        self,
        root: Path,
        resolver: FrameResolver,
        run: RunRow,
        episodes: list[Episode],
        counter: _Counter,
    ) -> None:
        self._root = root
        self._database = database_path(root)
        self._resolver = resolver
        self._run = run
        self._episodes = episodes
        self._counter = counter

    def problems(self, quick: bool) -> Iterator[FormatError]:
        try:
            yield from self._of_row()
            if not self._run.rows:
                return
            file = self._resolver.file(self._run.run_id)
            if not isinstance(file, RunFile):
                raise FormatError("expected a file of a replay store", path=str(file.path))
            whole = True
            for problem in self._of_datasets(file):
                whole = False
                yield problem
            if whole and not quick:
                yield from self._of_numbers(file)
                for channel in self._run.channels:
                    yield from self._of_rows(file, channel)
        except FileNotFoundError as error:
            yield FormatError("the file of the run is missing", path=str(error.filename))
        except OSError as error:  # one run that cannot be read; there are others
            yield self._wrong(str(error))
        except FormatError as error:
            yield error
        except (StepwellError, KeyError, IndexError, ValueError, TypeError) as error:
            yield self._wrong(str(error.args[0]) if error.args else type(error).__name__)

    def _wrong(self, text: str) -> FormatError:
        return FormatError(f"run {self._run.run_id!r}: {text}", path=str(self._database))

    def _of_row(self) -> Iterator[FormatError]:
        """The run's own numbers."""
        run = self._run
        steps = sum(episode.steps for episode in self._episodes)
        if run.steps != steps:
            yield self._wrong(f"{run.steps:,} steps, its episodes have {steps:,}")
        numbers = 1 + max((episode.number for episode in self._episodes), default=-1)
        if run.episodes != numbers:
            yield self._wrong(f"{run.episodes:,} episodes, the last is number {numbers - 1:,}")
        if run.written != run.steps or run.enqueued < run.written:
            yield self._wrong(f"{run.enqueued:,} steps taken, {run.written:,} written")
        if run.steps and not run.rows:
            yield self._wrong(f"{run.steps:,} steps, and no rows in its file")
        if run.state == "closed":
            problem = self._of_index()
            with reading(self._root) as database:  # it may have been gone on with meanwhile
                now = run_rows(database, self._database).get(run.run_id)
            if problem is not None and now == run:
                yield problem

    def _of_index(self) -> FormatError | None:
        """What index.json has wrong of a run that was closed."""
        run, folder = self._run, self._root / "replay"
        try:
            stated = json.loads(read_inside(folder, INDEX, _MAX_INDEX)).get(run.run_id, {})
            facts = {"file": run.file, "state": "closed", "steps": run.steps}
            if any(stated.get(name) != value for name, value in facts.items()):
                text = f"run {run.run_id!r}: expected {facts}, got {stated}"
                return FormatError(text, path=str(folder / INDEX))
        except FormatError as error:
            return error
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            return FormatError(f"cannot be read: {error}", path=str(folder / INDEX))
        return None

    def _of_datasets(self, file: RunFile) -> Iterator[FormatError]:
        """Whether every dataset is there, as the database says, with all its rows."""
        expected = dict(NUMBERS)
        for channel in self._run.channels:
            expected[channel.name] = channel.field
            expected[f"{CHECKSUMS}/{channel.name}"] = CHECKSUM
        for name, field in expected.items():
            rows = self._run.rows.get(name, -1)
            if rows < 0:
                yield self._wrong(f"there is no number of rows for {name!r}")
                continue
            try:
                found = file.field(name)
            except KeyError:
                yield FormatError(f"there is no dataset {name!r}", path=str(file.path))
                continue
            if found != field:
                yield FormatError(f"{name}: expected {field}, got {found}", path=str(file.path))
            length = file.length(name)
            if length < rows:
                yield FormatError(
                    f"{name}: expected {rows:,} rows, got {length:,}", path=str(file.path)
                )
        for name in (STEPS, "rewards", "dones"):
            if self._run.rows.get(name) != self._run.steps:
                yield self._wrong(f"{self._run.steps:,} steps, {name} has other rows")

    def _of_numbers(self, file: RunFile) -> Iterator[FormatError]:
        """The same steps in both places, and episodes that add up."""
        count = self._run.steps
        places = file.read_all(STEPS, count)
        rewards = file.read_all("rewards", count)
        dones = file.read_all("dones", count)
        order = np.lexsort((places[:, 1], places[:, 0]))
        first = np.searchsorted(places[order, 0], [e.number for e in self._episodes], "left")
        actions = self._numbers_of(file)
        for group in _groups(list(zip(self._episodes, first.tolist(), strict=True))):
            rows = self._step_rows([episode for episode, _ in group])
            for (episode, begin), steps in zip(group, rows, strict=True):
                here = order[begin : begin + episode.steps]
                if len(here) < len(steps) or (places[here, 0] != episode.number).any():
                    yield self._of(episode, "not all of its steps are in the file")
                    continue
                yield from self._of_episode(
                    episode, steps, places[here], rewards[here], dones[here], actions
                )
            self._counter.add(sum(len(steps) for steps in rows))
        yield from self._of_ends(file, places)

    def _numbers_of(self, file: RunFile) -> NDArray[Any] | None:
        """All actions, where each is a number."""
        if not any(c.name == ACTIONS and not c.field.shape for c in self._run.channels):
            return None
        return file.read_all(ACTIONS, self._run.rows[ACTIONS])

    def _of(self, episode: Episode, text: str) -> FormatError:
        return FormatError(f"episode {episode.episode_id!r}: {text}", path=str(self._database))

    def _step_rows(self, episodes: list[Episode]) -> list[list[tuple[Any, ...]]]:
        sql = (
            "SELECT step_index, action, reward, terminated, truncated, frame_ref, obs_ref, run_id "
            "FROM steps WHERE episode_id = ? ORDER BY step_index LIMIT ?"
        )
        with reading(self._root) as database:
            return [database.execute(sql, (e.episode_id, e.steps)).fetchall() for e in episodes]

    def _of_episode(
        self,
        episode: Episode,
        steps: Sequence[tuple[Any, ...]],
        places: NDArray[np.int64],
        rewards: NDArray[np.float64],
        dones: NDArray[np.uint8],
        actions: NDArray[Any] | None,
    ) -> Iterator[FormatError]:
        if len(steps) != episode.steps:
            yield self._of(episode, f"expected {episode.steps:,} steps, got {len(steps):,}")
            return
        run_id = self._run.run_id
        known = [self._run.count(kind) for kind in _KINDS]
        for step, place, reward, done in zip(
            steps, places.tolist(), rewards.tolist(), dones.tolist(), strict=True
        ):
            index, rows = place[1], place[2:]
            for kind, row, count in zip(_KINDS, rows, known, strict=True):
                if row >= count:
                    yield self._of(episode, f"step {index}: no row {row} of {kind}")
            stored = (
                index,
                self._action(actions, rows[2]),
                reward,
                done & 1,
                done >> 1,
                _ref(run_id, FRAMES, rows[0]),
                _ref(run_id, OBSERVATIONS, rows[1]),
                run_id,
            )
            if step != stored:
                yield self._of(episode, f"{step} in the database, {stored} in the file")
        yield from self._of_totals(episode, steps)

    def _of_totals(
        self, episode: Episode, steps: Sequence[tuple[Any, ...]]
    ) -> Iterator[FormatError]:
        total = 0.0
        for step in steps:
            total += step[2]
        if not np.isclose(total, episode.total_reward, rtol=1e-9, equal_nan=True):
            yield self._of(episode, f"total_reward {episode.total_reward}, the sum is {total}")
        flags = [any(step[i] for step in steps) for i in (3, 4)]
        stated = [episode.terminated, episode.truncated]
        if stated != flags and not episode.dropped:
            yield self._of(episode, f"terminated, truncated: {stated}, its steps have {flags}")
        if any(flags) and not episode.ended:
            yield self._of(episode, "its last step ended it, and it has not ended")
        gaps = steps[-1][0] + 1 - steps[0][0] - len(steps) if steps else 0
        if episode.dropped < gaps:
            yield self._of(episode, f"{episode.dropped} dropped, {gaps} missing")
        try:
            right = episode.final_row < self._run.count(OBSERVATIONS)
        except FormatError:
            right = False
        if not right and episode.final_obs_ref is not None:
            yield self._of(episode, f"final_obs_ref {episode.final_obs_ref!r} leads nowhere")

    def _action(self, actions: NDArray[Any] | None, row: int) -> Any:
        """An action as the database has it."""
        if actions is not None and 0 <= row < len(actions):
            value = actions[row].item()
            if value == value and (isinstance(value, float) or -(2**63) <= value < 2**63):
                return value
        return _ref(self._run.run_id, ACTIONS, row)

    def _of_ends(self, file: RunFile, places: NDArray[np.int64]) -> Iterator[FormatError]:
        """The table of episodes that ended."""
        count = self._run.rows["episodes/starts"]
        starts = file.read_all("episodes/starts", count).tolist()
        lengths = file.read_all("episodes/lengths", count).tolist()
        ended = {e.number: e.steps for e in self._episodes if e.ended}
        if count != len(ended):
            yield FormatError(
                f"episodes: expected {len(ended):,} that ended, got {count:,}", path=str(file.path)
            )
        numbers, rows = np.unique(places[:, 0], return_index=True)
        first = dict(zip(rows.tolist(), numbers.tolist(), strict=True))
        for start, length in zip(starts, lengths, strict=True):
            # Of an episode that was dropped as a whole there is no row.
            if length and ended.get(first.get(start, -1)) != length:
                message = f"episodes: no episode of {length:,} steps begins at row {start:,}"
                yield FormatError(message, path=str(file.path))

    def _of_rows(self, file: RunFile, channel: Channel) -> Iterator[FormatError]:
        """Read every row of an array, which compares it with its checksum."""
        count = self._run.rows[channel.name]
        at_once = max(1, _READ_BYTES // channel.field.row_bytes)
        for begin in range(0, count, at_once):
            rows = np.arange(begin, min(count, begin + at_once), dtype=np.int64)
            try:
                file.read(channel.name, rows)
            except FormatError:
                for row in rows:
                    try:
                        file.read(channel.name, np.array([row]))
                    except FormatError as error:
                        yield error
            self._counter.add(len(rows))


def _ref(run_id: str, kind: str, row: int) -> Any:
    return f"h5://{run_id}/{kind}/{row}" if row >= 0 else None


def _groups(
    episodes: Sequence[tuple[Episode, int]],
) -> Iterator[list[tuple[Episode, int]]]:
    """Episodes of a few thousand steps together, to ask the database once for all of them."""
    group: list[tuple[Episode, int]] = []
    steps = 0
    for episode in episodes:
        group.append(episode)
        steps += episode[0].steps + 1
        if steps >= _STEPS:
            yield group
            group, steps = [], 0
    if group:
        yield group

"""Everything in a replay store checked against everything else.

It checks the commit that was there when it began: a run may be growing meanwhile, and the first
steps of an episode never change.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import ChecksumError, FormatError, StepwellError
from stepwell.files.catalog import checksum_sql, damaged_rows
from stepwell.files.lock import is_locked
from stepwell.files.regular import read_inside
from stepwell.source import Rows
from stepwell.store import Progress, Report
from stepwell.stores.replay.channels import ACTIONS, FRAMES, KINDS, OBSERVATIONS, Channel, as_scalar
from stepwell.stores.replay.database import (
    EPISODE_COLUMNS,
    REMOVED_VERSION,
    STEP_COLUMNS,
    Episode,
    RunRow,
    all_episodes,
    database_path,
    reading,
    run_rows,
    steps_of,
)
from stepwell.stores.replay.layout import (
    CHECKSUM,
    CHECKSUMS,
    INDEX,
    KIND_COLUMNS,
    NUMBERS,
    STEPS,
    lock_path,
    lost_commits,
)
from stepwell.stores.replay.resolver import FrameResolver
from stepwell.stores.replay.rows import RunFile
from stepwell.stores.replay.scalars import is_scalar

_MAX_PROBLEMS = 100
_MAX_INDEX = 1 << 30
_READ_BYTES = 1 << 25
_EPISODES = 16  # whose steps are read at a time

_COUNTED = """CREATE TEMP TABLE counted AS
    SELECT episode_id, count(*) AS steps,
        max(terminated) AS terminated, max(truncated) AS truncated,
        max(step_index) + 1 - min(step_index) - count(*) AS gaps
    FROM steps GROUP BY episode_id"""
_NONE_REMOVED = f"(SELECT user_version FROM pragma_user_version) < {REMOVED_VERSION}"
_RULES = {
    "episode {!r} is of a run that is not there": "SELECT episode_id FROM episodes "
    "WHERE run_id NOT IN (SELECT run_id FROM runs)",
    "steps of the episode {!r}, which is not there": "SELECT episode_id FROM counted "
    "WHERE episode_id NOT IN (SELECT episode_id FROM episodes)",
    "run {!r}: {} steps, its episodes have {}": "SELECT r.run_id, r.steps, "
    "coalesce(sum(e.steps), 0) AS found FROM runs r LEFT JOIN episodes e USING (run_id) "
    "GROUP BY r.run_id HAVING r.steps != found",
    "run {!r}: {} episodes, the last is number {}": "SELECT r.run_id, r.episodes, "
    "coalesce(max(e.number), -1) AS last FROM runs r LEFT JOIN episodes e USING (run_id) "
    f"GROUP BY r.run_id HAVING r.episodes <= last OR (r.episodes > last + 1 AND {_NONE_REMOVED})",
    "run {!r}: {} steps taken, {} written, {} there": "SELECT run_id, enqueued, written, "
    f"steps FROM runs WHERE written < steps OR (written != steps AND {_NONE_REMOVED}) "
    "OR enqueued < written",
    "episode {!r}: expected {} steps, got {}": "SELECT e.episode_id, e.steps, "
    "coalesce(c.steps, 0) AS found FROM episodes e LEFT JOIN counted c USING (episode_id) "
    "WHERE e.steps != found",
    "episode {!r}: terminated, truncated: {}, {}, its steps have {}, {}": "SELECT e.episode_id, "
    "e.terminated, e.truncated, c.terminated, c.truncated FROM episodes e JOIN counted c "
    "USING (episode_id) WHERE NOT e.dropped "
    "AND (e.terminated, e.truncated) != (c.terminated, c.truncated)",
    "episode {!r}: its last step ended it, and it has not ended": "SELECT e.episode_id "
    "FROM episodes e JOIN counted c USING (episode_id) "
    "WHERE NOT e.ended AND (c.terminated OR c.truncated)",
    "episode {!r}: it has ended, and not when": "SELECT episode_id FROM episodes "
    "WHERE ended AND ended_at IS NULL",
    "episode {!r}: {} dropped, {} missing": "SELECT e.episode_id, e.dropped, c.gaps "
    "FROM episodes e JOIN counted c USING (episode_id) WHERE e.dropped < c.gaps",
}
"""Rules between the tables: a message for each, and the query that finds breaches."""


def verify(root: Path, resolver: FrameResolver, quick: bool, progress: Progress) -> Report:
    """Check a store; up to a hundred problems. `quick` reads no rows of the files."""
    checked = [
        "the pages of the database, and its rows against each other",
        "the datasets of each run's file: names, types and rows; by HDF5 too, unless it is written",
    ]
    unchecked: list[str] = []
    if quick:
        unchecked.append("the rows of the files, because of quick")
    else:
        checked += [
            "every row of every array against its checksum",
            "every step of the database against the file, references and totals too",
        ]
    if find_spec("hdf5plugin") is None:
        unchecked.append("HDF5's own blocks, without the extra `replay`")
    found = _problems(root, resolver, quick, progress, unchecked)
    problems = list(islice(found, _MAX_PROBLEMS))
    if len(problems) == _MAX_PROBLEMS:
        unchecked.append(f"the rest: the check ends after {_MAX_PROBLEMS} problems")
    return Report("replay", str(root), tuple(problems), tuple(checked), tuple(unchecked))


def _problems(
    root: Path, resolver: FrameResolver, quick: bool, progress: Progress, unchecked: list[str]
) -> Iterator[FormatError]:
    path = database_path(root)
    episodes: list[Episode] = []
    wrong: list[FormatError] = []
    try:
        with reading(root) as database:
            broken = [text for (text,) in database.execute("PRAGMA integrity_check(20)")]
            if broken != ["ok"]:
                raise FormatError(f"SQLite: {'; '.join(broken)}", path=str(path))
            runs = run_rows(database, path)
            (version,) = database.execute("PRAGMA user_version").fetchone()
            removed = version >= REMOVED_VERSION
            unchecked += _without_checksums(database)
            found = all_episodes(database).fetchall()
            for i, problem in damaged_rows(found, len(EPISODE_COLUMNS)):
                wrong.append(ChecksumError(f"episode {found[i][0]!r}: {problem}", path=str(path)))
            for row in found:  # what else is wrong with them
                try:
                    episodes.append(Episode.of((*row[: len(EPISODE_COLUMNS)], None), path))
                except FormatError as error:
                    wrong.append(error)
            database.execute(_COUNTED)
            wrong += [
                FormatError(text.format(*row), path=str(path))
                for text, sql in _RULES.items()
                for row in database.execute(f"{sql} LIMIT 20")
            ]
    except FormatError as error:
        yield error
        return
    yield from wrong
    yield from lost_commits(root, runs)
    counts = (
        [run.steps, *(run.rows.get(c.name, 0) for c in run.channels)] for run in runs.values()
    )
    total = sum(map(sum, counts))
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done = min(done + count, total)
        progress(done, total)

    for run in runs.values():
        here = [episode for episode in episodes if episode.run_id == run.run_id]
        checks = _Run(root, resolver, run, here, add, unchecked, removed)
        some = list(islice(checks.problems(quick), _MAX_PROBLEMS))
        if not (some and _has_fewer(root, run, here)):  # nobody has removed any meanwhile
            yield from some
        else:
            unchecked.append(f"the run {run.run_id!r}, of which episodes were removed meanwhile")
    progress(total, total)


def _has_fewer(root: Path, run: RunRow, episodes: list[Episode]) -> bool:
    """Whether a run, or some of its episodes, was removed since it was looked at."""
    with reading(root) as database:
        found = run_rows(database, database_path(root)).get(run.run_id)
        sql = "SELECT episode_id FROM episodes WHERE run_id = ?"
        there = {name for (name,) in database.execute(sql, (run.run_id,))}
    again = found is None or found.created_at != run.created_at
    return again or not there.issuperset(episode.episode_id for episode in episodes)


def _without_checksums(database: sqlite3.Connection) -> Iterator[str]:
    for table in ("runs", "episodes", "steps"):
        sql = f"SELECT count(*) FROM {table} WHERE {checksum_sql(database, table)} IS NULL"
        (count,) = database.execute(sql).fetchone()
        if count:
            yield f"{count:,} of the {table}, which were recorded without checksums in the database"


class _Run:
    """One run: its row, its episodes, its file."""

    def __init__(
        self,
        root: Path,
        resolver: FrameResolver,
        run: RunRow,
        episodes: list[Episode],
        checked: Callable[[int], None],
        unchecked: list[str],
        removed: bool,
    ) -> None:
        self._root = root
        self._database = database_path(root)
        self._resolver = resolver
        self._run = run
        self._episodes = episodes
        self._checked = checked
        self._unchecked = unchecked
        self._removed = removed

    def problems(self, quick: bool) -> Iterator[FormatError]:
        try:
            if self._run.state == "closed":
                yield from self._of_index()
            if not self._run.rows:
                yield from () if quick else self._of_scalars()
                return
            file = self._resolver.run_file(self._run.run_id)
            whole = True
            for problem in self._of_datasets(file):
                whole = False
                yield problem
            yield from self._of_hdf5(file, quick)
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

    def _of_index(self) -> Iterator[FormatError]:
        """Check the entry in index.json of a closed run, unless the run was continued."""
        run, folder = self._run, self._root / "replay"
        facts = {"file": run.file, "state": "closed", "steps": run.steps}
        try:
            stated = json.loads(read_inside(folder, INDEX, _MAX_INDEX)).get(run.run_id, {})
            if all(stated.get(name) == value for name, value in facts.items()):
                return
            problem = f"run {run.run_id!r}: expected {facts}, got {stated}"
        except (FormatError, OSError, ValueError, AttributeError, RecursionError) as error:
            problem = f"cannot be read: {error}"
        with reading(self._root) as database:
            now = run_rows(database, self._database).get(run.run_id)
        if now == run:
            yield FormatError(problem, path=str(folder / INDEX))

    def _of_datasets(self, file: RunFile) -> Iterator[FormatError]:
        """Check that every dataset is there, as the database has it, with all its rows."""
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
                message = f"{name}: truncated: expected {rows:,} rows, got {length:,}"
                yield FormatError(message, path=str(file.path))
        for name in (STEPS, "rewards", "dones"):
            if self._run.rows.get(name) != self._run.written:
                yield self._wrong(f"{self._run.written:,} steps, {name} has other rows")

    def _of_hdf5(self, file: RunFile, quick: bool) -> Iterator[FormatError]:
        """Let HDF5 check its own blocks, unless a writer changes them meanwhile.

        One that was killed may have left some half written, behind what was committed: our own
        readers, and the writer that goes on, do without them.
        """
        lock, before = lock_path(self._root, self._run.run_id), file.path.stat()
        if is_locked(lock) or find_spec("hdf5plugin") is None:
            return
        from stepwell.stores.replay.hdf5 import check_metadata  # which takes a while to import

        try:
            check_metadata(file.path, self._run.rows, chunks=not quick)
        except FormatError as error:
            if is_locked(lock) or file.path.stat().st_mtime_ns != before.st_mtime_ns:
                return
            if self._run.state == "closed":
                yield error
            else:
                name = self._run.run_id
                self._unchecked.append(
                    f"{error.args[0]} in the run {name!r}, which was interrupted"
                )

    def _of_numbers(self, file: RunFile) -> Iterator[FormatError]:
        """The same steps in both places, and episodes that add up."""
        places, rewards, dones = file.read_steps(self._run.written)
        actions = None
        if any(c.name == ACTIONS and not c.field.shape for c in self._run.channels):
            actions = file.read_all(ACTIONS, self._run.rows[ACTIONS])
        order = np.lexsort((places[:, 1], places[:, 0]))
        numbers = [episode.number for episode in self._episodes]
        begins = np.searchsorted(places[order, 0], numbers, "left").tolist()
        for first in range(0, len(numbers), _EPISODES):
            group = self._episodes[first : first + _EPISODES]
            with reading(self._root) as database:
                found = steps_of(database, group)
            for episode, begin, steps in zip(group, begins[first:], found, strict=False):
                for i, problem in damaged_rows(steps, len(STEP_COLUMNS)):
                    yield self._of(episode, f"step {steps[i][1]}: {problem}", ChecksumError)
                here = order[begin : begin + episode.steps]
                if len(here) < len(steps) or (places[here, 0] != episode.number).any():
                    yield self._of(episode, "not all of its steps are in the file")
                elif len(steps) == episode.steps:
                    stored = self._stored(places[here], rewards[here], dones[here], actions)
                    yield from self._of_episode(episode, steps, stored, places[here, 2:])
            self._checked(sum(map(len, found)))
        yield from self._of_ends(file, places)

    def _of_scalars(self) -> Iterator[FormatError]:
        """The steps of a run without arrays, none of which leads to one."""
        for channel in self._run.channels:
            if not is_scalar(channel):
                yield self._wrong(f"expected no arrays, as it has no file, got {channel.name}")
        for first in range(0, len(self._episodes), _EPISODES):
            group = self._episodes[first : first + _EPISODES]
            with reading(self._root) as database:
                found = steps_of(database, group)
            for episode, steps in zip(group, found, strict=True):
                for i, problem in damaged_rows(steps, len(STEP_COLUMNS)):
                    yield self._of(episode, f"step {steps[i][1]}: {problem}", ChecksumError)
                plain = [(*row[1:6], None, None, self._run.run_id) for row in steps]
                if any(isinstance(action, str) for _, action, *_ in plain):
                    yield self._of(episode, "an action that is in a file, and the run has none")
                yield from self._of_episode(episode, steps, plain, np.empty((0, 3), np.int64))
            self._checked(sum(map(len, found)))

    def _of(
        self, episode: Episode, text: str, kind: type[FormatError] = FormatError
    ) -> FormatError:
        return kind(f"episode {episode.episode_id!r}: {text}", path=str(self._database))

    def _stored(
        self,
        places: NDArray[np.int64],
        rewards: NDArray[np.float64],
        dones: NDArray[np.uint8],
        actions: NDArray[Any] | None,
    ) -> list[tuple[Any, ...]]:
        """Steps of the file, as the database should have them."""

        def ref(kind: str, row: int) -> str | None:
            return f"h5://{self._run.run_id}/{kind}/{row}" if row >= 0 else None

        rows = []
        columns = (places.tolist(), rewards.tolist(), dones.tolist())
        for (_, index, frame, seen, acted), reward, done in zip(*columns, strict=True):
            action: Any = None
            if actions is not None and 0 <= acted < len(actions):
                action = as_scalar(actions[acted])
            action = ref(ACTIONS, acted) if action is None else action
            refs = (ref(FRAMES, frame), ref(OBSERVATIONS, seen), self._run.run_id)
            rows.append((index, action, reward, done & 1, done >> 1, *refs))
        return rows

    def _of_episode(
        self,
        episode: Episode,
        steps: Sequence[tuple[Any, ...]],
        stored: Sequence[tuple[Any, ...]],
        rows: NDArray[np.int64],
    ) -> Iterator[FormatError]:
        for kind, last in zip(KINDS, rows.max(0, initial=-1).tolist(), strict=True):
            if last >= self._run.count(kind):
                yield self._of(episode, f"no row {last:,} of {kind}")
        total = 0.0
        for row, its in zip(steps, stored, strict=True):
            mine = (*row[1:8], row[11])  # without info, timestamp and agent
            if mine != its:
                yield self._of(episode, f"{mine} in the database, {its} in the file")
            total += mine[2]
        if not np.isclose(total, episode.total_reward, rtol=1e-9, equal_nan=True):
            yield self._of(episode, f"expected total_reward {total}, got {episode.total_reward}")
        try:
            right = episode.final_row < self._run.count(OBSERVATIONS)
        except FormatError:
            right = False
        if not right and episode.final_obs_ref is not None:
            yield self._of(episode, f"final_obs_ref {episode.final_obs_ref!r} leads nowhere")

    def _of_ends(self, file: RunFile, places: NDArray[np.int64]) -> Iterator[FormatError]:
        """The table of episodes that are over."""
        count = self._run.rows["episodes/starts"]
        starts = file.read_all("episodes/starts", count).tolist()
        lengths = file.read_all("episodes/lengths", count).tolist()
        ended = {e.number: e.steps for e in self._episodes if e.over}
        numbers, rows = np.unique(places[:, 0], return_index=True)
        first = dict(zip(rows.tolist(), numbers.tolist(), strict=True))
        ends = list(zip(starts, lengths, strict=True))
        if self._removed:  # of others there are ends, or what is left of them
            known = {e.number for e in self._episodes}
            ends = [(start, n) for start, n in ends if n and first.get(start) in known]
            ended = {number: steps for number, steps in ended.items() if steps}
        if len(ends) != len(ended):
            message = f"episodes: expected {len(ended):,} that are over, got {len(ends):,}"
            yield FormatError(message, path=str(file.path))
        for start, length in ends:
            # Of an episode that was dropped as a whole there is no row.
            if length and ended.get(first.get(start, -1)) != length:
                message = f"episodes: no episode of {length:,} steps begins at row {start:,}"
                yield FormatError(message, path=str(file.path))

    def _used(self, file: RunFile, kind: str) -> Rows:
        """The rows of arrays of a kind that belong to an episode which is there."""
        places = file.read_all(STEPS, self._run.written)
        here = np.isin(places[:, 0], [e.number for e in self._episodes])
        rows = places[here, KIND_COLUMNS[kind]]
        if kind == OBSERVATIONS:
            rows = np.append(rows, [e.final_row for e in self._episodes])
        return np.unique(rows[rows >= 0])

    def _of_rows(self, file: RunFile, channel: Channel) -> Iterator[FormatError]:
        """Read every row of an array, which compares it with its checksum."""
        wanted = np.arange(self._run.rows[channel.name], dtype=np.int64)
        if self._removed:
            wanted = self._used(file, channel.kind)
        at_once = max(1, _READ_BYTES // channel.field.row_bytes)
        for begin in range(0, len(wanted), at_once):
            rows = wanted[begin : begin + at_once]
            try:
                file.read(channel.name, rows)
            except FormatError:
                for row in rows:
                    try:
                        file.read(channel.name, np.array([row]))
                    except FormatError as error:
                        yield error
            self._checked(len(rows))

"""A replay store: the episodes of its runs, and their steps as the rows of a source."""

import operator
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.description import Description
from stepwell.errors import FormatError, SchemaError, StepwellError
from stepwell.files.catalog import query
from stepwell.files.lock import is_locked
from stepwell.files.regular import bytes_on_disk
from stepwell.lazy import lazy
from stepwell.source import Batch, Field, Rows, Schema, Source
from stepwell.store import Progress, QueryTable, Report, Store
from stepwell.stores.replay.channels import FRAMES, KINDS, Channel
from stepwell.stores.replay.database import (
    EPISODE_COLUMNS,
    STEP_COLUMNS,
    Episode,
    RunRow,
    check_rows,
    database_path,
    has_checksums,
    reading,
    run_rows,
    steps_of,
)
from stepwell.stores.replay.episodes import (
    EpisodeList,
    EpisodeSteps,
    EpisodeTable,
    RecordedStep,
    recorded_steps,
)
from stepwell.stores.replay.layout import is_replay, lock_path, lost_commits
from stepwell.stores.replay.moment import Condition, Moment
from stepwell.stores.replay.resolver import FrameResolver
from stepwell.stores.replay.rows import RunFile
from stepwell.stores.replay.scalars import ScalarRun, is_scalar
from stepwell.stores.replay.steps import (
    StepOptions,
    StepTable,
    common_fields,
    dataset_name,
    fields_in_words,
    load_steps,
)
from stepwell.stores.replay.verify import verify

_TIME = STEP_COLUMNS.index("timestamp")
_NUMBERS = ("reward", "terminated", "truncated", "discount")
_OF_A_MOMENT = ("_table", "_fields", "_episodes", "_by_id")  # made again


class ReplayReader(Store):
    """A replay store, whose rows are steps: run after run, episode after episode.

    Fields are `observation`, `action`, `reward`, `next_observation`, `terminated` and
    `truncated`, and `frame` with `frames=True`; of a dict observation each array is a field,
    `observation/camera`. With `n_step` above 1, `reward` is the sum of the next n rewards, each
    discounted by `gamma` once more than the one before, `next_observation` is what was seen after
    them, and `discount` is what the value of that has to be multiplied by.

    A step after which nothing was seen is left out when there is a `next_observation`, unless it
    was terminated: then it is zeros, and not to be used. Steps without a frame are left out when
    frames are read.

    `run` chooses recordings by their names. Where those that are left recorded unlike arrays, rows
    have no common fields: `schema` and `take` raise `SchemaError`, everything else works. `runs`
    are episodes. It shows the commit that it saw when it was opened or refreshed. Safe from
    any thread, and beside writers.
    """

    kind = "replay"
    noun = "a replay store"
    runs_table = "episodes"
    runs_key = "episode_id"

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        run: str | Sequence[str] | None = None,
        next_observation: bool = True,
        frames: bool = False,
        n_step: int = 1,
        gamma: float = 0.99,
        open_files: int = 16,
    ) -> None:
        self.root = Path(root).absolute()  # wherever the process goes later
        self._names = None if run is None else (run,) if isinstance(run, str) else tuple(run)
        self._options = StepOptions(next_observation, frames, n_step, gamma)
        self._conditions: tuple[Condition, ...] = ()
        self.resolver = FrameResolver(root, open_files=open_files)
        self._moment = Moment.look(self.root, self._names, self._conditions)
        self._check_whole(self._moment)
        self._pin_files()

    def __getstate__(self) -> dict[str, Any]:
        left_out = (*_OF_A_MOMENT, "_closed")
        return {n: value for n, value in super().__getstate__().items() if n not in left_out}

    @classmethod
    def recognizes(cls, path: Path) -> bool:
        return path.is_dir() and is_replay(path)

    @property
    def path(self) -> str:
        return str(self.root)

    # Contents.

    def _check_whole(self, moment: Moment) -> None:
        for lost in lost_commits(self.root, moment.recordings, self._names):
            raise lost

    def _pin_files(self) -> None:
        runs = self._moment.recordings
        self.resolver.pin({name: run.created_at for name, run in runs.items()})

    def refresh(self) -> bool:
        self._check_open()
        before = self._moment
        now = before
        if not before.is_newest(self.root):
            now = Moment.look(self.root, self._names, self._conditions)
        self._check_whole(now)
        for name, run in now.recordings.items():
            old = before.recordings.get(name, run)
            if old.created_at == run.created_at and run.committed < old.committed:
                expected = f"expected at least {old.committed:,} rows, got {run.committed:,}"
                message = f"run {name!r}: {expected}; open it again"
                raise FormatError(message, path=str(database_path(self.root)))
        self._moment = now
        self._pin_files()
        if before == now:
            return False
        self._forget(*_OF_A_MOMENT)
        changed = before.rows != self._moment.rows
        return changed or before.recordings.keys() != self._moment.recordings.keys()

    @property
    def recordings(self) -> dict[str, RunRow]:
        """The runs by their names; `state` is "recording", "closed" or "interrupted"."""
        self._check_open()
        return {
            name: self._with_state(run)
            for name, run in self._moment.recordings.items()
            if self._names is None or name in self._names
        }

    def _with_state(self, run: RunRow) -> RunRow:
        """A writer that was killed has left its run as "recording", and its lock to anyone. The
        database counts episodes that were removed, too."""
        run = replace(run, episodes=self._moment.episodes.get(run.run_id, 0))
        if run.state == "recording" and not is_locked(lock_path(self.root, run.run_id)):
            return replace(run, state="interrupted")
        return run

    @property
    def runs(self) -> EpisodeTable:
        """The episodes, those that are still going on too, as a table."""
        self._check_open()
        check_rows("episode", self._moment.rows, len(EPISODE_COLUMNS), database_path(self.root))
        return EpisodeTable(self._moment.rows, self._runs)

    @property
    def episodes(self) -> EpisodeList:
        """The same as objects, and as a table of their fields: `episodes.to_pandas()`."""
        self._check_open()
        return EpisodeList(self._episodes)

    @lazy
    def _episodes(self) -> Sequence[Episode]:
        path = database_path(self.root)
        check_rows("episode", self._moment.rows, len(EPISODE_COLUMNS), path)
        return tuple(Episode.of(row, path, checked=True) for row in self._moment.rows)

    @lazy
    def _by_id(self) -> dict[str, tuple[Any, ...]]:
        return {row[0]: row for row in self._moment.rows}

    def where(self, condition: str, *values: Any, timeout_s: float | None = None) -> "ReplayReader":
        """The steps of the episodes for which an SQL condition over their columns holds."""
        self._check_open()
        with reading(self.root) as database:
            self._pin(database)
            moment = self._moment.where(database, condition, values, timeout_s)
        part = self._with()
        part._conditions, part._moment = (*self._conditions, (condition, values)), moment
        return part

    def steps_of(self, key: Any) -> "ReplayReader":
        """Every step of an episode, with its frame if there are any, whatever other runs recorded.

        A step without a frame has that of a step before; zeros stand for whatever else there is
        not.
        """
        self._check_open()
        row = self._by_id.get(key)
        if row is None:
            raise self._no_run(key)
        run = self._moment.recordings.get(row[1])
        frames = run is not None and any(each.kind == FRAMES for each in run.channels)
        part = self._with(
            next_observation=False, frames=frames, n_step=1, returns=None, every_step=True
        )
        part._conditions = (*self._conditions, ("episode_id = ?", (key,)))
        part._moment = self._moment._replace(rows=[row])
        return part

    def transitions(self, n_step: int = 1, gamma: float = 0.99, **fields: Any) -> "ReplayReader":
        """The same steps with what was seen `n_step` later, as `open(n_step=…)` has them."""
        if fields:
            raise TypeError(f"expected n_step and gamma, got {', '.join(fields)} too")
        return self._with(next_observation=True, n_step=n_step, gamma=gamma)

    def _returns(self, gamma: float, reward: str, flags: Sequence[str]) -> Source:
        if reward != "reward" or not {"terminated", "truncated"}.issuperset(flags):
            return super()._returns(gamma, reward, flags)  # of a field that means something else
        return self._with(returns=gamma).columns({"return_to_go": "reward"})

    def _with(self, **options: Any) -> "ReplayReader":
        """The same episodes, with other options."""
        part = copy(self)
        part.resolver = copy(self.resolver)  # files of its own
        part._options = replace(self._options, **options)
        return part

    def _pin(self, database: sqlite3.Connection) -> None:
        """Have queries see the episodes of this reader where others are in the database by now."""
        now = run_rows(database, database_path(self.root))
        if self._names or self._conditions or now != self._moment.recordings:
            self._moment.keep(database)

    def query(self, sql: str, *values: Any, timeout_s: float | None = None) -> QueryTable:
        """The result of an SQL query over the tables `episodes`, `steps` and `runs`; nothing can be
        changed. The episodes are those of this reader, the other tables are as they are by now."""
        self._check_open()
        with reading(self.root) as database:
            self._pin(database)
            return QueryTable(*query(database, sql, values, timeout_s=timeout_s))

    def episode(
        self, episode_id: str, *, observations: bool = True, frames: bool = True
    ) -> EpisodeSteps:
        """Everything that was recorded of an episode. Raises `KeyError` when there is none."""
        self._check_open()
        path, row = database_path(self.root), self._by_id.get(episode_id)
        if row is None:
            raise KeyError(f"there is no episode {episode_id!r} - at {path}")
        found = Episode.of(row, path)
        with reading(self.root) as database:
            (rows,) = steps_of(database, [found])
            sql = "SELECT created_at FROM episodes JOIN runs USING (run_id) WHERE episode_id = ?"
            began = database.execute(sql, (episode_id,)).fetchone()
        run = self._moment.recordings.get(found.run_id)
        if run is not None and began != (run.created_at,):
            raise KeyError(f"the episode {episode_id!r} was removed since - at {path}")
        self._check_steps(found, rows, found.steps)
        dtype = next((c.field.dtype for c in run.channels if is_scalar(c)), None) if run else None
        with self._naming(episode_id):
            return EpisodeSteps(self.resolver, found, rows, observations, frames, dtype)

    def _check_steps(self, episode: Episode, rows: list[tuple[Any, ...]], count: int) -> None:
        path = database_path(self.root)
        if len(rows) < count:
            message = f"{episode.episode_id}: expected {count:,} steps, got {len(rows):,}"
            raise FormatError(message, path=str(path))
        check_rows("a step of", rows, len(STEP_COLUMNS), path)

    @contextmanager
    def _naming(self, rows: str) -> Iterator[None]:
        """Whatever references of the database lead to, as an error of these rows."""
        try:
            yield
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, StepwellError) and getattr(error, "path", None) is not None:
                raise
            path = str(database_path(self.root))
            raise FormatError(f"{rows}: {error.args[0]}", path=path) from None

    def recent_steps(
        self, n: int = 100, *, observations: bool = True, frames: bool = True
    ) -> list[RecordedStep]:
        """The newest steps by their times, those of all agents and runs, the newest one last.

        Times of the caller's own are expected not to go backwards in an episode: a step that is
        newer than those behind it, or than the end of its episode, may be missing.
        """
        self._check_open()
        n = operator.index(n)
        if n < 1:
            raise ValueError(f"n: expected at least 1, got {n}")
        newest: list[tuple[Any, ...]] = []
        with self._naming("recent_steps"), reading(self.root) as database:
            begun = [episode for episode in self._episodes if episode.steps]
            going_on = [episode for episode in begun if not episode.over]
            last = {e.episode_id: e.ended_at for e in begun}
            for episode, rows in zip(going_on, steps_of(database, going_on, 1), strict=True):
                last[episode.episode_id] = rows[0][_TIME] if rows else None
            for episode in sorted(begun, key=lambda e: str(last[e.episode_id]), reverse=True):
                if len(newest) == n and str(last[episode.episode_id]) < newest[0][_TIME]:
                    break
                (rows,) = steps_of(database, [episode], n)
                self._check_steps(episode, rows, min(n, episode.steps))
                newest = sorted([*newest, *rows], key=operator.itemgetter(_TIME))[-n:]
            return recorded_steps(self.resolver, newest, observations, frames)

    def sizes(self, run_id: str) -> dict[str, tuple[int, int]]:
        """Bytes of each array of a run: of its rows, and of the same in the file."""
        run = self.recordings[run_id]
        found = {}
        for channel in run.channels if run.rows else ():
            rows = run.rows.get(channel.name, 0)
            stored = self.resolver.run_file(run_id).stored_bytes(channel.name, rows)
            found[channel.name] = (rows * channel.field.row_bytes, stored)
        return found

    def describe(self) -> Description:
        """The description, where runs recorded unlike arrays too."""
        self._check_open()
        facts: dict[str, Any] = {"recordings": {}}
        rows, fields, health = 0, dict[str, Field](), "fine"
        with reading(self.root) as database:
            facts["checksums"] = has_checksums(database)
        for name, run in self.recordings.items():
            about = ("state", "steps", "episodes", "dropped", "created_at")
            facts["recordings"][name] = {each: getattr(run, each) for each in about}
            facts["recordings"][name]["fields"] = fields_in_words(run)
            if named := next((each.names for each in run.channels if each.names), None):
                facts["recordings"][name]["actions"] = list(named)
        try:
            facts["arrays"] = {
                f"{run}/{array}": {"bytes": raw, "stored_bytes": stored}
                for run in self.recordings
                for array, (raw, stored) in self.sizes(run).items()
            }
            health = next(map(str, lost_commits(self.root, self.recordings)), health)
            rows = len(self)
            fields = dict(self.schema)
        except SchemaError as error:
            facts["unlike"] = str(error)
        except (FormatError, OSError) as error:
            health = str(error)
        return Description(
            self.kind,
            self.path,
            rows,
            bytes_on_disk(self.root / "replay", self.root / "telemetry"),
            fields,
            len(self._moment.rows),
            EPISODE_COLUMNS,
            facts,
            health,
        )

    def _verified(self, quick: bool, progress: Progress) -> Report:
        """Of the whole store, as it is by now."""
        return verify(self.root, self.resolver, quick, progress)

    def close(self) -> None:
        super().close()
        self.resolver.close()

    # Its rows.

    @property
    def _used(self) -> list[tuple[RunRow, list[Episode]]]:
        """The runs of the episodes, in the order of the rows."""
        by_run: dict[str, list[Episode]] = {}
        for episode in self._episodes:
            by_run.setdefault(episode.run_id, []).append(episode)
        known = self._moment.recordings
        for name in by_run:
            if name not in known:
                raise FormatError(
                    f"there are episodes of {name!r}, which is not a run",
                    path=str(database_path(self.root)),
                )
        return [(known[name], episodes) for name, episodes in by_run.items()]

    @property
    def schema(self) -> Schema:
        return self._fields

    @lazy
    def _fields(self) -> Schema:
        self._check_open()
        used = [run for run, _ in self._used] or self.recordings.values()
        return common_fields([self._as_filed(run) for run in used if run.steps], self._options)

    def _as_filed(self, run: RunRow) -> RunRow:
        """A run with its arrays as the file has them, of which that has a checksum."""
        if not run.rows and all(map(is_scalar, run.channels)):
            return run
        named = [channel.name for channel in run.channels]
        filled = {name for name in run.rows if name.partition("/")[0] in KINDS}
        if filled != set(named):
            raise FormatError(
                f"run {run.run_id!r}: expected arrays {sorted(filled)}, got {named}",
                path=str(database_path(self.root)),
            )
        file = self.resolver.run_file(run.run_id)
        try:
            return replace(run, channels=tuple(Channel(n, file.field(n)) for n in named))
        except KeyError as error:
            raise FormatError(error.args[0], path=str(file.path)) from None

    @lazy
    def _table(self) -> tuple[list[str], StepTable, Rows, dict[str, ScalarRun]]:
        """The names of the runs, the rows, how many each episode has, and runs without files."""
        self._check_open()
        used, scalars = self._used, dict[str, ScalarRun]()

        def open_run(run: RunRow, episodes: Sequence[Episode]) -> RunFile | ScalarRun:
            if run.rows:
                return self.resolver.run_file(run.run_id)
            scalars[run.run_id] = ScalarRun.read_from(self.root, run, episodes)
            return scalars[run.run_id]

        names = [run.run_id for run, _ in used]
        return names, *load_steps(open_run, used, self._options), scalars

    def __len__(self) -> int:
        return len(self._table[1].reward)

    def _runs(self) -> tuple[Rows, Rows]:
        lengths = self._table[2]
        return np.cumsum(lengths) - lengths, lengths

    def _cuts(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        steps, (_, over) = self._table[1], super()._cuts()
        after = np.append(steps.observation[1:], -1)[: len(over)]
        return over | ((steps.observation >= 0) & (steps.next_observation != after)), over

    def _fill(self, rows: Rows, out: Batch) -> None:
        names, steps, _, _ = self._table
        for name in _NUMBERS:
            if name in out:
                getattr(steps, name).take(rows, out=out[name])
        arrays = [name for name in self.schema if name in out and name not in _NUMBERS]
        runs = steps.run[rows]
        for number in np.unique(runs):
            here = np.flatnonzero(runs == number)
            for name in arrays:
                wanted = getattr(steps, name.partition("/")[0])[rows[here]]
                self._read(names[number], dataset_name(name), wanted, out[name], here)

    def _fill_columns(self, rows: Rows, out: Batch, names: Sequence[str]) -> None:
        self._fill(rows, out)  # which leaves alone what is not in `out`

    def _read(self, run_id: str, name: str, wanted: Rows, out: NDArray[Any], here: Rows) -> None:
        """Put rows of a dataset to the places `here` of `out`; zeros where there is no row."""
        file = self._table[3].get(run_id) or self.resolver.file(run_id)
        there = wanted >= 0
        if len(here) == len(out) and there.all():
            file.read(name, wanted, out)
            return
        out[here[~there]] = 0
        out[here[there]] = file.read(name, wanted[there])

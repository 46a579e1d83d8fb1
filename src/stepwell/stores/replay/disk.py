"""A run on the disk, as its writer sees it: arrays first, then the transaction that names them."""

import errno
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from stepwell.errors import BusyError, FormatError
from stepwell.files.atomic import make_folder, sweep
from stepwell.files.lock import WriterLock
from stepwell.files.regular import check_inside
from stepwell.source import Field
from stepwell.stores.replay.channels import ACTIONS, KINDS, Channel, count_rows
from stepwell.stores.replay.database import (
    Database,
    Episode,
    RunRow,
    database_path,
    iso_time,
    iso_times,
    reading,
    run_rows,
    steps_of,
)
from stepwell.stores.replay.items import (
    BATCH_STEPS,
    Counters,
    Ending,
    Inlet,
    Pace,
    Rows,
    Step,
    rows_after,
)
from stepwell.stores.replay.layout import (
    FILE_VERSION,
    NUMBERS,
    STEPS,
    UNSUMMED,
    array_path,
    is_replay,
    lock_path,
    lost_commits,
    write_index,
)
from stepwell.stores.replay.remove import finish_removal
from stepwell.stores.replay.rows import RunFile
from stepwell.stores.replay.scalars import ScalarRun, is_scalar, require_hdf5
from stepwell.stores.replay.steps import check_arrays
from stepwell.writer import Mode, check_mode, check_unused

if TYPE_CHECKING:  # a run without arrays needs no HDF5
    from stepwell.stores.replay.arrays import ArrayFile


class RunDisk:
    """Takes steps in batches; each batch is a commit."""

    def __init__(self, root: Path, run_id: str, mode: Mode = "a") -> None:
        """Begin a run, or go on with it; raises `FileExistsError` for what `mode` refuses."""
        check_mode(mode)
        self._root = root
        self._run_id = run_id
        self._path = array_path(root, run_id)
        _refuse(root, run_id, mode)
        for folder in (self._path.parent, database_path(root).parent):
            make_folder(folder)
        check_inside(root, f"replay/{self._path.name}")
        try:
            self.lock = WriterLock(lock_path(root, run_id))
        except BusyError:
            raise BusyError(f"another writer records run {run_id!r} in {root}") from None
        with ExitStack() as undo:
            undo.callback(self.lock.release)
            self._database = undo.enter_context(closing(Database(root)))
            finish_removal(self._database, root, run_id)
            self._arrays = self._open(mode)
            if self._arrays is not None:
                undo.callback(self._arrays.close)
            # Before the index: one that is unlike the database belongs to a run in this state.
            self._database.commit(run_id, [], [], {"state": "recording"})
            self._note("recording")
            undo.pop_all()
        self._going_on: dict[int, Episode] = {}
        self._known = self.next_episode
        self._starts: dict[int, int] = {}

    def _open(self, mode: Mode) -> "ArrayFile | None":
        """Begin the run, or go on behind the last commit of it."""
        known = self._database.runs().get(self._run_id)
        if known is None:
            if self._path.exists():
                raise _unknown(self._root, self._run_id)
            self._database.begin_run(self._run_id, self._path.name, iso_time(time.time()))
            known = self._database.runs()[self._run_id]
        elif known.steps and mode == "x":  # another writer has come and gone meanwhile
            raise _exists(self._root, self._run_id)
        self._created_at = known.created_at
        self.channels = list(known.channels)
        self.rows = dict(known.rows)
        self.enqueued, self.dropped = known.written, known.dropped
        self.next_episode = known.episodes
        self.names_given = self._database.names_given(self._run_id)
        self._written = known.written
        self._removed = known.written - known.steps
        sweep(self._path.parent, re.escape(self._path.name))
        if known.rows:
            require_hdf5()
        elif known.steps:
            self.rows[ACTIONS] = len(self._scalars().actions)
        if not self._path.exists():
            if known.rows:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._path))
            return None
        try:
            if known.rows and self._knows_all(known):
                return self._file()
        except FormatError:  # not closed, or closed without the commit
            pass
        self._check_account(known)
        if not known.rows:
            self._path.unlink()  # nothing in it was ever committed
            return None
        self._build((), {})
        return self._file()

    def _file(self) -> "ArrayFile":
        from stepwell.stores.replay.arrays import ArrayFile

        return ArrayFile(self._path, self.rows)

    @property
    def is_scalar(self) -> bool:
        """Whether the run has no arrays, and no file, so far."""
        return self._arrays is None

    def _scalars(self) -> ScalarRun:
        """The steps of a run without arrays."""
        known = self._database.runs()[self._run_id]
        episodes = sorted(self._database.episodes(self._run_id), key=lambda e: e.number)
        steps = steps_of(self._database.connection, episodes)
        return ScalarRun(known, episodes, steps, database_path(self._root))

    def _knows_all(self, known: RunRow) -> bool:
        """Whether the database has every dataset of the file, and agrees with itself."""
        with closing(RunFile(self._path, self._run_id)) as file:
            whole = known.rows.keys() == set(file.names) and known.rows[STEPS] == known.written
            return whole and (file.committed or 0) <= known.committed

    def _check_account(self, known: RunRow) -> None:
        """Raise `FormatError` unless all that was committed to the file is known to the database.

        What is not goes away: there is more in a file than in the database when a writer was killed
        between the two, and when the database has lost a commit.
        """
        episodes = self._database.episodes(self._run_id)
        with closing(RunFile(self._path, self._run_id)) as file:
            more = file.length(STEPS) - known.written if STEPS in file.names else 0
            marked = file.committed
            if marked is None:  # in a file of before; what is not committed is one batch at most
                lost = more > BATCH_STEPS or not known.rows
                marked = known.committed + (more if lost else 0)
            if marked > known.committed:
                self._refuse(f"at least {marked:,} rows, as the file has", f"{known.committed:,}")
            if not known.rows:
                return
            steps, ended = sum(e.steps for e in episodes), sum(e.over for e in episodes)
            counts = dict.fromkeys((STEPS, "rewards", "dones"), steps + self._removed)
            # Of episodes that were removed there are ends.
            counts |= {n: max(ended, known.rows.get(n, 0)) for n in UNSUMMED}
            for name, count in counts.items():
                if known.rows.get(name, 0) != count:
                    self._refuse(f"{count:,} rows of {name}", f"{known.rows.get(name, 0):,}")
            if known.steps != steps:
                self._refuse(f"{steps:,} steps", f"{known.steps:,}")
            if steps:
                places, _, _ = file.read_steps(known.written)
                final = max(each.final_row for each in episodes)
                check_arrays(known, places, final, database_path(self._root))

    def _refuse(self, expected: str, got: str) -> NoReturn:
        message = f"run {self._run_id!r}: expected {expected}, got {got}; the file was left alone"
        raise FormatError(message, path=str(database_path(self._root)))

    @property
    def name(self) -> str:
        """The run's name in messages."""
        return f"run {self._run_id!r} in {self._root}"

    @property
    def handed_over(self) -> Rows:
        """Rows of frames, observations and actions."""
        return Rows(*(count_rows(self.channels, self.rows, kind) for kind in KINDS))

    def write(
        self,
        items: Sequence[Step | Ending],
        inlets: Iterable[Inlet],
        counters: Counters,
        pace: Pace,
    ) -> None:
        """Put a batch on the disk. When it fails, the run is as it was before.

        Raises `BusyError` when the store is not where its lock is.
        """
        steps = [item for item in items if isinstance(item, Step)]
        times = iso_times([step.time for step in steps])
        after = rows_after(items[-1])
        pace.rest()
        self._check_place()
        waiting = {i: after.of(i.kind) - self.rows.get(i.channel.name, 0) for i in inlets}
        waiting = {inlet: count for inlet, count in waiting.items() if count}
        channels = [inlet.channel for inlet in waiting]
        arrays = None
        if self._arrays or not _are_scalar(channels, steps):
            arrays = self._with_channels(channels)
        episodes, ended = self._follow(pace.slowly(items), self._written)
        for inlet, count in waiting.items():
            if arrays is not None:
                arrays.append(inlet.channel.name, inlet.buffer, count, pace)
            else:
                self.rows[inlet.channel.name] = self.rows.get(inlet.channel.name, 0) + count
        rows: list[tuple[Any, ...]] = []
        if steps:
            columns: Any = Step._make(zip(*steps, strict=True))
            if arrays is not None:
                places = np.array([getattr(columns, name) for name in _PLACES], np.int64).T
                dones = np.array(columns.terminated, np.uint8) | np.array(columns.truncated) << 1
                pace.rest()
                arrays.append_numbers(STEPS, places)
                arrays.append_numbers("rewards", np.array(columns.reward, np.float64))
                arrays.append_numbers("dones", dones)
            run_ids = repeat(self._run_id, len(times))
            rows = list(zip(*columns[:9], times, columns.agent_id, run_ids, strict=True))
        if arrays is None:
            self.channels += [channel for channel in channels if channel not in self.channels]
        else:
            if ended:
                arrays.append_numbers("episodes/starts", np.array([first for first, _ in ended]))
                arrays.append_numbers("episodes/lengths", np.array([steps for _, steps in ended]))
            pace.rest()
            arrays.flush()
        self._commit(rows, episodes, counters)

    def _check_place(self) -> None:
        if not self.lock.in_place:
            raise BusyError(f"{self._root} was moved or replaced while it was written to")

    def _with_channels(self, channels: list[Channel]) -> "ArrayFile":
        new = [channel for channel in channels if channel not in self.channels]
        if self._arrays is None:
            self.rows = {}
            self._build([*self.channels, *new], NUMBERS)
            self._arrays = self._file()
            self._put_scalars(self._arrays)
            self.channels += new
        elif new:
            self._arrays.close()
            self._build(new, {})
            self.channels += new
            self._arrays = self._file()
        return self._arrays

    def _put_scalars(self, arrays: "ArrayFile") -> None:
        """Put the steps of before there were arrays into the file."""
        places, rewards, dones = (run := self._scalars()).read_steps(self._written)
        gone = self._removed  # so many rows of steps that were written
        arrays.append_numbers(STEPS, np.append(np.full((gone, 5), -1), places, 0))
        arrays.append_numbers("rewards", np.append(np.zeros(gone), rewards))
        arrays.append_numbers("dones", np.append(np.zeros(gone, np.uint8), dones))
        if len(run.actions):
            arrays.append_numbers(ACTIONS, run.actions)
        numbers, first, counts = np.unique(places[:, 0], return_index=True, return_counts=True)
        self._starts |= dict(zip(numbers.tolist(), (first + gone).tolist(), strict=True))
        over = {e.number for e in self._database.episodes(self._run_id) if e.ended_at is not None}
        ended = np.isin(numbers, list(over))
        empty = np.zeros(len(over) - np.count_nonzero(ended), np.int64)  # dropped as a whole
        arrays.append_numbers("episodes/starts", np.append(empty, first[ended] + gone))
        arrays.append_numbers("episodes/lengths", np.append(empty, counts[ended]))

    def _build(self, channels: Iterable[Channel], numbers: Mapping[str, Field]) -> None:
        """Make a new file: the committed rows of the old one, and new datasets."""
        from stepwell.stores.replay.arrays import build_file

        stated = {"run_id": self._run_id, "created_at": self._created_at, "version": FILE_VERSION}
        self.rows = build_file(self._path, stated, self.rows, channels, numbers)

    def _follow(
        self, items: Iterable[Step | Ending], row: int
    ) -> tuple[list[Episode], list[tuple[int, int]]]:
        """Bring the episodes up to date; return those that changed, and the first row and the
        steps of those that ended."""
        touched: dict[int, Episode] = {}
        ended: list[Episode] = []
        first = row
        for item in items:
            episode = self._going_on.get(item.episode)
            if episode is None:
                episode = self._going_on[item.episode] = self._episode(item, row)
            touched[item.episode] = episode
            if isinstance(item, Step):
                row += 1
                episode.steps += 1
                episode.total_reward += item.reward
                episode.dropped = item.step_index + 1 - episode.steps
            else:
                episode.final_obs_ref = item.final_obs_ref or episode.final_obs_ref
                episode.dropped = item.step_index - episode.steps
            episode.terminated |= bool(item.terminated)
            episode.truncated |= bool(item.truncated)
            over = item.terminated or item.truncated or not isinstance(item, Step)
            if over and not episode.over:
                episode.ended = episode.terminated or episode.truncated
                episode.ended_at = iso_time(item.time)
                ended.append(episode)
        spans = [(self._starts.pop(e.number, first), e.steps) for e in ended]
        return list(touched.values()), spans

    def _episode(self, item: Step | Ending, row: int) -> Episode:
        """The episode of an item that is the first of it here: a new one, unless it was begun
        before this writer was opened."""
        self._going_on = {
            number: each
            for number, each in self._going_on.items()
            if not each.over or each.agent_id != item.agent_id
        }
        if item.episode >= self._known:
            self._starts[item.episode] = row
            began = iso_time(item.time)
            name, number, agent = item.episode_id, item.episode, item.agent_id
            return Episode.begin(name, self._run_id, number, agent, began)
        if self._arrays is not None and item.episode not in self._starts:
            with closing(RunFile(self._path, self._run_id)) as file:
                numbers = file.read_all(STEPS, self.rows[STEPS])[:, 0]
            self._starts[item.episode] = int(np.argmax(numbers == item.episode))
        return self._database.episode(item.episode_id)

    def _commit(
        self, steps: list[tuple[Any, ...]], episodes: list[Episode], counters: Counters
    ) -> None:
        self._written += len(steps)
        self.next_episode = max([self.next_episode, *(1 + e.number for e in episodes)])
        facts: dict[str, Any] = {
            "updated_at": iso_time(time.time()),
            "steps": self._written - self._removed,
            "episodes": self.next_episode,
            "written": self._written,
            **counters._asdict(),
        }
        facts["channels"] = json.dumps([channel.to_json() for channel in self.channels])
        if self._arrays is not None:
            self.rows = self._arrays.rows
            facts["rows"] = json.dumps(self.rows)
        self._database.commit(self._run_id, steps, episodes, facts)
        if self._arrays is not None:
            self._arrays.mark_committed()

    def _note(self, state: str) -> None:
        """Write what becomes of the run to the database and to the index."""
        facts = {"state": state, "updated_at": iso_time(time.time())}
        self._database.note(self._run_id, facts, lambda runs: write_index(self._root, runs))

    def close(self, counters: Counters) -> None:
        """Leave the run as a whole; the file can be opened by anything that reads HDF5."""
        try:
            arrays, self._arrays = self._arrays, None
            if arrays is not None:
                arrays.close()
            self._check_place()
            self._commit([], [], counters)
            self._note("closed")
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of everything as it is; the next writer goes on from the last commit."""
        arrays, self._arrays = self._arrays, None
        with suppress(OSError, FormatError, sqlite3.Error):
            if arrays is not None:
                arrays.close()
        with suppress(OSError, FormatError, sqlite3.Error):
            self._database.close()
        self.lock.release()


def _are_scalar(channels: Iterable[Channel], steps: Iterable[Step]) -> bool:
    """Whether the database can hold all of these steps: no array, and no reference to one."""
    return all(map(is_scalar, channels)) and not any(isinstance(s.action, str) for s in steps)


def _refuse(root: Path, run_id: str, mode: Mode) -> None:
    """Raise `FileExistsError` where a writer must not begin; looks, and touches nothing."""
    if not is_replay(root):
        check_unused(root, "a replay store", is_left_over)
        if array_path(root, run_id).exists():
            raise _unknown(root, run_id)
    known: Mapping[str, RunRow] = {}
    with suppress(FileNotFoundError), reading(root) as database:
        known = run_rows(database, database_path(root))
    # Before it is opened: SQLite lets go of a damaged log as soon as it may write.
    for lost in lost_commits(root, known, [run_id]):
        raise lost
    if committed_steps(root, run_id) and mode == "x":
        raise _exists(root, run_id)


def is_left_over(path: Path) -> bool:
    """Whether a writer that was killed before it made a database may have left this."""
    return path.name in ("replay", "telemetry") and path.is_dir() and not path.is_symlink()


def committed_steps(root: Path, run_id: str | None = None) -> int:
    """How many steps of a run, or of all, were committed to a store, if it is one yet."""
    try:
        with reading(root) as database:
            runs = run_rows(database, database_path(root))
    except FileNotFoundError:
        return 0
    return sum(run.steps for name, run in runs.items() if run_id in (None, name))


def _unknown(root: Path, run_id: str) -> FileExistsError:
    path = array_path(root, run_id)
    return FileExistsError(f"expected a new run, got {path}, which the database does not list")


def _exists(root: Path, run_id: str) -> FileExistsError:
    return FileExistsError(
        f"the run {run_id!r} exists already in {root}; mode='a' (--append) goes on with it"
    )


_PLACES = ("episode", "step_index", "frame_row", "obs_row", "action_row")

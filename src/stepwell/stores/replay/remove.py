"""Runs and episodes are removed: from the database first, from the files after.

A run keeps its row, in the state "removed", until its file is gone. Rows of a removed episode stay
in the run's file until a copy without them takes its place; nobody reads them. So a kill at any
moment leaves a whole store, and the next removal finishes what was begun. Row numbers do not
change, so references to what is left lead where they led before.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import BusyError, FormatError
from stepwell.files.atomic import sweep, sync_path
from stepwell.files.catalog import in_turn, transaction, translated
from stepwell.files.lock import WriterLock, is_locked
from stepwell.files.regular import bytes_on_disk
from stepwell.stores.replay.channels import OBSERVATIONS
from stepwell.stores.replay.database import (
    REMOVED,
    REMOVED_VERSION,
    Database,
    Episode,
    RunRow,
    database_path,
    removed_runs,
    run_rows,
)
from stepwell.stores.replay.layout import (
    CHECKSUMS,
    FILE_VERSION,
    KIND_COLUMNS,
    STEPS,
    array_path,
    lock_path,
    write_index,
)
from stepwell.stores.replay.reader import ReplayReader
from stepwell.stores.replay.rows import RunFile
from stepwell.stores.replay.scalars import require_hdf5
from stepwell.stores.replay.steps import check_arrays

_Removal = tuple[dict[str, NDArray[np.bool_]], dict[str, NDArray[Any]]]
_REMOVING = "removing"
_STEPS_AT_ONCE = 50_000
_MARGIN = 1.05  # as sizes of episodes are estimated
_MIN_FREE = 0.1  # of a database, for it to be written again


class Removed(NamedTuple):
    """What was removed, and the bytes that this gave back."""

    runs: int
    episodes: int
    steps: int
    bytes: int


def remove(
    root: str | os.PathLike[str],
    where: str | None = None,
    *values: Any,
    keep_bytes: float | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Removed:
    """Remove the episodes for which an SQL condition over their columns holds; with `keep_bytes`
    only the oldest of them, until no more than that is left on the disk. A run of which no episode
    is left goes as a whole.

    Readers that have a run's file open go on with it; others find what is left. Raises `BusyError`,
    and removes nothing, when one of the episodes is of a run that is being recorded; `keep_bytes`
    leaves those alone. `dry_run` only counts, and estimates the bytes. A kill leaves a store that
    is whole, and the next removal returns what space is left to return.
    """
    if where is None and keep_bytes is None:
        raise ValueError("expected a condition or keep_bytes, got neither")
    if keep_bytes is not None and not keep_bytes >= 0:
        raise ValueError(f"keep_bytes: expected at least 0, got {keep_bytes}")
    path = Path(root).absolute()
    parts, done = (path / "replay", path / "telemetry"), Removed(0, 0, 0, 0)
    before = bytes_on_disk(*parts)
    with ReplayReader.open(path) as reader, closing(Database(path)) as database:
        if not dry_run:
            _finish(database, path)
        while True:
            size = _size(database, path)
            chosen = _choose(reader, where, values, keep_bytes, size)
            if dry_run:
                return _counted(reader, chosen, size)
            found = _remove(database, path, reader, chosen, progress, keep_bytes is not None)
            done = Removed(*(a + b for a, b in zip(done, found, strict=True)))
            if keep_bytes is None or not chosen:
                break
            reader.refresh()
    return done._replace(bytes=max(0, before - bytes_on_disk(*parts)))


def remove_run(root: str | os.PathLike[str], run_id: str) -> None:
    """Remove a run and its file. Raises `KeyError` when there is none, `BusyError` when it is being
    recorded."""
    path = Path(root).absolute()
    with ReplayReader.open(path, run=run_id), closing(Database(path)) as database:
        with _locked(path, run_id):
            if run_id not in database.runs():  # somebody else has removed it
                _finish_whole(database, path, run_id)
                raise KeyError(f"there is no run {run_id!r}")
            _remove_whole(database, path, run_id)
        _shrink(database, path)


def finish_removal(database: Database, root: Path, run_id: str) -> None:
    """Remove what is left of a run that is being removed. Whoever calls it holds its lock."""
    connection, path = database.connection, database_path(root)
    if run_id not in removed_runs(connection, path):
        return
    with transaction(connection, path):
        write_index(root, run_rows(connection, path))
        array_path(root, run_id).unlink(missing_ok=True)
        _sweep(root, run_id)
        sync_path(root / "replay")
        connection.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))


# What goes.


def _choose(
    reader: ReplayReader,
    where: str | None,
    values: Sequence[Any],
    keep_bytes: float | None,
    size: int,
) -> dict[str, list[Episode]]:
    """The episodes to remove, by run."""
    part = reader if where is None else reader.where(where, *values)
    busy = {name for name in reader.recordings if is_locked(lock_path(reader.root, name))}
    chosen = list(part.episodes)
    if keep_bytes is None:
        for name in [e.run_id for e in chosen if e.run_id in busy][:1]:
            raise BusyError(f"expected runs that nobody records, got {name!r} in {reader.root}")
    else:
        costs, left = _costs(reader, size), (size - keep_bytes) * _MARGIN
        oldest = sorted(chosen, key=lambda e: (e.started_at, e.run_id, e.number))
        chosen = []
        for episode in oldest:
            if left > 0 and episode.run_id not in busy:
                chosen.append(episode)
                left -= costs[episode.run_id] * max(1, episode.steps)
    found: dict[str, list[Episode]] = {}
    for episode in chosen:
        found.setdefault(episode.run_id, []).append(episode)
    return found


def _costs(reader: ReplayReader, size: int) -> dict[str, float]:
    """Bytes that a step of each run takes, in its file and in the database."""
    files = {name: bytes_on_disk(array_path(reader.root, name)) for name in reader.recordings}
    steps = max(1, sum(run.steps for run in reader.recordings.values()))
    scalars = max(0, size - sum(files.values())) / steps
    return {
        name: scalars + files[name] / max(1, run.steps) for name, run in reader.recordings.items()
    }


def _counted(reader: ReplayReader, chosen: Mapping[str, list[Episode]], size: int) -> Removed:
    there = Counter(e.run_id for e in reader.episodes)
    costs = _costs(reader, size)
    steps = {name: sum(e.steps for e in some) for name, some in chosen.items()}
    return Removed(
        sum(len(some) == there[name] for name, some in chosen.items()),
        sum(map(len, chosen.values())),
        sum(steps.values()),
        int(sum(costs[name] * count for name, count in steps.items())),
    )


def _size(database: Database, root: Path) -> int:
    """Bytes on the disk, without pages of the database that are free to be used again."""
    free, _, page = _pages(database, root)
    return max(0, bytes_on_disk(root / "replay", database_path(root)) - free * page)


def _pages(database: Database, root: Path) -> list[int]:
    """Free pages of the database, all of them, and the bytes of one."""
    names = ("freelist_count", "page_count", "page_size")
    with in_turn(), translated(database_path(root)):
        found = [database.connection.execute(f"PRAGMA {name}").fetchone() for name in names]
    return [count for (count,) in found]


# How it goes.


def _remove(
    database: Database,
    root: Path,
    reader: ReplayReader,
    chosen: Mapping[str, list[Episode]],
    progress: Callable[[int, int], None],
    skip_busy: bool,
) -> Removed:
    removed = Removed(0, 0, 0, 0)
    there = Counter(e.run_id for e in reader.episodes)
    parts = [name for name, some in chosen.items() if len(some) < there[name]]
    if any(reader.recordings[name].rows for name in parts):
        require_hdf5()  # better known before
    for done, (name, some) in enumerate(chosen.items()):
        progress(done, len(chosen))
        with suppress(*[BusyError] * skip_busy), _locked(root, name):
            run = database.runs().get(name)
            if run is None:  # somebody else has removed it
                _finish_whole(database, root, name)
                continue
            if run.created_at != reader.recordings[name].created_at:
                continue  # or has, and another has recorded it again
            now = database.episodes(name)  # a writer may have come and gone
            names = {e.episode_id for e in some}
            gone = [e for e in now if e.episode_id in names]
            if len(gone) == len(now):
                _remove_whole(database, root, name)
            else:
                _remove_some(database, root, run, gone)
            runs, episodes, steps, _ = removed
            steps += sum(e.steps for e in gone)
            removed = Removed(runs + (len(gone) == len(now)), episodes + len(gone), steps, 0)
    progress(len(chosen), len(chosen))
    _shrink(database, root)
    return removed


@contextmanager
def _locked(root: Path, run_id: str) -> Iterator[None]:
    try:
        lock = WriterLock(lock_path(root, run_id))
    except BusyError:
        raise BusyError(f"another writer records run {run_id!r} in {root}") from None
    try:
        yield
    finally:
        lock.release()


def _remove_whole(database: Database, root: Path, run_id: str) -> None:
    for group in [*_groups(database.episodes(run_id))][:-1]:
        _delete(database, root, run_id, group)
    nothing = {"steps": 0, "episodes": 0, "enqueued": 0, "written": 0, "rows": "{}"}
    connection = database.connection
    with transaction(connection, database_path(root)):
        for table in ("steps", "episodes"):
            connection.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))
        database.update(run_id, {"state": REMOVED, **nothing, "channels": "[]"})
    _finish_whole(database, root, run_id)


def _finish_whole(database: Database, root: Path, run_id: str) -> None:
    finish_removal(database, root, run_id)
    with suppress(FileNotFoundError):
        lock_path(root, run_id).unlink()  # by whoever holds it


def _remove_some(database: Database, root: Path, run: RunRow, episodes: list[Episode]) -> None:
    gone = {e.episode_id for e in episodes}
    left = [e for e in database.episodes(run.run_id) if e.episode_id not in gone]
    removal = _removal(root, run, left)  # damage is better known before
    for group in _groups(episodes):
        _delete(database, root, run.run_id, group)
    _finish_some(database, root, database.runs()[run.run_id], removal)


def _delete(database: Database, root: Path, run_id: str, episodes: list[Episode]) -> None:
    """Delete episodes of a run from the database."""
    run, connection = database.runs()[run_id], database.connection
    state = _REMOVING if run.state == "closed" else run.state  # what index.json is not about
    with transaction(connection, database_path(root)):
        for table in ("steps", "episodes"):
            names = [(e.episode_id,) for e in episodes]
            connection.executemany(f"DELETE FROM {table} WHERE episode_id = ?", names)
        steps = run.steps - sum(e.steps for e in episodes)
        database.update(run_id, {"state": state, "steps": steps})
        connection.execute(f"PRAGMA user_version = {REMOVED_VERSION}")


def _groups(episodes: Iterable[Episode]) -> Iterator[list[Episode]]:
    """Some at a time: whoever records other runs waits for a transaction, and not for ever."""
    group: list[Episode] = []
    steps = 0
    for episode in episodes:
        group.append(episode)
        steps += episode.steps
        if steps >= _STEPS_AT_ONCE:
            yield group
            group, steps = [], 0
    if group:
        yield group


def _finish(database: Database, root: Path) -> None:
    """Finish removals that were interrupted."""
    for name in removed_runs(database.connection, database_path(root)):
        with suppress(BusyError), _locked(root, name):
            _finish_whole(database, root, name)
    for name, run in database.runs().items():
        if run.written > run.steps or run.state == _REMOVING:
            # Damage in its file is for `verify` to report, and in nobody's way.
            with suppress(OSError, FormatError, ImportError), _locked(root, name):
                now = database.runs().get(name)
                if now is None:  # somebody else has removed it
                    _finish_whole(database, root, name)
                    continue
                removal = _removal(root, now, database.episodes(name))
                if removal is not None or now.state == _REMOVING:
                    _finish_some(database, root, now, removal)


def _finish_some(database: Database, root: Path, run: RunRow, removal: _Removal | None) -> None:
    """Put a copy without removed episodes into the place of a run's file."""
    _sweep(root, run.run_id)
    if removal is not None:
        from stepwell.stores.replay.arrays import Removal, build_file

        about = {"run_id": run.run_id, "created_at": run.created_at, "version": FILE_VERSION}
        build_file(array_path(root, run.run_id), about, run.rows, (), {}, Removal(*removal))
    state = "closed" if run.state == _REMOVING else run.state
    database.note(run.run_id, {"state": state}, lambda runs: write_index(root, runs))


def _sweep(root: Path, run_id: str) -> None:
    """Remove copies that were not finished."""
    sweep(root / "replay", re.escape(array_path(root, run_id).name))


def _removal(root: Path, run: RunRow, episodes: Sequence[Episode]) -> _Removal | None:
    """Which rows of each array go, and what takes the place of the scalars, where these episodes
    are left; None when there is nothing to be removed from the file."""
    if not run.rows:
        return None
    with closing(RunFile(array_path(root, run.run_id), run.run_id)) as file:
        places, rewards, dones = (each.copy() for each in file.read_steps(run.written))
        ends = ("episodes/starts", "episodes/lengths")
        starts, lengths = (file.read_all(name, run.rows[name]).copy() for name in ends)
    gone = ~np.isin(places[:, 0], [e.number for e in episodes])
    if (places[gone, 0] < 0).all():
        return None
    kept = places[~gone]
    check_arrays(run, kept, max((e.final_row for e in episodes), default=-1), database_path(root))
    used = {kind: kept[:, column] for kind, column in KIND_COLUMNS.items()}
    used[OBSERVATIONS] = np.append(used[OBSERVATIONS], [e.final_row for e in episodes])
    rows = {}
    for channel in run.channels:
        rows[channel.name] = np.ones(run.rows[channel.name], bool)
        rows[channel.name][used[channel.kind][used[channel.kind] >= 0]] = False
    begins = np.append(gone, [False])[np.clip(starts, -1, len(gone))]
    over = (lengths > 0) & begins
    starts[over], lengths[over] = -1, 0
    places[gone], rewards[gone], dones[gone] = -1, 0, 0
    scalars: dict[str, NDArray[Any]] = {STEPS: places, "rewards": rewards, "dones": dones}
    for name, values in list(scalars.items()):
        stored = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        checksums = _core.checksum_each(stored, len(stored) // len(values))
        scalars[f"{CHECKSUMS}/{name}"] = checksums.view(np.uint32)
    return rows, {**scalars, "episodes/starts": starts, "episodes/lengths": lengths}


def _shrink(database: Database, root: Path) -> None:
    """Return free pages of the database, unless someone records, who would have to wait."""
    if any(is_locked(lock_path(root, name)) for name in database.runs()):
        return
    free, count, _ = _pages(database, root)
    if free > _MIN_FREE * count:
        # Or someone reads for long, or there is no room for a copy.
        with suppress(OSError), in_turn(), translated(database_path(root)):
            database.connection.execute("VACUUM")
            database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

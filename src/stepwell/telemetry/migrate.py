"""Moves a database that kept its arrays as JSON into a replay store.

A batch at a time: JSON read, arrays and rows committed as a writer would, then read back and
compared. Steps that the store has already are left out, so the same call goes on after a kill,
and adds what was recorded in the meantime.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepwell.errors import FormatError, SchemaError
from stepwell.store import Progress
from stepwell.stores.replay.database import RunRow, database_path, reading, run_rows
from stepwell.stores.replay.layout import array_path
from stepwell.stores.replay.refs import check_run_id
from stepwell.stores.replay.writer import ReplayWriter, check_compress
from stepwell.telemetry.moved import MovedStep, Types, differences
from stepwell.telemetry.old_telemetry import OldEpisode, OldTelemetry

BATCH_BYTES = 16 << 20  # of JSON
_BATCH_STEPS = 512
_NO_RUN = "unnamed"
_MAX_LINES = 100

_Item = tuple[OldEpisode, MovedStep | None]
"""A step of an episode; None for its end."""


@dataclass
class MigrationReport:
    """The result of a migration. `added` are steps that were not in the store before."""

    steps: int = 0
    added: int = 0
    verified: int = 0
    episodes: int = 0
    runs: dict[str | None, str] = field(default_factory=dict)
    """The name of each run in the store by its old one; most are the same."""
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    """The first of them."""
    old_bytes: int = 0
    database_bytes: int = 0
    array_bytes: int = 0


def migrate_telemetry(
    old: str | os.PathLike[str],
    root: str | os.PathLike[str],
    *,
    run_ids: Sequence[str] | None = None,
    compress: str = "zstd",
    observations: str | None = None,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> MigrationReport:
    """Bring all steps of the database `old`, or those of some runs, to the replay store `root`.

    Everything is read back and compared. `observations` is a dtype for all of them, instead of
    one by what they are. Raises `SchemaError` for a step that cannot be moved, which `skip_bad`
    leaves out, and for a different run of the same name in the store.
    """
    check_compress(compress)
    if observations is not None and not _is_of_numbers(observations):
        raise ValueError(f"observations: expected a type of numbers, got {observations!r}")
    with _opened(Path(old), Path(root)) as source:
        move = _Migration(source, Path(root), run_ids, progress, skip_bad)
        return move.run(compress, observations)


def validate_telemetry(
    old: str | os.PathLike[str],
    root: str | os.PathLike[str],
    *,
    run_ids: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> MigrationReport:
    """Compare every step that both have; the report's `differences` list what is not the same."""
    with _opened(Path(old), Path(root)) as source:
        return _Migration(source, Path(root), run_ids, progress).validate()


def _opened(old: Path, root: Path) -> closing[OldTelemetry]:
    ours = database_path(root)
    if ours.exists() and old.exists() and ours.samefile(old):
        raise ValueError(f"{old} is the store's own database; choose another root")
    return closing(OldTelemetry(old))


class _Migration:
    def __init__(
        self,
        old: OldTelemetry,
        root: Path,
        run_ids: Sequence[str] | None,
        progress: Progress | None,
        skip_bad: bool = True,
    ) -> None:
        self._old = old
        self._root = root
        self._skip_bad = skip_bad
        self._progress = progress or (lambda done, total: None)
        self._done = 0
        self._episodes: dict[str | None, list[OldEpisode]] = {}
        for episode in old.episodes():
            self._episodes.setdefault(episode.run_id, []).append(episode)
        unknown = set(run_ids or ()) - set(self._episodes)
        if unknown:
            raise ValueError(f"there is no run {min(unknown)!r} - at {old.path}")
        if run_ids is not None:
            self._episodes = {name: self._episodes[name] for name in run_ids}
        every = list(chain.from_iterable(self._episodes.values()))
        self._report = MigrationReport(
            steps=sum(len(old.indices(episode.episode_id)) for episode in every),
            episodes=len(every),
            runs={name: self._name_of(name) for name in self._episodes},
        )

    def _name_of(self, old: str | None) -> str:
        """A run's name as a file may have it: its own, or one like it with a checksum of it."""
        if not old:
            return _NO_RUN
        like = _like(old)
        try:
            check_run_id(old)
        except ValueError:
            return like
        # Dots were refused before: a run that was moved then has the other name.
        moved = "." in old and self._select("SELECT 1 FROM runs WHERE run_id = ?", like)
        return like if moved else old

    def run(self, compress: str, observations: str | None) -> MigrationReport:
        """Move what the store does not have."""
        for old_name, episodes in self._episodes.items():
            run_id = self._report.runs[old_name]
            row = self._check_run(run_id, episodes)
            news = self._news(run_id, episodes)
            first = list(islice(news, 1))
            if not first and row is not None and row.state == "closed":
                continue
            types = Types(() if row is None else row.channels, observations)
            writer = ReplayWriter(self._root, run_id, mode="a", compress=compress)
            with closing(writer):  # an error leaves episodes as they are: they will go on
                for batch in self._batches(chain(first, news)):
                    kept = self._put(writer, types, batch)
                    writer.commit()
                    lines = differences(self._root, run_id, kept)
                    if lines:
                        raise FormatError(f"read back: {lines[0]}", path=str(self._root))
                    self._report.added += len(kept)
                    self._report.verified += len(kept)
        return self._measured()

    def _put(self, writer: ReplayWriter, types: Types, batch: list[_Item]) -> list[MovedStep]:
        """Hand a batch to the writer; return the steps that were not skipped."""
        types.settle(step for _, step in batch if step is not None)
        kept = []
        for episode, step in batch:
            if step is None:
                with suppress(ValueError):  # its last step has ended it
                    writer.end_episode(
                        episode_id=episode.episode_id,
                        agent_id=episode.agent_id,
                        timestamp=episode.ended_at,
                    )
                continue
            try:
                step.hand_to(writer, types)
                kept.append(step)
            except (ValueError, TypeError) as error:
                self._skip(SchemaError(f"{step.where}: {error}"))
        return kept

    def validate(self) -> MigrationReport:
        """Compare what both have."""
        with reading(self._root):
            pass
        for old_name, episodes in self._episodes.items():
            run_id = self._report.runs[old_name]
            for episode in episodes:
                known = self._known(run_id, episode)
                both = [i for i in self._old.indices(episode.episode_id) if i in known.steps]
                for batch in self._batches(self._items(episode, both)):
                    lines = differences(self._root, run_id, [step for _, step in batch if step])
                    self._report.differences += lines[: _MAX_LINES - len(self._report.differences)]
                    self._report.verified += len(batch)
        return self._measured()

    def _news(self, run_id: str, episodes: list[OldEpisode]) -> Iterator[_Item]:
        """Steps that the store does not have, and a None after those of an episode that ended."""
        for episode in episodes:
            known, ended = self._known(run_id, episode)
            there = self._old.indices(episode.episode_id)
            missing = [index for index in there if index not in known]
            self._advance(len(there) - len(missing))
            yield from self._items(episode, missing)
            if episode.ended and (missing or not ended):
                yield episode, None

    def _items(self, episode: OldEpisode, indices: list[int]) -> Iterator[_Item]:
        """Steps of an episode, as they are read."""
        for index in indices:
            step = self._old.step(episode, index)
            if step is None:
                continue
            self._done += 1
            try:
                moved = MovedStep.of(step)
            except SchemaError as error:
                self._skip(error)
            else:
                yield episode, moved

    def _batches(self, items: Iterator[_Item]) -> Iterator[list[_Item]]:
        """As many as go into a commit."""
        batch: list[_Item] = []
        size = 0
        for episode, step in items:
            batch.append((episode, step))
            size += 0 if step is None else step.json_bytes
            if len(batch) == _BATCH_STEPS or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
                self._advance(0)
        if batch:
            yield batch
        self._advance(0)

    def _skip(self, error: SchemaError) -> None:
        if not self._skip_bad:
            raise error
        self._report.skipped.append((self._old.path, str(error)))

    def _check_run(self, run_id: str, episodes: list[OldEpisode]) -> RunRow | None:
        """The run in the store. Raises `SchemaError` when it is a different one of that name:
        one with other episodes, or whose first steps are not the same."""
        sql = "SELECT episode_id FROM episodes WHERE run_id = ? ORDER BY number"
        there = [name for (name,) in self._select(sql, run_id)]
        known = {episode.episode_id: episode for episode in episodes}
        for name in there:
            if name not in known:
                raise SchemaError(
                    f"run {run_id!r}: the store has one with an episode {name!r}, "
                    f"which is not in {self._old.path}"
                )
        for name in dict.fromkeys(there[:1] + there[-1:]):
            index = min(self._known(run_id, known[name]).steps, default=0)
            first = self._old.step(known[name], index)
            lines = differences(self._root, run_id, [MovedStep.of(first)] if first else [])
            if lines:
                raise SchemaError(f"run {run_id!r}: the store has a different one: {lines[0]}")
        try:
            with reading(self._root) as database:
                return run_rows(database, database_path(self._root)).get(run_id)
        except FileNotFoundError:
            return None

    def _known(self, run_id: str, episode: OldEpisode) -> "_Known":
        """The episode in the store. Raises `SchemaError` when it is of another run."""
        name = episode.episode_id
        sql = "SELECT run_id, ended_at IS NOT NULL FROM episodes WHERE episode_id = ?"
        for owner, ended in self._select(sql, name):
            if owner != run_id:
                raise SchemaError(
                    f"episode {name!r}: the store has one of the run {owner!r}, "
                    f"this one is of {run_id!r}"
                )
            steps = self._select("SELECT step_index FROM steps WHERE episode_id = ?", name)
            return _Known(frozenset(index for (index,) in steps), bool(ended))
        return _Known()

    def _select(self, sql: str, value: str) -> list[tuple[Any, ...]]:
        """Rows of the store; none when there is no store yet."""
        try:
            with reading(self._root) as database:
                return database.execute(sql, (value,)).fetchall()
        except FileNotFoundError:
            return []

    def _advance(self, count: int) -> None:
        self._done += count
        self._progress(min(self._done, self._report.steps), self._report.steps)

    def _measured(self) -> MigrationReport:
        report = self._report
        report.old_bytes = _size(self._old.path)
        report.database_bytes = _size(database_path(self._root))
        report.array_bytes = sum(_size(array_path(self._root, r)) for r in report.runs.values())
        return report


class _Known(NamedTuple):
    """The steps of an episode in the store."""

    steps: frozenset[int] = frozenset()
    ended: bool = False


def _like(old: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]", "_", old)[:100]
    checksum = hashlib.blake2b(old.encode(errors="surrogateescape"), digest_size=4).hexdigest()
    return f"{name}-{checksum}"


def _is_of_numbers(name: str) -> bool:
    try:
        return np.dtype(name).kind in "biuf"
    except TypeError:
        return False


def _size(path: Path) -> int:
    """Bytes of a file, and of the log that SQLite puts beside a database."""
    paths = (path, path.with_name(path.name + "-wal"))
    return sum(file.stat().st_size for file in paths if file.exists())

"""A run of a replay store to which steps are added under the names that they have."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from stepwell.errors import SchemaError
from stepwell.stores.replay.channels import KINDS
from stepwell.stores.replay.database import EPISODE_COLUMNS, Episode, database_path, reading
from stepwell.stores.replay.disk import RunDisk
from stepwell.stores.replay.items import Counters, Inlet, Rows, Step
from stepwell.stores.replay.layout import STEPS, array_path
from stepwell.stores.replay.rows import RunFile
from stepwell.telemetry.moved import Channels, MovedStep
from stepwell.telemetry.old_telemetry import OldEpisode

__all__ = ["Item", "MovedRun"]

Item = tuple[OldEpisode, MovedStep | None]
"""A step of an episode; None when all of its steps have come."""


class MovedRun:
    """Takes steps in batches; each batch is a commit."""

    def __init__(self, root: Path, run_id: str, compress: str, observations: str | None) -> None:
        self.run_id = run_id
        self.path = array_path(root, run_id)
        self._root = root
        self._disk = RunDisk(root, run_id)
        try:
            self._channels = Channels(self._disk.channels, compress, observations)
            self._next = self._disk.next_episode
            self._first = self._first_rows()
        except BaseException:
            self._disk.abandon()
            raise
        self._last: _Place | None = None

    def _first_rows(self) -> dict[int, int]:
        """Where each episode begins in the dataset of steps, by its number."""
        count = self._disk.rows.get(STEPS, 0)
        if not count:
            return {}
        with closing(RunFile(self.path, self.run_id)) as file:
            numbers = file.read_all(STEPS, count)[:, 0]
        found, first = np.unique(numbers, return_index=True)
        return dict(zip(found.tolist(), first.tolist(), strict=True))

    def put(self, steps: Sequence[Item], skip: Callable[[SchemaError], None]) -> list[MovedStep]:
        """Commit steps, and the ends of episodes; returns the steps that were not skipped."""
        self._channels.settle([step for _, step in steps if step is not None])
        items: list[Step] = []
        inlets: dict[str, Inlet] = {}
        kept: list[MovedStep] = []
        touched: dict[str, _Place] = {}
        counts = self._disk.handed_over
        for episode, step in steps:
            if step is None:
                place = touched[episode.episode_id] = self._place(episode)
                place.complete()
                continue
            try:
                payloads = [self._channels.payloads(step, kind) for kind in KINDS]
            except SchemaError as error:
                skip(error)
                continue
            place = touched[episode.episode_id] = self._place(episode)
            refs, at = [], []
            for kind, row, arrays in zip(KINDS, counts, payloads, strict=True):
                refs.append(f"h5://{self.run_id}/{kind}/{row}" if arrays else None)
                at.append(row if arrays else -1)
                for channel, array in arrays:
                    if channel.name not in inlets:
                        inlets[channel.name] = Inlet(channel, row)
                    inlets[channel.name].buffer.put(row, array)
            counts = Rows(*(n + (row >= 0) for n, row in zip(counts, at, strict=True)))
            number = place.seat.number
            self._first.setdefault(number, self._disk.rows.get(STEPS, 0) + len(items))
            place.add(step)
            new = step.columns
            items.append(
                Step(
                    step.episode_id, step.step_index,
                    refs[2] if step.number is None else step.number,
                    new["reward"], new["terminated"], new["truncated"], refs[0], refs[1],
                    new["info"], new["agent_id"], 0.0, number, at[0], at[1], at[2], *counts,
                )
            )  # fmt: skip
            kept.append(step)
        touched = {name: place for name, place in touched.items() if place.seat.steps}
        if touched:
            ended = [place.seat for place in touched.values() if place.ended]
            spans = [(self._first[seat.number], seat.steps) for seat in ended]
            seats = [place.seat for place in touched.values()]
            times = [step.columns["timestamp"] for step in kept]
            counters = self._counters(len(items))
            self._disk.put(items, times, counts, inlets.values(), seats, spans, counters)
        return kept

    def _place(self, episode: OldEpisode) -> "_Place":
        """An episode, as the store has it or new; they come one after another."""
        name = episode.episode_id
        if self._last is not None and self._last.seat.episode_id == name:
            return self._last
        with reading(self._root) as database:
            row = database.execute(
                f"SELECT {', '.join(EPISODE_COLUMNS)} FROM episodes WHERE episode_id = ?", (name,)
            ).fetchone()
            first, last = database.execute(
                "SELECT min(step_index), max(step_index) FROM steps WHERE episode_id = ?", (name,)
            ).fetchone()
        if row is not None:
            seat = Episode.of(row, database_path(self._root))
        else:
            seat = Episode.begin(self.run_id, self._next, episode.agent_id, episode.started_at)
            seat.episode_id = name
            self._next += 1
        self._last = _Place(episode, seat, first, last)
        return self._last

    def _counters(self, count: int) -> Counters:
        written = self._disk.enqueued = self._disk.enqueued + count
        return Counters(written, 0, 0, 0.0)

    def __enter__(self) -> "MovedRun":
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self._disk.close(self._counters(0))
        else:
            self._disk.abandon()


class _Place:
    """An episode while it is moved."""

    def __init__(
        self, episode: OldEpisode, seat: Episode, first: int | None, last: int | None
    ) -> None:
        self.seat = seat
        self.ended = False
        self._episode = episode
        self._first, self._last = first, last
        self._time = seat.started_at

    def add(self, step: MovedStep) -> None:
        seat, index = self.seat, step.step_index
        self._first = index if self._first is None else min(self._first, index)
        self._last = index if self._last is None else max(self._last, index)
        self._time = max(self._time, step.columns["timestamp"])
        seat.steps += 1
        total = self._episode.total_reward
        seat.total_reward = seat.total_reward + step.columns["reward"] if total is None else total
        stated = self._episode.steps or 0
        seat.dropped = max(self._last - self._first + 1, stated) - seat.steps
        seat.terminated |= bool(step.columns["terminated"])
        seat.truncated |= bool(step.columns["truncated"])

    def complete(self) -> None:
        """All of its steps are there by now; it may have ended."""
        seat = self.seat
        if not seat.ended and (seat.terminated or seat.truncated or self._episode.ended):
            seat.ended, seat.ended_at = True, self._time
            self.ended = True

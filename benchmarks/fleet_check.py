"""The simulator beside the real loader, at sizes that can be run.

A server on this machine answers as late and as slowly as the simulator assumes. Each trial is one
line of `trials`: a loop over batches, and what the simulator is to make of it.
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stepwell as sw
from benchmarks import shards_data as data
from benchmarks.fleet_queue import Path as Way, Readers, Request, run
from benchmarks.fleet_traffic import plan, rows_of_rank
from benchmarks.results import number
from benchmarks.shards_remote import bucket, counted
from stepwell.sampler import Sampler

_ROWS = 10_000
_ROW_BYTES = data.ROW_BYTES
_SHARD_BYTES = 8 << 20
_SHARD_ROWS = _SHARD_BYTES // _ROW_BYTES
_FIRST_ROWS = range(0, _ROWS, _SHARD_ROWS)
_NEAR_BYTES = (1 << 16) - 2 * _ROW_BYTES  # what shards have is from row to row, not between them
_BATCH = 128
_STEPS = 12
_ROUNDS = 3
_UNLIMITED = 1e15
WITHIN = 0.15
_POINTS = 0.05  # of shares of time, where 15 % of one is next to nothing
_MARKS = {True: "met", False: "**missed**"}


@dataclass(frozen=True)
class Trial:
    """A loop over a bucket, and the same for the simulator."""

    name: str
    loop: Callable[[sw.ShardReader], Iterator[Any]]
    connections: int
    requests: Sequence[Request]
    steps: int
    readers: Readers
    work_s: float
    """What the loop does with each batch: it sleeps."""
    latency_s: float = 0.05
    bytes_s: float = 40e6
    spread: float = 0.0


@dataclass(frozen=True)
class Found:
    """What came of a loop."""

    seconds: float
    waiting: float
    bytes: float
    requests: float


HEADINGS = ("", "measured", "simulated", "off by", "")


def lines(body: Iterable[tuple[Trial, Found, Found]]) -> Iterator[list[str]]:
    """What was measured and simulated in each trial, as a table."""
    for trial, measured, simulated in body:
        yield [f"**{trial.name}**", "", "", "", ""]
        yield _line("seconds", measured.seconds, simulated.seconds)
        points = simulated.waiting - measured.waiting
        shares = [f"{found.waiting:.1%}" for found in (measured, simulated)]
        within = abs(points) <= max(_POINTS, WITHIN * measured.waiting)
        yield ["waiting", *shares, f"{points * 100:+.1f} points", _MARKS[within]]
        yield _line("MB fetched", measured.bytes / 1e6, simulated.bytes / 1e6)
        yield _line("requests", measured.requests, simulated.requests)


def _line(what: str, measured: float, simulated: float) -> list[str]:
    off = simulated / measured - 1
    shown = number(measured), number(simulated), f"{off:+.1%}"
    return [what, *shown, _MARKS[abs(off) <= WITHIN]]


def compared() -> Iterator[tuple[Trial, Found, Found]]:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "corpus"
        data.corpus(folder, _ROWS, shard_bytes=_SHARD_BYTES)
        for trial in trials():
            turns = [_measured(trial, folder) for _ in range(_ROUNDS)]
            measured = min(turns, key=lambda found: found.seconds)  # others only take longer
            yield trial, measured, _simulated(trial, measured)


def _measured(trial: Trial, folder: Path) -> Found:
    link = {"bytes_s": trial.bytes_s, "spread": trial.spread}
    with bucket(folder, trial.latency_s * 1e3, **link) as (url, options):
        reader = sw.ShardReader.open(url, connections=trial.connections, **options)
        reader.take(_FIRST_ROWS)  # headers and checksums come once
        before = counted(options["endpoint"])
        waited, steps = 0.0, 0
        begin = time.perf_counter()
        loop = itertools.islice(trial.loop(reader), trial.steps)
        while True:
            asked = time.perf_counter()
            if next(loop, None) is None:
                break
            waited += time.perf_counter() - asked
            steps += 1
            time.sleep(trial.work_s)
        seconds = time.perf_counter() - begin
        after = counted(options["endpoint"])
        if steps != trial.steps:
            raise ValueError(f"{trial.name}: expected {trial.steps} batches, got {steps}")
    return Found(seconds, waited / seconds, after[1] - before[1], after[0] - before[0])


def _simulated(trial: Trial, measured: Found) -> Found:
    """The same loop, which works as long as it did: sleeping takes longer than it should."""
    work_s = measured.seconds * (1 - measured.waiting) / trial.steps
    way = Way(trial.bytes_s, _UNLIMITED, trial.latency_s, trial.spread)
    found = run([trial.requests], trial.steps, work_s, trial.readers, way)
    return Found(found.seconds, found.waiting(), found.bytes, found.requests)


def trials() -> Iterator[Trial]:
    yield _in_order("`batches`, a loop slower than the link", 0.08)
    yield _in_order("`batches`, a loop faster than the link", 0.005)
    late = "`batches`, first bytes after 100 ms, sigma 0.3"
    yield _in_order(late, 0.03, window_bytes=2 << 20, latency_s=0.1, spread=0.3)
    yield _taken("`take` of `Shuffle()`, nothing ahead", sw.Shuffle(), 0.05)
    yield _loaded("`Loader`, `Shuffle()`", sw.Shuffle(), 0.1)
    yield _loaded("`Loader`, `Block(64, group=8)`", sw.Block(64, group=8), 0.02, 24)


def _in_order(name: str, work_s: float, *, window_bytes: int = 4 << 20, **link: float) -> Trial:
    """`batches`: ranges of the shards, one for each connection."""
    step, connections = 256, 4
    size = window_bytes // connections
    requests, number = [], 0
    for begin in range(0, _ROWS, _SHARD_ROWS):
        rows = min(_SHARD_ROWS, _ROWS - begin)
        for at in range(0, rows * _ROW_BYTES, size):
            needed = number + at // (step * _ROW_BYTES)
            end = min(at + size, rows * _ROW_BYTES)
            requests.append(Request(end - at, needed, needed))
        number += -(-rows // step)
    return Trial(
        name,
        lambda reader: iter(reader.batches(step, None, window_bytes)),
        connections,
        requests,
        number,
        Readers(connections, window_bytes),
        work_s,
        **link,
    )


def _taken(name: str, sampler: Sampler, work_s: float) -> Trial:
    """`take` in a loop: nothing is on its way while the loop works."""

    def loop(reader: sw.ShardReader) -> Iterator[Any]:
        order = sampler.order(len(reader))
        for step in range(_STEPS):
            yield reader.take(order.rows(0, step * _BATCH, _BATCH))

    readers = Readers(8, _UNLIMITED, steps_ahead=0)
    return Trial(name, loop, 8, _random(sampler, _STEPS), _STEPS, readers, work_s)


def _loaded(name: str, sampler: Sampler, work_s: float, steps: int = _STEPS) -> Trial:
    """A loader with two threads, each with connections of its own, four batches ahead."""

    def loop(reader: sw.ShardReader) -> Iterator[Any]:
        return iter(sw.Loader(reader, _BATCH, sampler=sampler, threads=2, prefetch=1 + ahead))

    ahead = 3
    readers = Readers(4, _UNLIMITED, ahead, threads=2)
    return Trial(name, loop, 4, _random(sampler, steps + ahead), steps, readers, work_s)


def _random(sampler: Sampler, steps: int) -> list[Request]:
    """What takes of the first steps ask for."""
    rows = rows_of_rank(sampler, _ROWS, _BATCH, 0, 1, steps)
    return plan(rows, _ROW_BYTES, 0, _NEAR_BYTES).requests

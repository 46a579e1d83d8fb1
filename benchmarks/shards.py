"""Activation shards: against a bare loop, plain reads, NumPy and other formats of arrays.

`--rows` is the length of the corpus, in rows of 768 float32: 4 GiB unless told otherwise. Reads
from the disk are cold: the system is told to forget the files before each pass. `--only` asks one
question instead of all.
"""

import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

import stepwell as sw
from benchmarks import measure, shards_data as data
from benchmarks.measure import Candidate
from benchmarks.questions import answer
from benchmarks.results import Case, Measured, Target, arguments, console
from benchmarks.rows import folder_for
from benchmarks.shards_data import BATCH_ROWS, ROW_BYTES, WIDTH
from benchmarks.shards_peers import Rows, bare_loop, formats, has_compiler
from benchmarks.shards_remote import remote_cases

_ROWS = (4 << 30) // ROW_BYTES
_SMALL_ROWS = (1 << 30) // ROW_BYTES
_WARM_SHARDS = 2
_WORK_S = 0.005
_TAKE_ROWS = (512 << 20) // ROW_BYTES
_OURS, _OUT, _SPREAD = "stepwell", "stepwell, out=", "stepwell, the same rows in 64 shards"
_SLOW_CALLS = 5


@dataclass(frozen=True)
class Asked:
    """How much is measured, and where."""

    rows: int
    rounds: int
    folder: Path

    def corpus(self) -> list[Path]:
        return data.corpus(self.folder / "corpus", self.rows)


def main() -> None:
    parser = arguments(__doc__, rows=_ROWS)
    parser.add_argument("--small", action="store_true", help="a corpus of 1 GiB")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the data for the next run")
    parser.add_argument("--only", choices=_QUESTIONS, help="one question instead of all")
    args = parser.parse_args()
    # The report's --rows is for tables: a longer corpus would only take longer.
    rows = min(args.rows, _SMALL_ROWS if args.small else _ROWS)
    with folder_for(f"shards-{rows}", keep=args.keep) as folder:
        asked = Asked(rows, args.rounds, folder)
        measure.keep_freed_memory()
        options = [f"--rows={rows}", f"--rounds={args.rounds}", "--keep"]
        answer("shards", {name: partial(q, asked) for name, q in _QUESTIONS.items()}, args, options)


# In order, from the page cache.


def _sequential_cases(asked: Asked, *, threads: int) -> list[Case]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < threads:
        console.print(f"[dim]{threads} threads are left out: there are {len(cores)} cores[/]")
        return []
    os.sched_setaffinity(0, cores[:threads])  # stepwell uses as many threads as it has cores
    paths = asked.corpus()[:_WARM_SHARDS]
    size = _bytes(paths)
    reader = sw.ShardReader(paths)
    numpy = "NumPy, astype on a memmap"
    work: dict[str, Callable[[], object]] = {
        _OURS: lambda: _exhaust(reader.batches()),
        numpy: lambda: _astype(paths),
    }
    if threads > 1:
        pool = ThreadPoolExecutor(threads)
        work[f"{numpy}, {threads} threads"] = lambda: _astype_on(pool, paths)
    bare = {}
    if has_compiler():
        bare = {
            f"bare C++ loop, {kind}": bare_loop(paths, threads=threads, streaming=streaming)
            for kind, streaming in (("plain stores", False), ("stores past caches", True))
        }
    else:
        console.print("[dim]the bare loop is left out: there is no compiler[/]")
    found = _passes({**work, **bare}, paths, size, asked.rounds)
    ours = found[_OURS].median
    targets = []
    if bare:
        best = min(found[name].median for name in bare)
        targets.append(Target("of the speed of a bare loop", best / ours, at_least=0.95))
    title = f"in order, float32 to float64, {threads} thread{'s' * (threads > 1)}: "
    title += f"{size / 1e9:.1f} GB, {WIDTH} values a row"
    cases = [_case(title, found, targets, f"{BATCH_ROWS:,} rows a batch, page cache warm")]
    return [*cases, _stored_case(paths, asked.rounds)] if threads > 1 else cases


def _stored_case(paths: Sequence[Path], rounds: int) -> Case:
    reader = sw.ShardReader(paths)
    work: dict[str, Callable[[], object]] = {
        _OURS: lambda: _exhaust(reader.batches(dtype=None)),
        "slices of a memmap, a byte of each page read": lambda: _touch(paths),
    }
    found = _passes(work, paths, _bytes(paths), rounds)
    with measure.AnonymousPeak() as peak:
        kept = [rows for rows, _ in reader.batches(dtype=None)]
    copied = (peak.bytes - peak.before) / sum(rows.nbytes for rows in kept)
    return _case(
        "in order, in the stored dtype: views",
        found,
        [Target("of the bytes are copied, when all batches are kept", copied, at_most=0.01)],
    )


def _exhaust(batches: Iterable[object]) -> None:
    """Let go of each before the next is made, as the others do who have one piece of memory."""
    deque(batches, maxlen=0)


def _astype(paths: Sequence[Path]) -> None:
    for path in paths:
        rows = data.mapped(path)
        for begin in range(0, len(rows), BATCH_ROWS):
            rows[begin : begin + BATCH_ROWS].astype(np.float64)


def _astype_on(pool: ThreadPoolExecutor, paths: Sequence[Path]) -> None:
    for path in paths:
        rows = data.mapped(path)
        # Not map: it would keep all results until the last one is done.
        begun = [
            pool.submit(lambda part: part.astype(np.float64) is None, rows[a : a + BATCH_ROWS])
            for a in range(0, len(rows), BATCH_ROWS)
        ]
        for each in begun:
            each.result()


def _touch(paths: Sequence[Path]) -> None:
    for path in paths:
        rows = data.mapped(path)
        for begin in range(0, len(rows), BATCH_ROWS):
            rows[begin : begin + BATCH_ROWS].reshape(-1)[::1024].sum()


# In order, from the disk.


def _window_cases(asked: Asked) -> list[Case]:
    paths = asked.corpus()
    size = _bytes(paths)
    data.evict(paths)
    before = measure.reset_peak()
    _read_ours(paths)
    added = measure.peak_bytes() - before
    work: dict[str, Callable[[], object]] = {
        _OURS: lambda: _read_ours(paths),
        "stepwell, stored dtype": lambda: _read_ours(paths, stored=True),
        "read(), 1 MiB at a time": lambda: data.read(paths),
    }
    found = _passes(work, paths, size, max(asked.rounds * 3 // 5, 1), cold=True)
    found[_OURS] = replace(found[_OURS], rss_bytes=added)
    speed = found["read(), 1 MiB at a time"].median / found[_OURS].median
    return [
        _case(
            f"in order from the disk, larger than the window: {size / 2**30:.1f} GiB",
            found,
            [
                Target("of the speed of plain reads", speed, at_least=0.9),
                Target("memory, MB", added / 1e6, at_most=150),
            ],
            "float64, the default window, opening included; memory is what is resident",
        )
    ]


def _read_ours(paths: Sequence[Path], *, stored: bool = False) -> None:
    _exhaust(sw.ShardReader(paths).batches(dtype=None if stored else np.float64))


def _consumer_cases(asked: Asked) -> list[Case]:
    paths = asked.corpus()
    size = _bytes(paths)
    alone, waits, calls = [], [], []
    for _ in range(max(asked.rounds * 3 // 5, 1)):
        data.evict(paths)
        alone.append(_waited(paths, 0))
        data.evict(paths)
        waits.append(_waited(paths, _WORK_S))
        calls.append(_waited(paths, _WORK_S))
    strictly = 1 - np.array(waits) / alone
    hidden = 1 - (np.array(waits) - calls) / alone
    scale = 1e3 / size * 1e9
    return [
        Case(
            f"waited for the disk by a consumer that works 5 ms a batch: {size / 2**30:.1f} GiB",
            "ms a GB",
            Measured.of([s * scale for s in waits]),
            {
                "without working": Measured.of([s * scale for s in alone]),
                "with the page cache warm: what the calls cost": Measured.of(
                    [s * scale for s in calls]
                ),
            },
            [
                Target("of the read time is hidden", float(np.median(strictly)), at_least=0.95),
                Target(
                    "of the read time is hidden, beside what calls cost",
                    float(np.median(hidden)),
                    at_least=0.95,
                ),
            ],
            f"stored dtype, {BATCH_ROWS:,} rows a batch, the default window",
        )
    ]


def _waited(paths: Sequence[Path], work_s: float) -> float:
    """Seconds that a loop spends waiting for batches."""
    reader = sw.ShardReader(paths)
    batches = reader.batches(dtype=None)
    waited = 0.0
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        begin = time.perf_counter()
        waited += begin - asked
        if batch is None:
            return waited
        while time.perf_counter() < begin + work_s:
            batch.rows[:64].sum()


# In any order.


def _take_cases(asked: Asked) -> list[Case]:
    rows = min(asked.rows, _TAKE_ROWS)
    (path,) = data.corpus(asked.folder / "one", rows, shard_bytes=1 << 62)
    spread = data.corpus(asked.folder / "many", rows, shard_bytes=rows * ROW_BYTES // 64)
    data.warm([path, *spread])
    table = data.mapped(path)
    reader, many = sw.ShardReader([path]), sw.ShardReader(spread)
    out = np.empty((BATCH_ROWS, WIDTH), np.float32)
    filled = {"data": np.empty((BATCH_ROWS, WIDTH), np.float32)}
    takes: dict[str, Callable[[Rows], object]] = {
        _OURS: lambda rows: reader.take(rows)["data"],
        _OUT: lambda rows: reader.take(rows, filled)["data"],
        _SPREAD: lambda rows: many.take(rows)["data"],
        "np.take on a memmap": lambda rows: np.take(table, rows, axis=0),
        "np.take on a memmap, out=": lambda rows: np.take(table, rows, 0, out, "clip"),
    }
    peers = {peer.name: peer.take for peer in formats(table, asked.folder)}
    rng = np.random.default_rng(1)

    def draw() -> Rows:
        return rng.integers(0, rows, BATCH_ROWS)

    wanted = draw()
    for name, take in {**takes, **peers}.items():
        if not np.array_equal(np.asarray(take(wanted)), table[wanted]):
            raise SystemExit(f"{name}: not the rows that were written")
    os.sync()
    candidates = [Candidate.of(name, take, calls=50) for name, take in takes.items()]
    candidates += [Candidate.of(name, take, calls=_SLOW_CALLS) for name, take in peers.items()]
    seconds = measure.race(candidates, draw, rounds=asked.rounds * 2)
    found = {name: Measured.of([s * 1e3 for s in each]) for name, each in seconds.items()}
    ours, into = found[_OURS].median, found[_OUT].median
    targets = [
        Target(
            "of the speed of np.take on a memmap",
            found["np.take on a memmap"].median / ours,
            at_least=0.9,
        ),
        Target(
            "of the speed of np.take on a memmap, both with out=",
            found["np.take on a memmap, out="].median / into,
            at_least=0.9,
        ),
    ]
    if peers:
        best = min(peers, key=lambda name: found[name].median)
        faster = found[best].median / ours
        targets.append(Target(f"times faster than {best}", faster, at_least=3))
    title = f"take of {BATCH_ROWS:,} random rows of {WIDTH} float32: {rows:,} rows"
    return [
        Case(title, "ms", found.pop(_OURS), found, targets, "page cache warm; the best of others")
    ]


# What they share.


def _passes(
    work: dict[str, Callable[[], object]],
    paths: Sequence[Path],
    size: int,
    rounds: int,
    *,
    cold: bool = False,
) -> dict[str, Measured]:
    """Milliseconds a GB of passes over files, taken in turns."""
    data.warm(paths)
    costs: dict[str, list[float]] = {name: [] for name in work}
    order, shuffle = list(work), random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            for _ in range(1 if cold else 3):
                if cold:
                    data.evict(paths)
                begin = time.perf_counter()
                work[name]()
                costs[name].append((time.perf_counter() - begin) * 1e3 / size * 1e9)
    return {name: Measured.of(each) for name, each in costs.items()}


def _case(
    title: str, found: dict[str, Measured], targets: list[Target], note: str | None = None
) -> Case:
    peers = {name: each for name, each in found.items() if name != _OURS}
    return Case(title, "ms a GB", found[_OURS], peers, targets, note)


def _bytes(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


_QUESTIONS: dict[str, Callable[[Asked], list[Case]]] = {
    "one-thread": lambda asked: _sequential_cases(asked, threads=1),
    "two-threads": lambda asked: _sequential_cases(asked, threads=2),
    "window": _window_cases,
    "consumer": _consumer_cases,
    "take": _take_cases,
    "remote": lambda asked: remote_cases(asked.folder, asked.rounds),
}

if __name__ == "__main__":
    main()

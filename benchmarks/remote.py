"""Training over a bucket: how long a loop waits, and what is fetched for it.

A bucket on this machine answers after 20 ms, with `--mb-s` megabytes a second for all answers. A
step dataset of 2 GiB, in rows of 16 bytes, is read in the order of `Block(65536)`, in batches of
4,096, by a loop that takes 0.8 of what the bucket can give, and has room for three of its 32
windows. What the link and the order allow at best is computed. A full shuffle is of 64 MB in rows
of 2 KiB, with room for a quarter. `--only` asks one of these questions.
"""

import tempfile
import time
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.markup import escape

import stepwell as sw
from benchmarks import measure
from benchmarks.ahead import belady, least_recent
from benchmarks.remote_peers import Dataset, peers
from benchmarks.results import Case, Measured, Target, arguments, console, publish
from benchmarks.shards_remote import bucket, counted

_LATENCY_MS = 20
_BATCH = 4096
_K, _GROUP = 1 << 16, 64
_TAKEN = 0.8
_NODES = 4
_CONNECTIONS = 8
_STEP = np.dtype([("board", "<u8"), ("reward", "<f4"), ("action", "<u4")])
_ROOM = 3 * _K * _GROUP * _STEP.itemsize
_RUN = 1 << 18
_UNIT = 4096
_WIDE, _WIDE_ROWS, _WIDE_BATCH = 2048, 1 << 15, 256
_EPOCHS = 2
_MAX_S = 90
_QUESTIONS = ("blocks", "nodes", "shuffle")
_NODES_BYTES_S = 200e6


class Found(NamedTuple):
    """What came of a loop."""

    first_s: float
    epoch_s: float
    waiting: float
    """Of the time after the first batch."""
    waiting_in_all: float
    """The first batch included."""
    fetched: float
    """Bytes for a byte used."""
    share: float
    """Of an epoch that was measured."""


def main() -> None:
    parser = arguments(__doc__, rows=1 << 27)
    parser.add_argument("--mb-s", type=float, default=40, help="of the bucket (%(default)s)")
    parser.add_argument("--only", choices=_QUESTIONS, help="one question instead of all")
    args = parser.parse_args()
    cases = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        data = Dataset(Path(root), args.rows, _K)
        if args.only != "shuffle":
            _write(data.folder, args.rows)
        if args.only in (None, "blocks"):
            cases.append(_blocks(data, args.mb_s * 1e6))
        if args.only in (None, "nodes"):
            cases.append(_nodes(data))
        if args.only in (None, "shuffle"):
            cases.append(_shuffled(Path(root)))
    publish(cases, args.json)


def _blocks(data: Dataset, bytes_s: float) -> Case:
    rows, room = data.rows, _ROOM
    size = rows * _STEP.itemsize
    work_s = _BATCH * _STEP.itemsize / (_TAKEN * bytes_s)

    made = bucket(data.folder, _LATENCY_MS, bytes_s=bytes_s)
    with made as (url, options), measure.AnonymousPeak() as peak:
        batches = _ours(url, options, room, sw.Block(_K, seed=7))
        found = _measured(batches, rows, options["endpoint"], work_s, runs_on=True)
    others = {"the order and the link alone": _line(_least(rows, bytes_s, work_s))}
    for name, start, count in peers(data, _BATCH, _K * _GROUP):
        with bucket(data.folder_of(name), _LATENCY_MS, bytes_s=bytes_s) as (url, options):
            batches = start(url, options["endpoint"])
            try:
                each = _measured(batches, count, options["endpoint"], work_s)
            except Exception as error:
                console.print(f"[dim]{name} is left out, it failed: {escape(str(error)[-200:])}[/]")
                continue
        others[name] = _line(each, count / rows)
    extra = (peak.bytes - peak.before) / 1e6
    return Case(
        f"an epoch of `Block({_K})` from a bucket: {size >> 20} MiB, {bytes_s / 1e6:g} MB/s",
        "s an epoch",
        _line(found),
        others,
        [
            Target("share of the time spent waiting", found.waiting, at_most=0.02),
            Target("bytes fetched for a byte used", found.fetched, at_most=1.05),
            Target("memory beside the window, MB", extra, at_most=64),
        ],
        f"{_LATENCY_MS} ms a request, a loop that takes {_TAKEN} of the bandwidth, batches of "
        f"{_BATCH:,}, a window of {room >> 20} MiB; opening is part of the first batch, and "
        f"waiting is counted after it: with it, {found.waiting_in_all:.1%} of the time; the order "
        "and the link alone are computed: no batch comes before all of its blocks of 4 KiB; our "
        "bytes are those of an epoch that begins and ends a quarter after the first one",
    )


def _least(rows: int, bytes_s: float, work_s: float) -> Found:
    """What a loop waits that has what it needs as soon as a full link can bring it."""
    order, per_unit = sw.Block(_K, seed=7).order(rows), _UNIT // _STEP.itemsize
    here, count = np.zeros(-(-rows // per_unit), bool), 0
    now = waited = first_s = 0.0
    for at in range(0, rows, _BATCH):
        units = order.rows(0, at, min(_BATCH, rows - at)) // per_unit
        new = units[~here[units]]
        if len(new):
            here[new] = True
            count += len(np.unique(new))
        there = _LATENCY_MS / 1e3 + count * _UNIT / bytes_s
        waited += max(there - now, 0.0)
        now = max(there, now) + work_s
        if not at:
            first_s = waited
    return Found(first_s, now, (waited - first_s) / (now - first_s), waited / now, 1.0, 1.0)


def _ours(
    url: str, options: dict[str, Any], room: int, sampler: sw.Block, **world: Any
) -> Generator[int]:
    steps = sw.open(url, window_bytes=room, connections=_CONNECTIONS, **options)
    with sw.Loader(steps, _BATCH, sampler=sampler, **world) as loader:
        for _ in range(_EPOCHS):
            yield from (len(batch["board"]) for batch in loader)


def _nodes(data: Dataset) -> Case:
    """One node after another: what each fetches does not depend on the others."""
    sampler, found = sw.Block(_K, seed=7, lanes=_NODES), []
    for rank in range(_NODES):
        with bucket(data.folder, _LATENCY_MS, bytes_s=_NODES_BYTES_S) as (url, options):
            world = {"rank": rank, "world_size": _NODES}
            batches = _ours(url, options, _ROOM // _NODES, sampler, **world)
            rows = data.rows // _NODES
            found.append(_measured(batches, rows, options["endpoint"], 0.0, runs_on=True))
    return Case(
        f"{_NODES} nodes, `Block({_K}, lanes={_NODES})`: each fetches its own blocks",
        "s an epoch",
        Measured.of([node.epoch_s for node in found]),
        {},
        [
            Target(
                "bytes fetched by all for one used",
                sum(node.fetched for node in found) / _NODES,
                at_most=1.1,
            )
        ],
        f"one node after another, as fast as a bucket of {_NODES_BYTES_S / 1e6:g} MB/s gives",
    )


def _shuffled(folder: Path) -> Case:
    path = folder / "wide"
    with sw.StepWriter(path, [("x", "u1", (_WIDE,))]) as writer:
        for at in range(0, _WIDE_ROWS, 1 << 12):
            writer.append({"x": np.full((1 << 12, _WIDE), at >> 12, np.uint8)})
    size = _WIDE_ROWS * _WIDE
    with bucket(path, _LATENCY_MS) as (url, options):
        steps = sw.open(url, window_bytes=size // 4, connections=64, **options)
        units: Any = steps._units()
        statistics = units.statistics
        order = sw.Shuffle(7).order(_WIDE_ROWS)
        starts = range(0, _WIDE_ROWS, _WIDE_BATCH)
        wanted = [
            units.of(order.rows(epoch, at, _WIDE_BATCH))
            for epoch in range(_EPOCHS)
            for at in starts
        ]
        before, begin = statistics.fetched_bytes, time.perf_counter()
        with sw.Loader(steps, _WIDE_BATCH, seed=7) as loader, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that Block would do better
            for _ in range(_EPOCHS):
                for _batch in loader:
                    fetched = statistics.fetched_bytes - before
        seconds = time.perf_counter() - begin
    room = units.budget_bytes // units.unit_bytes
    best, recent = (find(wanted, room) * units.unit_bytes for find in (belady, least_recent))
    return Case(
        f"{_EPOCHS} epochs of `Shuffle()` from a bucket: {size >> 20} MiB in rows of 2 KiB, room "
        "for a quarter",
        "MB fetched",
        Measured.of([fetched / 1e6]),
        {
            "Belady's optimum": Measured.of([best / 1e6]),
            "least recently used": Measured.of([recent / 1e6]),
        },
        [Target("times Belady's optimum", fetched / best, at_most=1.1)],
        f"{seconds / _EPOCHS:.0f} s an epoch, {fetched / (_EPOCHS * size):.2f} bytes fetched for a "
        "byte used; the two others are computed",
    )


def _measured(
    batches: Generator[int], rows: int, endpoint: str, work_s: float, *, runs_on: bool = False
) -> Found:
    """Take the batches of an epoch, each of which takes a while to work on.

    A loop that runs on into the next epoch goes on for a quarter of it, and bytes are counted from
    the end of the first quarter: at both ends as much is on its way for what comes next.
    """
    first_s, waited, seen, left_s, begin = 0.0, 0.0, 0, 0.0, time.perf_counter()
    marks = [] if runs_on else [(0, 0)]
    end, max_s = (rows + rows // 4, 2 * _MAX_S) if runs_on else (rows, _MAX_S)
    while seen < end and time.perf_counter() - begin < max_s:
        asked = time.perf_counter()
        seen += next(batches)
        now = time.perf_counter()
        waited += now - asked
        first_s = first_s or waited
        if not marks and 4 * seen >= rows:
            marks.append((seen, counted(endpoint)[1]))
        left_s += work_s
        if left_s > 0:
            time.sleep(left_s)
        left_s -= time.perf_counter() - now  # which is longer than it was to be
    seconds = time.perf_counter() - begin
    batches.close()
    marks = [*(marks or [(0, 0)]), (seen, counted(endpoint)[1])]
    (some, before), (all_, after) = marks
    return Found(
        first_s,
        first_s + (seconds - first_s) * rows / seen,
        (waited - first_s) / (seconds - first_s),
        waited / seconds,
        (after - before) / ((all_ - some) * _STEP.itemsize),
        min(seen / rows, 1.0),
    )


def _line(found: Found, of: float = 1.0) -> Measured:
    """As a line of the table; `of` is the part of the data that it had."""
    note = f"{found.waiting:.1%} waiting, {found.fetched:.2f} bytes fetched for one used"
    share = found.share * of
    if share < 1:
        note += f"; measured on {share:.1%} of it"
    epoch_s = found.first_s + (found.epoch_s - found.first_s) / of
    return Measured.of([epoch_s], first_batch_s=found.first_s, note=note)


def _write(folder: Path, rows: int) -> None:
    random = np.random.default_rng(0)
    with sw.StepWriter(folder, _STEP, {"score": int}) as writer:
        for begin in range(0, rows, _RUN):
            run = np.zeros(min(_RUN, rows - begin), _STEP)
            run["board"], run["action"] = np.arange(begin, begin + len(run)), begin & 3
            run["reward"] = random.random(len(run), np.float32)
            writer.append(run, score=begin)


if __name__ == "__main__":
    main()

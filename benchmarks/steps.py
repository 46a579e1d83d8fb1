"""Step datasets: does a filter, a database or an append cost what it should?

A dataset is compared with a bare array of the same rows, a filtered one with the whole, an
append with what a user of plain `.npy` files has to do.
"""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stepwell as sw
from benchmarks import measure
from benchmarks.machine import Quiet
from benchmarks.measure import Candidate
from benchmarks.pack_data import GAMES, games
from benchmarks.results import Case, Measured, Target, arguments, console, publish
from benchmarks.rows import FOLDER, as_void, split
from benchmarks.steps_data import BEST, append_rows, steps_dataset, write_dataset

_WHOLE, _HALF, _ARRAY = "StepReader", "half of its runs", "ArraySource of the same rows"
_NUMPY = "np.take of opaque rows, then split"
_NEW_ROWS = 1_000_000

Draw = dict[int, NDArray[np.int64]]
"""Random rows, by the length of what they are taken from."""


def main() -> None:
    parser = arguments(__doc__, rows=100_000_000)
    parser.add_argument("--batch", type=int, default=4096, help="rows of a take (%(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the data for the next run")
    args = parser.parse_args()
    quiet = Quiet()
    with steps_dataset(args.rows, keep=args.keep) as path:
        cases = [
            *_open_cases(path),
            _where_case(path),
            *_read_cases(path, args.batch, args.rounds),
            _append_case(path, args.rows),
        ]
    cases.append(_build_case())
    publish(cases, args.json)
    console.print(f"[dim]other programs used {quiet.others():.0%} of the machine[/]")


def _open_cases(path: Path) -> list[Case]:
    array = path / "steps.npy"
    size = array.stat().st_size
    openers: dict[str, Callable[[], object]] = {
        "ours": lambda: sw.StepReader.open(path),
        "np.load": lambda: np.load(array),
    }
    seconds: dict[str, list[float]] = {name: [] for name in openers}
    array.read_bytes()
    for turn in range(5):
        for name in sorted(openers, reverse=turn % 2 == 1):
            measure.prime_memory(size)
            seconds[name].append(_seconds(openers[name]))
    mapped = [_seconds(lambda: sw.StepReader.open(path, memory="map")) for _ in range(20)]
    ours, numpy = Measured.of(seconds["ours"]), Measured.of(seconds["np.load"])
    return [
        Case(
            f"open a dataset of {size / 1e9:.1f} GB from the page cache",
            "s",
            ours,
            {"np.load": numpy},
            [Target("times faster than np.load", numpy.median / ours.median, at_least=1.5)],
        ),
        Case(
            "open the same dataset mapped",
            "ms",
            map_cost := Measured.of([s * 1e3 for s in mapped]),
            {},
            [Target("ms", map_cost.median, at_most=20)],
        ),
    ]


def _where_case(path: Path) -> Case:
    steps = sw.StepReader.open(path, memory="map")
    before = measure.reset_peak()
    costs = []
    for i in range(20):
        begin = time.perf_counter()
        part = steps.where("max_score >= ?", BEST // 2 + i)
        part.take([0])  # ready means ready
        costs.append((time.perf_counter() - begin) * 1e3)
        del part
    added = measure.peak_bytes() - before
    cost = Measured.of(costs, rss_bytes=added)
    return Case(
        f"where: half of {len(steps.runs):,} runs, {len(steps):,} rows, to the first row",
        "ms",
        cost,
        {},
        [
            Target("ms", cost.median, at_most=50),
            Target("memory, MB", added / 1e6, at_most=10),
        ],
    )


def _read_cases(path: Path, batch: int, rounds: int) -> list[Case]:
    steps = sw.StepReader.open(path)
    half = steps.where("max_score >= ?", BEST // 2)
    stored = steps._segments[0].rows  # the very memory that the dataset reads
    sources: dict[str, sw.Source] = {
        _WHOLE: steps,
        _HALF: half,
        _ARRAY: sw.ArraySource(stored),
    }
    rng = np.random.default_rng(1)
    void = as_void(stored)
    out = np.empty(batch, void.dtype)

    def numpy_take(rows: Draw) -> object:
        np.take(void, rows[len(steps)], out=out, mode="clip")
        return split(out.view(stored.dtype))

    def draw() -> Draw:
        """Rows of the whole and of the half: both are spread over all of the memory."""
        return {most: rng.integers(0, most, batch) for most in (len(steps), len(half))}

    def taking(source: sw.Source) -> Callable[[Draw], object]:
        most = len(source)
        return lambda rows: source.take(rows[most])

    candidates = [Candidate.of(name, taking(source)) for name, source in sources.items()]
    candidates.append(Candidate.of(_NUMPY, numpy_take))
    seconds = measure.race(candidates, draw, rounds=rounds)
    taken = {name: Measured.of([s * 1e3 for s in each]) for name, each in seconds.items()}
    whole = taken[_WHOLE].median
    takes = Case(
        f"take from a dataset: {batch:,} random rows of {len(steps):,}",
        "ms",
        taken[_WHOLE],
        {name: taken[name] for name in (_HALF, _ARRAY, _NUMPY)},
        [
            Target("filtered, times the unfiltered", taken[_HALF].median / whole, at_most=1.25),
            Target("times an ArraySource", whole / taken[_ARRAY].median, at_most=1.1),
            Target("times faster than NumPy", taken[_NUMPY].median / whole, at_least=2),
        ],
        "one array per field; half of the runs by where(), found by ranges",
    )
    return [takes, _epoch_case(sources, batch)]


def _epoch_case(sources: dict[str, sw.Source], batch: int) -> Case:
    costs: dict[str, list[float]] = {name: [] for name in sources}
    for turn in range(5):
        for name in sorted(sources, reverse=turn % 2 == 1):
            source = sources[name]
            with sw.Loader(source, batch, seed=turn) as loader:
                begin = time.perf_counter()
                for _ in loader:
                    pass
                costs[name].append((time.perf_counter() - begin) / len(source) * 1e9)
    cost = {
        name: Measured.of(each, rows_per_s=1e9 / float(np.median(each)))
        for name, each in costs.items()
    }
    whole = cost[_WHOLE].median
    return Case(
        "one shuffled epoch of a dataset through the loader",
        "ns a row",
        cost[_WHOLE],
        {name: cost[name] for name in (_HALF, _ARRAY)},
        [
            Target("filtered, times the unfiltered", cost[_HALF].median / whole, at_most=1.25),
            Target("times an ArraySource", whole / cost[_ARRAY].median, at_most=1.1),
        ],
    )


def _append_case(path: Path, rows: int) -> Case:
    """A million rows more, to this dataset and to a small one, and by hand."""
    small = FOLDER / "dataset-small"
    shutil.rmtree(small, ignore_errors=True)
    write_dataset(small, _NEW_ROWS)
    costs: dict[str, list[float]] = {"large": [], "small": []}
    sizes = {"large": rows, "small": _NEW_ROWS}
    for _ in range(5):
        for name, where in (("large", path), ("small", small)):
            costs[name].append(_append(where, sizes[name]))
            sizes[name] += _NEW_ROWS
    by_hand = _append_by_hand(path / "steps.npy")
    shutil.rmtree(small)
    shutil.rmtree(path)  # it has grown: the next run makes its own
    ours = Measured.of(costs["large"])
    return Case(
        f"append {_NEW_ROWS:,} rows to {rows:,} and commit",
        "s",
        ours,
        {
            f"the same to {_NEW_ROWS:,} rows": Measured.of(costs["small"]),
            "np.load, concatenate, np.save, fsync": Measured.of([by_hand]),
        },
        [
            Target("times faster than by hand", by_hand / ours.median, at_least=20),
            Target(
                "times the cost for a small dataset",
                ours.median / float(np.median(costs["small"])),
                at_most=1.5,
            ),
        ],
    )


def _append(path: Path, begin: int) -> float:
    def work() -> None:
        with sw.StepWriter(path, mode="a") as writer:
            append_rows(writer, begin, begin + _NEW_ROWS)

    return _seconds(work)


def _append_by_hand(path: Path) -> float:
    beside = path.with_name("by-hand.npy")
    new = np.load(path, mmap_mode="r")[:_NEW_ROWS].copy()

    def work() -> None:
        with beside.open("wb") as file:
            np.save(file, np.concatenate([np.load(path), new]))
            os.fsync(file.fileno())

    try:
        return _seconds(work)
    finally:
        beside.unlink(missing_ok=True)


def _build_case() -> Case:
    out = FOLDER / "dataset-built"
    shutil.rmtree(out, ignore_errors=True)
    with games(GAMES, batch=1, rounds=1) as made:
        pack = made.pack
        begin = time.perf_counter()
        report = sw.convert(pack, out, to="steps")
        seconds = time.perf_counter() - begin
    shutil.rmtree(out)
    per_minute = report.rows / seconds * 60 / 1e6
    return Case(
        f"build a dataset of {report.runs:,} packed games, {report.rows:,} steps",
        "s",
        Measured.of([seconds], rows_per_s=report.rows / seconds),
        {},
        [Target("million steps a minute", per_minute, at_least=60)],
    )


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    kept = work()
    seconds = time.perf_counter() - begin
    del kept
    return seconds


if __name__ == "__main__":
    main()

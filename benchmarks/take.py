"""Random rows of a table in memory: how near to what the hardware gives?

One race answers for packed rows and for one array per field. The probe works on the same
memory as stepwell, on the same huge pages; peers get the array that `np.load` made. Opening
the file is measured first. A second race, at 3,072 and 4,096 rows, has the four ways that the
design of step datasets decided against.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stepwell as sw
from benchmarks import measure, take_peers
from benchmarks.machine import Quiet
from benchmarks.measure import Call, Candidate
from benchmarks.results import Case, Measured, Target, arguments, console, publish
from benchmarks.rows import ROW, split, steps_file
from stepwell import _core

_RAW, _RAW_OUT, _FIELDS = "stepwell, packed", "stepwell, packed, out=", "stepwell, fields"
_FEW = 16
_SEED_BATCHES = (3072, 4096)


def main() -> None:
    parser = arguments(__doc__, rows=100_000_000)
    parser.add_argument("--batch", type=int, default=4096, help="rows of a take (%(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the data for the next run")
    args = parser.parse_args()
    quiet = Quiet()
    with steps_file(args.rows, keep=args.keep) as path:
        cases = [_load_case(path), *_take_cases(path, args.batch, args.rounds)]
        cases += [_seed_case(path, batch, args.rounds) for batch in _SEED_BATCHES]
    publish(cases, args.json)
    console.print(f"[dim]other programs used {quiet.others():.0%} of the machine[/]")


def _take_cases(path: Path, batch: int, rounds: int) -> list[Case]:
    before = measure.reset_peak()
    source = sw.ArraySource(path)
    packed = source.packed()
    rng = np.random.default_rng(1)

    def rows() -> NDArray[np.int64]:
        return rng.integers(0, len(source), batch)

    for _ in range(100):
        packed.take(rows())
        source.take(rows())
    added = measure.peak_bytes() - before - source.nbytes

    table = source._record  # the very memory that stepwell reads
    assert table is not None
    array = np.load(path)
    _same_rows(source, array, rows())
    candidates = [
        Candidate.of(_RAW, packed.take),
        Candidate.of(_RAW_OUT, _with_out(packed, batch)),
        Candidate.of(_FIELDS, source.take),
        *take_peers.probes(table, batch, threads=_core.usable_cores()),
        *take_peers.numpy_takes(array, np.load(path, mmap_mode="r"), batch),
        *take_peers.torch_takes(array, batch),
        *take_peers.array_record_takes(array),
    ]
    taken = _race(candidates, rows, rounds)
    cases = _cases(taken, batch, len(source), added, measure.huge_share(array))
    return [*cases, _pause_case(candidates, rows, rounds), _cold_case(candidates, rows, rounds)]


def _seed_case(path: Path, batch: int, rounds: int) -> Case:
    """The argument of seed 000, measured."""
    source = sw.ArraySource(path)
    array, mapped = source._record, np.load(path, mmap_mode="r")
    assert array is not None
    rng = np.random.default_rng(1)
    candidates = [
        Candidate.of(_RAW, source.packed().take),
        *take_peers.alternatives(array, mapped, batch),
    ]
    taken = _race(candidates, lambda: rng.integers(0, len(source), batch), rounds)
    ours = taken.pop(_RAW)
    return Case(
        f"{batch:,} random rows of {len(source):,} beside what step datasets decided against",
        "ms",
        ours,
        taken,
        [Target("ms", ours.median, at_most=1)],
        f"SQLite and Parquet have {min(len(source), take_peers.DATABASE_ROWS):,} rows only",
    )


def _race(
    candidates: Sequence[Candidate], rows: Callable[[], NDArray[np.int64]], rounds: int
) -> dict[str, Measured]:
    seconds = measure.race(candidates, rows, rounds=rounds)
    return {name: Measured.of([s * 1e3 for s in each]) for name, each in seconds.items()}


def _pause_case(
    candidates: Sequence[Candidate], rows: Callable[[], NDArray[np.int64]], rounds: int
) -> Case:
    """The same in short turns: what the medians of long ones leave out."""
    peers = (take_peers.probe_name(_core.usable_cores()), *take_peers.NUMPY)
    short = [replace(c, calls=_FEW) for c in candidates if c.name in (_RAW, *peers)]
    taken = _race(short, rows, rounds * 5)
    ours = taken.pop(_RAW)
    return Case(
        f"raw take, the first {_FEW} after a pause in which others read",
        "ms",
        ours,
        taken,
        note="threads sleep and caches are cold; a second thread gains less here",
    )


def _cold_case(
    candidates: Sequence[Candidate], rows: Callable[[], NDArray[np.int64]], rounds: int
) -> Case:
    """One take in a turn: what a program pays that does something else between two of them."""
    single = [replace(c, calls=1) for c in candidates if c.name in (_RAW, *take_peers.NUMPY)]
    taken = _race(single, rows, rounds * 20)
    ours = taken.pop(_RAW)
    numpy = min(peer.median for peer in taken.values())
    return Case(
        "raw take, a single one after a pause in which others read",
        "ms",
        ours,
        taken,
        [Target("times faster than np.take", numpy / ours.median, at_least=1)],
        "np.take is the quicker of its two; helpers sleep, and are left asleep for so few rows",
    )


def _cases(
    taken: dict[str, Measured], batch: int, rows: int, added: int, huge: float
) -> list[Case]:
    def with_memory(name: str) -> Measured:
        m = taken[name]
        return Measured(m.median, m.p99, m.samples, rss_bytes=added)

    raw, fields = with_memory(_RAW), with_memory(_FIELDS)
    limit = taken[take_peers.probe_name(_core.usable_cores())].median
    checked, clipped = (taken[name].median for name in take_peers.NUMPY)
    fancy = taken[take_peers.FANCY].median
    size = f"{batch:,} random rows of {rows:,}, {ROW.itemsize} bytes each"
    other = (_RAW, _FIELDS, take_peers.NUMPY_FIELDS)
    return [
        Case(
            f"raw take: {size}",
            "ms",
            raw,
            {name: m for name, m in taken.items() if name not in other},
            [
                Target("times the probe", raw.median / limit, at_most=1.15),
                Target("times faster than np.take", checked / raw.median, at_least=2),
                Target("times faster than np.take unchecked", clipped / raw.median, at_least=2),
                Target("times faster than array[rows]", fancy / raw.median, at_least=8),
                Target("99th percentile, ms", raw.p99, at_most=1),
                Target("out=, times without", taken[_RAW_OUT].median / raw.median, at_most=1.02),
            ],
            f"{huge:.0%} of np.load's array lies in huge pages; "
            f"array_record reads {min(rows, take_peers.ARRAY_RECORD_ROWS):,} rows only",
        ),
        Case(
            f"take into one array per field: {size}",
            "ms",
            fields,
            {name: taken[name] for name in (_RAW, take_peers.NUMPY_FIELDS)},
            [Target("times the raw take", fields.median / raw.median, at_most=1.3)],
        ),
    ]


def _with_out(packed: sw.ArraySource, batch: int) -> Call:
    out = {"row": np.empty(batch, ROW)}
    return lambda rows: packed.take(rows, out)


def _same_rows(source: sw.ArraySource, array: NDArray[Any], rows: NDArray[np.int64]) -> None:
    """A benchmark of wrong answers would be worth nothing."""
    taken, expected = source.take(rows), split(array[rows])
    for name, values in expected.items():
        np.testing.assert_array_equal(taken[name], values)


def _load_case(path: Path) -> Case:
    """Open the file when the system has it in memory already."""
    size = path.stat().st_size
    openers: dict[str, Callable[[Path], object]] = {"ours": sw.ArraySource, "np.load": np.load}
    seconds: dict[str, list[float]] = {name: [] for name in openers}
    path.read_bytes()
    for turn in range(5):
        for name in sorted(openers, reverse=turn % 2 == 1):
            measure.prime_memory(size)
            begin = time.perf_counter()
            opened = openers[name](path)
            seconds[name].append(time.perf_counter() - begin)
            del opened
    ours, numpy = Measured.of(seconds["ours"]), Measured.of(seconds["np.load"])
    return Case(
        f"open a .npy file of {size / 1e9:.1f} GB from the page cache",
        "s",
        ours,
        {"np.load": numpy},
        [Target("times faster than np.load", numpy.median / ours.median, at_least=1.5)],
        "into memory that the machine has touched before",
    )


if __name__ == "__main__":
    main()

"""Row numbers alone: a permutation that is computed against ones that are stored.

`--rows` is the size up to which the stored permutations of NumPy and torch are made; ours
is also measured where those would not fit.
"""

import time
from importlib.util import find_spec

import numpy as np
import torch

import stepwell as sw
from benchmarks import measure
from benchmarks.machine import Quiet
from benchmarks.measure import Call, Candidate
from benchmarks.results import Case, Measured, Target, arguments, console, publish

_BATCH = 4096
_PART = 1_000_000
_VIRTUAL_ROWS = 10**12
_SIZES = (10**7, 10**8, 10**9, 10**12)
_PROMISED = (10**8, 10**9)
_ROUNDS = 3
_OURS = "stepwell"


def main() -> None:
    args = arguments(__doc__, rows=100_000_000).parse_args()
    quiet = Quiet()
    cases = [_first_batch_case()]
    for rows in _SIZES:
        cases.append(_permutation_case(rows, stored=rows <= args.rows))
    publish(cases, args.json)
    console.print(f"[dim]other programs used {quiet.others():.0%} of the machine[/]")


def _first_batch_case() -> Case:
    """From nothing to the first batch of rows that exist only as a promise."""
    before = measure.reset_peak()
    milliseconds = []
    for seed in range(50):
        begin = time.perf_counter()
        source = sw.ArraySource(np.broadcast_to(np.float32(1), (_VIRTUAL_ROWS,)))
        with sw.Loader(source, _BATCH, seed=seed) as loader:
            next(iter(loader))
            milliseconds.append((time.perf_counter() - begin) * 1e3)
    ours = Measured.of(milliseconds, rss_bytes=measure.peak_bytes() - before)
    return Case(
        f"first batch of a shuffled epoch over {_VIRTUAL_ROWS:,} rows",
        "ms",
        ours,
        {},
        [Target("median, ms", ours.median, at_most=5)],
        "source and loader are made again each time; "
        f"a stored permutation would need {_VIRTUAL_ROWS * 8 / 1e12:g} TB",
    )


def _permutation_case(rows: int, *, stored: bool) -> Case:
    """Nanoseconds for a row number, in one thread; memory is what it takes to have them all."""
    order = sw.Shuffle(7).order(rows)
    rng = np.random.default_rng(1)
    # What to call, for how many row numbers, and how often in a turn.
    ways: dict[str, tuple[Call, int, int]] = {
        _OURS: (lambda start: order.rows(0, start, _BATCH), _BATCH, 1000),
        "stepwell, a million a call": (lambda start: order.rows(0, start, _PART), _PART, 5),
    }
    if stored:
        ways["np.random.Generator.permutation"] = (lambda _: rng.permutation(rows), rows, 1)
        ways["torch.randperm"] = (lambda _: torch.randperm(rows), rows, 1)
    if find_spec("grain") and rows < 2**32:
        ways["grain index_shuffle"] = (_grain(rows), _BATCH, 10)

    memory = {}
    for name, (call, _, _) in ways.items():
        before = measure.reset_peak()
        call(0)
        memory[name] = measure.peak_bytes() - before
    seconds = measure.race(
        [Candidate.of(name, call, calls=calls) for name, (call, _, calls) in ways.items()],
        lambda: int(rng.integers(0, rows - _PART)),
        rounds=_ROUNDS,
    )
    found = {
        name: Measured.of(
            [s / count * 1e9 for s in seconds[name]],
            rss_bytes=memory[name],
            note="" if count == rows else f"{count:,} row numbers a call",
        )
        for name, (_, count, _) in ways.items()
    }
    ours = found.pop(_OURS)
    promised = [Target("ns/row", ours.median, at_most=10)] if rows in _PROMISED else []
    return Case(
        f"row numbers of a shuffled epoch of {rows:,} rows", "ns/row", ours, found, promised
    )


def _grain(rows: int) -> Call:
    """grain's own permutation on the fly, from Python, a row number a call."""
    from grain._src.python.experimental.index_shuffle.python import index_shuffle_module

    shuffled = index_shuffle_module.index_shuffle
    return lambda start: [shuffled(i, rows - 1, 7, 4) for i in range(start, start + _BATCH)]


if __name__ == "__main__":
    main()

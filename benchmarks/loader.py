"""A whole shuffled epoch, one array per field: against every other way to get one.

Every epoch runs in a fresh process (`benchmarks.epoch`), so that its peak of memory is its
own; the loaders take turns over some rounds, in a new order each. Slow ones get the first
rows of the file only, which is in their favour: fewer rows miss the caches less.
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.epoch import Epoch
from benchmarks.loader_peers import LOADERS
from benchmarks.machine import Quiet
from benchmarks.results import Case, Measured, Target, arguments, console, publish
from benchmarks.rows import steps_file

OURS, OURS_TORCH = "stepwell.Loader", "stepwell.torch.Loader"
PROBE = "C++ probe"
NUMPY, NUMPY_PACKED = "NumPy loop", "NumPy loop, packed rows"
GETITEMS = ("DataLoader, __getitems__", "DataLoader, __getitems__, workers")
PER_SAMPLE = (
    "DataLoader, per sample",
    "DataLoader, per sample, own collate",
    "DataLoader, per sample, workers",
)

SLOW_ROWS = 500_000
_SLOW = (*PER_SAMPLE, "array_record loop", "grain, row by row", "grain, row numbers")
_NEEDS = {
    "stepwell.torch": "torch",
    "TensorDataset": "torch",
    "DataLoader": "torch",
    "array_record": "array_record",
    "tensordict": "tensordict",
    "grain": "grain",
}
_BUSY_MS = 1.0


def main() -> None:
    parser = arguments(__doc__, rows=10_000_000)
    parser.add_argument("--batch", type=int, default=4096, help="rows of a batch (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="epochs of each (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the data for the next run")
    args = parser.parse_args()
    quiet = Quiet()
    with steps_file(args.rows, keep=args.keep) as path:
        names = [name for name in LOADERS if installed(name)]
        epochs = run_epochs(names, path, args.rows, args.batch, args.rounds)
        busy = run_epochs(
            [OURS, NUMPY, *GETITEMS], path, args.rows, args.batch, args.rounds, busy_ms=_BUSY_MS
        )
    size = f"{args.rows:,} rows in batches of {args.batch:,}"
    cases = [_epoch_case(epochs, size, args.rows), _busy_case(busy, size), _next_case(busy, args)]
    publish(cases, args.json)
    console.print(f"[dim]other programs used {quiet.others():.0%} of the machine[/]")


def run_epochs(
    names: Sequence[str], path: Path, rows: int, batch: int, rounds: int, busy_ms: float = 0
) -> dict[str, list[Epoch]]:
    """Epochs of each loader, interleaved."""
    epochs: dict[str, list[Epoch]] = {name: [] for name in names}
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        order = list(names)
        shuffle(order)
        for name in order:
            few = min(rows, SLOW_ROWS) if name in _SLOW else rows
            options = [f"--rows={few}", f"--batch={batch}", f"--busy-ms={busy_ms}"]
            command = [sys.executable, "-m", "benchmarks.epoch", name, str(path), *options]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
            epochs[name].append(Epoch(**json.loads(done.stdout)))
    return epochs


def measured(epochs: Iterable[Epoch], rows: int) -> Measured:
    """Nanoseconds a row, and what else an epoch shows."""
    epochs = sorted(epochs, key=lambda epoch: epoch.seconds / epoch.rows)
    middle = epochs[len(epochs) // 2]
    part = f"on {middle.rows:,} rows" if middle.rows < rows else None
    return Measured.of(
        [epoch.seconds / epoch.rows * 1e9 for epoch in epochs],
        rows_per_s=middle.rows / middle.seconds,
        first_batch_s=middle.first_batch_s,
        rss_bytes=max(epoch.peak_bytes for epoch in epochs),
        note=part,
    )


def _epoch_case(epochs: dict[str, list[Epoch]], size: str, rows: int) -> Case:
    found = {name: measured(each, rows) for name, each in epochs.items()}
    ours = found.pop(OURS)

    def times(name: str, *rest: str) -> float:
        """How many times faster than the fastest of these we are."""
        return min(found[peer].median for peer in (name, *rest)) / ours.median

    assert ours.rss_bytes is not None
    return Case(
        f"one shuffled epoch, one array per field: {size}",
        "ns/row",
        ours,
        found,
        [
            Target("times faster than DataLoader with __getitems__", times(*GETITEMS), at_least=15),
            Target("times faster than DataLoader per sample", times(*PER_SAMPLE), at_least=80),
            Target("times faster than the NumPy loop", times(NUMPY), at_least=1.3),
            Target(
                "times faster than the NumPy loop of packed rows", times(NUMPY_PACKED), at_least=1.3
            ),
            Target("of the speed of the C++ probe", times(PROBE), at_least=0.85),
            Target("peak memory above the data, MiB", ours.rss_bytes / 2**20, at_most=64),
        ],
        "times include the permutation; memory is above the data, without that of workers",
    )


def _busy_case(epochs: dict[str, list[Epoch]], size: str) -> Case:
    waiting = {
        name: Measured.of([100 * epoch.waiting_s / epoch.seconds for epoch in each])
        for name, each in epochs.items()
    }
    ours = waiting.pop(OURS)
    return Case(
        f"a consumer busy in Python for {_BUSY_MS:g} ms a batch: {size}",
        "% of time waiting",
        ours,
        waiting,
        [Target("percent of the time waiting", ours.median, at_most=2)],
    )


def _next_case(epochs: dict[str, list[Epoch]], args: argparse.Namespace) -> Case:
    """The same as microseconds of a batch, which do not grow with the work in between."""
    batches = -(-args.rows // args.batch)
    waited = {
        name: Measured.of([epoch.waiting_s / batches * 1e6 for epoch in each])
        for name, each in epochs.items()
    }
    ours = waited.pop(OURS)
    return Case(
        f"one `next` of a loop that has other work: six fields, {args.batch:,} rows",
        "us",
        ours,
        waited,
        [Target("us", ours.median, at_most=12)],
        "the first batch, which is waited for, is in the mean of the epoch",
    )


def installed(name: str) -> bool:
    """Whether a loader's library is there."""
    return all(find_spec(module) for word, module in _NEEDS.items() if name.startswith(word))


if __name__ == "__main__":
    main()

"""One shuffled epoch by one loader, in a process of its own.

    python -m benchmarks.epoch NAME FILE

prints what it cost as JSON: a peak of memory belongs to a process, so `benchmarks.loader`
starts one for every epoch. Data is loaded and libraries are imported before the clock
starts; making the loader, and its permutation, is part of the epoch. Afterwards a small
epoch is checked: every row exactly once.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import measure
from benchmarks.loader_peers import LOADERS
from benchmarks.rows import first_rows, row_numbers

_CHECKED_ROWS = 20_000
_PRIMED_BYTES = 1 << 30


@dataclass(frozen=True)
class Epoch:
    """What one epoch cost."""

    rows: int
    seconds: float
    first_batch_s: float
    waiting_s: float
    """Time the consumer spent asking for batches."""
    peak_bytes: int
    """Memory above what was resident with the data loaded."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=LOADERS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, required=True, help="rows from the file's beginning")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--busy-ms", type=float, default=0, help="Python work after each batch")
    args = parser.parse_args()
    prepare = LOADERS[args.name]
    found = run(prepare(args.file, args.rows, args.batch), args.busy_ms / 1e3)
    if found.rows != args.rows:
        raise SystemExit(f"{args.name}: expected {args.rows} rows, got {found.rows}")
    small = min(args.rows, _CHECKED_ROWS)
    check(prepare(args.file, small, args.batch), first_rows(args.file, small), small)
    print(json.dumps(asdict(found)))


def run(begin: Callable[[], Iterator[Any]], busy_s: float) -> Epoch:
    """Go through an epoch, holding the GIL for `busy_s` after each batch."""
    measure.prime_memory(_PRIMED_BYTES)
    resident = measure.reset_peak()
    rows, waiting, first = 0, 0.0, 0.0
    start = asked = time.perf_counter()
    batches = begin()
    while (batch := next(batches, None)) is not None:
        now = time.perf_counter()
        waiting += now - asked
        first = first or now - start
        rows += _count(batch)
        while time.perf_counter() < now + busy_s:
            pass
        asked = time.perf_counter()
    seconds = time.perf_counter() - start
    return Epoch(rows, seconds, first, waiting, measure.peak_bytes() - resident)


def check(begin: Callable[[], Iterator[Any]], firsts: NDArray[np.int64], rows: int) -> None:
    """Fail unless the epoch has each row once."""
    seen = np.zeros(rows, np.int64)
    for batch in begin():
        np.add.at(seen, row_numbers(batch, firsts), 1)
    if not (seen == 1).all():
        raise SystemExit(f"rows missed or repeated: {np.flatnonzero(seen != 1)[:10]}")


def _count(batch: Any) -> int:
    return len(next(iter(batch.values())) if isinstance(batch, dict) else batch)


if __name__ == "__main__":
    main()

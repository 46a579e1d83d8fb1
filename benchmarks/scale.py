"""A billion steps, built and served: `make scale`.

As many rows as the machine has room for, up to `--rows`: they are written through the
writer, loaded into memory, and taken at random. A machine with less memory does fewer and
says so.
"""

import re
import shutil
import time
from pathlib import Path

import numpy as np

import stepwell as sw
from benchmarks.results import arguments, console, number
from benchmarks.rows import FOLDER, ROW
from benchmarks.steps_data import write_dataset

_BATCH = 4096
_STEP = 100_000_000


def main() -> None:
    args = arguments(__doc__, rows=1_000_000_000).parse_args()
    rows = _room(args.rows)
    if rows < args.rows:
        console.print(f"[yellow]{args.rows:,} rows do not fit here; doing {rows:,}[/]")
    path = FOLDER / "dataset-scale"
    shutil.rmtree(path, ignore_errors=True)
    try:
        begin = time.perf_counter()
        write_dataset(path, rows)
        _say("built", f"{rows:,} rows, {_size(path) / 1e9:.1f} GB", begin)
        begin = time.perf_counter()
        steps = sw.StepReader.open(path)
        _say("loaded", "into memory, by all cores", begin)
        _serve("all rows", steps)
        begin = time.perf_counter()
        half = steps.where("max_score >= ?", 50_000)
        _say("filtered", f"{len(half.runs):,} of {len(steps.runs):,} runs", begin)
        _serve("half of the runs", half)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _serve(what: str, source: sw.Source) -> None:
    rng = np.random.default_rng(1)
    costs = []
    for _ in range(3000):
        rows = rng.integers(0, len(source), _BATCH)
        begin = time.perf_counter()
        source.take(rows)
        costs.append((time.perf_counter() - begin) * 1e3)
    p50, p99 = np.percentile(costs[100:], [50, 99])
    console.print(
        f"[bold]{'taken':9}[/] {_BATCH:,} random rows of {what}: "
        f"p50 {number(float(p50))} ms, p99 {number(float(p99))} ms"
    )


def _room(wanted: int) -> int:
    """Rows that fit into memory beside the page cache, and on the disk."""
    found = re.search(r"^MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    memory = int(found[1]) * 1024 if found else 0
    FOLDER.mkdir(exist_ok=True)
    disk = shutil.disk_usage(FOLDER).free
    fits = int(min(memory * 0.8, disk * 0.8)) // ROW.itemsize
    return wanted if fits >= wanted else max(min(fits, 300_000_000) // _STEP * _STEP, 10_000_000)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*"))


def _say(what: str, how: str, begin: float) -> None:
    console.print(f"[bold]{what:9}[/] {how}, {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()

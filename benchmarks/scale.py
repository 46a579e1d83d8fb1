"""A billion steps, built and served, from memory, from a cold disk and to a GPU: `make scale`.

As many rows as the machine has room for, up to `--rows`: they are written through the
writer, opened from the page cache and from the disk beside plain parallel reads, taken at random,
and trained on where there is a GPU. A machine with less memory does fewer and reports it.
`python -m benchmarks.report --only scale` puts the results into docs/performance.md.
"""

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import stepwell as sw
from benchmarks import machine, measure
from benchmarks.results import Case, Measured, Target, arguments, console, publish
from benchmarks.rows import FOLDER, ROW
from benchmarks.steps_data import BEST, steps_dataset
from stepwell import _core
from stepwell.files.memory import free_bytes

_BATCH = 4096
_STEP = 100_000_000
_PIECE = 1 << 23
_TRAINED = 200
"""Steps of a turn."""
_LOADED = 10_000
"""Batches of a turn."""


def main() -> None:
    parser = arguments(__doc__, rows=1_000_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the data for the next run")
    args = parser.parse_args()
    rows = _room(args.rows)
    if rows < args.rows:
        console.print(f"[yellow]{args.rows:,} rows do not fit here; doing {rows:,}[/]")
    with steps_dataset(rows, keep=args.keep) as path:
        cases = [_open_case(path, rows, args.rounds, cold=cold) for cold in (False, True)]
        steps = sw.StepReader.open(path)
        cases += [_take_case(steps), _loader_case(steps, args.rounds)]
        cases += _gpu_cases(steps, args.rounds)
    publish(cases, args.json)


def _open_case(path: Path, rows: int, rounds: int, *, cold: bool) -> Case:
    file = path / "steps.npy"
    size = file.stat().st_size
    ways: dict[str, Callable[[], object]] = {
        "ours": lambda: sw.StepReader.open(path),
        "plain reads by all cores": lambda: _read(file),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in sorted(ways, reverse=turn % 2 == 1):
            measure.prime_memory(size)
            if cold:
                _drop(path)
            else:
                _read(file)
            begin = time.perf_counter()
            kept = ways[name]()
            seconds[name].append(time.perf_counter() - begin)
            del kept
    ours, plain = (
        Measured.of(each, rows_per_s=rows / statistics.median(each)) for each in seconds.values()
    )
    where = "a cold disk" if cold else "the page cache"
    return Case(
        f"open {rows:,} steps, {size / 1e9:.0f} GB, from {where}",
        "s",
        ours,
        {"plain reads by all cores": plain},
        [
            Target("s", ours.median, at_most=10),
            Target("of the speed of plain reads", plain.median / ours.median, at_least=0.9),
        ][: 2 if cold else 1],
        f"{rounds} turns each, checksums compared; "
        f"plain reads get {size / plain.median / 1e9:.1f} GB/s; {_here()}",
    )


def _read(file: Path) -> Any:
    """The file in memory, read by all cores: the least that opening it can cost."""
    size = file.stat().st_size
    data = np.empty(size, np.uint8)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        with ThreadPoolExecutor(_core.usable_cores()) as threads:
            places = range(0, size, _PIECE)
            views = ([data.data[at : at + _PIECE]] for at in places)
            for _ in threads.map(lambda v, at: os.preadv(descriptor, v, at), views, places):
                pass
    finally:
        os.close(descriptor)
    return data


def _drop(path: Path) -> None:
    """Have the system forget what it has read of these files."""
    for file in path.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _take_case(steps: sw.StepReader) -> Case:
    half = steps.where("max_score >= ?", BEST // 2)
    whole, part = _serve(steps), _serve(half)
    limits = (("median", whole.median), ("99th percentile", whole.p99))
    return Case(
        f"take {_BATCH:,} random rows of {len(steps):,}",
        "ms",
        whole,
        {f"of {len(half.runs):,} of {len(steps.runs):,} runs": part},
        [Target(f"{name}, ms", cost, at_most=1) for name, cost in limits],
        _here(),
    )


def _serve(source: sw.Source) -> Measured:
    rng = np.random.default_rng(1)
    costs = []
    for _ in range(3000):
        rows = rng.integers(0, len(source), _BATCH)
        begin = time.perf_counter()
        source.take(rows)
        costs.append((time.perf_counter() - begin) * 1e3)
    return Measured.of(costs[100:])


def _loader_case(steps: sw.StepReader, rounds: int) -> Case:
    cores = _core.usable_cores()
    threads = {f"{n} threads": n for n in (1, 2, 4, 8, 16) if n <= cores}
    costs: dict[str, list[float]] = {name: [] for name in ("ours", *threads)}
    for _ in range(rounds):
        for name, each in costs.items():
            with sw.Loader(steps, _BATCH, threads=threads.get(name)) as loader:
                batches = loader.forever()
                for _ in range(100):
                    next(batches)
                begin = time.perf_counter()
                for _ in range(_LOADED):
                    next(batches)
                each.append((time.perf_counter() - begin) / _LOADED * 1e6)
    found = {
        name: Measured.of(each, rows_per_s=_BATCH / statistics.median(each) * 1e6)
        for name, each in costs.items()
    }
    ours = found.pop("ours")
    rate = (ours.rows_per_s or 0) / 1e6
    return Case(
        f"random batches of {_BATCH:,} from {len(steps):,} steps by the loader",
        "us",
        ours,
        found,
        [Target("million rows/s with the default", rate, at_least=100)] if cores >= 16 else [],
        f"the default is {cores} threads; {_here()}",
    )


def _gpu_cases(steps: sw.StepReader, rounds: int) -> Iterator[Case]:
    """A policy trained on the device: on a new batch at each step, and on one that is there."""
    if not find_spec("torch"):
        return
    import torch

    if not torch.cuda.is_available():
        return
    for width, depth in ((512, 1), (2048, 3)):
        train = _training(width, depth)
        loader = sw.torch.Loader(steps, _BATCH, device="cuda", as_int64=["board"])
        batches = iter(loader)
        kept = {name: values.clone() for name, values in next(batches).items()}
        costs: dict[str, list[float]] = {"ours": [], "kept": []}
        for turn in range(rounds * 4 + 1):
            for name in sorted(costs, reverse=turn % 2 == 1):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(_TRAINED):
                    train(kept if name == "kept" else next(batches))
                torch.cuda.synchronize()
                if turn:  # the first one warms up
                    costs[name].append((time.perf_counter() - begin) / _TRAINED * 1e3)
        loader.close()
        share = statistics.median(costs["kept"]) / statistics.median(costs["ours"])
        yield Case(
            f"train a policy of {depth} x {width} on a GPU, {_BATCH:,} steps a batch",
            "ms",
            Measured.of(costs["ours"]),
            {"one batch, kept on the GPU": Measured.of(costs["kept"])},
            [Target("share of the time that is not spent on data", share, at_least=0.95)],
            f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {_here()}",
        )


def _training(width: int, depth: int) -> Callable[[Any], None]:
    """A step of training, eager: from the cells of a board, one-hot, to the values of its moves."""
    import torch

    sizes = [256, *[width] * depth]
    layers: list[Any] = []
    for narrow, wide in pairwise(sizes):
        layers += [torch.nn.Linear(narrow, wide), torch.nn.ReLU()]
    policy = torch.nn.Sequential(*layers, torch.nn.Linear(width, 4)).to("cuda")
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-3)
    shifts = torch.arange(60, -1, -4, device="cuda")

    def train(batch: Any) -> None:
        cells = batch["board"][:, None] >> shifts & 15
        boards = torch.nn.functional.one_hot(cells, 16).reshape(-1, 256).float()
        loss = (policy(boards) - batch["ev_values"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return train


def _here() -> str:
    found = machine.describe()
    return f"on {found['processor']}, {found['memory']}"


def _room(wanted: int) -> int:
    """Rows that fit into memory beside the page cache, and on the disk."""
    FOLDER.mkdir(exist_ok=True)
    fits = int(min((free_bytes() or 0) * 0.8, shutil.disk_usage(FOLDER).free * 0.8)) // ROW.itemsize
    return wanted if fits >= wanted else max(min(fits, 300_000_000) // _STEP * _STEP, 10_000_000)


if __name__ == "__main__":
    main()

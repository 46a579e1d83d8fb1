"""Rows that are on a disk and not in memory: random ones of 2 KiB, against fio on the same file.

fio reads blocks of the size of a row, past the page cache, one at a time and 32 at a time; it is
what the disk can do. Each turn begins with nothing of the files in memory, and every candidate has
one in each round, so that a slow minute of the disk hurts all alike.
"""

import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import stepwell as sw
from benchmarks.results import Case, Measured, Target, arguments, publish
from benchmarks.rows import FOLDER

_ROW = 2048
_TAKEN = 40_000
_BATCH = 512
_AT_ONCE = 50_000
_DEPTHS = (1, 32)


def main() -> None:
    parser = arguments(__doc__, rows=1_000_000)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (%(default)s)")
    args = parser.parse_args()
    if shutil.which("fio") is None:
        raise SystemExit("fio is not here: apt-get install fio")
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        publish(_cases(Path(folder), args.rows, args.rounds), args.json)


def _cases(folder: Path, rows: int, rounds: int) -> list[Case]:
    steps, array, records = folder / "steps", folder / "rows.npy", folder / "records"
    rng = np.random.default_rng(0)
    with (
        sw.StepWriter(steps, [("x", "u1", (_ROW,))]) as step_writer,
        sw.RecordWriter(records, {"x": sw.Field(np.dtype("u1"), (_ROW,))}) as record_writer,
    ):
        for begin in range(0, rows, _AT_ONCE):
            count = min(_AT_ONCE, rows - begin)
            batch = {"x": rng.integers(0, 256, (count, _ROW), dtype=np.uint8)}
            step_writer.append(batch)
            record_writer.append(batch)
    shutil.copyfile(steps / "steps.npy", array)
    opened: dict[str, tuple[Path, Callable[[], sw.Source]]] = {
        "mapped steps": (steps, lambda: sw.StepReader.open(steps, memory="map")),
        "a mapped array": (array, lambda: sw.ArraySource(array, memory="map")),
        "records": (records, lambda: sw.RecordReader.open(records)),
    }
    turns: dict[str, Callable[[], float]] = {}
    for name, (path, make) in opened.items():
        file = path if path.is_file() else max(_files(path), key=lambda each: each.stat().st_size)
        for depth in _DEPTHS:
            turns[f"{name}, fio {depth}"] = partial(_fio, file, depth)
        turns[name] = _turn(path, make, _loaded)
        turns[f"{name}, taken"] = _turn(path, make, _taken)
    costs: dict[str, list[float]] = {name: [] for name in turns}
    order = list(turns)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            costs[name].append(turns[name]() * 1e6)
    measured = {name: Measured.of(each) for name, each in costs.items()}
    cases = []
    for name in opened:
        ours, best = measured[name], measured[f"{name}, fio {_DEPTHS[-1]}"]
        cases.append(
            Case(
                f"{name} from a cold disk: {_TAKEN:,} random rows of {_ROW:,} bytes",
                "microseconds a row",
                ours,
                {
                    **{f"fio, {d} at a time": measured[f"{name}, fio {d}"] for d in _DEPTHS},
                    f"take, {_BATCH:,} rows": measured[f"{name}, taken"],
                },
                [Target("of fio's rate at depth 32", best.median / ours.median, at_least=0.8)],
                "a loader of batches, and takes without one",
            )
        )
    return cases


def _turn(
    path: Path, make: Callable[[], sw.Source], read: Callable[[sw.Source], None]
) -> Callable[[], float]:
    """Seconds a row, from a reader that was just opened over files that are not in memory."""

    def turn() -> float:
        _drop(path)
        source = make()
        rows = np.random.default_rng().permutation(len(source))[:_TAKEN]
        chosen = source.select(rows)
        begin = time.perf_counter()
        read(chosen)
        return (time.perf_counter() - begin) / len(rows)

    return turn


def _loaded(source: sw.Source) -> None:
    with sw.Loader(source, _BATCH, shuffle=False) as loader:
        for _ in loader:
            pass


def _taken(source: sw.Source) -> None:
    for begin in range(0, len(source), _BATCH):
        source.take(np.arange(begin, min(begin + _BATCH, len(source))))


def _drop(path: Path) -> None:
    for each in _files(path):
        with each.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _files(path: Path) -> list[Path]:
    return [each for each in [path, *path.rglob("*")] if each.is_file()]


def _fio(path: Path, depth: int) -> float:
    """Seconds a block."""
    options = {"name": "cold", "filename": path, "rw": "randread", "bs": _ROW, "iodepth": depth}
    options |= {"ioengine": "libaio", "direct": 1, "runtime": 2, "output-format": "json"}
    command = ["fio", "--readonly", "--time_based", *(f"--{k}={v}" for k, v in options.items())]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return 1 / float(json.loads(found.stdout)["jobs"][0]["read"]["iops"])


if __name__ == "__main__":
    main()

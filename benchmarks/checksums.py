"""The price of checksums: what reading and writing costs with them, without them, and before them.

python -m benchmarks.checksums [--rows 100_000_000] [--rounds 5] [other/src ...]

Each turn is a process of its own, in a new random order each round, so that a slow minute of the
machine hurts all alike. `src` of this checkout comes first, with checksums and with
`checksums=False`, then other versions that are given.
"""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import stepwell as sw
from benchmarks.machine import Quiet
from benchmarks.results import Case, Measured, Target, arguments, console, publish
from benchmarks.rows import FOLDER
from benchmarks.steps_data import steps_dataset

_SHARD_ROWS, _WIDTH = 170_000, 768

BEGIN = """
import os, shutil, sys, time
from pathlib import Path
import numpy as np
import stepwell as sw
options = {"checksums": False} if sys.argv[1] == "checksums=False" else {}
steps, shards = Path(sys.argv[2]), Path(sys.argv[3])
rows = lambda source, n: np.random.default_rng(len(source)).integers(0, len(source), n)
def cold(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
def warm(path):
    with open(path, "rb") as file:
        while file.read(1 << 24):
            pass
def ms(work, times=1):
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        kept = work()
        taken.append((time.perf_counter() - begin) * 1e3)
        del kept  # so that the next has its memory: new memory costs more than the work
    print(sorted(taken)[times // 2])
"""

CASES = {
    "load a step dataset": "ms(lambda: sw.StepReader.open(steps, **options), 9)",
    "open it mapped": "ms(lambda: sw.StepReader.open(steps, memory='map', **options), 5)",
    "4,096 random rows of it mapped, first touch, from memory": """
source = sw.StepReader.open(steps, memory="map", **options)
source.take(np.arange(1))
wanted = rows(source, 4096)
ms(lambda: source.take(wanted))
""",
    "the same from the disk": """
cold(steps / "steps.npy")
source = sw.StepReader.open(steps, memory="map", **options)
source.take(np.arange(1))
wanted = rows(source, 4096)
ms(lambda: source.take(wanted))
warm(steps / "steps.npy")
""",
    "the same rows again": """
source = sw.StepReader.open(steps, memory="map", **options)
wanted = rows(source, 4096)
source.take(wanted)
ms(lambda: source.take(wanted), 201)
""",
    "4,096 random rows of a loaded one": """
source = sw.StepReader.open(steps, **options)
wanted = [rows(source, 4096 + i)[:4096] for i in range(201)]
ms(lambda: source.take(wanted.pop()), 201)
""",
    "append 1,000 rows and commit": """
small = steps.parent / "checksums-append"
shutil.rmtree(small, ignore_errors=True)
data = np.zeros(1000, sw.StepReader.open(steps, memory="map", **options).dtype)
with sw.StepWriter(small, data.dtype) as writer:
    def work():
        writer.append(data)
        writer.commit()
    ms(work, 51)
shutil.rmtree(small)
""",
    "append 1,000,000 rows and commit": """
small = steps.parent / "checksums-append"
shutil.rmtree(small, ignore_errors=True)
data = np.zeros(100_000, sw.StepReader.open(steps, memory="map", **options).dtype)
del_fields = [name for name in data.dtype.names if name not in ("step_index",)]
data = data[del_fields].astype([(n, data.dtype[n]) for n in del_fields])
with sw.StepWriter(small, data.dtype) as writer:
    def work():
        for _ in range(10):
            writer.append(data)
        writer.commit()
    ms(work, 3)
shutil.rmtree(small)
""",
    "shards in order, float32 to float64, first time": """
source = sw.ShardReader.open(shards, **options)
ms(lambda: sum(len(b.rows) for b in source.batches()))
""",
    "the same again": """
source = sw.ShardReader.open(shards, **options)
sum(len(b.rows) for b in source.batches())
ms(lambda: sum(len(b.rows) for b in source.batches()))
""",
    "1,024 random rows of shards, first touch": """
source = sw.ShardReader.open(shards, **options)
wanted = rows(source, 1024)
ms(lambda: source.take(wanted))
""",
    "64 random rows from a bucket (files, no latency), first touch": """
source = sw.ShardReader.open(f"file://{shards.absolute()}", **options)
wanted = rows(source, 64)
ms(lambda: source.take(wanted))
""",
    "64 others after that": """
source = sw.ShardReader.open(f"file://{shards.absolute()}", **options)
source.take(rows(source, 65))
wanted = [rows(source, 100 + i)[:64] for i in range(11)]
ms(lambda: source.take(wanted.pop()), 11)
""",
}


_LIMITS = {"load a step dataset": 1.1, "the same rows again": 1.05}
_WITHOUT = "checksums=False"


def main() -> None:
    parser = arguments(__doc__, rows=100_000_000)
    parser.add_argument("sources", type=Path, nargs="*", help="src folders of other versions")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the data for the next run")
    args = parser.parse_args()
    own = Path(__file__).parents[1] / "src"
    ways = {"ours": own, _WITHOUT: own}
    for number, source in enumerate(args.sources):
        ways["before" if number == 0 else str(source)] = source
    quiet = Quiet()
    taken: dict[str, dict[str, list[float]]] = {case: {way: [] for way in ways} for case in CASES}
    with steps_dataset(args.rows, keep=args.keep) as steps:
        shards = _shards()
        (steps / "steps.npy").read_bytes()
        turns = [(case, way) for case in CASES for way in ways]
        for turn in range(args.rounds):
            random.Random(turn).shuffle(turns)
            for case, way in turns:
                cost = _run(CASES[case], way, ways[way], steps, shards)
                taken[case][way].append(cost)
    if not args.keep:
        shutil.rmtree(shards)
    publish([_case(case, each) for case, each in taken.items()], args.json)
    console.print(f"[dim]other programs used {quiet.others():.0%} of the machine[/]")


def _case(name: str, taken: dict[str, list[float]]) -> Case:
    found = {way: Measured.of(costs) for way, costs in taken.items()}
    ours = found.pop("ours")
    before = found.get("before", found[_WITHOUT])
    target = [
        Target("times the cost without checksums", ours.median / before.median, at_most=limit)
        for start, limit in _LIMITS.items()
        if name.startswith(start)
    ]
    return Case(f"checksums: {name}", "ms", ours, found, target)


def _shards() -> Path:
    path = FOLDER / "checksums-shards"
    if not (path / "shards.json").exists():
        shutil.rmtree(path, ignore_errors=True)
        chance = np.random.default_rng(0)
        with sw.ShardWriter(path, _WIDTH, shard_bytes=1 << 27) as writer:
            for _ in range(0, _SHARD_ROWS, 10_000):
                writer.append(chance.standard_normal((10_000, _WIDTH), np.float32))
    for each in path.iterdir():
        each.read_bytes()
    return path


def _run(code: str, way: str, source: Path, steps: Path, shards: Path) -> float:
    command = [sys.executable, "-c", BEGIN + code, way, str(steps), str(shards)]
    where = {**os.environ, "PYTHONPATH": str(source)}
    return float(subprocess.run(command, env=where, check=True, capture_output=True).stdout)


if __name__ == "__main__":
    main()

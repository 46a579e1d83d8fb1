"""Building with two workers of Ray, against one process that does it alone.

python -m benchmarks.ray_build [--rows 10000000] [--rounds 5] [--json FILE]

One process comes twice: as `stepwell.convert` is called, which decodes games in as many threads as
there are cores, and with `threads=1` on one core. Ray is there before the clock starts; how long
that takes is shown beside it. All turns are in one interleaved run, and each is removed behind its
own; the source is in the page cache. What is built is compared once, file by file.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray

import stepwell as sw
from benchmarks import measure
from benchmarks.machine import Quiet
from benchmarks.measure import Call, Candidate
from benchmarks.results import Case, Measured, Target, arguments, console, publish
from stepwell import game2048

WORKERS = 2
ALONE, ONE_CORE = "stepwell.convert", "stepwell.convert, threads=1, one core"
_GAMES = 256
_AT_LEAST = 1.6
Options = dict[str, Any]


def main() -> None:
    parser = arguments(__doc__, rows=10_000_000)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (%(default)s)")
    args = parser.parse_args()
    begin = time.perf_counter()
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    began_s = time.perf_counter() - begin
    quiet = Quiet()
    with TemporaryDirectory(dir=Path.home()) as folder:
        root = Path(folder)
        runs, steps = _source(root, args.rows)
        todo: dict[str, tuple[Path, str, Options]] = {
            "a step dataset of games": (runs, "games", {}),
            "a pack of games, zstd": (runs, "games.a2pack", {"compress": "zstd"}),
            "shards of a step dataset": (
                steps,
                "shards",
                {"to": "shards", "field": "ev_values", "part_bytes": 1 << 24},
            ),
            "a record store of a step dataset, zstd": (
                steps,
                "records",
                {"to": "records", "compress": "zstd", "field": ["board", "ev_values"]},
            ),
        }
        cases = [
            _case(name, source, root / "made" / target, options, args.rounds)
            for name, (source, target, options) in todo.items()
        ]
    ray.shutdown()
    publish(cases, args.json)
    console.print(f"[dim]Ray began in {began_s:.1f} s[/]")
    console.print(f"[dim]other programs used {quiet.others():.0%} of the machine[/]")


def _source(root: Path, rows: int) -> tuple[Path, Path]:
    """Run files with about so many steps, some games under many names; and their step dataset."""
    paths = game2048.play_to(root / "played", _GAMES, depth=1)
    runs, names = root / "runs", 0
    runs.mkdir()
    steps = len(game2048.GameSteps(root / "played"))
    for copy in range(max(rows // steps, 1)):
        for path in paths:
            os.link(path, runs / f"{copy:05}-{path.name}")
            names += 1
    sw.convert(runs, root / "steps")
    console.print(f"{names:,} games")
    return runs, root / "steps"


def _case(name: str, source: Path, target: Path, options: Options, rounds: int) -> Case:
    target.parent.mkdir(exist_ok=True)

    def alone(_: object, **more: Any) -> None:
        sw.convert(source, target, **options, **more)

    def on_one_core(_: object) -> None:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})
        try:
            alone(_, threads=1)
        finally:
            os.sched_setaffinity(0, cores)

    def with_ray(_: object) -> None:
        sw.ray.convert(source, target, workers=WORKERS, **options)

    calls: dict[str, Call] = {"ray": with_ray, ALONE: alone, ONE_CORE: on_one_core}
    _check(calls, target)
    candidates = [Candidate(way, _without(target, call), calls=1) for way, call in calls.items()]
    seconds = measure.race(candidates, lambda: None, rounds=rounds)
    found = {way: Measured.of(each) for way, each in seconds.items()}
    ours = found.pop("ray")
    times = found[ALONE].median / ours.median
    target_ = Target(f"times faster than {ALONE}", times, at_least=_AT_LEAST)
    return Case(name, "s", ours, found, [target_], f"ours: stepwell.ray.convert, workers={WORKERS}")


def _check(calls: dict[str, Call], target: Path) -> None:
    """Once before the clock runs, which also brings files into memory and workers up: the files
    that are compared are the same."""
    seen: list[dict[str, bytes]] = []
    for way in ("ray", ALONE):
        with _without(target, calls[way])() as call:
            call(None)
            kept = [target] if target.is_file() else sorted(target.rglob("*"))
            kept = [path for path in kept if path.suffix in (".npy", ".shard", ".a2pack")]
            seen.append({path.name: path.read_bytes() for path in kept})
    assert seen[0] == seen[1], "the files differ"


def _without(target: Path, call: Call) -> Callable[[], Any]:
    """A turn before and behind which the target is not there."""

    @contextmanager
    def ready() -> Iterator[Call]:
        _remove(target)
        try:
            yield call
        finally:
            _remove(target)

    return ready


def _remove(target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)


if __name__ == "__main__":
    main()

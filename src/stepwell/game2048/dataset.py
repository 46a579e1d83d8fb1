"""Step datasets of recorded games (docs/formats/steps.md)."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import FormatError
from stepwell.game2048.run_files import RunsReport, attempt, find_runs
from stepwell.game2048.runs import Run
from stepwell.ordered import in_order, thread_count
from stepwell.store import Progress
from stepwell.stores.pack import PackReader
from stepwell.stores.steps import RunColumn, StepReader, StepWriter
from stepwell.writer import Mode

STEP = np.dtype(
    [
        ("board", "<u8"),
        ("move", "u1"),
        ("ev_legal", "u1"),
        ("ev_values", "<f4", (4,)),
        ("run_id", "<u4"),
        ("step_index", "<u2"),
    ]
)
"""A step of 2048: 32 packed bytes."""

RUN_COLUMNS = {
    "max_score": RunColumn(int, required=True, indexed=True),
    "highest_tile": RunColumn(int, required=True),
    "engine": RunColumn(str),
    "start_time": RunColumn(int),
    "elapsed_s": RunColumn(float),
    "final_board": RunColumn(int),
    "source": RunColumn(str),
}
"""What is known of each game. A final board is kept in the 64 bits of a signed number."""

_MAX_STEPS = 65_535
_CHUNK_RUNS = 32

Runs = str | os.PathLike[str] | PackReader
"""A directory of run files, a pack, or the path of one."""
Load = Callable[[range], list[Run]]


@dataclass
class BuildReport(RunsReport):
    """What became of the runs."""

    path: Path
    runs: int = 0
    steps: int = 0


def to_steps(run: Run) -> NDArray[Any]:
    """The steps of a run as rows; `run_id` and `step_index` are left for the writer.

    Raises `FormatError` for a run that cannot be rows: longer than 65,535 steps, or with a
    step that has no branches.
    """
    if len(run) > _MAX_STEPS:
        raise FormatError(f"{len(run)} steps; a run of a step dataset has at most {_MAX_STEPS}")
    known = run.has_branches
    if not known.all():
        raise FormatError(f"step {int(known.argmin())} has no branches")
    rows = np.zeros(len(run), STEP)
    rows["board"], rows["move"], rows["ev_legal"] = run.boards, run.moves, run.ev_legal
    legal = (run.ev_legal[:, None] >> np.arange(4, dtype=np.uint8) & 1).astype(bool)
    values = np.where(legal, np.clip(run.ev_values, 0, 1), np.float32(0))
    chosen = np.arange(len(run)), run.moves
    values[chosen] = np.where(legal[chosen], np.float32(1), values[chosen])
    rows["ev_values"] = values
    return rows


def build_dataset(
    runs: Runs,
    out: str | os.PathLike[str],
    *,
    mode: Mode = "x",
    shard_bytes: int | None = None,
    skip_bad: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Make a step dataset of all runs, or with mode "a" add them to one: all in one commit.

    A run that does not decode or cannot be rows stops it with an error that names the run, or
    is left out and listed when `skip_bad` is True. Rows of a new dataset are spread over files of
    `shard_bytes`, if it is given.
    """
    report, (names, load) = BuildReport(Path(out)), _open(runs)
    if shard_bytes is not None and shard_bytes < STEP.itemsize:
        raise ValueError(f"shard_bytes must be at least {STEP.itemsize}, got {shard_bytes}")
    starts = range(0, len(names), _CHUNK_RUNS)
    chunks = (range(i, min(i + _CHUNK_RUNS, len(names))) for i in starts)
    prepared = in_order(partial(_prepare, load), chunks, thread_count(threads))
    new = mode != "a" or not StepReader.recognizes(report.path)
    columns, shard_rows = RUN_COLUMNS, (shard_bytes or 0) // STEP.itemsize
    with StepWriter(
        out, STEP, columns if new else None, mode=mode, shard_rows=shard_rows if new else None
    ) as writer:
        done = 0
        for chunk in prepared:
            for name, found in zip(names[done : done + len(chunk)], chunk, strict=True):
                if isinstance(found, Exception):
                    if isinstance(found, FormatError) and found.path is None:
                        found.path = name
                    report.skip(name, found, skip_bad)
                    continue
                rows, known = found[0], {**found[1], "source": name}
                # A dataset of the original program has fewer columns.
                writer.append(rows, **{key: known[key] for key in writer._columns if key in known})
                report.runs += 1
                report.steps += len(rows)
            done += len(chunk)
            if progress is not None:
                progress(done, len(names))
        if not report.runs:
            raise FormatError(f"none of {len(names)} runs can be rows", path=str(runs))
    return report


def append_runs(
    dataset: str | os.PathLike[str], runs: Runs, *, skip_bad: bool = False, **options: Any
) -> BuildReport:
    """Add all runs to a step dataset that is there; options are those of `build_dataset`."""
    if not StepReader.recognizes(Path(dataset)):
        raise FileNotFoundError(f"no step dataset at {dataset}; it has to be built first")
    return build_dataset(runs, dataset, mode="a", skip_bad=skip_bad, **options)


def filter_by_score(steps: StepReader, min_score: int, max_score: int | None = None) -> StepReader:
    """The steps of runs with at least `min_score`, and at most `max_score` if it is given."""
    if max_score is None:
        return steps.where("max_score >= ?", min_score)
    return steps.where("max_score BETWEEN ? AND ?", min_score, max_score)


def _open(runs: Runs) -> tuple[list[str], Load]:
    """The names of runs, and a function that loads some of them."""
    if not isinstance(runs, PackReader) and Path(runs).is_dir():
        paths = [path for path, _ in find_runs(runs)]
        names = [_text(path.relative_to(runs)) for path in paths]
        return names, lambda numbers: [Run.load(paths[i]) for i in numbers]
    pack = runs if isinstance(runs, PackReader) else PackReader.open(runs)
    names = [f"{_text(os.path.basename(pack.path))}#{number}" for number in pack.numbers]
    return names, lambda numbers: pack.decode_batch(numbers, workers=1)


def _text(name: str | os.PathLike[str]) -> str:
    """A name as text, whatever its bytes."""
    return os.fsencode(name).decode(errors="backslashreplace")


Ready = tuple[NDArray[Any], dict[str, Any]]
"""The rows of a run, and what the database is told of it."""


def _prepare(load: Load, numbers: range) -> list[Ready | Exception]:
    """Runs, or what is wrong with each."""

    def work() -> list[Ready | Exception]:
        return [(to_steps(run), _columns(run)) for run in load(numbers)]

    made = attempt(work)
    if not isinstance(made, Exception):
        return made
    if len(numbers) == 1:
        return [made]
    return [each for i in numbers for each in _prepare(load, range(i, i + 1))]


def _columns(run: Run) -> dict[str, Any]:
    """What the database is told of a run."""
    meta = run.meta
    for name in ("max_score", "start_unix_s"):
        if getattr(meta, name) >= 1 << 63:
            raise FormatError(f"{name} {getattr(meta, name)} is beyond the numbers of SQLite")
    return {
        **meta._asdict(),
        "start_time": meta.start_unix_s,
        "final_board": run.final_board - (1 << 64) * (run.final_board >> 63),
    }

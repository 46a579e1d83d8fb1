"""Step datasets of recorded games (docs/formats/steps.md)."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import FormatError
from stepwell.files.atomic import publish_tree, temporary_name
from stepwell.game2048.run_files import RunsReport, find_runs
from stepwell.game2048.runs import Run
from stepwell.ordered import in_order, thread_count
from stepwell.store import Progress
from stepwell.stores.pack import PackReader
from stepwell.stores.steps import RunColumn, StepReader, StepWriter

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
_SHARD_BYTES = 1 << 30
_CHUNK_RUNS = 32

Runs = str | os.PathLike[str] | PackReader
"""A directory of run files, a pack, or the path of one."""


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
    shard_bytes: int | None = None,
    skip_bad: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Make a step dataset of all runs; `out` appears when it is complete.

    A run that does not decode or cannot be rows stops it with an error that names the run, or
    is left out and listed when `skip_bad` is True. Rows are spread over files of
    `shard_bytes`, by default only when they would not fit well into this machine's memory.
    """
    report = BuildReport(Path(out))
    source = _open(runs)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if shard_bytes is None and source.max_steps * STEP.itemsize > memory // 2:
        shard_bytes = _SHARD_BYTES
    if report.path.exists():
        raise FileExistsError(f"{out} exists already; expected a path for a new dataset")
    if shard_bytes is not None and shard_bytes < STEP.itemsize:
        raise ValueError(f"shard_bytes must be at least {STEP.itemsize}, got {shard_bytes}")
    beside, shard_rows = temporary_name(report.path), (shard_bytes or 0) // STEP.itemsize
    with (
        publish_tree(beside, report.path),
        StepWriter(beside, STEP, RUN_COLUMNS, shard_rows=shard_rows) as writer,
    ):
        _append(writer, source, report, skip_bad, threads, progress)
        if not report.runs:
            raise FormatError(f"none of {len(source.names)} runs can be rows", path=str(runs))
    return report


def append_runs(
    dataset: str | os.PathLike[str],
    runs: Runs,
    *,
    skip_bad: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Add all runs to a step dataset in one commit: all of them, or none."""
    report = BuildReport(Path(dataset))
    source = _open(runs)
    if not (report.path / "metadata.db").exists():
        raise FileNotFoundError(f"no step dataset at {report.path}; it has to be built first")
    with StepWriter(dataset, STEP, mode="a") as writer:
        _append(writer, source, report, skip_bad, threads, progress)
    return report


def filter_by_score(steps: StepReader, min_score: int, max_score: int | None = None) -> StepReader:
    """The steps of runs with at least `min_score`, and at most `max_score` if it is given."""
    if max_score is None:
        return steps.where("max_score >= ?", min_score)
    return steps.where("max_score BETWEEN ? AND ?", min_score, max_score)


class _Source(NamedTuple):
    """Runs by name, and a function that loads some of them."""

    names: Sequence[str]
    max_steps: int
    load: Callable[[range], list[Run]]


def _open(runs: Runs) -> _Source:
    if not isinstance(runs, PackReader) and Path(runs).is_dir():
        found = find_runs(runs)
        root = Path(runs)
        names = [_text(path.relative_to(root)) for path, _ in found]
        steps = sum(size for _, size in found) // 3
        return _Source(names, steps, lambda numbers: [Run.load(found[i][0]) for i in numbers])
    pack = runs if isinstance(runs, PackReader) else PackReader.open(runs)
    names = [f"{_text(os.path.basename(pack.path))}#{number}" for number in pack.numbers]
    try:
        steps = pack.stats.total_steps
    except FormatError:  # of a part they are counted, and a run that is damaged has its turn later
        steps = pack.stored_bytes // 3
    return _Source(names, steps, lambda numbers: pack.decode_batch(numbers, workers=1))


def _text(name: str | os.PathLike[str]) -> str:
    """A name as text, whatever its bytes."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _append(
    writer: StepWriter,
    source: _Source,
    report: BuildReport,
    skip_bad: bool,
    threads: int | None,
    progress: Progress | None,
) -> None:
    count = len(source.names)
    known = writer._columns  # a dataset of the original program has fewer
    chunks = (range(i, min(i + _CHUNK_RUNS, count)) for i in range(0, count, _CHUNK_RUNS))
    prepare = partial(_prepare, source)
    for chunk in in_order(prepare, chunks, thread_count(threads)):
        for number, found, about in chunk:
            name = source.names[number]
            if isinstance(found, Exception):
                if not skip_bad:
                    found.add_note(f"in run {name}")
                    raise _named(found, name)
                report.skipped.append((name, str(found)))
                continue
            columns = {**about, "source": name}
            writer.append(found, **{key: columns[key] for key in known if key in columns})
            report.runs += 1
            report.steps += len(found)
        if progress is not None:
            progress(number + 1, count)


_Ready = tuple[int, NDArray[Any] | Exception, dict[str, Any]]
"""A run by number: its rows and columns, or what is wrong with it."""


def _prepare(source: _Source, numbers: range) -> list[_Ready]:
    try:
        runs = zip(numbers, source.load(numbers), strict=True)
        return [(number, to_steps(run), _columns(run)) for number, run in runs]
    except (FormatError, OSError) as error:
        if len(numbers) == 1:
            return [(numbers[0], error, {})]
        return [each for i in numbers for each in _prepare(source, range(i, i + 1))]


def _columns(run: Run) -> dict[str, Any]:
    """What the database is told of a run."""
    meta = run.meta
    for name in ("max_score", "start_unix_s"):
        if getattr(meta, name) >= 1 << 63:
            raise FormatError(f"{name} {getattr(meta, name)} is beyond the numbers of SQLite")
    return {
        "max_score": meta.max_score,
        "highest_tile": meta.highest_tile,
        "engine": meta.engine,
        "start_time": meta.start_unix_s,
        "elapsed_s": meta.elapsed_s,
        "final_board": run.final_board - (1 << 64) * (run.final_board >> 63),
    }


def _named(problem: Exception, name: str) -> Exception:
    """The same error, with the run it is about in its words."""
    if isinstance(problem, FormatError) and problem.path is None:
        return type(problem)(f"{name}: {problem.args[0]}", offset=problem.offset)
    return problem

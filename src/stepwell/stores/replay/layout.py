"""Where things are under the root of a replay store.

telemetry/telemetry.sqlite   steps, episodes, runs
replay/<run_id>.h5           the arrays of a run
replay/index.json            which runs there are
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from stepwell.errors import FormatError, StepwellError
from stepwell.files.atomic import sweep, write_file
from stepwell.files.regular import check_inside, open_inside, read_inside
from stepwell.source import Field
from stepwell.stores.replay.channels import ACTIONS, FRAMES, OBSERVATIONS
from stepwell.stores.replay.database import (
    RunRow,
    database_path,
    reading,
    removed_runs,
    run_rows,
)
from stepwell.stores.replay.directory import find_mark
from stepwell.stores.replay.refs import check_run_id

FILE_VERSION = 1
INDEX = "index.json"
_MAX_INDEX = 1 << 22
STEPS = "steps"
STEP_COLUMNS = ("episode", "step_index", "frame", "observation", "action")
KIND_COLUMNS = {FRAMES: 2, OBSERVATIONS: 3, ACTIONS: 4}
"""Where a row of `steps` has the rows of the arrays."""
NUMBERS: Mapping[str, Field] = {
    STEPS: Field(np.dtype("<i8"), (len(STEP_COLUMNS),), compress="none"),
    "rewards": Field(np.dtype("<f8"), compress="none"),
    "dones": Field(np.dtype("u1"), compress="none"),
    "episodes/starts": Field(np.dtype("<i8"), compress="none"),
    "episodes/lengths": Field(np.dtype("<i8"), compress="none"),
}
"""Datasets of scalars. A row of `steps` has the numbers of its episode and step, and
its rows in the arrays, -1 for none; 1 in `dones` is terminated, 2 truncated."""
UNSUMMED = ("episodes/starts", "episodes/lengths")  # the database has the same, and is believed
CHECKSUMS, CHECKSUM = "checksums", Field(np.dtype("<u4"), compress="none")
"""The group of datasets with the checksums of rows, and what a row of those is."""
CODECS = {"none": 0, "gzip": 1, "zstd": 2}
"""The core's numbers for those that it packs."""


def array_path(root: Path, run_id: str) -> Path:
    return root / "replay" / f"{check_run_id(run_id)}.h5"


def lock_path(root: Path, run_id: str) -> Path:
    return root / "replay" / f".{check_run_id(run_id)}.lock"


def is_replay(path: str | os.PathLike[str]) -> bool:
    """Whether there is a replay store at `path`, healthy or not."""
    return os.path.lexists(database_path(Path(path)))


def write_index(root: Path, runs: Mapping[str, RunRow]) -> None:
    """Write to index.json which runs there are; a summary of the database for people and scripts.

    One writer at a time: unfinished files of an earlier one are removed.
    """
    index = {
        run.run_id: {
            "file": run.file,
            "state": run.state,
            "steps": run.steps,
            "episodes": run.episodes,
        }
        for run in runs.values()
    }
    folder = root / "replay"
    check_inside(folder, "index.json")
    sweep(folder, INDEX)
    write_file(folder / INDEX, json.dumps(index, indent=2).encode() + b"\n", follow=False)


def lost_commits(
    root: Path, runs: Mapping[str, RunRow], names: Sequence[str] | None = None
) -> Iterator[FormatError]:
    """Runs, or some of them, of whose files the database knows less than was committed."""
    listed, marked = _stated(root, names)

    def lacks(name: str) -> str:
        if name not in runs:
            return f"expected a run {name!r}, which has a file or is in {INDEX}, got none"
        rows, steps = runs[name].committed, runs[name].written
        if marked[name] > rows:
            expected = f"expected at least {marked[name]:,} rows, as its file has, got {rows:,}"
        elif not rows and listed.get(name, 0) > steps:  # a run without arrays has no file
            expected = f"expected at least {listed[name]:,} steps, as {INDEX} has, got {steps:,}"
        else:
            return ""
        return f"run {name!r}: {expected}"

    if any(map(lacks, marked)):
        with suppress(FileNotFoundError), reading(root) as database:  # or they have grown meanwhile
            runs = run_rows(database, database_path(root))
            for name in removed_runs(database, database_path(root)):
                marked.pop(name, None)
        # Or were removed meanwhile, and perhaps recorded again.
        again, marks = _stated(root, names)
        listed = {name: min(count, again.get(name, 0)) for name, count in listed.items()}
        marked = {name: min(rows, marks[name]) for name, rows in marked.items() if name in marks}
    for message in filter(None, map(lacks, marked)):
        yield FormatError(message, path=str(database_path(root)))


def _stated(root: Path, names: Sequence[str] | None) -> tuple[dict[str, int], dict[str, int]]:
    """The steps of runs that index.json has, and the rows that these and files have by their
    marks; of all runs, or some of them."""
    listed = _listed(root)
    marked = dict.fromkeys(listed, 0)
    with suppress(OSError):  # what there is instead of files is reported by whoever reads them
        folder = root / "replay"
        for entry in [] if folder.is_symlink() else os.listdir(folder):
            name = entry.removesuffix(".h5")
            if name != entry:
                with suppress(OSError, StepwellError):
                    marked[name] = _mark_of(folder, entry)
    if names is not None:
        marked = {name: rows for name, rows in marked.items() if name in names}
    return listed, marked


def _mark_of(folder: Path, name: str) -> int:
    file = open_inside(folder, name)
    try:
        return find_mark(file) or 0
    finally:
        os.close(file)


def _listed(root: Path) -> dict[str, int]:
    """The runs and their steps that index.json has, if it can be read; the database has them
    before."""
    with suppress(OSError, ValueError, RecursionError, AttributeError):
        found = json.loads(read_inside(root, f"replay/{INDEX}", _MAX_INDEX))
        steps = {str(name): facts.get("steps") for name, facts in found.items()}
        return {name: count if isinstance(count, int) else 0 for name, count in steps.items()}
    return {}

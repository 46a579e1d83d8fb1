"""Where things are under the root of a replay store.

telemetry/telemetry.sqlite   steps, episodes, runs
replay/<run_id>.h5           the arrays of a run
replay/index.json            which runs there are
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from stepwell.files.atomic import sweep, write_file
from stepwell.files.regular import check_inside
from stepwell.source import Field
from stepwell.stores.replay.database import RunRow, database_path
from stepwell.stores.replay.refs import check_run_id

INDEX = "index.json"
STEPS = "steps"
STEP_COLUMNS = ("episode", "step_index", "frame", "observation", "action")
NUMBERS: Mapping[str, Field] = {
    STEPS: Field(np.dtype("<i8"), (len(STEP_COLUMNS),), compress="none"),
    "rewards": Field(np.dtype("<f8"), compress="none"),
    "dones": Field(np.dtype("u1"), compress="none"),
    "episodes/starts": Field(np.dtype("<i8"), compress="none"),
    "episodes/lengths": Field(np.dtype("<i8"), compress="none"),
}
"""Datasets of scalars. A row of `steps` has the numbers of its episode and step, and
its rows in the arrays, -1 for none; 1 in `dones` is terminated, 2 truncated."""
CHECKSUMS, CHECKSUM = "checksums", Field(np.dtype("<u4"), compress="none")
"""The group of datasets with the checksums of rows, and what a row of those is."""
RAW, ZSTD = 0, 2  # the core's numbers for them


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

"""Where things are under the root of a replay store.

telemetry/telemetry.sqlite   steps, episodes, runs
replay/<run_id>.h5           the arrays of a run
replay/index.json            which runs there are
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from stepwell.files.atomic import write_file
from stepwell.stores.replay.database import RunRow
from stepwell.stores.replay.refs import check_run_id

__all__ = [
    "NUMBERS",
    "STEPS",
    "STEP_COLUMNS",
    "array_path",
    "database_path",
    "is_replay",
    "lock_path",
    "write_index",
]

STEPS = "steps"
STEP_COLUMNS = ("episode", "step_index", "frame", "observation", "action")
NUMBERS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    STEPS: ("<i8", (len(STEP_COLUMNS),)),
    "rewards": ("<f8", ()),
    "dones": ("u1", ()),
    "episodes/starts": ("<i8", ()),
    "episodes/lengths": ("<i8", ()),
}
"""Datasets of plain numbers. A row of `steps` says which step of which episode it is, and which
rows of the arrays it has, -1 for none; 1 in `dones` is terminated, 2 truncated."""


def database_path(root: Path) -> Path:
    return root / "telemetry" / "telemetry.sqlite"


def array_path(root: Path, run_id: str) -> Path:
    return root / "replay" / f"{check_run_id(run_id)}.h5"


def lock_path(root: Path, run_id: str) -> Path:
    return root / "replay" / f".{check_run_id(run_id)}.lock"


def is_replay(path: str | os.PathLike[str]) -> bool:
    """Whether there is a replay store at `path`."""
    return database_path(Path(path)).is_file()


def write_index(root: Path, runs: Mapping[str, RunRow]) -> None:
    """Say in index.json which runs there are; a summary of the database for people and scripts.

    One writer at a time: what another one left unfinished is removed.
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
    for left in (root / "replay").glob(".index.json.*.tmp"):
        with suppress(OSError):
            left.unlink()
    write_file(root / "replay" / "index.json", json.dumps(index, indent=2).encode() + b"\n")

"""Sources of rows for Ray's workers: they note what was read, and die when they are told to."""

import os
import signal
import sys
from pathlib import Path

import numpy as np

import stepwell as sw
from stepwell.source import Batch, Rows, Schema

ROWS = 1 << 17
ROW = 64  # bytes: eight pieces of a mebibyte


class Noted(sw.Source):
    """Rows that are computed. `folder` has a file that they are of, one that lists what workers
    read, and files that name the row at which a worker fails or dies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if not folder.exists():
            folder.mkdir()
            (folder / "rows").touch()

    @property
    def path(self) -> str:
        return str(self._folder / "rows")

    @property
    def schema(self) -> Schema:
        return {"x": sw.Field(np.dtype("<f4"), (ROW // 4,))}

    def __len__(self) -> int:
        return ROWS

    def _fill(self, rows: Rows, out: Batch) -> None:
        out["x"][...] = rows[:, None] * np.float32(0.5)
        if not sys.argv[0].endswith("default_worker.py"):
            return  # the driver, which looks at some rows
        with open(self._folder / "read", "a") as log:
            log.write(f"{rows[0]}\n")
        for name in ("fails", "dies", "dies always"):
            path = self._folder / name
            if path.exists() and int(path.read_text()) in rows:
                if name == "fails":
                    raise ValueError(f"row {path.read_text()} is not to be had")
                if name == "dies":
                    path.unlink()
                os.kill(os.getpid(), signal.SIGKILL)

    def note(self, name: str, row: int) -> None:
        (self._folder / name).write_text(str(row))

    def forget(self, name: str) -> None:
        (self._folder / name).unlink()

    def read(self) -> list[int]:
        """The first row of each batch that workers read, in order."""
        path = self._folder / "read"
        return sorted(map(int, path.read_text().split())) if path.exists() else []

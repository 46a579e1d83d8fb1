"""Runs without arrays: all of one is in the database, and it has no file.

Scalar actions that SQLite can hold are no arrays. Where the first array of a run comes later, the
steps of before are put into its file then.
"""

from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import FormatError
from stepwell.source import Rows
from stepwell.stores.replay.channels import ACTIONS, Channel
from stepwell.stores.replay.database import (
    STEP_COLUMNS,
    Episode,
    RunRow,
    check_rows,
    database_path,
    reading,
    steps_of,
)

_INDEX, _ACTION, _REWARD, _TERMINATED, _TRUNCATED = map(
    STEP_COLUMNS.index, ("step_index", "action", "reward", "terminated", "truncated")
)


def is_scalar(channel: Channel) -> bool:
    """Whether values of a channel can stand in the database."""
    return channel.name == ACTIONS and not channel.field.shape


def require_hdf5(extra: str = "replay") -> None:
    """Raise `ImportError` where files of arrays cannot be written."""
    try:
        import_module("stepwell.stores.replay.arrays")
    except ModuleNotFoundError as error:
        message = f"to write arrays needs an extra: pip install 'stepwell[{extra}]'"
        raise ImportError(message) from error


class ScalarRun:
    """Steps of a run as its file would have them, episode after episode."""

    def __init__(
        self, run: RunRow, episodes: Sequence[Episode], steps: Iterable[list[Any]], path: Path
    ) -> None:
        """`steps` are those of each episode in the database at `path`."""
        self.path = path
        places: list[tuple[int, ...]] = []
        scalars: list[tuple[float, int]] = []
        actions: list[Any] = []
        for episode, rows in zip(episodes, steps, strict=True):
            check_rows("a step of", rows, len(STEP_COLUMNS), path)
            for row in rows:
                there = row[_ACTION] is not None
                action = len(actions) if there else -1
                places.append((episode.number, row[_INDEX], -1, -1, action))
                scalars.append((row[_REWARD], row[_TERMINATED] | row[_TRUNCATED] << 1))
                actions += [row[_ACTION]] * there
        dtype = next((c.field.dtype for c in run.channels if is_scalar(c)), np.dtype(np.float64))
        try:
            self._places = np.array(places, np.int64).reshape(-1, 5)
            self._rewards = np.array([reward for reward, _ in scalars], np.float64)
            self._dones = np.array([done for _, done in scalars], np.uint8)
            self.actions = np.array(actions, dtype)
        except (TypeError, ValueError, OverflowError) as error:
            message = f"run {run.run_id!r}: expected steps of scalars: {error}"
            raise FormatError(message, path=str(path)) from None

    @classmethod
    def read_from(cls, root: Path, run: RunRow, episodes: Sequence[Episode]) -> "ScalarRun":
        """Those of some episodes of a store. Raises `FormatError` when the run is another now."""
        path = database_path(root)
        with reading(root) as database:
            sql = "SELECT created_at FROM runs WHERE run_id = ?"
            if database.execute(sql, (run.run_id,)).fetchone() != (run.created_at,):
                raise FormatError(f"the run {run.run_id!r} was removed since", path=str(path))
            return cls(run, episodes, steps_of(database, episodes), path)

    def read_steps(self, count: int) -> list[NDArray[Any]]:
        """Their places, rewards and flags, however many there are by now."""
        return [self._places, self._rewards, self._dones]

    def read(self, name: str, rows: Rows, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Actions by their rows."""
        if name != ACTIONS:
            raise FormatError(f"expected a run without arrays, got {name}", path=str(self.path))
        return self.actions.take(rows, out=out)

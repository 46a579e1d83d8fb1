"""The runs of a dataset as a table."""

import operator
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepwell.stores.steps import database
from stepwell.stores.steps.database import Seen
from stepwell.stores.steps.layout import DATABASE

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["RunTable"]

_FEW = 500  # ids that fit well into one question


class RunTable(Sequence[dict[str, Any]]):
    """What is known of each run: `runs[7]`, `runs["num_steps"]`, iteration, pandas, Arrow."""

    def __init__(self, root: Path, ids: NDArray[np.int64] | None, seen: Seen) -> None:
        self._root = root
        self._ids = ids
        self._seen = seen

    def __len__(self) -> int:
        return self._seen.runs if self._ids is None else len(self._ids)

    @property
    def columns(self) -> list[str]:
        path = self._root / DATABASE
        with database.reading(path) as opened:
            return database.column_names(opened)

    def __getitem__(self, key: Any) -> Any:
        """A run as a dictionary, several as a list, or a column as an array."""
        if isinstance(key, str):
            if key not in self.columns:
                raise KeyError(f"no run column {key!r}; there are {', '.join(self.columns)}")
            return np.array([row[0] for row in self._select([key])])
        if isinstance(key, slice):
            chosen = range(len(self))[key]
            if chosen.step == 1:
                return self._dicts(chosen)
            return list(self)[key]
        i = operator.index(key)
        if not -len(self) <= i < len(self):
            raise IndexError(f"no run at {i}, there are {len(self)}")
        i %= len(self)
        return self._dicts(range(i, i + 1))[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._dicts())

    def _dicts(self, wanted: range | None = None) -> list[dict[str, Any]]:
        names = self.columns
        return [dict(zip(names, row, strict=True)) for row in self._select(names, wanted)]

    def to_pandas(self) -> "pd.DataFrame":
        import pandas

        names = self.columns
        return pandas.DataFrame.from_records(self._select(names), columns=names)

    def to_arrow(self) -> "pa.Table":
        import pyarrow

        return pyarrow.Table.from_pylist(list(self))

    def _select(self, names: list[str], wanted: range | None = None) -> list[tuple[Any, ...]]:
        """These columns of all runs, or of those from one place in the table to another."""
        every = ", ".join(map(database.quoted, names))
        start = f"SELECT id, {every} FROM runs WHERE id <= ?"
        order = "ORDER BY first_step_idx, id"
        path = self._root / DATABASE
        with database.reading(path, self._seen.identity) as opened:
            if self._ids is None:
                places = range(len(self)) if wanted is None else wanted
                limits = (self._seen.last_run, len(places), places.start)
                found = opened.execute(f"{start} {order} LIMIT ? OFFSET ?", limits)
                return [row[1:] for row in found]
            ids = self._ids if wanted is None else self._ids[wanted.start : wanted.stop]
            if len(ids) <= _FEW:
                marks = ", ".join("?" * len(ids))
                values = (self._seen.last_run, *ids.tolist())
                found = opened.execute(f"{start} AND id IN ({marks}) {order}", values)
                return [row[1:] for row in found]
            chosen = set(ids.tolist())
            found = opened.execute(f"{start} {order}", (self._seen.last_run,))
            return [row[1:] for row in found if row[0] in chosen]

    def __repr__(self) -> str:
        return f"RunTable({len(self):,} runs, {', '.join(self.columns)})"

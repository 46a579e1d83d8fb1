"""The runs of a dataset as a table."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepwell.stores.steps import database
from stepwell.stores.steps.layout import DATABASE

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["RunTable"]


class RunTable(Sequence[dict[str, Any]]):
    """What is known of each run: `runs[7]`, `runs["max_score"]`, iteration, pandas, Arrow."""

    def __init__(
        self, root: Path, ids: NDArray[np.int64] | None, count: int, last_run: int
    ) -> None:
        self._root = root
        self._ids = ids
        self._count = count
        self._last_run = last_run

    def __len__(self) -> int:
        return self._count

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
            return list(self)[key]
        return list(self)[range(len(self))[key]]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names = self.columns
        return (dict(zip(names, row, strict=True)) for row in self._select(names))

    def to_pandas(self) -> "pd.DataFrame":
        import pandas

        names = self.columns
        return pandas.DataFrame.from_records(self._select(names), columns=names)

    def to_arrow(self) -> "pa.Table":
        import pyarrow

        return pyarrow.Table.from_pylist(list(self))

    def _select(self, names: list[str]) -> list[tuple[Any, ...]]:
        path = self._root / DATABASE
        every = ", ".join(map(database.quoted, names))
        question = f"SELECT id, {every} FROM runs WHERE id <= ? ORDER BY first_step_idx, id"
        with database.reading(path) as opened:
            found = opened.execute(question, (self._last_run,))
            if self._ids is None:
                return [row[1:] for row in found]
            chosen = set(self._ids.tolist())
            return [row[1:] for row in found if row[0] in chosen]

    def __repr__(self) -> str:
        return f"RunTable({len(self):,} runs, {', '.join(self.columns)})"

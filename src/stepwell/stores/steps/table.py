"""The runs of a dataset as a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepwell.lazy import lazy
from stepwell.source import Rows
from stepwell.store import Runs
from stepwell.stores.steps import database

if TYPE_CHECKING:
    from stepwell.stores.steps.reader import StepReader

__all__ = ["StepRuns"]

_FEW = 500  # ids that fit well into one query


class StepRuns(Runs):
    """What is known of each run, as of the commit that the dataset had when it was asked for."""

    def __init__(self, steps: "StepReader", ids: Rows | None) -> None:
        self._steps = steps
        self._seen = steps._seen
        self._ids = ids

    def __len__(self) -> int:
        return self._seen.runs if self._ids is None else len(self._ids)

    @lazy
    def columns(self) -> list[str]:  # type: ignore[override]
        with self._steps._reading() as opened:
            return database.column_names(opened)

    @property
    def starts(self) -> Rows:
        return self._steps._runs()[0][: len(self)]  # runs that came later are behind them

    @property
    def counts(self) -> Rows:
        return self._steps._runs()[1][: len(self)]

    def _select(self, names: Sequence[str], wanted: range) -> list[tuple[Any, ...]]:
        every = ", ".join(map(database.quoted, names))
        start = f"SELECT id, {every} FROM runs WHERE id <= ?"
        order = "ORDER BY first_step_idx, id"
        last = self._seen.last_run
        with self._steps._reading() as opened:
            if self._ids is None:
                limits = (last, len(wanted), wanted.start)
                found = opened.execute(f"{start} {order} LIMIT ? OFFSET ?", limits)
                return [row[1:] for row in found]
            ids = self._ids[wanted.start : wanted.stop].tolist()
            if len(ids) <= _FEW:
                marks = ", ".join("?" * len(ids))
                found = opened.execute(f"{start} AND id IN ({marks}) {order}", (last, *ids))
                return [row[1:] for row in found]
            chosen = set(ids)
            found = opened.execute(f"{start} {order}", (last,))
            return [row[1:] for row in found if row[0] in chosen]

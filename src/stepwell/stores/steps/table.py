"""The runs of a dataset: as a table, and those for which an SQL condition holds."""

import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepwell.files import catalog
from stepwell.lazy import lazy
from stepwell.source import Rows
from stepwell.store import Runs
from stepwell.stores.steps import database
from stepwell.stores.steps.database import OWN, Seen
from stepwell.stores.steps.layout import DATABASE


class Chosen(NamedTuple):
    """Some runs: their ids, and where their rows are."""

    ids: Rows
    starts: Rows
    counts: Rows

    def places(self, *, part: bool) -> tuple[Rows, Rows]:
        """First row and number of rows of each run, in the whole or in a part of only these."""
        return (np.cumsum(self.counts) - self.counts if part else self.starts), self.counts


def choose(root: Path, seen: Seen, condition: str, values: Sequence[Any]) -> Chosen:
    """The runs that were seen for which a condition holds, in the order of their rows."""
    with database.reading(root / DATABASE, seen.identity) as opened:
        columns = list(database.columns(opened))
        found = Chosen(
            *catalog.select_numbers(opened, "runs", OWN, condition, values, columns=columns)
        )
    # What came after this was opened is not here.
    there = (found.starts >= 0) & (found.counts >= 0) & (found.counts <= seen.rows - found.starts)
    there &= found.ids <= seen.last_run
    if not there.all():
        found = Chosen(*(column[there] for column in found))
    if (np.diff(found.starts) < 0).any():  # runs need not be stored in the order of their ids
        order = np.argsort(found.starts, kind="stable")
        found = Chosen(*(column[order] for column in found))
    return found


class StepRuns(Runs):
    """What is known of each run, as of the commit that the dataset had when it was asked for."""

    def __init__(self, root: Path, seen: Seen, chosen: Chosen | None) -> None:
        self._root = root
        self._seen = seen
        self._chosen = chosen

    def __len__(self) -> int:
        return self._seen.runs if self._chosen is None else len(self._chosen.ids)

    @lazy
    def columns(self) -> list[str]:
        with self._reading() as opened:
            return list(database.columns(opened))

    @property
    def starts(self) -> Rows:
        return self._places[0]

    @property
    def counts(self) -> Rows:
        return self._places[1]

    @lazy
    def _places(self) -> tuple[Rows, Rows]:
        if self._chosen is not None:
            return self._chosen.places(part=True)
        return choose(self._root, self._seen, "1", ()).places(part=False)

    def _select(self, names: Sequence[str], wanted: range) -> list[tuple[Any, ...]]:
        every = ", ".join(map(database.quoted, names))
        with self._reading() as opened:
            first, shown = wanted.start, self._seen.last_run
            if self._chosen is not None:
                first, shown = 0, self._chosen.ids[wanted.start : wanted.stop].tolist()
            catalog.show_only(opened, "runs", "id", shown)
            sql = f"SELECT {every} FROM runs ORDER BY first_step_idx, id LIMIT ? OFFSET ?"
            return opened.execute(sql, (len(wanted), first)).fetchall()

    def _reading(self) -> AbstractContextManager[sqlite3.Connection]:
        return database.reading(self._root / DATABASE, self._seen.identity)

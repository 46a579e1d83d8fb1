"""The commit that a reader of a replay store shows: its runs, and the rows of their episodes."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stepwell.files.catalog import select_ids
from stepwell.stores.replay.database import (
    EPISODE_COLUMNS,
    RunRow,
    all_episodes,
    database_path,
    reading,
    run_rows,
)

Condition = tuple[str, tuple[Any, ...]]


class Moment(NamedTuple):
    """One commit."""

    recordings: dict[str, RunRow]
    episodes: dict[str, int]
    """How many each of them has."""
    rows: list[tuple[Any, ...]]
    """The rows of episodes in the database, in the order of the reader's own rows; behind the
    columns of each its checksum and its id there."""

    @classmethod
    def look(
        cls, root: Path, names: Sequence[str] | None, conditions: Sequence[Condition]
    ) -> "Moment":
        """The newest one, of some runs and under some conditions.

        Raises `KeyError` when there is no such run.
        """
        with reading(root) as database:
            known = run_rows(database, database_path(root))
            by_run: dict[str, list[tuple[Any, ...]]] = {}
            for row in all_episodes(database):
                by_run.setdefault(row[1], []).append(row)
            for name in names or ():
                if name not in known:
                    raise KeyError(f"there is no run {name!r}; there are {list(known)}")
            counts = {name: len(rows) for name, rows in by_run.items()}
            moment = cls(
                known, counts, [r for name in names or by_run for r in by_run.get(name, ())]
            )
            for condition, values in conditions:
                moment = moment.where(database, condition, values)
        return moment

    def is_newest(self, root: Path) -> bool:
        """Whether nothing was committed since: that changes a run, or how many episodes there are.
        Of many, to read them all takes longer."""
        with reading(root) as database:
            if run_rows(database, database_path(root)) != self.recordings:
                return False
            (count,) = database.execute("SELECT count(*) FROM episodes").fetchone()
        return bool(count == sum(self.episodes.values()))

    def where(
        self,
        database: sqlite3.Connection,
        condition: str,
        values: Sequence[Any],
        timeout_s: float | None = None,
    ) -> "Moment":
        """The same with those episodes only for which a condition holds."""
        columns = EPISODE_COLUMNS
        found = select_ids(
            database, "episodes", "rowid", columns, condition, values, timeout_s=timeout_s
        )
        wanted = set(found.tolist())
        return self._replace(rows=[row for row in self.rows if row[-1] in wanted])

    def keep(self, database: sqlite3.Connection) -> None:
        """Have queries see these episodes in place of what became of them."""
        columns = ", ".join((*EPISODE_COLUMNS, "checksum"))
        database.execute(f"CREATE TEMP TABLE episodes ({columns})")
        places = ", ".join("?" * (2 + len(EPISODE_COLUMNS)))
        insert = f"INSERT INTO temp.episodes ({columns}, rowid) VALUES ({places})"
        database.executemany(insert, self.rows)

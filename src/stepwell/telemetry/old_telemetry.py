"""Databases that kept observations and frames as JSON in SQLite, as they are.

steps(episode_id, step_index, action, observation, reward, terminated, truncated, info,
      render_payload, timestamp, agent_id, run_id), one row a step
episodes(episode_id, …), a row when an episode has ended

Nothing is ever written to them. A query is a transaction of its own and a short one, so a
program that still records there is not held up.
"""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from stepwell.errors import FormatError, SchemaError
from stepwell.files.catalog import in_turn, open_readonly, taking_turns, translated

_NEEDED = ("episode_id", "step_index", "action", "observation", "reward", "terminated")
_OTHERS = ("truncated", "info", "render_payload", "timestamp", "agent_id", "run_id")
_WAIT_MS = 60_000


class OldEpisode(NamedTuple):
    """An episode: columns of its first step, and its own row where it has ended."""

    episode_id: str
    run_id: str | None
    agent_id: str | None
    started_at: str
    ended_at: str
    """When its last step was; also of one that has not ended."""
    ended: bool


class OldTelemetry:
    """One such database. Raises `FormatError` when it has no such tables."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.stat()
        with in_turn(), translated(path):
            self._database = open_readonly(path)
            self._database.row_factory = sqlite3.Row
        try:
            with in_turn(), translated(path):
                self._database.execute(f"PRAGMA busy_timeout = {_WAIT_MS}")
                columns = self._columns("steps", _NEEDED + _OTHERS)
                ended = self._columns("episodes", ("episode_id",))["episode_id"]
                missing = [name for name in _NEEDED if columns[name] == "NULL"]
                if len(missing) == len(_NEEDED):
                    raise FormatError("there is no table 'steps'", path=str(path))
                if missing:
                    raise FormatError(f"steps: there is no column {missing[0]!r}", path=str(path))
        except BaseException:
            self._database.close()
            raise
        named = ", ".join(f"{column} AS {name}" for name, column in columns.items())
        self._step = f"SELECT {named} FROM steps WHERE episode_id = ? AND step_index = ?"
        join = "LEFT JOIN episodes ON episodes.episode_id = firsts.episode_id"
        join = join if ended != "NULL" else ""
        time = columns["timestamp"]
        self._episodes = (
            f"SELECT steps.episode_id, {columns['run_id']}, {columns['agent_id']}, {time}, last, "
            f"{ended} FROM (SELECT episode_id, min(step_index) AS step_index, max({time}) AS last "
            "FROM steps GROUP BY episode_id) AS firsts JOIN steps ON steps.episode_id IS "
            f"firsts.episode_id AND steps.step_index IS firsts.step_index {join}"
        )

    def _columns(self, table: str, names: Iterable[str]) -> dict[str, str]:
        """The SQL for the columns of a table; NULL for those that it does not have."""
        rows = self._database.execute(f"SELECT name FROM pragma_table_info('{table}')")
        known = {name for (name,) in rows}
        return {name: f"{table}.{name}" if name in known else "NULL" for name in names}

    @taking_turns
    def close(self) -> None:
        self._database.close()

    @taking_turns
    def episodes(self) -> list[OldEpisode]:
        """Every episode that has a step, in the order in which they began."""
        found: dict[str, OldEpisode] = {}
        with translated(self.path):
            rows = self._database.execute(self._episodes).fetchall()
        for name, run_id, agent_id, started_at, ended_at, end in rows:
            if not isinstance(name, str):
                raise FormatError(
                    f"expected the name of an episode, got {name!r}", path=str(self.path)
                )
            found[name] = OldEpisode(
                name,
                _name(run_id),
                None if agent_id is None else str(agent_id),
                "" if started_at is None else str(started_at),
                "" if ended_at is None else str(ended_at),
                end is not None,
            )
        return sorted(found.values(), key=lambda episode: (episode.started_at, episode.episode_id))

    @taking_turns
    def indices(self, episode_id: str) -> list[int]:
        """The steps that an episode has by now, ascending."""
        with translated(self.path):
            rows = self._database.execute(
                "SELECT step_index FROM steps WHERE episode_id = ? ORDER BY step_index",
                (episode_id,),
            ).fetchall()
        found = [index for (index,) in rows]
        for index in found:
            if not isinstance(index, int) or index < 0:
                raise FormatError(
                    f"episode {episode_id!r}: expected a step index, got {index!r}",
                    path=str(self.path),
                )
        return found

    @taking_turns
    def step(self, episode: OldEpisode, index: int) -> sqlite3.Row | None:
        """A step of an episode; None when it was removed meanwhile. Raises `SchemaError` when it
        is of another run."""
        with translated(self.path):
            row: sqlite3.Row | None = self._database.execute(
                self._step, (episode.episode_id, index)
            ).fetchone()
        if row is not None and _name(row["run_id"]) != episode.run_id:
            raise SchemaError(
                f"step {index} of episode {episode.episode_id!r}: expected the run "
                f"{episode.run_id!r} of the steps before, got {row['run_id']!r}"
            )
        return row


def _name(run_id: Any) -> str | None:
    """The name of a run; there may be none."""
    return None if run_id in (None, "") else str(run_id)

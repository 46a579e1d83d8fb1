"""Databases that kept observations and frames as JSON in SQLite, as they are.

steps(episode_id, step_index, action, observation, reward, terminated, truncated, info,
      render_payload, timestamp, agent_id, run_id), one row a step
episodes(episode_id, total_reward, steps, run_id), a row when an episode has ended

Nothing is ever written to them. A query is a transaction of its own and a short one, so a
program that still records there is not held up.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from stepwell.errors import FormatError
from stepwell.files.catalog import in_turn, open_readonly, taking_turns, translated

__all__ = ["OldEpisode", "OldStep", "OldTelemetry"]

_NEEDED = ("episode_id", "step_index", "action", "observation", "reward", "terminated")
_OTHERS = ("truncated", "info", "render_payload", "timestamp", "agent_id", "run_id")
_WAIT_MS = 60_000


class OldEpisode(NamedTuple):
    """An episode: what its first step says, and its own row where it has ended."""

    episode_id: str
    run_id: str | None
    agent_id: str | None
    started_at: str
    ended: bool
    total_reward: float | None
    steps: int | None


class OldStep(NamedTuple):
    """A row of the table of steps."""

    episode_id: str
    step_index: int
    action: Any
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Any
    render_payload: Any
    timestamp: Any
    agent_id: Any
    run_id: Any

    @property
    def run(self) -> str | None:
        """The name of the run; there may be none."""
        return str(self.run_id) if self.run_id not in (None, "") else None

    @property
    def where(self) -> str:
        return f"step {self.step_index} of episode {self.episode_id!r}"


class OldTelemetry:
    """One such database. Raises `FormatError` when it has no such tables."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.stat()
        with in_turn, translated(path):
            self._database = open_readonly(path)
        try:
            with in_turn, translated(path):
                self._database.execute(f"PRAGMA busy_timeout = {_WAIT_MS}")
                columns = self._columns("steps")
                missing = [name for name in _NEEDED if name not in columns]
                if not columns:
                    raise FormatError("there is no table 'steps'", path=str(path))
                if missing:
                    raise FormatError(f"steps: there is no column {missing[0]!r}", path=str(path))
                self._known = {
                    name: name if name in columns else "NULL" for name in _NEEDED + _OTHERS
                }
                self._ends = self._columns("episodes")
        except BaseException:
            self._database.close()
            raise

    def _columns(self, table: str) -> set[str]:
        found = self._database.execute(f"SELECT name FROM pragma_table_info('{table}')")
        return {name for (name,) in found}

    @taking_turns
    def close(self) -> None:
        self._database.close()

    @taking_turns
    def episodes(self) -> list[OldEpisode]:
        """Every episode that has a step, in the order in which they began."""
        known = self._known
        with translated(self.path):
            ids = [i for (i,) in self._database.execute("SELECT DISTINCT episode_id FROM steps")]
            ends = self._endings()
            found = []
            for episode_id in ids:
                if not isinstance(episode_id, str):
                    raise FormatError(
                        f"expected the name of an episode, got {episode_id!r}", path=str(self.path)
                    )
                first = self._database.execute(
                    f"SELECT {known['run_id']}, {known['agent_id']}, {known['timestamp']} "
                    "FROM steps WHERE episode_id = ? ORDER BY step_index LIMIT 1",
                    (episode_id,),
                ).fetchone()
                if first is None:  # removed meanwhile
                    continue
                run_id, agent_id, started_at = (None if v is None else str(v) for v in first)
                run_id = run_id or None
                end = ends.get(episode_id)
                found.append(
                    OldEpisode(
                        episode_id, run_id, agent_id, started_at or "", end is not None,
                        *(end or (None, None)),
                    )
                )  # fmt: skip
        return sorted(found, key=lambda episode: (episode.started_at, episode.episode_id))

    def _endings(self) -> dict[str, tuple[float | None, int | None]]:
        if "episode_id" not in self._ends:
            return {}
        total = "total_reward" if "total_reward" in self._ends else "NULL"
        steps = "steps" if "steps" in self._ends else "NULL"
        rows = self._database.execute(f"SELECT episode_id, {total}, {steps} FROM episodes")
        return {
            name: (
                float(reward) if isinstance(reward, int | float) else None,
                count if isinstance(count, int) else None,
            )
            for name, reward, count in rows
        }

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
    def steps(self, episode_id: str, indices: Iterable[int], most_bytes: int) -> list[OldStep]:
        """Some steps of an episode, as far as `most_bytes` go; one at least if it is there."""
        columns = ", ".join(self._known[name] for name in OldStep._fields)
        sql = f"SELECT {columns} FROM steps WHERE episode_id = ? AND step_index = ?"
        found: list[OldStep] = []
        with translated(self.path):
            for index in indices:
                row = self._database.execute(sql, (episode_id, index)).fetchone()
                if row is None:
                    continue
                step = OldStep(*row)
                found.append(step)
                blobs = (step.observation, step.render_payload, step.info)
                most_bytes -= sum(len(b) for b in blobs if isinstance(b, str | bytes))
                if most_bytes <= 0:
                    break
        return found

"""Runs, episodes and their steps as a reader gives them, beside writers and after damage."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import FormatError
from stepwell.replay import ReplayReader, ReplayWriter
from tests import children
from tests.replays import assert_tree, camera, change, frame, observation, pose, record, record_all


def test_everything_of_an_episode(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run") as writer:
        for number in range(25):
            record(writer, number, truncated=number == 14)
            if number == 14:
                writer.end_episode(observation=observation(1000))
    with ReplayReader.open(quick_path) as reader:
        first, second = reader.episodes
        assert (first.steps, first.ended) == (15, True)
        assert (first.terminated, first.truncated) == (False, True)
        assert (second.steps, second.ended, second.final_obs_ref) == (10, False, None)
        assert first.total_reward == sum(range(15))
        found = reader.episode("run-ep0000")
        assert len(found) == 15
        assert found.rewards.tolist() == list(range(15))
        assert found.step_index.tolist() == list(range(15))
        assert_tree(found.actions, np.arange(15))
        assert found.truncated.tolist() == [False] * 14 + [True]
        assert found.frame_steps.tolist() == [0, 3, 6, 9, 12]
        assert_tree(found.frames, np.array([frame(n) for n in range(0, 15, 3)]))
        assert_tree(found.observations["camera"], np.array([camera(n) for n in range(15)]))
        assert_tree(found.observations["inner"][0], np.array([pose(n) for n in range(15)]))
        assert_tree(found.final_observation, observation(1000))
        assert [info["number"] for info in found.infos] == list(range(15))
        assert list(found.timestamps) == sorted(found.timestamps)
        assert "15 steps" in repr(found)
        some = reader.episode("run-ep0001", observations=False, frames=False)
        assert some.observations is some.frames is some.final_observation is None
        assert some.observation_steps.tolist() == list(range(10))
        with pytest.raises(KeyError, match="no episode 'run-ep0002'"):
            reader.episode("run-ep0002")


def test_queries(quick_path: Path) -> None:
    record_all(quick_path, "a", range(30))
    record_all(quick_path, "b", range(20))
    with ReplayReader.open(quick_path, next_observation=False) as reader:
        assert list(reader.recordings) == ["a", "b"]
        assert [run.state for run in reader.recordings.values()] == ["closed", "closed"]
        good = reader.where("total_reward > ?", 100)
        assert [e.episode_id for e in good.episodes] == ["a-ep0001", "a-ep0002", "b-ep0001"]
        assert len(good.where("run_id = ?", "a").runs) == 2
        assert good.runs["number"].tolist() == [1, 2, 1]
        assert good[:]["reward"].tolist() == [
            *range(10, 30),
            *range(10, 20),
        ]
        found = reader.query("SELECT count(*) AS n FROM steps")
        assert (found.columns, found.rows) == (["n"], [(50,)])
        for wrong in ("nothing = 1", "1) --", "1; DROP TABLE steps"):
            with pytest.raises(ValueError, match="where"):
                reader.where(wrong)
        with pytest.raises(ValueError, match=r"not authorized|expected"):
            reader.query("DELETE FROM steps")
        assert "50 rows" in repr(reader)


def test_recent_steps(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "a") as a, ReplayWriter(quick_path, "b") as b:
        for number in range(40):  # a minute a step, by turns; episodes of both go on at the end
            writer, agent = (a, b)[number % 2], "xy"[number // 2 % 2]
            moment = datetime(2026, 1, 1, 0, number, tzinfo=UTC)
            ends = {"terminated": number % 10 == 9, "agent_id": agent, "timestamp": moment}
            record(writer, number, **ends)
    with ReplayReader.open(quick_path) as reader:
        for n in (1, 7, 40, 100):
            found = reader.recent_steps(n)
            assert [step.reward for step in found] == list(range(40))[-n:]
        for step, number in zip(found, range(40), strict=True):
            assert_tree(step.observation, observation(number))
            assert_tree(step.frame, frame(number) if number % 3 == 0 else None)
            assert (step.action, step.info) == (number, {"number": number})
            assert (step.run_id, step.agent_id) == ("ab"[number % 2], "xy"[number // 2 % 2])
            assert step.timestamp == f"2026-01-01T00:{number:02}:00.000000+00:00"
        bare = reader.recent_steps(2, observations=False, frames=False)
        assert [(step.observation, step.frame) for step in bare] == [(None, None)] * 2
        chosen = reader.where("run_id = 'a' AND ended").recent_steps(3)
        assert [step.reward for step in chosen] == []
        chosen = reader.where("run_id = 'b' AND ended").recent_steps(3)
        assert [step.reward for step in chosen] == [31, 35, 39]
        with pytest.raises(ValueError, match="n: expected at least 1, got 0"):
            reader.recent_steps(0)
        with pytest.raises(TypeError, match="float"):
            reader.recent_steps(2.5)  # type: ignore[arg-type]
    change(quick_path, "UPDATE steps SET obs_ref = 'nonsense' WHERE reward = 39")
    with ReplayReader.open(quick_path) as reader, pytest.raises(FormatError, match="recent_steps"):
        reader.recent_steps(5)
    change(quick_path, "DELETE FROM steps WHERE reward = 38")
    with ReplayReader.open(quick_path) as reader, pytest.raises(FormatError, match="steps, got"):
        reader.recent_steps(5)


def test_a_step_by_its_frame(quick_path: Path) -> None:
    """By an index, which a writer adds to a database of before."""
    record_all(quick_path, "run", range(10))
    change(quick_path, "DROP INDEX idx_steps_frame_ref")
    record_all(quick_path, "run", range(10, 20))
    with ReplayReader.open(quick_path) as reader:
        sql = "SELECT reward FROM steps WHERE frame_ref = 'h5://run/frames/5'"
        assert reader.query(sql).rows == [(15.0,)]
    with closing(sqlite3.connect(quick_path / "telemetry" / "telemetry.sqlite")) as database:
        ((*_, plan),) = database.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()
    assert "idx_steps_frame_ref" in plan


def test_what_is_not_there(quick_path: Path) -> None:
    with pytest.raises(FormatError, match="expected a replay store, got an empty folder"):
        ReplayReader.open(quick_path)
    with pytest.raises(FileNotFoundError):
        ReplayReader.open(quick_path / "nothing")
    (quick_path / "telemetry").mkdir()
    (quick_path / "telemetry" / "telemetry.sqlite").touch()  # a writer that was killed at once
    with pytest.raises(FileNotFoundError, match="no replay store yet"):
        ReplayReader.open(quick_path)
    record_all(quick_path, "run", range(3))
    assert len(ReplayReader.open(quick_path).episodes) == 1


@pytest.mark.parametrize(
    ("table", "what", "value"),
    [
        ("episodes", "final_obs_ref", "nonsense"),
        ("episodes", "final_obs_ref", "h5://other/observations/0"),
        ("episodes", "final_obs_ref", "h5://run/frames/0"),
        ("episodes", "number", "one"),
        ("episodes", "steps", b"x"),
        ("episodes", "run_id", "other"),
        ("runs", "steps", 10**12),
        ("runs", "steps", 2**62),
    ],
)
def test_numbers_of_a_damaged_database(quick_path: Path, table: str, what: str, value: Any) -> None:
    record_all(quick_path, "run", range(20))
    change(quick_path, f"UPDATE {table} SET {what} = ?", value)
    with ReplayReader.open(quick_path) as reader, pytest.raises(FormatError):
        reader.take([0])


@pytest.mark.parametrize("info", [b"{", b"\xff\xfe", b"[1]", "text", b"[" * 10**5])
def test_damaged_infos(quick_path: Path, info: Any) -> None:
    record_all(quick_path, "run", range(3))
    change(quick_path, "UPDATE steps SET info = ? WHERE step_index = 1", info)
    with ReplayReader.open(quick_path) as reader:
        found = reader.episode("run-ep0000")
        with pytest.raises(FormatError, match="run-ep0000"):
            _ = found.infos


@pytest.mark.parametrize(
    ("column", "value", "error"),
    [
        ("obs_ref", "nonsense", FormatError),
        ("obs_ref", "h5://../../etc/observations/1", FormatError),
        ("obs_ref", "h5://other/observations/1", (FormatError, FileNotFoundError)),
        ("obs_ref", "h5://run/observations/999", FormatError),
        ("obs_ref", "h5://run/nothing/1", FormatError),
        ("frame_ref", 3, FormatError),
        ("action", "left", FormatError),
    ],
)
def test_damaged_references(quick_path: Path, column: str, value: Any, error: Any) -> None:
    record_all(quick_path, "run", range(3))
    change(quick_path, f"UPDATE steps SET {column} = ?", value)
    with ReplayReader.open(quick_path) as reader, pytest.raises(error):
        reader.episode("run-ep0000")


def test_without_its_arrays(quick_path: Path) -> None:
    record_all(quick_path, "run", range(3))
    (quick_path / "replay" / "run.h5").unlink()
    with ReplayReader.open(quick_path) as reader:
        assert len(reader.episodes) == 1
        numbers = reader.episode("run-ep0000", observations=False, frames=False)
        assert numbers.actions.tolist() == [0, 1, 2]
        assert "run.h5" in reader.describe().health
        for call in (lambda: reader.episode("run-ep0000"), lambda: reader.take([0])):
            with pytest.raises(FileNotFoundError, match=r"run\.h5"):
                call()


def test_states_of_runs(quick_path: Path) -> None:
    script = """
import os, sys
from stepwell.replay import ReplayWriter
from tests.replays import record
writer = ReplayWriter(sys.argv[1], "killed")
record(writer, 0)
writer.commit()
os._exit(0)
"""
    children.answer(script, quick_path)
    record_all(quick_path, "closed", range(3))
    with ReplayWriter(quick_path, "recording"), ReplayReader.open(quick_path) as reader:
        states = {name: run.state for name, run in reader.recordings.items()}
        told = reader.describe().facts["recordings"]
        assert {name: run["state"] for name, run in told.items()} == states
    assert states == {"killed": "interrupted", "closed": "closed", "recording": "recording"}

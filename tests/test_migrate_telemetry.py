"""Databases that kept arrays as JSON, moved into replay stores."""

import base64
import json
import random
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import stepwell as sw
from stepwell.replay import ReplayReader, ReplayWriter
from stepwell.stores.replay.writer import _Stream
from stepwell.telemetry import (
    json_arrays,
    migrate,
    migrate_telemetry,
    validate_telemetry,
)
from tests import old_telemetry
from tests.crash.kills import Victims
from tests.old_telemetry import database, episode, picture, step
from tests.test_cli import stepwell


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Two runs with two episodes each, and one that goes on."""
    path = tmp_path / "old.sqlite"
    with database(path) as connection:
        for name in ("a-ep1", "b-ep1", "a-ep2", "b-ep2"):
            episode(connection, name, 0, 20)
        episode(connection, "a-ep3", 0, 7, over=False)
    return path


def old_rows(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute("SELECT * FROM steps")]
    return {(row["episode_id"], row["step_index"]): row for row in rows}


def assert_moved(path: Path, root: Path) -> None:
    """Everything is the same, seen by nothing but sqlite3, json and h5py."""
    wanted = old_rows(path)
    got = old_rows(root / "telemetry" / "telemetry.sqlite")
    assert set(got) == set(wanted)
    for key, row in wanted.items():
        for name in ("action", "reward", "terminated", "truncated", "timestamp", "agent_id"):
            assert got[key][name] == row[name]
        for column, ref in (("observation", "obs_ref"), ("render_payload", "frame_ref")):
            assert (row[column] is None) == (got[key][ref] is None)
            if row[column] is not None:
                _, _, run_id, dataset, index = got[key][ref].split("/")
                with h5py.File(root / "replay" / f"{run_id}.h5", swmr=True) as file:
                    array = file[dataset][int(index)]
                assert array.tolist() == json.loads(row[column])


def one(path: Path, **values: Any) -> Path:
    """A database with a single step."""
    with database(path) as connection:
        step(connection, "a-ep1", 0, **values)
    return path


def change(path: Path, episode: str, index: int, **value: Any) -> None:
    """Give a column of a step another value."""
    ((name, new),) = value.items()
    with database(path) as connection:
        connection.execute(
            f"UPDATE steps SET {name} = ? WHERE episode_id = ? AND step_index = ?",
            (new, episode, index),
        )


def moved(path: Path, root: Path) -> Any:
    """The first episode after a migration."""
    report = migrate_telemetry(path, root)
    assert report.verified == report.added == report.steps
    reader = ReplayReader.open(root)
    return reader.episode(reader.episodes[0].episode_id)


# What becomes of a database


def test_same_rows_with_references(old: Path, tmp_path: Path) -> None:
    before = old.read_bytes()
    seen: list[tuple[int, int]] = []
    report = migrate_telemetry(old, tmp_path / "new", progress=lambda *now: seen.append(now))
    assert (report.steps, report.added, report.verified, report.episodes) == (87, 87, 87, 5)
    assert seen == sorted(seen)
    assert seen[-1] == (87, 87)
    assert report.runs == {"a": "a", "b": "b"}
    assert (report.skipped, report.differences) == ([], [])
    assert report.old_bytes == len(before)
    assert report.array_bytes == sum(f.stat().st_size for f in (tmp_path / "new").rglob("*.h5"))
    assert_moved(old, tmp_path / "new")
    assert old.read_bytes() == before
    columns = ReplayReader.open(tmp_path / "new").query("SELECT * FROM steps LIMIT 1").columns
    assert "observation" not in columns


def test_episodes_are_kept(old: Path, tmp_path: Path) -> None:
    migrate_telemetry(old, tmp_path / "new")
    reader = ReplayReader.open(tmp_path / "new")
    found = {e.episode_id: e for e in reader.episodes}
    assert set(found) == {"a-ep1", "a-ep2", "a-ep3", "b-ep1", "b-ep2"}
    assert found["a-ep2"].total_reward == sum(i / 2 for i in range(20))
    assert (found["a-ep2"].steps, found["a-ep2"].terminated, found["a-ep2"].ended) == (20, 1, 1)
    assert found["a-ep2"].ended_at == "2026-11-15T10:00:19+00:00"
    assert (found["a-ep3"].steps, found["a-ep3"].ended, found["a-ep3"].ended_at) == (7, 0, None)
    assert {run.state for run in reader.recordings.values()} == {"closed"}
    with h5py.File(tmp_path / "new/replay/a.h5") as file:
        starts, lengths = file["episodes/starts"][:], file["episodes/lengths"][:]
        numbers = file["steps"][:, 0]
    assert lengths.tolist() == [20, 20]
    for start, number in zip(starts, (0, 1), strict=True):
        assert (numbers[start : start + 20] == number).all()


def test_is_a_source_that_a_writer_can_go_on_with(old: Path, tmp_path: Path) -> None:
    migrate_telemetry(old, tmp_path / "new", run_ids=["b"])
    steps = ReplayReader.open(tmp_path / "new")
    batch = steps.take(range(len(steps)))
    np.testing.assert_array_equal(batch["observation"][0], picture(sum(b"b-ep1"), (5, 4)))
    np.testing.assert_array_equal(batch["next_observation"][0], batch["observation"][1])
    with ReplayWriter(tmp_path / "new", "b", mode="a") as writer:
        refs = writer.record_step(
            reward=1, observation=picture(1, (5, 4)), action=2, frame=picture(1)
        )
    assert refs is not None
    assert refs.episode_id == "b-ep0003"  # b-ep1 and b-ep2 are taken
    assert (refs.obs_ref, refs.frame_ref) == ("h5://b/observations/40", "h5://b/frames/20")


def test_some_runs(old: Path, tmp_path: Path) -> None:
    report = migrate_telemetry(old, tmp_path / "new", run_ids=["b"])
    assert (report.steps, report.runs) == (40, {"b": "b"})
    assert list(ReplayReader.open(tmp_path / "new").recordings) == ["b"]
    for name in ("floaty", "complex64", ""):
        with pytest.raises(ValueError, match=f"expected a type of numbers, got {name!r}"):
            migrate_telemetry(old, tmp_path / "new", observations=name)


def test_a_name_with_dots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays, unless an earlier version has moved the run under another name."""
    path = tmp_path / "old.sqlite"
    with database(path) as connection:
        step(connection, "e0", 0, run_id="v1.0", observation=[1])
    assert migrate_telemetry(path, tmp_path / "new").runs == {"v1.0": "v1.0"}

    def refuse(name: str) -> str:
        raise ValueError(name)

    with monkeypatch.context() as patch:
        patch.setattr(migrate, "check_run_id", refuse)
        (before,) = migrate_telemetry(path, tmp_path / "before").runs.values()
    report = migrate_telemetry(path, tmp_path / "before")
    assert (report.added, report.runs) == (0, {"v1.0": before})


def test_names_that_no_file_may_have(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    names = ["../up", "a b", "a_b", "", None, "ü" * 200]
    with database(path) as connection:
        for i, name in enumerate(names):
            step(connection, f"e{i}", 0, run_id=name, observation=[i])
    report = migrate_telemetry(path, tmp_path / "new")
    assert report.runs["a_b"] == "a_b"
    assert report.runs["a b"].startswith("a_b-")
    assert report.runs[None] == "unnamed"
    assert len(set(report.runs.values())) == 5
    reader = ReplayReader.open(tmp_path / "new")
    for i in range(len(names)):
        assert reader.episode(f"e{i}").observations.tolist() == [[i]]
    assert migrate_telemetry(path, tmp_path / "new").added == 0


# What a BLOB may hold


@pytest.mark.parametrize(
    ("stored", "expected", "dtype"),
    [
        ([[1, 2], [3, 255]], [[1, 2], [3, 255]], "u1"),
        ([[1, 2], [3, 256]], [[1, 2], [3, 256]], "i8"),
        ([[-1, 2]], [[-1, 2]], "i8"),
        ([1, 2, 3], [1, 2, 3], "i8"),
        ([0.1, -2e-300, 1e22], [0.1, -2e-300, 1e22], "f8"),
        ([1, 0.5], [1.0, 0.5], "f8"),
        ([True, False], [True, False], "?"),
        (7, 7, "i8"),
        (0.25, 0.25, "f8"),
        ([[[1]]], [[[1]]], "u1"),
        ({"dtype": "float32", "shape": [2, 1], "data": [0.5, 2]}, [[0.5], [2]], "f4"),
        ({"__ndarray__": [[1, 2]], "dtype": "int16", "shape": [1, 2]}, [[1, 2]], "i2"),
        (
            {"data": base64.b64encode(bytes([1, 2])).decode(), "dtype": "uint8", "shape": [2]},
            [1, 2],
            "u1",
        ),
        ([2**40, -(2**40)], [2**40, -(2**40)], "i8"),
        ([2**62], [2**62], "i8"),
        (b"[NaN, -Infinity, 1]", [np.nan, -np.inf, 1], "f8"),
    ],
    ids=str,
)
def test_observations(tmp_path: Path, stored: Any, expected: Any, dtype: str) -> None:
    steps = moved(one(tmp_path / "o.sqlite", observation=stored), tmp_path / "new")
    assert steps.observations.dtype == dtype
    np.testing.assert_array_equal(steps.observations[0], expected)
    assert steps.infos == [{}]


def test_dicts_of_arrays(tmp_path: Path) -> None:
    seen = {"image": picture(0), "mission": "find the key", "inner": {"x": [0.5, 1.0]}}
    path = one(tmp_path / "o.sqlite", observation=seen, info={"lives": 2})
    steps = moved(path, tmp_path / "new")
    np.testing.assert_array_equal(steps.observations["image"][0], seen["image"])
    assert steps.observations["inner"]["x"].tolist() == [[0.5, 1.0]]
    assert steps.infos == [{"lives": 2, "observation": {"mission": "find the key"}}]


@pytest.mark.parametrize("shown", ["rgb", "frame", "data", None])
def test_rendered_dicts(tmp_path: Path, shown: str | None) -> None:
    rest = {"mode": "ansi", "grid": [["S", "F"]]}
    payload = rest if shown is None else {**rest, shown: picture(3)}
    steps = moved(one(tmp_path / "o.sqlite", render_payload=payload), tmp_path / "new")
    assert (steps.frames is None) == (shown is None)
    assert shown is None or (steps.frames[0] == picture(3)).all()
    assert steps.infos == [{"render_payload": rest}]


def test_nothing_and_null(tmp_path: Path) -> None:
    path = tmp_path / "o.sqlite"
    with database(path) as connection:
        step(connection, "a-ep1", 0, observation=None, action=None)
        step(connection, "a-ep1", 1, observation=b"null", action=None)
        step(connection, "a-ep1", 2, observation=[1.5], action=None)
    steps = moved(path, tmp_path / "new")
    assert steps.observation_steps.tolist() == [2]
    assert (steps.frames, steps.actions) == (None, None)


def test_actions_that_are_arrays(tmp_path: Path) -> None:
    steps = moved(one(tmp_path / "o.sqlite", action=b"[0.5, -1]"), tmp_path / "new")
    assert steps.actions.tolist() == [[0.5, -1.0]]
    assert moved(one(tmp_path / "p.sqlite", action=b"3"), tmp_path / "2").actions.tolist() == [3]


def test_float32_when_asked_for(tmp_path: Path) -> None:
    path = one(tmp_path / "o.sqlite", observation=[0.1, 0.2])
    report = migrate_telemetry(path, tmp_path / "new", observations="float32")
    assert report.verified == 1
    seen = ReplayReader.open(tmp_path / "new").episode("a-ep1").observations
    assert seen.tolist() == np.array([[0.1, 0.2]], np.float32).tolist()
    assert validate_telemetry(path, tmp_path / "new").differences == []


def test_the_first_steps_decide(tmp_path: Path) -> None:
    path = tmp_path / "o.sqlite"
    with database(path) as connection:
        for i, seen in enumerate(([[1, 2]], [[3, 400]], [[0.5, 1]])):
            step(connection, "a-ep1", i, observation=seen)
    steps = moved(path, tmp_path / "new")
    assert steps.observations.tolist() == [[[1, 2]], [[3, 400]], [[0.5, 1]]]


def test_step_indices_that_begin_later(tmp_path: Path) -> None:
    path = tmp_path / "o.sqlite"
    with database(path) as connection:
        for i in (1, 2, 5):
            step(connection, "a-ep1", i, observation=[i])
    steps = moved(path, tmp_path / "new")
    assert steps.step_index.tolist() == [1, 2, 5]
    assert steps.episode.dropped == 3


@pytest.mark.parametrize(
    "text",
    [
        b"[[1, 2], [3]]", b"[[1, 2], [3, 4, 5]]", b"[1, , 2]", b"[1 2]", b"[1.2.3]", b"[1, 2",
        b"[1, 2]]", b"[[1], 2]", b"[1, [2]]", b"[--1]", b"[]", b"[[]]", b"[1e]", b"[+1]", b"[1,]",
        b"[,1]", b"[1-2]", b"[-]", b"]", b"[[1,2],[3,4]", b"[ 1 , 2 ]",
        b"[99999999999999999999]", b'"[[1,2]]"', b'{"a": "[[1, 2]]"}',
        b'{"a": [[1, 2]], "b": [[3, 4]]}', b'[[1, 2], ["x", 4]]', b'[{"a": [[1]]}]', b"[01]",
        b"[-0]", b"[[-5, 10], [100, -7]]",
        b"[1 , 2]", b"[\n1,\t2]", b"[1.5, 2.5e+3]", b"[.5]", b"[5.]",
        b'{"a": [[1, 2]], "b": "x [[3]]"}',
    ],
)  # fmt: skip
def test_json_as_json_reads_it(text: bytes) -> None:
    """Reading by NumPy finds what reading by `json` finds, or fails where it fails."""
    try:
        expected = json.loads(text)
    except ValueError:
        expected = ValueError
    try:
        tree, rest = json_arrays.parse(text)
    except ValueError:
        assert expected is ValueError or text in (b"[[1, 2], [3]]", b"[[1, 2], [3, 4, 5]]")
        return
    plain = json_arrays._listed(tree)
    if isinstance(tree, dict) and isinstance(rest, dict):
        plain = {**plain, **rest}
    elif tree is None:
        plain = rest
    assert repr(plain) == repr(expected)


# What is wrong with it


def test_not_such_a_database(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        migrate_telemetry(tmp_path / "absent", tmp_path / "new")
    path = tmp_path / "o.sqlite"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(sw.FormatError, match="not a database"):
        migrate_telemetry(path, tmp_path / "new")
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        with pytest.raises(sw.FormatError, match="no table 'steps'"):
            migrate_telemetry(path, tmp_path / "new")
        connection.execute(
            "CREATE TABLE steps (episode_id TEXT, step_index INTEGER, action, reward)"
        )
        with pytest.raises(sw.FormatError, match="no column 'observation'"):
            migrate_telemetry(path, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_few_columns_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "o.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TABLE steps (episode_id, step_index, action, observation, reward, terminated)"
        )
        connection.execute("INSERT INTO steps VALUES ('e', 0, 1, '[1.5]', 2, 1)")
    steps = moved(path, tmp_path / "new")
    assert (steps.observations.tolist(), steps.episode.run_id) == ([[1.5]], "unnamed")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"observation": b"[1, 2"}, "step 1 of episode 'a-ep1': Expecting"),
        ({"observation": b"\xff\xfe"}, "step 1 of episode 'a-ep1'"),
        (
            {"observation": [1.0, 2.0, 3.0]},
            r"expected float64 \(2,\) as in the steps before, got float64 \(3,\)",
        ),
        ({"observation": [[1.0], [2.0, 3.0]]}, "lists of equal lengths"),
        ({"observation": {"x": [1.0, 2.0]}}, r"expected \['observations'\]"),
        ({"observation": {"a/b": [1.0]}}, "cannot be the name of a dataset"),
        ({"render_payload": [[300]]}, "whole numbers from 0 to 255"),
        ({"render_payload": [[0.5]]}, "whole numbers from 0 to 255"),
        ({"reward": None}, "reward: expected a number, got None"),
        ({"info": b"{"}, "step 1 of episode 'a-ep1': Expecting"),
        ({"reward": float("inf")}, "reward: expected a finite number that float64 has, got inf"),
        ({"terminated": "false"}, "terminated: expected 0 or 1, got 'false'"),
        ({"truncated": 2}, "truncated: expected 0 or 1, got 2"),
        ({"observation": [9007199254740993, 1]}, "expected float64 as in the first steps"),
        ({"observation": [9007199254740993, 0.5]}, "9007199254740993 among fractions"),
        ({"observation": b"[1e999, 0.5]"}, "a number that is too large"),
        ({"observation": b"[" * 100_000 + b"]" * 100_000}, "nested too deeply"),
        ({"info": b'{"a":' * 5000 + b"1" + b"}" * 5000}, "nested too deeply"),
        ({"observation": {"dtype": "uint8", "data": [300]}}, "no uint8"),
        ({"observation": {"dtype": "what", "data": [3]}}, "not an array"),
        ({"run_id": "other"}, "expected the run 'a' of the steps before, got 'other'"),
    ],
    ids=lambda each: str(each)[:60],
)
def test_bad_steps(tmp_path: Path, bad: dict[str, Any], message: str) -> None:
    path = tmp_path / "o.sqlite"
    with database(path) as connection:
        for i in range(4):
            step(connection, "a-ep1", i, **{"observation": [0.5, i], **(bad if i == 1 else {})})
    with pytest.raises(sw.SchemaError, match=message):
        migrate_telemetry(path, tmp_path / "new")
    if "run_id" in bad:
        return
    report = migrate_telemetry(path, tmp_path / "new", skip_bad=True)
    ((where, reason),) = report.skipped
    assert where == path
    assert reason.startswith("step 1 of episode 'a-ep1': ")
    assert report.added == report.verified
    assert ReplayReader.open(tmp_path / "new").episode("a-ep1").step_index.tolist() == [0, 2, 3]


def test_a_reward_that_float64_has_not(tmp_path: Path) -> None:
    path = tmp_path / "o.sqlite"
    with database(path) as connection:
        connection.execute("DROP TABLE steps")  # for one whose rewards have no type
        names = "episode_id, step_index, action, observation, reward, terminated"
        connection.execute(f"CREATE TABLE steps ({names})")
        connection.execute("INSERT INTO steps VALUES ('e', 0, 1, '[1.5]', 9007199254740993, 0)")
    with pytest.raises(sw.SchemaError, match="reward: expected a finite number"):
        migrate_telemetry(path, tmp_path / "new")


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_an_end_in_the_middle_of_an_episode(
    tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused; in stores that version 0.1 made of such, rewards do not reach across it."""
    path = tmp_path / "o.sqlite"
    with database(path) as connection:
        for i in range(6):
            flags = {end: int(i == 2), "reward": 1.0, "observation": [i, 0.5]}
            step(connection, "a-ep1", i, **flags)
    with pytest.raises(sw.SchemaError, match=r"step 3 of episode 'a-ep1': .* has ended"):
        migrate_telemetry(path, tmp_path / "part")
    report = migrate_telemetry(path, tmp_path / "part", skip_bad=True)
    assert (report.added, len(report.skipped)) == (0, 3)  # the three before were moved already
    monkeypatch.setattr(_Stream, "over", property(lambda _: False, lambda *_: None))
    migrate_telemetry(path, tmp_path / "new")
    with ReplayReader.open(tmp_path / "new", n_step=3, gamma=1.0, next_observation=False) as steps:
        assert steps[:]["reward"].tolist() == [3, 2, 1, 3, 2, 1]
        assert steps[:][end].tolist() == [True, True, True, False, False, False]
    with ReplayReader.open(tmp_path / "new") as steps:  # what came after step 2 is not of it
        both = zip(steps[:]["observation"][:, 0], steps[:]["next_observation"][:, 0], strict=True)
        known = {int(now): int(later) for now, later in both if now != 2}
        assert known == {0: 1, 1: 2, 3: 4, 4: 5}


def test_what_does_not_fit_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "_BATCH_STEPS", 2)
    path = tmp_path / "o.sqlite"
    with database(path) as connection:
        for i in range(4):
            step(connection, "a-ep1", i, observation=[[i * 100, 0]])
    with pytest.raises(sw.SchemaError, match=r"step 3 .*expected uint8.*300; choose another type"):
        migrate_telemetry(path, tmp_path / "new")
    shutil.rmtree(tmp_path / "new")
    assert migrate_telemetry(path, tmp_path / "new", observations="int32").verified == 4


def test_another_run_of_that_name(old: Path, tmp_path: Path) -> None:
    with ReplayWriter(tmp_path / "new", "a") as writer:
        writer.record_step(reward=1)
    with pytest.raises(sw.SchemaError, match="the store has one with an episode 'a-ep0000'"):
        migrate_telemetry(old, tmp_path / "new")
    other = tmp_path / "other.sqlite"
    with database(other) as connection:
        step(connection, "a-ep1", 0, reward=5, observation=picture(1, (5, 4)))
    migrate_telemetry(other, tmp_path / "second")
    with pytest.raises(
        sw.SchemaError, match=r"a different one: step 0 .* reward: expected 0\.0, got 5"
    ):
        migrate_telemetry(old, tmp_path / "second")
    third = tmp_path / "third.sqlite"
    with database(third) as connection:
        step(connection, "a-ep1", 0, run_id="c")
    with pytest.raises(sw.SchemaError, match="one of the run 'a', this one is of 'c'"):
        migrate_telemetry(third, tmp_path / "second")


def test_not_into_itself(tmp_path: Path) -> None:
    (tmp_path / "telemetry").mkdir()
    path = one(tmp_path / "telemetry/telemetry.sqlite", observation=[1])
    before = path.read_bytes()
    with pytest.raises(ValueError, match="choose another root"):
        migrate_telemetry(path, tmp_path)
    assert path.read_bytes() == before


# Again, beside a writer, after a kill


def test_again_adds_what_is_new(old: Path, tmp_path: Path) -> None:
    migrate_telemetry(old, tmp_path / "new")
    assert migrate_telemetry(old, tmp_path / "new").added == 0
    with database(old) as connection:
        episode(connection, "a-ep3", 7, 30)
        episode(connection, "c-ep1", 0, 3)
        report = migrate_telemetry(old, tmp_path / "new")  # what is not committed is not there
        assert report.added == 0
    report = migrate_telemetry(old, tmp_path / "new")
    assert (report.added, report.verified, report.steps) == (26, 26, 113)
    assert_moved(old, tmp_path / "new")
    found = {e.episode_id: e for e in ReplayReader.open(tmp_path / "new").episodes}
    assert (found["a-ep3"].steps, found["a-ep3"].ended, found["a-ep3"].number) == (30, True, 2)
    with h5py.File(tmp_path / "new/replay/a.h5") as file:
        assert file["episodes/starts"][:].tolist() == [0, 20, 40]
        assert file["episodes/lengths"][:].tolist() == [20, 20, 30]


def test_an_end_that_comes_later(old: Path, tmp_path: Path) -> None:
    migrate_telemetry(old, tmp_path / "new")
    with database(old) as connection:
        connection.execute("INSERT INTO episodes VALUES ('a-ep3', 10.5, 9, 'a')")
    migrate_telemetry(old, tmp_path / "new")
    (found,) = ReplayReader.open(tmp_path / "new").where("episode_id = 'a-ep3'").episodes
    assert (found.over, found.steps, found.ended) == (True, 7, False)


def test_a_step_that_comes_late(old: Path, tmp_path: Path) -> None:
    with database(old) as connection:
        connection.execute("DELETE FROM steps WHERE episode_id = 'a-ep3' AND step_index = 2")
    migrate_telemetry(old, tmp_path / "new")
    with database(old) as connection:
        step(connection, "a-ep3", 2, observation=picture(0, (5, 4)))
    with pytest.raises(sw.SchemaError, match=r"step 2 .* expected at least 7, up to .*, got 2"):
        migrate_telemetry(old, tmp_path / "new")
    report = migrate_telemetry(old, tmp_path / "new", skip_bad=True)
    assert (report.added, len(report.skipped)) == (0, 1)


def test_validate(old: Path, tmp_path: Path) -> None:
    migrate_telemetry(old, tmp_path / "new")
    report = validate_telemetry(old, tmp_path / "new")
    assert (report.verified, report.differences) == (87, [])
    change(old, "b-ep1", 3, reward=9)
    change(old, "a-ep1", 4, observation=old_telemetry.blob(picture(99, (5, 4))))
    change(old, "a-ep2", 6, render_payload=None)
    change(old, "a-ep2", 1, info='{"a": 1}')
    assert validate_telemetry(old, tmp_path / "new").differences == [
        "step 4 of episode 'a-ep1': observations: other arrays",
        "step 1 of episode 'a-ep2': info: expected {'a': 1}, got {}",
        "step 6 of episode 'a-ep2': frames: other arrays",
        "step 3 of episode 'b-ep1': reward: expected 9.0, got 1.5",
    ]


def test_damage_is_seen_when_read_back(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = ReplayWriter.record_step

    def wrong(self: ReplayWriter, **step: Any) -> Any:
        if step["step_index"] == 11:
            step["observation"] = 0 * step["observation"]
        return record(self, **step)

    monkeypatch.setattr(ReplayWriter, "record_step", wrong)
    with pytest.raises(sw.FormatError, match="read back: step 11 of episode 'a-ep1': observations"):
        migrate_telemetry(old, tmp_path / "new")


@pytest.mark.parametrize("left", ["nothing", "a log", "a journal"])
def test_a_store_whose_writer_was_killed_before_its_first_commit(
    old: Path, tmp_path: Path, left: str
) -> None:
    begun = tmp_path / "new/telemetry/telemetry.sqlite"
    begun.parent.mkdir(parents=True)
    begun.touch()
    with closing(sqlite3.connect(tmp_path / "killed.sqlite", isolation_level=None)) as connection:
        if left == "a log":
            connection.execute("PRAGMA journal_mode = WAL")
            shutil.copy(tmp_path / "killed.sqlite", begun)
        elif left == "a journal":
            connection.execute("PRAGMA synchronous = OFF")  # so that the journal counts at once
            for version in (1, 0):
                connection.execute(f"PRAGMA user_version = {version}")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("PRAGMA user_version = 1")
            shutil.copy(tmp_path / "killed.sqlite", begun)
            shutil.copy(tmp_path / "killed.sqlite-journal", f"{begun}-journal")
    with pytest.raises(FileNotFoundError):
        ReplayReader.open(tmp_path / "new")
    migrate_telemetry(old, tmp_path / "new")
    assert_moved(old, tmp_path / "new")


def work(path: Path, first: int) -> Iterator[int]:
    migrate._BATCH_STEPS = 3
    migrate_telemetry(path / "old.sqlite", path / "new")
    yield first
    signal.pause()


def test_kills(quick_path: Path) -> None:
    path = quick_path / "old.sqlite"
    with database(path) as connection:
        for name in ("a-ep1", "b-ep1", "a-ep2", "c-ep1"):
            episode(connection, name, 0, 25)
    chance = random.Random()
    lives, longest_s = 0, 0.05
    with Victims("tests.test_migrate_telemetry:work", quick_path) as victims:
        while victims.kill(1, chance.uniform(0, longest_s)) != 1:
            lives += 1
            longest_s *= 1.05
            with suppress(FileNotFoundError, sw.FormatError):  # there is nothing yet
                ReplayReader.open(quick_path / "new")
                assert validate_telemetry(path, quick_path / "new").differences == []
    assert lives > 1
    assert_moved(path, quick_path / "new")
    reader = ReplayReader.open(quick_path / "new")
    assert {run.state for run in reader.recordings.values()} == {"closed"}
    assert all(e.ended and e.steps == 25 for e in reader.episodes)
    with h5py.File(quick_path / "new/replay/a.h5") as file:
        assert file["episodes/lengths"][:].tolist() == [25, 25]


# The command


def test_command(old: Path, tmp_path: Path) -> None:
    done = stepwell("convert", old, tmp_path / "new", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert (facts["from"], facts["to"], facts["rows"]) == ("telemetry", "replay", 87)
    assert (facts["runs"], facts["resumed_at"]) == (2, 0)
    with database(old) as connection:
        step(connection, "d-ep1", 0, run_id="d/e", observation=b"[")
    done = stepwell("convert", old, tmp_path / "new")
    assert done.returncode == 2
    assert done.stderr.startswith("error: step 0 of episode 'd-ep1': Expecting")
    done = stepwell("convert", old, tmp_path / "new", "--skip-bad")
    assert done.returncode == 0
    assert done.stderr.startswith(f"skipped: {old}: step 0 of episode 'd-ep1': Expecting")
    for options in (("--force",), ("--where", "1"), ("--to", "steps")):
        assert stepwell("convert", old, tmp_path / "new", *options).returncode == 2

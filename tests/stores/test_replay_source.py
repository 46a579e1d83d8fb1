"""Steps of a replay store as a source: the exam, and what follows a step, against plain Python."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from stepwell import FormatError, SchemaError
from stepwell.replay import ReplayReader, ReplayWriter
from stepwell.source import Source
from stepwell.stores.replay.disk import RunDisk
from tests import scaled
from tests.contract import Expected, SourceContract, assert_batch
from tests.replays import camera, flipped, frame, places_of, pose, record, record_all

EPISODES = [range(0, 7), range(7, 8), range(8, 20), range(20, 31), range(31, 40)]


def seen(number: int) -> dict[str, Any]:
    return {"camera": camera(number), "pose": pose(number)}


def record_episodes(
    root: Path, episodes: Sequence[range], run_id: str = "run", first: int = 0
) -> None:
    """Episodes that end in each way; two agents take turns."""
    with ReplayWriter(root, run_id) as writer:
        for i, numbers in enumerate(episodes, first):
            agent = f"agent {i % 2}"
            for number in numbers:
                last = number == numbers[-1]
                writer.record_step(
                    reward=number / 4,
                    observation=seen(number),
                    action=np.array([number, -number], np.int32),
                    frame=frame(number),
                    terminated=last and i % 3 == 0,
                    truncated=last and i % 3 == 1,
                    agent_id=agent,
                )
            writer.end_episode(observation=seen(numbers[-1] + 1000), agent_id=agent)


def expected_steps(episodes: Sequence[range], frames: bool = False) -> Expected:
    numbers = [n for e in episodes for n in e]
    after = [n + 1000 if n == e[-1] else n + 1 for e in episodes for n in e]
    ends = [(n == e[-1], i % 3) for i, e in enumerate(episodes) for n in e]
    made: Expected = {
        "observation/camera": np.array([camera(n) for n in numbers]),
        "observation/pose": np.array([pose(n) for n in numbers]),
        "action": np.array([[n, -n] for n in numbers], np.int32),
    }
    if frames:
        made["frame"] = np.array([frame(n) for n in numbers])
    made["next_observation/camera"] = np.array([camera(n) for n in after])
    made["next_observation/pose"] = np.array([pose(n) for n in after])
    made["reward"] = np.array(numbers) / 4
    made["terminated"] = np.array([last and kind == 0 for last, kind in ends])
    made["truncated"] = np.array([last and kind == 1 for last, kind in ends])
    return made


class TestSteps(SourceContract):
    episodes: ClassVar[Sequence[range]] = EPISODES
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def expected(self) -> Expected:
        return expected_steps(self.episodes, **self.options)

    @pytest.fixture(scope="class")
    @classmethod
    def root(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        root = tmp_path_factory.mktemp("replay")
        record_episodes(root, cls.episodes)
        return root

    @pytest.fixture
    def source(self, root: Path) -> Source:
        return ReplayReader.open(root, **self.options)

    def runs(self, expected: Expected) -> list[range]:
        return list(self.episodes)


class TestFrames(TestSteps):
    options: ClassVar[dict[str, Any]] = {"frames": True}


class TestSeveralRuns(TestSteps):
    """Two runs of which one was interrupted and gone on with."""

    @pytest.fixture(scope="class")
    @classmethod
    def root(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        root = tmp_path_factory.mktemp("replay")
        record_episodes(root, EPISODES[:3], "a")
        disk = RunDisk(root, "a")
        disk.abandon()
        record_episodes(root, EPISODES[3:], "b", 3)
        return root


# What follows a step, against plain Python.

Episode = tuple[list[tuple[int, float]], int, str, bool]
"""Step indices and rewards of the steps that are there, how many there were, how it ended, and
whether something was seen after it."""


@st.composite
def an_episode(draw: st.DrawFn) -> Episode:
    whole = draw(st.integers(1, 12))
    there = [i for i in range(whole) if draw(st.integers(0, 9)) > 1]
    rewards = [float(draw(st.integers(-5, 5))) for _ in there]
    end = draw(st.sampled_from(["terminated", "truncated", "ended", "open"]))
    return list(zip(there, rewards, strict=True)), whole, end, draw(st.booleans())


def number_of(episode: int, index: int) -> int:
    return episode * 100 + index


def follow(episodes: Sequence[Episode], n: int, gamma: float) -> list[dict[str, Any]]:
    """The rows of a source, one step at a time."""
    rows = []
    for e, (steps, whole, end, final) in enumerate(episodes):
        rewards = dict(steps)
        for index, _ in steps:
            total, discount, at = 0.0, 1.0, index
            for k in range(n):
                if index + k not in rewards:
                    break
                at = index + k
                total += gamma**k * rewards[at]
                discount = gamma ** (k + 1)
            last = at == whole - 1
            terminated, truncated = last and end == "terminated", last and end == "truncated"
            after: int | None = None
            if at + 1 in rewards:
                after = number_of(e, at + 1)
            elif last and final and end != "open":
                after = number_of(e, 99)
            if after is None and not terminated:
                continue
            rows.append(
                {
                    "observation": pose(number_of(e, index)),
                    "action": number_of(e, index),
                    "next_observation": np.zeros(3, "f4") if after is None else pose(after),
                    "reward": total,
                    "terminated": terminated,
                    "truncated": truncated,
                    "discount": 0.0 if terminated else discount,
                }
            )
    return rows


def record_plan(root: Path, episodes: Sequence[Episode], monkeypatch: pytest.MonkeyPatch) -> None:
    """Record exactly these steps; the others are dropped, as by a queue that is full."""
    with ReplayWriter(root, "run", when_full="drop") as writer:
        for e, (steps, whole, end, final) in enumerate(episodes):
            rewards = dict(steps)
            for index in range(whole):
                for name in ("has_room", "wait_for_room"):
                    kept = index in rewards
                    monkeypatch.setattr(writer._pipeline, name, lambda _, kept=kept: kept)
                last = index == whole - 1
                writer.record_step(
                    reward=rewards.get(index, 77.0),
                    observation=pose(number_of(e, index)),
                    action=number_of(e, index),
                    terminated=last and end == "terminated",
                    truncated=last and end == "truncated",
                    agent_id=str(e),
                )
            if end != "open":
                monkeypatch.setattr(writer._pipeline, "has_room", lambda _: True)
                writer.end_episode(
                    observation=pose(number_of(e, 99)) if final else None, agent_id=str(e)
                )


@settings(max_examples=scaled(60, smallest=10))
@given(
    episodes=st.lists(an_episode(), min_size=1, max_size=5),
    n=st.sampled_from([1, 2, 3, 5, 20]),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
)
def test_what_follows(
    tmp_path_factory: pytest.TempPathFactory, episodes: list[Episode], n: int, gamma: float
) -> None:
    root = tmp_path_factory.mktemp("replay")
    with pytest.MonkeyPatch.context() as patch:
        record_plan(root, episodes, patch)
    source = ReplayReader.open(root, n_step=n, gamma=gamma)
    assert source.verify().problems == ()
    want = follow(episodes, n, gamma)
    assert len(source) == len(want)
    if not want:
        return
    found = source[:]
    for name in found:
        column = np.array([row[name] for row in want]).astype(found[name].dtype)
        if name in ("reward", "discount"):
            np.testing.assert_allclose(found[name], column, rtol=1e-12, atol=1e-12)
        else:
            np.testing.assert_array_equal(found[name], column)
    assert ("discount" in found) == (n > 1)


# Mistakes and odd stores.


@pytest.mark.parametrize("options", [{"n_step": 0}, {"gamma": -0.1}, {"gamma": 1.1}], ids=repr)
def test_options(quick_path: Path, options: dict[str, Any]) -> None:
    record_all(quick_path, "run", range(3))
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}: expected"):
        ReplayReader.open(quick_path, **options)


def test_runs_that_do_not_fit_together(quick_path: Path) -> None:
    for run, size in (("a", 4), ("b", 5)):
        with ReplayWriter(quick_path, run) as writer:
            for _ in range(2):
                writer.record_step(
                    reward=0, observation=np.zeros(3), frame=np.zeros((size, size), np.uint8)
                )
    with ReplayWriter(quick_path, "c") as writer:
        writer.record_step(reward=0, observation=np.zeros(4))
    with ReplayReader.open(quick_path, run=["a", "b"]) as both:
        assert len(both) == len(both[:]["reward"]) == 2
    with (
        ReplayReader.open(quick_path, run=["a", "b"], frames=True) as both,
        pytest.raises(SchemaError, match=r"'a' .* 'b'.* run='b'"),
    ):
        both.take([0])
    with ReplayReader.open(quick_path) as reader:
        for call in (lambda: reader.schema, lambda: reader.take([0]), lambda: reader[0]):
            with pytest.raises(SchemaError, match=r"'a' .* 'c'.* run='c'"):
                call()
        assert reader.verify().ok
        assert len(reader.runs) == len(reader.episodes) == reader.describe().runs == 3
        assert reader.runs.counts.tolist() == [1, 1, 0]
        assert len(reader) == reader.describe().rows == 2
        assert reader.describe().fields == {}
        assert "run='c'" in reader.describe().facts["unlike"]
        assert reader.query("SELECT sum(steps) FROM episodes").rows == [(5,)]
        assert "3 runs" in repr(reader)
        chosen = reader.where("run_id != 'c'")
        assert len(chosen[:]["observation"]) == 2
    with pytest.raises(KeyError, match="no run 'd'"):
        ReplayReader.open(quick_path, run="d")


def test_stores_with_little_in_them(quick_path: Path) -> None:
    ReplayWriter(quick_path, "empty").close()
    with ReplayReader.open(quick_path) as reader:
        assert len(reader.episodes) == len(reader) == len(reader.runs) == 0
        assert reader[:]["reward"].tolist() == []
    with ReplayReader.open(quick_path, run="empty") as reader:
        assert len(reader) == 0
    with ReplayWriter(quick_path, "numbers") as writer:
        for number in range(5):
            writer.record_step(reward=number)
    with ReplayReader.open(quick_path) as reader:
        assert reader[:]["reward"].tolist() == [0, 1, 2, 3, 4]
        assert list(reader.schema) == ["reward", "terminated", "truncated"]
        assert list(reader.where("0").schema) == ["reward", "terminated", "truncated"]


def test_conditions_are_of_the_moment_too(quick_path: Path) -> None:
    record_all(quick_path, "run", range(15))
    reader = ReplayReader.open(quick_path, next_observation=False)
    growing = reader.where("NOT ended")
    assert growing[:]["action"].tolist() == [10, 11, 12, 13, 14]
    with ReplayWriter(quick_path, "run", mode="a") as writer:
        record(writer, 15, terminated=True)
        record(writer, 16)
    assert len(reader.where("1")) == len(reader) == 15
    assert len(reader.where("number > 1")) == 0
    for part, count in ((reader, 2), (growing, 1)):
        assert part.query("SELECT count(*) FROM episodes").rows == [(count,)]
    assert reader.query("SELECT count(*) FROM steps").rows == [(17,)]
    assert len(reader.where("episode_id IN (SELECT episode_id FROM steps WHERE reward > 9)")) == 5
    assert growing.refresh()
    assert growing[:]["action"].tolist() == [10, 11, 12, 13, 14, 16]
    assert reader.refresh()
    assert len(reader.where("number > 1")) == 2
    again = pickle.loads(pickle.dumps(growing.where("number > 1")))
    assert again[:]["action"].tolist() == [16]
    assert again.runs[0]["run_id"] == "run"
    for part in (reader, growing):
        part.close()
        for ask in ("runs", "episodes", "recordings"):
            with pytest.raises(ValueError, match="closed"):
                getattr(part, ask)
        with pytest.raises(ValueError, match="closed"):
            part.where("1")
    assert len(again[:]["action"]) == 1  # each has files of its own


@pytest.mark.parametrize("name", ["steps", "rewards", "dones"])
def test_damaged_columns_are_noticed(quick_path: Path, name: str) -> None:
    record_episodes(quick_path, EPISODES)
    path = quick_path / "replay" / "run.h5"
    for offset, size in places_of(path, [name])[name][::7]:
        with (
            flipped(path, offset + size - 1),
            ReplayReader.open(quick_path) as reader,
            pytest.raises(FormatError, match=name),
        ):
            reader.take([0])


def test_a_process_that_goes_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_all(tmp_path / "v", "run", range(5))
    monkeypatch.chdir(tmp_path)
    source = ReplayReader.open("v")
    monkeypatch.chdir("/")
    assert source.recordings["run"].steps == 5
    again = pickle.loads(pickle.dumps(source))
    assert_batch(again.take([2]), source.take([2]))

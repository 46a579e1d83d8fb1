"""Runs without arrays: all in the database, no file, no HDF5; and what becomes of one when an array
comes after all."""

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import FormatError, Loader
from stepwell.replay import ReplayReader, ReplayWriter, remove
from stepwell.stores.replay.database import Database
from tests.children import answer, in_fork
from tests.replays import change, is_whole

WITHOUT = """
import os, sys
sys.modules.update(dict.fromkeys(["h5py", "hdf5plugin"]))
import gymnasium as gym
import numpy as np
import stepwell as sw
root = sys.argv[1]
env = sw.replay.Record(gym.make("CartPole-v1"), root, frames=None, observations=False, run_id="a")
env.action_space.seed(1)
env.reset(seed=1)
for _ in range(50):
    *_, terminated, truncated, _ = env.step(env.action_space.sample())
    if terminated or truncated:
        env.reset()
env.close()
with sw.ReplayWriter(root, "a", mode="a") as writer:
    try:
        writer.record_step(reward=1, observation=np.zeros(3))
    except ImportError as error:
        print(error)
    writer.record_step(reward=2, action=np.int64(1))
try:
    sw.replay.Record(gym.make("CartPole-v1"), root, frames=None)
except ImportError as error:
    print(error)
with sw.ReplayReader.open(root) as reader:
    assert reader.verify().ok
    count = len(reader)
    assert sw.replay.remove(root, "number = 0").episodes == 1
    print(count, reader.refresh(), reader["action"][-1], sorted(os.listdir(root + "/replay")))
"""


def filled(root: Path, actions: Any, run_id: str = "run") -> None:
    """Two agents, an episode of each that ended and one that goes on."""
    with ReplayWriter(root, run_id, mode="a") as writer:
        for i, action in enumerate(actions):
            refs = writer.record_step(
                reward=i, action=action, terminated=i in (6, 7), agent_id="xy"[i % 2]
            )
            assert refs is not None
            assert refs.action_ref is None


@pytest.mark.parametrize("dtype", ["i4", "u1", "f4", "?", None])
def test_it_has_no_file(quick_path: Path, dtype: str | None) -> None:
    actions = [None] * 12 if dtype is None else np.arange(12).astype(dtype)
    filled(quick_path, actions)
    assert not (quick_path / "replay" / "run.h5").exists()
    assert is_whole(quick_path)
    with ReplayReader.open(quick_path) as reader:
        order = [*range(0, 8, 2), *range(1, 8, 2), *range(8, 12, 2), *range(9, 12, 2)]
        assert reader["reward"][:].tolist() == order
        assert len(reader.where("agent_id = 'x' AND ended")) == 4
        assert sum(len(batch["reward"]) for batch in Loader(reader, 5)) == 12
        if dtype is not None:
            column = reader["action"][:]
            assert column.dtype == reader.episode("run-ep0000").actions.dtype == dtype
            assert column.tolist() == [actions[i] for i in order]


def test_it_needs_no_hdf5(tmp_path: Path) -> None:
    first, second, last = answer(WITHOUT, tmp_path).splitlines()
    assert first == "to write arrays needs an extra: pip install 'stepwell[replay]'"
    assert second == "to write arrays needs an extra: pip install 'stepwell[gym]'"
    assert last == "51 True 1 ['.a.lock', 'index.json']"


@pytest.mark.parametrize("again", [False, True])
def test_an_array_that_comes_later(quick_path: Path, again: bool) -> None:
    """The steps of before are in the file then, and nothing else has changed."""
    filled(quick_path, range(12))
    with ReplayReader.open(quick_path) as early:
        if again:
            remove(quick_path, "number = 0")
            filled(quick_path, range(12))
        with ReplayWriter(quick_path, "run", mode="a") as writer:
            for agent, name in (("x", "run-ep0002"), ("y", "run-ep0003")):
                about: Any = {"agent_id": agent, "episode_id": name}
                writer.record_step(reward=50, action=7, **about)
                refs = writer.record_step(reward=51, observation=np.arange(3), action=8, **about)
                assert refs is not None
                assert refs.action_ref is not None
                writer.record_step(reward=52, action=9, terminated=True, **about)
        assert is_whole(quick_path)
        if not again:
            assert len(early[:]["reward"]) == 12
    with ReplayReader.open(quick_path, next_observation=False) as reader:
        assert reader["reward"][:].tolist() == [51, 51]
        episode = reader.episode("run-ep0003")
        assert episode.rewards.tolist() == [9, 11, 50, 51, 52]
        assert episode.actions.tolist() == [9, 11, 7, 8, 9]
        assert episode.observation_steps.tolist() == [3]


@pytest.mark.parametrize("odd", [math.nan, np.uint64(2**63 + 5)], ids=repr)
def test_an_action_that_sqlite_cannot_hold(quick_path: Path, odd: Any) -> None:
    kind = type(odd)
    with ReplayWriter(quick_path, "run") as writer:
        for action in (kind(3), odd, kind(4)):
            writer.record_step(reward=0, action=action)
            writer.commit()
    assert is_whole(quick_path)
    with ReplayReader.open(quick_path) as reader:
        assert np.array_equal(reader["action"][:], np.array([3, odd, 4], kind), equal_nan=True)


def test_a_kill_when_the_file_is_there_and_no_commit(quick_path: Path) -> None:
    filled(quick_path, range(12))

    def begin() -> None:
        writer = ReplayWriter(quick_path, "run", mode="a")
        Database.commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore
        writer.record_step(reward=12, observation=np.arange(3))
        writer.commit()

    with pytest.raises(EOFError):
        in_fork(begin)
    assert (quick_path / "replay" / "run.h5").exists()
    with ReplayReader.open(quick_path) as reader:
        assert len(reader) == 12
        assert reader.verify().ok
    with ReplayWriter(quick_path, "run", mode="a") as writer:
        writer.record_step(reward=12, action=1)
    assert not (quick_path / "replay" / "run.h5").exists()
    assert is_whole(quick_path)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("UPDATE steps SET action = 'h5://run/actions/0' WHERE step_index = 1", "action"),
        ("UPDATE steps SET reward = 'many' WHERE step_index = 1", "scalars"),
        ("UPDATE runs SET channels = ?", "arrays"),
    ],
)
def test_what_a_database_may_say(quick_path: Path, sql: str, message: str) -> None:
    filled(quick_path, range(12))
    camera = {"name": "observations", "dtype": "|u1", "shape": [9], "codec": "none"}
    change(quick_path, sql, *[json.dumps([camera])] * sql.count("?"))
    with ReplayReader.open(quick_path) as reader:
        assert not reader.verify().ok
        with pytest.raises(FormatError, match=message):
            reader[:]


def test_a_database_that_lost_a_commit(quick_path: Path) -> None:
    filled(quick_path, range(12))
    database = quick_path / "telemetry" / "telemetry.sqlite"
    before = database.read_bytes()
    filled(quick_path, range(12))
    database.write_bytes(before)
    for call in (ReplayReader.open, lambda path: ReplayWriter(path, "run", mode="a")):
        with pytest.raises(FormatError, match=r"at least 24 steps, as index.json has, got 12"):
            call(quick_path)

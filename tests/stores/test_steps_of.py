"""The steps of one run, as each store has them; what all have in common is in query_contract.py."""

from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from stepwell.game2048 import GameSteps, play
from tests import packs, replays
from tests.contract import assert_array
from tests.runs import RUN_V2
from tests.test_training import odd_run


def test_of_a_step_dataset_they_are_the_rows_of_the_run(tmp_path: Path) -> None:
    with sw.StepWriter(tmp_path / "steps", [("obs", "<f4", (2,))], columns={}) as writer:
        for length in (3, 1, 5):
            writer.append({"obs": np.random.default_rng(length).random((length, 2), "f4")})
    store = sw.StepReader.open(tmp_path / "steps")
    assert_array(store.steps_of(2)["obs"][:], store["obs"][4:9])
    assert_array(store.where("id > 0").steps_of(1)["obs"][:], store["obs"][3:4])
    with pytest.raises(KeyError, match="no run 0 "):
        store.where("id > 0").steps_of(0)


def test_of_a_pack_they_are_those_of_a_step_dataset(tmp_path: Path) -> None:
    payloads = [run.to_bytes() for run in (*play(2, depth=1, seed=3), odd_run(seed=1))]
    pack = sw.PackReader.open(packs.write(tmp_path / "games.a2pack", payloads))
    for number in range(3):
        steps = pack.steps_of(number)
        want = GameSteps(pack.where("run = ?", number), without_values=True)
        assert len(steps) == len(want)
        for name in ("board", "move"):
            assert_array(steps[name][:], want[name][:])
        assert steps.schema["ev_values"] == want.schema["ev_values"]
        assert steps.schema["ev_legal"] == want.schema["ev_legal"]
        assert (steps["run_idx"][:] == number).all()
    part = pack.where("run > 1")
    assert len(part.steps_of(2)) == len(pack.steps_of(2))
    with pytest.raises(KeyError, match="no run 0 "):
        part.steps_of(0)


def test_of_a_pack_with_other_payloads(tmp_path: Path) -> None:
    path = packs.write(tmp_path / "mixed.a2pack", [b"raw", RUN_V2], [16, 2])
    pack = sw.PackReader.open(path)
    assert len(pack.steps_of(1)) == pack.query("SELECT steps FROM runs").rows[0][0]
    with pytest.raises(KeyError, match="no run 0 "):
        pack.steps_of(0)
    raw = sw.PackReader.open(packs.write(tmp_path / "raw.a2pack", [b"raw"], [16]))
    with pytest.raises(ValueError, match="have no runs"):
        raw.steps_of(0)


def test_of_a_replay_store_every_step_with_its_frame(tmp_path: Path) -> None:
    replays.record_all(tmp_path, "deep", range(20))
    with sw.ReplayWriter(tmp_path, "flat") as writer:
        for number in range(4):
            writer.record_step(
                observation=np.array([number], np.float32), action=number, reward=1.0
            )
    store = sw.ReplayReader.open(tmp_path)
    with pytest.raises(sw.SchemaError):
        _ = store.schema  # the two recorded unlike arrays
    second = store.runs["episode_id"][1]
    steps = store.steps_of(second)
    assert len(steps) == 10
    assert "next_observation/camera" not in steps.schema
    assert steps["reward"][:].tolist() == [float(n) for n in range(10, 20)]
    assert steps["action"][:].tolist() == list(range(10, 20))
    assert_array(
        steps["observation/camera"][:], np.stack([replays.camera(n) for n in range(10, 20)])
    )
    # Every third step has a frame; the others have that of the last one that had, of their episode.
    shown = [None, None, 12, 12, 12, 15, 15, 15, 18, 18]
    for got, last in zip(steps["frame"][:], shown, strict=True):
        want = np.zeros((20, 25, 3), np.uint8) if last is None else replays.frame(last)
        assert_array(got, want)
    flat = store.steps_of(store.runs["episode_id"][2])
    assert "frame" not in flat.schema
    assert flat["observation"][:].tolist() == [[0], [1], [2], [3]]


def test_of_an_episode_that_goes_on(tmp_path: Path) -> None:
    with sw.ReplayWriter(tmp_path, "run") as writer:
        for number in range(3):
            replays.record(writer, number)
        writer.commit()
        store = sw.ReplayReader.open(tmp_path)
        key = store.runs["episode_id"][0]
        assert len(store.steps_of(key)) == 3
        replays.record(writer, 3)
        writer.commit()
        assert len(store.steps_of(key)) == 3
        assert store.refresh()
        assert store.steps_of(key)["reward"][:].tolist() == [0, 1, 2, 3]


def test_of_arrays_with_runs_by_their_number() -> None:
    store = sw.formats.arrays({"x": np.arange(5)}, run_lengths=[2, 3])
    assert store.steps_of(1)["x"][:].tolist() == [2, 3, 4]
    for missing in (2, -1, "1"):
        with pytest.raises(KeyError, match=f"no run {missing!r}"):
            store.steps_of(missing)


def test_of_arrays_with_runs_by_their_name() -> None:
    names = {"id": ["a", "b"]}
    store = sw.formats.arrays({"x": np.arange(5)}, run_lengths=[2, 3], run_columns=names)
    assert store.steps_of("b")["x"][:].tolist() == [2, 3, 4]
    with pytest.raises(KeyError, match="no run 1 "):
        store.steps_of(1)


def test_rows_without_runs_have_none() -> None:
    with pytest.raises(ValueError, match="is an array: its rows have no runs"):
        sw.ArraySource(np.arange(5)).steps_of(0)

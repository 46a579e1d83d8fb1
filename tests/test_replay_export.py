"""Replay stores as videos, step datasets and Minari datasets: the same data in each."""

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ale_py
import av
import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import stepwell as sw
from stepwell import exporters
from stepwell.exporters import export_minari, export_steps, export_video
from stepwell.files.video import new_video
from stepwell.replay import Record, ReplayReader, ReplayWriter
from tests.environments import Everything
from tests.test_replay_record import at, play, same

gym.register_envs(ale_py)

# Minari asks for an author, a link to the code and so on.
pytestmark = pytest.mark.filterwarnings("ignore:.* is (set to )?None:UserWarning")


@pytest.fixture(scope="module")
def breakout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayReader]:
    root = tmp_path_factory.mktemp("breakout")
    env = gym.make("ALE/Breakout-v5", render_mode="rgb_array", obs_type="ram")
    with Record(env, root, run_id="a") as recorded:
        play(recorded, 300)
    with ReplayReader.open(root) as reader:
        yield reader


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayReader]:
    root = tmp_path_factory.mktemp("everything")
    for run_id in ("a", "b"):
        with Record(Everything(), root, run_id=run_id) as env:
            play(env, 40)
    with ReplayReader.open(root) as reader:
        yield reader


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayReader]:
    root = tmp_path_factory.mktemp("cartpole")
    with Record(gym.make("CartPole-v1"), root, frames=None, run_id="a") as env:
        play(env, 300)
    with ReplayReader.open(root) as reader:
        yield reader


# Videos.


def gif_frames(path: Path) -> tuple[list[Any], int]:
    """The pictures of a GIF, and how long they take in milliseconds."""
    frames, duration = [], 0
    with Image.open(path) as image:
        assert image.info["loop"] == 0
        for number in range(image.n_frames):  # type: ignore[attr-defined]
            image.seek(number)
            duration += image.info["duration"]
            frames.append(np.asarray(image.convert("RGB")))
    return frames, duration


def mp4_frames(path: Path) -> tuple[list[Any], float]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert stream.average_rate is not None
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        return frames, float(stream.average_rate)


def test_a_gif_of_an_episode(breakout: ReplayReader, tmp_path: Path) -> None:
    expected = breakout.episode("a-ep0000").frames
    calls: list[tuple[int, int]] = []
    path = tmp_path / "game.gif"
    count = export_video(
        breakout, "a-ep0000", path, on_progress=lambda done, total: calls.append((done, total))
    )
    assert count == len(expected)
    assert calls[-1] == (count, count)
    frames, duration = gif_frames(path)
    assert len(frames) == len(expected)
    assert np.array_equal(frames, expected)  # Atari has few colours
    assert duration == pytest.approx(1000 * len(expected) / 30, abs=10)
    assert path.stat().st_size < 0.05 * expected.nbytes


def test_an_mp4_of_a_run(breakout: ReplayReader, tmp_path: Path) -> None:
    expected = np.concatenate([breakout.episode(e.episode_id).frames for e in breakout.episodes])
    assert export_video(breakout, "a", tmp_path / "game.mp4", fps=15) == 300
    frames, rate = mp4_frames(tmp_path / "game.mp4")
    assert np.shape(frames) == expected.shape
    assert rate == 15
    assert np.abs(np.array(frames, int) - expected).mean() < 4
    assert list(tmp_path.iterdir()) == [tmp_path / "game.mp4"]


def test_many_colours_and_odd_sizes(tmp_path: Path) -> None:
    y, x = np.mgrid[:45, :61]
    pictures = [np.stack([x * 4, y * 5, x + y + 8 * i], 2).astype(np.uint8) for i in range(6)]
    for kind, most in ((".gif", 12), (".mp4", 8)):
        with new_video(tmp_path / f"a{kind}", 10) as add:
            for picture in pictures:
                add(picture)
        frames, _ = (gif_frames if kind == ".gif" else mp4_frames)(tmp_path / f"a{kind}")
        assert len(frames) == 6
        for frame, picture in zip(frames, pictures, strict=True):
            difference = np.abs(frame[:45, :61].astype(int) - picture)
            assert difference.mean() < most


@pytest.mark.parametrize("shape", [(1, 1), (9, 7), (9, 7, 1), (9, 7, 3), (9, 7, 4)])
@pytest.mark.parametrize("kind", [".gif", ".mp4"])
def test_pictures_of_every_kind(tmp_path: Path, shape: tuple[int, ...], kind: str) -> None:
    draw = np.random.default_rng(1)
    pictures = [draw.integers(5, size=shape).astype(np.uint8) * 60 for _ in range(4)]
    pictures.insert(2, pictures[1])  # nothing changes
    with new_video(tmp_path / f"a{kind}", 7.5) as add:
        for picture in pictures:
            add(picture)
    frames, _ = (gif_frames if kind == ".gif" else mp4_frames)(tmp_path / f"a{kind}")
    assert len(frames) == 5
    if kind == ".gif":
        for frame, picture in zip(frames, pictures, strict=True):
            wide = picture.reshape(*shape[:2], -1)[..., :3]
            assert np.array_equal(frame, np.broadcast_to(wide, (*shape[:2], 3)))


@pytest.mark.parametrize("kind", [".gif", ".mp4"])
def test_a_video_that_fails_leaves_nothing(tmp_path: Path, kind: str) -> None:
    def half() -> None:
        with new_video(tmp_path / f"a{kind}", 10) as add:
            add(np.zeros((4, 4), np.uint8))
            add(np.zeros((4, 5), np.uint8))

    with pytest.raises(ValueError, match="expected pictures of one size"):
        half()
    assert not list(tmp_path.iterdir())


def test_videos_that_cannot_be(
    cartpole: ReplayReader, breakout: ReplayReader, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="a: there are no frames"):
        export_video(cartpole, "a", tmp_path / "a.gif")
    with pytest.raises(KeyError, match="no episode and no run 'zz'"):
        export_video(cartpole, "zz", tmp_path / "a.gif")
    with pytest.raises(ValueError, match=r"ends in \.gif or \.mp4"):
        export_video(breakout, "a", tmp_path / "a.avi")
    with pytest.raises(ValueError, match="up to 50 for a GIF, got 60"):
        export_video(breakout, "a", tmp_path / "a.gif", fps=60)
    with pytest.raises(ValueError, match="more than 0, got 0"):
        export_video(breakout, "a", tmp_path / "a.mp4", fps=0)
    assert not list(tmp_path.iterdir())


def test_frames_are_not_all_in_memory(tmp_path: Path) -> None:
    frame = np.zeros((300, 400, 3), np.uint8)
    with ReplayWriter(tmp_path / "store", "a") as writer:
        for i in range(200):
            frame[i] = i
            writer.record_step(reward=0, frame=frame)
    with ReplayReader.open(tmp_path / "store") as reader:
        tracemalloc.start()
        export_video(reader, "a", tmp_path / "a.gif")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 0.5 * 200 * frame.nbytes


# Step datasets.


def test_steps(everything: ReplayReader, tmp_path: Path) -> None:
    source = ReplayReader.open(everything.root, frames=True)
    calls: list[tuple[int, int]] = []
    with export_steps(
        source,
        tmp_path / "out",
        on_progress=lambda done, total: calls.append((done, total)),
    ) as steps:
        assert len(steps) == len(source) == 80
        assert calls[-1] == (80, 80)
        rows, expected = steps[:], source[:]
        assert set(rows) == {
            *("observation.camera", "observation.place.0", "observation.place.1"),
            *("observation.switches", "action.mode", "action.push", "next_observation.camera"),
            *("next_observation.place.0", "next_observation.place.1"),
            *("next_observation.switches", "frame", "reward", "terminated", "truncated"),
        }
        for name, values in expected.items():
            found = rows[name.replace("/(", "/").replace(")", "").replace("/", ".")]
            assert found.dtype == values.dtype
            assert np.array_equal(found, values)
        episodes = list(everything.episodes)
        runs = steps.runs
        assert list(runs["episode_id"]) == [e.episode_id for e in episodes]
        assert list(runs["total_reward"]) == [e.total_reward for e in episodes]
        assert steps.verify().ok
        for number, episode in enumerate(episodes):
            steps_of = steps.run(runs["id"][number])
            assert len(steps_of["reward"]) == episode.steps
        good = steps.where("truncated = 1 AND run_id = 'b'")
        assert len(good) == sum(e.steps for e in episodes if e.truncated and e.run_id == "b")


def test_some_episodes_as_steps(cartpole: ReplayReader, tmp_path: Path) -> None:
    some = ReplayReader.open(cartpole.root, n_step=3).where("total_reward > ?", 15)
    with export_steps(some, tmp_path / "out", shard_bytes=4000) as steps:
        assert len(steps) == len(some) > 0
        for name, values in some[:].items():
            assert np.array_equal(steps[:][name], values)
    with pytest.raises(FileExistsError):
        export_steps(some, tmp_path / "out")
    with pytest.raises(sw.SchemaError, match="no steps"):
        export_steps(some.where("0"), tmp_path / "none")


def test_names_that_cannot_be_fields(tmp_path: Path) -> None:
    with ReplayWriter(tmp_path, "a") as writer:
        writer.record_step(reward=1, observation={"front camera": np.zeros(3)}, terminated=True)
    with pytest.raises(sw.SchemaError, match=r"'observation\.front camera' cannot name a field"):
        export_steps(ReplayReader.open(tmp_path), tmp_path / "out")


# Minari.


@pytest.fixture
def minari_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def check_minari(reader: ReplayReader, dataset_id: str) -> Any:
    dataset = minari.load_dataset(dataset_id)
    assert dataset.total_episodes == len(reader.episodes)
    assert dataset.total_steps == sum(e.steps for e in reader.episodes)
    for episode, found in zip(reader.episodes, dataset.iterate_episodes(), strict=True):
        expected = reader.episode(episode.episode_id)
        assert np.array_equal(found.rewards, expected.rewards)
        assert np.array_equal(found.terminations, expected.terminated)
        assert np.array_equal(found.truncations, expected.truncated)
        for i in range(len(expected)):
            same(at(found.actions, i), at(expected.actions, i))
            same(at(found.observations, i), at(expected.observations, i))
        same(at(found.observations, len(expected)), expected.final_observation)
    return dataset


def test_minari(cartpole: ReplayReader, minari_home: Path) -> None:
    export_minari(cartpole, "cartpole/mine-v0", env="CartPole-v1", author="me")
    dataset = check_minari(cartpole, "cartpole/mine-v0")
    assert dataset.action_space == spaces.Discrete(2)
    assert dataset.recover_environment().spec.id == "CartPole-v1"
    with sw.importers.import_minari("cartpole/mine-v0", minari_home / "steps") as steps:
        expected = cartpole[:]
        assert np.array_equal(steps[:]["next_observation"], expected["next_observation"])


def test_minari_of_nested_spaces(everything: ReplayReader, minari_home: Path) -> None:
    made = export_minari(everything, "everything/mine-v0")
    assert made.observation_space == spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (6, 8, 3), np.uint8),
            "place": spaces.Tuple(
                (spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(7))
            ),
            "switches": spaces.Box(-128, 127, (5,), np.int8),
        }
    )
    assert made.action_space["mode"] == spaces.Discrete(4)
    check_minari(everything, "everything/mine-v0")


def test_minari_of_episodes_that_are_not_whole(tmp_path: Path, minari_home: Path) -> None:
    with ReplayWriter(tmp_path / "store", "a") as writer:
        for final in (np.ones(3), None):
            for step in range(4):
                writer.record_step(
                    observation=np.zeros(3), action=np.uint8(step), reward=1, truncated=step == 3
                )
            if final is not None:
                writer.end_episode(observation=final)
    reader = ReplayReader.open(tmp_path / "store")
    with pytest.warns(UserWarning, match="1 of 2 episodes are left out"):
        dataset = export_minari(reader, "some/thing-v0")
    assert dataset.total_episodes == 1
    assert dataset.action_space == spaces.Discrete(4, dtype=np.uint8)
    with pytest.raises(sw.SchemaError, match="no episodes with all steps"):
        export_minari(reader.where("number > 0"), "some/thing-v1")


# Actions, which exports read back.


def test_actions_keep_their_dtype_and_odd_numbers(tmp_path: Path) -> None:
    values = np.array([1.5, np.nan, -0.25, np.inf], np.float32)
    with ReplayWriter(tmp_path, "a") as writer:
        for value in values:
            writer.record_step(action=value, reward=0)
    with ReplayWriter(tmp_path, "b") as writer:
        for number in (3, 2**64 - 1):
            writer.record_step(action=np.uint64(number), reward=0)
    with ReplayReader.open(tmp_path) as reader:
        actions = reader.episode("a-ep0000").actions
        assert actions.dtype == np.float32
        assert np.array_equal(actions, values, equal_nan=True)
        assert reader.episode("b-ep0000").actions.tolist() == [3, 2**64 - 1]
        assert reader.verify().ok


@pytest.mark.parametrize(
    ("module", "call", "extra"),
    [
        ("PIL", "export_video(reader, 'a', 'a.gif')", "video"),
        ("av", "export_video(reader, 'a', 'a.mp4')", "video"),
        ("minari", "export_minari(reader, 'a-v0')", "minari"),
    ],
)
def test_without_the_extra(
    everything: ReplayReader, tmp_path: Path, module: str, call: str, extra: str
) -> None:
    script = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from stepwell.exporters import *\nfrom stepwell.replay import ReplayReader\n"
        f"reader = ReplayReader.open({str(everything.root)!r})\n"
        f"try: {call}\nexcept ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path
    )
    assert f"needs an extra: pip install 'stepwell[{extra}]'" in done.stdout, done.stderr
    assert not list(tmp_path.iterdir())


def test_the_module_is_there() -> None:
    assert sw.exporters is exporters

"""Pictures as GIF and MP4: of replay stores, and of any source that has some."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ale_py
import av
import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

import stepwell as sw
from stepwell.replay import Record, ReplayReader, ReplayWriter
from tests.formats.rows import Given
from tests.test_replay_record import play

gym.register_envs(ale_py)


@pytest.fixture(scope="module")
def breakout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplayReader]:
    root = tmp_path_factory.mktemp("breakout")
    env = gym.make("ALE/Breakout-v5", render_mode="rgb_array", obs_type="ram")
    with Record(env, root, run_id="a") as recorded:
        play(recorded, 300)
    with ReplayReader.open(root) as reader:
        yield reader


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


def written(path: Path, fps: float, pictures: list[Any]) -> list[Any]:
    """What is in a video that was made of these pictures."""
    sw.convert(Given({"frame": np.array(pictures)}), path, fps=fps)
    return (gif_frames if path.suffix == ".gif" else mp4_frames)(path)[0]


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
    report = sw.convert(
        breakout.root,
        path,
        where="episode_id = 'a-ep0000'",
        progress=lambda *done: calls.append(done),
    )
    assert (report.source_kind, report.rows) == ("replay", len(expected))
    assert calls[-1] == (len(expected), len(expected))
    frames, duration = gif_frames(path)
    assert np.array_equal(frames, expected)  # Atari has few colours
    assert duration == pytest.approx(1000 * len(expected) / 30, abs=10)
    assert path.stat().st_size < 0.05 * expected.nbytes


def test_an_mp4_of_a_run(breakout: ReplayReader, tmp_path: Path) -> None:
    expected = np.concatenate([breakout.episode(e.episode_id).frames for e in breakout.episodes])
    sw.convert(breakout.root, tmp_path / "game.mp4", where="run_id = 'a'", fps=15)
    frames, rate = mp4_frames(tmp_path / "game.mp4")
    assert np.shape(frames) == expected.shape
    assert rate == 15
    assert np.abs(np.array(frames, int) - expected).mean() < 4
    assert list(tmp_path.iterdir()) == [tmp_path / "game.mp4"]


def test_many_colours_and_odd_sizes(tmp_path: Path) -> None:
    y, x = np.mgrid[:45, :61]
    pictures = [np.stack([x * 4, y * 5, x + y + 8 * i], 2).astype(np.uint8) for i in range(6)]
    for kind, most in ((".gif", 12), (".mp4", 8)):
        frames = written(tmp_path / f"a{kind}", 10, pictures)
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
    frames = written(tmp_path / f"a{kind}", 7.5, pictures)
    assert len(frames) == 5
    if kind == ".gif":
        for frame, picture in zip(frames, pictures, strict=True):
            wide = picture.reshape(*shape[:2], -1)[..., :3]
            assert np.array_equal(frame, np.broadcast_to(wide, (*shape[:2], 3)))


def test_videos_that_cannot_be(breakout: ReplayReader, tmp_path: Path) -> None:
    two = Given({"x": np.zeros((1, 4, 4), "u1"), "y": np.zeros((1, 4, 4, 3), "u1")})
    none = Given({"x": np.zeros((0, 4, 4), "u1")})
    for source, name, options, text in [
        (two, "a.gif", {}, "choose one of x, y"),
        (none, "a.gif", {}, "there are no frames"),
        (breakout.root, "a.gif", {"where": "run_id = 'zz'"}, "there are no frames"),
        (breakout.root, "a.avi", {"to": "video"}, r"ends in \.gif or \.mp4"),
        (breakout.root, "a.gif", {"fps": 60}, "up to 50 for a GIF, got 60"),
        (breakout.root, "a.mp4", {"fps": 0}, "more than 0, got 0"),
    ]:
        with pytest.raises(ValueError, match=text):
            sw.convert(source, tmp_path / name, **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_frames_are_not_all_in_memory(tmp_path: Path) -> None:
    frame = np.zeros((300, 400, 3), np.uint8)
    with ReplayWriter(tmp_path / "store", "a") as writer:
        for i in range(200):
            frame[i] = i
            writer.record_step(reward=0, frame=frame)
    tracemalloc.start()
    sw.convert(tmp_path / "store", tmp_path / "a.gif")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.5 * 200 * frame.nbytes

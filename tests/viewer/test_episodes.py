"""One run, and its steps in chunks: what a browser gets is what `take` has."""

from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from stepwell.game2048.board import score
from tests.contract import assert_array
from tests.viewer.serving import Viewer, number_of, pixels


def test_a_run(viewer: Viewer, folder: Path) -> None:
    found = viewer.json(f"/data/{number_of(viewer, folder / 'steps')}/run", key=9)
    rewards = np.random.default_rng(9)
    rewards.random((14, 2), "f4")
    want = rewards.random(14)
    assert (found["key"], found["steps"], found["live"], found["damage"]) == (9, 14, False, None)
    assert found["columns"]["name"] == "<b>run 9</b>"
    assert found["actions"] is None
    draws = {each["name"]: each["draw"] for each in found["tracks"]}
    assert draws["obs"] == "curve"
    assert draws["reward"] == draws["flag"] == "value"
    curve = found["curve"]["reward"]
    assert (curve["x"], curve["min"], curve["max"]) == (list(range(14)), list(want), list(want))
    assert found["curve"]["return"]["max"][-1] == pytest.approx(want.sum())


def test_a_long_curve_keeps_its_extremes(viewer: Viewer) -> None:
    reward = np.zeros(100_000)
    reward[77_777], reward[5], reward[6] = 9.5, -4, np.nan
    store = sw.formats.arrays({"reward": reward}, run_lengths=[len(reward)])
    found = viewer.json(f"/data/{viewer.add(store).number}/run", key=0)["curve"]
    assert len(found["reward"]["x"]) <= 1000
    assert max(found["reward"]["max"]) == 9.5
    assert min(found["reward"]["min"]) == -4
    assert max(found["return"]["max"]) == 5.5


@pytest.mark.parametrize("name", ["games", "games.a2pack"])
def test_a_game(viewer: Viewer, folder: Path, name: str) -> None:
    number = number_of(viewer, folder / name)
    found = viewer.json(f"/data/{number}/run", key=1)
    boards = sw.open(folder / "games").steps_of(1)["board"][:]
    assert found["tracks"][0]["draw"] == "board"
    assert found["actions"] == ["UP", "DOWN", "LEFT", "RIGHT"]
    assert found["curve"]["score"]["max"][-1] == score(boards).max()
    assert {each["name"] for each in found["tracks"] if each.get("of") == "board"} == {
        *("move", "ev_legal", "ev_values")
    }


def test_actions_have_the_names_of_their_recording(viewer: Viewer, tmp_path: Path) -> None:
    with sw.ReplayWriter(tmp_path, "run", action_names=["left", "right"]) as writer:
        step = writer.record_step(action=1, reward=0.0)
    assert step is not None
    found = viewer.json(f"/data/{number_of(viewer, tmp_path)}/run", key=step.episode_id)
    assert found["actions"] == ["left", "right"]


def test_a_run_that_is_not_there(viewer: Viewer, folder: Path) -> None:
    for name in ("steps", "games.a2pack", "replays"):
        number = number_of(viewer, folder / name)
        for key in ("999", "", "x", "1' OR '1'='1", "9" * 400):
            for route in ("run", "chunk", "thumb"):
                assert viewer.error(f"/data/{number}/{route}", 404, key=key).startswith("no run ")


@pytest.mark.parametrize("name", ["steps", "games", "games.a2pack"])
def test_chunks_have_what_take_has(viewer: Viewer, folder: Path, name: str) -> None:
    number = number_of(viewer, folder / name)
    with sw.open(folder / name) as store:
        for key in (0, 2):
            rows = store.steps_of(key)
            for start, count in (
                (0, 10**6),
                (3, 2),
                (len(rows) - 1, 5),
                (len(rows), 1),
                (10**9, 9),
            ):
                header, parts = viewer.chunk(number, key, start, count)
                begin = min(start, len(rows))
                want = rows[begin : begin + min(count, 1024)]
                assert header["damage"] is None
                assert (header["start"], header["count"]) == (begin, len(want[next(iter(want))]))
                assert set(parts) - {"return"} == set(want)
                if "reward" in want:
                    total = np.cumsum(rows["reward"][:])[begin : begin + min(count, 1024)]
                    assert_array(parts["return"], total)
                for field, values in want.items():
                    same = {"?": "u1", "e": "<f4"}.get(values.dtype.char, values.dtype.str)
                    assert_array(parts[field], values.astype(np.dtype(same)))


def test_chunks_of_pictures(viewer: Viewer, folder: Path) -> None:
    number = number_of(viewer, folder / "replays")
    with sw.ReplayReader.open(folder / "replays") as store:
        key = store.runs["episode_id"][1]
        rows = store.steps_of(key)
        about = viewer.json(f"/data/{number}/run", key=key)
        tracks = {each["name"]: each for each in about["tracks"]}
        assert about["tracks"][0]["name"] == "frame"
        assert tracks["frame"]["draw"] == "image"
        assert tracks["observation/camera"] == {
            "name": "observation/camera",
            "draw": "planes",
            "shape": [15, 20, 4],
            "dtype": "|u1",
            "planes": 4,
            "across": 4,
        }
        _, parts = viewer.chunk(number, key, 2, 5)
        for i, row in enumerate(range(2, 7)):
            assert_array(pixels(parts["frame"][i]), rows["frame"][row])
            planes = np.moveaxis(rows["observation/camera"][row], -1, 0)
            assert_array(pixels(parts["observation/camera"][i]), np.concatenate(planes, 1))
        assert_array(parts["action"], rows["action"][2:7])


@pytest.mark.parametrize(
    ("shape", "dtype", "draw", "size"),
    [
        ((7, 5), "u1", "image", (7, 5)),
        ((7, 5, 1), "u1", "image", (7, 5)),
        ((7, 5, 3), "u1", "image", (7, 5, 3)),
        ((3, 7, 5), "u1", "image", (7, 5, 3)),
        ((1, 7, 5), "f4", "image", (7, 5)),
        ((7, 5, 3), "<f8", "image", (7, 5, 3)),
        ((16, 4, 4), "?", "planes", (16, 16)),
        ((84, 84, 4), "u1", "planes", (84, 336)),
        ((4, 84, 84), "u1", "planes", (84, 336)),
        ((2, 3, 8, 9), "f4", "planes", (16, 36)),
        ((3000, 2000), "u1", "image", (1000, 1000)),
        ((100, 200, 300), "u1", "planes", (536, 800)),
        ((8, 9), "<i4", "image", (8, 9)),
    ],
)
def test_pictures_of_any_shape(
    viewer: Viewer, shape: tuple[int, ...], dtype: str, draw: str, size: tuple[int, ...]
) -> None:
    values = (np.random.default_rng(0).random((2, *shape)) * 200).astype(dtype)
    store = sw.formats.arrays({"x": values}, run_lengths=[2])
    number = viewer.add(store).number
    assert viewer.json(f"/data/{number}/run", key=0)["tracks"][0]["draw"] == draw
    _, parts = viewer.chunk(number, 0, 0, 1)
    assert pixels(parts["x"][0]).shape == size
    assert viewer.get(f"/data/{number}/thumb", key=0).headers["content-type"] == "image/png"


def test_frames_with_four_channels_are_pictures_by_their_name(viewer: Viewer) -> None:
    values = np.full((2, 9, 8, 4), 128, np.uint8)
    store = sw.formats.arrays({"frame": values, "stack": values}, run_lengths=[2])
    found = viewer.json(f"/data/{viewer.add(store).number}/run", key=0)["tracks"]
    assert {each["name"]: each["draw"] for each in found} == {"frame": "image", "stack": "planes"}


def test_numbers_that_are_no_bytes_keep_their_shades(viewer: Viewer) -> None:
    """Steps have the same black and white, and what is not finite is black."""
    values = np.zeros((3, 2, 2), np.float32)
    values[1], values[2] = 5, [[10, np.nan], [np.inf, -np.inf]]
    store = sw.formats.arrays({"x": values}, run_lengths=[3])
    _, parts = viewer.chunk(viewer.add(store).number, 0, 0, 3)
    shown = [pixels(each).tolist() for each in parts["x"]]
    assert shown[0] == [[0, 0], [0, 0]]
    assert shown[1] == [[127, 127], [127, 127]]
    assert shown[2] == [[255, 0], [255, 0]]


def test_a_long_vector_is_thinned_out(viewer: Viewer) -> None:
    values = np.arange(20_000, dtype=np.float32).reshape(2, 10_000)
    number = viewer.add(sw.formats.arrays({"x": values}, run_lengths=[2])).number
    assert viewer.json(f"/data/{number}/run", key=0)["tracks"][0]["shown"] == 256
    _, parts = viewer.chunk(number, 0, 0, 2)
    assert parts["x"].shape == (2, 256)
    assert (parts["x"][1, 0], parts["x"][1, -1]) == (10_000, 19_999)


def test_thumbnails(viewer: Viewer, folder: Path) -> None:
    for name in ("games", "games.a2pack", "replays"):
        number = number_of(viewer, folder / name)
        listed = viewer.json(f"/data/{number}/runs")
        key = listed["rows"][0][listed["columns"].index(listed["key"])]
        answer = viewer.get(f"/data/{number}/thumb", key=key)
        assert answer.headers["cache-control"].startswith("private")
        assert max(pixels(answer.content).shape) <= 160
    number = number_of(viewer, folder / "steps")
    assert viewer.error(f"/data/{number}/thumb", 404, key=1) == "run '1' has nothing to draw"


@pytest.mark.parametrize(
    "given", [{"start": "-1"}, {"count": "x"}, {"start": "1e3"}, {"count": ""}]
)
def test_numbers_that_are_none(viewer: Viewer, folder: Path, given: dict[str, str]) -> None:
    number = number_of(viewer, folder / "steps")
    (name,) = given
    for route in ("chunk", "rows"):
        sentence = viewer.error(f"/data/{number}/{route}", 400, key="1", **given)
        assert sentence.startswith(f"{name}: expected a whole number")

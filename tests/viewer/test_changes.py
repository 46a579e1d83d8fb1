"""Stores that grow, are replaced or are damaged while they are shown, and many who look."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from tests import replays
from tests.viewer.serving import Viewer, number_of


def test_a_store_being_written(
    viewer: Viewer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.viewer.shelf._REFRESH_S", 0.0)
    with sw.StepWriter(tmp_path / "steps", [("x", "<f4")], columns={}) as writer:
        writer.append({"x": np.zeros(3)})
        writer.commit()
        number = number_of(viewer, tmp_path / "steps")
        assert viewer.json(f"/data/{number}/runs")["count"] == 1
        assert viewer.json(f"/data/{number}/run", key=0)["steps"] == 3
        writer.append({"x": np.ones(4)})
        assert viewer.json(f"/data/{number}/runs")["count"] == 1
        writer.commit()
        assert viewer.json(f"/data/{number}/runs")["count"] == 2
        assert viewer.json(f"/data/{number}/about")["rows"] == 7
        _, parts = viewer.chunk(number, 1, 0, 9)
        assert parts["x"].tolist() == [1, 1, 1, 1]


def test_an_episode_being_recorded(
    viewer: Viewer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.viewer.shelf._REFRESH_S", 0.0)
    with sw.ReplayWriter(tmp_path, "run") as writer:
        replays.record(writer, 0)
        writer.commit()
        number = number_of(viewer, tmp_path)
        listed = viewer.json(f"/data/{number}/runs")
        key = listed["rows"][0][0]
        assert viewer.json(f"/data/{number}/run", key=key)["live"]
        replays.record(writer, 1, terminated=True)
        writer.commit()
        found = viewer.json(f"/data/{number}/run", key=key)
        assert (found["steps"], found["live"]) == (2, False)


def test_a_store_that_is_not_looked_at_again_within_a_second(
    viewer: Viewer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.viewer.shelf._REFRESH_S", 3600.0)
    with sw.StepWriter(tmp_path / "steps", [("x", "<f4")], columns={}) as writer:
        writer.append({"x": np.zeros(3)})
        writer.commit()
        number = number_of(viewer, tmp_path / "steps")
        assert viewer.json(f"/data/{number}/runs")["count"] == 1
        writer.append({"x": np.ones(4)})
        writer.commit()
        assert viewer.json(f"/data/{number}/runs")["count"] == 1


def test_a_store_in_the_place_of_another(
    viewer: Viewer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.viewer.shelf._REFRESH_S", 0.0)
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(5))
    number = number_of(viewer, path)
    assert viewer.json(f"/data/{number}/about")["rows"] == 5
    path.unlink()
    np.save(path, np.arange(7))
    assert viewer.json(f"/data/{number}/about")["rows"] == 7
    path.unlink()
    found = viewer.json(f"/data/{number}/about")  # as it was, and it says so
    assert found["rows"] == 7
    assert found["problem"].startswith("shown as it was; it cannot be opened any more: ")
    np.save(path, np.arange(3))
    found = viewer.json(f"/data/{number}/about")
    assert (found["rows"], found["problem"]) == (3, None)


def test_a_store_that_is_given_is_shown_as_it_is(
    viewer: Viewer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader belongs to whoever opened it: its rows must not change under a loop."""
    monkeypatch.setattr("stepwell.viewer.shelf._REFRESH_S", 0.0)
    with sw.StepWriter(tmp_path / "steps", [("x", "<f4")], columns={}) as writer:
        for length in (3, 4):
            writer.append({"x": np.zeros(length)})
        writer.commit()
        store = sw.StepReader.open(tmp_path / "steps")
        whole, part = viewer.add(store).number, viewer.add(store.where("id = 1")).number
        writer.append({"x": np.ones(4)})
        writer.commit()
        assert viewer.json(f"/data/{whole}/runs")["count"] == 2
        assert viewer.json(f"/data/{part}/runs")["rows"] == [[1, 3, 4]]
        assert len(store) == 7
    store.close()
    assert "closed" in viewer.error(f"/data/{whole}/runs", 400)


def damaged_steps(path: Path) -> Path:
    """Twenty runs of 512 rows of 8 bytes; a bit of the rows of run 7 is another."""
    with sw.StepWriter(path, [("x", "<f4"), ("reward", "<f4")], columns={}) as writer:
        for run in range(20):
            writer.append({"x": np.full(512, run), "reward": np.ones(512)})
    place = 128 + (7 * 512 + 100) * 8
    with (path / "steps.npy").open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))
    return path


def test_a_damaged_run_is_shown_as_damaged_and_the_rest_is_fine(
    viewer: Viewer, tmp_path: Path
) -> None:
    number = number_of(viewer, damaged_steps(tmp_path / "steps"))
    found = viewer.json(f"/data/{number}/run", key=7)
    assert "expected CRC32C" in found["damage"]
    assert (found["steps"], found["curve"]["reward"]["max"][0]) == (512, None)
    header, parts = viewer.chunk(number, 7, 0, 512)
    assert "steps.npy" in header["damage"]
    assert np.isnan(parts["x"]).any()
    assert set(parts["x"][~np.isnan(parts["x"])]) <= {7.0}
    for key in (6, 8, 19):
        assert viewer.json(f"/data/{number}/run", key=key)["damage"] in (None, found["damage"])
    header, parts = viewer.chunk(number, 12, 0, 512)
    assert header["damage"] is None
    assert (parts["x"] == 12).all()
    assert viewer.json(f"/data/{number}/runs")["count"] == 20
    rows = viewer.json(f"/data/{number}/rows", rows=f"0,{7 * 512 + 100},9000")
    assert [each is None for each in rows["damage"]] == [True, False, True]
    assert rows["columns"]["x"][1] is None


def damaged_games(folder: Path, path: Path) -> Path:
    """Three games, of which the second is damaged; SQL over the runs of a pack reads all."""
    data = bytearray((folder / "games.a2pack").read_bytes())
    with sw.PackReader(folder / "games.a2pack") as pack:
        offset = data.index(bytes(pack.slice(1)))
    data[offset + 100] ^= 1
    path.write_bytes(data)
    return path


def test_a_damaged_game_leaves_the_others(viewer: Viewer, folder: Path, tmp_path: Path) -> None:
    number = number_of(viewer, damaged_games(folder, tmp_path / "games.a2pack"))
    want = viewer.json(f"/data/{number_of(viewer, folder / 'games.a2pack')}/runs")
    found = viewer.json(f"/data/{number}/runs")
    assert "entry 1: expected CRC32C" in found["damage"]
    assert (found["columns"], found["count"]) == (want["columns"], 3)
    nothing = [None] * (len(want["columns"]) - 1)
    assert found["rows"][1] == [1, *nothing]
    places = [i for i, name in enumerate(want["columns"]) if name != "kind"]
    for run in (0, 2):
        assert [found["rows"][run][i] for i in places] == [want["rows"][run][i] for i in places]
    assert viewer.json(f"/data/{number}/runs", offset=2)["rows"] == found["rows"][2:]
    assert viewer.json(f"/data/{number}/near", key=1)["next"] == 2

    about = viewer.json(f"/data/{number}/run", key=2)
    assert (about["damage"], about["steps"]) == (
        None,
        want["rows"][2][want["columns"].index("steps")],
    )
    assert viewer.chunk(number, 2, 0, 5)[0]["damage"] is None
    assert "entry 1" in viewer.json(f"/data/{number}/run", key=1)["damage"]
    for query in ({"where": "steps > 0"}, {"sort": "steps"}):  # which nobody can know
        assert "entry 1" in viewer.error(f"/data/{number}/runs", 422, **query)
    for key in ("3", "x", "-1"):
        assert viewer.get(f"/data/{number}/chunk", key=key).status_code in (404, 422)


def test_a_damaged_frame(viewer: Viewer, tmp_path: Path) -> None:
    replays.record_all(tmp_path, "run", range(10))
    (place, size), *_ = replays.places_of(tmp_path / "replay" / "run.h5", ["frames"])["frames"][1:]
    with replays.flipped(tmp_path / "replay" / "run.h5", place + size // 2):
        number = number_of(viewer, tmp_path)
        key = viewer.json(f"/data/{number}/runs")["rows"][0][0]
        header, parts = viewer.chunk(number, key, 0, 10)
        assert "run.h5" in header["damage"]
        # The second frame is that of the steps 3 to 5.
        assert [len(each) > 0 for each in parts["frame"]] == [True] * 3 + [False] * 3 + [True] * 4
        assert parts["reward"].tolist() == [float(n) for n in range(10)]
        assert viewer.get(f"/data/{number}/thumb", key=key).status_code in (200, 422)


def test_a_store_that_cannot_be_opened(viewer: Viewer, tmp_path: Path) -> None:
    damaged_steps(tmp_path / "steps")
    (tmp_path / "steps" / "metadata.db").write_bytes(b"no database")
    number = number_of(viewer, tmp_path / "steps")
    for route in ("about", "runs", "rows"):
        assert "metadata.db" in viewer.error(f"/data/{number}/{route}", 422)
    assert "metadata.db" in viewer.json(f"/data/{number}/run", key=1)["damage"]


def test_a_run_whose_file_is_gone(viewer: Viewer, tmp_path: Path) -> None:
    for run in ("a", "b"):
        replays.record_all(tmp_path, run, range(10))
    number = number_of(viewer, tmp_path)
    (tmp_path / "replay" / "a.h5").unlink()
    keys = [row[0] for row in viewer.json(f"/data/{number}/runs")["rows"]]
    assert len(keys) == 2
    found = viewer.json(f"/data/{number}/run", key=keys[0])
    assert found["damage"]
    assert found["steps"] == 0
    assert viewer.json(f"/data/{number}/run", key=keys[1])["damage"] is None


def test_answers_are_remembered_up_to_a_number(viewer: Viewer, folder: Path) -> None:
    entry = viewer.add(sw.open(folder / "steps"))
    for key in range(30):
        for condition in ("id = ?".replace("?", str(key)), f"id > {key}"):
            viewer.json(f"/data/{entry.number}/runs", where=condition)
        viewer.json(f"/data/{entry.number}/run", key=key)
    assert {kind: len(known) for kind, known in entry._known.items()} == {
        "columns": 1, "count": 16, "episode": 16
    }  # fmt: skip


def test_many_at_once(viewer: Viewer, folder: Path) -> None:
    """Ten browsers."""
    number = number_of(viewer, folder / "games")
    want = viewer.get(f"/data/{number}/chunk", key=1).content
    wrong: list[str] = []

    def browse() -> None:
        for _ in range(20):
            if viewer.get(f"/data/{number}/chunk", key=1).content != want:
                wrong.append("chunk")
            if viewer.json(f"/data/{number}/runs", where="id < 2")["count"] != 2:
                wrong.append("runs")

    threads = [threading.Thread(target=browse) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_files_are_closed_again(viewer: Viewer, tmp_path: Path) -> None:
    """Whoever clicks through episodes has few of them open."""
    for run in range(40):
        replays.record_all(tmp_path, f"run-{run}", range(1))
    number = number_of(viewer, tmp_path)
    keys = [row[0] for row in viewer.json(f"/data/{number}/runs")["rows"]]
    assert len(keys) == 40
    before = len(os.listdir("/proc/self/fd"))
    for key in keys * 2:
        viewer.json(f"/data/{number}/run", key=key)
        viewer.chunk(number, key, 0, 9)
    assert len(os.listdir("/proc/self/fd")) < before + 48  # of 80

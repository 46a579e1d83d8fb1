"""`ReplayReader.verify`: silent when all is well, and it finds whatever is not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stepwell.errors import ChecksumError, FormatError
from stepwell.replay import ReplayReader, ReplayWriter
from stepwell.telemetry import migrate_telemetry
from tests.old_telemetry import database, step
from tests.replays import change, flipped, places_of


def record(root: Path, run_id: str = "a", *, numbers: bool = True) -> None:
    draw = np.random.default_rng(1)
    with ReplayWriter(root, run_id) as writer:
        for episode in range(4):
            for i in range(6):
                writer.record_step(
                    observation={
                        "camera": draw.integers(256, size=(32, 40)).astype(np.uint8),
                        "place": draw.random(3),
                    },
                    action=i % 4 if numbers else draw.random(2),
                    reward=i / 3,
                    terminated=i == 5 and episode < 2,
                    frame=draw.integers(4, size=(20, 30, 3)).astype(np.uint8),
                    agent_id=f"env{episode % 2}",
                )
            if episode < 3:
                last = {"camera": np.zeros((32, 40), np.uint8), "place": np.zeros(3)}
                writer.end_episode(observation=last, agent_id=f"env{episode % 2}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    record(root)
    record(root, "b", numbers=False)
    return root


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "store")
    return tmp_path / "store"


def problems(root: Path) -> list[str]:
    try:
        with ReplayReader.open(root) as reader:
            return [str(problem) for problem in reader.verify().problems]
    except FormatError as error:  # a database that not even the table of episodes can be read of
        return [str(error)]


def test_a_store_that_is_whole(store: Path) -> None:
    calls: list[tuple[int, int]] = []
    with ReplayReader.open(store) as reader:
        assert reader.verify(progress=lambda done, total: calls.append((done, total))).ok
    total = 2 * (24 + 24 + 2 * 27 + 24)
    assert calls[-1] == (total, total)
    assert calls == sorted(calls)


def test_a_store_that_was_migrated(tmp_path: Path) -> None:
    with database(tmp_path / "old.sqlite") as connection:
        for name, indices in (("a-ep1", (1, 2, 5)), ("a-ep2", (0, 1, 2)), ("b-ep1", (4,))):
            for i in indices:
                step(connection, name, i, observation=[i, i], reward=i / 3)
    migrate_telemetry(tmp_path / "old.sqlite", tmp_path / "new")
    assert problems(tmp_path / "new") == []


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("UPDATE steps SET reward = 9 WHERE step_index = 3", "in the file"),
        ("UPDATE steps SET action = 9 WHERE step_index = 3", "in the file"),
        ("UPDATE steps SET terminated = 1 WHERE step_index = 0", "in the file"),
        ("UPDATE steps SET truncated = 1 WHERE step_index = 0", "in the file"),
        ("UPDATE steps SET frame_ref = NULL WHERE step_index = 2", "in the file"),
        ("UPDATE steps SET frame_ref = 'h5://a/frames/99' WHERE step_index = 2", "in the file"),
        ("UPDATE steps SET obs_ref = 'h5://b/observations/0'", "in the file"),
        ("DELETE FROM steps WHERE step_index = 5", "expected 6 steps, got 5"),
        ("DELETE FROM steps WHERE step_index = 2 AND run_id = 'b'", "expected 6 steps, got 5"),
        ("DELETE FROM episodes WHERE number = 1", "steps of the episode 'a-ep0001'"),
        ("UPDATE episodes SET total_reward = 4 WHERE number = 1", "expected total_reward"),
        ("UPDATE episodes SET steps = 5 WHERE number = 1", "its episodes have 23"),
        ("UPDATE episodes SET terminated = 0", "terminated, truncated: 0, 0, its steps have 1, 0"),
        ("UPDATE episodes SET ended = 0 WHERE number = 0", "it has not ended"),
        ("UPDATE episodes SET ended = 1", "it has ended, and not when"),
        ("UPDATE episodes SET ended_at = 'now'", "expected 4 that are over, got 3"),
        ("UPDATE episodes SET final_obs_ref = 'h5://a/observations/27'", "leads nowhere"),
        ("UPDATE episodes SET final_obs_ref = 'nowhere'", "leads nowhere"),
        ("UPDATE runs SET steps = 23, written = 23", "23 steps, its episodes have 24"),
        ("UPDATE runs SET episodes = 9", "9 episodes, the last is number 3"),
        ("UPDATE runs SET enqueued = 1", "1 steps taken, 24 written"),
        ("UPDATE runs SET rows = replace(rows, '\"frames\": 24', '\"frames\": 25')", "25 rows"),
        (
            "UPDATE runs SET rows = replace(rows, '\"frames\": 24', '\"frames\": 23')",
            "rows, as its file has, got",
        ),
        ("UPDATE runs SET channels = replace(channels, '[20, 30, 3]', '[20, 30]')", "got uint8"),
        ("UPDATE runs SET channels = replace(channels, 'place', 'peace')", "no number of rows for"),
        ("DELETE FROM runs WHERE run_id = 'b'", "expected a run 'b', which has a file"),
    ],
)
def test_numbers_that_do_not_agree(store: Path, sql: str, message: str) -> None:
    change(store, sql)
    found = problems(store)
    assert any(message in problem for problem in found), found


@pytest.mark.parametrize(
    ("dataset", "row", "named"),
    [
        *(("frames", 3, True), ("observations/camera", 26, True), ("actions", 9, True)),
        *(("observations/place", 26, True), ("steps", 3, False), ("rewards", 3, False)),
        *(("dones", 3, False), ("episodes/starts", 1, False), ("episodes/lengths", 1, False)),
    ],
)
def test_a_row_that_was_changed(store: Path, dataset: str, row: int, named: bool) -> None:
    path = store / "replay" / "a.h5"
    place, _ = places_of(path, [dataset])[dataset][row]
    with flipped(path, place), ReplayReader.open(store) as reader:
        found = reader.verify().problems
    assert found
    if named:
        (one,) = [problem for problem in found if isinstance(problem, ChecksumError)]
        assert f"{dataset}[{row}]" in str(one)


def _replaced(root: Path, make: Callable[[Path], None]) -> None:
    path = root / "replay" / "a.h5"
    path.unlink()
    make(path)


def _other_file(root: Path) -> None:
    shutil.copy(root / "replay" / "b.h5", root / "replay" / "a.h5")


def _short_file(root: Path) -> None:
    path = root / "replay" / "a.h5"
    path.write_bytes(path.read_bytes()[:6000])


def _other_index(root: Path) -> None:
    index = json.loads((root / "replay" / "index.json").read_text())
    index["a"]["steps"] = 3
    (root / "replay" / "index.json").write_text(json.dumps(index))


def _broken_database(root: Path) -> None:
    path = root / "telemetry" / "telemetry.sqlite"
    data = bytearray(path.read_bytes())
    data[4096:] = bytes(len(data) - 4096)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: (root / "replay" / "a.h5").unlink(), "the file of the run is missing - at"),
        (lambda root: _replaced(root, Path.mkdir), "a.h5"),
        (lambda root: _replaced(root, lambda path: path.symlink_to("a.h5")), "a.h5"),
        (_other_file, "expected the run 'a', got 'b'"),
        (_short_file, "a.h5"),
        (lambda root: (root / "replay" / "index.json").unlink(), "cannot be read"),
        (_other_index, "index.json"),
        (_broken_database, "SQLite"),
    ],
)
def test_files_that_are_not_as_they_were(
    store: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(store)
    found = problems(store)
    assert any(message in problem for problem in found), found


def test_at_most_a_hundred(store: Path) -> None:
    for run in "cde":
        record(store, run)
    change(store, "UPDATE steps SET reward = reward + 1")
    assert len(problems(store)) == 100

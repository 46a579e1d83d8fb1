"""Runs and episodes that are removed: what goes, what stays, and who notices."""

import os
import pickle
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest

from stepwell import BusyError, FormatError
from stepwell.files.lock import WriterLock
from stepwell.files.regular import bytes_on_disk
from stepwell.replay import FrameResolver, ReplayReader, ReplayWriter, remove, remove_run
from stepwell.stores.replay.directory import find_mark
from tests.reference.replay import read_store
from tests.replays import (
    assert_tree,
    frame,
    is_whole,
    numbers_of,
    observation,
    record,
    record_all,
)


@pytest.fixture
def root(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs, each of ten episodes of ten steps, two of which are deleted at a time."""
    monkeypatch.setattr("stepwell.stores.replay.remove._STEPS_AT_ONCE", 20)
    for number, name in enumerate("abc"):
        record_all(quick_path, name, range(number * 100, number * 100 + 100))
    return quick_path


def stored_bytes(root: Path) -> int:
    """Of the arrays whose rows do not share chunks."""
    with ReplayReader.open(root) as reader:
        sizes = reader.sizes("a")
    return sum(sizes[name][1] for name in ("frames", "observations/camera"))


def test_a_run_goes_with_its_files(root: Path) -> None:
    before = bytes_on_disk(root)
    done = remove(root, "run_id = ?", "b")
    assert done[:3] == (1, 10, 100)
    assert done.bytes == before - bytes_on_disk(root) > before / 4
    assert sorted(os.listdir(root / "replay")) == [
        ".a.lock",
        ".c.lock",
        "a.h5",
        "c.h5",
        "index.json",
    ]
    remove_run(root, "c")
    assert is_whole(root)
    assert numbers_of(root, "a") == list(range(100))
    with pytest.raises(KeyError, match="there is no run 'c'"):
        remove_run(root, "c")
    record_all(root, "c", range(5))  # a new one
    assert numbers_of(root, "c") == list(range(5))


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_episodes_go_and_references_to_others_stay(quick_path: Path, codec: str) -> None:
    record_all(quick_path, "a", range(100), compress=codec)
    file = quick_path / "replay" / "a.h5"
    before = stored_bytes(quick_path), bytes_on_disk(file)
    assert remove(quick_path, "number NOT IN (4, 7)")[:3] == (0, 8, 80)
    returned = before[0] - stored_bytes(quick_path)
    assert returned > before[0] * 0.7
    assert before[1] - bytes_on_disk(file) > returned * 0.9
    assert is_whole(quick_path)
    assert numbers_of(quick_path, "a") == [*range(40, 50), *range(70, 80)]
    with FrameResolver(quick_path) as resolver:
        assert_tree(resolver.resolve("h5://a/observations/41"), observation(41))
        assert resolver.resolve_batch(["h5://a/frames/0", "h5://a/actions/3"]) == [None, None]
        for gone in ("frames/0", "actions/3", "observations/99"):
            with pytest.raises(FormatError, match="episodes of this run were removed"):
                resolver.resolve(f"h5://a/{gone}", missing="raise")
    with h5py.File(file) as plain:
        assert_tree(plain["frames"][14], frame(42))
        assert not plain["frames"][0].any()


def test_a_run_goes_on_after_a_removal(root: Path) -> None:
    """Names are not given again, and the next removal knows of the first."""
    remove(root, "run_id = 'a' AND number > 5")
    record_all(root, "a", range(300, 320))
    with ReplayReader.open(root, run="a") as reader:
        assert reader.episodes[-1].episode_id == "a-ep0011"
        run = reader.recordings["a"]
        assert (run.steps, run.episodes, run.written) == (80, 8, 120)
        assert reader.describe().facts["recordings"]["a"]["episodes"] == 8
    with ReplayWriter(root, "a", mode="a") as writer:  # for which the file is made new
        writer.record_step(reward=320, action=320, observation=observation(320), frame=None)
        writer.end_episode(observation=observation(321))
    remove(root, "run_id = 'a' AND number < 2")
    assert is_whole(root)
    assert numbers_of(root, "b") == list(range(100, 200))
    with ReplayReader.open(root, run="a") as reader:
        assert [e.number for e in reader.episodes] == [2, 3, 4, 5, 10, 11, 12]
        assert reader["reward"][:].tolist() == [*range(20, 60), *range(300, 321)]
        assert_tree(reader.episode("a-ep0012").final_observation, observation(321))


def test_open_readers_keep_theirs(root: Path) -> None:
    with ReplayReader.open(root) as reader, ReplayReader.open(root) as late:
        before = reader[:]
        part = reader.where("run_id = 'c'")
        part[:]
        remove(root, "run_id = 'a' AND number < 9 OR run_id = 'b'")
        remove_run(root, "c")
        record_all(root, "c", range(7))
        for name, column in reader[:].items():
            assert np.array_equal(column, before[name])
        assert len(part[:]["reward"]) == 100
        with pytest.raises(KeyError, match="'a-ep0000' was removed since"):
            reader.episode("a-ep0000")
        for gone in (late, pickle.loads(pickle.dumps(part))):  # they had no file open
            with pytest.raises((FormatError, FileNotFoundError)):
                gone[:]
        assert reader.refresh()
        assert sorted(reader["reward"][:]) == [*range(6), *range(90, 100)]
        assert not reader.refresh()
        record_all(root, "a", range(400, 410))
        assert reader.refresh()
        assert 409 in reader["reward"][:]


def test_what_is_removed_before_it_was_read_is_named(root: Path) -> None:
    with ReplayReader.open(root, run="a") as reader:
        remove_run(root, "a")
        with pytest.raises(FileNotFoundError, match="the run 'a' was removed since, or its file"):
            reader[:]


def test_the_oldest_go_until_the_rest_fits(root: Path) -> None:
    size = bytes_on_disk(root)
    guess = remove(root, keep_bytes=size * 0.7, dry_run=True)
    done = remove(root, keep_bytes=size * 0.7)
    assert bytes_on_disk(root) <= size * 0.7
    assert guess.episodes <= done.episodes < 20
    with ReplayReader.open(root) as reader:
        left = [(e.run_id, e.number) for e in reader.episodes]
    assert left == [(run, number) for run in "bc" for number in range(10)][-len(left) :]
    assert is_whole(root)
    assert remove(root, keep_bytes=1e12).episodes == 0
    with ReplayWriter(root, "c", mode="a"):  # left alone, as it is recorded
        assert remove(root, keep_bytes=1).episodes == len(left) - 10
    with ReplayReader.open(root) as reader:
        assert list(reader.recordings) == ["c"]


def test_a_run_that_is_recorded_is_refused(root: Path) -> None:
    with ReplayWriter(root, "b", mode="a") as writer:
        with pytest.raises(BusyError, match="expected runs that nobody records, got 'b'"):
            remove(root, "1")
        with pytest.raises(BusyError, match="another writer records run 'b'"):
            remove_run(root, "b")
        record(writer, 200)
    assert len(ReplayReader.open(root).episodes) == 31
    with pytest.raises(ValueError, match="expected a condition or keep_bytes"):
        remove(root)
    assert remove(root, "1")[:2] == (3, 31)
    assert is_whole(root)


def test_two_removals_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other has removed the run by the time that this one has its lock."""
    remove(root, "run_id = 'a' AND number = 0")  # the next one looks whether that is finished

    def late(path: Path) -> WriterLock:
        with monkeypatch.context() as other:
            other.setattr("stepwell.stores.replay.remove.WriterLock", WriterLock)
            with suppress(KeyError):
                remove_run(root, path.name[1])
        return WriterLock(path)

    monkeypatch.setattr("stepwell.stores.replay.remove.WriterLock", late)
    with pytest.raises(KeyError, match="there is no run 'c'"):
        remove_run(root, "c")
    assert remove(root, "number < 5")[:3] == (0, 0, 0)
    assert os.listdir(root / "replay") == ["index.json"]


@pytest.mark.parametrize("where", ["run_id = 'b'", "run_id = 'b' AND number = 3"])
def test_a_removal_that_was_killed(root: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are in the file until another one finishes it, and nobody refers to them."""
    monkeypatch.setattr("stepwell.stores.replay.remove.finish_removal", lambda *_: None)
    remove(root, where)
    store = read_store(root)
    with ReplayReader.open(root) as reader:
        assert {e.episode_id for e in reader.episodes} == set(store.episodes)
        assert len(reader) == len(store.steps)
        assert reader.verify().ok


@pytest.mark.parametrize("again", [False, True])
def test_readers_open_while_a_run_goes(
    root: Path, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They see its file, and by the time that they look for its row that is gone."""
    with monkeypatch.context() as killed:
        killed.setattr("stepwell.stores.replay.remove.finish_removal", lambda *_: None)
        remove_run(root, "b")

    def late(file: int) -> int | None:
        monkeypatch.undo()
        mark = find_mark(file)
        remove(root, "0")  # finishes it
        if again:
            record_all(root, "b", range(3))
        return mark

    monkeypatch.setattr("stepwell.stores.replay.layout.find_mark", late)
    monkeypatch.setattr(os, "listdir", lambda path: ["b.h5", "a.h5", "c.h5"])
    with ReplayReader.open(root) as reader:
        reader.refresh()
        assert list(reader.recordings) == (["a", "c", "b"] if again else ["a", "c"])
        assert reader.verify().ok


@pytest.mark.parametrize("where", ["run_id = 'b'", "run_id = 'b' AND number = 3"])
def test_verify_beside_a_removal(root: Path, where: str) -> None:
    """What is removed after the database was looked at is no damage."""
    with ReplayReader.open(root) as reader:
        begun: list[int] = []

        def once(done: int, total: int) -> None:
            if not begun:
                begun.append(done)
                remove(root, where)

        report = reader.verify(progress=once)
        assert report.ok, str(report)
        assert "removed meanwhile" in str(report)


def test_a_damaged_run(root: Path) -> None:
    """Some of its episodes cannot be removed; others, and all of it, can."""
    file = root / "replay" / "a.h5"
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(FormatError, match=r"a\.h5"):
        remove(root, "run_id = 'a' AND number = 0")
    assert len(ReplayReader.open(root).episodes) == 30
    assert remove(root, "run_id = 'b' AND number = 0 OR run_id = 'a'")[:2] == (1, 11)
    assert is_whole(root)

"""What a replay writer takes, refuses, and leaves behind however it ends."""

import gc
import math
import os
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from stepwell import BusyError, FormatError, SchemaError
from stepwell.replay import FrameResolver, LaneReader, LaneWriter, ReplayReader, ReplayWriter
from stepwell.stores.replay.disk import RunDisk
from tests import children
from tests.reference.replay import read_store
from tests.replays import (
    assert_tree,
    camera,
    change,
    frame,
    numbers_of,
    observation,
    pose,
    record,
    record_all,
)
from tests.writer_contract import WriterContract, WriterKit

CODECS = ["zstd", "gzip", "lzf", "none"]


class Kit(WriterKit):
    """A stamp is an episode of two steps: one array is packed, one shares its chunk. From the
    fourth on there is a frame, for which the file has to be made new."""

    store = ReplayReader
    writer = ReplayWriter
    has_rollback = False
    recordable = False  # SQLite and HDF5 write by themselves

    def open(self, path: Path, mode: Any = "x") -> ReplayWriter:
        return ReplayWriter(path, "run", mode=mode, flush_every=1e9)

    def append(self, writer: ReplayWriter, stamp: int) -> None:
        for last in (False, True):
            writer.record_step(
                reward=stamp,
                observation={"camera": camera(stamp), "pose": pose(stamp)},
                action=stamp,
                frame=frame(stamp) if last and stamp > 3 else None,
                terminated=last,
            )

    def stamps(self, store: ReplayReader) -> list[int]:
        found = store[:]
        stamps: list[int] = found["reward"][::2].astype(int).tolist()
        assert found["reward"].tolist() == [stamp for stamp in stamps for _ in range(2)]
        assert found["terminated"].tolist() == [False, True] * len(stamps)
        for row in range(len(found["reward"])):
            stamp = stamps[row // 2]
            assert found["action"][row] == stamp
            assert_tree(found["observation/camera"][row], camera(stamp))
            assert_tree(found["observation/pose"][row], pose(stamp))
        return stamps


KIT = Kit()


class TestWriter(WriterContract):
    kit = KIT


# What comes back.


@pytest.mark.parametrize("codec", CODECS)
def test_codecs_read_back_equal(quick_path: Path, codec: str) -> None:
    record_all(quick_path, "run", range(40), compress=codec)
    assert numbers_of(quick_path) == list(range(40))
    with h5py.File(quick_path / "replay" / "run.h5") as file:  # closed: no SWMR needed
        assert_tree(file["observations/camera"][:], np.array([camera(n) for n in range(40)]))
        assert_tree(file["frames"][:], np.array([frame(n) for n in range(0, 40, 3)]))


@pytest.mark.parametrize("codec", CODECS)
def test_a_row_that_packing_makes_longer_is_copied(quick_path: Path, codec: str) -> None:
    with ReplayWriter(quick_path, "run", compress=codec) as writer:
        writer.record_step(reward=0, frame=frame(1))  # noise
        writer.commit()
        writer.record_step(reward=1, observation=pose(1))  # for which the file is made new
    assert_tree(read_store(quick_path).runs["run"].datasets["frames"], frame(1)[None])


def test_references_are_of_what_was_recorded(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run") as writer:
        refs = [record(writer, number, agent_id="ab"[number % 2]) for number in range(10)]
        assert [ref.episode_id for ref in refs[:3]] == ["run-ep0000", "run-ep0001", "run-ep0000"]
        assert [ref.step_index for ref in refs[:4]] == [0, 0, 1, 1]
        assert [ref.frame_ref for ref in refs[:4]] == [
            *("h5://run/frames/0", None, None),
            "h5://run/frames/1",
        ]
        assert [ref.action_ref for ref in refs[:2]] == [
            *("h5://run/actions/0", "h5://run/actions/1"),
        ]
        writer.commit()
        with FrameResolver(quick_path) as resolver:
            for number, ref in enumerate(refs):
                assert_tree(resolver.resolve(ref.obs_ref), observation(number))


def test_arrays_may_be_changed_at_once(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run") as writer:
        seen = np.zeros((30, 40), np.uint8)
        for number in range(20):
            seen[:] = number
            writer.record_step(reward=number, observation=seen)
            seen[:] = 255
    found = read_store(quick_path).runs["run"].datasets["observations"]
    assert found[:, 0, 0].tolist() == list(range(20))


@pytest.mark.parametrize(
    "made",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(24, dtype=">i4")[::2],
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.array([True, False]),
        np.float16(1.5),
        [1, 2, 3],
        7,
        2.5,
        np.arange(5).view(np.recarray),
    ],
    ids=repr,
)
def test_any_numbers(quick_path: Path, made: Any) -> None:
    with ReplayWriter(quick_path, "run") as writer:
        writer.record_step(reward=0, observation=made, action=made)
        writer.record_step(reward=0, observation=made, action=made)
    want = np.asarray(made)
    want = want.astype(want.dtype.newbyteorder("<"))
    data = read_store(quick_path).runs["run"].datasets
    assert_tree(data["observations"], np.array([want, want]))
    assert_tree(data["actions"], np.array([want, want]))


@pytest.mark.parametrize(
    ("actions", "wrong"),
    [([5, np.int32(6), True], 1.5), ([0.5, 7, 2**53, -(2**53)], 2**53 + 1)],
)
def test_numbers_become_those_of_before_where_nothing_is_lost(
    quick_path: Path, actions: list[Any], wrong: Any
) -> None:
    with ReplayWriter(quick_path, "run") as writer:
        for action in actions:
            writer.record_step(reward=0, action=action)
        with pytest.raises(SchemaError, match=r"expected (int64|float64)"):
            writer.record_step(reward=0, action=wrong)
    with ReplayReader.open(quick_path) as reader:
        assert_tree(reader["action"][:], np.array(actions))


def test_more_arrays_than_a_page_can_name(quick_path: Path) -> None:
    """The directory before the HDF5 is as long as it has to be."""
    seen = {f"sensor {i:03} {'x' * 100}": np.full(2, i) for i in range(200)}
    with ReplayWriter(quick_path, "run") as writer:
        writer.record_step(reward=0, observation=seen)
    with ReplayReader.open(quick_path) as reader:
        assert_tree(reader.resolver.resolve("h5://run/observations/0", missing="raise"), seen)


def test_the_order_of_keys_does_not_matter(quick_path: Path) -> None:
    one, two = np.zeros(3), np.ones(4)
    with ReplayWriter(quick_path, "run") as writer:
        writer.record_step(reward=0, observation={"a": one, "b": two})
        writer.record_step(reward=0, observation={"b": two + 1, "a": one + 1})
    data = read_store(quick_path).runs["run"].datasets
    assert data["observations/a"].tolist() == [[0, 0, 0], [1, 1, 1]]
    assert data["observations/b"].tolist() == [[1, 1, 1, 1], [2, 2, 2, 2]]


@pytest.mark.parametrize("odd", [math.nan, 2**63 + 5, np.float32(0.1)], ids=repr)
def test_actions_that_sqlite_cannot_hold(quick_path: Path, odd: Any) -> None:
    other = np.asarray(odd).dtype.type(3)
    odd = np.asarray(odd).dtype.type(odd)
    with ReplayWriter(quick_path, "run") as writer:
        for action in (other, odd, other):
            writer.record_step(reward=0, action=action)
    read_store(quick_path)
    with ReplayReader.open(quick_path) as reader:
        found = reader.episode("run-ep0000").actions
        assert_tree(found, np.array([other, odd, other]))
        assert_tree(reader[:]["action"], found)


def test_info_of_any_kind(quick_path: Path) -> None:
    info: dict[Any, Any] = {
        "number": np.int64(3),
        "small": np.arange(3),
        "large": np.zeros(1000),
        "long": np.longdouble(1.5),
        "when": np.datetime64("2026-01-01"),
        "other": object,
        "bytes": b"x",
        3: "three",
        ("a", "b"): "left out",
    }
    with ReplayWriter(quick_path, "run") as writer:
        writer.record_step(reward=0, info=info)
        writer.record_step(reward=0, info={})
        circle: dict[str, Any] = {}
        circle["circle"] = circle
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        for wrong in (circle, {"deep": deep}):
            with pytest.raises(TypeError, match="info: "):
                writer.record_step(reward=0, info=wrong)
    with ReplayReader.open(quick_path) as reader:
        found, nothing = reader.episode("run-ep0000").infos
    assert nothing == {}
    assert (found["number"], found["small"], found["3"]) == (3, [0, 1, 2], "three")
    assert found["large"] == "float64 (1000,)"
    assert found["when"].startswith("2026-01-01")


# Mistakes in a call.


@pytest.mark.parametrize(
    "run_id", ["", "a/b", "../a", ".a", ".", "..", "x" * 129, "x" * 300, "ä", "a b", "a\n", "a\0"]
)
def test_names_of_runs(tmp_path: Path, run_id: str) -> None:
    wrong: Any = 3
    makes: list[Callable[[str], object]] = [
        lambda name: ReplayWriter(tmp_path, name),
        lambda name: LaneWriter(name, (2, 2)),
        LaneReader,
    ]
    for make in makes:
        with pytest.raises(ValueError, match="run_id: expected 1 to 128 letters"):
            make(run_id)
        with pytest.raises(TypeError, match="run_id: expected text, got int"):
            make(wrong)
    assert list(tmp_path.rglob("*")) == []


def test_a_name_with_dots(tmp_path: Path) -> None:
    name = "ppo-v1.2.h5"
    with ReplayWriter(tmp_path, name) as writer, ReplayWriter(tmp_path, "ppo-v1.2") as other:
        refs = writer.record_step(reward=1, observation=camera(1))
        other.record_step(reward=2, observation=camera(2))
    with ReplayReader.open(tmp_path) as reader:
        assert list(reader.recordings) == [name, "ppo-v1.2"]
        assert reader.verify().ok
        assert refs is not None
        assert_tree(reader.resolver.resolve(str(refs.obs_ref)), camera(1))
    assert len(read_store(tmp_path).runs) == 2
    with LaneWriter(name, (2, 2)), LaneReader(name) as lane:
        assert name in repr(lane)


def test_a_name_of_128_letters(tmp_path: Path) -> None:
    with ReplayWriter(tmp_path, "x" * 128) as writer:
        writer.record_step(reward=1, observation=camera(1))
    with ReplayReader.open(tmp_path) as reader:
        assert list(reader.recordings) == ["x" * 128]
        assert_tree(reader.episode("x" * 128 + "-ep0000").observations[0], camera(1))


@pytest.mark.parametrize(
    "options",
    [
        {"compress": "blosc"},
        {"when_full": "wait"},
        {"queue_bytes": 0},
        {"queue_bytes": math.nan},
        {"queue_bytes": math.inf},
        {"flush_every": 0},
        {"flush_every": math.nan},
    ],
    ids=repr,
)
def test_options(tmp_path: Path, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}: expected"):
        ReplayWriter(tmp_path, "run", **options)
    assert list(tmp_path.rglob("*")) == []


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"reward": math.nan}, ValueError, "reward: expected a finite number, got nan"),
    ({"reward": math.inf}, ValueError, "reward: expected a finite number, got inf"),
    ({"reward": -math.inf}, ValueError, "reward: expected a finite number, got -inf"),
    ({"reward": "much"}, ValueError, "much"),
    ({"reward": None}, TypeError, "float"),
    ({"observation": "text"}, SchemaError, "observations: expected"),
    ({"observation": object}, SchemaError, "observations: expected"),
    ({"observation": {}}, SchemaError, "empty dict"),
    ({"observation": ()}, SchemaError, "empty tuple"),
    ({"observation": {"a": {}}}, SchemaError, "observations/a: .* empty dict"),
    ({"observation": []}, SchemaError, "expected 1 to .* bytes, got 0"),
    ({"observation": np.zeros((3, 0))}, SchemaError, "expected 1 to .* bytes, got 0"),
    ({"observation": np.array(["a"])}, SchemaError, "observations: expected"),
    ({"observation": np.ma.masked_less([1, 2], 2)}, SchemaError, "observations: .* masked"),
    ({"action": np.ma.masked}, SchemaError, "actions: .* masked"),
    ({"observation": np.array([None])}, SchemaError, "observations: expected"),
    ({"observation": [[1], [1, 2]]}, SchemaError, "observations: not an array"),
    ({"observation": np.zeros(2, "c16")}, SchemaError, "expected"),
    ({"observation": np.zeros(2, "M8[s]")}, SchemaError, "expected"),
    ({"observation": np.zeros(2, "g")}, SchemaError, "expected"),
    ({"observation": np.zeros(2, [("a", "i4")])}, SchemaError, "expected"),
    ({"observation": np.zeros((1,) * 32)}, SchemaError, "31 dimensions"),
    ({"observation": {"a/b": 1}}, SchemaError, "'a/b' cannot be the name"),
    ({"observation": {"..": 1}}, SchemaError, "cannot be the name"),
    ({"observation": {"": 1}}, SchemaError, "cannot be the name"),
    ({"observation": {"(0)": 1}}, SchemaError, "cannot be the name"),
    ({"observation": {3: 1}}, SchemaError, "3 cannot be the name"),
    ({"observation": {"\ud800": 1}}, SchemaError, "cannot be the name"),
    ({"action": "left"}, SchemaError, "actions: expected"),
    ({"action": 2**70}, SchemaError, "actions: expected"),
    ({"frame": np.zeros((4, 4, 3))}, SchemaError, "frame: expected uint8"),
    ({"frame": np.zeros(4, np.uint8)}, SchemaError, "frame: expected uint8"),
    ({"frame": {"a": np.zeros((4, 4), np.uint8)}}, SchemaError, "frame: expected"),
    ({"agent_id": 3}, TypeError, "agent_id: expected text, got int"),
    ({"agent_id": "\ud800"}, ValueError, "agent_id"),
    ({"info": [1]}, TypeError, "info"),
]


@pytest.mark.parametrize(("wrong", "kind", "message"), WRONG, ids=lambda value: repr(value)[:40])
def test_a_step_that_is_refused_leaves_no_trace(
    quick_path: Path, wrong: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with ReplayWriter(quick_path, "run") as writer:
        with pytest.raises(kind, match=message):
            writer.record_step(**{"reward": 0.0, **wrong})
        for number in range(3):
            record(writer, number)
        with pytest.raises((kind, SchemaError)):
            writer.record_step(**{"reward": 0.0, **wrong})
        record(writer, 3)
    assert numbers_of(quick_path) == [0, 1, 2, 3]
    assert [key for key, _ in read_store(quick_path).steps] == ["run-ep0000"] * 4
    assert [index for _, index in read_store(quick_path).steps] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "changed",
    [
        {"frame": np.zeros((20, 26, 3), np.uint8)},
        {"frame": np.zeros((20, 25, 3), np.uint16)},
        {"frame": np.zeros((20, 25), np.uint8)},
        {"frame": (np.zeros((20, 25, 3), np.uint8),)},
        {"observation": camera(0)},
        {"observation": {"camera": camera(0)}},
        {"observation": {**observation(0), "more": 1}},
        {"observation": {**observation(0), "inner": (np.zeros(3), np.int16(0))}},
        {"action": np.array([1])},
        {"action": {"a": 1}},
    ],
    ids=lambda value: repr(value)[:50],
)
@pytest.mark.parametrize("reopened", [False, True])
def test_arrays_that_change(quick_path: Path, changed: dict[str, Any], reopened: bool) -> None:
    writer = ReplayWriter(quick_path, "run")
    record(writer, 0)
    if reopened:
        writer.close()
        writer = ReplayWriter(quick_path, "run", mode="a")
    with writer:
        with pytest.raises(SchemaError, match=r"expected .* got"):
            record(writer, 1, **changed)
        record(writer, 1)
    assert numbers_of(quick_path) == [0, 1]


def test_ends_of_nothing(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run") as writer:
        writer.end_episode()
        with pytest.raises(ValueError, match="no episode that this observation could end"):
            writer.end_episode(observation=observation(0))
        record(writer, 0, terminated=True)
        writer.end_episode(observation=observation(1))
        writer.end_episode()
        with pytest.raises(ValueError, match="no episode"):
            writer.end_episode(observation=observation(2))
    (episode,) = read_store(quick_path).episodes.values()
    assert episode["ended"]
    assert episode["final_obs_ref"] == "h5://run/observations/1"


# The end of a writer.


def test_a_block_that_fails_cuts_what_was_going_on(quick_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), ReplayWriter(quick_path, "run") as writer:  # noqa: PT012
        for number in range(12):
            record(writer, number, agent_id="ab"[number % 2], terminated=number == 9)
        raise ZeroDivisionError
    assert numbers_of(quick_path) == list(range(12))
    with ReplayReader.open(quick_path) as reader:
        ends = {
            e.episode_id: (e.steps, e.ended, e.terminated, e.truncated) for e in reader.episodes
        }
        assert reader.verify().ok
        assert all(e.over for e in reader.episodes)  # cut, which `ended` does not mean
    assert ends == {
        "run-ep0000": (6, False, False, False),
        "run-ep0001": (5, True, True, False),
        "run-ep0002": (1, False, False, False),
    }


def test_a_writer_that_was_forgotten(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is closed, even where its warning is an error."""
    writer = ReplayWriter(quick_path, "run", flush_every=60)
    for number in range(30):
        record(writer, number)
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del writer
        gc.collect()
    assert [repr(u.exc_value) for u in unraisable] == [
        "ResourceWarning(\"the writer of run 'run' was not closed\")"
    ]
    assert numbers_of(quick_path) == list(range(30))
    ReplayWriter(quick_path, "run", mode="a").close()


def test_an_interpreter_that_ends_without_close(quick_path: Path) -> None:
    script = """
import sys
from stepwell.replay import ReplayWriter
from tests.replays import record
writer = ReplayWriter(sys.argv[1], "run", flush_every=60)
for number in range(50):
    record(writer, number)
"""
    children.answer(script, quick_path)
    assert numbers_of(quick_path) == list(range(50))
    assert read_store(quick_path).runs["run"].row["state"] == "closed"


def test_nothing_stays_open(quick_path: Path) -> None:
    def files() -> list[str]:
        links = [Path("/proc/self/fd") / number for number in os.listdir("/proc/self/fd")]
        names = [os.readlink(link) for link in links if link.is_symlink()]
        return [name for name in names if name.startswith(str(quick_path))]

    def look() -> None:
        with ReplayReader.open(quick_path) as reader:
            reader.take(range(len(reader)))
            reader.episode("run-ep0000")
            for ref in ("h5://run/observations/999", "h5://other/observations/5"):
                with pytest.raises((IndexError, FileNotFoundError)):
                    reader.resolver.resolve(ref, missing="raise")

    for first in range(0, 50, 10):
        record_all(quick_path, "run", range(first, first + 10))
        look()
        with ReplayWriter(quick_path, "run", mode="a") as writer, pytest.raises(SchemaError):
            record(writer, first, action="left")
        with ReplayWriter(quick_path, "run", mode="a"), pytest.raises(BusyError):
            ReplayWriter(quick_path, "run", mode="a")
    threads = [t.name for t in threading.enumerate()]
    assert "stepwell-replay" not in threads
    assert files() == []


# Another writer.


def test_readers_that_ask_do_not_keep_writers_out(quick_path: Path) -> None:
    """Whether somebody holds the lock can only be seen by taking it for a moment."""
    record_all(quick_path, "run", range(2))
    change(quick_path, "UPDATE runs SET state = 'recording'")
    over = threading.Event()

    def ask() -> None:
        with ReplayReader.open(quick_path) as reader:
            while not over.is_set():
                reader.refresh()
                assert reader.recordings["run"].state in ("interrupted", "recording", "closed")

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            for _ in range(30):
                disk = RunDisk(quick_path, "run")
                disk.abandon()
        finally:
            over.set()
    for each in asking:
        each.result()


def test_a_file_that_the_database_does_not_know(quick_path: Path) -> None:
    record_all(quick_path, "run", range(2))
    (quick_path / "replay" / "run.h5").rename(quick_path / "replay" / "other.h5")
    with pytest.raises(FormatError, match=r"expected a run 'other', which has a file"):
        ReplayWriter(quick_path, "other")
    with pytest.raises(FileNotFoundError):
        ReplayWriter(quick_path, "run", mode="a")
    (quick_path / "replay" / "other.h5").rename(quick_path / "replay" / "run.h5")
    record_all(quick_path, "run", range(2, 4))
    assert numbers_of(quick_path) == [0, 1, 2, 3]


def test_several_runs_at_once_and_their_index(quick_path: Path) -> None:
    def work(run: int) -> None:
        for first in range(0, 40, 10):
            record_all(quick_path, f"run_{run}", range(first, first + 10))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    store = read_store(quick_path)
    for run in range(6):
        assert numbers_of(quick_path, f"run_{run}") == list(range(40))
        assert store.index[f"run_{run}"]["state"] == "closed"
        assert store.index[f"run_{run}"]["steps"] == 40


def test_a_writer_stays_where_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    with ReplayWriter("v", "run") as writer:
        writer.record_step(reward=0, observation=camera(0))
        writer.commit()
        monkeypatch.chdir(tmp_path / "sub")
        writer.record_step(reward=1, observation=camera(1), frame=frame(1))  # makes a new file
    assert list((tmp_path / "sub").iterdir()) == []
    with ReplayReader.open(tmp_path / "v") as reader:
        assert len(reader.episode("run-ep0000")) == 2
        assert reader.verify().ok


# Names of the caller's own.


def test_episodes_steps_and_times_of_the_callers_own(tmp_path: Path) -> None:
    names = ("morning", "run-ep0007", "noon")
    for part in range(2):  # by two writers, one after the other
        with ReplayWriter(tmp_path, "run", mode="a") as writer:
            for step in range(2 * part, 2 * part + 2):
                for name in names:
                    refs = writer.record_step(
                        reward=step, episode_id=name, step_index=10 * step, timestamp=f"t{step}"
                    )
                    assert refs is not None
                    assert (refs.episode_id, refs.step_index) == (name, 10 * step)
            if part:
                writer.end_episode(episode_id="morning", timestamp="late")
                refs = writer.record_step(reward=0, agent_id="another")
                assert refs is not None
                assert refs.episode_id == "run-ep0008"  # the first that is free
    with ReplayReader.open(tmp_path) as reader:
        assert reader.verify().ok
        found = {e.episode_id: e for e in reader.episodes}
        assert [found[name].number for name in names] == [0, 1, 2]
        morning = found["morning"]
        assert (morning.steps, morning.dropped, morning.total_reward) == (4, 27, 6.0)
        assert (morning.started_at, morning.ended_at, morning.ended) == ("t0", "late", False)
        assert reader.episode("noon").step_index.tolist() == [0, 10, 20, 30]


def test_moments_of_the_callers_own(tmp_path: Path) -> None:
    zone = timezone(timedelta(hours=2))
    moments: list[Any] = [0.5, datetime(2026, 1, 1, 2, tzinfo=zone), datetime(2026, 1, 1), "T+3"]
    with ReplayWriter(tmp_path, "run") as writer:
        for moment in moments:
            writer.record_step(reward=0, timestamp=moment)
        for wrong in (math.nan, 1e300, "\ud800"):
            with pytest.raises(ValueError, match="timestamp: expected text"):
                writer.record_step(reward=0, timestamp=wrong)
            with pytest.raises(ValueError, match="timestamp: expected text"):
                writer.end_episode(timestamp=wrong)
    with ReplayReader.open(tmp_path) as reader:
        assert reader.episode("run-ep0000").timestamps == (
            "1970-01-01T00:00:00.500000+00:00",
            "2026-01-01T00:00:00.000000+00:00",
            "2026-01-01T00:00:00",
            "T+3",
        )


def test_a_step_index_without_room_behind_it(tmp_path: Path) -> None:
    """One that the next step could not count on from would end the writer, and lose others."""
    with ReplayWriter(tmp_path, "run") as writer:
        writer.record_step(reward=1)
        for index in (2**62 + 1, 2**63 - 1, 2**63, 2**70):
            with pytest.raises(
                ValueError, match=f"step_index: expected at least 1, .* got {index}"
            ):
                writer.record_step(reward=2, step_index=index)
        writer.record_step(reward=3, step_index=2**62)
        refs = writer.record_step(reward=4, terminated=True)
        assert refs is not None
        assert refs.step_index == 2**62 + 1
    with ReplayReader.open(tmp_path) as reader:
        assert reader.verify().ok
        assert (reader.episodes[0].steps, reader.episodes[0].dropped) == (3, 2**62 - 1)
        assert reader.episode("run-ep0000").step_index.tolist() == [0, 2**62, 2**62 + 1]


def test_names_that_are_refused(tmp_path: Path) -> None:
    with ReplayWriter(tmp_path, "other") as writer:
        writer.record_step(reward=0, episode_id="taken", terminated=True)
    with ReplayWriter(tmp_path, "run") as writer:
        writer.record_step(reward=0, episode_id="mine", step_index=5)
        for options, message in (
            ({"episode_id": "taken"}, "is one of the run 'other', not 'run'"),
            ({"episode_id": "mine", "step_index": 5}, "step_index: expected at least 6, .* got 5"),
            ({"episode_id": "a\ud800"}, "episode_id: expected text"),
        ):
            with pytest.raises(ValueError, match=message):
                writer.record_step(reward=0, **options)
        writer.record_step(reward=0, episode_id="mine", terminated=True)
        with pytest.raises(ValueError, match="episode 'mine' has ended"):
            writer.record_step(reward=0, episode_id="mine")
        writer.record_step(reward=0)
        with pytest.raises(ValueError, match="a name that this writer gives"):
            writer.record_step(reward=0, episode_id="run-ep0000")
    with ReplayReader.open(tmp_path) as reader:
        assert reader.verify().ok
        assert [e.steps for e in reader.episodes] == [1, 2, 1]

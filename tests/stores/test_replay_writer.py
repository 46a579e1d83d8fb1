"""What a replay writer takes, refuses, and leaves behind however it ends."""

import errno
import gc
import json
import math
import os
import signal
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from stepwell import BusyError, FormatError, SchemaError, VersionError
from stepwell.replay import FrameResolver, ReplayReader, ReplayWriter
from stepwell.stores.replay.disk import RunDisk
from tests import children
from tests.crash.faults import on_a_small_disk
from tests.reference.replay import read_store, resolve
from tests.replays import assert_tree, camera, frame, observation, record, record_all, step

CODECS = ["zstd", "gzip", "lzf", "none"]


def numbers_of(root: Path, run_id: str = "run") -> list[int]:
    """The numbers of the steps that are there, in order, after a look at every one of them."""
    store = read_store(root)
    rows = [row for row in store.steps.values() if row["run_id"] == run_id]
    rows.sort(key=lambda row: row["reward"])
    with FrameResolver(root) as resolver:
        for row in rows:
            number = int(row["reward"])
            seen = resolver.resolve(row["obs_ref"], missing="raise")
            assert_tree(seen, observation(number))
            assert_tree(
                None if row["frame_ref"] is None else resolve(store, row["frame_ref"]),
                step(number)["frame"],
            )
            assert json.loads(row["info"]) == {"number": number}
    return [int(row["reward"]) for row in rows]


# What comes back.


@pytest.mark.parametrize("codec", CODECS)
def test_codecs_read_back_equal(quick_path: Path, codec: str) -> None:
    record_all(quick_path, "run", range(40), codec=codec)
    assert numbers_of(quick_path) == list(range(40))
    with h5py.File(quick_path / "replay" / "run.h5") as file:  # closed: no SWMR needed
        assert_tree(file["observations/camera"][:], np.array([camera(n) for n in range(40)]))
        assert_tree(file["frames"][:], np.array([frame(n) for n in range(0, 40, 3)]))


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
        writer.flush()
        with FrameResolver(quick_path) as resolver:
            for number, ref in enumerate(refs):
                assert_tree(resolver.resolve(ref.obs_ref), observation(number))


def test_it_goes_on_where_it_was_closed(quick_path: Path) -> None:
    for first in range(0, 60, 7):
        with ReplayWriter(quick_path, "run", codec="lzf" if first % 2 else "zstd") as writer:
            for number in range(first, min(first + 7, 60)):
                record(writer, number)
    assert numbers_of(quick_path) == list(range(60))
    assert len(read_store(quick_path).episodes) == 9


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


def test_smaller_numbers_become_those_of_before(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run") as writer:
        writer.record_step(reward=0, action=5)
        writer.record_step(reward=0, action=np.int32(6))
        writer.record_step(reward=0, action=True)
        with pytest.raises(SchemaError, match="expected int64"):
            writer.record_step(reward=0, action=1.5)
    assert read_store(quick_path).runs["run"].datasets["actions"].tolist() == [5, 6, 1]


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
    with ReplayReader(quick_path) as reader:
        found = reader.episode("run-ep0000").actions
        assert_tree(found, np.array([other, odd, other]))
        assert_tree(reader.steps(next_observation=False)[:]["action"], found)


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
        with pytest.raises(TypeError, match="info: "):
            writer.record_step(reward=0, info=circle)
    with ReplayReader(quick_path) as reader:
        found, nothing = reader.episode("run-ep0000").infos
    assert nothing == {}
    assert (found["number"], found["small"], found["3"]) == (3, [0, 1, 2], "three")
    assert found["large"] == "float64 (1000,)"
    assert found["when"].startswith("2026-01-01")


# Mistakes in a call.


@pytest.mark.parametrize(
    "run_id", ["", "a/b", "../a", "a.b", ".", "x" * 129, "x" * 300, "ä", "a b", "a\n", "a\0"]
)
def test_names_of_runs(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(ValueError, match="run_id: expected 1 to 128 letters"):
        ReplayWriter(tmp_path, run_id)
    assert list(tmp_path.rglob("*")) == []


def test_names_of_runs_are_text(tmp_path: Path) -> None:
    wrong: Any = 3
    with pytest.raises(TypeError, match="run_id: expected text, got int"):
        ReplayWriter(tmp_path, wrong)
    record_all(tmp_path, "x" * 128, range(2))
    assert numbers_of(tmp_path, "x" * 128) == [0, 1]


@pytest.mark.parametrize(
    "options",
    [
        {"codec": "blosc"},
        {"when_full": "wait"},
        {"queue_bytes": 0},
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
    ({"reward": "much"}, ValueError, "much"),
    ({"reward": None}, TypeError, "float"),
    ({"observation": "text"}, SchemaError, "observations: expected"),
    ({"observation": object()}, SchemaError, "observations: expected"),
    ({"observation": {}}, SchemaError, "empty dict"),
    ({"observation": ()}, SchemaError, "empty tuple"),
    ({"observation": {"a": {}}}, SchemaError, "observations/a: .* empty dict"),
    ({"observation": []}, SchemaError, "expected 1 to .* bytes, got 0"),
    ({"observation": np.zeros((3, 0))}, SchemaError, "expected 1 to .* bytes, got 0"),
    ({"observation": np.array(["a"])}, SchemaError, "observations: expected"),
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
        writer = ReplayWriter(quick_path, "run")
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


def test_after_close(quick_path: Path) -> None:
    writer = ReplayWriter(quick_path, "run")
    record(writer, 0)
    writer.close()
    writer.close()
    for call in (lambda: record(writer, 1), writer.flush, writer.end_episode):
        with pytest.raises(ValueError, match="the writer is closed"):
            call()
    assert numbers_of(quick_path) == [0]
    with h5py.File(quick_path / "replay" / "run.h5", "r+"):  # nothing of it is open any more
        pass


@pytest.mark.parametrize("action", ["error", "ignore"])
def test_a_writer_that_was_forgotten(quick_path: Path, action: Any) -> None:
    writer = ReplayWriter(quick_path, "run", flush_every=60)
    for number in range(30):
        record(writer, number)
    with warnings.catch_warnings(record=action == "ignore") as caught:
        warnings.simplefilter(action if action == "error" else "always")
        unraisable: list[Any] = []
        before, sys.unraisablehook = sys.unraisablehook, unraisable.append
        try:
            del writer
            gc.collect()
        finally:
            sys.unraisablehook = before
    if caught is not None:
        assert [str(w.message) for w in caught] == ["the writer of run 'run' was not closed"]
    else:
        assert [type(u.exc_value) for u in unraisable] == [ResourceWarning]
    assert numbers_of(quick_path) == list(range(30))
    ReplayWriter(quick_path, "run").close()


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
        with ReplayReader(quick_path) as reader:
            reader.steps()[:]
            reader.episode("run-ep0000")

    for first in range(0, 50, 10):
        record_all(quick_path, "run", range(first, first + 10))
        look()
        with ReplayWriter(quick_path, "run") as writer, pytest.raises(SchemaError):
            record(writer, first, action="left")
        with ReplayWriter(quick_path, "run"), pytest.raises(BusyError):
            ReplayWriter(quick_path, "run")
    threads = [t.name for t in threading.enumerate()]
    assert "stepwell-replay" not in threads
    assert files() == []


# Another writer.


def test_a_second_writer(quick_path: Path) -> None:
    script = """
import sys
from stepwell import BusyError
from stepwell.replay import ReplayWriter
try:
    ReplayWriter(sys.argv[1], "run")
except BusyError as error:
    print(error)
"""
    with ReplayWriter(quick_path, "run") as writer:
        record(writer, 0)
        with pytest.raises(BusyError, match="another writer"):
            ReplayWriter(quick_path, "run")
        assert "another writer" in children.answer(script, quick_path)
        record_all(quick_path, "other", range(5))
        record(writer, 1)
    assert children.answer(script, quick_path) == ""
    assert numbers_of(quick_path) == [0, 1]
    assert numbers_of(quick_path, "other") == list(range(5))


def test_readers_that_ask_do_not_keep_writers_out(quick_path: Path) -> None:
    """Whether somebody holds the lock can only be seen by taking it for a moment."""
    record_all(quick_path, "run", range(2))
    with closing(sqlite3.connect(quick_path / "telemetry" / "telemetry.sqlite")) as database:
        database.execute("UPDATE runs SET state = 'recording'")
        database.commit()
    over = threading.Event()

    def ask() -> None:
        with ReplayReader(quick_path) as reader:
            while not over.is_set():
                assert reader.runs["run"].state in ("interrupted", "recording", "closed")

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            disk = RunDisk(quick_path, "run")
            disk.abandon()
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_a_file_that_the_database_does_not_know(quick_path: Path) -> None:
    record_all(quick_path, "run", range(2))
    (quick_path / "replay" / "run.h5").rename(quick_path / "replay" / "other.h5")
    with pytest.raises(FileExistsError, match=r"other\.h5 is there, but .* knows nothing of it"):
        ReplayWriter(quick_path, "other")
    with pytest.raises(FileNotFoundError):
        ReplayWriter(quick_path, "run")
    (quick_path / "replay" / "other.h5").rename(quick_path / "replay" / "run.h5")
    record_all(quick_path, "run", range(2, 4))
    assert numbers_of(quick_path) == [0, 1, 2, 3]


def test_several_runs_at_once_and_their_index(quick_path: Path) -> None:
    def work(run: int) -> None:
        for first in range(0, 40, 10):
            record_all(quick_path, f"run_{run}", range(first, first + 10))

    threads = [threading.Thread(target=work, args=(run,)) for run in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = read_store(quick_path)
    for run in range(6):
        assert numbers_of(quick_path, f"run_{run}") == list(range(40))
        assert store.index[f"run_{run}"]["state"] == "closed"
        assert store.index[f"run_{run}"]["steps"] == 40


# Threads, interrupts, forks.


def test_threads_record_at_once(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run", queue_bytes=50_000, flush_every=0.01) as writer:

        def work(agent: int) -> None:
            for number in range(agent * 1000, agent * 1000 + 100):
                record(writer, number, agent_id=f"agent {agent}", terminated=number % 10 == 9)
                if number % 30 == 0:
                    writer.flush()

        threads = [threading.Thread(target=work, args=(agent,)) for agent in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert numbers_of(quick_path) == [a * 1000 + n for a in range(8) for n in range(100)]
    store = read_store(quick_path)
    assert len(store.episodes) == 80
    for (episode_id, index), row in store.steps.items():
        assert row["agent_id"] == f"agent {int(row['reward']) // 1000}"
        assert store.episodes[episode_id]["agent_id"] == row["agent_id"]
        assert index == row["reward"] % 10


INTERRUPTED = """
import signal, sys, threading, time
from stepwell.replay import ReplayWriter
from tests.replays import observation, record
chance = __import__("random").Random(int(sys.argv[2]))
options = {"queue_bytes": 60_000} if int(sys.argv[2]) % 2 else {}
writer = ReplayWriter(sys.argv[1], "run", flush_every=0.005, **options)
armed = False
def interrupt(*_):
    if armed:
        raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0007)
interrupts = 0
end = time.monotonic() + 2.5
number = 0
while time.monotonic() < end:
    try:
        try:
            armed = True
            record(writer, number, terminated=number % 17 == 16)
            if number % 10 == 3:
                writer.end_episode(observation=observation(number))
            if number % 50 == 3:
                writer.flush()
        finally:
            armed = False
    except KeyboardInterrupt:
        interrupts += 1
    number += 1
signal.setitimer(signal.ITIMER_REAL, 0)
record(writer, number)
writer.flush()
writer.close()
print(interrupts, number)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_interrupts_at_any_point(quick_path: Path, seed: int) -> None:
    interrupts, last = map(int, children.answer(INTERRUPTED, quick_path, str(seed)).split())
    assert interrupts > 50
    found = numbers_of(quick_path)
    assert found[-1] == last
    assert len(set(found)) == len(found)
    for row in read_store(quick_path).episodes.values():
        if row["final_obs_ref"] is not None:
            assert row["ended"]


def test_close_that_was_interrupted(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    write = RunDisk.write

    def slowly(*args: Any) -> None:
        assert go.wait(60)
        write(*args)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunDisk, "write", slowly)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        writer = ReplayWriter(quick_path, "run", flush_every=1000)
        for number in range(20):
            record(writer, number)
        for call in (writer.flush, writer.close, writer.close):
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come before the call
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                call()
        threading.Timer(0.1, go.set).start()
        writer.close()
    finally:
        signal.signal(signal.SIGALRM, before)
        go.set()
    assert numbers_of(quick_path) == list(range(20))
    ReplayWriter(quick_path, "run").close()


def test_in_a_forked_child(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run", flush_every=0.001) as writer:
        for number in range(10):
            record(writer, number)

        def use(call: Callable[[], object]) -> str:
            try:
                call()
            except RuntimeError as error:
                return str(error)
            return "nothing was raised"

        for call in (lambda: record(writer, 99), writer.flush, writer.end_episode):
            assert "forked process" in children.in_fork(partial(use, call))
        assert children.in_fork(writer.close) is None
        for number in range(10, 40):
            record(writer, number)
            if number % 10 == 0:  # wherever the thread is at this moment
                numbers = range(number, number + 3)
                children.in_fork(partial(record_all, quick_path, f"child_{number}", numbers))
    assert numbers_of(quick_path) == list(range(40))
    for number in (10, 20, 30):
        assert numbers_of(quick_path, f"child_{number}") == list(range(number, number + 3))


def test_a_child_that_ends_does_not_touch_the_file(quick_path: Path) -> None:
    """HDF5 would write what it has of the parent's file when the child ends."""
    script = """
import os, sys, warnings
from stepwell.replay import ReplayWriter
from tests.replays import record
writer = ReplayWriter(sys.argv[1], "run", flush_every=0.002)
number = 0
for _ in range(25):
    for _ in range(40):
        record(writer, number)
        number += 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        sys.exit(0)  # not os._exit: everything that runs at the end runs
    for _ in range(10):
        record(writer, number)
        number += 1
    assert os.waitpid(child, 0)[1] == 0
writer.flush()
os._exit(0)  # as if it had been killed
"""
    children.answer(script, quick_path)
    assert numbers_of(quick_path) == list(range(1250))
    record_all(quick_path, "run", range(1250, 1260))
    assert numbers_of(quick_path) == list(range(1260))


# A queue that is full.


def test_steps_that_are_dropped_are_counted(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    write = RunDisk.write

    def slowly(*args: Any) -> None:
        assert go.wait(60)
        write(*args)

    monkeypatch.setattr(RunDisk, "write", slowly)
    writer = ReplayWriter(
        quick_path, "run", when_full="drop", queue_bytes=20_000, flush_every=0.001
    )
    refs = [record(writer, number, terminated=number == 49) for number in range(50)]
    go.set()
    writer.flush()
    refs += [record(writer, number) for number in range(50, 53)]
    writer.close()
    kept = [number for number, ref in enumerate(refs) if ref is not None]
    assert numbers_of(quick_path) == kept
    assert 0 < len(kept) < 50
    assert kept[-3:] == [50, 51, 52]
    store = read_store(quick_path)
    assert store.runs["run"].row["dropped"] == 53 - len(kept)
    assert store.runs["run"].row["enqueued"] == len(kept)
    first, second = store.episodes.values()
    assert first["steps"] == len(kept) - 3
    assert first["dropped"] == 53 - len(kept)
    assert (first["ended"], first["terminated"], second["dropped"]) == (1, 1, 0)
    for (_, index), row in store.steps.items():
        assert index == row["reward"] % 50
    record_all(quick_path, "run", range(53, 55))  # goes on counting
    assert read_store(quick_path).runs["run"].row["dropped"] == 53 - len(kept)


def test_nothing_is_dropped_while_the_disk_is_idle(quick_path: Path) -> None:
    """A queue that is half full is written, however long a step might wait."""
    with ReplayWriter(
        quick_path, "run", when_full="drop", queue_bytes=40_000, flush_every=1000
    ) as writer:
        for number in range(60):
            assert record(writer, number) is not None
            time.sleep(0.005)
    assert numbers_of(quick_path) == list(range(60))


@pytest.mark.parametrize("when_full", ["block", "drop"])
def test_a_queue_smaller_than_a_step(quick_path: Path, when_full: str) -> None:
    with ReplayWriter(
        quick_path, "run", when_full=when_full, queue_bytes=1, flush_every=1000
    ) as writer:
        for number in range(20):
            assert record(writer, number) is not None
            if when_full == "drop":
                writer.flush()
    assert numbers_of(quick_path) == list(range(20))


def test_a_small_step_before_a_large_one_does_not_wait(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run", queue_bytes=100_000, flush_every=1000) as writer:
        writer.record_step(reward=0, frame=np.zeros((200, 200), np.uint8))
        writer.record_step(reward=1, observation=np.zeros(80_000, np.uint8))
    assert len(read_store(quick_path).steps) == 2


@pytest.mark.parametrize("flush_every", [math.inf, 1e12])
def test_only_when_told_to(quick_path: Path, flush_every: float) -> None:
    with ReplayWriter(quick_path, "run", flush_every=flush_every) as writer:
        record(writer, 0)
        time.sleep(0.05)
        record(writer, 1)
        writer.flush()
        assert numbers_of(quick_path) == [0, 1]


def test_a_step_does_not_wait_for_others(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run", flush_every=0.05) as writer:
        record(writer, 0)
        end = time.monotonic() + 20
        while not read_store(quick_path).steps:
            assert time.monotonic() < end
            time.sleep(0.01)


# Failures.


def test_a_disk_that_fails(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ReplayWriter(quick_path, "run", flush_every=1000)
    for number in range(10):
        record(writer, number)
    writer.flush()

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "the disk")

    with monkeypatch.context() as patch:
        patch.setattr("stepwell.stores.replay.arrays.sync_path", fail)
        record(writer, 10)
        for call in (writer.flush, writer.flush, lambda: record(writer, 11), writer.close):
            with pytest.raises(OSError, match="Input/output error") as caught:
                call()
            assert caught.value.errno == errno.EIO
    writer.close()
    with pytest.raises(ValueError, match="the writer is closed"):
        record(writer, 12)
    assert numbers_of(quick_path) == list(range(10))
    record_all(quick_path, "run", range(10, 20))
    assert numbers_of(quick_path) == list(range(20))


FULL = """
import errno, sys
from pathlib import Path
import numpy as np
from stepwell.replay import ReplayWriter
from tests.replays import record
from tests.stores.test_replay_writer import numbers_of
root = Path(sys.argv[1])
size = int(sys.argv[2])
(root / "filler").write_bytes(bytes(size))
acknowledged = 0
writer = ReplayWriter(root, "run", codec=sys.argv[3], flush_every=1000)
try:
    for number in range(100_000):
        record(writer, number)
        if number % 5 == 4:
            writer.flush()
            acknowledged = number + 1
except OSError as error:
    assert error.errno == errno.ENOSPC, repr(error)
else:
    raise SystemExit("there was room")
for call in (writer.flush, writer.close):
    try:
        call()
    except OSError as error:
        assert error.errno == errno.ENOSPC, repr(error)
    else:
        raise SystemExit("as if nothing had happened")
writer.close()
(root / "filler").unlink()
found = numbers_of(root)
assert found[:acknowledged] == list(range(acknowledged)), (found, acknowledged)
assert found == list(range(len(found)))
with ReplayWriter(root, "run") as writer:
    for number in range(len(found), len(found) + 20):
        record(writer, number)
assert numbers_of(root) == list(range(len(found) + 20))
print("full")
"""


@pytest.mark.parametrize("codec", ["zstd", "lzf"])
@pytest.mark.parametrize("room", [300_000, 700_000, 1_000_000])
def test_a_disk_that_is_really_full(tmp_path: Path, room: int, codec: str) -> None:
    size = str((6 << 20) - room)
    assert on_a_small_disk(tmp_path, "6m", FULL, size, codec) == "full\n"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    script = """
import os, sys
from stepwell.replay import ReplayReader, ReplayWriter
if os.getuid() == 0:
    os.setresuid(65534, 65534, 65534)
try:
    ReplayWriter(sys.argv[1], "new")
except OSError as error:
    print(type(error).__name__)
with ReplayReader(sys.argv[1]) as reader:
    print(len(reader.steps()[:]["reward"]))
"""
    root = tmp_path / "store"
    record_all(root, "run", range(20))
    folders = [root, root / "replay", root / "telemetry"]
    above = [path for path in tmp_path.parents if path.name.startswith("pytest-")]
    for folder in [tmp_path, *above]:
        folder.chmod(0o755)
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert children.answer(script, root).split() == ["PermissionError", "20"]
    finally:
        for folder in folders:
            folder.chmod(0o755)


# A database that is not one.


def database(root: Path) -> Path:
    return root / "telemetry" / "telemetry.sqlite"


def spoil(root: Path, how: str) -> None:
    path = database(root)
    if how == "text":
        path.write_bytes(b"not a database" * 100)
        return
    with closing(sqlite3.connect(path)) as connection:
        if how == "newer":
            connection.execute("PRAGMA user_version = 99")
        else:
            connection.execute(f"UPDATE runs SET {how}")
        connection.commit()


DAMAGE = [
    "channels = '['",
    "channels = '3'",
    "channels = '[{}]'",
    """channels = '[{"name": "a", "dtype": "|O", "shape": [1], "codec": "none"}]'""",
    "channels = x'ff'",
    "rows = '[]'",
    "rows = '{\"steps\": -1}'",
    'rows = \'{"steps": "x"}\'',
    "rows = '{\"steps\": 1e999}'",
    "steps = 'many'",
    "steps = -1",
    "written = x'00'",
    "run_id = '../../escape'",
    "run_id = 'a/b'",
]


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_database(quick_path: Path, how: str) -> None:
    record_all(quick_path, "run", range(20))
    spoil(quick_path, how)
    with ReplayReader(quick_path) as reader:
        with pytest.raises(FormatError) as caught:
            reader.runs["run"]
        assert caught.value.path == str(database(quick_path))
        with pytest.raises(FormatError):
            reader.steps()
    with pytest.raises(FormatError):
        ReplayWriter(quick_path, "run")


def test_not_a_database(quick_path: Path) -> None:
    record_all(quick_path, "run", range(20))
    spoil(quick_path, "text")
    for call in (ReplayReader, lambda root: ReplayWriter(root, "run")):
        with pytest.raises(FormatError, match=r"telemetry\.sqlite"):
            call(quick_path)
    database(quick_path).unlink()
    with pytest.raises(FileNotFoundError):
        ReplayReader(quick_path)


def test_a_newer_database(quick_path: Path) -> None:
    record_all(quick_path, "run", range(20))
    spoil(quick_path, "newer")
    for call in (ReplayReader, lambda root: ReplayWriter(root, "run")):
        with pytest.raises(VersionError, match="expected version 1 or below, got 99"):
            call(quick_path)


def test_a_writer_stays_where_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    with ReplayWriter("v", "run") as writer:
        writer.record_step(reward=0, observation=camera(0))
        writer.flush()
        monkeypatch.chdir(tmp_path / "sub")
        writer.record_step(reward=1, observation=camera(1), frame=frame(1))  # makes a new file
    assert list((tmp_path / "sub").iterdir()) == []
    with ReplayReader(tmp_path / "v") as reader:
        assert len(reader.episode("run-ep0000")) == 2
        assert reader.verify() == []


def test_info_that_is_too_deep(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with ReplayWriter(tmp_path, "run") as writer:
        with pytest.raises(TypeError, match="info: "):
            writer.record_step(reward=0, info={"deep": deep})
        writer.record_step(reward=1)
    with ReplayReader(tmp_path) as reader:
        assert reader.episode("run-ep0000").rewards.tolist() == [1]

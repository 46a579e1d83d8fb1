"""Replay writers among threads, interrupts, signals and forks."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from stepwell.replay import ReplayReader, ReplayWriter
from tests import children
from tests.reference.replay import read_store
from tests.replays import (
    numbers_of,
    record,
    record_all,
    stop_disk,
)


def test_threads_record_at_once(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run", queue_bytes=50_000, flush_every=0.01) as writer:

        def work(agent: int) -> None:
            for number in range(agent * 1000, agent * 1000 + 100):
                record(writer, number, agent_id=f"agent {agent}", terminated=number % 10 == 9)
                if number % 30 == 0:
                    writer.commit()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    assert numbers_of(quick_path) == [a * 1000 + n for a in range(8) for n in range(100)]
    store = read_store(quick_path)
    assert len(store.episodes) == 80
    for (episode_id, index), row in store.steps.items():
        assert row["agent_id"] == f"agent {int(row['reward']) // 1000}"
        assert store.episodes[episode_id]["agent_id"] == row["agent_id"]
        assert index == row["reward"] % 10


INTERRUPTED = """
import signal, sys
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
interrupts = number = 0
while interrupts < 200 or number < 400:
    try:
        try:
            armed = True
            record(writer, number, terminated=number % 17 == 16)
            if number % 10 == 3:
                writer.end_episode(observation=observation(number))
            if number % 50 == 3:
                writer.commit()
        finally:
            armed = False
    except KeyboardInterrupt:
        interrupts += 1
    number += 1
signal.setitimer(signal.ITIMER_REAL, 0)
record(writer, number)
writer.commit()
writer.close()
print(number)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_interrupts_at_any_point(quick_path: Path, seed: int) -> None:
    last = int(children.answer(INTERRUPTED, quick_path, str(seed)))
    found = numbers_of(quick_path)
    assert found[-1] == last
    assert len(set(found)) == len(found)
    for row in read_store(quick_path).episodes.values():
        if row["final_obs_ref"] is not None:
            assert row["ended_at"] is not None


def test_calls_from_inside_h5py(quick_path: Path) -> None:
    """h5py holds its lock while it calls back, and the writer's thread needs that."""
    writer = ReplayWriter(quick_path, "run", queue_bytes=20_000, flush_every=60)
    with h5py.File(quick_path / "other.h5", "w") as file:
        file["x"] = 1

        def inside(name: str) -> None:
            record(writer, 0)
            with pytest.raises(RuntimeError, match="cannot wait for the writer here"):
                writer.commit()
            with pytest.raises(RuntimeError, match="cannot wait for the writer here"):
                _ = [record(writer, 1) for _ in range(1000)]
            with pytest.raises(RuntimeError, match="cannot wait for the writer here"):
                writer.close()

        file.visit(inside)
    writer.close()
    found = numbers_of(quick_path)
    assert found[0] == 0
    assert set(found[1:]) == {1}


FORGOTTEN_INSIDE = """
import gc, sys, warnings
import h5py
from stepwell.files.catalog import in_turn
from stepwell.replay import ReplayWriter
from tests.replays import record
warnings.simplefilter("ignore")
gc.disable()

class Agent:
    pass

def forget(run):
    agent = Agent()
    agent.itself = agent
    agent.writer = ReplayWriter(sys.argv[1], run, flush_every=60)
    for number in range(30):
        record(agent.writer, number)

forget("a")
with h5py.File(sys.argv[1] + "/other.h5", "w") as file:
    file["x"] = 1
    file.visit(lambda name: gc.collect() and None)
forget("b")
with in_turn():
    gc.collect()
"""


def test_writers_that_are_collected_inside_h5py_and_sqlite(quick_path: Path) -> None:
    children.answer(FORGOTTEN_INSIDE, quick_path)
    for run in ("a", "b"):
        assert numbers_of(quick_path, run) == list(range(30))
        assert read_store(quick_path).runs[run].row["state"] == "closed"


def test_close_that_was_interrupted(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = stop_disk(monkeypatch)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        writer = ReplayWriter(quick_path, "run", flush_every=1000)
        for number in range(20):
            record(writer, number)
        for call in (writer.commit, writer.close, writer.close):
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come before the call
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                call()
        threading.Timer(0.1, go.set).start()
        writer.close()
    finally:
        signal.signal(signal.SIGALRM, before)
        go.set()
    assert numbers_of(quick_path) == list(range(20))
    ReplayWriter(quick_path, "run", mode="a").close()


FORKED_AT = """
import os, sys, threading
import h5py
from stepwell.stores.replay.hdf5 import writing

path, moment = sys.argv[1] + "/a.h5", sys.argv[2]
there, forking = threading.Event(), threading.Event()
os.register_at_fork(before=forking.set)  # the hook that came last is called first

def slowly():
    file = h5py.File(path, "x", locking=False)
    if moment == "opening":
        there.set()
        forking.wait()
    return file

def write():
    with writing(slowly) as file:
        file["first"] = range(100)
        if moment == "open":
            there.set()
            forking.wait()
        for i in range(100):
            file[str(i)] = range(i)

thread = threading.Thread(target=write)
thread.start()
there.wait()
closed, close = os.pipe()
child = os.fork()
if not child:
    os.close(close)
    os.read(closed, 1)  # until the file is closed
    sys.exit(0)  # not os._exit: HDF5 writes what it remembers
thread.join()
os.close(close)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.parametrize("moment", ["opening", "open"])
def test_forks_while_a_file_is_opened(quick_path: Path, moment: str) -> None:
    assert int(children.answer(FORKED_AT, quick_path, moment)) == 0
    with h5py.File(quick_path / "a.h5") as file:
        assert file["first"][:].tolist() == list(range(100))
        assert [file[str(i)][:].tolist() for i in range(100)] == [
            list(range(i)) for i in range(100)
        ]


def test_a_child_that_ends_does_not_touch_the_file(quick_path: Path) -> None:
    """HDF5 would write what it has of the parent's file when the child ends. A child may record a
    run of its own, wherever the parent's thread is at that moment."""
    script = """
import os, sys, warnings
from stepwell.replay import ReplayWriter
from tests.replays import record, record_all
writer = ReplayWriter(sys.argv[1], "run", flush_every=0.002)
number = 0
for turn in range(25):
    for _ in range(40):
        record(writer, number)
        number += 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        if turn % 8 == 0:
            record_all(sys.argv[1], f"child_{turn}", range(turn, turn + 3))
        sys.exit(0)  # not os._exit: everything that runs at the end runs
    for _ in range(10):
        record(writer, number)
        number += 1
    assert os.waitpid(child, 0)[1] == 0
writer.commit()
os._exit(0)  # as if it had been killed
"""
    children.answer(script, quick_path)
    assert numbers_of(quick_path) == list(range(1250))
    record_all(quick_path, "run", range(1250, 1260))
    assert numbers_of(quick_path) == list(range(1260))
    for turn in (0, 8, 16, 24):
        assert numbers_of(quick_path, f"child_{turn}") == list(range(turn, turn + 3))


@pytest.mark.parametrize("call", ["close", "commit", "record_step", "end_episode"])
def test_a_signal_handler_in_the_middle_of_a_call(quick_path: Path, call: str) -> None:
    writer = ReplayWriter(quick_path, "run")
    options = {"reward": 5.0, "observation": np.ones(3)} if call == "record_step" else {}

    class Interrupted:
        def __array__(self, *_: Any, **__: Any) -> Any:
            signal.raise_signal(signal.SIGUSR1)
            return np.zeros(3)

    before = signal.signal(signal.SIGUSR1, lambda *_: getattr(writer, call)(**options))
    try:
        for number in range(5):
            writer.record_step(reward=number, observation=np.full(3, float(number)))
        with pytest.raises(RuntimeError, match="in the middle of a call"):
            writer.record_step(reward=9, observation=Interrupted())
        writer.record_step(reward=5, observation=np.full(3, 5.0))
    finally:
        signal.signal(signal.SIGUSR1, before)
        writer.close()
    with ReplayReader.open(quick_path) as reader:
        assert reader.episode("run-ep0000").rewards.tolist() == [0, 1, 2, 3, 4, 5]
        assert reader.episode("run-ep0000").observations[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
        assert reader.verify().ok

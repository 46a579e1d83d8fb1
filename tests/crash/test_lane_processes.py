"""Lanes between processes that come, go and are killed: whole frames, and nothing in the way."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from stepwell import BusyError
from stepwell.stores.replay import LaneReader, LaneWriter, lanes
from tests import ROOT, scaled
from tests.crash.kills import KILLS
from tests.crash.lane_work import WORDS, check, shape
from tests.lanes import numbered, run_id
from tests.reference.lane import path_of

__all__ = ["run_id"]

FRAMES = int(os.environ.get("STEPWELL_LANE_FRAMES", scaled(1_000_000)))
"""How many frames are looked at for torn ones; `make lane` asks for ten million."""


STARTED: list["Process"] = []


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    yield
    while STARTED:
        STARTED.pop().kill()


class Process:
    """One of tests.crash.lane_work."""

    def __init__(self, what: str, *args: object) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.lane_work", what, *map(str, args)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        STARTED.append(self)

    def says(self) -> str:
        assert self._popen.stdout is not None
        return self._popen.stdout.readline().strip()

    def go(self) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write("\n")
        self._popen.stdin.flush()

    def kill(self) -> None:
        if self._popen.returncode is None:
            self._popen.kill()
            self._popen.communicate()

    def ends(self) -> str:
        """What else it says; it must succeed."""
        said, _ = self._popen.communicate(timeout=60)
        assert self._popen.returncode == 0
        return said.strip()


def began(what: str, *args: object) -> Process:
    process = Process(what, *args)
    assert process.says() == "begins"
    return process


@pytest.mark.parametrize("capacity", [1, 2, 8])
def test_no_torn_frames(run_id: str, capacity: int) -> None:
    """A writer at full speed, a reader of everything and one of the newest: each is checked."""
    count = FRAMES // 3
    writer = began("write", run_id, count, WORDS, capacity)
    readers = [began("read", run_id, how) for how in ("frames", "latest")]
    writer.go()
    assert writer.says() == "done"
    for reader in readers:
        seen, skipped, last = map(int, reader.ends().split())
        assert seen > 0
        assert (seen + skipped, last) == (count, count)
    writer.ends()


def test_no_torn_frames_of_the_size_of_a_screen(run_id: str) -> None:
    """Copies that take long enough to be overtaken."""
    count = scaled(20_000)
    writer = began("write", run_id, count, 12_600, 2)
    readers = [began("read", run_id, how) for how in ("frames", "latest")]
    writer.go()
    assert writer.says() == "done"
    for reader in readers:
        seen, skipped, last = map(int, reader.ends().split())
        assert seen > 0
        assert (seen + skipped, last) == (count, count)
    writer.ends()


def test_readers_come_and_go(run_id: str) -> None:
    """Four at a time, some of them killed, and the writer does not notice."""
    writer = began("write_for_ever", run_id)
    watching = LaneReader(run_id)
    chance = random.Random(1)
    readers = [began("read", run_id, how) for how in ("frames", "latest") * 2]
    for number in range(scaled(12, smallest=6)):
        time.sleep(chance.uniform(0, 0.1))
        readers.pop(0).kill()
        how, most = chance.choice(["frames", "latest"]), 2000 if number % 3 == 0 else 0
        readers.append(began("read", run_id, how, most))
        assert watching.wait(30)
        for frame in watching.frames():
            check(frame)
    assert not watching.closed
    writer.kill()
    for reader in readers:  # they notice that it was killed
        seen, _, _ = map(int, reader.ends().split())
        assert seen > 0
    while watching.wait():
        for frame in watching.frames():
            check(frame)
    assert (run_id, False) in lanes()


def test_kills(run_id: str) -> None:
    """At any moment: what is left is whole, recognised as dead, and reclaimed by the next one."""
    chance = random.Random()
    follower: LaneReader | None = None
    frames = restarts = 0
    for number in range(scaled(KILLS // 2, smallest=10)):
        writer = Process("write_for_ever", run_id, chance.choice([WORDS, 12_600]))
        early = number % 5 == 4  # while it is being made
        if not early:
            assert writer.says() == "begins"
            if follower is None:
                follower = LaneReader(run_id)
            with pytest.raises(BusyError):
                LaneWriter(run_id, (2, 2))
        time.sleep(chance.uniform(0.05, 0.3) if early else chance.uniform(0, 0.02))
        writer.kill()
        try:
            left = LaneReader(run_id)
        except FileNotFoundError:
            assert early
            continue
        assert left.closed
        for frame in left.frames():
            check(frame)
            frames += 1
        if follower is not None:
            while follower.wait():
                for frame in follower.frames():
                    check(frame)
            restarts = follower.restarts
    assert frames > 0
    assert restarts > 0
    with LaneWriter(run_id, shape(WORDS), metadata_bytes=8) as last:
        last.publish(numbered(1, WORDS), reward=1, metadata=(1).to_bytes(8, "little"))
        assert follower is not None
        assert [frame.number for frame in follower.frames()] == [1]
    assert not path_of(run_id).exists()


def test_a_reader_waits_while_writers_change(run_id: str) -> None:
    """A reader that was asleep when its writer was killed wakes up by itself."""
    writer = began("write_for_ever", run_id, WORDS, 1000)
    reader = LaneReader(run_id)
    assert reader.wait(30)
    reader.frames()
    assert not reader.wait(0.01)  # the next one comes in a quarter of an hour
    writer.kill()
    assert not reader.wait()
    writer = began("write_for_ever", run_id, WORDS, 1000)
    assert reader.wait(30)
    assert reader.restarts == 1
    writer.kill()

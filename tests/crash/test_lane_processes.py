"""Lanes between processes that come, go and are killed: whole frames, and nothing in the way."""

import os
import random
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from stepwell import BusyError
from stepwell.stores.replay.lane import LaneReader, LaneWriter, lanes
from tests import scaled
from tests.children import Child
from tests.crash.kills import KILLS, Victims
from tests.crash.lane_work import WORDS, check, shape
from tests.lanes import numbered, run_id
from tests.reference.lane import path_of

__all__ = ["run_id"]

FRAMES = int(os.environ.get("STEPWELL_LANE_FRAMES", scaled(300_000)))
"""How many frames are looked at for torn ones; `make lane` asks for ten million."""


STARTED: list[Child] = []


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    yield
    while STARTED:
        STARTED.pop().kill()


def began(what: str, *args: object) -> Child:
    """One of tests.crash.lane_work, at work."""
    process = Child("-m", "tests.crash.lane_work", what, *args)
    STARTED.append(process)
    assert process.says() == "begins"
    return process


def none_torn(run_id: str, total: int, words: int, capacity: int) -> None:
    """Let a writer publish as fast as it can; both kinds of readers check what they accept."""
    writer = began("write", run_id, total, words, capacity)
    readers = [began("read", run_id, how) for how in ("frames", "latest")]
    writer.go()
    assert writer.says() == "done"
    for reader in readers:
        seen, skipped, last = map(int, reader.ends().split())
        assert seen > 0
        assert (seen + skipped, last) == (total, total)
    writer.ends()


@pytest.mark.parametrize("capacity", [1, 2, 8])
def test_no_torn_frames(run_id: str, capacity: int) -> None:
    """A writer at full speed, a reader of everything and one of the newest: each is checked."""
    none_torn(run_id, FRAMES // 3, WORDS, capacity)


def test_no_torn_frames_of_the_size_of_a_screen(run_id: str) -> None:
    """Copies that take long enough to be overtaken."""
    none_torn(run_id, scaled(5000), 12_600, 2)


def test_readers_come_and_go(run_id: str) -> None:
    """Four at a time, some of them killed, and the writer does not notice."""
    writer = began("write_for_ever", run_id, WORDS, 0.0005)
    watching = LaneReader(run_id)
    chance = random.Random(1)
    readers = [began("read", run_id, how) for how in ("frames", "latest") * 2]
    for number in range(6):
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


def test_a_new_lane_removes_dead_ones(run_id: str) -> None:
    """Those of this user that are a minute old, and nothing of writers that live."""
    dead, young, alive = (f"{run_id}-{what}" for what in ("dead", "young", "alive"))
    for name in (dead, young):
        began("write_for_ever", name, WORDS, 1000).kill()
    began("write_for_ever", alive, WORDS, 1000)
    watching = LaneReader(dead)
    for name in (dead, alive):
        os.utime(path_of(name), (0, 0))
    LaneWriter(run_id, (2, 2)).close()
    assert [path_of(name).exists() for name in (dead, young, alive)] == [False, True, True]
    assert watching.closed
    with LaneWriter(young, (2, 2)), pytest.raises(BusyError):
        LaneWriter(alive, (2, 2))
    STARTED.pop().kill()
    path_of(alive).unlink()


def work(folder: Path, first: int) -> Iterator[int]:
    """One frame after the other; the stamp is their number."""
    words = random.choice([WORDS, 12_600])
    lane = LaneWriter(folder.name, shape(words), metadata_bytes=8)
    for number in count(first):
        text = number.to_bytes(8, "little")
        yield lane.publish(numbered(number, words), reward=number, metadata=text)


def test_kills(run_id: str) -> None:
    """At any moment: what was published is there, whole, and in nobody's way."""
    chance = random.Random()
    follower: LaneReader | None = None
    followed = lost = 0
    longest_s = 0.01
    with Victims("tests.crash.test_lane_processes:work", Path(run_id)) as victims:
        for _ in range(KILLS):
            published = victims.kill(1, chance.uniform(0, longest_s))
            longest_s = min(longest_s * 1.2, 2) if published == 0 else longest_s * 0.9
            try:
                left = LaneReader(run_id)
            except FileNotFoundError:  # it was killed before there was a lane
                lost += 1
                assert published == 0
                continue
            assert left.closed
            frames = left.frames()
            for frame in frames:
                check(frame)
            assert published == 0 or frames[-1].number in (published, published + 1)
            follower = follower or LaneReader(run_id)
            for frame in follower:
                check(frame)
                followed += 1
    assert lost < KILLS
    assert followed > 0
    assert follower is not None
    with LaneWriter(run_id, shape(WORDS), metadata_bytes=8) as last:
        before = follower.restarts
        last.publish(numbered(1, WORDS), reward=1, metadata=(1).to_bytes(8, "little"))
        assert [frame.number for frame in follower.frames()] == [1]
        assert follower.restarts == before + 1 > 1
    assert not path_of(run_id).exists()


def test_a_reader_waits_while_writers_change(run_id: str) -> None:
    """A reader that was asleep when its writer was killed wakes up by itself."""
    writer = began("write_for_ever", run_id, WORDS, 1000)
    reader = LaneReader(run_id)
    assert reader.wait(30)
    reader.frames()
    assert not reader.wait(0.01)  # the next one comes in a quarter of an hour
    with pytest.raises(BusyError):
        LaneWriter(run_id, (2, 2))
    writer.kill()
    assert not reader.wait()
    writer = began("write_for_ever", run_id, WORDS, 1000)
    assert reader.wait(30)
    assert reader.restarts == 1
    writer.kill()

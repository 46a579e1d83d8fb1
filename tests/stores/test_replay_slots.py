"""The memory that rows wait in before they are written."""

from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from stepwell.replay import FrameRef, ReplayReader, ReplayWriter
from stepwell.stores.replay.slots import Slots, in_slots, touched

PICTURE = np.arange(96 * 64, dtype=np.uint8).reshape(96, 64)


def free(writer: ReplayWriter) -> int:
    return sum(map(len, writer._pipeline.slots._free.values()))


def test_copies() -> None:
    slots = Slots()
    array = np.arange(10_000, dtype="<f4").reshape(100, 100)
    for given in (array, array.T, array[::-1], array.astype("<f4", order="F")):
        slot = slots.copy(given)
        assert slot.tobytes() == given.tobytes()
        slots.give_back([slot])
    first, second = slots.copy(array), slots.copy(array)
    assert not np.shares_memory(first, second)
    assert in_slots([first, b"x", second]) == {40_000: [first, second]}


def test_used_again() -> None:
    slots = Slots()
    first = slots.copy(PICTURE)
    slots.give_back([first])
    assert np.shares_memory(slots.copy(PICTURE), first)


def test_made_ahead() -> None:
    slots = Slots()
    slots.give_back([slots.copy(PICTURE)])
    there = len(slots._free[PICTURE.nbytes])
    ((size, count),) = slots.wanting(there + 5, 1 << 30)
    assert (size, count) == (PICTURE.nbytes, 5)
    assert slots.wanting(there + 5, 10 * size) == []
    slots.add(size, touched(size, count))
    assert slots.wanting(there + 5, 1 << 30) == []


def test_come_back_when_written(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run") as writer:
        for _ in range(3):
            for i in range(20):
                writer.record_step(reward=i, observation=PICTURE + i, frame=PICTURE - i)
            writer.flush()
            there = free(writer)
            assert there >= 40
        for i in range(20):
            writer.record_step(reward=i, observation=PICTURE + i)
        writer.flush()
        assert free(writer) == there
    steps = ReplayReader(quick_path).episode("run-ep0000")
    for i in range(80):
        np.testing.assert_array_equal(steps.observations[i], PICTURE + i % 20)
    for i in range(60):
        np.testing.assert_array_equal(steps.frames[i], PICTURE - i % 20)


def test_come_back_when_dropped_or_refused(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run", when_full="drop", queue_bytes=10_000) as writer:
        writer.record_step(reward=0, observation=PICTURE)
        writer.flush()
        there = free(writer)
        for _ in range(2000):
            writer.record_step(reward=0, observation=PICTURE)
            with pytest.raises(sw.SchemaError):
                writer.record_step(reward=0, observation=PICTURE, frame=PICTURE.astype(np.int8))
        writer.flush()
        assert free(writer) <= there + 64


def test_many_references() -> None:
    refs = [f"h5://r/frames/{i}" for i in (7, 0, 123)]
    assert FrameRef.rows(refs) == (FrameRef("r", "frames", 7), [7, 0, 123])
    assert FrameRef.rows(["h5://r/frames/007", "h5://r/frames/08"]) == (
        FrameRef("r", "frames", 7),
        [7, 8],
    )
    assert FrameRef.rows([*refs, "h5://r/observations/7"]) is None
    assert FrameRef.rows([*refs, "h5://s/frames/7"]) is None
    for bad in ("", "-1", "1_0", "\u0663", "1\n", " 1", "1" * 19):
        with pytest.raises(sw.FormatError, match="expected h5://"):
            FrameRef.rows([*refs, f"h5://r/frames/{bad}"])

"""Lanes: frames in shared memory, seen whole or not at all, and everything that can be wrong."""

import gc
import os
import threading
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from stepwell import BusyError, SchemaError
from stepwell.stores.replay.lane import LaneReader, LaneWriter, lanes
from tests import children
from tests.lanes import number_of, numbered, numbers, run_id
from tests.reference.lane import path_of

__all__ = ["run_id"]

SHAPE = (3, 5, 3)


def pixels(number: int) -> NDArray[np.uint8]:
    return np.full(SHAPE, number % 251, np.uint8)


# Frames come and go.


def test_the_newest_frame(run_id: str) -> None:
    with LaneWriter(run_id, SHAPE) as writer, LaneReader(run_id) as reader:
        assert reader.latest() is None
        assert writer.publish(pixels(7), reward=1.5, rolling_return=-2, step_rate_hz=60) == 1
        frame = reader.latest()
        assert frame is not None
        assert frame.number == 1
        assert (frame.pixels == pixels(7)).all()
        assert (frame.reward, frame.rolling_return, frame.step_rate_hz) == (1.5, -2, 60)
        assert (frame.metadata, frame.json()) == (b"", None)
        assert reader.latest() is None
        for i in range(2, 30):
            assert writer.publish(pixels(i)) == i
        frame = reader.latest()
        assert frame is not None
        assert (frame.number, frame.pixels[0, 0, 0]) == (29, 29)
        assert reader.skipped == 27
        assert reader.frames() == []


def test_frames_are_the_reader_s_own(run_id: str) -> None:
    with LaneWriter(run_id, SHAPE, capacity=1) as writer:
        reader = LaneReader(run_id)
        writer.publish(pixels(1))
        first = reader.latest()
        writer.publish(pixels(2))
        assert first is not None
        assert (first.pixels == 1).all()
        first.pixels[:] = 9  # it may be written to
        second = reader.latest()
        assert second is not None
        assert (second.pixels == 2).all()


def test_metadata(run_id: str) -> None:
    with LaneWriter(run_id, SHAPE, metadata_bytes=64) as writer, LaneReader(run_id) as reader:
        given: list[Any] = [b"", b"\0\xff", {"step": 3, "text": "größer"}, {}]
        for metadata in given:
            writer.publish(pixels(0), metadata=metadata)
        found = reader.frames()
        assert [frame.metadata for frame in found[:2]] == given[:2]
        assert [frame.json() for frame in found[2:]] == given[2:]


@pytest.mark.parametrize(
    ("shape", "name"),
    [((4, 2), "GRAY"), ((4, 2, 1), "GRAY"), ((4, 2, 3), "RGB"), ((4, 2, 4), "RGBA")],
)
def test_shapes(run_id: str, shape: tuple[int, ...], name: str) -> None:
    frame = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    with LaneWriter(run_id, shape) as writer:
        reader = LaneReader(run_id)
        assert writer.pixel_format == reader.pixel_format == name
        assert writer.shape == reader.shape == (*shape, 1)[:3]
        writer.publish(frame)
        writer.publish(frame.reshape(reader.shape)[::-1])  # any strides
        first, second = reader.frames()
        assert (first.pixels == frame.reshape(reader.shape)).all()
        assert (second.pixels == first.pixels[::-1]).all()


@given(
    st.integers(0, 6),
    st.lists(st.tuples(st.sampled_from(["publish", "latest", "frames"]), st.integers(1, 7))),
)
def test_every_number_is_returned_or_counted(before: int, moves: list[tuple[str, int]]) -> None:
    """But for those that were gone before the reader came."""
    name = f"test-{os.getpid()}-{threading.get_ident()}"
    published, gone = before, max(0, before - 3)
    seen: list[int] = []
    with LaneWriter(name, SHAPE, capacity=3) as writer:
        for number in range(1, before + 1):
            writer.publish(pixels(number))
        reader = LaneReader(name)
        assert reader.capacity == 3
        for what, times in moves:
            for _ in range(times):
                if what == "publish":
                    published = writer.publish(pixels(published + 1))
                elif what == "frames":
                    seen += numbers(reader.frames())
                elif (frame := reader.latest()) is not None:
                    seen.append(frame.number)
                    assert seen[-1] == published
        seen += numbers(reader.frames())
        assert seen == sorted(set(seen))
        assert gone + len(seen) + reader.skipped == published
        assert seen[-1:] == [published][:published]


# Waiting, ending, beginning again.


def test_waiting(run_id: str) -> None:
    with LaneWriter(run_id, SHAPE) as writer:
        reader = LaneReader(run_id)
        assert not reader.wait(0)
        assert not reader.wait(0.01)
        late = threading.Timer(0.05, writer.publish, [pixels(1)])
        late.start()
        assert reader.wait()
        late.join()
        assert reader.wait(0)
        assert numbers(reader.frames()) == [1]
        ending = threading.Timer(0.05, writer.close)
        ending.start()
        assert not reader.wait()
        ending.join()
        assert reader.closed


def test_iterating(run_id: str) -> None:
    writer = LaneWriter(run_id, SHAPE)
    seen = threading.Semaphore(3)

    def work() -> None:
        for i in range(50):
            seen.acquire()
            writer.publish(pixels(i))
        writer.close()

    reader = LaneReader(run_id)
    thread = threading.Thread(target=work)
    thread.start()
    found = []
    for frame in reader:
        found.append(frame.number)
        seen.release()
    assert found == list(range(1, 51))
    thread.join()


def test_what_is_left_of_a_closed_lane(run_id: str) -> None:
    with LaneWriter(run_id, SHAPE) as writer:
        reader = LaneReader(run_id)
        writer.publish(pixels(1))
    assert reader.closed
    assert not path_of(run_id).exists()
    assert reader.wait()
    assert numbers(reader.frames()) == [1]
    assert not reader.wait()
    assert reader.latest() is None
    with pytest.raises(FileNotFoundError, match=run_id):
        LaneReader(run_id)


def test_a_writer_that_begins_again_is_followed(run_id: str) -> None:
    with LaneWriter(run_id, SHAPE) as writer:
        reader = LaneReader(run_id)
        writer.publish(pixels(1))
        writer.publish(pixels(2))
    with LaneWriter(run_id, (2, 2), capacity=2) as writer:
        for i in range(3):
            writer.publish(np.full((2, 2), i, np.uint8))
        assert numbers(reader.frames()) == [1, 2]  # first what was left
        assert (reader.restarts, reader.shape) == (0, SHAPE)
        assert reader.wait(0)
        assert numbers(reader.frames()) == [2, 3]
        assert (reader.restarts, reader.shape, reader.pixel_format) == (1, (2, 2, 1), "GRAY")
        assert reader.skipped == 1
        assert not reader.closed
        assert not reader.wait(0.01)


def test_a_reader_that_comes_first(run_id: str) -> None:
    with pytest.raises(FileNotFoundError):
        LaneReader(run_id, timeout_s=0.05)
    writers: list[LaneWriter] = []
    late = threading.Timer(0.05, lambda: writers.append(LaneWriter(run_id, SHAPE)))
    late.start()
    assert LaneReader(run_id, timeout_s=30).shape == SHAPE
    late.join()
    writers[0].close()


def test_closing(run_id: str) -> None:
    writer = LaneWriter(run_id, SHAPE)
    reader = LaneReader(run_id)
    for _ in range(2):
        writer.close()
        reader.close()
    assert writer.closed
    assert "closed" in repr(writer)
    assert "closed" in repr(reader)
    with pytest.raises(ValueError, match="closed"):
        writer.publish(pixels(1))
    for call in (reader.latest, reader.frames, reader.wait):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_a_writer_that_is_forgotten(run_id: str) -> None:
    writer = LaneWriter(run_id, SHAPE)
    reader = LaneReader(run_id)
    with pytest.warns(ResourceWarning, match=run_id):
        del writer
    assert reader.closed
    assert not path_of(run_id).exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LaneWriter(run_id, SHAPE).close()
        gc.collect()


def test_a_program_that_ends_without_closing(run_id: str) -> None:
    script = """
import sys
from stepwell.stores.replay.lane import LaneWriter
lane = LaneWriter(sys.argv[1], (2, 2))
"""
    children.answer(script, run_id)
    assert not path_of(run_id).exists()


def test_a_second_writer(run_id: str) -> None:
    with LaneWriter(run_id, SHAPE) as writer:
        reader = LaneReader(run_id)
        for _ in range(2):
            with pytest.raises(BusyError, match=run_id):
                LaneWriter(run_id, SHAPE)
        LaneReader(run_id).close()  # leaves the lock alone
        del reader
        with pytest.raises(BusyError):
            LaneWriter(run_id, (9, 9))
        assert writer.publish(pixels(1)) == 1
    LaneWriter(run_id, (9, 9)).close()


def test_many_that_want_to_be_the_writer(run_id: str) -> None:
    """One of them is, each time, whatever was there before."""

    def ask() -> LaneWriter | None:
        try:
            return LaneWriter(run_id, SHAPE)
        except BusyError:
            return None

    for left in (None, b"", b"left by somebody" * 10):
        if left is not None:
            path_of(run_id).write_bytes(left)
        (made,) = [writer for writer in children.at_once(*[ask] * 8) if writer is not None]
        assert made.publish(pixels(1)) == 1
        assert len(LaneReader(run_id).frames()) == 1
        made.close()


def test_threads_that_publish_together(run_id: str) -> None:
    with LaneWriter(run_id, (1, 800), capacity=2000) as writer:
        reader = LaneReader(run_id)

        def work(first: int) -> None:
            for i in range(first, first + 100):
                writer.publish(numbered(i, 100))

        children.at_once(*(partial(work, i * 1000) for i in range(4)))
        found = reader.frames()
        assert numbers(found) == list(range(1, 401))
        want = [i * 1000 + j for i in range(4) for j in range(100)]
        assert sorted(number_of(frame.pixels) or 0 for frame in found) == want


def test_the_list_of_lanes(run_id: str) -> None:
    def mine() -> list[tuple[str, bool]]:
        return [lane for lane in lanes() if lane.run_id.startswith(run_id)]

    assert mine() == []
    with LaneWriter(run_id, SHAPE), LaneWriter(run_id + "-b", SHAPE):
        assert mine() == [(run_id, True), (run_id + "-b", True)]
        content = path_of(run_id).read_bytes()
    assert mine() == []
    path_of(run_id).write_bytes(content)  # as a killed writer leaves it
    assert mine() == [(run_id, False)]
    path_of(run_id).write_bytes(b"nonsense")
    assert mine() == [(run_id, False)]


def test_the_lane_is_this_user_s_alone(run_id: str) -> None:
    before = os.umask(0)
    try:
        with LaneWriter(run_id, SHAPE):
            assert path_of(run_id).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_another_user_s_lane(run_id: str) -> None:
    with LaneWriter(run_id, SHAPE):
        script = """
import os, sys
from stepwell.stores.replay.lane import LaneReader, LaneWriter, lanes
os.setuid(12345)
for call in (LaneReader, lambda name: LaneWriter(name, (2, 2))):
    try:
        call(sys.argv[1])
    except PermissionError as error:
        print(error.filename)
print([lane for lane in lanes() if lane.run_id == sys.argv[1]])
"""
        said = children.answer(script, run_id).splitlines()
        assert said == [str(path_of(run_id))] * 2 + ["[]"]
    path_of(run_id).write_bytes(b"")
    os.chown(path_of(run_id), 12345, 12345)
    with pytest.raises(PermissionError):  # it is not ours to remove
        LaneWriter(run_id, SHAPE)
    assert path_of(run_id).exists()


def test_a_lane_whose_name_was_taken_away(run_id: str) -> None:
    """By a cleaning script: the writer goes on, and leaves the next one's lane alone."""
    with LaneWriter(run_id, SHAPE) as writer:
        reader = LaneReader(run_id)
        path_of(run_id).unlink()
        writer.publish(pixels(1))
        assert numbers(reader.frames()) == [1]
        second = LaneWriter(run_id, SHAPE)
        second.publish(pixels(2))
        assert reader.latest() is None  # the first one lives
    assert path_of(run_id).exists()
    assert numbers(reader.frames()) == [1]
    assert reader.restarts == 1
    second.close()
    assert not path_of(run_id).exists()


# Forks.


def test_a_forked_child_is_no_writer(run_id: str) -> None:
    with LaneWriter(run_id, SHAPE) as writer:
        reader = LaneReader(run_id)
        writer.publish(pixels(1))

        def work() -> Any:
            nonlocal writer
            closed = writer.closed
            try:
                writer.publish(pixels(2))
            except ValueError as error:
                said = str(error)
            writer.close()
            del writer
            gc.collect()
            return closed, said, numbers(reader.frames()), reader.closed

        closed, said, seen, ended = children.in_fork(work)
        assert (closed, seen, ended) == (True, [1], False)
        assert "closed" in said
        assert path_of(run_id).exists()
        assert writer.publish(pixels(2)) == 2
        assert numbers(reader.frames()) == [1, 2]
        assert not reader.closed


def test_a_child_does_not_keep_the_lane_of_its_parent(run_id: str) -> None:
    """The parent is killed, the child it forked lives on: the lane is free."""
    script = """
import os, signal, sys, time
from stepwell.stores.replay.lane import LaneWriter
lane = LaneWriter(sys.argv[1], (2, 2))
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = children.Child("-c", script, run_id)
    child = int(process.says())
    process.dies()
    os.kill(child, 0)  # it is there
    reader = LaneReader(run_id)
    assert reader.closed
    LaneWriter(run_id, SHAPE).close()
    process.kill()


# Mistakes in a call.


def test_run_ids_at_the_limit(run_id: str) -> None:
    for name in (run_id + "_under-score-1", (run_id + "x" * 128)[:128]):
        with LaneWriter(name, SHAPE) as writer:
            writer.publish(pixels(1))
            assert len(LaneReader(name).frames()) == 1
            assert (name, True) in lanes()


@pytest.mark.parametrize(
    "frame",
    [
        np.zeros((3, 5, 3), np.float32),
        np.zeros((3, 5, 3), np.int8),
        np.zeros((5, 3, 3), np.uint8),
        np.zeros((3, 5), np.uint8),
        np.zeros((3, 5, 3, 1), np.uint8),
        np.zeros(45, np.uint8),
        np.zeros(0, np.uint8),
        [[[1, 2, 3]]],
        "frame",
        None,
    ],
)
def test_frames_that_do_not_fit(run_id: str, frame: Any) -> None:
    with LaneWriter(run_id, SHAPE) as writer, LaneReader(run_id) as reader:
        with pytest.raises(SchemaError, match="expected"):
            writer.publish(frame)
        assert reader.latest() is None
        assert writer.publish(pixels(1)) == 1


def test_metadata_that_does_not_fit(run_id: str) -> None:
    with LaneWriter(run_id, SHAPE, metadata_bytes=0) as writer, LaneReader(run_id) as reader:
        room = -3 * 5 * 3 % 8
        writer.publish(pixels(0), metadata=b"x" * room)
        for metadata in (b"x" * (room + 1), {"text": "x" * 10_000}):
            with pytest.raises(SchemaError, match=f"at most {room} bytes"):
                writer.publish(pixels(0), metadata=metadata)
        wrong: Any
        for value in (np.float32(1), object(), "\ud800"):
            with pytest.raises(TypeError, match="metadata: "):
                writer.publish(pixels(0), metadata={"value": value})
        for wrong in ("text", 3, None, bytearray(b"x")):
            with pytest.raises(TypeError, match="metadata"):
                writer.publish(pixels(0), metadata=wrong)
        with pytest.raises(TypeError):
            writer.publish(pixels(0), reward=[1])  # type: ignore[arg-type]
        assert numbers(reader.frames()) == [1]


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3,), {}),
        ((3, 5, 3, 1), {}),
        ((), {}),
        ((0, 5, 3), {}),
        ((3, -5, 3), {}),
        ((3, 5, 2), {}),
        ((3, 5, 3), {"pixel_format": "YUV"}),
        ((3, 5, 3), {"pixel_format": "RGBA"}),
        ((3, 5, 3), {"capacity": 0}),
        ((3, 5, 3), {"capacity": -1}),
        ((3, 5, 3), {"capacity": 1 << 32}),
        ((3, 5, 3), {"metadata_bytes": -1}),
        ((3, 5, 3), {"metadata_bytes": (1 << 32) - 1}),
        ((1 << 31, 1 << 31, 4), {}),
        ((1 << 16, 1 << 16), {}),
    ],
)
def test_lanes_that_cannot_be(run_id: str, shape: tuple[int, ...], options: Any) -> None:
    with pytest.raises(ValueError):
        LaneWriter(run_id, shape, **options)
    assert not path_of(run_id).exists()


@pytest.mark.parametrize("capacity", [1 << 16, (1 << 32) - 1])
def test_no_room(run_id: str, capacity: int) -> None:
    """Said when it is asked for, not by a signal when it is used."""
    with pytest.raises(OSError):
        LaneWriter(run_id, (1 << 15, 1 << 15, 3), capacity=capacity)
    assert not path_of(run_id).exists()

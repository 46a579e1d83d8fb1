"""Lanes that somebody has made, damaged or cut: an error with a place, never a crash."""

import os
import struct
import threading
from pathlib import Path

import numpy as np
import pytest

from stepwell import FormatError, VersionError
from stepwell.stores.replay.lane import LaneReader, LaneWriter, lanes
from tests import children, scaled
from tests.lanes import numbers, run_id
from tests.reference import lane as reference
from tests.reference.lane import CLOSED, Frame, Lane, path_of

__all__ = ["run_id"]

SHAPE = (3, 5, 3)


def good() -> bytes:
    """Of 4 slots of 48 bytes, with frames 2 to 5."""
    segment = reference.empty_segment(Lane(2, 1, "GRAY", 4, 6))
    for i in range(5):
        reference.publish(segment, Frame(bytes([i, i]), b"meta", (i, i, i)))
    return bytes(segment)


def changed(at: int, value: int, size: int = 4) -> bytes:
    data = bytearray(good())
    data[at : at + size] = value.to_bytes(size, "little")
    return bytes(data)


LARGE = [0x7FFFFFFF, 0x80000000, 0xFFFFFFF0, 0xFFFFFFFF]


@pytest.mark.parametrize(
    ("at", "value", "error"),
    [
        (0, int.from_bytes(b"flan", "little"), FormatError),
        *((4, version, VersionError) for version in (0, 2, 256)),
        *((12, capacity, FormatError) for capacity in (0, 5, *LARGE)),
        *((16, slot_size, FormatError) for slot_size in (0, 40, 47, 49, 56, *LARGE)),
        *((20, payload, FormatError) for payload in (0, 1, 23, 25, 31, 33, 40, *LARGE)),
        *((24, width, FormatError) for width in (0, 9, *LARGE)),
        *((28, height, FormatError) for height in (0, 9, *LARGE)),
        *((32, channels, FormatError) for channels in (0, 2, 3, *LARGE)),
        *((36, crc, VersionError) for crc in (0, 1, 0xFFFFFFFF)),
        *((40, head, FormatError) for head in ((1 << 62) + 1, 1 << 63, (1 << 64) - 1)),
    ],
)
def test_headers_that_are_wrong(run_id: str, at: int, value: int, error: type[FormatError]) -> None:
    data = changed(at, value, 8 if at == 40 else 4)
    with pytest.raises(reference.Broken):
        reference.read_segment(data)
    path_of(run_id).write_bytes(data)
    with pytest.raises(error) as caught:
        LaneReader(run_id)
    assert caught.value.path == str(path_of(run_id))
    assert caught.value.offset in {at, 16, 20, 32, len(data)}  # the first rule that it breaks
    assert (run_id, True) not in lanes()
    LaneWriter(run_id, SHAPE).close()  # none of them is in the way


def test_sizes_that_fit_only_modulo_two_to_the_32(run_id: str) -> None:
    data = bytearray(good())
    struct.pack_into("<III", data, 24, 1 << 16, 1 << 16, 1)  # 2^32 pixels
    path_of(run_id).write_bytes(data)
    with pytest.raises(FormatError, match="room for a frame"):
        LaneReader(run_id)
    data = bytearray(good())
    struct.pack_into("<III", data, 12, 1, 8, (1 << 32) - 8)  # slot_size = payload_size + 16
    path_of(run_id).write_bytes(data)
    with pytest.raises(FormatError, match="slots of"):
        LaneReader(run_id)


def test_segments_of_every_length(run_id: str) -> None:
    data = good()
    for length in range(len(data)):
        path_of(run_id).write_bytes(data[:length])
        with pytest.raises(FormatError if length else FileNotFoundError) as caught:
            LaneReader(run_id)
        if length:
            assert getattr(caught.value, "offset", None) == length
    path_of(run_id).write_bytes(data + b"more")
    assert numbers(LaneReader(run_id).frames()) == [2, 3, 4, 5]


def test_segments_that_are_being_made(run_id: str) -> None:
    for size in (0, 80, len(good())):
        path_of(run_id).write_bytes(bytes(size))
        with pytest.raises(FileNotFoundError):
            LaneReader(run_id)


def test_heads_that_promise_too_much_or_too_little(run_id: str) -> None:
    for head in (9, 1000, 1 << 62):
        path_of(run_id).write_bytes(changed(40, head, 8))
        reader = LaneReader(run_id)
        assert reader.frames() == []
        assert reader.latest() is None
        assert reader.skipped == 4
    path_of(run_id).write_bytes(good())
    reader = LaneReader(run_id)
    assert len(reader.frames()) == 4
    with path_of(run_id).open("r+b") as file:
        file.seek(40)
        file.write(bytes(8))  # it goes back
    assert reader.frames() == []
    assert reader.latest() is None
    assert reader.skipped == 0


@pytest.mark.parametrize(("at", "values"), [(8, [0, 1, 3, *LARGE]), (12, [7, 8, *LARGE])])
def test_lengths_that_are_wrong(run_id: str, at: int, values: list[int]) -> None:
    for value in values:
        path_of(run_id).write_bytes(changed(80 + at, value))  # frame 5
        for call in (LaneReader(run_id).latest, LaneReader(run_id).frames):
            with pytest.raises(FormatError) as caught:
                call()
            assert caught.value.offset == 80 + at


def test_every_byte_flipped(run_id: str) -> None:
    data = good()
    for at in range(len(data)):
        hurt = bytearray(data)
        hurt[at] ^= 0xFF
        path_of(run_id).write_bytes(hurt)
        try:
            lane = reference.read_segment(bytes(hurt))
        except reference.Broken:
            with pytest.raises((FormatError, FileNotFoundError)):
                LaneReader(run_id).frames()
            continue
        assert lane is not None
        found = LaneReader(run_id).frames()
        assert numbers(found) == list(lane.frames)
        for frame in found:
            assert frame.pixels.tobytes() == lane.frames[frame.number].pixels
            assert frame.metadata == lane.frames[frame.number].metadata


def test_a_lane_of_the_first_program(run_id: str) -> None:
    """No lock, no metrics in slots, nobody is woken: read all the same."""
    segment = reference.empty_segment(Lane(2, 2, "GRAY", 4, 4, flags=0))
    path_of(run_id).write_bytes(segment)
    reader = LaneReader(run_id)
    assert not reader.closed

    def write() -> None:
        reference.publish(segment, Frame(b"abcd", b"text", (1, 2, 3)))
        with path_of(run_id).open("r+b") as file:
            file.write(segment)

    late = threading.Timer(0.05, write)
    late.start()
    assert reader.wait(30)
    late.join()
    (frame,) = reader.frames()
    assert (frame.pixels.tobytes(), frame.metadata) == (b"abcd", b"text")
    assert (frame.reward, frame.rolling_return, frame.step_rate_hz) == (1, 2, 3)
    struct.pack_into("<I", segment, 8, CLOSED)
    path_of(run_id).write_bytes(segment)
    assert LaneReader(run_id).closed


def test_names_that_are_no_segments(run_id: str, tmp_path: Path) -> None:
    calls = (LaneReader, lambda name: LaneWriter(name, SHAPE))
    (tmp_path / "precious").write_bytes(b"mine")
    path_of(run_id).symlink_to(tmp_path / "precious")
    for call in calls:
        with pytest.raises(OSError):
            call(run_id)
    assert (tmp_path / "precious").read_bytes() == b"mine"
    path_of(run_id).unlink()
    path_of(run_id).mkdir()
    for call in calls:
        with pytest.raises(OSError):
            call(run_id)
    path_of(run_id).rmdir()
    os.mkfifo(path_of(run_id))
    for call in calls:
        with pytest.raises(OSError):  # and does not wait for the other end
            call(run_id)


CUT = """
import faulthandler, os, sys
import numpy as np
from stepwell import FormatError
from stepwell.stores.replay.lane import LaneReader, LaneWriter
faulthandler.enable()
name, path = sys.argv[1:]
frame = np.zeros((64, 64), np.uint8)
for size in (5000, 80, 0):
    writer = LaneWriter(name, (64, 64), capacity=16)
    for _ in range(16):
        writer.publish(frame)
    readers = [LaneReader(name) for _ in range(4)]
    os.truncate(path, size)
    calls = [readers[0].latest, readers[1].frames, lambda: readers[2].wait(0.1),
             lambda: writer.publish(frame), lambda: readers[3].closed, writer.close]
    failed = 0
    for call in calls:
        try:
            call()
        except FormatError as error:
            assert "truncated while" in str(error), error
            failed += 1
    print(size, failed)
    LaneWriter(name, (2, 2)).close()
print("alive")
"""


def test_segments_that_are_cut_while_they_are_mapped(run_id: str) -> None:
    """Those in the first page go on with it; nobody dies."""
    lines = children.answer(CUT, run_id, path_of(run_id)).splitlines()
    assert lines == ["5000 2", "80 3", "0 6", "alive"]


def test_hostile_hands_while_it_is_read(run_id: str) -> None:
    """Somebody scribbles over the whole segment: errors, or whole nonsense, and nothing else."""
    rng = np.random.default_rng(1)
    segment = reference.empty_segment(Lane(16, 16, "GRAY", 4, 8))
    path_of(run_id).write_bytes(segment)
    seen = failed = 0
    with path_of(run_id).open("r+b", buffering=0) as file:
        for round_ in range(scaled(3000)):
            reference.publish(segment, Frame(bytes(256), b"", (0, 0, 0)))
            file.seek(0)
            file.write(segment)
            reader = LaneReader(run_id)
            at = int(rng.integers(4, len(segment) - 8))
            file.seek(at - at % 4 * (round_ % 2))
            file.write(rng.bytes(8))
            try:
                seen += len(reader.frames())
                reader.latest()
                reader.wait(0)
            except FormatError:
                failed += 1
    assert seen > 0
    assert failed > 0

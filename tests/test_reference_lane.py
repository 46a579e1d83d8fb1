"""docs/formats/lane.md, its reference and the package agree, each reading what another wrote."""

import re

import numpy as np
import pytest

from stepwell.stores.replay.lane import LaneReader, LaneWriter
from tests import ROOT
from tests.lanes import run_id
from tests.reference import lane as reference
from tests.reference.lane import KEPT, Frame, Lane

__all__ = ["run_id"]

PAGE = (ROOT / "docs" / "formats" / "lane.md").read_text()
FORMATS = pytest.mark.parametrize("pixel_format", reference.CHANNELS)


def page_segment() -> bytes:
    """The segment of the page, out of its hex; the text beside it is for people."""
    (text,) = re.findall(r"^```hex segment\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return b"".join(bytes.fromhex(re.split(" {2,}", line)[0]) for line in text.splitlines())


PAGE_FRAMES = [
    Frame(b"\1\2", b"", (3, 3, 60)),
    Frame(b"\3\4", b"two", (2, 5, 60)),
    Frame(b"\5\6", b"three", (1, 6, 60)),
]


def test_the_segment_of_the_page(run_id: str) -> None:
    lane = reference.read_segment(page_segment())
    assert lane == Lane(
        *(2, 1, "GRAY", 2, 6, KEPT, 3, 1, (1, 6, 60)),
        frames={2: PAGE_FRAMES[1], 3: PAGE_FRAMES[2]},
    )
    reference.path_of(run_id).write_bytes(page_segment())
    reader = LaneReader(run_id)
    assert (reader.shape, reader.pixel_format, reader.capacity) == ((1, 2, 1), "GRAY", 2)
    assert_same(reader, lane)


def test_the_package_writes_the_segment_of_the_page(run_id: str) -> None:
    with LaneWriter(run_id, (1, 2), capacity=2, metadata_bytes=5) as writer:
        for frame in PAGE_FRAMES:
            publish(writer, frame)
        assert reference.path_of(run_id).read_bytes() == page_segment()


def test_the_reference_writes_the_segment_of_the_page() -> None:
    segment = reference.empty_segment(Lane(2, 1, "GRAY", 2, 6))
    for frame in PAGE_FRAMES:
        reference.publish(segment, frame)
    assert segment == page_segment()


@FORMATS
@pytest.mark.parametrize("flags", [KEPT, 0])
def test_the_package_reads_what_the_reference_writes(
    run_id: str, pixel_format: str, flags: int
) -> None:
    frame_bytes = 15 * reference.CHANNELS[pixel_format]
    room = -frame_bytes % 8 + 16
    segment = reference.empty_segment(Lane(3, 5, pixel_format, 4, room, flags))
    for frame in made(11, frame_bytes, room):
        reference.publish(segment, frame)
    reference.path_of(run_id).write_bytes(segment)
    reader = LaneReader(run_id)
    assert (reader.shape[:2], reader.pixel_format) == ((5, 3), pixel_format)
    lane = reference.read_segment(bytes(segment))
    assert lane is not None
    assert list(lane.frames) == [8, 9, 10, 11]
    assert_same(reader, lane)


@FORMATS
def test_the_reference_reads_what_the_package_writes(run_id: str, pixel_format: str) -> None:
    shape = (5, 3, reference.CHANNELS[pixel_format])
    frames = made(11, 15 * shape[2], 20)
    with LaneWriter(
        run_id, shape, pixel_format=pixel_format, capacity=4, metadata_bytes=20
    ) as writer:
        for frame in frames:
            publish(writer, frame)
        lane = reference.read_segment(reference.path_of(run_id).read_bytes())
    assert lane is not None
    assert 20 <= lane.metadata_room < 28
    assert (lane.head, lane.tail, lane.metrics) == (11, 7, frames[-1].metrics)
    assert lane.frames == {i: frames[i - 1] for i in (8, 9, 10, 11)}


def made(count: int, frame_bytes: int, room: int) -> list[Frame]:
    rng = np.random.default_rng(frame_bytes)
    return [
        Frame(rng.bytes(frame_bytes), rng.bytes(i * 7 % (room + 1)), (i, -i / 3, 1e300 * i))
        for i in range(count)
    ]


def publish(writer: LaneWriter, frame: Frame) -> None:
    pixels = np.frombuffer(frame.pixels, np.uint8).reshape(writer.shape)
    reward, rolling_return, step_rate_hz = frame.metrics
    writer.publish(
        pixels,
        reward=reward,
        rolling_return=rolling_return,
        step_rate_hz=step_rate_hz,
        metadata=frame.metadata,
    )


def assert_same(reader: LaneReader, lane: Lane) -> None:
    found = {
        frame.number: Frame(
            frame.pixels.tobytes(),
            frame.metadata,
            (frame.reward, frame.rolling_return, frame.step_rate_hz),
        )
        for frame in reader.frames()
    }
    assert found == lane.frames

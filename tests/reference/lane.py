"""docs/formats/lane.md in plain Python: struct for the numbers, a file for the segment.

Nothing here is shared with the package, so where the two agree, two readers of the page did. It
reads segments at rest and writes them one frame at a time; atomics are not its subject.
"""

import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

HEADER = "<4sIIIIIIIIIQQddd"
SLOT = "<QII"
CLOSED, KEPT = 1, 2
CHANNELS = {"GRAY": 1, "RGB": 3, "BGR": 3, "RGBA": 4, "BGRA": 4}

Metrics = tuple[float, float, float]


class Broken(ValueError):
    """What breaks a MUST of the page."""


class BrokenVersion(Broken):
    """A version or a pixel format that the page does not describe."""


@dataclass
class Frame:
    pixels: bytes
    metadata: bytes = b""
    metrics: Metrics = (0.0, 0.0, 0.0)


@dataclass
class Lane:
    """What a segment says: the frames that are whole, by number."""

    width: int
    height: int
    pixel_format: str
    capacity: int
    metadata_room: int
    flags: int = KEPT
    head: int = 0
    tail: int = 0
    metrics: Metrics = (0.0, 0.0, 0.0)
    frames: dict[int, Frame] = field(default_factory=dict)


def path_of(run_id: str) -> Path:
    return Path("/dev/shm") / f"mosaic.fastlane.{run_id}"


def read_segment(data: bytes) -> Lane | None:
    """None while it is being made."""
    if not data:
        return None
    if len(data) < 80:
        raise Broken("no header")
    magic, version, flags, capacity, slot_size, payload_size, *rest = struct.unpack(
        HEADER, data[:80]
    )
    width, height, channels, crc, head, tail, *metrics = rest
    if magic == b"\0\0\0\0":
        return None
    if magic != b"FLAN":
        raise Broken("magic")
    names = {zlib.crc32(name.encode()): name for name in CHANNELS}
    if version != 1 or crc not in names:
        raise BrokenVersion(f"version {version}, pixel format {crc}")
    frame_bytes = width * height * channels
    room = payload_size - frame_bytes - (24 if flags & KEPT else 0)
    if not (capacity and width and height) or channels != CHANNELS[names[crc]] or room < 0:
        raise Broken("shape")
    if slot_size != payload_size + 16 or slot_size % 8 or head > 1 << 62:
        raise Broken("sizes")
    if len(data) < 80 + capacity * slot_size:
        raise Broken("cut")
    a, b, c = metrics
    lane = Lane(width, height, names[crc], capacity, room, flags, head, tail, (a, b, c))
    for number in range(max(1, head - capacity + 1), head + 1):
        at = 80 + (number - 1) % capacity * slot_size
        seq, frame_len, metadata_len = struct.unpack_from(SLOT, data, at)
        if seq != 2 * number + 2:
            continue
        if frame_len != frame_bytes or metadata_len > room:
            raise Broken("lengths")
        begin, end = at + 16, at + 16 + frame_len
        own = struct.unpack_from("<ddd", data, at + slot_size - 24)
        lane.frames[number] = Frame(
            data[begin:end],
            data[end : end + metadata_len],
            own if flags & KEPT else lane.metrics,
        )
    return lane


def empty_segment(lane: Lane) -> bytearray:
    """A segment without frames."""
    channels = CHANNELS[lane.pixel_format]
    payload = lane.width * lane.height * channels + lane.metadata_room
    payload += 24 if lane.flags & KEPT else 0
    crc = zlib.crc32(lane.pixel_format.encode())
    sizes = (lane.capacity, payload + 16, payload, lane.width, lane.height, channels, crc)
    header = struct.pack(HEADER, b"FLAN", 1, lane.flags, *sizes, 0, 0, 0.0, 0.0, 0.0)
    return bytearray(header + bytes(lane.capacity * (payload + 16)))


def publish(segment: bytearray, frame: Frame) -> int:
    """Write the next frame as the page says; returns its number."""
    flags, capacity, slot_size = struct.unpack_from("<III", segment, 8)
    number = int.from_bytes(segment[40:48], "little") + 1
    at = 80 + (number - 1) % capacity * slot_size
    struct.pack_into("<Q", segment, 48, max(0, number - capacity))
    struct.pack_into(SLOT, segment, at, 2 * number + 1, len(frame.pixels), len(frame.metadata))
    body = frame.pixels + frame.metadata
    segment[at + 16 : at + 16 + len(body)] = body
    if flags & KEPT:
        struct.pack_into("<ddd", segment, at + slot_size - 24, *frame.metrics)
    struct.pack_into("<Q", segment, at, 2 * number + 2)
    struct.pack_into("<ddd", segment, 56, *frame.metrics)
    struct.pack_into("<Q", segment, 40, number)
    return number

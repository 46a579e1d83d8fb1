"""The newest frames of a run, in shared memory, for whoever wants to look.

A writer puts each frame into the next slot of a ring and never waits. Readers, in any process,
copy what they want and notice when the writer was faster. docs/formats/lane.md has the bytes.
"""

import fcntl
import json
import os
import struct
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell import _core
from stepwell.errors import BusyError, FormatError, SchemaError, VersionError
from stepwell.files.lock import patiently
from stepwell.files.regular import is_at, open_inside
from stepwell.source import Closing
from stepwell.stores.replay.channels import as_json
from stepwell.stores.replay.refs import check_run_id

PREFIX = "mosaic.fastlane."
CHANNELS = {"GRAY": 1, "RGB": 3, "BGR": 3, "RGBA": 4, "BGRA": 4}
"""Pixel formats, and the channels of each."""

_UINT8 = np.dtype(np.uint8)
_FOLDER = Path("/dev/shm")
_BY_CHANNELS = {1: "GRAY", 3: "RGB", 4: "RGBA"}
_BY_CRC = {zlib.crc32(name.encode()): name for name in CHANNELS}
_APPEARS_S = 0.005  # how often a reader looks for a lane that is not there yet
_LOOKS_S = 0.05  # how often one that waits looks whether the writer lives
_TRIES = 100
_MIN_AGE_S = 60.0  # of a lane that others than its own run's next writer remove
_SMOOTHING = 0.1  # the share of the newest step in a rate
_BEGIN = struct.Struct("<4sII")  # magic, version, flags
_CLOSED, _KEPT = 1, 2
_WHOLE_FILE = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


@dataclass(frozen=True, slots=True, eq=False)
class LaneFrame:
    """A frame, with its metrics and metadata."""

    number: int
    """1 for the first frame of a writer."""
    pixels: NDArray[np.uint8]
    """(height, width, channels); the reader's own copy."""
    reward: float
    rolling_return: float
    step_rate_hz: float
    metadata: bytes

    def json(self) -> Any:
        """The metadata of a writer that gave a mapping; None when there is none."""
        return json.loads(self.metadata) if self.metadata else None


class LaneInfo(NamedTuple):
    """A lane that is there."""

    run_id: str
    alive: bool
    """Whether its writer is."""


class LaneWriter(Closing):
    """Shows the frames of a run to whoever looks, and never waits for them.

        with LaneWriter("run-7", (210, 160, 3)) as lane:
            lane.publish(frame, reward=1.0)

    Frames are uint8 of one shape: (height, width) or (height, width, channels); `pixel_format` is
    the meaning of the channels. The last `capacity` frames can be read. A run has one writer at a
    time (`BusyError`). What a killed one left is removed, and so are lanes of other runs that
    this user's killed writers left, once they are a minute old. A forked child cannot publish.
    """

    def __init__(
        self,
        run_id: str,
        shape: Sequence[int],
        *,
        pixel_format: str | None = None,
        capacity: int = 8,
        metadata_bytes: int = 512,
    ) -> None:
        name = PREFIX + check_run_id(run_id)
        self.run_id = run_id
        self.shape, self.pixel_format = _checked(shape, pixel_format)
        height, width, channels = self.shape
        for what, value, min_ in (
            ("capacity", capacity, 1),
            ("metadata_bytes", metadata_bytes, 0),
        ):
            if not min_ <= value < 1 << 32:
                raise ValueError(f"{what}: expected {min_} to {(1 << 32) - 1}, got {value}")
        crc = zlib.crc32(self.pixel_format.encode())
        given = (name, capacity, width, height, channels, crc, metadata_bytes)
        self._lane = patiently(lambda: _core.LaneWriter(*given), BusyError)
        self._room = self._lane.metadata_bytes
        _remove_dead()

    @property
    def closed(self) -> bool:
        """Whether this process cannot publish any more."""
        return not self._lane.open

    def publish(
        self,
        frame: ArrayLike,
        *,
        reward: SupportsFloat = 0.0,
        rolling_return: SupportsFloat = 0.0,
        step_rate_hz: SupportsFloat = 0.0,
        metadata: bytes | Mapping[str, Any] = b"",
    ) -> int:
        """Show a frame; returns its number, from 1. A mapping is kept as JSON.

        Raises `SchemaError` for another shape or dtype and for metadata that is too long, and
        `ValueError` when the lane is closed.
        """
        pixels = np.ascontiguousarray(frame)
        if pixels.dtype != _UINT8:
            raise SchemaError(f"expected frames of uint8, got {pixels.dtype}")
        if pixels.shape != self.shape and (*pixels.shape, 1) != self.shape:
            raise SchemaError(f"expected a frame of shape {self.shape}, got {pixels.shape}")
        text = metadata if isinstance(metadata, bytes) else as_json("metadata", metadata, _ENCODER)
        if len(text) > self._room:
            raise SchemaError(f"expected at most {self._room} bytes of metadata, got {len(text)}")
        return self._lane.publish(
            pixels, text, float(reward), float(rolling_return), float(step_rate_hz)
        )

    def close(self) -> None:
        """Mark the lane as closed, which readers see, and remove it."""
        self._lane.close()

    def __del__(self) -> None:
        if hasattr(self, "_lane") and self._lane.open:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            self._lane.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.pixel_format
        return f"LaneWriter({self.run_id!r}, {self.shape}, {state})"


class LaneView:
    """The frames of an agent in a lane, which is made when it is known how large they are."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._lane: LaneWriter | None = None
        self._return = self._rate_hz = 0.0
        self._time = time.perf_counter()

    def show(self, frame: Any, reward: float, step: Mapping[str, Any], *, begins: bool) -> None:
        """Publish a step's frame, with the rewards of its episode so far."""
        if self._lane is None:
            self._lane = LaneWriter(self._run_id, np.shape(frame))
        before, self._time = self._time, time.perf_counter()
        self._rate_hz += _SMOOTHING * (1 / max(self._time - before, 1e-9) - self._rate_hz)
        self._return = reward + (0.0 if begins else self._return)
        self._lane.publish(
            frame,
            reward=reward,
            rolling_return=self._return,
            step_rate_hz=self._rate_hz,
            metadata=step,
        )

    def close(self) -> None:
        if self._lane is not None:
            self._lane.close()


class LaneReader(Closing):
    """Looks at the frames of a run, which another process may be publishing.

        with LaneReader("run-7") as lane:
            frame = lane.latest()               the newest, or None when it has been seen
            for frame in lane: ...              all of them, until the writer is gone

    Raises `FileNotFoundError` when after `timeout_s` there is no such lane. Frames that are
    returned are whole; those that went by without being returned are counted in `skipped`.

    When the writer is gone and a new one has begun, the reader goes on with that one, once it has
    seen what was left of the first: numbers begin with 1 again, `restarts` is one more, and
    `shape` may differ. A reader is for one thread; each thread needs its own.
    """

    def __init__(self, run_id: str, *, timeout_s: float = 0.0) -> None:
        self._name = PREFIX + check_run_id(run_id)
        self.run_id = run_id
        until = time.monotonic() + timeout_s
        while (lane := _opened(self._name)) is None:
            if time.monotonic() >= until:
                raise FileNotFoundError(f"there is no lane of {run_id!r}")
            time.sleep(_APPEARS_S)
        self._open: _core.LaneReader | None = lane
        self._last = max(0, lane.head() - lane.capacity)
        self.skipped = 0
        """Frames published since this reader began that it went past and did not return."""
        self.restarts = 0
        """How often it has gone on with a new writer."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of a frame."""
        return self._lane.shape

    @property
    def pixel_format(self) -> str:
        """What a pixel is, as the writer was given it."""
        return _BY_CRC[self._lane.pixel_crc]

    @property
    def capacity(self) -> int:
        """The number of slots: the maximum number of frames."""
        return self._lane.capacity

    @property
    def closed(self) -> bool:
        """Whether the writer has closed the lane or is no more; there may be frames left."""
        return self._lane.closed()

    def latest(self) -> LaneFrame | None:
        """The newest frame, unless it has been returned before.

        Also None when the writer was faster a hundred times over: give it a larger capacity.
        """
        for _ in range(_TRIES):
            head = self._newest()
            if head <= self._last:
                return None
            frame = self._read(head)
            if frame is not None:
                self._advance(head, 1)
                return frame
        return None

    def frames(self) -> list[LaneFrame]:
        """All frames since the last one that are still there, the oldest first."""
        head = self._newest()
        first = max(self._last, head - self._lane.capacity) + 1
        read = (self._read(number) for number in range(first, head + 1))
        found = [frame for frame in read if frame is not None]
        self._advance(head, len(found))
        return found

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a frame that has not been seen: True.

        False when the time is up, and at once when the writer is gone and no other has begun.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            lane = self._lane
            closed = lane.closed()  # before the look: it may close after its last frame
            head = self._newest()
            if head > self._last:
                return True
            left = _LOOKS_S if until is None else until - time.monotonic()
            if (closed and lane is self._lane) or left <= 0:
                return False
            self._lane.wait(head, min(left, _LOOKS_S))

    def __iter__(self) -> Iterator[LaneFrame]:
        """All frames as they come, until the writer is gone."""
        while self.wait():
            yield from self.frames()

    def close(self) -> None:
        """Let go of the lane; frames that were handed out stay valid."""
        self._open = None  # unmapped when the last call has returned

    def __repr__(self) -> str:
        state = "closed" if self._open is None else f"{self.shape}, {self.pixel_format}"
        return f"LaneReader({self.run_id!r}, {state})"

    # Below this line: for this module.

    @property
    def _lane(self) -> _core.LaneReader:
        if self._open is None:
            raise ValueError(f"the reader of {self.run_id!r} is closed")
        return self._open

    def _newest(self) -> int:
        """The newest frame's number, if need be that of a writer that has begun meanwhile."""
        head = self._lane.head()
        if head > self._last or not self._lane.closed():
            return head
        head = self._lane.head()  # what it published before its end
        if head > self._last or not self._lane.replaced():
            return head
        lane = _opened(self._name)
        if lane is None:
            return head
        self._open = lane
        self._last = 0
        self.restarts += 1
        return lane.head()

    def _read(self, number: int) -> LaneFrame | None:
        pixels = np.empty(self._lane.shape, np.uint8)
        found = self._lane.read(number, pixels.reshape(-1))
        if found is None:
            return None
        metadata, reward, rolling_return, step_rate_hz = found
        return LaneFrame(number, pixels, reward, rolling_return, step_rate_hz, metadata)

    def _advance(self, head: int, returned: int) -> None:
        self.skipped += max(head - self._last, 0) - returned
        self._last = max(head, self._last)


def lanes() -> list[LaneInfo]:
    """The lanes of this machine that this user may read, by name."""
    found = []
    for name in sorted(os.listdir(_FOLDER) if _FOLDER.is_dir() else []):
        if not name.startswith(PREFIX):
            continue
        try:
            alive = not _core.LaneReader(name).closed()
        except FormatError:
            alive = False
        except OSError:  # gone by now, or another user's
            continue
        found.append(LaneInfo(name.removeprefix(PREFIX), alive))
    return found


def _remove_dead() -> None:
    """Remove the lanes of this user whose writers were killed."""
    for name in os.listdir(_FOLDER) if _FOLDER.is_dir() else ():
        if name.startswith(PREFIX):
            with suppress(OSError, FormatError):  # gone by now, another user's, or not a file
                _remove_if_dead(_FOLDER / name)


def _remove_if_dead(path: Path) -> None:
    file = open_inside(path.parent, path.name, os.O_RDWR)
    try:
        magic, _, flags = _BEGIN.unpack(os.pread(file, _BEGIN.size, 0).ljust(_BEGIN.size, b"\0"))
        if os.fstat(file).st_uid != os.geteuid() or magic != b"FLAN" or not flags & _KEPT:
            return  # one that is being made, or of a program that holds no lock
        if time.time() - os.fstat(file).st_mtime < _MIN_AGE_S:
            return  # of a run that someone may want to see the end of
        # Fails while its writer lives. Readers who still look at it see that it is closed.
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        if is_at(file, path):
            os.pwrite(file, struct.pack("<I", flags | _CLOSED), _BEGIN.size - 4)
            path.unlink()
    finally:
        os.close(file)


def _checked(shape: Sequence[int], name: str | None) -> tuple[tuple[int, int, int], str]:
    """Height, width and channels of a frame, and what the channels are."""
    full = tuple(shape) if len(shape) == 3 else (*shape, 1)
    if len(full) != 3 or not all(0 < side < 1 << 32 for side in full):
        raise ValueError(f"expected a shape of (height, width[, channels]), got {tuple(shape)}")
    height, width, channels = full
    name = _BY_CHANNELS.get(channels, "") if name is None else name
    if CHANNELS.get(name) != channels:
        known = ", ".join(f"{each} ({count})" for each, count in CHANNELS.items())
        raise ValueError(
            f"expected a pixel format of {known}, got {name!r} for {channels} channels"
        )
    return (height, width, channels), name


def _opened(name: str) -> _core.LaneReader | None:
    """The lane; None when it is not there, or being made."""
    try:
        lane = _core.LaneReader(name)
    except FileNotFoundError:
        return None
    known = _BY_CRC.get(lane.pixel_crc)
    if known is None:
        what = f"expected a known pixel format, got one of CRC {lane.pixel_crc:#010x}"
        raise VersionError(what, path=lane.path, offset=36)
    if CHANNELS[known] != lane.shape[2]:
        what = f"expected {CHANNELS[known]} channels for {known}, got {lane.shape[2]}"
        raise FormatError(what, path=lane.path, offset=32)
    return lane

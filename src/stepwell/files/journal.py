"""A journal: records one behind the other in a file, each whole or not there.

A record is a magic, a CRC32C, a size and a body. Two formats have it in two ways: in one the size
counts the body and the checksum covers it, in the other both cover all that follows the checksum
and its place. Bytes behind the last whole record may be torn, old, or zeros.
"""

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.files.atomic import write_all
from stepwell.files.regular import open_inside

_HEAD = struct.Struct("<4sIQ")


@dataclass(frozen=True)
class Framing:
    """How the records of a journal begin."""

    magic: bytes
    whole: bool
    """The size is that of the whole record, and the checksum covers the size too."""

    def frame(self, body: bytes) -> bytes:
        """A record with this body."""
        size = (len(body) + (_HEAD.size if self.whole else 0)).to_bytes(8, "little")
        covered = size + body if self.whole else body
        crc = _core.crc32c(np.frombuffer(covered, np.uint8))
        return self.magic + crc.to_bytes(4, "little") + size + body

    def body_at(self, data: NDArray[np.uint8], at: int) -> NDArray[np.uint8] | None:
        """The body of the record at a place; None when there is no whole one."""
        if at + _HEAD.size > len(data):
            return None
        magic, crc, size = _HEAD.unpack_from(data.data, at)
        size -= _HEAD.size if self.whole else 0
        if magic != self.magic or not 0 <= size <= len(data) - at - _HEAD.size:
            return None
        end = at + _HEAD.size + size
        if _core.crc32c(data[at + (8 if self.whole else _HEAD.size) : end]) != crc:
            return None
        return data[at + _HEAD.size : end]

    def records(self, data: NDArray[np.uint8]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """The place and body of each whole record, up to the first that is not."""
        at = 0
        while (body := self.body_at(data, at)) is not None:
            yield at, body
            at += _HEAD.size + len(body)

    def places(self, data: NDArray[np.uint8], begin: int) -> Iterator[int]:
        """Where else, at multiples of eight behind `begin`, a record may be."""
        rest = data[begin : len(data) - (len(data) - begin) % 8]
        number = int.from_bytes(self.magic, "little")
        for place in np.flatnonzero(rest.view("<u8") % (1 << 32) == number):
            yield begin + 8 * int(place)


class Journal:
    """The file, open for writing. Records survive a power cut after `sync`."""

    def __init__(self, root: Path, name: str, framing: Framing, *, step_bytes: int = 0) -> None:
        """With `step_bytes`, room is made ahead in steps of as many zeros: a sync then has nothing
        but the records to write."""
        self._path = root / name
        self._framing = framing
        self._step_bytes = step_bytes
        self._file = open_inside(root, name, os.O_RDWR | os.O_CREAT)
        self._room = os.fstat(self._file).st_size
        self.end = 0
        """Where the next record goes."""

    torn = False
    """A part of a record may be at the end, and the journal must not be written to again."""

    def append(self, body: bytes) -> None:
        """Write a record behind the others. When that fails, what was written of it is cut off."""
        record = self._framing.frame(body)
        end = self.end + len(record)
        if self._step_bytes and end > self._room:
            room = -(-end // self._step_bytes) * self._step_bytes
            write_all(self._file, np.zeros(room - self._room, np.uint8), self._room, self._path)
            os.fsync(self._file)
            self._room = room
        try:
            write_all(self._file, np.frombuffer(record, np.uint8), self.end, self._path)
        except BaseException:
            self.torn = True
            with suppress(OSError):
                os.ftruncate(self._file, self.end)
                self._room = min(self._room, self.end)
                self.torn = False
            raise
        self.end = end

    def sync(self) -> None:
        """Wait until the records are on the disk. A disk does not try a refused write again,
        nor report it: after an error the journal must not be written to."""
        self._call(os.fdatasync)

    def cut(self, end: int) -> None:
        """Drop the records from a place on, on the disk too."""
        self._call(lambda file: os.ftruncate(file, end))
        self._call(os.fsync)
        self._room = min(self._room, end)
        self.end, self.torn = end, False

    def restart(self, *, cut: bool) -> None:
        """Begin again: the next record goes to the beginning. With `cut` the old ones are gone,
        on the disk too; without, a reader has to know them for old ones."""
        if cut:
            self.cut(0)
        self.end = 0

    def _call(self, call: Callable[[int], None]) -> None:
        try:
            call(self._file)
        except OSError as error:
            error.filename = str(self._path)
            raise

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

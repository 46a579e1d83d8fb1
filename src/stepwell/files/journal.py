"""A journal: records one behind the other in a file, each whole or not there.

A record is a magic, a CRC32C, a size and a body. Two formats have it in two ways: in one the size
counts the body and the checksum covers it, in the other both cover all that follows the checksum
and its place. Behind each record is room for a seal: a magic, a CRC32C, a number and a boot. Bytes
behind the last whole record may be torn, old, or zeros.

A seal is written when the records before it are on the disk. So where a record is not whole and
no seal is behind it, it was torn while it was written, and nobody was promised anything; with a
seal, it was damaged since. A seal of one boot counts until the machine is started again.
"""

import errno
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.files.atomic import write_all
from stepwell.files.regular import open_inside

_HEAD = struct.Struct("<4sIQ")
_SEAL = struct.Struct("<4sIQQ")
SEAL_BYTES = _SEAL.size
_MAX_HOLES = 1 << 28


@cache
def boot_number() -> int:
    """Another number each time the machine starts; 0 where it has none."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
        return int(text.replace("-", "")[:16], 16)
    except (OSError, ValueError):
        return 0


def read_journal(root: Path, name: str) -> NDArray[np.uint8]:
    """The bytes of a journal, as far as there are any; none where there is no such file.

    Raises `FormatError` for one that is mostly holes: nothing writes such a file.
    """
    try:
        file = open_inside(root, name)
    except FileNotFoundError:
        return np.empty(0, np.uint8)
    try:
        size, at, end, holes = os.fstat(file).st_size, 0, 0, 0
        while at < size:
            try:
                begin = os.lseek(file, at, os.SEEK_DATA)
                at = os.lseek(file, begin, os.SEEK_HOLE)
            except OSError as error:
                if error.errno != errno.ENXIO:  # a file system that knows of no holes
                    end = size
                break  # nothing but a hole behind
            holes, end = holes + begin - end, at
            if holes > _MAX_HOLES:
                message = f"expected a journal, got {holes:,} bytes of holes and more"
                raise FormatError(message, path=str(root / name), offset=begin)
        if not end:
            return np.empty(0, np.uint8)
        os.lseek(file, 0, os.SEEK_SET)
        with open(file, "rb", closefd=False) as opened:
            return np.frombuffer(opened.read(end), np.uint8)
    finally:
        os.close(file)


@dataclass(frozen=True)
class Framing:
    """How the records of a journal, and their seals, begin."""

    magic: bytes
    whole: bool
    """The size is that of the whole record, and the checksum covers the size too."""
    seal_magic: bytes

    def frame(self, *body: bytes | NDArray[np.uint8], seal: bytes = b"") -> NDArray[np.uint8]:
        """A record whose body has these parts, and what is behind it. They may be large: they are
        copied once."""
        parts: list[Any] = [bytes(_HEAD.size), *body, seal]
        record = np.frombuffer(bytearray().join(parts), np.uint8)
        end = len(record) - len(seal)
        size = end if self.whole else end - _HEAD.size
        _HEAD.pack_into(record.data, 0, self.magic, 0, size)
        crc = _core.crc32c(record[8 if self.whole else _HEAD.size : end])
        _HEAD.pack_into(record.data, 0, self.magic, crc, size)
        return record

    def seal(self, number: int, boot: int = 0) -> bytes:
        """A seal; with `boot`, of what is not on the disk yet."""
        body = struct.pack("<QQ", number, boot)
        crc = _core.crc32c(np.frombuffer(body, np.uint8))
        return self.seal_magic + crc.to_bytes(4, "little") + body

    def body_at(self, data: NDArray[np.uint8], at: int) -> NDArray[np.uint8] | None:
        """The body of the record at a place; None when there is no whole one."""
        size = self._size_at(data, at)
        if size is None:
            return None
        end = at + _HEAD.size + size
        (crc,) = struct.unpack_from("<I", data.data, at + 4)
        if _core.crc32c(data[at + (8 if self.whole else _HEAD.size) : end]) != crc:
            return None
        return data[at + _HEAD.size : end]

    def records(self, data: NDArray[np.uint8]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """The place and body of each whole record, up to the first that is not."""
        at = 0
        while True:
            body = self.body_at(data, at)
            if body is None and at:  # behind the place of a seal, whatever became of that
                at += _SEAL.size
                body = self.body_at(data, at)
            if body is None:
                return
            yield at, body
            at += _HEAD.size + len(body)

    def sealed(self, data: NDArray[np.uint8], end: int) -> int:
        """The highest number of the seals behind a place; 0 where there is none."""
        highest = 0
        for at in _places(data, end, self.seal_magic):
            if at + _SEAL.size <= len(data):
                _, crc, number, boot = _SEAL.unpack_from(data.data, at)
                if _core.crc32c(data[at + 8 : at + _SEAL.size]) == crc:
                    highest = max(highest, number if boot in (0, boot_number()) else 0)
        return highest

    def later(self, data: NDArray[np.uint8], end: int) -> Iterator[NDArray[np.uint8]]:
        """Bodies of whole records further on than the first that is not."""
        budget = 2 * len(data)  # records do not overlap; those that someone made up may
        for at in _places(data, end, self.magic):
            budget -= self._size_at(data, at) or 0
            body = self.body_at(data, at) if budget >= 0 else None
            if body is not None:
                yield body

    def _size_at(self, data: NDArray[np.uint8], at: int) -> int | None:
        """The size of the body of the record that seems to be at a place."""
        if at + _HEAD.size > len(data):
            return None
        magic, _, size = _HEAD.unpack_from(data.data, at)
        size -= _HEAD.size if self.whole else 0
        fits = magic == self.magic and 0 <= size <= len(data) - at - _HEAD.size
        return int(size) if fits else None


def _places(data: NDArray[np.uint8], begin: int, magic: bytes) -> Iterator[int]:
    """Where else, behind `begin`, a record or a seal may be."""
    rest = data[begin:].tobytes()
    at = rest.find(magic)
    while at >= 0:
        yield begin + at
        at = rest.find(magic, at + 1)


class Journal:
    """The file, open for writing. Records survive a power cut after `sync`."""

    def __init__(self, root: Path, name: str, framing: Framing, *, step_bytes: int = 0) -> None:
        """With `step_bytes`, room is made ahead in steps of as many zeros: a sync then has nothing
        but the records to write."""
        self.path = root / name
        self._framing = framing
        self._step_bytes = step_bytes
        self._file = open_inside(root, name, os.O_RDWR | os.O_CREAT)
        self._room = os.fstat(self._file).st_size
        self.end = 0
        """Where the next record goes."""

    torn = False
    """A part of a record may be at the end, and the journal must not be written to again."""

    def append(self, *body: bytes | NDArray[np.uint8], seal: bytes = bytes(_SEAL.size)) -> None:
        """Write a record of these parts behind the others, and what is to be in the place of its
        seal until `sync`. When that fails, what was written of it is cut off."""
        record = self._framing.frame(*body, seal=seal)
        end = self.end + len(record)
        if len(record) > self._step_bytes:  # of more than a step, the zeros would cost as much
            self._room = max(self._room, end)
        elif end > self._room:
            room = -(-end // self._step_bytes) * self._step_bytes
            write_all(self._file, np.zeros(room - self._room, np.uint8), self._room, self.path)
            os.fsync(self._file)
            self._room = room
        try:
            write_all(self._file, record, self.end, self.path)
        except BaseException:
            self.torn = True
            with suppress(OSError):
                os.ftruncate(self._file, self.end)
                self._room = min(self._room, self.end)
                self.torn = False
            raise
        self.end = end

    def sync(self, number: int) -> None:
        """Wait until the records are on the disk, and seal them. A disk does not try a refused
        write again, nor report it: after an error the journal must not be written to."""
        self._call(os.fdatasync)
        seal = np.frombuffer(self._framing.seal(number), np.uint8)
        write_all(self._file, seal, self.end - _SEAL.size, self.path)

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
            error.filename = str(self.path)
            raise

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

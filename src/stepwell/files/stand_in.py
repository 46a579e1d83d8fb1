"""Sparse local files that stand in for far ones: holes where nothing was brought yet.

A stand-in begins with `head`, which is here from the start, and goes on with the bytes of the far
file from `origin` on, in units. So that units are pages, and a hole gives back what it had, the
head is as long as some units: that of an array is a longer header of the same array.

One in a cache is shared by the processes of a machine. Beside it lies a file `NAME.units` (a page
that has whose units they are, then 16 bytes each): the CRC32C of a unit, its generation, when it
was brought, and by which process. A generation is odd while the unit is there; dropping it makes
that even before the hole is punched, and both change under the lock of the cache. So whoever has
read units looks at their generations again, and whoever meets a unit compares it with its CRC32C: a
power cut leaves junk. What another process has brought lately is its own to drop: were it not, two
of them with little room would take units from each other for ever.
"""

import ctypes
import errno
import hashlib
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.files.regular import open_inside
from stepwell.files.remote import About
from stepwell.files.residents import Numbers

LATELY_S = 60
UNITS = ".units"
_ENTRY = np.dtype([("crc", "<u4"), ("generation", "<u4"), ("brought", "<u4"), ("owner", "<u4")])
_PAGE = 4096
_MAGIC = b"STEPUNIT"
_HEADER = struct.Struct("<8sIIQQ32sQII")
_VERSION = 1
_NEWER = "a newer object is in the cache; open it again"
_PUNCH_AND_KEEP_SIZE = 3
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

Generations = NDArray[np.uint32]


class StandIn:
    """A file of this process alone, in a folder that goes with it."""

    is_shared = False

    def __init__(
        self, root: Path, name: str, about: About, unit_bytes: int, head: bytes, origin: int
    ) -> None:
        self.path, self.name, self.about = root / name, name, about
        self.unit_bytes, self.origin = unit_bytes, origin
        self.head_bytes = len(head)
        self.bytes = about.size - origin
        """Of the far file, in units."""
        self.units = -(-self.bytes // unit_bytes)
        self.first = 0
        """Of its units, among those of all files of a mirror."""
        self._root = root
        self._made = self._make(head)

    def _make(self, head: bytes) -> tuple[int, int]:
        """A new file, with its head and its size."""
        return _new(self._root, self.name, head, self.head_bytes + self.bytes)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """The file, for a block: of a thousand shards not all can be open. Raises `FormatError`
        when a cache has that of a newer object under its name."""
        file = open_inside(self._root, self.name, os.O_RDWR)
        try:
            if _identity(file) != self._made:
                raise FormatError(
                    "a newer object is in the cache; open it again", path=str(self.path)
                )
            yield file
        finally:
            os.close(file)

    def begin(self, unit: int) -> int:
        """Where a unit begins, behind the head."""
        return unit * self.unit_bytes

    def end(self, unit: int) -> int:
        return min((unit + 1) * self.unit_bytes, self.bytes)

    def put(self, unit: int, data: NDArray[np.uint8]) -> Generations:
        """The bytes of neighbouring units, from one on; their generations then."""
        self._write(unit, data)
        return np.ones(-(-len(data) // self.unit_bytes), np.uint32)

    def drop(self, units: Numbers, *, damaged: bool = False) -> None:
        """Give back the room of these units, ascending, unless it is for another to do."""
        if not len(units):
            return
        breaks = np.flatnonzero(np.diff(units) > 1) + 1
        with self._opened() as file:
            for some in np.split(units, breaks):
                # Whole units, beyond the end of the file too: a page of which a part stays is kept.
                at = self.head_bytes + self.begin(int(some[0]))
                punch_hole(file, at, len(some) * self.unit_bytes, self.path)

    def generations(self, units: Numbers) -> Generations:
        """Those of units that were put here: odd while they are here."""
        return np.ones(len(units), np.uint32)

    def met(self, units: Numbers) -> Generations:
        """The generations of units that others have put here and whose bytes are right, else 0."""
        return np.zeros(len(units), np.uint32)

    def old(self, before_s: float) -> Numbers:
        """Units that were put here before a time."""
        return np.empty(0, np.int64)

    def _write(self, unit: int, data: NDArray[np.uint8]) -> None:
        view, at = np.ascontiguousarray(data).data, self.head_bytes + self.begin(unit)
        with self._opened() as file:
            try:
                while view:
                    written = os.pwrite(file, view, at)
                    view, at = view[written:], at + written
            except OSError as error:
                raise no_room(error, self.path) from None


class SharedStandIn(StandIn):
    """One in a cache, which outlives this process."""

    is_shared = True

    def __init__(
        self,
        root: Path,
        name: str,
        about: About,
        unit_bytes: int,
        head: bytes,
        origin: int,
        changing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._changing = changing
        with changing():
            self._is_new = self.known(root, name, about, unit_bytes) is None
            super().__init__(root, name, about, unit_bytes, head, origin)
            self._index_made = self._make_index(head)
            with self._opened_index() as index:
                count = max(self.units, 1)
                size = _PAGE + count * _ENTRY.itemsize
                self._entries = _core.map_file(index, size, root / (name + UNITS))[_PAGE:].view(
                    _ENTRY
                )

    @staticmethod
    def known(root: Path, name: str, about: About, unit_bytes: int) -> tuple[bytes, int] | None:
        """Head and origin of a file that is there, and of this object; None of any other."""
        try:
            index = open_inside(root, name + UNITS)
        except FileNotFoundError:
            return None
        try:
            found = os.pread(index, _HEADER.size, 0)
        finally:
            os.close(index)
        if len(found) < _HEADER.size or found[-4:] != _crc(found[:-4]):
            return None
        magic, version, size, whole, origin, mark, head_bytes, head_crc, _ = _HEADER.unpack(found)
        if (magic, version, size, whole, mark) != (
            _MAGIC,
            _VERSION,
            unit_bytes,
            about.size,
            _digest(about),
        ):
            return None
        try:
            with open(open_inside(root, name), "rb") as file:
                head = file.read(head_bytes)
                there = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return None
        right = there == head_bytes + about.size - origin and len(head) == head_bytes
        return (head, origin) if right and _crc(head) == struct.pack("<I", head_crc) else None

    def _make(self, head: bytes) -> tuple[int, int]:
        if self._is_new:
            for old in (self.name + UNITS, self.name):  # who has it mapped keeps it
                with suppress(FileNotFoundError):
                    os.close(open_inside(self._root, old))  # of ours, or nothing that we remove
                    os.unlink(self._root / old)
            return super()._make(head)
        file = open_inside(self._root, self.name)
        try:
            return _identity(file)
        finally:
            os.close(file)

    def _make_index(self, head: bytes) -> tuple[int, int]:
        name = self.name + UNITS
        if self._is_new:
            size, origin, mark = self.about.size, self.origin, _digest(self.about)
            crc = int.from_bytes(_crc(head), "little")
            page = _HEADER.pack(
                _MAGIC, _VERSION, self.unit_bytes, size, origin, mark, len(head), crc, 0
            )
            page = page[:-4] + _crc(page[:-4])
            return _new(self._root, name, page, _PAGE + max(self.units, 1) * _ENTRY.itemsize)
        file = open_inside(self._root, name)
        try:
            return _identity(file)
        finally:
            os.close(file)

    @contextmanager
    def _opened_index(self) -> Iterator[int]:
        file = open_inside(self._root, self.name + UNITS, os.O_RDWR)
        try:
            if _identity(file) != self._index_made:
                raise FormatError(
                    "a newer object is in the cache; open it again", path=str(self.path)
                )
            yield file
        finally:
            os.close(file)

    def put(self, unit: int, data: NDArray[np.uint8]) -> Generations:
        last = unit + -(-len(data) // self.unit_bytes)
        entries = np.zeros(last - unit, _ENTRY)
        entries["crc"] = _core.stream_checksums(data, self.unit_bytes).view("<u4")
        entries["owner"] = os.getpid()
        entries["brought"] = int(time.time()) & 0xFFFFFFFF
        with self._changing():
            known = self._entries[unit:last]
            self._write(unit, data)
            # Another one, and odd; but where another process was quicker, its readers go on.
            there = (known["generation"] % 2 == 1) & (known["crc"] == entries["crc"])
            new = known["generation"] + 1 + known["generation"] % 2
            entries["generation"] = np.where(there, known["generation"], new)
            self._note(unit, entries)
        return entries["generation"].copy()

    def drop(self, units: Numbers, *, damaged: bool = False) -> None:
        with self._changing():
            entries = self._entries[units]
            ours = (entries["owner"] == os.getpid()) | (entries["brought"] < time.time() - LATELY_S)
            units = units[(entries["generation"] % 2 == 1) & (ours | damaged)]
            breaks = np.flatnonzero(np.diff(units) > 1) + 1
            for some in np.split(units, breaks) if len(units) else ():
                entries = self._entries[some[0] : some[-1] + 1].copy()
                entries["generation"] += 1
                self._note(int(some[0]), entries)
            super().drop(units)

    def generations(self, units: Numbers) -> Generations:
        found: Generations = self._entries["generation"][units]
        return found

    def met(self, units: Numbers) -> Generations:
        found = self.generations(units)
        found[found % 2 == 0] = 0
        there = np.flatnonzero(found)
        if not len(there):
            return found
        breaks = np.flatnonzero(np.diff(units[there]) > 1) + 1
        for places in np.split(there, breaks):
            first, last = int(units[places[0]]), int(units[places[-1]])
            at = self.head_bytes + self.begin(first)
            with self._opened() as file:
                data = os.pread(file, self.end(last) - self.begin(first), at)
            crcs = _core.stream_checksums(np.frombuffer(data, np.uint8), self.unit_bytes)
            wanted = self._entries["crc"][first : last + 1]
            same = np.zeros(last + 1 - first, bool)
            same[: len(crcs) // 4] = crcs.view("<u4") == wanted[: len(crcs) // 4]
            found[places[~same]] = 0
        return found

    def old(self, before_s: float) -> Numbers:
        there = (self._entries["generation"] % 2 == 1) & (self._entries["brought"] < before_s)
        return np.flatnonzero(there)

    def _note(self, unit: int, entries: NDArray[np.void]) -> None:
        """Written, not mapped: a full disk is an error here."""
        with self._opened_index() as file:
            try:
                os.pwrite(file, entries.tobytes(), _PAGE + unit * _ENTRY.itemsize)
            except OSError as error:
                raise no_room(error, self.path) from None


def _new(root: Path, name: str, start: bytes, size: int) -> tuple[int, int]:
    """Make a file that begins so, with a hole behind; which one it is."""
    file = open_inside(root, name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        os.pwrite(file, start, 0)
        os.ftruncate(file, size)
        return _identity(file)
    except OSError as error:
        raise no_room(error, root / name) from None
    finally:
        os.close(file)


def _identity(file: int) -> tuple[int, int]:
    about = os.fstat(file)
    return about.st_dev, about.st_ino


def no_room(error: OSError, path: Path) -> OSError:
    """The error of a write, which names the folder and what there is to do."""
    if error.errno in _NO_ROOM:
        message = (
            f"{os.strerror(error.errno or errno.ENOSPC)}: no room for what comes from the bucket; "
            "free some, or give a smaller window_bytes= or cache_bytes=, or another cache="
        )
        return OSError(error.errno, message, str(path))
    error.filename = str(path)
    return error


def punch_hole(file: int, at: int, size: int, path: Path) -> None:
    """Give back the room of some bytes of a file, which read as zeros then."""
    libc = ctypes.CDLL(None, use_errno=True)
    place, length = ctypes.c_int64(at), ctypes.c_int64(size)
    if libc.fallocate64(file, _PUNCH_AND_KEEP_SIZE, place, length) != 0:
        code = ctypes.get_errno()
        message = f"{os.strerror(code)}: expected a file system that can punch holes"
        raise OSError(code, message, str(path))


def _digest(about: About) -> bytes:
    return hashlib.sha256(f"{about.size} {about.mark}".encode()).digest()


def _crc(data: bytes) -> bytes:
    return struct.pack("<I", _core.crc32c(np.frombuffer(data, np.uint8)))

"""Objects below a URL, and local files of those that are wanted whole.

Size and ETag of each object are taken once, and every request is for that very object: one that is
replaced meanwhile is a `FormatError`, never mixed bytes.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FetchError, FormatError
from stepwell.files.atomic import new_file, write_all, write_file
from stepwell.files.mirror_place import CachePlace, Place, TemporaryPlace
from stepwell.files.regular import check_inside, open_inside, read_inside
from stepwell.files.remote import About, RemoteFiles
from stepwell.files.stand_in import no_room

K = TypeVar("K")

TRIES = 3
RANGE_BYTES = 1 << 22
_ABOUT = ".about"
_MAX_ABOUT = 1 << 12

Check = Callable[[int, NDArray[np.uint8]], None]
"""Raises `ChecksumError` unless bytes of a file, from a place behind its head on, are right."""


class Statistics:
    """What a mirror has asked for, and what was asked of it."""

    def __init__(self) -> None:
        self.requests = 0
        self.fetched_bytes = 0
        self.read_bytes = 0
        """Of the units of each take, those that were here included."""


class Objects:
    """Objects below a URL, `connections` requests for them at a time, and a folder for their files:
    a temporary one, or one of a cache."""

    def __init__(
        self,
        where: Any,
        connections: int,
        window_bytes: int,
        cache: str | os.PathLike[str] | None,
        *,
        listing: bool,
        **options: Any,
    ) -> None:
        self.files = RemoteFiles(where, **options)
        self.url, self.statistics = self.files.url, Statistics()
        self._process = os.getpid()
        self._listed = self.files.listed() if listing else None
        self._known: dict[str, About | None] = {}
        self.used: dict[str, About] = {}
        """The objects that were opened."""
        self._place: Place
        if cache is None:
            self._place = TemporaryPlace(window_bytes)
        else:
            self._place = CachePlace(Path(cache), self.files.place)
        self.root = self._place.root
        self._lock = threading.RLock()
        self._connections = connections
        self._pool = ThreadPoolExecutor(connections, thread_name_prefix="stepwell-fetch")

    # Objects.

    def about(self, name: str) -> About | None:
        """Size and ETag of an object, as they were at the first look; None where there is none."""
        if self._listed is not None:
            return self._listed.get(name)
        if name not in self._known:
            self._known[name] = self.files.about(name)
        return self._known[name]

    def names(self) -> list[str]:
        """All objects of a list; of a web server, which has none, those that were asked for."""
        found: Mapping[str, About | None] = self._known if self._listed is None else self._listed
        return [name for name, about in found.items() if about is not None]

    def url_of(self, name: str) -> str:
        return self.files.url_of(name)

    @property
    def version(self) -> str:
        """Equal for equal objects, by their ETags."""
        text = "".join(f"{name} {about}\n" for name, about in sorted(self.used.items()))
        return sha256(text.encode()).hexdigest()[:32]

    def check_version(self, version: str) -> None:
        """Raise `FormatError` unless these are the objects that had this version; "" for any."""
        if version not in ("", self.version):
            message = "the objects were replaced since this was pickled; open it again"
            raise FormatError(message, path=self.url)

    @property
    def stored_bytes(self) -> int:
        """Of all objects below the URL that are known."""
        return sum(about.size for name in self.names() if (about := self.about(name)))

    def use(self, name: str) -> None:
        """Have an object, which may be read later, among those that the version is of."""
        about = self.about(name)
        if about is not None:
            self.used[name] = about

    def _opened(self, name: str) -> About:
        about = self.about(name)
        if about is None:
            raise FileNotFoundError(2, "No such object", self.url_of(name))
        self.used[name] = about
        folder = (self.root / name).parent
        if folder != self.root:
            folder.mkdir(parents=True, exist_ok=True)
        check_inside(self.root, name)
        return about

    # Files that are here as a whole.

    def whole(self, name: str, edit: Callable[[BinaryIO], None] | None = None) -> None:
        """Have an object as a file, all of it, as `edit` leaves it; `FileNotFoundError` where there
        is none."""
        self._check_process()
        about = self._opened(name)
        if self._place.is_shared and self._is_whole(name, about):
            return
        try:
            if about.size > _free_bytes(self.root):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with new_file(self.root / name) as file:
                self._fetch_whole(name, about, file)
                if edit is not None:
                    edit(file)
                    file.flush()
                crc = _checksum(file)
            if self._place.is_shared:
                write_file(self.root / (name + _ABOUT), _about_text(about, crc))
        except FetchError:
            raise
        except OSError as error:
            raise no_room(error, self.root / name) from error.__cause__

    def _is_whole(self, name: str, about: About) -> bool:
        """Whether a file of the cache is this object, and is as it was put there."""
        try:
            text = read_inside(self.root, name + _ABOUT, _MAX_ABOUT)
            with open(open_inside(self.root, name), "rb") as file:
                return text == _about_text(about, _checksum(file))
        except FileNotFoundError:
            return False

    def _fetch_whole(self, name: str, about: About, file: BinaryIO) -> None:
        path = self.root / name
        os.ftruncate(file.fileno(), about.size)

        def fetch(begin: int, end: int) -> None:
            write_all(file.fileno(), self._read(name, begin, end, about), begin, path)

        self._each_range(0, about.size, fetch)

    def data(self, name: str, begin: int, end: int) -> bytes:
        """Some bytes of an object, not kept; fewer where it ends."""
        about = self._opened(name)
        return self._read(name, begin, min(end, about.size), about).tobytes()

    def load(
        self, name: str, begin: int, out: NDArray[np.uint8], check: Check | None = None
    ) -> None:
        """The bytes of an object from `begin` on into memory, by all connections."""
        about = self._opened(name)

        def fetch(at: int, to: int) -> None:
            for left in reversed(range(TRIES)):
                out[at:to] = self._read(name, begin + at, begin + to, about)
                try:
                    if check is not None:
                        check(at, out[at:to])
                    return
                except ChecksumError:
                    if not left:
                        raise

        self._each_range(0, len(out), fetch)

    def _each_range(self, begin: int, end: int, work: Callable[[int, int], None]) -> None:
        self._check_process()
        tasks = [
            self._pool.submit(work, at, min(at + RANGE_BYTES, end))
            for at in range(begin, end, RANGE_BYTES)
        ]
        try:
            for task in tasks:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:  # nobody writes any more once this returns
                if not task.cancelled():
                    task.exception()

    def _read(self, name: str, begin: int, end: int, about: About) -> NDArray[np.uint8]:
        data = self.files.read(name, begin, end, about)
        with self._lock:
            self.statistics.requests += 1
            self.statistics.fetched_bytes += len(data)
        return data

    def _pieces(
        self, name: str, begin: int, end: int, about: About, size: int
    ) -> Iterator[NDArray[np.uint8]]:
        with self._lock:
            self.statistics.requests += 1
        for data in self.files.pieces(name, begin, end, about, size):
            with self._lock:
                self.statistics.fetched_bytes += len(data)
            yield data

    def side_by_side(self, work: Callable[[K], Any], items: Iterable[K]) -> None:
        """`work` for each item, by all connections; raises what the first of them does."""
        with ThreadPoolExecutor(self._connections) as pool:  # `work` may wait for the other one
            list(pool.map(work, items))

    def is_current(self) -> bool:
        """Whether the objects that were opened are still those in the bucket."""
        now = None if self._listed is None else self.files.listed()
        if now is not None:
            return all(now.get(name) == about for name, about in self.used.items())
        with ThreadPoolExecutor(self._connections) as pool:
            return list(pool.map(self.files.about, self.used)) == list(self.used.values())

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise RuntimeError("buckets cannot be read after a fork; use spawn or forkserver")


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _about_text(about: About, crc: int) -> bytes:
    return f"{about.size} {about.mark} {crc:08x}\n".encode()


def _checksum(file: BinaryIO) -> int:
    """Of a whole file, whose pages need not all be in memory at a time."""
    crc, at = 0, 0
    while data := os.pread(file.fileno(), RANGE_BYTES, at):
        crc, at = _core.crc32c(np.frombuffer(data, np.uint8), crc), at + len(data)
    return crc

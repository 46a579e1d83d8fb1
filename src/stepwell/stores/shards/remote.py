"""Shards in a bucket: headers first, then ranges of rows, several at a time."""

import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FetchError, FormatError
from stepwell.files.atomic import new_file
from stepwell.files.remote import RemoteFiles
from stepwell.ordered import in_order
from stepwell.source import Rows
from stepwell.stores.shards.layout import (
    HEADER_BYTES,
    MANIFEST,
    SUFFIX,
    Shard,
    parse_header,
    parse_manifest,
    with_sum,
)
from stepwell.stores.shards.local import LocalShards

__all__ = ["RemoteShards"]

_RANGE_BYTES = 1 << 22
_NEAR_BYTES = 1 << 16
_HEADERS_AT_ONCE = 16
_TRIES = 3


class RemoteShards:
    """Shards below a URL, sorted by the bytes of their names.

    `connections` requests are under way at a time, of no more than the window all together. With
    `cache`, a directory, whole shards are kept there, up to `cache_bytes`, the least recently used
    going first; random rows then come from the disk.
    """

    def __init__(
        self,
        files: RemoteFiles,
        *,
        connections: int = 8,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int = 1 << 34,
    ) -> None:
        if connections < 1:
            raise ValueError(f"connections: expected at least 1, got {connections}")
        self._files = files
        self._connections = connections
        self._cache = (
            None if cache is None else _Cache(Path(cache), cache_bytes, files, connections)
        )
        self._sizes: dict[str, int] = {}
        listed = files.read_all(MANIFEST)
        if listed is not None:
            self.shards = parse_manifest(listed, files.url_of(MANIFEST))
            self.shards.sort(key=lambda shard: shard.name.encode())
        else:
            self._sizes = files.names(SUFFIX)
            names = sorted(self._sizes, key=str.encode)
            self.shards = list(in_order(self._header, names, _HEADERS_AT_ONCE))
        if not self.shards:
            raise FetchError("expected .shard files, found none", url=files.url)

    def where(self, number: int) -> str:
        return self._files.url_of(self.shards[number].name)

    def surplus(self, number: int) -> int:
        shard = self.shards[number]
        size = self._sizes.get(shard.name)
        return 0 if size is None else size - HEADER_BYTES - shard.payload_bytes

    def reader(self) -> _core.Reader | None:
        return None

    def rows(self, rows: Rows, starts: Rows) -> NDArray[np.uint8]:
        """Rows in any order, as they are stored, one after another."""
        size = self.shards[0].row_bytes
        out = np.empty((len(rows), size), np.uint8)
        of = np.searchsorted(starts, rows, side="right") - 1

        def fetch(number: int) -> None:
            mine = np.flatnonzero(of == number)
            local = rows[mine] - starts[number]
            kept = None if self._cache is None else self._cache.shard(self.shards[number])
            if kept is not None:
                out[mine] = kept.reader().take(local)[: len(mine) * size].reshape(-1, size)
                return
            wanted, places = np.unique(local, return_inverse=True)
            for first, last in _groups(wanted, size):
                data = self._range(number, int(wanted[first]), int(wanted[last - 1]) + 1)
                inside = (places >= first) & (places < last)
                found = wanted[places[inside]] - wanted[first]
                out[mine[inside]] = data.reshape(-1, size)[found]

        with ThreadPoolExecutor(self._connections) as pool:
            list(pool.map(fetch, np.unique(of).tolist()))
        return out.reshape(-1)

    def parts(
        self, cuts: Sequence[tuple[int, int, int]], window_bytes: int, *, mapped: bool = True
    ) -> Iterator[NDArray[np.uint8]]:
        """The bytes of (shard, first row, end), fetched ahead of the loop; nothing is mapped.

        A range has many small parts, or one of several ranges is put together: how much a loop
        takes at a time does not decide how many requests are under way.
        """
        most = min(_RANGE_BYTES, max(window_bytes // self._connections // 64 * 64, 64))
        ranges = list(self._ranges(cuts, most))
        ahead = max(window_bytes // most, 1)
        sums: dict[int, int] = {}

        def fetch(range_: tuple[int, int, int]) -> NDArray[np.uint8]:
            number, begin, end = range_
            name = self.shards[number].name
            return self._files.read(name, HEADER_BYTES + begin, HEADER_BYTES + end)

        fetched = in_order(fetch, ranges, min(self._connections, ahead), ahead=ahead)
        coming = zip(ranges, fetched, strict=True)
        left = np.empty(0, np.uint8)
        for number, begin, end in cuts:
            needed = (end - begin) * self.shards[number].row_bytes
            found = []
            while needed:
                if not len(left):
                    range_, left = next(coming)
                    self._check(*range_, left, sums)
                found.append(left[:needed])
                left = left[needed:]
                needed -= len(found[-1])
            yield found[0] if len(found) == 1 else np.concatenate(found)

    def _check(
        self, number: int, begin: int, end: int, data: NDArray[np.uint8], sums: dict[int, int]
    ) -> None:
        """Continue the sum of a shard that is read from its beginning; compare it at its end."""
        shard = self.shards[number]
        if shard.crc32c is None or (begin and number not in sums):
            return
        sums[number] = _core.crc32c(data, sums.get(number, 0))
        if end == shard.payload_bytes and sums[number] != shard.crc32c:
            raise ChecksumError(
                f"expected CRC32C {shard.crc32c:08x}, got {sums[number]:08x}",
                path=self.where(number),
            )

    def _ranges(
        self, cuts: Sequence[tuple[int, int, int]], most: int
    ) -> Iterator[tuple[int, int, int]]:
        """Shard, first byte and end of requests of up to `most` bytes that all cuts are in; those
        of a shard follow one another."""
        for number, mine in groupby(cuts, lambda cut: cut[0]):
            rows = list(mine)
            size = self.shards[number].row_bytes
            begin, end = rows[0][1] * size, rows[-1][2] * size
            for at in range(begin, end, most):
                yield number, at, min(at + most, end)

    def _range(self, number: int, begin: int, end: int) -> NDArray[np.uint8]:
        shard = self.shards[number]
        size = shard.row_bytes
        return self._files.read(shard.name, HEADER_BYTES + begin * size, HEADER_BYTES + end * size)

    def _header(self, name: str) -> Shard:
        size = self._sizes[name]
        data = self._files.read(name, 0, min(HEADER_BYTES, size)).tobytes()
        return parse_header(data, name, self._files.url_of(name), size)


def _groups(wanted: Rows, size: int) -> Iterator[tuple[int, int]]:
    """Ascending rows in groups for one request each: neighbours and those almost so, but no more
    than a range of them."""
    first = 0
    for i in range(1, len(wanted) + 1):
        if (
            i == len(wanted)
            or (wanted[i] - wanted[i - 1]) * size > _NEAR_BYTES
            or (wanted[i] + 1 - wanted[first]) * size > _RANGE_BYTES
        ):
            yield first, i
            first = i


class _Cache:
    """Whole shards in a directory, up to a size."""

    def __init__(self, folder: Path, most_bytes: int, files: RemoteFiles, connections: int) -> None:
        self._folder = folder / hashlib.sha256(files.place.encode()).hexdigest()[:16]
        self._folder.mkdir(parents=True, exist_ok=True)
        self._most_bytes = most_bytes
        self._files = files
        self._connections = connections
        self._turn = threading.Lock()
        self._open: dict[str, LocalShards] = {}

    def shard(self, shard: Shard) -> LocalShards | None:
        """A shard on the disk, brought there first if need be; None where there is no room."""
        if HEADER_BYTES + shard.payload_bytes > self._most_bytes:
            return None
        path = self._folder / shard.name
        with self._turn:
            found = self._open.get(shard.name)
            if found is None:
                found = self._usable(path, shard)
            if found is None:
                self._bring(path, shard)
                try:
                    found = LocalShards([path])
                except FileNotFoundError:  # another process made room for its own
                    return None
                with_sum(found.shards[0], shard, self._files.url_of(shard.name))
            self._open[shard.name] = found
            with suppress(FileNotFoundError):
                os.utime(path)
        return found

    def _usable(self, path: Path, shard: Shard) -> LocalShards | None:
        """What is there, if it is what it should be."""
        try:
            found = LocalShards([path])
            with_sum(found.shards[0], shard, str(path))
        except (FileNotFoundError, FormatError):
            return None
        if shard.crc32c is None:
            return found
        crc, step = 0, max(_RANGE_BYTES // shard.row_bytes, 1)
        cuts = [(0, at, min(at + step, shard.rows)) for at in range(0, shard.rows, step)]
        for data in found.parts(cuts, 2 * _RANGE_BYTES):
            crc = _core.crc32c(data, crc)
        return found if crc == shard.crc32c else None

    def _bring(self, path: Path, shard: Shard) -> None:
        """Fetch a whole shard, again where its sum does not fit; `ChecksumError` in the end."""
        self._make_room(HEADER_BYTES + shard.payload_bytes)
        for left in reversed(range(_TRIES)):
            try:
                return self._bring_once(path, shard)
            except ChecksumError:
                if not left:
                    raise

    def _bring_once(self, path: Path, shard: Shard) -> None:
        total, crc = HEADER_BYTES + shard.payload_bytes, 0
        ranges = [(at, min(at + _RANGE_BYTES, total)) for at in range(0, total, _RANGE_BYTES)]
        with new_file(path) as file:
            fetched = in_order(
                lambda r: self._files.read(shard.name, *r), ranges, self._connections
            )
            for data in fetched:
                begin = HEADER_BYTES if file.tell() == 0 else 0
                crc = _core.crc32c(np.ascontiguousarray(data[begin:]), crc)
                file.write(data.data)
            if shard.crc32c is not None and crc != shard.crc32c:
                raise ChecksumError(
                    f"expected CRC32C {shard.crc32c:08x}, got {crc:08x}",
                    path=self._files.url_of(shard.name),
                )

    def _make_room(self, needed: int) -> None:
        there = []
        for path in self._folder.glob(f"*{SUFFIX}"):
            with suppress(FileNotFoundError):
                there.append((path.stat().st_mtime_ns, path.stat().st_size, path))
        total = sum(size for _, size, _ in there)
        for _, size, path in sorted(there):
            if total + needed <= self._most_bytes:
                return
            self._open.pop(path.name, None)  # who reads it keeps it
            path.unlink(missing_ok=True)
            total -= size

"""Shards in a bucket: headers first, then ranges of rows, several at a time."""

import hashlib
import os
import stat
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FetchError, FormatError
from stepwell.files.atomic import new_file
from stepwell.files.checked import BLOCK_BYTES, ENTRY_BYTES, block_count, entry_place
from stepwell.files.regular import check_folders
from stepwell.files.remote import RemoteFiles, is_missing
from stepwell.ordered import in_order
from stepwell.source import Rows
from stepwell.stores.shards.layout import (
    HEADER_BYTES,
    LIST,
    SUFFIX,
    Shard,
    ShardList,
    check_crc,
    parse_header,
    with_checksum,
)
from stepwell.stores.shards.local import Corpus, LocalShards, Span

_RANGE_BYTES = 1 << 22
_NEAR_BYTES = 1 << 16
_HEADERS_AT_ONCE = 16
_TRIES = 3
_KNOWN_BYTES = 1 << 26
_FOLDER_LETTERS = 16
_LEFT_S = 3600
_MAX_NAME = 240  # and a few letters more until it is whole


class RemoteShards(Corpus):
    """Shards below a URL, sorted by the bytes of their names.

    `connections` requests are under way at a time, of no more than the window all together. With
    `cache`, a directory, shards that random rows are taken from are brought there whole; what is
    there is not fetched again, for batches in order either. All corpora that have that directory
    together keep up to `cache_bytes`; what was used last stays.
    """

    def __init__(
        self,
        where: Any,
        names: Collection[str] | None = None,
        *,
        connections: int = 8,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int = 1 << 34,
        checksums: bool = True,
        **options: Any,
    ) -> None:
        if connections < 1:
            raise ValueError(f"connections: expected at least 1, got {connections}")
        self._files = files = RemoteFiles(where, **options)
        self._connections = connections
        self._checksums = checksums
        self._turns = defaultdict[int, threading.Lock](threading.Lock)
        self._known: dict[int, NDArray[np.uint8]] = {}  # checksums of the blocks of shards
        self._cache = (
            None if cache is None else _Cache(Path(cache), cache_bytes, files, connections)
        )
        self._sizes: dict[str, int] = {}
        listed = files.read_all(LIST.name)
        if listed is not None:
            shards = list(ShardList.parse(listed, files.url_of(LIST.name)).shards)
        else:
            self._sizes = _names(files)
            found = sorted(self._sizes, key=str.encode)
            shards = list(in_order(self._header, found, _HEADERS_AT_ONCE))
        if names is not None:
            shards = [shard for shard in shards if shard.name in names]
            if gone := set(names) - {shard.name for shard in shards}:
                raise FormatError(f"expected {min(gone)}, found none", path=files.url)
        if not shards:
            raise FetchError("expected .shard files, found none", url=files.url)
        super().__init__(shards)
        self._unmet = set() if listed is None else set(range(len(shards)))
        """Shards whose headers were not compared with the list yet."""

    def where(self, number: int) -> str:
        return self._files.url_of(self.shards[number].name)

    def surplus(self, number: int) -> int:
        shard = self.shards[number]
        size = self._sizes.get(shard.name)
        return 0 if size is None else size - HEADER_BYTES - shard.payload_bytes

    def rows(self, rows: Rows) -> NDArray[np.uint8]:
        starts = self.starts
        size = self.shards[0].row_bytes
        out = np.empty((len(rows), size), np.uint8)
        of = np.searchsorted(starts, rows, side="right") - 1

        def fetch(number: int, places: Rows, local: Rows) -> None:
            kept = None if self._cache is None else self._cache.shard(self.shards[number])
            if kept is not None:
                out[places] = kept.rows(local).reshape(-1, size)
                return
            for first, last in _groups(local, size):
                near = local[first:last]
                data = self._checked(number, int(near[0]) * size, (int(near[-1]) + 1) * size)
                out[places[first:last]] = data.reshape(-1, size)[near - near[0]]

        tasks: list[tuple[int, Rows, Rows]] = []
        for number in np.unique(of).tolist():
            mine = np.flatnonzero(of == number)
            mine = mine[np.argsort(rows[mine], kind="stable")]
            local = rows[mine] - starts[number]
            whole = [(0, len(local))]  # a shard that may be kept is brought once
            for first, last in _groups(local, size) if self._cache is None else whole:
                tasks.append((number, mine[first:last], local[first:last]))
        with ThreadPoolExecutor(self._connections) as pool:
            met = set(of.tolist()) & self._unmet if self._cache is None else set()
            headers = [pool.submit(self._meet, number) for number in sorted(met)]
            list(pool.map(lambda task: fetch(*task), tasks))
            for header in headers:
                header.result()
        return out.reshape(-1)

    def parts(self, span: Span, step: int, window_bytes: int) -> Iterator[NDArray[np.uint8]]:
        """A range has many small parts, or one of several ranges is put together: how much a loop
        takes at a time does not decide how many requests are under way."""
        numbers, skip = span.numbers, span.skip * self.shards[0].row_bytes
        checked = self._checksums and any(self.shards[n].first_block is not None for n in numbers)
        unit = BLOCK_BYTES if checked else 64
        start = skip // unit * unit
        if start and self._checksums and self.shards[numbers.start].first_block is None:
            start = 0  # the checksum of all of it needs the rows before, too
        if start and numbers.start in self._unmet:
            self._meet(numbers.start)
        max_bytes = min(_RANGE_BYTES, max(window_bytes // self._connections // unit * unit, unit))
        ranges = [
            (number, at, min(at + max_bytes, size))
            for number in numbers
            for size in [self.shards[number].payload_bytes]
            for at in range(start if number == numbers.start else 0, size, max_bytes)
        ]
        ahead = max(window_bytes // max_bytes, 1)
        crc = 0

        def fetch(range_: tuple[int, int, int]) -> NDArray[np.uint8]:
            number, begin, end = range_
            shard = self.shards[number]
            kept = None if self._cache is None else self._cache.bytes_of(shard, begin, end)
            return self._checked(number, begin, end) if kept is None else kept

        fetched = in_order(fetch, ranges, min(self._connections, ahead), ahead=ahead)
        coming = zip(ranges, fetched, strict=True)
        left, drop = np.empty(0, np.uint8), skip - start
        for number, begin, end in self.cuts(span, step):
            needed = (end - begin) * self.shards[number].row_bytes
            found = []
            while needed:
                if not len(left):
                    (_, first, last), left = next(coming)
                    shard = self.shards[number]
                    if self._checksums and shard.first_block is None:
                        crc = _core.crc32c(left, crc if first else 0)
                        if last == shard.payload_bytes:
                            check_crc(shard, crc, self.where(number))
                    left, drop = left[drop:], max(drop - len(left), 0)
                    continue
                found.append(left[:needed])
                left = left[needed:]
                needed -= len(found[-1])
            yield found[0] if len(found) == 1 else np.concatenate(found)

    def payload(self, number: int) -> Iterator[NDArray[np.uint8]]:
        try:
            yield from super().payload(number)
        except FetchError as error:
            if not is_missing(error):
                raise
            raise FormatError("expected a shard, found none", path=self.where(number)) from error

    def _checked(self, number: int, begin: int, end: int) -> NDArray[np.uint8]:
        """The same as `_bytes`, in whole blocks that are compared with their checksums; those that
        differ are fetched again, and a `ChecksumError` in the end."""
        shard, where = self.shards[number], self.where(number)
        if not self._checksums or shard.first_block is None:
            return self._bytes(number, begin, end)
        first = begin // BLOCK_BYTES
        last = block_count(end, BLOCK_BYTES)
        at, to = first * BLOCK_BYTES, min(last * BLOCK_BYTES, shard.payload_bytes)
        none = np.empty(0, np.uint8)
        for left in reversed(range(_TRIES)):
            data = np.ascontiguousarray(self._bytes(number, at, to))
            known = self._blocks_of(number)[first * ENTRY_BYTES : last * ENTRY_BYTES]
            place = HEADER_BYTES + at
            try:
                _core.CheckedBlocks(data, BLOCK_BYTES, known, none, where, place, where).check_all()
                break
            except ChecksumError:
                self._known.pop(number, None)  # it may be they that came damaged
                if not left:
                    raise
        return data[begin - at : end - at]

    def _blocks_of(self, number: int) -> NDArray[np.uint8]:
        """The checksums of the blocks of a shard; of few shards at a time."""
        shard = self.shards[number]
        assert shard.first_block is not None
        with self._turns[number]:  # once, however many ranges are waiting for them
            found = self._known.get(number)
            if found is None:
                end = shard.first_block + block_count(shard.payload_bytes, BLOCK_BYTES)
                place = entry_place(shard.first_block), entry_place(end)
                found = self._known[number] = self._files.read(shard.checksums, *place)
                others = [each for each in list(self._known) if each != number]
                while others and sum(map(len, list(self._known.values()))) > _KNOWN_BYTES:
                    self._known.pop(others.pop(0), None)
        return found

    def _bytes(self, number: int, begin: int, end: int) -> NDArray[np.uint8]:
        """Bytes `begin` to `end` of the rows of a shard, from the bucket; its header comes with the
        first of them."""
        name = self.shards[number].name
        if begin == 0 and number in self._unmet:
            data = self._files.read(name, 0, HEADER_BYTES + end)
            self._meet(number, data[:HEADER_BYTES].tobytes())
            return data[HEADER_BYTES:]
        return self._files.read(name, HEADER_BYTES + begin, HEADER_BYTES + end)

    def _meet(self, number: int, header: bytes | None = None) -> None:
        """Raise `FormatError` unless the header of a shard is what the list has of it."""
        name, where = self.shards[number].name, self.where(number)
        if header is None:
            header = self._files.read(name, 0, HEADER_BYTES).tobytes()
        found = parse_header(header, name, where)
        with_checksum(found, self.shards[number], self._files.url_of(LIST.name))
        self._unmet.discard(number)

    def _header(self, name: str) -> Shard:
        size = self._sizes[name]
        data = self._files.read(name, 0, min(HEADER_BYTES, size)).tobytes()
        return parse_header(data, name, self._files.url_of(name), size)


def _names(files: RemoteFiles) -> dict[str, int]:
    try:
        return files.names(SUFFIX)
    except FetchError as error:
        if not files.url.startswith("http"):
            raise
        message = f"expected a {LIST.name}, found none, and no list of files ({error.args[0]})"
        raise FetchError(message, url=files.url) from error.__cause__


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
    """Whole shards in a directory, up to a size that is that of all corpora there."""

    def __init__(self, folder: Path, max_bytes: int, files: RemoteFiles, connections: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"cache_bytes: expected at least 0, got {max_bytes}")
        self._root = folder
        self._folder = folder / hashlib.sha256(files.place.encode()).hexdigest()[:_FOLDER_LETTERS]
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self._folder.mkdir()
        self._check_folder()
        self._max_bytes = max_bytes
        self._files = files
        self._connections = connections
        self._turn = threading.Lock()
        self._open: dict[str, LocalShards] = {}

    def shard(self, shard: Shard) -> LocalShards | None:
        """A shard on the disk, brought there first if need be; None where there is no room."""
        too_long = len(os.fsencode(shard.name)) > _MAX_NAME
        if too_long or HEADER_BYTES + shard.payload_bytes > self._max_bytes:
            return None
        self._check_folder()
        with self._turn:
            found = self._there(shard)
            if found is None:
                path = self._folder / shard.name
                self._bring(path, shard)
                try:
                    found = LocalShards([path], path.parent)
                except FileNotFoundError:  # another process made room for its own
                    return None
                with_checksum(found.shards[0], shard, self._files.url_of(shard.name))
                self._open[shard.name] = found
            return found

    def bytes_of(self, shard: Shard, begin: int, end: int) -> NDArray[np.uint8] | None:
        """Bytes `begin` to `end` of the rows of a shard; None if it is not on the disk."""
        self._check_folder()
        with self._turn:
            found = self._there(shard)
        return None if found is None else found.copied(0, begin, end)

    def _check_folder(self) -> None:
        """The user named the folder above: whatever else has the name of this one leads out."""
        with suppress(FileNotFoundError):
            check_folders(self._root, f"{self._folder.name}/")

    def _there(self, shard: Shard) -> LocalShards | None:
        """A shard that is on the disk already, and as long as it was when it came."""
        path = self._folder / shard.name
        found = self._open.pop(shard.name, None)
        if found is None or found.is_cut(0):
            try:
                found = LocalShards([path], path.parent)
                with_checksum(found.shards[0], shard, str(path))
                if shard.crc32c is not None:
                    check_crc(shard, found.checksum(0), str(path))
            except (FileNotFoundError, FormatError):
                return None
        self._open[shard.name] = found
        with suppress(OSError):  # it may be gone, or the directory be read-only
            os.utime(path, follow_symlinks=False)
        return found

    def _bring(self, path: Path, shard: Shard) -> None:
        """Fetch a whole shard, again where its checksum differs; `ChecksumError` in the end."""
        self._make_room(path, HEADER_BYTES + shard.payload_bytes)
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
            check_crc(shard, crc, self._files.url_of(shard.name))

    def _make_room(self, path: Path, needed: int) -> None:
        """Remove what was not used for longest, of any corpus; others may do the same."""
        there = []
        total = needed
        for folder in self._root.glob("[0-9a-f]" * _FOLDER_LETTERS):
            for each in [*folder.glob(f"*{SUFFIX}"), *folder.glob(f".*{SUFFIX}.*.tmp")]:
                with suppress(FileNotFoundError):
                    about = each.lstat()
                    if each == path or stat.S_ISDIR(about.st_mode):
                        continue  # it is about to be replaced, or nobody's shard
                    total += about.st_size
                    if each.suffix == SUFFIX:
                        there.append((about.st_mtime_ns, about.st_size, each))
                    elif time.time() - about.st_mtime > _LEFT_S:  # a process was killed
                        there.append((0, about.st_size, each))
        for used, size, each in sorted(there):
            if total <= self._max_bytes and used:
                return
            if each.parent == self._folder:
                self._open.pop(each.name, None)  # who reads it keeps it
            each.unlink(missing_ok=True)
            total -= size

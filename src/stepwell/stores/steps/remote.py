"""A step dataset below a URL: its database as a file, its rows as files of holes."""

import os
import threading
import weakref
from collections import OrderedDict
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError, KindError
from stepwell.files.checked import ENTRY_BYTES, block_count, entry_place, parse_header
from stepwell.files.memory import check_room
from stepwell.files.mirror import UNIT_BYTES, Check, Mirror, MirroredRows
from stepwell.files.npy import header_bytes, padded_header, parse_header as parse_array
from stepwell.files.objects import TRIES
from stepwell.lazy import lazy
from stepwell.stores.steps import database
from stepwell.stores.steps.blocks import BlockChecks
from stepwell.stores.steps.database import Seen
from stepwell.stores.steps.dataset import Dataset, database_of
from stepwell.stores.steps.layout import (
    CHECKSUMS,
    DATABASE,
    DATASET,
    MANIFEST,
    Metadata,
    Part,
    Piece,
    Segment,
    map_rows,
    piece_name,
)

_LOGS = ("-wal", "-journal")
_PIECE_BLOCKS = 1 << 16  # whose checksums come in one request: those of 256 MiB of rows
_PIECES = 256
_VERSIONS_AT = 18  # of writing and reading: 2 where there is a log beside the database, else 1
_SQLITE = b"SQLite format 3\0"


class RemoteSteps:
    """The files of a dataset as they were when it was opened, or at the commit of one that was
    `seen` before, mirrored."""

    def __init__(self, where: Any, options: dict[str, Any], seen: Seen | None = None) -> None:
        self._where, self._options = where, options
        self._checks: _BlocksThatCome | None = None
        self._commit: Dataset | None = None
        self._metadata = None if seen is None else seen.metadata
        self.mirror = self._mirrored(UNIT_BYTES)
        with self.mirror.translated():
            block_bytes = database.look(self.database).block_bytes
        if block_bytes > UNIT_BYTES:  # what comes is compared block by block
            self.mirror = self._mirrored(block_bytes)

    @property
    def root(self) -> Path:
        return self.mirror.root

    @property
    def database(self) -> Path:
        """The file of it, here."""
        return database_of(self.root, self._metadata)

    def look(self, identity: str = "") -> Seen:
        """What the dataset had when it was opened."""
        if self._commit is not None:
            return self._commit.look(self.database, identity)
        return database.look(self.database, identity)

    def again(self) -> "RemoteSteps":
        """The same dataset as it is now."""
        return RemoteSteps(self._where, self._options)

    def is_current(self) -> bool:
        """Whether it is the same in the bucket now."""
        if self._metadata is None:
            return self.mirror.is_current()
        now = _newest(self.mirror)
        return now is not None and now.metadata == self._metadata

    @property
    def version(self) -> str:
        """Equal for equal objects; objects of a commit never change."""
        return self.mirror.version if self._metadata is None else ""

    def check_version(self, version: str) -> None:
        """Raise `FormatError` unless these are the objects that had this version; "" for any."""
        if version:
            self.mirror.check_version(version)

    def _mirrored(self, unit_bytes: int) -> Mirror:
        while True:
            mirror = Mirror(self._where, unit_bytes=unit_bytes, **self._options)
            if self._metadata is None and mirror.about(DATASET) is not None:
                self._commit = _newest(mirror)
            wanted = self._metadata if self._commit is None else self._commit.metadata
            if wanted is None:
                _have_database(mirror)
                return mirror
            try:
                if mirror.about(wanted.name) is None:
                    if mirror.files.about(wanted.name) is not None:
                        continue  # it came since the objects were listed
                    raise FormatError(
                        "expected the database of a commit, there is no such object: `stepwell "
                        "clean` removes those of earlier commits; open the dataset again",
                        path=mirror.url_of(wanted.name),
                    )
                _fetch_database(mirror, wanted)
            except FormatError:
                if self._commit is None or self._commit == _newest(mirror):
                    raise
                continue  # it was overtaken, and cleaned up
            self._metadata = wanted
            return mirror

    def open_files(self, seen: Seen, *, checksums: bool) -> None:
        """Have files for all rows, which are compared as they come if there are checksums."""
        mirror = self.mirror
        found = seen.pieces(self.root)
        checks = _BlocksThatCome(mirror, seen) if checksums and seen.block_bytes else None
        self._checks = checks
        if checks is not None and not seen.is_listed:
            mirror.use(CHECKSUMS)
        if seen.shard_rows:
            after = piece_name(found[-1].number + 1, seen.shard_rows)
            if mirror.about(after) is not None:
                found.append(Piece(self.root, after, 0, 0, found[-1].number + 1))

        def open_file(piece: Piece) -> None:
            check: Check | None = None
            if checks is not None and piece.rows:
                check = partial(checks.check, piece)
            if not seen.is_listed:
                mirror.array(piece.name, check)
                return
            part = seen.parts[piece.number]
            mirror.sparse(part.name, check, lambda _: self._head(part, seen))

        mirror.side_by_side(open_file, found)

    def _head(self, part: Part, seen: Seen) -> tuple[bytes, int]:
        """The header that a shard has, without a request for it: the list has all of it."""
        about, url = self.mirror.about(part.name), self.mirror.url_of(part.name)
        assert about is not None
        assert seen.dtype is not None
        if about.size != part.bytes:
            message = f"truncated: expected {part.bytes} bytes, got {about.size}"
            raise FormatError(message, path=url, offset=about.size)
        origin = part.bytes - part.rows * seen.dtype.itemsize
        try:
            start = header_bytes(seen.dtype, part.rows, origin)
        except ValueError as error:
            raise FormatError(str(error), path=url, offset=0) from None
        return padded_header(start, part.bytes, self.mirror.unit_bytes, url)

    def check_headers(self, seen: Seen) -> list[FormatError]:
        """Shards whose headers are not what the list has, and those that are missing."""
        problems = list[FormatError]()

        def check(part: Part) -> None:
            url = self.mirror.url_of(part.name)
            assert seen.dtype is not None
            try:
                origin = part.bytes - part.rows * seen.dtype.itemsize
                start = self.mirror.data(part.name, 0, origin)
                header, _ = parse_array(BytesIO(start), part.bytes, url)
                if (header.dtype, header.shape, header.data_offset) != (
                    seen.dtype,
                    (part.rows,),
                    origin,
                ):
                    message = f"expected {part.rows} rows of {seen.dtype} from byte {origin} on"
                    raise FormatError(
                        f"{message}, got {header.shape} of {header.dtype}", path=url, offset=10
                    )
            except FormatError as error:
                problems.append(error)

        self.mirror.side_by_side(check, seen.parts)
        return problems

    def segments(self, seen: Seen) -> list[Segment]:
        """The rows, file by file, as far as they are here. They are compared as they come."""
        if not seen.rows and seen.is_listed:
            return [Segment(np.empty(0, seen.dtype))]
        return map_rows(seen.pieces(self.root), seen.dtype)

    def load(self, seen: Seen) -> NDArray[Any]:
        """All rows in memory, fetched by all connections and compared as they come."""
        found = seen.pieces(self.root)
        if not found:
            return np.empty(0, seen.dtype)
        with found[0].open(seen.dtype) as (_, header):
            dtype = header.dtype
        check_room(seen.rows * dtype.itemsize, self.mirror.url)
        block, at = _core.allocate(seen.rows * dtype.itemsize), 0
        for piece in found:
            with piece.open(dtype, piece.rows):
                end = at + piece.rows * dtype.itemsize
                check = None if self._checks is None else partial(self._checks.check, piece)
                origin = self.mirror.array(piece.name).origin
                self.mirror.load(piece.name, origin, block[at:end], check)
                at = end
        return block.view(dtype)

    def rows_of(self, some: list[Piece], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Rows as they are in the bucket now, damaged or not, for whoever checks them."""
        block, at = _core.allocate(sum(piece.rows for piece in some) * dtype.itemsize), 0
        for piece in some:
            end = at + piece.rows * dtype.itemsize
            begin = self.mirror.array(piece.name).origin + piece.inside * dtype.itemsize
            self.mirror.load(piece.name, begin, block[at:end])
            at = end
        return block.view(dtype)

    def units(self, seen: Seen, dtype: np.dtype[Any], chosen: _core.RowMap | None) -> MirroredRows:
        """In which units rows are; with `chosen`, those that it leads to."""
        found = seen.pieces(self.root)
        files = [(self.mirror.array(piece.name), piece.rows) for piece in found]
        moved = None if chosen is None else chosen.apply
        return MirroredRows.of_tables(self.mirror, files, dtype.itemsize, moved)


class _BlocksThatCome:
    """The checksums of rows, fetched with the first rows that need them; some of them are kept."""

    def __init__(self, mirror: Mirror, seen: Seen) -> None:
        self._mirror = weakref.proxy(mirror)  # which has this
        self._root, self._checks, self._seen = mirror.root, BlockChecks(mirror.root, seen), seen
        self._where = mirror.url_of(CHECKSUMS)
        self._turn = threading.Lock()
        self._turns: dict[tuple[str, int], threading.Lock] = {}
        self._known: OrderedDict[tuple[str, int], NDArray[np.uint8]] = OrderedDict()

    def check(self, piece: Piece, at: int, data: NDArray[np.uint8]) -> None:
        """Raise `ChecksumError` unless bytes of a file, from byte `at` of its rows on, are right.

        They begin with a block and end with one, or with the file.
        """
        file = self._mirror.array(piece.name)
        size, row_bytes = self._seen.block_bytes, self._row_bytes
        data = data[: max(piece.rows * row_bytes - at, 0)]  # what is behind was not committed
        source = self._source(piece)
        first = source.first + at // size
        last = first + block_count(len(data), size)
        if first == last:
            return
        known, none = self._entries(source, first, last), np.empty(0, np.uint8)
        url, place = self._mirror.url_of(piece.name), file.origin + at
        data = np.ascontiguousarray(data)
        try:
            _core.CheckedBlocks(data, size, known, none, url, place, source.url).check_all()
        except ChecksumError:
            with self._turn:  # it may be they that came damaged
                for number in self._pieces(first, last):
                    self._known.pop((source.name, number), None)
            raise

    def _source(self, piece: Piece) -> "_Source":
        """The file that has the checksums of a piece."""
        size = self._row_bytes
        if not self._seen.is_listed:
            return _Source(
                CHECKSUMS, self._where, self._checks.first_block(piece, size), self._stored
            )
        part = self._seen.parts[piece.number]
        blocks = block_count(part.rows * size, self._seen.block_bytes)
        return _Source(part.checksums, self._mirror.url_of(part.checksums), 0, blocks)

    @lazy
    def _row_bytes(self) -> int:
        """As the first file has it: the database of another program's dataset does not."""
        if self._seen.is_listed and self._seen.dtype is not None:
            return self._seen.dtype.itemsize
        with Piece(self._root, piece_name(0, self._seen.shard_rows), 0, 0).open(None) as (_, found):
            return found.dtype.itemsize

    @lazy
    def _stored(self) -> int:
        """How many checksums the file has; it was looked at then."""
        stored, about = self._checks.stored(self._row_bytes), self._mirror.about(CHECKSUMS)
        if about is None:
            message = "expected the checksums of the rows, there is no such object"
            raise FormatError(message, path=self._where)
        if about.size < (end := entry_place(stored)):
            message = f"truncated: expected {end} bytes, got {about.size}"
            raise FormatError(message, path=self._where, offset=about.size)
        for left in reversed(range(TRIES)):
            try:
                found = parse_header(self._mirror.data(CHECKSUMS, 0, entry_place(0)), self._where)
                break
            except FormatError:  # it may have come damaged
                if not left:
                    raise
        if found != self._seen.block_bytes:
            message = f"expected blocks of {self._seen.block_bytes} bytes, got {found}"
            raise FormatError(message, path=self._where, offset=12)
        return stored

    def _entries(self, source: "_Source", first: int, last: int) -> NDArray[np.uint8]:
        """The checksums of some blocks: those of the file, then those of the commit."""
        stored = source.stored
        inside = range(min(first, stored), min(last, stored))
        parts = [
            self._piece(source, number)[max(inside.start - begin, 0) * ENTRY_BYTES :][
                : (inside.stop - max(inside.start, begin)) * ENTRY_BYTES
            ]
            for number in self._pieces(inside.start, inside.stop)
            for begin in [number * _PIECE_BLOCKS]
        ]
        behind = slice(max(first - stored, 0) * ENTRY_BYTES, max(last - stored, 0) * ENTRY_BYTES)
        parts.append(np.frombuffer(self._seen.block_tail[behind], np.uint8))
        return np.concatenate(parts)

    def _pieces(self, first: int, last: int) -> range:
        """The numbers of the pieces that some checksums are in."""
        return range(
            first // _PIECE_BLOCKS, block_count(last, _PIECE_BLOCKS) if last > first else 0
        )

    def _piece(self, source: "_Source", number: int) -> NDArray[np.uint8]:
        key = source.name, number
        with self._turn:
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:  # once, however many blocks wait for it
            with self._turn:
                found = self._known.pop(key, None)
            if found is None:
                begin = number * _PIECE_BLOCKS
                end = min(begin + _PIECE_BLOCKS, source.stored)
                data = self._mirror.data(source.name, entry_place(begin), entry_place(end))
                if len(data) < (end - begin) * ENTRY_BYTES:
                    expected, got = entry_place(end), entry_place(begin) + len(data)
                    message = f"truncated: expected {expected} bytes, got {got}"
                    raise FormatError(message, path=source.url, offset=got)
                found = np.frombuffer(data, np.uint8)
            with self._turn:
                self._known[key] = found
                while len(self._known) > _PIECES:
                    self._known.popitem(last=False)
            return found


class _Source(NamedTuple):
    """A file of checksums, as it concerns a file of rows."""

    name: str
    url: str
    first: int
    """How many checksums there are before those of the file of rows."""
    stored: int
    """How many it has."""


def _have_database(mirror: Mirror) -> None:
    """The files of a dataset that was uploaded."""
    if mirror.about(DATABASE) is None:
        message = f"expected a step dataset, found no {DATABASE} and no {DATASET}"
        raise KindError(message, path=mirror.url)
    for name in (DATABASE + log for log in _LOGS):
        about = mirror.about(name)
        if about is not None and about.size:
            raise FormatError(
                f"expected no {name} of {about.size:,} bytes: the dataset was uploaded while "
                "its writer was open; close the writer and upload the dataset again",
                path=mirror.url_of(name),
            )
    mirror.whole(DATABASE, _without_log)
    if mirror.about(MANIFEST) is not None:
        mirror.whole(MANIFEST)


def _newest(mirror: Mirror) -> Dataset | None:
    """What the dataset is now, whatever it was when its objects were listed."""
    data = mirror.files.read_all(DATASET)
    return None if data is None else Dataset.parse(data, mirror.url_of(DATASET))


def _fetch_database(mirror: Mirror, wanted: Metadata) -> None:
    """The database of a commit, again where it comes damaged."""

    def check(file: BinaryIO) -> None:
        wanted.check(file, mirror.url_of(wanted.name))
        _without_log(file)

    for left in reversed(range(TRIES)):
        try:
            mirror.whole(wanted.name, check)
            return
        except ChecksumError:
            if not left:
                raise


def _without_log(file: BinaryIO) -> None:
    """Let SQLite read a database that has no log without making one beside it."""
    head = os.pread(file.fileno(), _VERSIONS_AT + 2, 0)
    if head.startswith(_SQLITE) and head.endswith(b"\2\2"):
        os.pwrite(file.fileno(), b"\1\1", _VERSIONS_AT)

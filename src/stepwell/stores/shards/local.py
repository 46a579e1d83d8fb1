"""The shards of a corpus; those on a file system are mapped, and read ahead of a cursor."""

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.files.checked import BLOCK_BYTES, Checksums
from stepwell.files.regular import open_inside, open_regular
from stepwell.source import Rows
from stepwell.stores.shards.layout import (
    HEADER_BYTES,
    KINDS,
    LIST,
    SUFFIX,
    Shard,
    check_crc,
    list_in,
    listed_in,
    parse_header,
    with_checksum,
)

WINDOW_BYTES = 64 << 20
_PIECE_BYTES = 1 << 22


class Span(NamedTuple):
    """Shards that are read one after another, the first of them from a row on."""

    numbers: range
    skip: int = 0


class Corpus(ABC):
    """Shards in the order of their rows."""

    def __init__(self, shards: list[Shard]) -> None:
        self.shards = shards
        self.starts = np.cumsum([0, *(shard.rows for shard in shards)])
        """The first row of each, and the number of all rows."""

    # The methods of a place for shards.

    @abstractmethod
    def where(self, number: int) -> str:
        """The path or URL of a shard."""

    @abstractmethod
    def surplus(self, number: int) -> int:
        """Bytes of a file behind its last row."""

    @abstractmethod
    def parts(self, span: Span, step: int, window_bytes: int) -> Iterator[NDArray[np.uint8]]:
        """The bytes of each of the `cuts`, fetched ahead of the loop."""

    @abstractmethod
    def rows(self, rows: Rows) -> NDArray[np.uint8]:
        """Rows in any order, as they are stored, one after another."""

    def reader(self) -> _core.Reader | None:
        """A native reader of all rows, where there is one."""
        return None

    def check_whole(self, number: int) -> None:
        """Raise `FormatError` for a file that was cut since it was opened."""

    def blocks_of(self, number: int) -> _core.CheckedBlocks | None:
        """The checksums of the blocks of a shard, none of them compared yet, where `parts` does
        not do so."""
        return None

    def check_rows(self, number: int, begin: int, end: int) -> None:
        """Raise `ChecksumError` when rows that `parts` gave are not those that were written."""

    def watched(self) -> list[bool]:
        """Which shards `check_passed` is for."""
        return [False] * len(self.shards)

    def check_passed(self, number: int, begin: int, end: int, crc: int | None) -> int:
        """The checksum of a shard up to row `end`, where that up to `begin` is `crc`, or not known:
        for a shard that is read in order, and only as a whole has a checksum, which is then
        compared."""
        return 0

    def closed(self) -> Self:
        """The same without open files."""
        return self

    # The same for every corpus.

    @property
    def stored_bytes(self) -> int:
        return sum(
            HEADER_BYTES + shard.payload_bytes + self.surplus(number)
            for number, shard in enumerate(self.shards)
        )

    def span(self, row: int, length: int) -> Span:
        """The shards that have the rows from `row` on, of the first `length`."""
        first = int(np.searchsorted(self.starts, row, side="right")) - 1
        end = int(np.searchsorted(self.starts, length))
        return Span(range(first, end), row - int(self.starts[first]))

    def cuts(self, span: Span, step: int) -> Iterator[tuple[int, int, int]]:
        """Shard, first row and end of each part, when shards are read `step` rows at a time."""
        begin = span.skip
        for number in span.numbers:
            rows = self.shards[number].rows
            for at in range(begin, rows, step):
                yield number, at, min(at + step, rows)
            begin = 0

    def payload(self, number: int) -> Iterator[NDArray[np.uint8]]:
        """The bytes of the rows of a shard, copied a piece at a time. Raises what is wrong."""
        at, where = HEADER_BYTES, self.where(number)
        step = max(_PIECE_BYTES // self.shards[number].row_bytes, 1)
        for data in self.parts(Span(range(number, number + 1)), step, WINDOW_BYTES):
            yield whole(data, where, at).take(np.zeros(1, np.int64))[: len(data)]
            at += len(data)
        self.check_whole(number)  # else zeros behind the end of the file are other bytes

    def checksum(self, number: int) -> int:
        """The CRC32C of the rows of a shard."""
        crc = 0
        for data in self.payload(number):
            crc = _core.crc32c(data, crc)
        return crc

    def check(self) -> None:
        """Raise `FormatError` unless the shards make a corpus: one width, one kind, some rows."""
        for number, shard in enumerate(self.shards):
            first = self.shards[0]
            if (shard.width, shard.kind) != (first.width, first.kind):
                raise FormatError(
                    f"expected {first.width} x {first.kind}, as in {first.name}, "
                    f"got {shard.width} x {shard.kind}",
                    path=self.where(number),
                )
        if not self.starts[-1]:
            raise FormatError("expected a corpus with rows, got none", path=self.where(0))


def one_block(
    data: NDArray[np.uint8], crc: int, path: Path | str, begin: int
) -> _core.CheckedBlocks:
    """Bytes of a file that have one checksum together."""
    stored = np.array([crc] if len(data) else [], "<u4").view(np.uint8)
    none = np.empty(0, np.uint8)
    size = 1 << len(data).bit_length()
    return _core.CheckedBlocks(data, size, stored, none, path, begin, path)


def whole(data: NDArray[np.uint8], where: str, at: int) -> _core.Reader:
    """Bytes from byte `at` of a file on as one row, to be copied: someone may cut the file."""
    return _core.guarded_reader(data, 0, 1, len(data), where, at)


@dataclass(frozen=True)
class _Mapped:
    shard: Shard
    path: Path
    memory: NDArray[np.uint8]
    """The whole file, which may be longer than its rows."""
    identity: tuple[int, int]
    """Its device and number there: another file may get its name."""


class LocalShards(Corpus):
    """Mapped shards, in the order of their paths as they are given."""

    def __init__(
        self, paths: Sequence[Path], folder: Path | None = None, *, checksums: bool = True
    ) -> None:
        """Files that the caller named; with `folder`, files of that folder, none of them a link.

        With `checksums`, blocks are compared with theirs when they are first met.
        """
        self.paths = [path.absolute() for path in paths]
        self._files = [_mapped(path, inside=folder is not None) for path in self.paths]
        folders = {path.parent for path in self.paths} if folder is None else {folder.absolute()}
        self._listed = {each / shard.name: shard for each in folders for shard in listed_in(each)}
        lists = {each: str(each / LIST.name) for each in folders}
        super().__init__(
            [
                with_checksum(file.shard, self._listed.get(path), lists[path.parent])
                for file, path in zip(self._files, self.paths, strict=True)
            ]
        )
        self._cold = _core.Cold()
        self._known: dict[Path, Checksums] = {}
        self._blocks: list[_core.CheckedBlocks | None] = [None] * len(self.paths)
        self._in_order: list[_core.CheckedBlocks | None] = [None] * len(self.paths)
        if checksums:
            self._open_checksums()

    def _open_checksums(self) -> None:
        """What each shard is compared with: its blocks, or all of it once it was read in order."""
        for number, (shard, file) in enumerate(zip(self.shards, self._files, strict=True)):
            self._blocks[number] = self.blocks_of(number)
            if shard.first_block is None and shard.crc32c is not None:
                data = file.memory[HEADER_BYTES : HEADER_BYTES + shard.payload_bytes]
                self._in_order[number] = one_block(data, shard.crc32c, file.path, HEADER_BYTES)

    def blocks_of(self, number: int) -> _core.CheckedBlocks | None:
        shard, file = self.shards[number], self._files[number]
        if shard.first_block is None:
            return None
        at = file.path.with_name(shard.checksums)
        if at not in self._known:
            self._known[at] = Checksums(at.parent, at.name, block_bytes=BLOCK_BYTES)
        data = file.memory[HEADER_BYTES : HEADER_BYTES + shard.payload_bytes]
        return self._known[at].of(data, shard.first_block, file.path, HEADER_BYTES)

    @classmethod
    def in_folder(
        cls, folder: Path, names: Collection[str] | None = None, *, checksums: bool = True
    ) -> "LocalShards":
        """All shards of a directory or those of some names, sorted by the bytes of their names; in
        a copy of a bucket those of the list, in its order."""
        found = list_in(folder)
        if found is not None and found.is_ordered:
            listed = [shard.name for shard in found.shards]
            chosen = [name for name in listed if names is None or name in names]
        else:
            chosen = sorted(shard_names(folder) if names is None else names, key=os.fsencode)
        made = cls([folder / name for name in chosen], folder, checksums=checksums)
        missing = made._listed.keys() - set(made.paths)
        for path in sorted(missing):
            if not path.exists():  # else it is newer than our names
                raise FormatError(
                    f"expected {path.name}, which is listed, found none: all rows behind it would "
                    "have other ids",
                    path=str(path.with_name(LIST.name)),
                )
        return made

    def closed(self) -> "LocalShards":
        """The same without the files; whoever is still reading them has them for as long."""
        made = copy(self)
        made._files, made._blocks, made._in_order, made._known = [], [], [], {}
        return made

    def where(self, number: int) -> str:
        return str(self.paths[number])

    def surplus(self, number: int) -> int:
        file = self._files[number]
        return len(file.memory) - HEADER_BYTES - file.shard.payload_bytes

    def reader(self) -> _core.Reader:
        """All rows as they are stored, in any order; a file that was cut is an error."""
        parts = []
        for file, blocks in zip(self._files, self._blocks, strict=True):
            rows, size = file.shard.rows, file.shard.row_bytes
            if rows:
                part = _core.guarded_reader(file.memory, HEADER_BYTES, rows, size, file.path)
                if blocks is not None:
                    part = _core.checked_reader(part, blocks, size, 0, size)
                data = file.memory[HEADER_BYTES : HEADER_BYTES + file.shard.payload_bytes]
                parts.append(_core.cold_reader(part, data, size, 0, size, self._cold, blocks))
        return parts[0] if len(parts) == 1 else _core.concat_reader(parts)

    def rows(self, rows: Rows) -> NDArray[np.uint8]:
        return self.reader().take(rows)[: len(rows) * self.shards[0].row_bytes]

    def check_rows(self, number: int, begin: int, end: int) -> None:
        blocks, size = self._blocks[number], self.shards[number].row_bytes
        if blocks is not None:
            blocks.check(begin * size, end * size)

    def watched(self) -> list[bool]:
        return [block is not None for block in self._in_order]

    def check_passed(self, number: int, begin: int, end: int, crc: int | None) -> int:
        block, shard = self._in_order[number], self.shards[number]
        if block is None:
            return 0
        if crc is None:  # it was begun in the middle
            begin = crc = 0
        crc = block.checksum(begin * shard.row_bytes, end * shard.row_bytes, crc)
        if end == shard.rows:
            check_crc(shard, crc, self.where(number))
            self._in_order[number] = None
        return crc

    def copied(self, number: int, begin: int, end: int) -> NDArray[np.uint8]:
        """Bytes `begin` to `end` of the rows of a shard; an error if its file was cut."""
        at, memory = HEADER_BYTES + begin, self._files[number].memory
        copy = whole(memory[at : HEADER_BYTES + end], self.where(number), at)
        return copy.take(np.zeros(1, np.int64))[: end - begin]

    def is_cut(self, number: int) -> bool:
        """Whether the file at the path has become shorter; one that is gone is not."""
        file = self._files[number]
        try:
            found = os.stat(file.path)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == file.identity and found.st_size < len(file.memory)

    def check_whole(self, number: int) -> None:
        """Raise for a truncated file, whose last page reads as zeros without an error."""
        if self.is_cut(number):
            message = "truncated since it was opened"
            raise FormatError(message, path=self.where(number))

    def parts(self, span: Span, step: int, window_bytes: int) -> Iterator[NDArray[np.uint8]]:
        """Not copied, not checked; pages that are in memory anyway are left to whoever reads
        them."""
        at = span.skip * self.shards[0].row_bytes
        stretches = self._stretches(span.numbers, checked=False)
        ahead = _core.Readahead(stretches, window_bytes, False, at)
        for number, begin, end in self.cuts(span, step):
            file, size = self._files[number], self._files[number].shard.row_bytes
            ahead.wait(at, at + (end - begin) * size)
            at += (end - begin) * size
            yield file.memory[HEADER_BYTES + begin * size : HEADER_BYTES + end * size]

    def views(self, span: Span, step: int, window_bytes: int) -> _core.Views:
        """Gives the rows of each of the cuts: the files' memory."""
        return _core.Views(*self._all(span, step, window_bytes))

    def upcasts(
        self, span: Span, step: int, window_bytes: int, doubles: bool, threads: int
    ) -> _core.Upcasts:
        """The same as wider floats, made ahead of the loop."""
        return _core.Upcasts(*self._all(span, step, window_bytes), doubles, threads)

    def _all(self, span: Span, step: int, window_bytes: int) -> tuple[Any, int, int, int, int, int]:
        """The memory, the row to begin with, rows of a part, their width, the window and the kind
        of shards."""
        first = self.shards[0]
        rows = min(step, max(shard.rows for shard in self.shards))
        stretches, kind = self._stretches(span.numbers), KINDS.index(first.kind)
        return stretches, span.skip, rows, first.width, window_bytes, kind

    def _stretches(
        self, numbers: Sequence[int], *, checked: bool = True
    ) -> list[tuple[NDArray[np.uint8], int, int, Path, _core.CheckedBlocks | None]]:
        """Memory, first byte, bytes, path and checksums of the rows of shards."""
        found = []
        for number in numbers:
            file, blocks = self._files[number], self._blocks[number] if checked else None
            size = file.shard.payload_bytes
            found.append((file.memory, HEADER_BYTES, size, file.path, blocks))
        return found


def shard_names(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(SUFFIX)]


def _mapped(path: Path, *, inside: bool) -> _Mapped:
    opened = os.fdopen(open_inside(path.parent, path.name), "rb") if inside else open_regular(path)
    with opened as file:
        found = os.fstat(file.fileno())
        size = found.st_size
        shard = parse_header(file.read(HEADER_BYTES), path.name, str(path), size)
        # Not Python's mmap, which keeps a descriptor for each of a thousand shards.
        memory = _core.map_file(file.fileno(), size, path)
    return _Mapped(shard, path, memory, (found.st_dev, found.st_ino))

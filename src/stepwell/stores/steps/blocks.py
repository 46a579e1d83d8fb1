"""The checksums of a step dataset's rows, as a reader of one commit compares them."""

import os
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError
from stepwell.files.checked import ENTRY_BYTES, Checksums, block_count
from stepwell.files.npy import NpyHeader
from stepwell.stores.steps.database import Seen
from stepwell.stores.steps.layout import CHECKSUMS, DATABASE, Piece
from stepwell.stores.steps.manifest import BLOCK_BYTES, Manifest


class Checks(Protocol):
    """What there is to compare rows with."""

    def of(
        self, piece: Piece, file: BinaryIO, header: NpyHeader, data: NDArray[np.uint8]
    ) -> _core.CheckedBlocks | None:
        """The checksums of the rows of a piece, which are or will be in `data`."""

    def check_loaded(self, data: NDArray[np.uint8]) -> None:
        """Compare all rows, once they are in memory, with what there is besides."""


class BlockChecks:
    """Those of `steps.crc` and of the commit."""

    def __init__(self, root: Path, seen: Seen) -> None:
        self._root, self._seen = root, seen
        self._opened: Checksums | None = None
        self._begins: NDArray[np.int64] | None = None

    def first_block(self, piece: Piece, row_bytes: int) -> int:
        """How many blocks there are before those of a piece's file."""
        seen = self._seen
        if seen.is_listed:
            return int(self._firsts(row_bytes)[piece.number])
        return piece.number * block_count(seen.shard_rows * row_bytes, seen.block_bytes)

    def _firsts(self, row_bytes: int) -> NDArray[np.int64]:
        """How many blocks there are before those of each shard that has a list, and in all."""
        if self._begins is None:
            size = self._seen.block_bytes
            counts = [block_count(part.rows * row_bytes, size) for part in self._seen.parts]
            self._begins = np.cumsum([0, *counts])
        return self._begins

    def stored(self, row_bytes: int) -> int:
        """How many checksums the file has; the others are those of the commit."""
        seen = self._seen
        number, last = divmod(seen.rows, seen.shard_rows) if seen.shard_rows else (0, seen.rows)
        count = number * block_count(seen.shard_rows * row_bytes, seen.block_bytes)
        count += block_count(last * row_bytes, seen.block_bytes)
        tail, odd = divmod(len(seen.block_tail), ENTRY_BYTES)
        if odd or not min(count, 1) <= tail <= count:
            message = f"block_tail: expected 1 to {count} checksums, got {tail}"
            raise FormatError(message, path=str(self._root / DATABASE))
        return count - tail

    def opened(self, row_bytes: int) -> Checksums:
        """The checksums themselves."""
        if self._opened is None:
            seen = self._seen
            if seen.is_listed:
                counts = np.diff(self._firsts(row_bytes)).tolist()
                names = [part.checksums for part in seen.parts]
                files = list(zip(names, counts, strict=True))
                self._opened = Checksums.of_files(self._root, files, seen.block_bytes)
                return self._opened
            stored = self.stored(row_bytes)
            self._opened = Checksums(
                self._root, CHECKSUMS, stored, seen.block_tail, seen.block_bytes
            )
        return self._opened

    def of(
        self, piece: Piece, file: BinaryIO, header: NpyHeader, data: NDArray[np.uint8]
    ) -> _core.CheckedBlocks | None:
        size = header.dtype.itemsize
        known, begin = self.opened(size), piece.place(header)
        whole, inside = divmod(piece.inside * size, known.block_bytes)
        before = os.pread(file.fileno(), inside, begin - inside)
        crc = _core.crc32c(np.frombuffer(before, np.uint8))
        first = self.first_block(piece, size) + whole
        return known.of(data, first, piece.path, begin, inside, crc)

    def check_loaded(self, data: NDArray[np.uint8]) -> None:
        pass


class ManifestChecks:
    """Those of `manifest.json`, as far as it reaches: all that datasets of before have."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._row_bytes = 1

    def of(
        self, piece: Piece, file: BinaryIO, header: NpyHeader, data: NDArray[np.uint8]
    ) -> _core.CheckedBlocks | None:
        self._row_bytes = header.dtype.itemsize
        return None

    def check_loaded(self, data: NDArray[np.uint8]) -> None:
        known = Manifest.read(self._root, self._row_bytes)
        if known is None:
            return
        size = min(known.covered, len(data))
        if known.covered > size:
            size -= size % BLOCK_BYTES  # rows came since that are in the last block, too
        crcs = np.array(known.blocks[: block_count(size, BLOCK_BYTES)], "<u4").view(np.uint8)
        root, none = self._root, np.empty(0, np.uint8)
        blocks = _core.CheckedBlocks(data[:size], BLOCK_BYTES, crcs, none, root, 0, root)
        try:
            blocks.check_all()
        except ChecksumError as error:  # the place is one in the rows, not in a file
            message = f"rows from byte {error.offset} on: {error.args[0]}"
            raise ChecksumError(message, path=str(self._root)) from None

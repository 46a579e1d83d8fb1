"""The shards of a corpus, wherever their bytes come from."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.source import Rows
from stepwell.stores.shards.layout import HEADER_BYTES, Shard

WINDOW_BYTES = 8 << 20
_PIECE_BYTES = 1 << 22


class Corpus(ABC):
    """Shards in the order of their rows."""

    def __init__(self, shards: list[Shard]) -> None:
        self.shards = shards
        self.starts = np.cumsum([0, *(shard.rows for shard in shards)])
        """The first row of each, and the number of all rows."""

    # What a place for shards provides.

    @abstractmethod
    def where(self, number: int) -> str:
        """The path or URL of a shard."""

    @abstractmethod
    def surplus(self, number: int) -> int:
        """Bytes of a file behind its last row."""

    @abstractmethod
    def parts(
        self, numbers: Sequence[int], step: int, window_bytes: int
    ) -> Iterator[NDArray[np.uint8]]:
        """The bytes of each of the `cuts`, fetched ahead of the loop."""

    @abstractmethod
    def rows(self, rows: Rows) -> NDArray[np.uint8]:
        """Rows in any order, as they are stored, one after another."""

    def reader(self) -> _core.Reader | None:
        """What reads all rows without Python, where there is such a thing."""
        return None

    def check_whole(self, number: int) -> None:
        """Raise `FormatError` for a file that was cut since it was opened."""

    def closed(self) -> Self:
        """The same without open files."""
        return self

    # What every corpus can do.

    @property
    def stored_bytes(self) -> int:
        return sum(
            HEADER_BYTES + shard.payload_bytes + self.surplus(number)
            for number, shard in enumerate(self.shards)
        )

    def cuts(self, numbers: Sequence[int], step: int) -> Iterator[tuple[int, int, int]]:
        """Shard, first row and end of each part, when shards are read `step` rows at a time."""
        for number in numbers:
            rows = self.shards[number].rows
            for at in range(0, rows, step):
                yield number, at, min(at + step, rows)

    def payload(self, number: int) -> Iterator[NDArray[np.uint8]]:
        """The bytes of the rows of a shard, copied a piece at a time. Raises what is wrong."""
        at, where = HEADER_BYTES, self.where(number)
        step = max(_PIECE_BYTES // self.shards[number].row_bytes, 1)
        for data in self.parts([number], step, WINDOW_BYTES):
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


def whole(data: NDArray[np.uint8], where: str, at: int) -> _core.Reader:
    """Bytes from byte `at` of a file on as one row, to be copied: someone may cut the file."""
    return _core.guarded_reader(data, 0, 1, len(data), where, at)

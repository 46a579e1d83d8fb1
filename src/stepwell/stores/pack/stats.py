"""What a pack holds, in numbers, and the block that keeps them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError
from stepwell.files.postcard import PostcardReader, PostcardWriter


@dataclass(frozen=True)
class ShortStats:
    """The eight fields that every version of the block begins with."""

    count: int
    """Entries of the pack, whatever they are."""
    total_steps: int
    min_len: int
    max_len: int
    mean_len: float
    p50_len: int
    p90_len: int
    p99_len: int


@dataclass(frozen=True)
class PackStats(ShortStats):
    """What a pack holds. Lengths are in steps, of payloads that have some.

    A payload type has a class of its own that calls the two tallies what they are.
    """

    number_counts: dict[int, int]
    name_counts: dict[str, int]


class Tally(NamedTuple):
    """What is counted of some payloads: an item each."""

    lengths: NDArray[np.uint32]
    numbers: Iterable[int]
    names: Iterable[str]


def stats_block(stats: ShortStats) -> bytes:
    """Statistics as they stand in a file, with their checksum; those of any payload type."""
    count, total, shortest, longest, mean, p50, p90, p99, numbers, names = vars(stats).values()
    out = PostcardWriter()
    for number in (count, total, shortest, longest):
        out.varint(number)
    out.float64(mean)
    for number in (p50, p90, p99):
        out.varint(number)
    out.varint(len(numbers))
    for number, times in sorted(numbers.items()):
        out.varint(number)
        out.varint(times)
    out.varint(len(names))
    for name, times in sorted(names.items(), key=_by_bytes):
        out.string(name)
        out.varint(times)
    return bytes(out.data + _checksum(out.data).to_bytes(4, "little"))


def read_stats(block: bytes, cls: type[Any], *, path: str, offset: int) -> ShortStats:
    """Statistics of the class, or `ShortStats` where no checksum covers the tallies.

    The latter are good for comparing only.
    """
    data = PostcardReader(block)
    try:
        short = ShortStats(
            data.varint(64),
            data.varint(64),
            data.varint(32),
            data.varint(32),
            data.float64(),
            data.varint(32),
            data.varint(32),
            data.varint(32),
        )
        if not data.left:
            return short
        numbers = {data.varint(32): data.varint(64) for _ in range(data.varint(64))}
        names = {data.string(): data.varint(64) for _ in range(data.varint(64))}
        if not data.left:
            return short
        if data.left == 4:
            expected = int.from_bytes(data.take(4), "little")
            found = _checksum(block[: data.at - 4])
            if expected != found:
                raise ChecksumError(
                    f"statistics: expected CRC32C {expected:08x}, got {found:08x}",
                    path=path,
                    offset=offset,
                )
        if data.left:
            raise ValueError(f"expected the end, got {data.left} more bytes")
    except FormatError:
        raise
    except ValueError as error:
        at = offset + data.at
        raise FormatError(f"statistics: {error}", path=path, offset=at) from None
    whole: ShortStats = cls(*vars(short).values(), numbers, names)
    return whole


class StatsBuilder:
    """Gathers statistics of payloads as they pass by."""

    def __init__(self) -> None:
        self._count = 0
        self._lengths: list[NDArray[np.uint32]] = []
        self._numbers: Counter[int] = Counter()
        self._names: Counter[str] = Counter()

    def add(self, entries: int, tallies: Iterable[Tally]) -> None:
        """Count entries, and what is known of some of them."""
        self._count += entries
        for tally in tallies:
            self._lengths.append(tally.lengths)
            self._numbers.update(tally.numbers)
            self._names.update(tally.names)

    def finish(self, cls: type[Any] = PackStats) -> ShortStats:
        lengths = np.sort(np.concatenate([np.empty(0, np.uint32), *self._lengths]))
        items = len(lengths)

        def quantile(q: float) -> int:
            # Half away from zero, as the format says; Python rounds half to even.
            return int(lengths[int(np.floor(q * (items - 1) + 0.5))]) if items else 0

        total = int(lengths.sum(dtype=np.uint64))
        short = ShortStats(
            self._count,
            total,
            int(lengths[0]) if items else 0,
            int(lengths[-1]) if items else 0,
            total / items if items else 0.0,
            quantile(0.5),
            quantile(0.9),
            quantile(0.99),
        )
        numbers = dict(sorted(self._numbers.items()))
        names = dict(sorted(self._names.items(), key=_by_bytes))
        whole: ShortStats = cls(*vars(short).values(), numbers, names)
        return whole


def _by_bytes(item: tuple[str, Any]) -> bytes:
    return item[0].encode()


def _checksum(data: bytes | bytearray) -> int:
    return _core.crc32c(np.frombuffer(data, np.uint8))

"""Statistics of a pack, and the block that keeps them."""

import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError
from stepwell.files.postcard import PostcardReader, string, varint


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
    """Statistics of a pack. Lengths are in steps, of payloads that have some.

    A payload type has a class of its own that calls the two tallies what they are.
    """

    number_counts: dict[int, int]
    name_counts: dict[str, int]


class Tally(NamedTuple):
    """The counts of some payloads: an item each."""

    lengths: NDArray[np.uint32]
    numbers: Iterable[int]
    names: Iterable[str]


Values = list[Any]
"""Those of the fields, in order; the first eight where no checksum covers the tallies."""

_BITS = (64, 64, 32, 32, 0, 32, 32, 32)
"""Of the first eight; 0 is a float."""


def stats_block(values: Values) -> bytes:
    """Statistics as they stand in a file, with their checksum."""
    *short, numbers, names = values
    parts = [
        varint(value) if bits else struct.pack("<d", value)
        for bits, value in zip(_BITS, short, strict=True)
    ]
    for tally, encoded in ((numbers, varint), (names, string)):
        parts.append(varint(len(tally)))
        parts += [encoded(key) + varint(times) for key, times in tally.items()]
    block = b"".join(parts)
    return block + _checksum(block)


def read_stats(block: bytes, *, path: str, offset: int) -> Values:
    data = PostcardReader(block)
    try:
        short: Values = [data.varint(bits) if bits else data.float64() for bits in _BITS]
        if not data.left:
            return short
        numbers = {data.varint(32): data.varint(64) for _ in range(data.varint(64))}
        names = {data.string(): data.varint(64) for _ in range(data.varint(64))}
        if not data.left:
            return short
        found = _checksum(block[: data.at])
        expected = data.take(4)
        if data.left:
            raise ValueError(f"expected the end, got {data.left} more bytes")
    except ValueError as error:
        at = offset + data.at
        raise FormatError(f"statistics: {error}", path=path, offset=at) from None
    if expected != found:
        raise ChecksumError(
            f"statistics: expected CRC32C {expected[::-1].hex()}, got {found[::-1].hex()}",
            path=path,
            offset=offset,
        )
    return [*short, numbers, names]


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

    def finish(self) -> Values:
        lengths = np.sort(np.concatenate([np.empty(0, np.uint32), *self._lengths]))
        numbers = dict(sorted(self._numbers.items()))
        names = dict(sorted(self._names.items(), key=lambda item: item[0].encode()))
        items, total = len(lengths), int(lengths.sum(dtype=np.uint64))
        if not items:
            return [self._count, 0, 0, 0, 0.0, 0, 0, 0, numbers, names]
        # Half away from zero, as the format has it; Python rounds half to even.
        places = [0, -1, *(int(np.floor(q * (items - 1) + 0.5)) for q in (0.5, 0.9, 0.99))]
        shortest, longest, *quantiles = lengths[places].tolist()
        short = [self._count, total, shortest, longest, total / items, *quantiles]
        return [*short, numbers, names]


def _checksum(data: bytes) -> bytes:
    return _core.crc32c(np.frombuffer(data, np.uint8)).to_bytes(4, "little")

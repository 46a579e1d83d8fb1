"""What a pack holds, in numbers, and the block that keeps them."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError
from stepwell.files.postcard import PostcardReader, PostcardWriter
from stepwell.runs import RunBatch

__all__ = ["PackStats", "StatsBuilder"]


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
    """What a pack holds. Lengths are in steps and count runs only, as do the other two."""

    highest_tile_hist: dict[int, int]
    """How many runs reached each tile and no higher one."""
    engine_counts: dict[str, int]
    """Runs by the engine that played them; "" where a run names none."""

    def to_bytes(self) -> bytes:
        out = PostcardWriter()
        for number in (self.count, self.total_steps, self.min_len, self.max_len):
            out.varint(number)
        out.float64(self.mean_len)
        for number in (self.p50_len, self.p90_len, self.p99_len):
            out.varint(number)
        out.varint(len(self.highest_tile_hist))
        for tile, count in sorted(self.highest_tile_hist.items()):
            out.varint(tile)
            out.varint(count)
        out.varint(len(self.engine_counts))
        for engine, count in sorted(self.engine_counts.items(), key=lambda item: item[0].encode()):
            out.string(engine)
            out.varint(count)
        return bytes(out.data + _sum(out.data).to_bytes(4, "little"))

    @classmethod
    def from_bytes(cls, block: bytes, *, path: str, offset: int) -> ShortStats:
        """Read a block. Only one with a sum is believed whole; others are good for comparing."""
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
            tiles = {data.varint(32): data.varint(64) for _ in range(data.varint(64))}
            engines = {data.string(): data.varint(64) for _ in range(data.varint(64))}
            if not data.left:
                return short  # no sum stands for the lists
            if data.left == 4:
                expected = int.from_bytes(data.take(4), "little")
                found = _sum(block[: data.at - 4])
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
        return cls(**vars(short), highest_tile_hist=tiles, engine_counts=engines)


class StatsBuilder:
    """Gathers the statistics of runs as they pass by."""

    def __init__(self) -> None:
        self._count = 0
        self._lengths: list[np.ndarray[tuple[int], np.dtype[np.uint32]]] = []
        self._tiles: Counter[int] = Counter()
        self._engines: Counter[str] = Counter()

    def add(self, runs: RunBatch) -> None:
        self._count += len(runs)
        self._lengths.append(runs.records["steps"].copy())
        self._tiles.update(runs.records["highest_tile"].tolist())
        offsets = runs.engine_offsets.tolist()
        letters = runs.engines.tobytes()
        self._engines.update(letters[begin:end].decode() for begin, end in pairwise(offsets))

    def add_others(self, count: int) -> None:
        """Count entries that are not runs."""
        self._count += count

    def finish(self) -> PackStats:
        lengths = np.sort(np.concatenate([np.empty(0, np.uint32), *self._lengths]))
        runs = len(lengths)

        def quantile(q: float) -> int:
            # Half away from zero, as the format says; Python rounds half to even.
            return int(lengths[int(np.floor(q * (runs - 1) + 0.5))]) if runs else 0

        total = int(lengths.sum(dtype=np.uint64))
        return PackStats(
            self._count,
            total,
            int(lengths[0]) if runs else 0,
            int(lengths[-1]) if runs else 0,
            total / runs if runs else 0.0,
            quantile(0.5),
            quantile(0.9),
            quantile(0.99),
            dict(sorted(self._tiles.items())),
            dict(sorted(self._engines.items(), key=lambda item: item[0].encode())),
        )


def _sum(data: bytes | bytearray) -> int:
    return _core.crc32c(np.frombuffer(data, np.uint8))

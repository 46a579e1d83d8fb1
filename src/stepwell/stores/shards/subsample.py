"""A part of a corpus that is chosen by row id alone."""

from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.source import Rows
from stepwell.views import Select

if TYPE_CHECKING:
    from stepwell.stores.shards.reader import ShardReader

_PIECE = 1 << 20


def splitmix64(ids: Rows) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """The hash that decides: the first output of SplitMix64 seeded with the id."""
    mixed = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def kept_rows(length: int, fraction: float) -> Rows:
    """Rows whose hash is below `fraction` of the range, ascending."""
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction: expected more than 0, up to 1, got {fraction}")
    if fraction == 1:
        return np.arange(length, dtype=np.int64)
    limit = np.uint64(int(fraction * 2**64))
    parts = []
    for begin in range(0, length, _PIECE):
        ids = np.arange(begin, min(begin + _PIECE, length), dtype=np.int64)
        parts.append(ids[splitmix64(ids) < limit])
    return np.concatenate([np.empty(0, np.int64), *parts])


class Subsample(Select):
    """Some rows of a corpus: a source, with the ids of its rows and the weight of each."""

    def __init__(self, base: "ShardReader", rows: Rows, fraction: float) -> None:
        super().__init__(base, rows)
        self.fraction = fraction

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._base, self.fraction)  # not a number for each row

    @property
    def row_ids(self) -> Rows:
        """The ids in the whole corpus."""
        assert not isinstance(self._rows, slice)
        return self._rows

    @property
    def weight(self) -> float:
        """How many rows of the corpus each of these stands for."""
        return 1 / self.fraction


def _again(base: "ShardReader", fraction: float) -> Subsample:
    return base.subsample(fraction)

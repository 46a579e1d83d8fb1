"""Rows in order: batches with the ids of their rows, and a pass over them that can be continued."""

from collections.abc import Callable, Container, Iterator, Mapping
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import StateError
from stepwell.source import Closing, Source
from stepwell.stores.shards.local import Corpus


class RowBatch:
    """Rows that follow one another, and their ids: `rows, row_ids = batch`."""

    __slots__ = ("_ids", "rows")

    def __init__(self, rows: NDArray[Any], row_ids: "NDArray[np.int64] | range") -> None:
        self.rows = rows
        self._ids = row_ids

    @property
    def row_ids(self) -> NDArray[np.int64]:
        """An array as soon as somebody asks: most loops do not, and a batch takes microseconds."""
        if isinstance(self._ids, range):
            self._ids = np.arange(self._ids.start, self._ids.stop)
        return self._ids

    def __len__(self) -> int:
        """The number of rows."""
        return len(self._ids)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return iter((self.rows, self.row_ids))

    def __repr__(self) -> str:
        return f"RowBatch({len(self):,} rows of {self.rows.dtype}, ids from {self._ids[0]})"


class Batches(Closing, Iterator[RowBatch]):
    """One pass over rows in order.

        batches = acts.batches()
        for rows, row_ids in batches:
            state = batches.state_dict()    # plain numbers and text, for a checkpoint
        batches.load_state_dict(state)      # the next batch is the one behind that

    After an error the next call tries the same batch again.
    """

    def __init__(
        self,
        source: Source,
        begin: Callable[[int, int], Iterator[RowBatch]],
        start_row: int,
        ids: int,
        ends: Container[int],
    ) -> None:
        """`begin` gives the batches from the id of a row on, which is one of `ids`, of the first
        rows of the source, as many as one of `ends`."""
        if not 0 <= index(start_row) <= ids:
            raise IndexError(f"start_row: expected 0 to {ids}, got {start_row}")
        self._source, self._begin, self._ends = source, begin, ends
        self._length, self._ids = len(source), ids
        self._row = index(start_row)
        self._rest: Iterator[RowBatch] | None = None

    def __next__(self) -> RowBatch:
        try:
            if self._rest is None:
                self._rest = self._begin(self._row, self._length)
            batch = next(self._rest)
        except StopIteration:
            raise
        except BaseException:
            self._rest = None
            raise
        self._row = int(batch._ids[-1]) + 1
        return batch

    def close(self) -> None:
        """Stop reading ahead. The next batch starts that again."""
        self._rest = None

    @property
    def row(self) -> int:
        """Rows from this id on have not been handed over yet."""
        return self._row

    def state_dict(self) -> dict[str, Any]:
        """Where the pass stands, and over which rows it goes."""
        identity = {"length": self._length, "fingerprint": self._fingerprint_of(self._length)}
        return {"version": 1, "row": self._row, **identity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken, with any `batch_rows` and dtype, up to the rows that were
        there then. Raises `StateError` naming the field in which the state and the rows differ."""
        length: Any = state.get("length")
        row: Any = state.get("row")
        if not hasattr(length, "__index__") or length not in self._ends:
            raise _differs("length", f"the end of a shard, up to {len(self._source)}", length)
        wanted = {"version": 1, "fingerprint": self._fingerprint_of(index(length))}
        for key, mine in wanted.items():
            if state.get(key) != mine:
                raise _differs(key, repr(mine), state.get(key))
        if not hasattr(row, "__index__") or not 0 <= index(row) <= self._ids:
            raise _differs("row", f"the id of a row, up to {self._ids}", row)
        self._row, self._length, self._rest = index(row), index(length), None

    def _fingerprint_of(self, length: int) -> str:
        return self._source._fingerprint_of(length)


def _differs(key: str, expected: str, got: Any) -> StateError:
    return StateError(f"state {key!r}: expected {expected}, got {got!r}")


class Passed:
    """What is known of a shard once its last rows were read in order."""

    def __init__(self, shards: Corpus) -> None:
        self._shards = shards
        self._crc: int | None = None

    def checked(self, number: int, begin: int, end: int, rows: NDArray[Any]) -> NDArray[Any]:
        """The rows, the last of a shard only if it is as long as it was, and its checksum right."""
        shards = self._shards
        self._crc = shards.check_passed(number, begin, end, self._crc if begin else 0)
        if end == shards.shards[number].rows:
            shards.check_whole(number)
        return rows

"""A source as a dataset of torch's, which reads each batch in one call."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils import data

from stepwell.exchange import as_source
from stepwell.source import Batch, Source
from stepwell.torch.tensors import as_tensors, int64_names


class RowNumbers(list[int]):
    """The rows of a batch, with the epoch that it is of."""

    def __init__(self, rows: Sequence[int], epoch: int) -> None:
        super().__init__(rows)
        self.epoch = epoch


class _RowList(Sequence[dict[str, Any]]):
    """A batch that looks like the list of rows torch collates."""

    def __init__(self, batch: Batch, as_int64: Sequence[str]) -> None:
        self.tensors = as_tensors(batch, as_int64)
        self._lengths = {name: len(values) for name, values in batch.items()}

    def __len__(self) -> int:
        return next(iter(self._lengths.values()))

    def __getitem__(self, i: Any) -> Any:
        if not 0 <= i < len(self):
            raise IndexError(i)
        return {name: _row_of(values, i) for name, values in self.tensors.items()}


def _row_of(values: Any, i: int) -> Any:
    if isinstance(values, tuple):
        flat, offsets = values
        return flat[offsets[i] : offsets[i + 1]]
    return values[i]


def collate(rows: Any) -> Any:
    """`collate_fn` for a `MapDataset`: the batch as it was read, as tensors, without a copy."""
    if isinstance(rows, _RowList):
        return rows.tensors
    return data.default_collate(rows)


class MapDataset(data.Dataset[Any]):
    """A source for torch's DataLoader, which then fetches each batch in one call.

    Give the DataLoader `collate_fn=stepwell.torch.collate`; its default works too, row by
    row. `transform` is applied to whole batches before that; its `in_epoch` is called only by
    the loaders of `stepwell.torch`, which know the epoch. `as_int64` names fields that become
    int64, uint64 with the same bits.
    """

    set_epoch: Callable[[int], None]
    """That of the `DataLoader` which has this dataset, if one of ours has."""

    def __init__(
        self,
        source: Source | Mapping[str, Any] | Any,
        transform: Any = None,
        *,
        as_int64: Sequence[str] = (),
    ) -> None:
        self._source = as_source(source)
        self._transform = transform
        self._as_int64 = int64_names(as_int64, self._source, transform)

    def __len__(self) -> int:
        return len(self._source)

    def __repr__(self) -> str:
        return f"MapDataset({self._source!r})"

    def __getitem__(self, key: Any) -> Any:
        if np.ndim(key) == 0 and not isinstance(key, slice):
            return self.__getitems__([key + len(self) if -len(self) <= key < 0 else key])[0]
        return self.__getitems__(key).tensors

    def __getitems__(self, rows: Any) -> _RowList:
        batch = self._source[rows] if isinstance(rows, slice) else self._source.take(rows)
        transform = self._transform
        if isinstance(rows, RowNumbers) and hasattr(transform, "in_epoch"):
            transform = transform.in_epoch(rows.epoch)
        return _RowList(batch if transform is None else transform(batch), self._as_int64)

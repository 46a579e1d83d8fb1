"""Batches as tensors, and sources inside torch's own loaders.

stepwell.torch.Loader            stepwell's loader, giving tensors, on a device if given
stepwell.torch.MapDataset        a source for torch.utils.data.DataLoader
stepwell.torch.IterableDataset   a loader for DataLoader and StatefulDataLoader
"""

import copy
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from stepwell import _core, loader as _loader
from stepwell.errors import SchemaError
from stepwell.exchange import as_source
from stepwell.source import Batch, Ragged, Source

try:
    import torch
    from torch.utils import data
except ImportError as error:
    raise ImportError("stepwell.torch needs an extra: pip install 'stepwell[torch]'") from error

__all__ = ["IterableDataset", "Loader", "MapDataset", "collate"]


Tensors = dict[str, Any]
"""A tensor for each field; of a ragged one `(values, offsets)`, of text a list of `str`."""


class Loader(_loader.Loader):
    """`stepwell.Loader` whose batches are tensors.

    On the CPU they share memory with the batch. With a CUDA `device`, batches are made in
    pinned memory and copied on a stream of their own, one batch ahead of the consumer.
    """

    def __init__(
        self,
        source: Source | Mapping[str, Any] | Any,
        batch_size: int,
        *,
        device: torch.device | str | int | None = None,
        **options: Unpack[_loader.LoaderOptions],
    ) -> None:
        super().__init__(source, batch_size, **options)
        self._device = torch.device("cpu" if device is None else device)
        if str(self._device) == "cuda":
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._stream: torch.cuda.Stream | None = None
        self._leaving: deque[tuple[torch.cuda.Event, Batch]] = deque()
        if self._device.type == "cuda":
            self._ahead = 2
            self._blocks = self._pinned_blocks()

    def __getstate__(self) -> dict[str, Any]:
        state = {**super().__getstate__(), "_stream": None, "_leaving": deque()}
        state.pop("_blocks", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._device.type == "cuda":
            self._blocks = self._pinned_blocks()

    def _pinned_blocks(self) -> _core.BlockPool:
        """Enough pinned memory for every batch that can be under way at once."""
        pool = _core.BlockPool(0)
        if self._source._reader is not None:
            size = self._source._reader.layout(self._batch_size)[-1]
            for _ in range(self._prefetch + self._threads + self._ahead + 2):
                memory = torch.empty(max(size, 1), dtype=torch.uint8, pin_memory=True)
                pool.donate(memory.numpy())
        return pool

    def _start(self, batch: Batch) -> Any:
        tensors = as_tensors(batch)
        if self._device.type == "cpu":
            return tensors
        if self._device.type != "cuda":
            return _each(tensors, lambda t: t.to(self._device))
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        block = _block_of(batch)
        if block is None:
            tensors = _each(tensors, lambda t: t.pin_memory())
        # The device's memory belongs to the consumer's stream, where it is freed in order; the
        # copy therefore waits for what that stream has been given so far, not for the work
        # on the batch that is handed over next.
        consumer = torch.cuda.current_stream(self._device)
        if block is None:
            copies = _each(tensors, lambda t: torch.empty_like(t, device=self._device))
            pairs = [pair for name in tensors for pair in _pairs(copies[name], tensors[name])]
        else:  # one copy for all fields
            there = torch.empty(len(block), dtype=torch.uint8, device=self._device)
            here = torch.from_numpy(block)
            copies = {name: _within(there, here, t) for name, t in tensors.items()}
            pairs = [(there, here)]
        self._stream.wait_stream(consumer)
        with torch.cuda.stream(self._stream):
            for to, values in pairs:
                to.copy_(values, non_blocking=True)
        arrived = self._stream.record_event()
        return copies, arrived, tensors

    def _finish(self, started: Any) -> Any:
        if self._device.type != "cuda":
            return started
        copies, arrived, host = started
        torch.cuda.current_stream(self._device).wait_event(arrived)
        # The host memory is used again only once the copy has left it.
        while self._leaving and self._leaving[0][0].query():
            self._leaving.popleft()
        self._leaving.append((arrived, host))
        return copies

    def _stop(self) -> None:
        if self._stream is not None and self._started:
            self._stream.synchronize()  # copies under way into memory that is freed now
        super()._stop()


def as_tensors(batch: Batch) -> dict[str, Any]:
    """Tensors over the memory of a batch; a `Ragged` becomes `(values, offsets)`, text a list."""
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"expected a dict of arrays, as a transform too must give, got {type(batch)}"
        )
    return {name: _as_tensor(name, values) for name, values in batch.items()}


def _as_tensor(name: str, values: Any) -> Any:
    if isinstance(values, Ragged) and values.kind == "str":
        return values.to_list()
    if isinstance(values, Ragged):
        return _as_tensor(name, values.values), _as_tensor(name, values.offsets)
    if isinstance(values, torch.Tensor):
        return values
    try:
        return torch.from_numpy(values)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"field {name!r}: torch has no tensors of {values.dtype}") from error


def _block_of(batch: Batch) -> NDArray[np.uint8] | None:
    """The block that native threads put this batch into, when they did."""
    bases = [getattr(values, "base", None) for values in batch.values()]
    first = bases[0]
    if isinstance(first, np.ndarray) and first.dtype == np.uint8 and first.ndim == 1:
        return first if all(base is first for base in bases) else None
    return None


def _within(there: torch.Tensor, here: torch.Tensor, field: torch.Tensor) -> torch.Tensor:
    """The part of `there`, a copy of `here`, that `field` is of `here`."""
    begin = field.data_ptr() - here.data_ptr()
    part = there[begin : begin + field.numel() * field.element_size()]
    return part.view(field.dtype).view(field.shape)


def _each(batch: dict[str, Any], fn: Any) -> dict[str, Any]:
    def applied(value: Any) -> Any:
        if isinstance(value, list):  # text stays where it is
            return value
        return tuple(map(fn, value)) if isinstance(value, tuple) else fn(value)

    return {name: applied(value) for name, value in batch.items()}


def _pairs(there: Any, here: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What is to be copied of a field: nothing of text, two tensors of a ragged one."""
    if isinstance(here, list):
        return []
    return list(zip(there, here, strict=True)) if isinstance(here, tuple) else [(there, here)]


class _RowList(Sequence[dict[str, Any]]):
    """A batch that looks like the list of rows torch collates."""

    def __init__(self, batch: Batch) -> None:
        self.tensors = as_tensors(batch)
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
    row. `transform` is applied to whole batches before that.
    """

    def __init__(self, source: Source, transform: Any = None) -> None:
        self._source = as_source(source)
        self._transform = transform

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
        return _RowList(batch if self._transform is None else self._transform(batch))


class IterableDataset(data.IterableDataset[Any]):
    """A `stepwell.Loader` for torch's DataLoader (`batch_size=None`) and StatefulDataLoader.

    Takes the loader's arguments and gives whole batches of tensors, the same ones in the
    same order with any number of worker processes. `state_dict` and `load_state_dict` follow
    torchdata's protocol. DataLoader makes new workers for each epoch: call `set_epoch` before
    it, or they repeat the first one.
    """

    def __init__(
        self,
        source: Source | Mapping[str, Any] | Any,
        batch_size: int,
        *,
        device: torch.device | str | int | None = None,
        **options: Unpack[_loader.LoaderOptions],
    ) -> None:
        self._loader = Loader(source, batch_size, device=device, **options)
        self._mine: tuple[int, Loader] | None = None  # a worker's process, and its loader

    def __len__(self) -> int:
        return len(self._loader)

    def __repr__(self) -> str:
        return f"IterableDataset({self._loader!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mine": None}

    def __iter__(self) -> Iterator[Tensors]:
        return iter(self._local())

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; nothing happens when the loader is in it already."""
        self._local().set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader of this process stands, for StatefulDataLoader."""
        return self._local().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken, exactly."""
        self._local().load_state_dict(state)

    def _local(self) -> Loader:
        """The loader of this process: a worker's makes every Nth batch."""
        worker = data.get_worker_info()
        if worker is None:
            return self._loader
        if self._mine is None or self._mine[0] != os.getpid():  # a fork brings its parent's
            loader = copy.copy(self._loader)
            loader._worker = (worker.id, worker.num_workers)
            loader._begin = loader._schedule(0, 0)
            self._mine = (os.getpid(), loader)
        return self._mine[1]


_loader.show_options(IterableDataset, Loader)

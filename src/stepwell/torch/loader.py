"""stepwell's loader with tensors as batches, which looks like torch's where a framework looks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Unpack

import torch
from torch.utils import data

from stepwell import _core, loader as _loader
from stepwell.engine import NOWHERE, Delivery, Engine, NativeEngine
from stepwell.feed import make_feed
from stepwell.sampler import Sequential
from stepwell.source import Batch, Source
from stepwell.torch import sharing
from stepwell.torch.counting import CountedLoop, gradient_state
from stepwell.torch.dataset import MapDataset, RowNumbers, collate
from stepwell.torch.feed import CudaEngine, device_number
from stepwell.torch.resident import Resident, ResidentEngine
from stepwell.torch.static import StaticBatch
from stepwell.torch.tensors import Signed, Tensors, int64_names, signed, signed_types, tensors_of

_OF_TORCH = {"generator", "multiprocessing_context", "persistent_workers", "pin_memory", "timeout"}
"""What frameworks look up in a DataLoader in order to make another of it."""


class Loader(_loader.Loader):
    """`stepwell.Loader` whose batches are tensors.

    On the CPU they share memory with the batch. With a CUDA `device`, native threads copy
    batches there ahead of the consumer, and `next` has the current stream wait for the one that
    it hands out. A batch is the caller's for as long as a tensor over it is there; its memory is
    used again behind the work of that stream, and of those that `record_stream` names.
    uint16 and uint32 become int32 and int64, which torch computes with; fields named in
    `as_int64` become int64, uint64 with the same bits. A `transform` sees the source's types.

    Frameworks find what they look for in a DataLoader: Lightning sets the epoch of `sampler`,
    accelerate and transformers skip batches by `dataset`, `batch_sampler` and `collate_fn`. The
    loader finds its rank itself, so nothing is to be prepared or given a sampler.
    """

    def __init__(
        self,
        source: Source | Mapping[str, Any] | Any,
        batch_size: int,
        *,
        device: torch.device | str | int | None = None,
        as_int64: Sequence[str] = (),
        **options: Unpack[_loader.LoaderOptions],
    ) -> None:
        super().__init__(source, batch_size, **options)
        self._as_int64 = int64_names(as_int64, self._source, self._transform)
        self._static = StaticBatch()
        self._by_rows = False  # the loop under way is one over row numbers
        self._began_at = 0  # where the loop under way did
        self._resident = self._source if isinstance(self._source, Resident) else None
        if self._resident is not None:
            device = self._resident._at(device)
        self._device = torch.device("cpu" if device is None else device)
        if self._device.type == "cuda" and self._resident is None:
            self._device = torch.device("cuda", device_number(self._device))
        self._feed: _core.CudaFeed | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_feed": None, "_static": StaticBatch()}

    # What a DataLoader has.

    @property
    def dataset(self) -> MapDataset:
        """The rows, for frameworks that read the batches of `batch_sampler` themselves."""
        return MapDataset(self._source, self._transform, as_int64=self._as_int64)

    @property
    def drop_last(self) -> bool:
        """Whether the tail of an epoch is left out."""
        return self._drop_last

    @property
    def num_workers(self) -> int:
        """0: threads make the batches, not processes."""
        return 0

    @property
    def prefetch_factor(self) -> None:
        """None: there are no worker processes."""

    @property
    def sampler(self) -> "RankSampler":
        """The rows of this rank, one by one, and a `set_epoch`; `order` is stepwell's own."""
        sequential = isinstance(self._sampler, Sequential)
        return (_SequentialRankSampler if sequential else RankSampler)(self)

    @property
    def batch_sampler(self) -> "RankBatchSampler":
        """The rows of each batch of this rank; a loop over them is one of the loader's."""
        return RankBatchSampler(self)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_TORCH:
            raise AttributeError(
                f"a stepwell.torch.Loader has no {name!r}: it finds its rank itself, and needs no "
                "preparing; where a framework insists on torch's class, "
                "stepwell.torch.DataLoader(source, batch_size) is one"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def collate_fn(self, rows: Any) -> Tensors:
        """What a batch read out of `dataset` becomes: tensors on the device."""
        batch: Tensors = collate(rows)
        return _each(batch, lambda tensor: tensor.to(self._device))

    def __iter__(self) -> Iterator[Batch]:
        """A loop over the next epoch, or over the rest of a loaded one, which accelerate sees."""
        return CountedLoop(self) if self._given is None and gradient_state() else super().__iter__()

    def static_batches(self) -> Iterator[Tensors]:
        """A loop whose batches are the same tensors each time, which a CUDA graph can be made of.

        Each batch is copied into them on the current stream, when it comes. They stay the same
        for as long as the loader lives. Raises `ValueError` where the last batch of an epoch is a
        smaller one.
        """
        whole = self._batch_size * self._find().size
        tail = self._order.length % whole
        if tail and not self._drop_last and self._order.length > whole:
            raise ValueError(
                f"static_batches: expected batches of one size, the last of an epoch has {tail} "
                f"rows instead of {whole}; drop_last=True leaves it out"
            )
        return self._static_loop()

    def _static_loop(self) -> Iterator[Tensors]:
        loop = iter(self)
        while True:
            engine = self._engine
            if engine is not None:
                engine.into = self._static.place
            try:
                batch = next(loop)
            except StopIteration:
                return
            finally:
                if engine is not None:
                    engine.into = NOWHERE
            yield self._static.filled(batch, self._engine if self._transform is None else None)

    def _begin_loop(self) -> int:
        steps = super()._begin_loop()
        self._began_at = self._position
        return steps

    # How batches are made.

    def _read_from(self) -> Source:
        types = signed_types(self._source.schema, () if self._transform else self._as_int64)
        return Signed(self._source, types) if types else self._source

    def _next(self, failed: BaseException | None = None) -> Any:
        if self._by_rows != isinstance(self._engine, _RowEngine):
            self._stop()
        return super()._next(failed)

    def _make_engine(self) -> Engine:
        if self._by_rows:
            return _RowEngine(self)
        if self._resident is not None:
            return ResidentEngine(self, self._resident)
        # ROCm calls its devices cuda as well, and has another driver. Rows from far away are waited
        # for in Python.
        is_far = self._source._units() is not None
        if self._device.type != "cuda" or torch.version.hip is not None or is_far:
            return super()._make_engine()
        source, order = self._read_from(), self._order
        reader = source._reader
        if reader is None or self._transform is not None or not isinstance(order, _core.Order):
            return super()._make_engine()
        if self._feed is None:
            self._feed = make_feed(
                self._device.index,
                source.schema,
                self._batch_size,
                threads=self._threads,
                prefetch=self._prefetch,
            )
        return CudaEngine(self, reader, order, self._feed, self._of_arrays)

    def _start(self, batch: Batch) -> Any:
        if isinstance(self._engine, _RowEngine | CudaEngine | ResidentEngine):
            return batch
        if isinstance(self._engine, NativeEngine):
            return self._of_arrays(batch)
        return _moved(batch, self._device, self._as_int64)

    @property
    def _of_arrays(self) -> Callable[[Batch], Tensors]:  # type: ignore[override]
        """On the CPU as they are: threads have made the types right."""
        if self._device.type == "cpu":
            return tensors_of
        return partial(_moved, device=self._device, as_int64=self._as_int64)

    def record_stream(self, batch: Mapping[str, Any], stream: "torch.cuda.Stream") -> None:
        """Have the memory of a batch used again behind the work of this stream as well.

        For work on a stream other than the one that was current at `next`, as
        `torch.Tensor.record_stream` is for torch's own memory. Tensors over a part of a batch
        will do.
        """
        for values in batch.values():
            for tensor in values if isinstance(values, tuple) else (values,):
                if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda:
                    continue
                known = self._feed is not None and self._feed.record_stream(
                    tensor.data_ptr(), stream.cuda_stream
                )
                if not known:
                    tensor.record_stream(stream)


def _moved(batch: Batch, device: torch.device, as_int64: Sequence[str]) -> Tensors:
    """A batch that was made in Python, as tensors on the device."""
    tensors = tensors_of(signed(batch, as_int64))
    if device.type == "cpu":
        return tensors
    if device.type != "cuda":
        return _each(tensors, lambda t: t.to(device))
    # torch keeps pinned memory until the copy has left it.
    return _each(tensors, lambda t: t.pin_memory().to(device, non_blocking=True))


def _each(batch: dict[str, Any], fn: Any) -> dict[str, Any]:
    def applied(value: Any) -> Any:
        if isinstance(value, list):  # text stays where it is
            return value
        return tuple(map(fn, value)) if isinstance(value, tuple) else fn(value)

    return {name: applied(value) for name, value in batch.items()}


class _RowEngine(Engine):
    """Gives the rows of each batch, for those who read them; nothing is ahead of the consumer."""

    def next(self) -> Delivery:
        epoch, start, count, after, stride = self._schedule.step(next(self._numbers))
        rows = self._rows(epoch, start, count, stride)
        return Delivery(RowNumbers(rows.tolist(), epoch), epoch, after)

    def close(self) -> None: ...


class RankBatchSampler(data.Sampler[list[int]]):
    """The row numbers of each batch of a loader. A loop over them is a loop of the loader: it
    begins the next epoch, moves `state_dict`, and ends with the next loop."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.batch_size, self.drop_last = loader.batch_size, loader.drop_last

    @property
    def sampler(self) -> "RankSampler":
        """The rows one by one."""
        return self._loader.sampler

    def set_epoch(self, epoch: int) -> None:
        """Have the next loop begin this epoch."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        shares, given = sharing.reader().shares, self._loader._given
        if shares is not None and (given is None or given.size > 1):
            raise sharing.shared_twice(shares)
        loop = iter(self._loader)
        while True:
            self._loader._by_rows = True
            try:
                rows: Any = next(loop, None)
            finally:
                self._loader._by_rows = False
            if rows is None:
                return
            yield rows


class RankSampler(data.Sampler[int]):
    """The row numbers of a loader's rank, one by one. Frameworks call its `set_epoch`."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Have the next loop begin this epoch."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        loader, steps = self._loader, len(self._loader)
        last = loader._schedule(0, 0, loader._find()).step(steps - 1)[2] if steps else 0
        return max(steps - 1, 0) * loader.batch_size + last

    def __iter__(self) -> Iterator[int]:
        for rows in self._loader.batch_sampler:
            yield from rows


class _SequentialRankSampler(RankSampler, data.SequentialSampler):
    """Lightning wants to see from the class that rows are not shuffled."""

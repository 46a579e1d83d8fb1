"""What makes the batches of a loader, in order, ahead of the consumer."""

import atexit
import itertools
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import numpy as np

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.source import Batch, Rows, Source

if TYPE_CHECKING:
    from stepwell.loader import Loader
    from stepwell.sampler import Order


class Delivery(NamedTuple):
    """A batch, and where the loader stands once it is handed over."""

    batch: Any
    epoch: int
    position: int
    left_out: Mapping[int, FormatError] = MappingProxyType({})
    """Damaged rows that are not in the batch."""


Step = tuple[int, int, int, int, int]
"""Epoch, start, count, global position after it, and stride: `count` positions from `start` on,
every stride-th, around the end of the epoch."""


class Place(NamedTuple):
    """Memory on a device for a batch, and the rows of that batch."""

    address: int
    rows: int


NOWHERE = Place(0, 0)


class Engine(ABC):
    """Makes the batches of a schedule, in order, ahead of time.

    It has what it needs of a loader, not the loader: that has the engine.
    """

    def __init__(self, loader: "Loader") -> None:
        self.process = os.getpid()
        self._source, self._order = loader._source, loader._order
        self._transform, self._skip = loader._transform, loader._on_corrupt == "skip"
        self._schedule = loader._schedule(*loader._reached)
        self._numbers = itertools.count()
        self.step: Step = (0, 0, 0, 0, 1)  # of the last `next`

    @abstractmethod
    def next(self) -> Delivery:
        """The next batch. What making it raised is raised here, with a note of the batch."""

    @property
    def quick(self) -> Callable[[], tuple[Any, Step]] | None:
        """Gives the next batch, with nothing left to do, and its step; what it raises is for
        `failed`. None where only `next` makes batches.

        A step of training leaves none of our code in the caches of a processor, so the usual way
        is a short one.
        """
        return None

    into: Place = NOWHERE
    """Where to put batches, of which `quick` then gives None; for engines that can."""

    def failed(self, error: BaseException) -> Delivery:
        """What to hand over in the place of the batch for which `quick` raised an error."""
        raise error

    @abstractmethod
    def close(self) -> None:
        """Stop the threads, without waiting for those that are in Python."""

    def _failed(self, error: BaseException, number: int) -> Delivery:
        """What to hand over in the place of batch `number`, of those of the core."""
        self.step = self._schedule.step(max(number, 0))
        if isinstance(error, FormatError) and self._skip:
            return self._delivery(*self.step)
        if isinstance(error, Exception):
            error.add_note(note(*self.step))
        raise error

    def _result(self, made: Future[Delivery]) -> Delivery:
        """What a thread made of the step, or its error."""
        try:
            return made.result()
        except Exception as error:
            error.add_note(note(*self.step))
            raise

    def _delivery(self, epoch: int, start: int, count: int, after: int, stride: int) -> Delivery:
        """A batch made in Python."""
        rows = self._rows(epoch, start, count, stride)
        left_out: dict[int, FormatError] = {}
        try:
            batch = self._source.take(rows)
        except FormatError:
            if not self._skip:
                raise
            batch = self._source.take(np.concatenate(list(self._sound(rows, left_out))))
        if self._transform is not None:
            # Batches of the next epoch are made while the last ones of this are still handed over,
            # so a transform cannot be told the epoch from outside.
            of_epoch = getattr(self._transform, "in_epoch", None)
            batch = self._transform(batch) if of_epoch is None else of_epoch(epoch)(batch)
        return Delivery(batch, epoch, after, left_out)

    def _rows(self, epoch: int, start: int, count: int, stride: int) -> Rows:
        return rows_of(self._order, epoch, start, count, stride)

    def _sound(self, rows: Rows, left_out: dict[int, FormatError]) -> Iterator[Rows]:
        """The rows that can be read, found by halving; the others are put into `left_out`."""
        try:
            self._source.take(rows)
            yield rows
        except FormatError as error:
            if len(rows) > 1:
                yield from self._sound(rows[: len(rows) // 2], left_out)
                yield from self._sound(rows[len(rows) // 2 :], left_out)
            else:
                left_out[int(rows[0])] = error
                yield rows[:0]


class NativeEngine(Engine):
    """Row numbers, reads, buffers and the arrays over them are the core's.

    `made` is what the consumer gets of these arrays.
    """

    def __init__(
        self,
        loader: "Loader",
        source: Source,
        reader: _core.Reader,
        order: _core.Order,
        made: Callable[[Batch], Any] | None = None,
    ) -> None:
        super().__init__(loader)
        layout = source._batch_layout
        assert layout is not None
        self._source, self._layout = source, layout
        self._prefetch = _core.Prefetch(
            reader, order, self._schedule, loader._blocks, loader._threads, loader._prefetch
        )
        self._made = made

    @property
    def quick(self) -> Callable[[], tuple[Any, Step]]:
        return self._next

    def _next(self) -> tuple[Any, Step]:
        batch, step = self._prefetch.next(self._layout)
        return (batch if self._made is None else self._made(batch)), step

    def next(self) -> Delivery:
        try:
            batch, self.step = self._prefetch.next(self._layout)
        except Exception as error:
            return self.failed(error)
        return Delivery(batch, self.step[0], self.step[3])

    def failed(self, error: BaseException) -> Delivery:
        return self._failed(error, self._prefetch.delivered - 1)

    def close(self) -> None:
        self._prefetch.close()


class FeedEngine(Engine):
    """Rows, reads and copies in the core's threads; Python only makes tensors of capsules.

    Small batches come in groups. `stream` gives the stream that the consumer works on, None where
    there is none to know, and `tensor` what the framework makes of a DLPack capsule.
    """

    def __init__(
        self,
        loader: "Loader",
        reader: _core.Reader,
        order: _core.Order,
        feed: _core.CudaFeed,
        stream: Callable[[], int | None],
        tensor: Callable[[Any], Any],
    ) -> None:
        super().__init__(loader)
        self._feed, self._stream, self._tensor = feed, stream, tensor
        threads, depth = loader._threads, loader._prefetch
        self._loop: _core.CudaLoop | None = _core.CudaLoop(
            feed, reader, order, self._schedule, threads, depth
        )
        self._group: _core.CudaGroup | None = None
        self._streams: set[int | None] = set()  # that wait for it
        self._steps: list[Step] = []  # of its batches that were not handed over, the next one last
        self._count = 0  # of all its batches
        _feeding.add(self)

    @abstractmethod
    def _moved(self, batch: Batch) -> Any:
        """A batch that was read in Python, on the device."""

    @property
    def quick(self) -> Callable[[], tuple[Any, Step]]:
        return self._next

    def _next(self) -> tuple[Any, Step]:
        if not self._steps:
            self._next_group()
        elif self._stream() not in self._streams:
            self._follow()
        step, group = self._steps.pop(), self._group
        number = self._count - len(self._steps) - 1
        assert group is not None
        if self.into.rows == step[2]:
            group.put(number, self.into.address, self._stream() or 0)
            return None, step
        return group.batch(number, self._tensor), step

    def next(self) -> Delivery:
        try:
            batch, self.step = self._next()
        except Exception as error:
            return self.failed(error)
        return Delivery(batch, self.step[0], self.step[3])

    def failed(self, error: BaseException) -> Delivery:
        if self._loop is None:
            raise error
        made = self._failed(error, self._loop.delivered - len(self._steps) - 1)
        return made._replace(batch=self._moved(made.batch))

    def close(self) -> None:
        """Stop the threads, wait for the batches that they are at, and free what no batch is in."""
        loop, self._loop, self._group = self._loop, None, None
        self._steps = []
        if loop is not None:
            loop.close()
            del loop  # which waits
            self._feed.trim()

    # Groups.

    def _next_group(self) -> None:
        if self._loop is None:
            raise RuntimeError("the loader was closed")
        stream, self._group = self._stream(), None
        self._group = self._loop.next(stream)
        self._steps, self._streams = self._group.steps[::-1], {stream}
        self._count = len(self._steps)

    def _follow(self) -> None:
        stream = self._stream()
        assert self._group is not None
        self._group.follow(stream)
        self._streams.add(stream)


_feeding: "WeakSet[FeedEngine]" = WeakSet()


@atexit.register
def _close_feeding() -> None:
    """Threads must not be inside of the driver when it ends."""
    for engine in list(_feeding):
        engine.close()


class PythonEngine(Engine):
    """Reads and transforms in a pool of Python threads."""

    def __init__(self, loader: "Loader") -> None:
        super().__init__(loader)
        self._pool = ThreadPoolExecutor(loader._threads, thread_name_prefix="stepwell")
        self._depth = loader._prefetch
        self._pending: deque[tuple[Step, Future[Delivery]]] = deque()

    def next(self) -> Delivery:
        while len(self._pending) < self._depth:
            step = self._schedule.step(next(self._numbers))
            self._pending.append((step, self._pool.submit(self._delivery, *step)))
        self.step, made = self._pending.popleft()
        return self._result(made)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def rows_of(order: "Order", epoch: int, start: int, count: int, stride: int) -> Rows:
    """Rows of `count` positions from `start` on, around the end of the epoch."""
    parts, every = [], () if stride == 1 else (stride,)
    while count > 0:
        part = min(count, (order.length - 1 - start) // stride + 1)
        parts.append(order.rows(epoch, start, part, *every))  # only ours have strides
        if len(parts[-1]) != part:
            raise ValueError(f"expected {part} rows of the sampler, got {len(parts[-1])}")
        count, start = count - part, (start + part * stride) % order.length
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def note(epoch: int, start: int, count: int, _: int, stride: int) -> str:
    every = "" if stride == 1 else f", and every {stride} positions from there,"
    return f"in the batch of {count} rows at position {start}{every} of epoch {epoch}"

"""When batches are made: ahead of the consumer, in order, by native threads.

    for batch in Loader(source, 4096, seed=7): ...     one epoch, the next loop the next one

A loader is a position: epoch and row. It moves when a batch is handed over, whatever has
been prefetched, and the order of rows depends on neither threads, batch size nor world. So
`state_dict` is a handful of numbers, and a run resumes exactly with all of those changed.
"""

import inspect
import operator
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import Any, Literal, TypedDict

from stepwell import _core
from stepwell.description import html
from stepwell.engine import Delivery, Engine, NativeEngine, PythonEngine
from stepwell.errors import FormatError, StateError
from stepwell.exchange import as_source
from stepwell.sampler import Order, Sampler, Sequential, Shuffle, check_sampler
from stepwell.source import Batch, Closing, Source

Transform = Callable[[Batch], Batch]
_UNKNOWN = "unknown"  # as the fingerprint of a source that is damaged


class LoaderOptions(TypedDict, total=False):
    """The options of a `Loader`, for loaders of frameworks that hand them on."""

    shuffle: bool
    seed: int
    sampler: Sampler | None
    drop_last: bool
    rank: int | None
    world_size: int | None
    threads: int | None
    prefetch: int
    transform: Transform | None
    on_corrupt: Literal["raise", "skip"]


class Loader(Closing):
    """Batches of a source, of whatever `as_source` makes one of, or of several named ones read
    with the same rows.

    `shuffle` and `seed` are short for `sampler=Shuffle(seed)` or `Sequential()`. `rank` and
    `world_size` come from torch.distributed, JAX or RANK and WORLD_SIZE when they are not
    given; each rank reads its own part of every global batch. The tail of an epoch is a
    short batch, or, with several ranks, shared out so that all get equal ones; `drop_last`
    leaves it out.

    A loop that is left early is continued by the next one. `transform` is applied to each
    batch in one of several threads, so batches reach it in no fixed order; one that has a method
    `in_epoch(epoch)` is called for the transform of the batch's epoch, which it gives without
    changing itself. With `on_corrupt="skip"` damaged rows are left out of their batch and
    listed in `corrupt` once that batch is handed over.
    """

    def __init__(
        self,
        source: Source | Mapping[str, Any] | Any,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        sampler: Sampler | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        threads: int | None = None,
        prefetch: int = 4,
        transform: Transform | None = None,
        on_corrupt: Literal["raise", "skip"] = "raise",
    ) -> None:
        if sampler is not None:
            check_sampler(sampler)
            if seed != 0 or not shuffle:
                raise ValueError("give either a sampler or shuffle and seed")
        if on_corrupt not in ("raise", "skip"):
            raise ValueError(f"on_corrupt: expected 'raise' or 'skip', got {on_corrupt!r}")
        if (rank is None) != (world_size is None):
            raise ValueError("give both rank and world_size, or neither")
        if rank is None or world_size is None:
            rank, world_size = _find_world()
        self._source = as_source(source)
        self._sampler = sampler or (Shuffle(seed) if shuffle else Sequential())
        self._order: Order = self._sampler.order(len(self._source))
        self._batch_size = _whole("batch_size", batch_size)
        self._drop_last = bool(drop_last)
        self._rank, self._world_size = _whole("rank", rank, 0), _whole("world_size", world_size)
        self._worker = (0, 1)  # this process among those that serve the rank, and their number
        self._threads = _whole("threads", _core.usable_cores() if threads is None else threads)
        self._prefetch = _whole("prefetch", prefetch)
        self._transform = transform
        self._on_corrupt = on_corrupt
        self._epoch = 0
        self._position = 0
        self._corrupt: dict[int, FormatError] = {}
        self._engine: Engine | None = None
        self._started: deque[Delivery | Exception] = deque()
        self._loops = 0  # begun or ended so far; a loop that is not the last one is over
        self._at_end = False  # the epoch's last batch was handed over here, its loop goes on
        self._turn = Lock()  # one thread at a time moves the loader
        self._begin = self._schedule(0, 0)

    # The loop.

    def __len__(self) -> int:
        """Batches in a whole epoch, on each rank."""
        return self._begin.steps_from(0)

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the current epoch; a new loop ends the one before it."""
        if self._at_end:
            self._epoch, self._position, self._at_end = self._epoch + 1, 0, False
        self._loops += 1
        return _Epoch(self, self._loops)

    def forever(self) -> Iterator[Batch]:
        """Epoch after epoch, without end."""
        while True:
            yield from self

    @property
    def source(self) -> Source:
        """Where rows come from: what was given, or a source of the arrays that were given."""
        return self._source

    @property
    def batch_size(self) -> int:
        """Rows in a batch of this rank; the last one of an epoch may have fewer."""
        return self._batch_size

    @property
    def order(self) -> Order:
        """Which row is at which position of an epoch: `order.rows(epoch, start, count)`."""
        return self._order

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._epoch

    @property
    def position(self) -> int:
        """How far this epoch is: rows that were handed over, those of other ranks included."""
        return self._position

    @property
    def remaining(self) -> int:
        """Batches that this rank still gets in this epoch."""
        return self._begin.steps_from(self._position)

    @property
    def corrupt(self) -> list[tuple[int, FormatError]]:
        """Rows that `on_corrupt="skip"` left out of batches handed over, each with its error."""
        return list(self._corrupt.items())

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch; nothing happens when the loader is in it already.

        So a loop over epochs that calls this, as torch's samplers want it, resumes exactly.
        """
        epoch = _whole("epoch", epoch, 0)
        if epoch != self._epoch:
            self._move(epoch, 0)

    def close(self) -> None:
        """Stop the threads. A later loop starts them again."""
        self._stop()

    # The state.

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: plain numbers and strings, the same on every rank."""
        return {**self._identity(), "epoch": self._epoch, "position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken, exactly.

        Raises `StateError` naming the field in which the state and this loader differ.
        Threads, batch size and world may be others than they were.
        """
        for key, mine in self._identity().items():
            if key not in state:
                raise StateError(f"state has no {key!r}")
            if state[key] != mine and not (key == "fingerprint" and _UNKNOWN in (state[key], mine)):
                raise StateError(f"state {key!r}: expected {mine!r}, got {state[key]!r}")
        for key, max_ in (("epoch", 2**64 - 1), ("position", self._order.length)):
            value: Any = state.get(key)
            if not hasattr(value, "__index__") or not 0 <= operator.index(value) <= max_:
                raise StateError(f"state {key!r}: expected 0 to {max_}, got {value!r}")
        self._move(operator.index(state["epoch"]), operator.index(state["position"]))

    def _fingerprint(self) -> str:
        """That of the source, unless rows that it is made of are damaged and to be skipped."""
        try:
            return self._source.fingerprint
        except FormatError:
            if self._on_corrupt != "skip":
                raise
            return _UNKNOWN

    def _identity(self) -> dict[str, Any]:
        return {
            "version": 1,
            "sampler": self._sampler.name,
            "seed": int(self._sampler.seed),
            "length": len(self._source),
            "fingerprint": self._fingerprint(),
        }

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_engine": None, "_started": deque()}
        del state["_order"], state["_begin"], state["_turn"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._turn = Lock()
        self._order = self._sampler.order(len(self._source))
        self._begin = self._schedule(0, 0)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._source!r}, batch_size={self._batch_size}, "
            f"sampler={self._sampler!r}, rank={self._rank} of {self._world_size}, "
            f"epoch={self._epoch}, position={self._position})"
        )

    def _repr_html_(self) -> str:
        about = ("source", "batch_size", "epoch", "position", "remaining")
        facts = {name: getattr(self, name) for name in about}
        return html(type(self).__name__, {**facts, "sampler": self._sampler, "batches": len(self)})

    # What a framework's loader changes.

    def __init_subclass__(cls) -> None:
        show_options(cls, Loader)

    _ahead = 1
    """Batches begun before the first of them is handed over."""

    _blocks: _core.BlockPool = _core.shared_blocks()
    """Where native threads get memory from."""

    def _start(self, batch: Batch) -> Any:
        """Begin to turn a batch into what the consumer gets."""
        return batch

    def _finish(self, started: Any) -> Any:
        """What the consumer gets."""
        return started

    # Moving on.

    def _schedule(self, epoch: int, position: int) -> _core.Schedule:
        return _core.Schedule(
            self._order.length,
            self._batch_size,
            self._rank,
            self._world_size,
            self._drop_last,
            epoch,
            position,
            *self._worker,
        )

    def _move(self, epoch: int, position: int) -> None:
        self._stop()
        self._loops += 1
        self._at_end = False
        self._epoch, self._position = epoch, position

    def _stop(self) -> None:
        engine, self._engine = self._engine, None
        self._started.clear()
        if engine is not None:
            engine.close()

    def _next(self) -> Any:
        """The next batch of the current epoch, which has one."""
        if self._engine is None or self._engine.process != os.getpid():
            self._started.clear()
            self._engine = self._make_engine()
        try:
            while len(self._started) < self._ahead:
                try:
                    batch, epoch, position, left_out = self._engine.next()
                    begun = Delivery(self._start(batch), epoch, position, left_out)
                    self._started.append(begun)
                except Exception as error:
                    self._started.append(error)  # raised when its turn comes
                    break
            delivery = self._started.popleft()
            if isinstance(delivery, Exception):
                raise delivery
            finished = self._finish(delivery.batch)
        except BaseException as error:
            self._stop()  # the next call begins again at the batch that was not handed over
            if isinstance(error, StopIteration):  # it would end the loop as if all were well
                raise RuntimeError("a source or transform raised StopIteration") from error
            raise
        self._epoch, self._position = delivery.epoch, delivery.position
        self._corrupt.update(delivery.left_out)
        self._at_end = self._begin.steps_from(self._position) == 0
        return finished

    def _make_engine(self) -> Engine:
        reader, order = self._source._reader, self._order
        if reader is None or self._transform is not None or not isinstance(order, _core.Order):
            return PythonEngine(self)
        return NativeEngine(self, reader, order)


class _Epoch(Iterator[Any]):
    """One loop: the batches from where the loader stands to the end of its epoch."""

    def __init__(self, loader: Loader, number: int) -> None:
        self._loader = loader
        self._number = number
        self._over = False

    def __next__(self) -> Any:
        loader = self._loader
        with loader._turn:
            if self._over:
                raise StopIteration
            if loader._loops != self._number:
                raise RuntimeError("this loop was ended: the loader has begun another or was moved")
            if loader._begin.steps_from(loader._position) == 0:
                self._over = True
                loader._epoch, loader._position, loader._at_end = loader._epoch + 1, 0, False
                raise StopIteration
            return loader._next()


def show_options(cls: type[Any], base: type[Any]) -> None:
    """Have `help` show the options that a constructor hands on to that of `base`."""
    own = list(inspect.signature(cls.__init__).parameters.values())
    if own[-1].kind is inspect.Parameter.VAR_KEYWORD:
        taken = {each.name for each in own}
        more = inspect.signature(base.__init__).parameters.values()
        named = [each for each in more if each.kind is inspect.Parameter.KEYWORD_ONLY]
        own[-1:] = [each for each in named if each.name not in taken]
        cls.__init__.__signature__ = inspect.Signature(own, return_annotation=None)


def _whole(name: str, value: Any, min_: int = 1) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    number = operator.index(value)
    if not min_ <= number < 2**63:
        raise ValueError(f"{name} must be at least {min_}, got {number}")
    return number


def _find_world() -> tuple[int, int]:
    """Rank and world of this process, from whichever framework has set them up."""
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        return torch.get_rank(), torch.get_world_size()
    jax = sys.modules.get("jax")
    if jax is not None and jax.distributed.is_initialized():
        return jax.process_index(), jax.process_count()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return 0, 1

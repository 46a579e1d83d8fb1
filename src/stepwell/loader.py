"""When batches are made: ahead of the consumer, in order, by native threads.

    for batch in Loader(source, 4096, seed=7): ...     one epoch, the next loop the next one

A loop begins at its first `next`: there its epoch is settled, and the rank that reads. The
loader's position moves when a batch is handed over, whatever has been prefetched, and the order
of rows depends on neither threads, batch size nor world. So `state_dict` is a handful of numbers,
and a run resumes exactly with all of those changed.
"""

import operator
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from threading import Lock
from typing import Any, Literal, TypedDict

from stepwell import _core, ranks
from stepwell.ahead import AheadEngine
from stepwell.constructors import one_source, show_options as show_options
from stepwell.description import html
from stepwell.engine import Delivery, Engine, NativeEngine, PythonEngine, Step
from stepwell.errors import FormatError, StateError
from stepwell.exchange import as_source
from stepwell.fetches import fetched_per_used, warn_of_fetches
from stepwell.loop import Loop
from stepwell.mix import of_mix
from stepwell.ranks import World
from stepwell.sampler import Order, Sampler, Sequential, Shuffle, check_sampler
from stepwell.source import Batch, Closing, Source

Transform = Callable[[Batch], Batch]


class LoaderOptions(TypedDict, total=False):
    """The options of a `Loader`, for loaders of frameworks that hand them on."""

    shuffle: bool
    seed: int
    sampler: Sampler | None
    drop_last: bool
    rank: int | None
    world_size: int | None
    threads: int | None
    prefetch: int | None
    transform: Transform | None
    on_corrupt: Literal["raise", "skip"]


class Loader(Closing):
    """Batches of a source, of whatever `as_source` makes one of, of several named ones read
    with the same rows, or of a `Mix`.

    `shuffle` and `seed` are short for `sampler=Shuffle(seed)` or `Sequential()`. `rank` and
    `world_size` are found when a loop begins, if they are not given: by torch.distributed, JAX,
    Ray or the variables of a launcher. Each rank reads its own part of every global batch; where
    several processes read the same part, as in tensor-parallel jobs, give the data-parallel rank.
    The tail of an epoch is a short batch, or, with several ranks, shared out so that all get
    equal ones; `drop_last` leaves it out.

    Each loop is a whole epoch, the one after the last that was begun; a loaded state is continued
    by the first loop after it. `transform` is applied to each batch in one of several threads, so
    batches reach it in no fixed order; one that has a method `in_epoch(epoch)` is called for the
    transform of the batch's epoch, which it gives without changing itself. Up to `prefetch`
    batches are ready ahead of the loop, by default two for each of the `threads`. With
    `on_corrupt="skip"` damaged rows are left out of their batch and listed in `corrupt` once that
    batch is handed over.
    """

    @one_source
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
        prefetch: int | None = None,
        transform: Transform | None = None,
        on_corrupt: Literal["raise", "skip"] = "raise",
    ) -> None:
        source, sampler = of_mix(source, sampler, seed != 0 or not shuffle)
        if sampler is not None:
            check_sampler(sampler)
            if seed != 0 or not shuffle:
                raise ValueError("give either a sampler or shuffle and seed")
        if on_corrupt not in ("raise", "skip"):
            raise ValueError(f"on_corrupt: expected 'raise' or 'skip', got {on_corrupt!r}")
        if (rank is None) != (world_size is None):
            raise ValueError("give both rank and world_size, or neither")
        self._given: World | None = None
        if rank is not None and world_size is not None:
            numbers = _whole("rank", rank, 0), _whole("world_size", world_size)
            self._given = World(*numbers, "arguments")
        self._source = as_source(source)
        self._sampler = sampler or (Shuffle(seed) if shuffle else Sequential())
        self._rows = len(self._source)  # that the order is of: a refresh may bring more
        self._order: Order = self._sampler.order(self._rows)
        self._batch_size = _whole("batch_size", batch_size)
        self._drop_last = bool(drop_last)
        self._worker = (0, 1)  # this process among those that serve the rank, and their number
        self._threads = _whole("threads", _core.usable_cores() if threads is None else threads)
        # Each thread makes a batch while another of its own waits to be handed over.
        ahead = max(4, 2 * self._threads) if prefetch is None else prefetch
        self._prefetch = _whole("prefetch", ahead)
        self._transform = transform
        self._on_corrupt = on_corrupt
        self._epoch = 0  # where the loader stands, as `state_dict` has it
        self._position = 0
        self._at_end = False  # the epoch's last batch was handed over, its loop has not ended yet
        self._begins = (0, 0)  # epoch and position where the next loop begins
        self._loaded: tuple[int, int] | None = None  # a state, until a loop begins
        self._reached = (0, 0)  # where the engine goes on, or the last loop was left
        self._named = False  # the next loop begins where it does on purpose, not because it is next
        self._corrupt: dict[int, FormatError] = {}
        self._engine: Engine | None = None
        self._started: deque[Delivery | Exception] = deque()
        self._quick: Callable[[], tuple[Any, Step]] | None = None  # the engine's
        self._loops = 0  # begun or ended so far; a loop that is not the last one is over
        self._turn = Lock()  # one thread at a time moves the loader
        self._parents: tuple[int, World] | None = None  # a process that knew its rank, and that
        self._world = self._given or ranks.ALONE  # of the last loop that was begun
        self._group: object = None  # the process group that the world is of
        self._meeting = ranks.Meeting()
        self._unmet: tuple[World, tuple[int, int], str] | None = None  # a loop of one batch so far
        self._warned = False  # of bytes that are fetched and not used
        self._begin = self._schedule(0, 0)

    # The loop.

    def __len__(self) -> int:
        """Batches in a whole epoch, on each rank of the world as it is now."""
        return self._steps_from(0)

    def __iter__(self) -> Iterator[Batch]:
        """A whole epoch, or what a loaded state has left of one.

        It begins at the first `next`, and ends a loop that was begun before.
        """
        return Loop(self)

    def forever(self) -> Iterator[Batch]:
        """Epoch after epoch, without end."""
        while True:
            yield from Loop(self)

    @property
    def source(self) -> Source:
        """Where rows come from: what was given, or a source of the arrays that were given."""
        return self._source

    @property
    def batch_size(self) -> int:
        """Rows in a batch of this rank; the last one of an epoch may have fewer."""
        return self._batch_size

    @property
    def rows(self) -> int:
        """Rows of this epoch: `len(source)`, unless that got more since the epoch was begun."""
        return self._rows if self._position and not self._at_end else len(self._source)

    @property
    def order(self) -> Order:
        """Which row is at which position of an epoch: `order.rows(epoch, start, count)`."""
        return self._order

    @property
    def epoch(self) -> int:
        """The epoch of the loop, until that has ended; then the one that comes next."""
        return self._epoch

    @property
    def position(self) -> int:
        """How far this epoch is: rows that were handed over, those of other ranks included."""
        return self._position

    @property
    def remaining(self) -> int:
        """Batches that this rank still gets in this epoch."""
        return self._steps_from(self._position)

    @property
    def corrupt(self) -> list[tuple[int, FormatError]]:
        """Rows that `on_corrupt="skip"` left out of batches handed over, each with its error."""
        return list(self._corrupt.items())

    @property
    def fetched_per_used(self) -> float | None:
        """How many bytes are fetched from far away for each byte of a row, with this order and the
        room that the source has: an estimate of a few milliseconds, which fetches nothing.

        About 1 is best. None where the rows are at hand, or only reading shows their lengths.
        """
        return fetched_per_used(self, self._order)

    def set_epoch(self, epoch: int) -> None:
        """Have the next loop begin this epoch; a loop that is under way goes on.

        A state of this epoch that was loaded is continued, if no loop has begun since. So a
        program that calls this before each loop, as torch's samplers want it, resumes exactly.
        """
        epoch = _whole("epoch", epoch, 0)
        loaded = self._loaded
        self._stand(*(loaded if loaded is not None and loaded[0] == epoch else (epoch, 0)))
        self._named = True

    def close(self) -> None:
        """Stop the threads. The next batch starts them again."""
        self._stop()

    # The state.

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: plain numbers and strings, the same on every rank.

        After the last batch of an epoch that is the beginning of the next one.
        """
        epoch, position = self._begins if self._at_end else (self._epoch, self._position)
        return {**self._identity(self.rows), "epoch": epoch, "position": position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next loop continue where `state` was taken, exactly.

        A loop that is under way is ended. Rows that the source got since are left out of the
        epoch that the state is of, as `rows` shows. Raises `StateError` naming the field in which
        the state and this loader differ. Threads, batch size and world may be others than they
        were.
        """
        length = _number(state, "length", len(self._source))
        for key, mine in self._identity(length).items():
            other = state.get(key)
            if other != mine and not (key == "fingerprint" and ranks.UNKNOWN in (other, mine)):
                raise StateError(f"state {key!r}: expected {mine!r}, got {other!r}")
        max_ = self._sampler.order(length).length
        loaded = _number(state, "epoch", 2**64 - 1), _number(state, "position", max_)
        self._loops += 1
        self._bind(length)
        self._loaded = loaded
        self._stand(*loaded)
        self._named = True

    def _identity(self, length: int, skip: bool = False) -> dict[str, Any]:
        """What a state is compared by: the order, and the first `length` rows of the source."""
        if length > len(self._source):
            raise StateError(f"expected {length} rows, the source has only {len(self._source)} now")
        try:
            fingerprint = self._source._fingerprint_of(length)
        except FormatError:  # rows that it is made of are damaged, and to be skipped
            if not skip and self._on_corrupt != "skip":
                raise
            fingerprint = ranks.UNKNOWN
        return {
            "version": 1,
            "sampler": self._sampler.name,
            "seed": int(self._sampler.seed),
            "length": length,
            "fingerprint": fingerprint,
        }

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_engine": None, "_started": deque(), "_group": None}
        state["_unmet"] = state["_quick"] = None
        del state["_order"], state["_begin"], state["_turn"]
        with suppress(ValueError):  # a launcher may know the world, and no rank
            found = self._find()
            if found.where in ranks.GROUPS and (
                self._parents is None or found is not self._parents[1]
            ):
                state["_parents"] = os.getpid(), found
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._turn = Lock()
        self._order = self._sampler.order(self._rows)
        self._begin = self._schedule(0, 0)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._source!r}, batch_size={self._batch_size}, "
            f"sampler={self._sampler!r}, rank={self._where()}, "
            f"epoch={self._epoch}, position={self._position}"
            + (f", rows={self.rows})" if self.rows != len(self._source) else ")")
        )

    def _where(self) -> str:
        try:
            return str(self._find())
        except ValueError as error:
            return f"unknown ({error})"

    def _repr_html_(self) -> str:
        about = ("source", "batch_size", "epoch", "position")
        facts = {**{name: getattr(self, name) for name in about}, "rank": self._where()}
        with suppress(ValueError):  # ranks that are not known
            facts |= {"remaining": self.remaining, "batches": len(self)}
        return html(type(self).__name__, {**facts, "sampler": self._sampler})

    # What a framework's loader changes.

    def __init_subclass__(cls) -> None:
        show_options(cls, Loader)

    _ahead = 1
    """Batches begun before the first of them is handed over."""

    _blocks: _core.BlockPool = _core.shared_blocks()
    """Where native threads get memory from."""

    def _read_from(self) -> Source:
        """The source as native threads read it: the same rows, maybe in other types."""
        return self._source

    _of_arrays: Callable[[Batch], Any] | None = None
    """What the consumer gets of arrays that native threads made; None for the arrays."""

    def _start(self, batch: Batch) -> Any:
        """Begin to turn a batch into what the consumer gets."""
        return batch

    def _finish(self, started: Any) -> Any:
        """What the consumer gets."""
        return started

    # Moving on.

    def _find(self) -> World:
        """The world as it is now."""
        return self._given or ranks.find(self._parents)

    def _schedule(
        self, epoch: int, position: int, world: World | None = None, order: Order | None = None
    ) -> _core.Schedule:
        rank, size, _ = world or self._world
        order, batch, drop_last = order or self._order, self._batch_size, self._drop_last
        begin = epoch, position, *self._worker
        in_turn = isinstance(order, _core.Order) and order.lanes > 1
        return _core.Schedule(order.length, batch, rank, size, drop_last, *begin, in_turn)

    def _steps_from(self, position: int) -> int:
        order = self._order if self.rows == self._rows else self._sampler.order(self.rows)
        return self._schedule(0, 0, self._find(), order).steps_from(position)

    def _stand(self, epoch: int, position: int) -> None:
        """Have the next loop begin here, and the state show it."""
        self._at_end = False
        self._begins = self._epoch, self._position = epoch, position

    def _bind(self, rows: int) -> None:
        """Have an order of this number of rows."""
        if rows != self._rows:
            self._stop()  # what was made ahead is of another order
            self._source._forget()
            self._rows, self._order = rows, self._sampler.order(rows)
            self._meeting.forget_facts()

    def _begin_loop(self) -> int:
        """Settle which epoch the loop has and which rank reads, and return its steps."""
        epoch, position = place = self._begins
        if not position:
            self._bind(len(self._source))
        elif len(self._source) < self._rows:
            raise RuntimeError(
                f"expected the {self._rows} rows of the state that was loaded, "
                f"got {len(self._source)}: the source has changed since"
            )
        world = self._find()
        schedule = self._schedule(0, 0, world)
        steps = schedule.steps_from(position)
        if steps == 0 and self._worker[1] == 1:  # of several workers, others may have the rest
            epoch, position = place = epoch + 1, 0
            self._bind(len(self._source))
            schedule = self._schedule(0, 0, world)
            steps = schedule.steps_from(0)
        left = "position {1} of epoch {0}".format(*self._reached)
        left = "its last batch" if place == self._reached else left
        self._unmet = world, place, ranks.UNKNOWN if self._named else left
        if steps == 1:
            self._meet()
        if place != self._reached or world[:2] != self._world[:2]:
            self._stop()
        self._world, self._group, self._begin = world, ranks.group(), schedule
        self._loops += 1
        self._loaded, self._named = None, False
        self._begins, self._at_end = (epoch + 1, 0), False
        self._reached = self._epoch, self._position = place
        return steps

    def _meet(self) -> None:
        """Compare a loop with those of other ranks, at its second batch: a look at one is none."""
        if self._unmet is not None:
            world, (epoch, position), left = self._unmet
            same = isinstance(self._sampler, Sequential)  # whose epochs have the same rows
            left = ranks.UNKNOWN if same else left
            self._meeting.begin(world, (epoch, position), left, self._facts, any_epoch=same)
            self._unmet = None

    def _facts(self) -> dict[str, Any]:
        """What has to be the same on every rank, besides epoch and position."""
        batch = {"batch_size": self._batch_size, "drop_last": self._drop_last}
        # Damaged rows are reported when their batch comes.
        return {**self._identity(self._rows, skip=True), **batch}

    def _check_group(self) -> None:
        """Called when the process group is no longer the one that the loop began with."""
        world = self._find()
        if world[:2] != self._world[:2]:
            raise RuntimeError(
                f"expected rank {self._world}, as this loop began, got rank {world}; "
                "begin a new loop once the process group is up"
            )
        self._group = ranks.group()

    def _stop(self) -> None:
        engine, self._engine, self._quick = self._engine, None, None
        self._started.clear()
        if engine is not None:
            engine.close()

    def _next(self, failed: BaseException | None = None) -> Any:
        """The next batch of the current epoch, which has one; the one for which `_quick` raised
        an error, if there is one."""
        if failed is not None and (self._engine is None or not isinstance(failed, Exception)):
            self._stop()  # the loader was closed or moved meanwhile, or Ctrl-C came
            raise failed
        if self._engine is None or self._engine.process != os.getpid():
            self._started.clear()
            self._engine, failed = self._make_engine(), None
            self._quick = self._engine.quick if self._ahead == 1 else None
        try:
            while len(self._started) < self._ahead:
                try:
                    made = self._engine.next() if failed is None else self._engine.failed(failed)
                    begun = self._start(made.batch)
                    self._started.append(
                        made if begun is made.batch else made._replace(batch=begun)
                    )
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
        self._epoch, self._position = self._reached = delivery.epoch, delivery.position
        if delivery.left_out:
            self._corrupt.update(delivery.left_out)
        return finished

    def _make_engine(self) -> Engine:
        units = self._source._units()
        if units is not None:
            if not self._warned:
                self._warned = True
                warn_of_fetches(self)
            return AheadEngine(self, units)
        source, order = self._read_from(), self._order
        reader = source._reader
        if reader is None or self._transform is not None or not isinstance(order, _core.Order):
            return PythonEngine(self)
        return NativeEngine(self, source, reader, order, self._of_arrays)


def _number(state: Mapping[str, Any], key: str, max_: int) -> int:
    value: Any = state.get(key)
    if not hasattr(value, "__index__") or not 0 <= operator.index(value) <= max_:
        raise StateError(f"state {key!r}: expected 0 to {max_}, got {value!r}")
    return operator.index(value)


def _whole(name: str, value: Any, min_: int = 1) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    number = operator.index(value)
    if not min_ <= number < 2**63:
        raise ValueError(f"{name} must be at least {min_}, got {number}")
    return number

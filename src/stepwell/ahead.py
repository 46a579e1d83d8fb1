"""What a loader has brought before it takes it: the units of the next steps, because it knows them.

Steps are planned far ahead, so that of every unit the step is known that needs it next. The first
of them are under way: what is missing of their units is on its way, and stays until the batch is
made. These take a small part of the room, and whatever holds nothing that a planned step needs. The
rest is for units that come again, and those that are needed last go first. No cache can do better
(Belady 1966), and only a known order of rows allows it.

Steps of the same neighbourhood are brought together: each of them needs some rows of many places,
and all of them whole stretches, which come in few and long requests.
"""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from stepwell import _core
from stepwell.engine import Delivery, Engine, Step, rows_of
from stepwell.errors import FormatError
from stepwell.group import Group, Taken
from stepwell.sampler import Order
from stepwell.units import NEVER, Bringing, Numbers, Units

if TYPE_CHECKING:
    from stepwell.loader import Loader

MAX_USES = 1 << 20
"""Uses of units that a plan knows at a time, 28 bytes each."""

_USES = 8
"""As many for each unit that there is room for: who goes first is known with that."""

_FAR = 2
"""Units of a plan for each that there is room for, from which on what is in none of its steps may
go, and nothing changes with more steps if there is no such unit."""

_FEW_USES, _FEW_UNITS = 1 << 18, 1 << 12
"""What any plan may have."""

_SHARE = 8
"""The part of the room that units of steps under way may take, unless a step needs more: what they
wait in is missing for those that come again."""

_MAX_UNDER_WAY = 256
"""Groups of steps, however small they are."""


class _Failed:
    """Units of which nothing could be begun."""

    is_there = False

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def wait(self, units: Numbers | None = None) -> None:
        raise self._error

    def release(self) -> None: ...


class _Shared:
    """The units of a group of steps, which stay until each of these has let go."""

    def __init__(self, bringing: Bringing, steps: int) -> None:
        self._bringing, self._steps = bringing, steps
        self._lock = Lock()

    @property
    def is_there(self) -> bool:
        return self._bringing.is_there

    def wait(self, units: Numbers | None = None) -> None:
        self._bringing.wait(units)

    def release(self) -> None:
        with self._lock:
            self._steps -= 1
            left = self._steps
        if not left:
            self._bringing.release()


class Ahead:
    """Plans steps, has their units brought, and gives them up. One thread at a time.

    `units_of` gives the units of a step by its number. About `max_steps` are planned ahead. Those
    that are brought together are one in the plan.
    """

    def __init__(
        self,
        units: Units,
        units_of: Callable[[int], Numbers],
        max_steps: int,
        max_uses: int = MAX_USES,
    ) -> None:
        self._units, self._units_of = units, units_of
        room = units.budget_bytes // units.unit_bytes
        self._plan = _core.Plan(min(max(_USES * room, _FEW_USES), max_uses))
        self._max_steps, self._far = max_steps, max(_FAR * room, _FEW_UNITS)
        self._open, self._closed = Group(room), Taken(0, np.empty(0, np.int64))
        self._known = 0  # units that planned steps need
        self._planned = self._finished = 0
        self._sizes: deque[int] = deque()  # of groups that are planned and not finished
        self._left = 0  # steps of the oldest of them that are not finished
        self._errors: dict[int, BaseException] = {}  # by group
        self._under_way: deque[Bringing] = deque()  # a step each
        self._process = os.getpid()

    def plan(self) -> bool:
        """Plan a further step; False where no more are wanted."""
        if self._is_deep or (self._is_far and not self._units.spare):
            if self._waiting and self._plan.begun == self._plan.planned:
                self._flush()
                return True
            return False
        number, self._planned = self._planned, self._planned + 1
        try:
            self._open.add(self._units_of(number))
        except BaseException as error:  # raised when the step has its turn
            while self._waiting:
                self._flush()
            self._errors[self._plan.planned] = error
            self._add(1, np.empty(0, np.int64))
        while self._open.is_full:
            self._close()
        return True

    @property
    def _is_deep(self) -> bool:
        steps = self._planned - self._finished
        return steps >= self._max_steps or not self._plan.has_room

    @property
    def _is_far(self) -> bool:
        return self._known >= self._far or self._is_deep

    @property
    def _waiting(self) -> int:
        """Steps that are planned and of no group."""
        return self._closed.steps + self._open.steps

    def _close(self, max_steps: int | None = None) -> None:
        """Take the next steps as a group, with those before where they need the same."""
        # The first one waits for no others, unless they need the same.
        taken = self._open.taken(max_steps if self._under_way else 1)
        both = self._closed.with_next(taken, self._open.max) if self._closed.steps else None
        if both is None and self._closed.steps:
            self._add(*self._closed)
        self._closed = both or taken

    def _flush(self, max_steps: int | None = None) -> None:
        """Plan what is known: the group that was taken last, or else the next steps."""
        if not self._closed.steps:
            self._close(max_steps)
        self._add(*self._closed)
        self._closed = Taken(0, self._closed.units[:0])

    def _add(self, steps: int, units: Numbers) -> None:
        group = self._plan.planned
        self._sizes.append(steps)
        unexpected = self._plan.add(units)
        self._known += len(unexpected)
        if len(unexpected):  # they may be here, and wait for nothing as far as anybody knew
            self._units.expect(unexpected, np.full(len(unexpected), group))

    def bring(self) -> list[Bringing] | None:
        """Begin the next steps, each of which waits for its own units; None where those of the
        steps under way take all their room."""
        plan = self._plan
        if plan.begun - plan.finished >= _MAX_UNDER_WAY:
            return None
        while plan.begun == plan.planned:
            # While others are under way there is time to have more of them brought together.
            under_way = len(self._under_way)
            if 0 < under_way <= self._waiting or (not under_way and self._closed.steps):
                self._flush(under_way)
            elif under_way or not self.plan():
                return None
        group = plan.begun
        units = plan.units(group)
        if not self._has_room(units):
            return None
        bringing: Bringing
        if group in self._errors:
            bringing = _Failed(self._errors.pop(group))
        else:
            try:
                bringing = self._units.bring(units)
            except BaseException as error:
                bringing = _Failed(error)
        steps = self._sizes[plan.begun - plan.finished]
        if plan.begun == plan.finished:
            self._left = steps
        plan.begin()
        shared: list[Bringing] = [_Shared(bringing, steps)] * steps
        self._under_way += shared
        return shared

    def _has_room(self, units: Numbers) -> bool:
        plan, here = self._plan, self._units
        groups = plan.begun - plan.finished
        if not groups:
            return True
        share = _SHARE if groups > 1 else 1
        if (plan.held + plan.fresh) * here.unit_bytes <= here.budget_bytes // share:
            return True
        # What has to go is what nobody needs, as far as that is known.
        room = here.spare if self._is_far else here.empty
        return room > 0 and len(here.missing(units)) <= room

    def finish(self) -> None:
        """The oldest step under way has been taken."""
        self._finished += 1
        self._left -= 1
        if not self._left:
            plan = self._plan
            units = plan.units(plan.finished)
            next_use = plan.finish()
            self._known -= int(np.count_nonzero(next_use == NEVER))
            self._units.expect(units, next_use)
            self._sizes.popleft()
            self._left = self._sizes[0] if self._sizes else 0
        self._under_way.popleft().release()

    def abandon(self) -> list[Bringing]:
        """What each step that nobody will finish holds, for the caller to release."""
        left, self._under_way = list(self._under_way), deque()
        return left

    def __del__(self) -> None:
        # A child has no part in what its parent had brought, nor threads that hold its locks.
        if os.getpid() == self._process:
            for bringing in self.abandon():
                bringing.release()


class AheadEngine(Engine):
    """Has the units of the next steps brought, and takes the batches of those that are there.

    One thread plans, as far as there is room; several wait and take. Nothing runs in between.
    """

    def __init__(self, loader: "Loader", units: Units) -> None:
        super().__init__(loader)
        epoch = self._schedule.steps_from(0)
        self._units = units
        units_of = partial(_units_of, units, self._order, self._schedule)
        self._ahead = Ahead(units, units_of, max(2 * epoch, 64))
        self._takers = ThreadPoolExecutor(loader._threads, thread_name_prefix="stepwell")
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="stepwell-ahead")
        self._depth = loader._prefetch
        self._called = self._closed = False
        self._brought: deque[Bringing] = deque()
        self._taking: deque[Future[Delivery]] = deque()
        self._submitted = self._delivered = 0
        self._ready: SimpleQueue[tuple[Step, Future[Delivery]] | None] = SimpleQueue()
        self._call()

    def next(self) -> Delivery:
        if self._ready.empty():
            self._call()
        found = self._ready.get()
        if found is None:
            raise RuntimeError("the loader was closed")
        self.step, made = found
        self._delivered += 1
        # Not each time: threads take turns.
        if self._submitted - self._delivered <= self._depth // 2:
            self._call()
        return self._result(made)

    def close(self) -> None:
        self._closed = True
        self._takers.shutdown(wait=False, cancel_futures=True)
        with suppress(RuntimeError):  # the interpreter ends
            self._planner.submit(self._give_up)
        self._planner.shutdown(wait=False)

    # On the thread that plans.

    def _call(self) -> None:
        """Have the planner look what there is to do, unless it is about to."""
        if not self._called:
            self._called = True
            with suppress(RuntimeError):  # closed meanwhile
                self._planner.submit(self._work)

    def _work(self) -> None:
        self._called = False
        try:
            while not self._closed and self._go_on():
                pass
        except BaseException as error:
            failed: Future[Delivery] = Future()
            failed.set_exception(error)
            self._ready.put((self._schedule.step(self._submitted), failed))

    def _go_on(self) -> bool:
        """Do what is most urgent; False where there is nothing."""
        if self._taking and self._taking[0].done():
            self._taking.popleft()
            self._ahead.finish()
            return True
        if self._brought and self._submitted - self._delivered < self._depth:
            step = self._schedule.step(self._submitted)
            made = self._takers.submit(self._make, step, self._brought.popleft())
            self._submitted += 1
            self._taking.append(made)
            self._ready.put((step, made))
            return True
        bringing = self._ahead.bring()
        if bringing is not None:
            self._brought += bringing
            return True
        return self._ahead.plan()

    def _give_up(self) -> None:
        left = self._ahead.abandon()
        for bringing, made in zip(left, [*self._taking, *[None] * len(left)], strict=False):
            if made is None:
                bringing.release()
            else:  # it may be waiting for them
                made.add_done_callback(partial(_release, bringing))
        self._ready.put(None)

    # On those that take.

    def _make(self, step: Step, bringing: Bringing) -> Delivery:
        try:
            if not bringing.is_there:
                epoch, start, count, _, stride = step
                bringing.wait(self._units.of(self._rows(epoch, start, count, stride)))
        except FormatError:
            if not self._skip:
                raise
            # The take meets it again, and finds the rows that it is about.
        return self._delivery(*step)


def _units_of(units: Units, order: Order, schedule: _core.Schedule, number: int) -> Numbers:
    epoch, start, count, _, stride = schedule.step(number)
    return units.of(rows_of(order, epoch, start, count, stride))


def _release(bringing: Bringing, _: object) -> None:
    bringing.release()

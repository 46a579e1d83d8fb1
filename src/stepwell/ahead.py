"""What a loader has brought before it takes it: the units of the next steps, because it knows them.

Steps are planned far ahead, so that of every unit the step is known that needs it next. The first
of them are under way: what is missing of their units is on its way, and stays until the batch is
made. Only a small part of the room is for these. The rest is for units that come again, and those
that are needed last go first. No cache can do better (Belady 1966), and only a known order of rows
allows it.
"""

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING
from weakref import ref

import numpy as np

from stepwell import _core
from stepwell.engine import Delivery, Engine, Step, note, rows_of
from stepwell.errors import FormatError
from stepwell.sampler import Order
from stepwell.units import Bringing, Numbers, Units

if TYPE_CHECKING:
    from stepwell.loader import Loader

MAX_USES = 1 << 20
"""Uses of units that a plan knows at a time: 30 MB."""

_SHARE = 8
"""The part of the room that units of steps under way may take, unless a step needs more: what they
wait in is missing for those that come again."""


_MAX_UNDER_WAY = 256
"""Steps, however small they are."""


class _Failed:
    """Units of which nothing could be begun."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def wait(self) -> None:
        raise self._error

    def release(self) -> None: ...


class Ahead:
    """Plans steps, has their units brought, and gives them up. One thread at a time.

    `units_of` gives the units of a step by its number. About `max_steps` are planned ahead.
    """

    def __init__(
        self,
        units: Units,
        units_of: Callable[[int], Numbers],
        max_steps: int,
        max_uses: int = MAX_USES,
    ) -> None:
        self._units, self._units_of = units, units_of
        self._plan, self._max_steps = _core.Plan(max_uses), max_steps
        self._errors: dict[int, BaseException] = {}
        self._under_way: deque[Bringing] = deque()
        self._process = os.getpid()

    def plan(self) -> bool:
        """Plan a further step; False where no more are wanted."""
        plan = self._plan
        step = plan.planned
        if not plan.has_room or step - plan.finished >= self._max_steps:
            return False
        try:
            units = self._units_of(step)
        except BaseException as error:  # raised when the step has its turn
            self._errors[step], units = error, np.empty(0, np.int64)
        unexpected = plan.add(units)
        if len(unexpected):  # they may be here, and wait for nothing as far as anybody knew
            self._units.expect(unexpected, np.full(len(unexpected), step))
        return True

    def bring(self) -> Bringing | None:
        """Begin the next step; None where the units of those under way take all their room."""
        plan = self._plan
        step = plan.begun
        if len(self._under_way) >= _MAX_UNDER_WAY:
            return None
        if step == plan.planned and not self.plan():
            return None
        if self._under_way:
            wanted = (plan.held + plan.fresh) * self._units.unit_bytes
            share = _SHARE if len(self._under_way) > 1 else 1
            if wanted > self._units.budget_bytes // share:
                return None
        bringing: Bringing
        if step in self._errors:
            bringing = _Failed(self._errors.pop(step))
        else:
            try:
                bringing = self._units.bring(plan.units(step))
            except BaseException as error:
                bringing = _Failed(error)
        plan.begin()
        self._under_way.append(bringing)
        return bringing

    def finish(self) -> None:
        """The oldest step under way has been taken."""
        units = self._plan.units(self._plan.finished)
        self._units.expect(units, self._plan.finish())
        self._under_way.popleft().release()

    def abandon(self) -> list[Bringing]:
        """Units under way that nobody will finish, for the caller to release."""
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
        found = self._ready.get()
        if found is None:
            raise RuntimeError("the loader was closed")
        self.step, made = found
        self._delivered += 1
        self._call()
        try:
            return made.result()
        except Exception as error:
            error.add_note(note(*self.step))
            raise

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
            made.add_done_callback(partial(_call, ref(self)))
            return True
        bringing = self._ahead.bring()
        if bringing is not None:
            self._brought.append(bringing)
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
            bringing.wait()
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


def _call(engine: "ref[AheadEngine]", _: object) -> None:
    found = engine()
    if found is not None:
        found._call()

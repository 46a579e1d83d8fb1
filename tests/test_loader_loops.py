"""Where a loop begins and what ends it: the rules of docs/sampling.md, and a model of them."""

import threading
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Any

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import stepwell as sw
from tests import scaled
from tests.reference import sampling as reference
from tests.test_loader import N, assert_rows, numbers, order_of, shuffled

# One rule a test.


def test_each_loop_is_a_whole_epoch_also_after_one_that_was_left() -> None:
    loader = sw.Loader(numbers(), 64, seed=7)
    for epoch in range(4):
        for i, batch in enumerate(loader):
            assert_rows(batch["i"], shuffled(epoch)[i * 64 : (i + 1) * 64])
            if i == epoch:
                break
    assert_rows(order_of(loader), shuffled(4))


def test_without_a_shuffle_each_loop_has_the_same_rows() -> None:
    loader = sw.Loader(numbers(), 64, shuffle=False)
    assert_rows(order_of(islice(loader, 2)), np.arange(128))  # a sanity check
    for _ in range(2):
        assert_rows(order_of(loader), np.arange(N))


def test_an_iterator_that_is_kept_goes_on() -> None:
    loader = sw.Loader(numbers(), 64, seed=7)
    loop = iter(loader)
    first = list(islice(loop, 5))
    assert_rows(order_of(first + list(loop)), shuffled())
    assert list(loop) == []  # a finished loop stays finished,
    next(iter(loader))
    assert list(loop) == []  # also when there is another
    assert loader.epoch == 1


def test_a_loop_begins_at_its_first_next() -> None:
    loader = sw.Loader(numbers(), 64, seed=7)
    early, late = iter(loader), iter(loader)
    loader.set_epoch(5)
    assert_rows(next(late)["i"], shuffled(5)[:64])
    assert_rows(next(late)["i"], shuffled(5)[64:128])  # that `early` exists ends nothing
    assert_rows(next(early)["i"], shuffled(6)[:64])
    with pytest.raises(RuntimeError, match="this loop was ended"):
        next(late)
    loader.load_state_dict({**loader.state_dict(), "epoch": 3})
    with pytest.raises(RuntimeError, match="this loop was ended"):
        next(early)
    unused = iter(loader)
    assert_rows(next(unused)["i"], shuffled(3)[64:128])


def test_set_epoch_begins_an_epoch_afresh_and_leaves_a_running_loop_alone() -> None:
    loader = sw.Loader(numbers(), 64, seed=7)
    loop = iter(loader)
    next(loop)
    loader.set_epoch(0)
    assert (loader.epoch, loader.position) == (0, 0)
    assert_rows(next(loop)["i"], shuffled()[64:128])
    assert loader.state_dict()["position"] == 128
    assert_rows(order_of(loader), shuffled())
    loader.set_epoch(np.int64(5))  # type: ignore[arg-type]
    assert type(loader.state_dict()["epoch"]) is int
    assert_rows(order_of(loader), shuffled(5))
    assert_rows(order_of(loader), shuffled(6))
    with pytest.raises(ValueError, match="at least 0"):
        loader.set_epoch(-1)


def test_a_loaded_state_is_continued_once_and_set_epoch_does_not_lose_it() -> None:
    run = sw.Loader(numbers(), 64, seed=7)
    run.set_epoch(2)
    next(iter(run))
    state = run.state_dict()

    loader = sw.Loader(numbers(), 64, seed=7)
    for named in ([], [2], [9, 2]):
        loader.load_state_dict(state)
        for epoch in named:
            loader.set_epoch(epoch)
        assert loader.state_dict() == state
        assert_rows(order_of(loader), shuffled(2)[64:])
        loader.set_epoch(2)
        assert_rows(order_of(loader), shuffled(2))  # a loop has begun since
    loader.load_state_dict(state)
    loader.set_epoch(3)
    assert_rows(order_of(loader), shuffled(3))


def test_epochs_without_end() -> None:
    loader = sw.Loader(numbers(), 500, seed=7)
    rows = [batch["i"] for batch in islice(loader.forever(), 6)]
    assert_rows(np.concatenate(rows), np.concatenate([shuffled(e) for e in range(3)]))
    assert (loader.epoch, loader.position, loader.remaining) == (2, N, 0)
    assert_rows(next(loader.forever())["i"], shuffled(3)[:500])


@pytest.mark.parametrize("named", [False, True])
def test_the_first_batches_of_the_next_epoch_are_made_before_its_loop_begins(named: bool) -> None:
    made, epochs = threading.Semaphore(0), []

    class Noted:
        def in_epoch(self, epoch: int) -> Any:
            epochs.append(epoch)
            made.release()
            return lambda batch: batch

    loader = sw.Loader(numbers(), 250, transform=Noted(), threads=1, prefetch=2)  # type: ignore[arg-type]
    assert len(list(loader)) == 4
    for _ in range(5):
        assert made.acquire(timeout=30)
    assert epochs == [0, 0, 0, 0, 1]  # one ahead, when the last was handed over
    engine = loader._engine
    if named:
        loader.set_epoch(1)
    next(iter(loader))
    assert loader._engine is engine
    next(iter(loader))  # this one was left
    assert loader._engine is not engine


# All of them at once.


class Loop:
    """What the model knows of an iterator."""

    def __init__(self, iterators: list[Iterator[Any]]) -> None:
        self.iterators = iterators
        self.begun = self.over = False
        self.epoch = 0
        self.steps: list[Any] = []


class Loops(RuleBasedStateMachine):
    """Loaders of all ranks, and where a plain model of the rules expects them to be."""

    @initialize(rows=st.integers(1, 60), shuffle=st.booleans())
    def begin(self, rows: int, shuffle: bool) -> None:
        self.data = np.arange(rows)
        self.sampler: Any = sw.Shuffle(3) if shuffle else sw.Sequential()
        self.states: list[dict[str, Any]] = []
        self.restart(1, 7, 1, False, 0)

    @rule(
        world=st.integers(1, 3),
        batch_size=st.integers(1, 8),
        threads=st.integers(1, 3),
        drop_last=st.booleans(),
        state=st.integers(0, 1),
    )
    def restart(
        self, world: int, batch_size: int, threads: int, drop_last: bool, state: int
    ) -> None:
        self.teardown()
        self.world, self.batch_size = world, batch_size
        self.drop_last = drop_last and world * batch_size <= len(self.data)
        self.loaders = [
            sw.Loader(
                self.data,
                batch_size,
                sampler=self.sampler,
                rank=rank,
                world_size=world,
                drop_last=self.drop_last,
                threads=threads,
                prefetch=2,
                transform=None if threads > 1 else _same,
            )
            for rank in range(world)
        ]
        self.loops: list[Loop] = []
        self.running: Loop | None = None
        self.loaded: tuple[int, int] | None = None
        self.stands = self.begins = (0, 0)
        self.ended = False  # the last batch was handed over, and nothing has happened since
        if self.states:
            self.load(state)

    def teardown(self) -> None:
        for loader in getattr(self, "loaders", []):
            loader.close()

    def steps(self, rank: int, epoch: int, position: int) -> list[Any]:
        """The steps of a rank from there to the end of the epoch."""
        size = len(self.data)
        schedule = (size, self.batch_size, rank, self.world, self.drop_last)
        endless = reference.steps(*schedule, epoch, position)
        return list(takewhile(lambda step: step.epoch == epoch, endless))

    @rule()
    def iterate(self) -> None:
        self.loops.append(Loop([iter(loader) for loader in self.loaders]))

    @precondition(lambda self: self.loops)
    @rule(which=st.integers(0, 3), count=st.integers(1, 9))
    def step(self, which: int, count: int) -> None:
        loop = self.loops[-1 - which % len(self.loops)]
        for _ in range(count):
            self.next_of(loop)

    @rule(notice=st.booleans(), save=st.booleans())
    def to_the_end(self, notice: bool, save: bool) -> None:
        self.iterate()
        loop = self.loops[-1]
        self.next_of(loop)
        while not loop.over and (loop.steps or notice):
            self.next_of(loop)
        if save:
            self.save()

    @rule(count=st.integers(1, 5), load=st.booleans())
    def some(self, count: int, load: bool) -> None:
        self.iterate()
        self.step(0, count)
        self.save()
        if load:
            self.load(0)

    def next_of(self, loop: Loop) -> None:
        if not loop.begun:
            self.ended = False
            loop.begun, self.running, self.loaded = True, loop, None
            epoch, position = self.begins
            if not self.steps(0, epoch, position):
                epoch, position = epoch + 1, 0
            loop.epoch, self.stands, self.begins = epoch, (epoch, position), (epoch + 1, 0)
            each = [self.steps(rank, epoch, position) for rank in range(self.world)]
            loop.steps = list(zip(*each, strict=True))
        if loop.over:
            assert [next(iterator, None) for iterator in loop.iterators] == [None] * self.world
        elif loop is not self.running:
            for iterator in loop.iterators:
                with pytest.raises(RuntimeError, match="this loop was ended"):
                    next(iterator)
        elif not loop.steps:
            assert [next(iterator, None) for iterator in loop.iterators] == [None] * self.world
            loop.over, self.stands, self.ended = True, self.begins, False
        else:
            order = self.sampler.order(len(self.data)).rows(loop.epoch, 0, len(self.data))
            step = loop.steps.pop(0)
            for iterator, part in zip(loop.iterators, step, strict=True):
                assert_rows(next(iterator)["data"], order[part.positions])
                self.stands, self.ended = (loop.epoch, part.after), not loop.steps

    @rule(further=st.sampled_from([0, 0, 1, -1]))
    def set_epoch(self, further: int) -> None:
        epoch = max(0, self.stands[0] + further)
        for loader in self.loaders:
            loader.set_epoch(epoch)
        self.ended = False
        known = self.loaded is not None and self.loaded[0] == epoch
        self.stands = self.begins = self.loaded if known else (epoch, 0)  # type: ignore[assignment]

    @invariant()
    def look(self) -> None:
        for loader in self.loaders:
            assert (loader.epoch, loader.position) == self.stands
            assert loader.remaining == len(self.steps(0, 0, self.stands[1]))
            assert len(loader) == len(self.steps(0, 0, 0))

    @rule()
    def save(self) -> None:
        (state, *others) = [loader.state_dict() for loader in self.loaders]
        assert all(other == state for other in others)
        expected = self.begins if self.ended else self.stands
        assert (state["epoch"], state["position"]) == expected
        self.states.append(state)

    @precondition(lambda self: self.states)
    @rule(which=st.integers(0, 9))
    def load(self, which: int) -> None:
        state = self.states[-1 - which % len(self.states)]
        for loader in self.loaders:
            loader.load_state_dict(state)
        self.running, self.ended = None, False
        self.stands = self.begins = self.loaded = (state["epoch"], state["position"])

    @rule(missing=st.integers(0, 3))
    def load_near_the_end(self, missing: int) -> None:
        """A state with nothing left of its epoch, or too little for a step of this world."""
        position = max(0, len(self.data) - missing)
        self.states.append({**self.loaders[0].state_dict(), "position": position})
        self.load(0)

    @rule()
    def close(self) -> None:
        for loader in self.loaders:
            loader.close()


def _same(batch: sw.Batch) -> sw.Batch:
    return batch


TestLoops = Loops.TestCase
TestLoops.settings = settings(max_examples=scaled(100, smallest=20), stateful_step_count=50)

"""Look-ahead: what is planned, brought and given up, against plain Python; batches as ever."""

import gc
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

import stepwell as sw
from stepwell import _core
from stepwell.ahead import Ahead, AheadEngine
from stepwell.source import Rows
from stepwell.units import NEVER, Numbers
from tests import scaled
from tests.children import in_fork
from tests.far import FarSource, FarUnits

N = 500


def far(budget: int = 10_000, seed: int = 0, n: int = N, unit_bytes: int = 100) -> FarSource:
    """Rows of 8 bytes in units of `unit_bytes`."""
    return FarSource({"i": np.arange(n)}, FarUnits(8, unit_bytes, budget, seed))


def order_of(batches: Any) -> NDArray[np.int64]:
    return np.concatenate([batch["i"] for batch in batches])


def threads_of_loaders() -> list[threading.Thread]:
    """Those of other tests, as of a viewer, may stay."""
    own = re.compile(r"stepwell(-ahead|-fetch)?_\d+")
    return [thread for thread in threading.enumerate() if own.fullmatch(thread.name)]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    for thread in threads_of_loaders():
        thread.join(20)
    assert not threads_of_loaders()


# The plan.

Steps = list[list[int]]
steps_of_units = st.lists(
    st.lists(st.integers(0, 12), unique=True, max_size=6).map(sorted), min_size=1, max_size=40
)


@given(steps_of_units, st.data())
@settings(max_examples=scaled(100, smallest=30))
def test_a_plan_is_what_plain_python_finds(steps: Steps, data: st.DataObject) -> None:
    plan = _core.Plan(data.draw(st.integers(1, 50)))
    finished = begun = planned = 0
    while finished < len(steps):
        can = [planned < len(steps) and plan.has_room, begun < planned, finished < begun]
        move = data.draw(st.sampled_from([i for i in range(3) if can[i]]))
        if move == 0:
            known = set().union(*map(set, steps[finished:planned]))
            unknown = plan.add(np.array(steps[planned], np.int64))
            assert unknown.tolist() == [unit for unit in steps[planned] if unit not in known]
            planned += 1
        elif move == 1:
            held = set().union(*map(set, steps[finished:begun]))
            assert plan.fresh == len(set(steps[begun]) - held)
            assert plan.units(begun).tolist() == steps[begun]
            plan.begin()
            begun += 1
        else:
            nexts = [
                next((s for s in range(finished + 1, planned) if unit in steps[s]), NEVER)
                for unit in steps[finished]
            ]
            assert plan.finish().tolist() == nexts
            finished += 1
        assert (plan.finished, plan.begun, plan.planned) == (finished, begun, planned)
        assert plan.held == len(set().union(*map(set, steps[finished:begun])))


def test_a_plan_of_many_units_is_found_again_in_its_table() -> None:
    rng = np.random.default_rng(0)
    steps = [np.unique(rng.integers(0, 2**62, 300) % 4_000 << 40) for _ in range(80)]
    plan, known = _core.Plan(5_000), 0
    for finished in range(80):
        while known < 80 and plan.has_room:
            plan.add(steps[known])
            known += 1
        plan.begin()
        later: dict[int, int] = {}
        for s in range(known - 1, finished, -1):
            later.update(dict.fromkeys(steps[s].tolist(), s))
        expected = [later.get(unit, NEVER) for unit in steps[finished].tolist()]
        assert plan.finish().tolist() == expected


def test_a_plan_refuses_what_is_none() -> None:
    plan = _core.Plan(10)
    for units in ([2, 1], [1, 1]):
        with pytest.raises(ValueError, match="ascending"):
            plan.add(np.array(units, np.int64))
    with pytest.raises(IndexError, match="planned"):
        plan.units(0)
    with pytest.raises(IndexError, match="under way"):
        plan.finish()


def belady(steps: Sequence[Numbers], room: int) -> int:
    """Fetches of the best there can be: with each step, what is needed last goes."""
    uses: dict[int, list[int]] = {}
    for s, units in enumerate(steps):
        for unit in units.tolist():
            uses.setdefault(unit, []).append(s)
    here: set[int] = set()
    fetches = 0
    for units in steps:
        wanted = set(units.tolist())
        fetches += len(wanted - here)
        here |= wanted
        for unit in wanted:
            uses[unit].pop(0)
        others = sorted(here - wanted, key=lambda unit: uses[unit][0] if uses[unit] else NEVER)
        while len(here) > room and others:
            here.remove(others.pop())
    return fetches


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_what_is_let_go_is_beladys_choice(batch: int) -> None:
    units = FarUnits(8, 100, 1_000)
    shuffled = [sw.Shuffle(3).order(N).rows(epoch, 0, N) for epoch in range(3)]
    rows = np.concatenate(shuffled)
    steps = [units.of(rows[at : at + batch]) for at in range(0, len(rows), batch)]
    room = units.budget_bytes // units.unit_bytes
    others = np.array([N])  # the last step that is planned waits for those after it
    far = len(steps) + 1
    ahead = Ahead(units, lambda step: steps[step] if step < len(steps) else others, far)
    for _ in steps:
        while ahead.plan():
            pass
        for bringing in ahead.bring() or []:
            bringing.wait()
        ahead.finish()
    assert units.fetched.total() == belady(steps, room)
    assert units.pinned == 0


# Batches.

samplers: list[Callable[[], Any]] = [
    lambda: sw.Shuffle(7),
    lambda: sw.Block(20, seed=3, group=2),
    lambda: sw.Sequential(),
    lambda: sw.Iid(5),
]


@given(
    st.sampled_from(samplers),
    st.integers(1, 90),
    st.integers(1, 3),
    st.integers(100, 5_000),
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.integers(0, 5),
)
@settings(max_examples=scaled(60, smallest=15), deadline=None)
def test_every_row_is_there_when_its_batch_is_taken(
    make: Any, batch: int, world: int, budget: int, seed: int, threads: int, stop: int
) -> None:
    sampler = make()

    def loaders() -> list[sw.Loader]:
        options: Any = {"sampler": sampler, "threads": threads, "world_size": world}
        return [sw.Loader(far(budget, seed), batch, rank=r, **options) for r in range(world)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before, after = loaders(), loaders()
        loops = [iter(loader) for loader in before]
        first = min(stop, len(before[0]) - 1)
        got = [next(loop)["i"] for _ in range(first) for loop in loops]
        for loader in after:
            loader.load_state_dict(before[0].state_dict())
        rest = [list(loader) for loader in after]
    got += [step["i"] for steps in zip(*rest, strict=True) for step in steps]
    assert np.array_equal(np.concatenate(got)[:N], sampler.order(N).rows(0, 0, N))
    for loader in before + after:
        assert loader._engine is None or isinstance(loader._engine, AheadEngine)
        loader.close()
        units: Any = loader.source._units()
        assert units.max_pinned <= budget / 100 + units.widest


def test_what_fits_is_fetched_once() -> None:
    source = far(budget=100_000)
    with sw.Loader(source, 32, seed=7) as loader:
        for epoch in range(3):
            assert np.array_equal(order_of(loader), sw.Shuffle(7).order(N).rows(epoch, 0, N))
        engine = loader._engine  # which ran on across the ends
        assert isinstance(engine, AheadEngine)
    assert set(source.units.fetched.values()) == {1}


def test_neighbours_are_fetched_once_within_little_room() -> None:
    source = far(budget=400)
    with sw.Loader(source, 10, shuffle=False) as loader:
        assert np.array_equal(order_of(loader), np.arange(N))
        loader.close()
    counts = [source.units.fetched[unit] for unit in range(N * 8 // 100)]
    assert counts[4:] == [1] * len(counts[4:])  # the next epoch may have begun


def test_views_joins_and_mixes_bring_the_units_of_their_parts() -> None:
    one, two = far(seed=1), far(seed=2, unit_bytes=64)
    joined = sw.Loader({"a": one, "b": two, "c": np.arange(N)}, 50, seed=7)
    for batch in joined:
        assert np.array_equal(batch["a"], batch["b"])
        assert np.array_equal(batch["a"], batch["c"])
    both = one.select(slice(100, 300)).concat(two, one)
    expected = np.concatenate([np.arange(100, 300), np.arange(N), np.arange(N)])
    rows = np.random.default_rng(0).permutation(len(both))
    loader = sw.Loader(both, 64, sampler=Listed(rows))
    assert np.array_equal(order_of(loader), expected[rows])
    windows = sw.Loader(one.windows(5, 3), 16, shuffle=False)
    assert np.array_equal(next(iter(windows))["i"][:, 0], np.arange(0, 48, 3))
    mixed = sw.Loader(sw.Mix({one: 0.5, two: 0.5}, seed=3), 64)
    assert sorted(order_of(mixed))[::200][:2] == [0, 100]
    for each in (joined, loader, windows, mixed):
        each.close()
    units = both._units()
    assert units is not None
    numbers = units.of(np.arange(len(both)))
    assert len(numbers) == N * 8 // 100 + N * 8 // 64 + 1  # of the one that is there twice, once
    assert np.array_equal(np.sort(numbers), numbers)


class Listed:
    """A sampler with a list."""

    name, seed = "Listed", 0

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.length = len(rows)

    def order(self, length: int) -> "Listed":
        return self

    def rows(self, epoch: int, start: int, count: int) -> Rows:
        return self._rows[start : start + count]


# What goes wrong.


def test_an_error_of_a_unit_reaches_its_batch_and_the_loader_goes_on() -> None:
    source = far()
    source.units.broken[20] = sw.FetchError("gave up", url="s3://rows")
    loader = sw.Loader(source, 25, shuffle=False)
    loop, got, errors = iter(loader), [], list[sw.FetchError]()
    while True:
        try:
            got.append(next(loop))
        except sw.FetchError as error:
            errors.append(error)
        except StopIteration:
            break
    assert np.array_equal(order_of(got), np.arange(N))
    assert len(errors) == 1
    assert errors[0].__notes__ == ["in the batch of 25 rows at position 250 of epoch 0"]
    loader.close()


def test_a_failing_order_fails_at_its_turn_alone() -> None:
    class Broken(Listed):
        fails = True

        def rows(self, epoch: int, start: int, count: int) -> Rows:
            if start == 100 and self.fails:
                raise OSError("no such rows")
            return super().rows(epoch, start, count)

    sampler = Broken(np.arange(N))
    loader = sw.Loader(far(), 25, sampler=sampler)
    loop = iter(loader)
    got = [next(loop) for _ in range(4)]
    with pytest.raises(OSError, match="no such rows"):
        next(loop)
    sampler.fails = False
    assert np.array_equal(order_of([*got, *loop]), np.arange(N))
    loader.close()


def test_damaged_rows_are_left_out() -> None:
    class Damaged(FarSource):
        def _fill(self, rows: Rows, out: sw.Batch) -> None:
            if 77 in rows:
                raise sw.ChecksumError("row 77 is damaged", path="rows", offset=77)
            super()._fill(rows, out)

    source = Damaged({"i": np.arange(N)}, FarUnits(8, 100, 10_000))
    source.units.broken[6] = sw.ChecksumError("unit 6 is damaged", path="rows", offset=600)
    with sw.Loader(source, 25, shuffle=False, on_corrupt="skip") as loader:
        assert np.array_equal(order_of(loader), np.delete(np.arange(N), 77))
        assert [row for row, _ in loader.corrupt] == [77]


def test_transforms_are_applied() -> None:
    with sw.Loader(far(), 25, seed=7, transform=lambda b: {"i": -b["i"]}) as loader:
        assert np.array_equal(-order_of(loader), sw.Shuffle(7).order(N).rows(0, 0, N))


def test_closing_while_reads_are_under_way() -> None:
    source = far(budget=400)
    loader = sw.Loader(source, 5, shuffle=False)
    loop = iter(loader)
    next(loop)
    source.units.gate.clear()
    raised: list[BaseException] = []

    def consume() -> None:
        try:
            for _ in loop:
                pass
        except BaseException as error:
            raised.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert source.units.waiting.wait(60)
    engine = loader._engine
    assert engine is not None
    engine.close()  # returns although nothing comes
    assert source.units.pinned
    source.units.gate.set()
    consumer.join(60)
    assert isinstance(raised[0], RuntimeError | CancelledError)
    loader.close()
    for thread in threads_of_loaders():
        thread.join(60)
    assert not source.units.pinned


def test_a_loader_that_is_dropped_gives_everything_up() -> None:
    source = far(budget=1_000)
    loop = iter(sw.Loader(source, 5, shuffle=False))
    next(loop)
    del loop
    gc.collect()
    for thread in threads_of_loaders():
        thread.join(5)
    gc.collect()
    assert source.units.pinned == 0


def test_a_forked_child_reads_on() -> None:
    loader = sw.Loader(far(), 25, shuffle=False)
    loop = iter(loader)
    first = next(loop)["i"]
    rest = in_fork(lambda: [batch["i"].tolist() for batch in loop])
    assert np.array_equal(np.concatenate([first, *rest]), np.arange(N))
    loader.close()


# What it says before it starts.


def ratio(sampler: Any, budget: int, n: int = 20_000, row: int = 8, unit: int = 256) -> float:
    source = FarSource({"i": np.zeros((n, row), np.uint8)}, FarUnits(row, unit, budget))
    found = sw.Loader(source, 100, sampler=sampler, rank=0, world_size=1).fetched_per_used
    assert found is not None
    return found


def test_bytes_fetched_for_a_byte_used() -> None:
    assert ratio(sw.Sequential(), 2_000) == pytest.approx(1, rel=0.01)
    assert ratio(sw.Shuffle(1), 200_000) == pytest.approx(1, rel=0.01)  # all of it stays
    assert ratio(sw.Shuffle(1), 1_000) == pytest.approx(32, rel=0.15)
    assert ratio(sw.Block(64, group=8), 8_192) == pytest.approx(1, rel=0.1)


def test_an_estimate_is_what_is_fetched() -> None:
    """The plan, followed for two epochs, fetches in the second what the estimate says."""
    sampler, n, room = sw.Shuffle(1), 20_000, 400
    units = FarUnits(8, 128, room * 128)
    rows = np.concatenate([sampler.order(n).rows(epoch, 0, n) for epoch in range(3)])
    steps = [units.of(rows[at : at + 10]) for at in range(0, len(rows), 10)]
    told = ratio(sampler, room * 128, n, 8, 128)
    fetches = belady(steps, room) - belady(steps[: len(steps) // 3], room)
    assert told == pytest.approx(fetches / 2 * 128 / (n * 8), rel=0.1)


def test_a_warning_names_a_block_that_does() -> None:
    source = FarSource({"i": np.arange(40_000)}, FarUnits(8, 256, 150_000))
    loader = sw.Loader(source, 100, seed=1)
    with pytest.warns(
        UserWarning, match=r"fetches \d+ bytes for each byte .*Block\((\d+)\)"
    ) as found:
        next(iter(loader))
    k = int(str(found[0].message).partition("Block(")[2].partition(")")[0])
    assert ratio(sw.Block(k), 150_000, 40_000) <= 1.25
    loader.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(loader))  # once
        next(iter(other := sw.Loader(source, 100, sampler=sw.Block(k))))
    other.close()
    loader.close()


def test_rows_at_hand_say_nothing() -> None:
    assert sw.Loader(sw.ArraySource(np.arange(10)), 2).fetched_per_used is None

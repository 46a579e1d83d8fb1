"""Steps that are brought together: each unit once, in few and long requests, and no unit more than
there is room for."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import stepwell as sw
from stepwell.ahead import Ahead
from stepwell.group import Group
from stepwell.units import Bringing, Numbers
from tests import scaled
from tests.buckets import Bucket
from tests.far import FarUnits

ROW, UNIT = 16, 256
K, GROUP, BATCH = 1024, 16, 64
N = 4 * K * GROUP
WINDOW = K * GROUP * ROW


class CountedUnits(FarUnits):
    """Counts the stretches of neighbours that are brought together."""

    def __init__(self, budget: int) -> None:
        super().__init__(ROW, UNIT, budget)
        self.stretches: list[int] = []
        self.brought = 0

    def bring(self, units: Numbers) -> Bringing:
        self.brought += len(units) > 0
        missing = self.missing(units)
        edges = [0, *(np.flatnonzero(np.diff(missing) > 1) + 1).tolist(), len(missing)]
        self.stretches += [b - a for a, b in pairwise(edges) if b > a]
        return super().bring(units)


def driven(units: FarUnits, sampler: Any, batch: int, epochs: int = 1) -> Ahead:
    """Follows a plan as a loader does: brings what it can, plans ahead, finishes a step."""
    order = sampler.order(N)
    steps = [
        units.of(order.rows(epoch, at, batch))
        for epoch in range(epochs)
        for at in range(0, N, batch)
    ]

    def units_of(step: int) -> Numbers:
        return steps[step] if step < len(steps) else np.empty(0, np.int64)

    ahead, brought = Ahead(units, units_of, len(steps)), list[Bringing]()
    for step in steps:
        while (more := ahead.bring()) is not None or ahead.plan():
            brought += more or []
        brought.pop(0).wait(step)
        assert set(step.tolist()) <= units.here
        ahead.finish()
    return ahead


def test_an_epoch_of_blocks_fetches_each_unit_once_and_in_long_requests() -> None:
    units = CountedUnits(3 * WINDOW)
    driven(units, sw.Block(K, seed=3, group=GROUP), BATCH)
    whole = N * ROW // UNIT
    assert sorted(units.fetched) == list(range(whole))
    assert set(units.fetched.values()) == {1}
    # Of the first window little is planned when its first steps begin; of the last one all.
    last = np.flatnonzero(np.cumsum(units.stretches) > 3 * WINDOW // UNIT)
    assert len(last) <= 4 * GROUP
    assert len(units.stretches) <= 24 * N // K


def test_units_of_the_next_window_are_there_before_it_begins() -> None:
    units = CountedUnits(3 * WINDOW)
    order, per = sw.Block(K, seed=3, group=GROUP).order(N), K * GROUP // BATCH
    steps = [units.of(order.rows(0, at, BATCH)) for at in range(0, N, BATCH)]
    ahead, brought = Ahead(units, lambda step: steps[step], len(steps)), list[Bringing]()
    for number in range(per // 2):
        while (more := ahead.bring()) is not None or ahead.plan():
            brought += more or []
        brought.pop(0).wait(steps[number])
        ahead.finish()
    assert not len(units.missing(np.unique(np.concatenate(steps[: 2 * per]))))


@pytest.mark.parametrize("sampler", [sw.Block(K, seed=3, group=GROUP), sw.Shuffle(2)])
@pytest.mark.parametrize("room", [WINDOW // 4, WINDOW, 3 * WINDOW])
def test_no_more_is_held_than_there_is_room_for(sampler: Any, room: int) -> None:
    units = CountedUnits(room)
    ahead = driven(units, sampler, BATCH)
    assert units.max_pinned * UNIT <= max(room, 2 * units.widest * UNIT)
    for bringing in ahead.abandon():
        bringing.release()
    assert units.pinned == 0


def first_group(sampler: Any, batch: int) -> tuple[CountedUnits, int, list[Numbers]]:
    """What is brought first, and its steps."""
    units, order = CountedUnits(3 * WINDOW), sampler.order(N)
    steps = [units.of(order.rows(0, at, batch)) for at in range(0, N, batch)]
    first = Ahead(units, lambda step: steps[step], len(steps)).bring()
    assert first is not None
    return units, len(first), steps


def test_the_first_step_does_not_wait_for_others() -> None:
    units, count, steps = first_group(sw.Shuffle(3), BATCH)
    assert (count, units.widest) == (1, len(steps[0]))


def test_the_first_window_comes_in_long_requests() -> None:
    units, count, steps = first_group(sw.Block(K, seed=3, group=GROUP), BATCH)
    assert count > 1
    assert len(units.stretches) <= 2 * GROUP
    assert not len(units.missing(np.unique(np.concatenate(steps[:count]))))


def test_steps_of_a_window_are_held_together_once_there_is_time() -> None:
    units = CountedUnits(3 * WINDOW)
    driven(units, sw.Block(K, seed=3, group=GROUP), BATCH)
    steps, windows = N // BATCH, N // (K * GROUP)
    assert units.brought <= 3 * windows  # of up to 64 steps each there are
    assert steps // 64 > 3 * windows


def test_a_plan_ends_where_more_would_change_nothing() -> None:
    units, order, planned = FarUnits(ROW, UNIT, 3 * WINDOW), sw.Block(K, 3, GROUP).order(8 * N), 0

    def units_of(step: int) -> Numbers:
        nonlocal planned
        planned += 1
        return units.of(order.rows(0, step * BATCH, BATCH))

    ahead = Ahead(units, units_of, 8 * N // BATCH)
    brought = list[Bringing]()
    while (more := ahead.bring()) is not None or ahead.plan():
        brought += more or []
    windows = 2 * 3  # twice the room, and there is none that nobody needs
    assert windows * K * GROUP <= planned * BATCH <= (windows + 1) * K * GROUP


def test_a_group_ends_where_others_are_needed() -> None:
    group = Group(10_000)
    here, there = np.arange(100), np.arange(1000, 1100)
    for units in [here] * 40 + [there] * 24:
        group.add(units)
    assert group.is_full
    assert group.taken()[0] == 40
    assert group.steps == 24
    assert group.taken().units.tolist() == there.tolist()


@given(st.lists(st.lists(st.integers(0, 200), max_size=20), min_size=1), st.integers(1, 300))
@settings(max_examples=scaled(100, smallest=30))
def test_groups_have_every_step_in_turn(parts: list[list[int]], room: int) -> None:
    steps = [np.unique(np.array(part, np.int64)) for part in parts]
    group, taken = Group(room), 0
    for step in [*steps, None]:
        if step is not None:
            group.add(step)
        while group.is_full or (step is None and group.steps):
            count, units = group.taken()
            assert 1 <= count <= 64
            want = np.unique(np.concatenate(steps[taken : taken + count]))
            assert units.tolist() == want.tolist()
            taken += count
    assert taken == len(steps)


def test_a_bucket_is_asked_for_long_ranges(s3: Bucket, tmp_path: Any) -> None:
    k, group, rows = 4096, 8, 1 << 17
    with sw.StepWriter(tmp_path / "steps", [("x", "<u8"), ("y", "<u8")]) as writer:
        writer.append({"x": np.arange(rows), "y": np.arange(rows)})
    url = s3.upload(tmp_path / "steps", "grouped")
    steps = sw.open(url, **s3.options, window_bytes=3 * k * group * 16)
    s3.proxy.requests.clear()
    with sw.Loader(steps, 1024, sampler=sw.Block(k, seed=1, group=group), threads=2) as loader:
        order = sw.Block(k, seed=1, group=group).order(rows).rows(0, 0, rows)
        assert np.array_equal(np.concatenate([b["x"] for b in loader]), order)
        loader.close()
    asked = s3.proxy.asked_for("steps.npy")
    blocks = rows // k
    assert len(asked) <= 2 * blocks  # alone, each of 128 steps asks for pieces of eight blocks

"""The schedule: which positions each rank reads in each step, against docs/sampling.md."""

from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from stepwell import _core
from stepwell._core import Schedule
from tests import scaled
from tests.reference import sampling as reference


@dataclass(frozen=True)
class Case:
    """Where a run stands, and how many share it."""

    length: int
    batch: int
    world: int
    drop_last: bool
    epoch: int
    position: int
    in_turn: bool

    def rank(
        self, rank: int, position: int | None = None, worker: int = 0, workers: int = 1
    ) -> Schedule:
        place = self.epoch, self.position if position is None else position
        numbers = self.length, self.batch, rank, self.world, self.drop_last
        return Schedule(*numbers, *place, worker, workers, self.in_turn)

    def ranks(self) -> list[Schedule]:
        return [self.rank(rank) for rank in range(self.world)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    batch = draw(st.integers(1, 30))
    world = draw(st.integers(1, 6))
    drop_last = draw(st.booleans())
    least = batch * world if drop_last else 1
    length = draw(st.integers(least, least + 120))
    position = draw(st.integers(0, length) | st.sampled_from([0, length - 1, length]))
    epoch = draw(st.integers(0, 2**40))
    return Case(length, batch, world, drop_last, epoch, position, draw(st.booleans()))


Step = tuple[int, int, int, int, int]


def positions(case: Case, step: Step) -> list[int]:
    _, start, count, _, stride = step
    assert stride == (case.world if case.in_turn else 1)
    return [(start + i * stride) % case.length for i in range(count)]


@given(cases(), st.data())
@settings(max_examples=scaled(400, smallest=40))
def test_every_step_is_the_pages(case: Case, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, case.world - 1))
    schedule = case.rank(rank)
    place = case.epoch, case.position, case.in_turn
    model = reference.steps(case.length, case.batch, rank, case.world, case.drop_last, *place)
    for n, expected in enumerate(islice(model, 40)):
        step = schedule.step(n)
        assert (step[0], step[3]) == (expected.epoch, expected.after), n
        assert positions(case, step) == list(expected.positions), n
        assert 0 <= step[1] < case.length, n


@given(cases())
@settings(max_examples=scaled(300, smallest=30))
def test_ranks_read_side_by_side_and_agree_where_they_stand(case: Case) -> None:
    at = case.position
    for n in range(15):
        steps = [rank.step(n) for rank in case.ranks()]
        assert len({(epoch, after) for epoch, _, _, after, _ in steps}) == 1
        epoch, _, _, after, _ = steps[0]
        if epoch > case.epoch and after <= case.batch * case.world:
            at = 0  # a new epoch
        parts = [positions(case, step) for step in steps]
        turns = zip(*parts, strict=True) if case.in_turn else parts
        read = [p for turn in turns for p in turn]
        # The positions up to `after`, each once and in order; then the padding of a tail.
        assert read[: after - at] == list(range(at, after))
        assert read[after - at :] == [p % case.length for p in range(len(read) - (after - at))]
        assert len({step[2] for step in steps}) == 1, "unequal batches"
        at = after


@given(
    length=st.integers(1, 2**62),
    batch=st.integers(1, 2**40),
    world=st.integers(1, 2**20),
    drop_last=st.booleans(),
    epoch=st.integers(0, 2**32),
    in_turn=st.booleans(),
    data=st.data(),
)
@settings(max_examples=scaled(300, smallest=30))
def test_numbers_beyond_any_data_set(
    length: int,
    batch: int,
    world: int,
    drop_last: bool,
    epoch: int,
    in_turn: bool,
    data: st.DataObject,
) -> None:
    size = batch * world
    if drop_last:
        length = max(length, size)
    position = data.draw(st.integers(0, length))
    rank = data.draw(st.integers(0, world - 1))
    n = data.draw(st.integers(0, 2**62))
    schedule = Schedule(length, batch, rank, world, drop_last, epoch, position, in_turn=in_turn)

    def steps_from(p: int) -> int:
        whole, left = divmod(length - p, size)
        return whole + (left > 0 and not drop_last)

    assert schedule.steps_from(position) == steps_from(position)
    first, each = steps_from(position), steps_from(0)
    epochs, number = (0, n) if n < first else (1 + (n - first) // each, (n - first) % each)
    begin = (0 if epochs else position) + number * size
    left = length - begin
    count = batch if left >= size else -(-left // world)
    assert schedule.step(n) == (
        epoch + epochs,
        (begin + rank * (1 if in_turn else count)) % length,
        count,
        min(length, begin + size),
        world if in_turn else 1,
    )


@given(cases(), st.integers(1, 5), st.integers(0, 12))
@settings(max_examples=scaled(300, smallest=30))
def test_workers_of_a_rank_make_its_steps_in_turn(case: Case, workers: int, taken: int) -> None:
    rank = case.world - 1
    whole = case.rank(rank, 0)
    epoch = [whole.step(n) for n in range(whole.steps_from(0))]
    for worker in range(workers):
        mine = epoch[worker::workers]
        begun_at = partial(case.rank, rank, worker=worker, workers=workers)
        schedule = begun_at(0)
        assert schedule.steps_from(0) == len(mine)
        assert [schedule.step(n) for n in range(len(mine))] == mine
        if not mine:
            with pytest.raises(IndexError, match="no step"):
                schedule.step(0)
            continue
        assert schedule.step(len(mine)) == (case.epoch + 1, *mine[0][1:])
        done = min(taken, len(mine) - 1)  # and begun anew where it stands after some of its own
        resumed = begun_at(mine[done][3])
        assert resumed.steps_from(mine[done][3]) == len(mine) - done - 1
        assert [resumed.step(n) for n in range(len(mine) - done - 1)] == mine[done + 1 :]


GOOD: dict[str, Any] = {
    "length": 100,
    "batch": 8,
    "rank": 0,
    "world": 2,
    "drop_last": False,
    "epoch": 0,
    "position": 0,
}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch": 0}, r"batch_size must be at least 1, got 0"),
        ({"world": 0}, r"world_size must be at least 1, got 0"),
        ({"rank": 2}, r"rank must be in \[0, 2\), got 2"),
        ({"rank": -1}, r"rank must be in \[0, 2\), got -1"),
        ({"length": 0}, r"no rows"),
        ({"position": -1}, r"position must be in \[0, 100\], got -1"),
        ({"position": 101}, r"position must be in \[0, 100\], got 101"),
        ({"worker": 1}, r"worker must be in \[0, 1\), got 1"),
        ({"length": 2**62 + 1}, r"at most 2\*\*62 rows"),
        ({"batch": 2**62}, r"batch_size times world_size is too large"),
        ({"batch": 2**40, "world": 2**40}, r"batch_size times world_size is too large"),
        ({"batch": 51, "drop_last": True}, r"100 rows are fewer than one global batch of 102"),
    ],
    ids=str,
)
def test_numbers_that_make_no_sense(wrong: dict[str, Any], message: str) -> None:
    Schedule(**GOOD)
    with pytest.raises(ValueError, match=message):
        Schedule(**{**GOOD, **wrong})


@pytest.mark.parametrize(
    "wrong", [{"epoch": -1}, {"epoch": 2**64}, {"length": 2**63}, {"rank": 0.5}]
)
def test_what_is_no_64_bit_number_is_a_type_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Schedule(**{**GOOD, **wrong})
    with pytest.raises(TypeError):
        _core.Schedule(**GOOD).step(-1)

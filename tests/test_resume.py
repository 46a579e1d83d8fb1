"""Resuming is exact: whatever changes in between, no row comes twice and none is missing."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stepwell as sw
from tests.test_loader import N, assert_rows, numbers, order_of, shuffled

CASES = 1000


@dataclass(frozen=True)
class World:
    """What may be different after a restart."""

    batch_size: int
    world_size: int
    threads: int
    prefetch: int
    python: bool


@dataclass(frozen=True)
class Case:
    rows: int
    sampler: Any
    epochs: int
    worlds: tuple[World, ...]
    """The n-th part of the run happens in the n-th world."""
    stops: tuple[int, ...]
    """Global steps in each part but the last."""


def a_mix(draw: random.Random, rows: int, seed: int) -> sw.Mix:
    parts = np.split(np.arange(rows), sorted(draw.choices(range(rows), k=2)))
    shares = [(part, draw.randint(1, 9)) for part in parts if len(part)]
    return sw.Mix(shares, seed, length=draw.choice([None, draw.randint(1, 2 * rows)]))


def make_case(number: int) -> Case:
    draw = random.Random(number)
    rows = draw.choice([1, 2, 7, draw.randint(1, 60), draw.randint(60, 600), 4097, 5000])
    seed = draw.getrandbits(64)
    samplers: list[sw.Sampler] = [
        sw.Shuffle(seed),
        sw.Shuffle(seed),
        sw.Block(draw.randint(1, 20), seed=seed, group=(most := draw.randint(1, 5))),
        sw.Block(draw.randint(1, 20), seed=seed, group=2 * most, lanes=draw.randint(2, 2 * most)),
        sw.Sequential(window=draw.randint(1, 4), stride=draw.randint(1, 4)),
        sw.Iid(seed),
        sw.Weighted(np.random.default_rng(number).random(rows) + 0.01, seed=seed),
        a_mix(draw, rows, seed),
    ]
    sampler = draw.choice(samplers)
    least = max(1, sampler.order(rows).length // 200)
    worlds = tuple(
        World(
            batch_size=draw.randint(least, least + 40),
            world_size=draw.choice([1, 1, 2, 3, 4]),
            threads=draw.randint(1, 4),
            prefetch=draw.randint(1, 6),
            python=draw.random() < 0.2,
        )
        for _ in range(draw.randint(2, 5))
    )
    stops = tuple(draw.randint(0, 12) for _ in worlds[1:])
    return Case(rows, sampler, draw.randint(1, 3), worlds, stops)


def loaders_of(case: Case, world: World) -> list[sw.Loader]:
    data = np.arange(case.rows) * 3 + 1
    source: Any = sw.ArraySource({"v": data})
    if world.python:
        source = source.map(lambda batch: batch)
    return [
        sw.Loader(
            source,
            world.batch_size,
            sampler=case.sampler,
            rank=rank,
            world_size=world.world_size,
            threads=world.threads,
            prefetch=world.prefetch,
        )
        for rank in range(world.world_size)
    ]


def global_steps(loaders: list[sw.Loader]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Each step's epoch and its global batch, the ranks in turn."""
    loops = [loader.forever() for loader in loaders]
    while True:
        parts = [next(loop)["v"] for loop in loops]
        assert len({len(part) for part in parts}) == 1, "ranks got unequal batches"
        in_turn = getattr(loaders[0].order, "lanes", 1) > 1
        rows = np.stack(parts, axis=1) if in_turn else np.concatenate(parts)
        yield loaders[0].epoch, rows.reshape(-1)


def run(case: Case) -> list[NDArray[np.int64]]:
    """The rows of each epoch, as the ranks consumed them, restarted after every stop."""
    epochs: list[list[NDArray[np.int64]]] = [[] for _ in range(case.epochs)]
    state: dict[str, Any] | None = None
    for part, world in enumerate(case.worlds):
        loaders = loaders_of(case, world)
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(state)
        last = part == len(case.worlds) - 1
        limit = None if last else case.stops[part]
        steps = global_steps(loaders)
        taken = 0
        while limit is None or taken < limit:
            here = loaders[0].state_dict()
            if here["epoch"] >= case.epochs:
                break
            epoch, rows = next(steps)
            states = [loader.state_dict() for loader in loaders]
            assert all(s == states[0] for s in states), "ranks stand at different places"
            taken += 1
            # What a shared tail repeats is padding, not progress.
            epochs[epoch].append(rows[: loaders[0].position - here["position"]])
        state = json.loads(json.dumps(loaders[0].state_dict()))
        for loader in loaders:
            loader.close()
    return [np.concatenate(parts) if parts else np.empty(0, np.int64) for parts in epochs]


@pytest.mark.parametrize("block", range(12))
def test_a_chain_of_resumes_equals_one_run(block: int) -> None:
    for number in range(block * CASES // 12, (block + 1) * CASES // 12):
        case = make_case(number)
        order = case.sampler.order(case.rows)
        for epoch, got in enumerate(run(case)):
            expected = order.rows(epoch, 0, order.length) * 3 + 1
            np.testing.assert_array_equal(got, expected, err_msg=f"case {number}, epoch {epoch}")


def test_the_cases_cover_what_they_should() -> None:
    cases = [make_case(n) for n in range(CASES)]
    assert {type(c.sampler).__name__ for c in cases} == {
        "Shuffle", "Block", "Sequential", "Iid", "Weighted", "Mix"
    }  # fmt: skip
    changed = [c for c in cases if len({w.world_size for w in c.worlds}) > 1]
    assert len(changed) > CASES / 3
    assert any(replace(w, python=True) == w for c in cases for w in c.worlds)
    assert max(len(c.worlds) for c in cases) == 5


# States.


def test_a_state_is_plain_numbers() -> None:
    loader = sw.Loader(numbers(), 64, seed=7)
    next(iter(loader))
    assert loader.state_dict() == {
        "version": 1,
        "sampler": "Shuffle",
        "seed": 7,
        "epoch": 0,
        "position": 64,
        "length": N,
        "fingerprint": numbers().fingerprint,
    }


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (lambda: sw.Loader(numbers(N - 1), 64, seed=7), "length"),
        (lambda: sw.Loader(numbers(), 64, seed=8), "seed"),
        (lambda: sw.Loader(numbers(), 64, shuffle=False), "sampler"),
        (lambda: sw.Loader(numbers(), 64, sampler=sw.Block(4, seed=7)), "sampler"),
        (lambda: sw.Loader(np.arange(N), 64, seed=7), "fingerprint"),
        (lambda: sw.Loader({"i": np.arange(N) + 1, "x": np.zeros((N, 2))}, 64, seed=7), "fingerpr"),
    ],
)
def test_a_state_of_other_data_is_refused_by_field(other: Any, field: str) -> None:
    state = sw.Loader(numbers(), 64, seed=7).state_dict()
    loader = other()
    with pytest.raises(sw.StateError, match=field):
        loader.load_state_dict(state)
    assert loader.state_dict()["position"] == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("version", 2), ("epoch", -1), ("epoch", 1.5), ("position", N + 1), ("position", None)),
        *(("fingerprint", 3), ("seed", "gone")),
    ],
)
def test_a_state_that_was_edited_is_refused(key: str, value: Any) -> None:
    loader = sw.Loader(numbers(), 64)
    state = {**loader.state_dict(), key: value}
    if value == "gone":
        del state[key]
    with pytest.raises(sw.StateError, match=key):
        loader.load_state_dict(state)


def test_a_state_at_the_end_of_an_epoch_continues_with_the_next() -> None:
    for drop_last, size in ((False, 500), (False, 64), (True, 64)):
        loader = sw.Loader(numbers(), size, seed=7, drop_last=drop_last)
        loop = iter(loader)
        for _ in range(len(loader)):
            next(loop)
        assert loader.epoch == 0  # its loop has not ended
        before = loader.state_dict()
        assert next(loop, None) is None
        assert before == loader.state_dict()
        for batch_size, world_size in ((500, 1), (64, 1), (1, 1), (100, 3)):
            again = sw.Loader(numbers(), batch_size, seed=7, rank=0, world_size=world_size)
            again.load_state_dict(before)
            again.set_epoch(before["epoch"])  # as a program does that counts by the state
            assert next(iter(again))["i"][0] == shuffled(1)[0]


def test_a_state_from_before_that_stands_at_the_last_row_continues_with_the_next_epoch() -> None:
    state = {**sw.Loader(numbers(), 64, seed=7).state_dict(), "position": N}
    for epoch in (None, 0, 1):
        loader = sw.Loader(numbers(), 64, seed=7)
        loader.load_state_dict(state)
        if epoch is not None:
            loader.set_epoch(epoch)
        assert_rows(order_of(loader), shuffled(1))


def test_what_is_left_of_an_epoch_may_be_less_than_a_step_of_this_world() -> None:
    state = {**sw.Loader(numbers(), 64, seed=7).state_dict(), "position": 960}
    loader = sw.Loader(numbers(), 64, seed=7, drop_last=True)
    loader.load_state_dict(state)
    assert_rows(order_of(loader), shuffled(1)[:960])
    loader = sw.Loader(numbers(), 64, seed=7)
    loader.load_state_dict(state)
    assert_rows(order_of(loader), shuffled()[960:])

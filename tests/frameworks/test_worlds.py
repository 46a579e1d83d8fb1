"""A run that stops in a world of four processes, goes on in one of two and ends in one of three."""

from typing import Any

import numpy as np
import pytest

from tests.frameworks.conftest import Launch
from tests.frameworks.notes import N, Seen
from tests.frameworks.worlds_program import BATCH, SAMPLERS, WORLDS


@pytest.fixture
def seen(launch: Launch) -> Seen:
    return launch("worlds_program")


@pytest.mark.row("resume")
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_row_comes_once_whatever_becomes_of_the_world(seen: Seen, name: str) -> None:
    sampler = SAMPLERS[name]
    order = sampler.order(N)
    epochs: list[int] = []
    at = taken = 0
    for world in WORLDS:
        said = seen.rows(f"{name}, {world} ranks", ranks=world)
        assert all(state == said[0][1] for _, state in said)
        for step in zip(*(steps for steps, _ in said), strict=True):
            ((epoch, before, after),) = {tuple(facts[:3]) for facts in step}
            if len(epochs) == epoch:
                epochs.append(epoch)
                at = 0
            assert before == at
            parts = [rows for *_, rows in step]
            in_turn = getattr(order, "lanes", 1) > 1
            rows = np.stack(parts, axis=int(in_turn)).reshape(-1)
            last = N if after < before else after  # the state is then the next epoch's beginning
            expected = around(order, epoch, before, len(rows))
            assert rows.tolist() == expected
            assert len(rows) - (last - before) < world  # what fills up the last step
            assert {len(part) for part in parts} == {min(BATCH, -(-(N - before) // world))}
            at, taken = last, taken + last - before
    assert (at, taken, epochs) == (N, 2 * N, [0, 1])


def test_each_rank_of_each_world_reads_blocks_of_its_own(seen: Seen) -> None:
    shared = {}
    for name, sampler in list(SAMPLERS.items())[1:]:
        for world in WORLDS:
            said = seen.rows(f"{name}, {world} ranks", ranks=world)
            rows = [
                [row for first, *_, part in steps if not first for row in part] for steps, _ in said
            ]
            blocks = [{row // sampler.k for row in each} for each in rows]
            shared[name, world] = sum(map(len, blocks)) - len(set().union(*blocks))
    for world in WORLDS:
        # One window has lanes that are not of whole blocks, and the last step is filled up.
        assert shared["in blocks of one's own", world] <= 12 - 1 + world - 1
        assert shared["in blocks", world] > 30


def around(order: Any, epoch: int, begin: int, count: int) -> list[int]:
    """The rows from a position on, around the end of the epoch."""
    whole = order.rows(epoch, 0, N)
    return list(map(int, np.resize(np.roll(whole, -begin), count)))

"""Lanes: each rank meets blocks of its own, and nothing else about an order changes."""

from collections import Counter
from itertools import islice, pairwise
from math import gcd
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

import stepwell as sw
from tests import scaled
from tests.plain import PlainSource

Rows = NDArray[np.int64]


@st.composite
def samplers(draw: st.DrawFn) -> sw.Block:
    k, seed = draw(st.integers(1, 20)), draw(st.integers(0, 2**64 - 1))
    group = draw(st.integers(1, 24))
    return sw.Block(k, seed, group, lanes=draw(st.integers(1, group)))


def of_ranks(data: Any, batch: int, sampler: sw.Block, world: int, **options: Any) -> list[Any]:
    """A loader for each rank."""
    return [
        sw.Loader(data, batch, sampler=sampler, rank=r, world_size=world, threads=1, **options)
        for r in range(world)
    ]


def in_order(parts: list[Rows], sampler: sw.Block) -> Rows:
    """What the ranks read in a step, by position."""
    return np.stack(parts, axis=sampler.lanes > 1).reshape(-1)


def together(loaders: list[sw.Loader], sampler: sw.Block) -> Rows:
    """What the ranks read in a loop, by position; the padding of a tail is left out."""
    at, rows = loaders[0].position, []
    for step in zip(*loaders, strict=True):
        after = loaders[0].position
        rows.append(in_order([batch["data"] for batch in step], sampler)[: after - at])
        at = after
    return np.concatenate(rows)


@settings(max_examples=scaled(200, smallest=25), deadline=None)
@given(
    n=st.integers(1, 700),
    sampler=samplers(),
    world=st.integers(1, 9),
    batch=st.integers(1, 40),
    drop_last=st.booleans(),
    in_python=st.booleans(),
)
def test_every_row_comes_once_an_epoch_over_all_ranks(
    n: int, sampler: sw.Block, world: int, batch: int, drop_last: bool, in_python: bool
) -> None:
    drop_last = drop_last and n >= batch * world
    data = PlainSource({"data": np.arange(n)}) if in_python else np.arange(n)
    loaders = of_ranks(data, batch, sampler, world, drop_last=drop_last)
    for epoch in range(2):
        rows = together(loaders, sampler)
        kept = n // (batch * world) * batch * world if drop_last else n
        assert rows.tolist() == sampler.order(n).rows(epoch, 0, kept).tolist()
        assert len(np.unique(rows)) == kept
    for loader in loaders:
        loader.close()


@settings(max_examples=scaled(100, smallest=15), deadline=None)
@given(
    n=st.integers(1, 500),
    sampler=samplers(),
    worlds=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 9)), min_size=2, max_size=5),
    data=st.data(),
)
def test_a_run_goes_on_with_any_other_world(
    n: int, sampler: sw.Block, worlds: list[tuple[int, int]], data: st.DataObject
) -> None:
    """At any position that a state can have, again and again."""
    read: list[Rows] = []
    state = None
    for turn, (world, batch) in enumerate(worlds):
        loaders = of_ranks(np.arange(n), batch, sampler, world)
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(state)
        is_last = turn == len(worlds) - 1
        steps = None if is_last else data.draw(st.integers(0, max(loaders[0].remaining - 1, 0)))
        at = loaders[0].position
        for step in islice(zip(*loaders, strict=True), steps):
            after = n if loaders[0].epoch else loaders[0].position
            read.append(in_order([batch["data"] for batch in step], sampler)[: after - at])
            at = after
        state = loaders[0].state_dict()
        assert all(loader.state_dict() == state for loader in loaders)
        for loader in loaders:
            loader.close()
    assert np.concatenate(read).tolist() == sampler.order(n).rows(0, 0, n).tolist()


def met(n: int, sampler: sw.Block, world: int, epoch: int, begin: int = 0) -> Counter[int]:
    """How many ranks meet each block in the rest of an epoch."""
    order = sampler.order(n)
    rows = [
        order.rows(epoch, begin + rank, -(-(n - begin - rank) // world), world)
        for rank in range(min(world, n - begin))
    ]
    return Counter(block for each in rows for block in np.unique(each // sampler.k).tolist())


def uneven(n: int, sampler: sw.Block, epoch: int) -> set[int]:
    """The blocks of windows whose lanes are not of whole blocks: the last one, that of the short
    block."""
    blocks = -(-n // sampler.k)
    rounds = -(-blocks // sampler.lanes)
    windows = -(-rounds // (sampler.group // sampler.lanes))
    bounds = [min(w * rounds // windows * sampler.lanes, blocks) for w in range(windows + 1)]
    standing = sw.Block(1, sampler.seed, 1).order(blocks).rows(epoch, 0, blocks).tolist()
    found = set()
    for first, last in pairwise(bounds):
        here = standing[first:last]
        if len(here) % sampler.lanes or (n % sampler.k and blocks - 1 in here):
            found |= set(here)
    return found


@settings(max_examples=scaled(300, smallest=40), deadline=None)
@given(
    n=st.integers(1, 3000),
    k=st.integers(1, 25),
    seed=st.integers(0, 2**64 - 1),
    lanes=st.integers(2, 12),
    each=st.integers(1, 5),
    world=st.integers(1, 12),
    epoch=st.integers(0, 5),
    data=st.data(),
)
def test_ranks_have_blocks_of_their_own(
    n: int, k: int, seed: int, lanes: int, each: int, world: int, epoch: int, data: st.DataObject
) -> None:
    sampler = sw.Block(k, seed, each * lanes, lanes)
    share = world // gcd(world, lanes)
    blocks = -(-n // k)
    counts = met(n, sampler, world, epoch)
    assert len(counts) == blocks
    for block in counts.keys() - uneven(n, sampler, epoch):
        assert counts[block] <= share
    if share == 1:
        assert counts.total() <= blocks + 2 * (lanes - 1)
    begin = data.draw(st.integers(0, n - 1))  # wherever a run goes on
    rest = met(n, sampler, world, epoch, begin)
    for block in rest.keys() - uneven(n, sampler, epoch):
        assert rest[block] <= share


def test_without_lanes_every_rank_meets_every_block() -> None:
    counts = met(4000, sw.Block(100, seed=7, group=8), 4, epoch=0)
    assert set(counts.values()) == {4}


@pytest.mark.parametrize(
    ("world", "lanes", "min_", "max_"),
    [(4, 4, 1, 1.04), (2, 4, 1, 1.04), (4, 8, 1, 1.1), (4, 1, 4, 4), (3, 4, 3, 3), (6, 8, 3, 3.3)],
)
def test_bytes_that_all_ranks_fetch_for_each_that_is_used(
    world: int, lanes: int, min_: float, max_: float
) -> None:
    """Ten million rows in blocks of 65,536, as docs/sampling.md has it. Each block that a rank
    meets is fetched once: none is in two windows."""
    n, k = 10_000_000, 65_536
    sampler = sw.Block(k, seed=7, lanes=lanes)
    counts = met(n, sampler, world, epoch=0)
    assert len(counts) == 153
    fetched = sum(min(k, n - block * k) * count for block, count in counts.items())
    assert min_ <= fetched / n <= max_


def test_an_error_names_the_positions_that_a_rank_took_in_turn() -> None:
    def fail(batch: sw.Batch) -> sw.Batch:
        raise ZeroDivisionError

    sampler = sw.Block(10, seed=7, lanes=2)
    loader = sw.Loader(np.arange(100), 8, sampler=sampler, rank=1, world_size=2, transform=fail)
    with pytest.raises(ZeroDivisionError) as caught:
        next(iter(loader))
    assert caught.value.__notes__ == [
        "in the batch of 8 rows at position 1, and every 2 positions from there, of epoch 0"
    ]


def test_damaged_rows_are_left_out_of_batches_taken_in_turn() -> None:
    class Damaged(PlainSource):
        def _fill(self, rows: Rows, out: sw.Batch) -> None:
            if {3, 50} & set(rows.tolist()):
                raise sw.FormatError("damaged")
            super()._fill(rows, out)

    source = Damaged({"data": np.arange(100)})
    sampler = sw.Block(10, seed=7, lanes=2)
    loaders = of_ranks(source, 8, sampler, 2, on_corrupt="skip")
    rows = [row for loader in loaders for batch in loader for row in batch["data"].tolist()]
    assert sorted(rows) == [row for row in range(100) if row not in (3, 50)]
    assert sorted(row for loader in loaders for row, _ in loader.corrupt) == [3, 50]


def test_a_state_of_other_lanes_is_refused() -> None:
    loader = sw.Loader(np.arange(100), 8, sampler=sw.Block(10, seed=7, lanes=2))
    next(iter(loader))
    state = loader.state_dict()
    assert state["sampler"] == "Block(k=10, group=64, lanes=2)"
    for lanes in (1, 4):
        other = sw.Loader(np.arange(100), 8, sampler=sw.Block(10, seed=7, lanes=lanes))
        with pytest.raises(
            sw.StateError, match=r"state 'sampler': expected 'Block\(k=10, group=64"
        ):
            other.load_state_dict(state)

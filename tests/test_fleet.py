"""The simulator of fleets: against closed forms, the real orders, and the page that it writes."""

import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import stepwell as sw
from benchmarks import fleet
from benchmarks.fleet_queue import Path, Readers, Request, run
from benchmarks.fleet_store import FIGURES
from benchmarks.fleet_traffic import (
    NEAR_BYTES,
    RANGE_BYTES,
    UNIT_BYTES,
    belady,
    missed,
    plan,
    rows_of_rank,
)
from benchmarks.results import table
from stepwell import _core
from stepwell.sampler import Sampler
from stepwell.source import Rows
from tests import ROOT, scaled

FAST = 1e15


def each_step(size: int, steps: int) -> list[Request]:
    return [Request(size, step, step) for step in range(steps)]


# Time.


def test_bandwidth_alone() -> None:
    """Bytes by the bandwidth of the link, or of the connections where they carry less."""
    link = run([each_step(10**6, 50)], 50, 0, Readers(8, 1e9), Path(1e8, FAST, 0))
    assert link.seconds == pytest.approx(50e6 / 1e8)
    few = run([each_step(10**6, 50)], 50, 0, Readers(2, 1e9), Path(1e8, 1e7, 0))
    assert few.seconds == pytest.approx(50e6 / 2e7)
    assert (few.requests, few.bytes) == (50, 50_000_000)


def test_latency_alone() -> None:
    """Little's law: so many under way, each for so long."""
    found = run([each_step(1, 1000)], 1000, 0, Readers(8, 1e9), Path(FAST, FAST, 0.02))
    assert 1000 / found.seconds == pytest.approx(8 / 0.02)


def test_latencies_that_differ() -> None:
    """The mean of a log-normal distribution counts, not its median."""
    way = Path(FAST, FAST, 0.02, spread=0.5)
    found = run([[Request(1, 0, 0)] * 20_000], 1, 0, Readers(8, 1e9), way)
    mean = 0.02 * math.exp(0.5**2 / 2)
    assert 20_000 / found.seconds == pytest.approx(8 / mean, rel=0.02)


def test_nothing_ahead() -> None:
    """Each step waits for its request, and then works."""
    way = Path(1e8, FAST, 0.02)
    found = run([each_step(10**6, 50)], 50, 0.05, Readers(8, 1e9, steps_ahead=0), way)
    assert found.seconds == pytest.approx(50 * (0.02 + 0.01 + 0.05))
    assert found.waiting() == pytest.approx(0.03 / 0.08)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_are_at_a_step_each(threads: int) -> None:
    """Ten requests are three rounds of four connections, whoever has finished meanwhile."""
    plans = [[Request(1, step, step) for step in range(30) for _ in range(10)]]
    readers = Readers(4, 1e9, steps_ahead=8, threads=threads)
    found = run(plans, 30, 0, readers, Path(FAST, FAST, 0.02))
    assert found.seconds == pytest.approx(30 / threads * 3 * 0.02)
    assert (found.requests, found.bytes) == (300, 300)


def test_a_slow_loop_waits_once() -> None:
    way = Path(1e8, FAST, 0.02)
    found = run([each_step(10**6, 50)], 50, 0.02, Readers(8, 1e9), way)
    assert found.waiting(skipped=1) == pytest.approx(0)
    assert found.seconds == pytest.approx(found.handed[0] + 50 * 0.02)


def test_equal_requests_end_together() -> None:
    """Eight that begin at once share the link and end at once: no other hides their latency."""
    found = run([each_step(10**6, 400)], 400, 0.005, Readers(8, 1e9), Path(1e8, FAST, 0.02))
    assert found.seconds == pytest.approx(400 / 8 * (0.02 + 8 * 0.01), rel=0.01)


def test_a_fast_loop_is_as_fast_as_the_link() -> None:
    way = Path(1e8, FAST, 0.02, spread=0.3)
    found = run([each_step(10**5, 4000)], 4000, 0.0005, Readers(64, 1e9), way)
    assert found.waiting() == pytest.approx(0.5, abs=0.02)


def test_a_window_holds_back() -> None:
    """With room for one request, the latency of each is waited for."""
    found = run([each_step(1000, 50)], 50, 0.01, Readers(8, 1000), Path(FAST, FAST, 0.03))
    assert found.step_s(skipped=1) == pytest.approx(0.03)


def test_ranks_share_the_link_of_their_node_and_wait_for_each_other() -> None:
    way, plans = Path(1e8, FAST, 0), [each_step(10**6, 20)] * 4
    together = run(plans, 20, 0, Readers(4, 1e9, on_node=4), way)
    apart = run(plans, 20, 0, Readers(4, 1e9, on_node=1), way)
    assert together.seconds == pytest.approx(4 * apart.seconds)
    uneven = run([plans[0], each_step(4 * 10**6, 20)], 20, 0, Readers(4, 1e9), way)
    assert uneven.seconds == pytest.approx(4 * apart.seconds)


def test_the_bucket_answers_no_more_than_it_can() -> None:
    way = Path(FAST, FAST, 0.001)
    found = run([each_step(1, 500)], 500, 0, Readers(100, 1e9), way, requests_s=1000)
    assert found.seconds == pytest.approx(0.5, abs=0.002)


def test_a_disk_has_a_way_of_its_own() -> None:
    plans = [[request._replace(on_disk=True) for request in each_step(10**6, 20)]]
    slow, quick = Path(1e6, 1e6, 1), Path(1e8, FAST, 0)
    assert run(plans, 20, 0, Readers(4, 1e9), slow, quick).seconds == pytest.approx(0.2)


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=30),
    st.integers(1, 4),
    st.floats(0, 0.05),
    st.floats(1e6, 1e9),
    st.floats(1, 4),
)
@settings(max_examples=scaled(60, smallest=20), deadline=None)
def test_more_bandwidth_never_waits_more(
    sizes: Sequence[int], connections: int, latency_s: float, link: float, more: float
) -> None:
    plans = [[Request(size, step, step) for step, size in enumerate(sizes)]]

    def seconds(rate: float) -> float:
        way = Path(rate, rate, latency_s)
        return run(plans, len(sizes), 0.01, Readers(connections, 1e9), way).seconds

    assert seconds(link * more) <= seconds(link) * (1 + 1e-9)


# Requests.


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize(
    "sampler", [sw.Shuffle(5), sw.Block(16, 5, group=4), sw.Sequential()], ids=lambda s: s.name
)
def test_rows_are_those_of_the_schedule(sampler: Sampler, rank: int) -> None:
    order = sampler.order(10_000)
    schedule = _core.Schedule(10_000, 50, rank, 4, False, 0, 0)
    for step, rows in enumerate(rows_of_rank(sampler, 10_000, 50, rank, 4, 20)):
        _, start, count, *_ = schedule.step(step)
        assert rows.tolist() == order.rows(0, start, count).tolist()


def test_lanes_are_apart() -> None:
    of = [
        np.concatenate(rows_of_rank(sw.Block(16, lanes=4), 8192, 128, rank, 4, 16))
        for rank in range(4)
    ]
    assert np.array_equal(np.sort(np.concatenate(of)), np.arange(8192))
    assert not set(of[0] // 16) & set(of[1] // 16)


def units_of(rows: Rows, row_bytes: int) -> set[int]:
    return {
        unit
        for row in rows.tolist()
        for unit in range(row * row_bytes // UNIT_BYTES, -(-(row + 1) * row_bytes // UNIT_BYTES))
    }


@pytest.mark.parametrize("row_bytes", [32, 2048, 3000, 10_000])
def test_shuffled_rows_are_fetched_by_units(row_bytes: int) -> None:
    """Every step fetches what it needs, where nothing else is near."""
    steps = rows_of_rank(sw.Shuffle(1), 10**9, 64, 0, 1, 5)
    found = plan(steps, row_bytes, 0).requests
    for step, rows in enumerate(steps):
        size = sum(request.bytes for request in found if request.first == step)
        assert size == UNIT_BYTES * len(units_of(rows, row_bytes))


def test_each_unit_comes_once_where_there_is_room() -> None:
    rows = rows_of_rank(sw.Block(64, 3, group=8), 8192, 128, 0, 1, 64)
    found = plan(rows, 2048, 1 << 22)
    assert sum(request.bytes for request in found.requests) == 8192 * 2048
    assert found.cuts[-1] == 64
    assert max(request.bytes for request in found.requests) >= 64 * 2048
    assert plan(rows, 2048, 0).requests != found.requests


@given(
    st.lists(st.lists(st.integers(0, 4000), min_size=1, max_size=20), min_size=1, max_size=12),
    st.sampled_from([100, 4096, 9000]),
    st.sampled_from([0, 1 << 14, 1 << 18]),
)
@settings(max_examples=scaled(100, smallest=30), deadline=None)
def test_every_step_has_its_units(
    steps: list[list[int]], row_bytes: int, window_bytes: int
) -> None:
    """By the bytes: between what is needed once, and that with all gaps, each time again."""
    rows = [np.array(each, np.int64) for each in steps]
    found, cuts = plan(rows, row_bytes, window_bytes)
    once = set[int]().union(*(units_of(each, row_bytes) for each in rows))
    again = sum(len(units_of(each, row_bytes)) for each in rows)
    size = sum(request.bytes for request in found)
    assert UNIT_BYTES * len(once) <= size <= again * (UNIT_BYTES + NEAR_BYTES)
    assert all(0 <= r.first <= r.last < len(rows) and r.bytes <= RANGE_BYTES for r in found)
    assert [r.first for r in found] == sorted(r.first for r in found)
    assert found[0].first == 0
    assert cuts == sorted(set(cuts))


# Caches.


def best(uses: tuple[int, ...], kept: frozenset[int], capacity: int) -> int:
    """Fewest fetches, by trying everything."""
    if not uses:
        return 0
    missing = uses[0] not in kept
    there = kept | {uses[0]}
    choices = [there] if len(there) <= capacity else [there - {gone} for gone in there]
    return missing + min(best(uses[1:], choice, capacity) for choice in choices)


@given(st.lists(st.integers(0, 4), max_size=9), st.integers(0, 3))
@settings(max_examples=scaled(60, smallest=20), deadline=None)
def test_no_cache_fetches_less(uses: list[int], capacity: int) -> None:
    assert len(belady(uses, capacity)) == best(tuple(uses), frozenset(), capacity)


def test_what_drives_keep() -> None:
    """A node of N that keeps everything misses what it never read: (1 - 1/N)^epoch."""
    assert missed(1, 1.0, 1, 3) == (1, 0, 0)
    assert missed(1, 0.25, 1, 3)[1:] == pytest.approx((0.75, 0.75), abs=0.01)
    for nodes in (4, 16):
        expected = [(1 - 1 / nodes) ** epoch for epoch in range(5)]
        assert missed(nodes, 1.0, 1, 5) == pytest.approx(expected, abs=0.06)


# Outcomes.


def test_lanes_fetch_what_they_use() -> None:
    job = fleet.Job()
    found = fleet.simulate("Block({k}, lanes=ranks)", 64, job)
    assert found.fetched == pytest.approx(1, abs=0.02)
    assert found.waiting < 0.01
    rows = 1e12 / job.row_bytes
    assert found.get_usd(rows) == pytest.approx(1e12 / RANGE_BYTES * 0.4e-6, rel=0.6)
    assert found.hours(rows) == pytest.approx(1e12 / (64 * 100e6) / 3600, rel=0.01)


def test_the_page_has_what_the_program_computes() -> None:
    page = (ROOT / "docs" / "scale.md").read_text()
    assert "\n".join(table(("", "", ""), FIGURES)) in page
    for headings, lines in (
        (fleet.FIRST, fleet.first_epoch(fleet.Job(), [8])),
        (fleet.LATER, fleet.later_epochs(fleet.Job(), [100], [8])),
    ):
        for line in table(headings, list(lines)):
            assert line in page
    written = re.findall(r"<!-- fleet: (\w+) -->\n\n\|", page)
    assert written == ["size", "first", "later", "figures", "check"]
    assert "**missed**" not in page


def test_markers_that_are_not_there_are_an_error() -> None:
    with pytest.raises(ValueError, match="expected one pair of markers"):
        fleet.spliced("# A page\n", "first", "| |")

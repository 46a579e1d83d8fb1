"""Which units stay when there is no room: against a model that looks at all of them."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from stepwell.files.residents import UNKNOWN, Numbers, Residents, spanned

UNITS = 40


@pytest.mark.parametrize("seed", range(20))
def test_who_goes(seed: int) -> None:
    """Not what is pinned; then what is needed last, or nobody knows when; then what was used
    longest ago."""
    random = np.random.default_rng(seed)
    budget = int(random.integers(1, 12))
    known, held = Residents(budget), list[Numbers]()
    known.extend(UNITS // 2)
    known.extend(UNITS - UNITS // 2)
    here, pins, used, expected = set[int](), [0] * UNITS, [0] * UNITS, [UNKNOWN] * UNITS
    for clock in range(1, 100):
        units = np.sort(random.choice(UNITS, random.integers(1, 9), replace=False))
        what = random.integers(3)
        if what == 0:
            new = units[known.slots(units) == 0]
            known.claim(new)
            slots = known.slots(units)
            known.pin(slots)
            known.arrived(slots, np.ones(len(slots), np.uint32))
            here |= set(units.tolist())
            held.append(units)
            for unit in units.tolist():
                pins[unit], used[unit] = pins[unit] + 1, clock
            for unit in new.tolist():
                expected[unit] = UNKNOWN
        elif what == 1 and held:
            units = held.pop(random.integers(len(held)))
            known.unpin(known.slots(units))
            for unit in units.tolist():
                pins[unit], used[unit] = pins[unit] - 1, clock
        elif what == 2:
            times = random.integers(0, 10, len(units))
            known.expect(units, times)
            for unit, when in zip(units.tolist(), times.tolist(), strict=True):
                expected[unit] = when if unit in here else expected[unit]
        free = [unit for unit in here if not pins[unit]]
        count = min(max(len(here) - budget, 0), len(free))
        rank = {unit: (-expected[unit], used[unit]) for unit in free}
        gone = set(known.surplus().tolist())
        assert len(gone) == count
        assert all(rank[unit] <= rank[other] for unit in gone for other in set(free) - gone)
        here -= gone
        assert (known.slots(np.arange(UNITS)) > 0).tolist() == [u in here for u in range(UNITS)]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=30))
def test_spanned(spans: list[tuple[int, int]]) -> None:
    firsts = np.array([first for first, _ in spans], np.int64)
    counts = np.array([count for _, count in spans], np.int64)
    want = sorted({n for first, count in spans for n in range(first, first + count + 1)})
    assert spanned(firsts, firsts + counts).tolist() == want

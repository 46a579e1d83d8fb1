"""Mixes: shares that are exact, and rows that are a pure function of seed and position, against a
plain Python reference. Resuming is in test_resume, with every other sampler."""

import math
import pickle
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import stepwell as sw
from tests import scaled

SHARES = st.lists(st.integers(1, 40), min_size=1, max_size=7)


def mixed(shares: list[Any], sizes: list[int], **options: Any) -> sw.Mix:
    """Sources of these sizes; row i of source k is 1000 * k + i."""
    parts = [np.arange(size) + 1000 * k for k, size in enumerate(sizes)]
    return sw.Mix(list(zip(parts, shares, strict=True)), **options)


def reference(shares: list[int], sizes: list[int], seed: int, count: int) -> list[tuple[int, int]]:
    """The source and the row of each position, one after another, as docs/sampling.md has it."""
    total, drawn, made = sum(shares), [0] * len(shares), []
    seeds = sw.Iid(seed).order(2**62).rows(0, 0, len(shares)).tolist()
    for at in range(count):
        may = [k for k, s in enumerate(shares) if at >= drawn[k] * total // s]
        k = min(may, key=lambda k: (-(-(drawn[k] + 1) * total // shares[k]), k))
        epoch, place = divmod(drawn[k], sizes[k])
        row = sw.Shuffle(seeds[k]).order(sizes[k]).rows(epoch, place, 1)
        made.append((k, int(row[0])))
        drawn[k] += 1
    return made


@settings(max_examples=scaled(60, smallest=10))
@given(data=st.data(), shares=SHARES, seed=st.integers(0, 2**64 - 1))
def test_rows_are_those_of_the_reference(data: st.DataObject, shares: list[int], seed: int) -> None:
    sizes = [data.draw(st.integers(1, 30)) for _ in shares]
    length = data.draw(st.none() | st.integers(1, 60))
    mix = mixed(shares, sizes, seed=seed, length=length)
    order = mix.order(sum(sizes))
    assert order.length == (length or sum(sizes))
    want = reference(shares, sizes, seed, 3 * order.length)
    starts = np.cumsum([0, *sizes])
    for epoch in range(3):  # which goes on where the last one ended
        start = data.draw(st.integers(0, order.length))
        count = data.draw(st.integers(0, order.length - start))
        first = epoch * order.length + start
        rows = [starts[k] + row for k, row in want[first : first + count]]
        assert order.rows(epoch, start, count).tolist() == rows


@settings(max_examples=scaled(50, smallest=10))
@given(shares=st.lists(st.integers(1, 300), min_size=1, max_size=9))
def test_shares_are_exact(shares: list[int]) -> None:
    mix = mixed(shares, [1] * len(shares), length=3000)
    owners = mix.order(len(shares)).rows(0, 0, 3000)
    period = math.lcm(*(share.denominator for share in mix.shares))
    for k, share in enumerate(mix.shares):
        assert share == Fraction(shares[k], sum(shares))
        drawn = np.concatenate([[0], np.cumsum(owners == k)])
        at = np.arange(3001)
        low = at * share.numerator // share.denominator
        assert ((drawn == low) | (drawn == -(-at * share.numerator // share.denominator))).all()
        if period <= 3000:  # any stretch of a period, wherever it begins
            assert set((drawn[period:] - drawn[:-period]).tolist()) == {int(share * period)}


@pytest.mark.parametrize(
    ("given", "shares"),
    [
        ([0.7, 0.3], [Fraction(7, 10), Fraction(3, 10)]),
        ([1 / 3, 2 / 3], [Fraction(1, 3), Fraction(2, 3)]),
        ([0.123456, 0.876544], [Fraction(1929, 15625), Fraction(13696, 15625)]),
        ([2, np.float32(0.5), np.int8(1)], [Fraction(4, 7), Fraction(1, 7), Fraction(2, 7)]),
        ([Fraction(1, 999), 1], [Fraction(1, 1000), Fraction(999, 1000)]),
    ],
)
def test_shares_as_people_give_them(given: Any, shares: Any) -> None:
    assert list(mixed(given, [5] * len(given)).shares) == shares


def test_shares_without_a_small_denominator_are_rounded() -> None:
    for shares in ([2**0.5, 1, 0.1], [1e-12, 1.0, 2.0], [10**12 + 39, 10**12 + 61]):
        found = mixed(shares, [3] * len(shares)).shares
        assert sum(found) == 1
        for share, wanted in zip(found, shares, strict=True):
            assert share > 0
            assert abs(float(share) - wanted / sum(shares)) <= 1e-6


def test_every_row_of_a_source_comes_before_one_comes_again() -> None:
    mix = mixed([0.7, 0.2, 0.1], [100, 37, 8], seed=3)
    rows = np.concatenate([mix.order(145).rows(epoch, 0, 145) for epoch in range(10)])
    for begin, end in ((0, 100), (100, 137), (137, 145)):
        drawn = rows[(rows >= begin) & (rows < end)]
        whole = drawn[: len(drawn) // (end - begin) * (end - begin)].reshape(-1, end - begin)
        assert len(whole) > 1
        assert (np.sort(whole) == np.arange(begin, end)).all()
        assert (whole[0] != whole[1]).any()


@pytest.mark.parametrize("make", [sw.Loader, sw.torch.Loader, sw.jax.Loader])
def test_loaders_take_it(make: Any) -> None:
    a, b = (sw.ArraySource({"x": np.full(n, k, "i4")}) for k, n in enumerate((50, 30)))
    mix = sw.Mix({a: 0.7, b: 0.3}, seed=7)
    loader = make(mix, 20)
    got = [np.asarray(batch["x"]) for batch in loader]
    assert [int(batch.sum()) for batch in got] == [6, 6, 6, 6]
    assert loader.state_dict()["sampler"] == "Mix(7 of 50, 3 of 30; length=80)"
    again = pickle.loads(pickle.dumps(loader)) if make is sw.Loader else make(mix, 8)
    again.load_state_dict(loader.state_dict())
    rest = np.concatenate([np.asarray(batch["x"]) for batch in again])
    assert len(rest) == 80
    assert rest.sum() == 24
    other = make(sw.Mix({a: 0.6, b: 0.4}, seed=7), 20)
    with pytest.raises(sw.StateError, match="sampler"):
        other.load_state_dict(loader.state_dict())
    for options in ({"seed": 7}, {"shuffle": False}, {"sampler": sw.Iid()}):
        with pytest.raises(ValueError, match="order of its own"):
            make(mix, 20, **options)


def test_ranks_share_every_batch() -> None:
    mix = mixed([3, 1], [60, 20], seed=1)
    loops = [iter(sw.Loader(mix, 4, rank=rank, world_size=2)) for rank in range(2)]
    for at in range(0, 80, 8):
        got = np.concatenate([next(loop)["data"] for loop in loops])
        rows = mix.order(80).rows(0, at, 8)
        assert got.tolist() == mix.source.take(rows)["data"].tolist()
        assert (got >= 1000).sum() == 2


def test_a_source_that_grows_gives_the_rows_that_it_had(tmp_path: Path) -> None:
    with sw.StepWriter(tmp_path / "s", [("data", "<i8")]) as writer:
        writer.append({"data": np.arange(10)})
        writer.commit()
        steps = sw.StepReader.open(tmp_path / "s")
        mix = sw.Mix([(steps, 1), (np.arange(100, 110), 1)])
        loader = sw.Loader(mix, 4)
        writer.append({"data": np.arange(10, 50)})
    loop = iter(loader)
    first = [next(loop)["data"] for _ in range(2)]
    steps.refresh()
    rest = [batch["data"] for batch in islice(loader.forever(), 5)]
    assert set(np.concatenate(first + rest).tolist()) == {*range(10), *range(100, 110)}


def test_paths_are_sources(tmp_path: Path) -> None:
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.arange(5))
    mix = sw.Mix({tmp_path / "a.npy": 2, str(tmp_path / "b.npy"): 1})
    assert len(mix.source) == 10
    assert repr(mix) == "Mix(10 rows, shares 0.6667, 0.3333, seed=0)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sw.Mix({}), "at least one source"),
        (lambda: mixed([1, 0], [1, 1]), "share of source 1: expected a number above 0, got 0"),
        (lambda: mixed([1, -0.5], [1, 1]), "above 0, got -0.5"),
        (lambda: mixed([float("nan")], [1]), "share of source 0: expected a finite number"),
        (lambda: mixed([float("inf")], [1]), "finite number, got inf"),
        (lambda: mixed(["x"], [1]), "finite number, got 'x'"),
        (lambda: mixed([1, 1], [1, 0]), "source 1: expected rows, got none"),
        (lambda: mixed([1], [1], length=0), "length: expected at least 1"),
        (lambda: mixed([1], [1], seed=-1), "seed: expected"),
        (lambda: mixed([1], [4]).order(5), "expected 5 rows, the sources had 4"),
        (lambda: sw.Mix([(np.arange(3), 1), (np.zeros(3), 1)]), "part 1: expected fields"),
    ],
)
def test_what_no_mix_is_made_of(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_sources_without_shares() -> None:
    for shares in ([np.arange(3), np.arange(3)], [(np.arange(3), 1), np.arange(2)], np.arange(2)):
        with pytest.raises(TypeError, match=r"pairs of a source and its share, got \w+ as item"):
            sw.Mix(shares)  # type: ignore[arg-type]


def test_it_is_no_source() -> None:
    mix = mixed([1], [5])
    with pytest.raises(TypeError, match="a Loader takes it as it is"):
        sw.as_source(mix)
    with pytest.raises(TypeError, match="a Loader takes it as it is"):
        sw.Loader({"x": mix}, 2)  # whose rows would not be mixed
    with pytest.raises(IndexError, match="outside an epoch of 5"):
        mix.order(5).rows(0, 3, 3)

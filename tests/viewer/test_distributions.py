"""Histograms and curves, compared with what NumPy makes of the same values."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stepwell as sw
from stepwell.stores import RunColumn
from stepwell.viewer.distributions import (
    BINS,
    DISTINCT,
    POINTS,
    Histogram,
    amounts,
    bin_edges,
    histogram,
    is_score,
    parts,
    record_sizes,
    run_curves,
    run_histogram,
    sample,
)
from tests import replays

STEP = np.dtype([("value", "<f4"), ("run_id", "<u4"), ("step_index", "<u2")])


def counted(values: Any, found: Histogram) -> list[int]:
    """How NumPy counts them in the same bins."""
    if found.exact:
        few, counts = np.unique(values, return_counts=True)
        assert few.tolist() == list(found.edges)
        return list(counts.tolist())
    return list(np.histogram(np.asarray(values, np.float64), np.array(found.edges))[0].tolist())


VALUES: dict[str, NDArray[Any]] = {
    "normal": np.random.default_rng(1).standard_normal(5000),
    "bytes": np.random.default_rng(2).integers(0, 256, (50, 8, 8)).astype(np.uint8),
    "negative": np.random.default_rng(3).integers(-1000, 7, 300),
    "64 bits": np.random.default_rng(4).integers(0, 2**64, 500, np.uint64),
    "half": np.random.default_rng(5).random(400).astype(np.float16),
    "few": np.array([2048, 512, 512, 1024] * 9, np.uint32),
    "one": np.full(7, 3.5),
    "flags": np.array([True, False, True]),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_counted_as_numpy_does(name: str) -> None:
    values = VALUES[name]
    found = histogram(values)
    assert found is not None
    assert list(found.counts) == counted(values.reshape(-1), found)
    assert sum(found.counts) == values.size
    assert (found.low, found.high) == (float(values.min()), float(values.max()))
    assert found.mean == pytest.approx(float(values.mean(dtype=np.float64)))
    assert found.exact == (len(np.unique(values)) <= DISTINCT)


def test_what_is_no_number_is_missing() -> None:
    values = np.array([1.0, np.nan, 2.0, np.inf, -np.inf])
    found = histogram(values)
    assert found is not None
    assert (found.edges, found.counts, found.missing) == ((1.0, 2.0), (1, 1), 3)
    assert histogram(np.array([np.nan])) is None
    assert histogram(np.array([], np.int64)) is None
    assert histogram(np.array(["a"])) is None


def test_many_values_are_sampled() -> None:
    values = np.arange(1_000_000, dtype=np.int64)
    found = histogram(values)
    assert found is not None
    assert len(found.counts) == BINS
    assert sum(found.counts) == 1 << 16
    assert min(found.counts) > 1000  # of all parts of them


@pytest.mark.parametrize(("low", "high"), [(0, 12), (-7, 500), (3, 2**62), (0, 39)])
def test_bins_of_whole_numbers_have_whole_widths(low: int, high: int) -> None:
    edges = bin_edges(low, high, True, 10_000)
    widths = {b - a for a, b in itertools.pairwise(edges)}
    assert len(widths) == 1
    assert edges[0] == low
    assert edges[-2] <= high < edges[-1]
    assert len(edges) <= BINS + 1


# Of runs.


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[sw.StepReader, dict[str, Any]]:
    """A thousand runs, and the values of their columns."""
    path, random = tmp_path_factory.mktemp("runs") / "steps", np.random.default_rng(7)
    values: dict[str, list[Any]] = {
        "name": [f"run {i}" for i in range(1000)],
        "seed": random.integers(0, 1 << 30, 1000).tolist(),
        "constant": [4] * 1000,
        "won": random.integers(0, 2, 1000).tolist(),
        "highest_tile": (2 ** random.integers(7, 12, 1000)).tolist(),
        "max_score": random.integers(0, 50_000, 1000).tolist(),
        "loss": [None if i % 10 == 0 else float(x) for i, x in enumerate(random.random(1000))],
    }
    values["loss"][1] = float("inf")
    columns: dict[str, Any] = {
        name: RunColumn(type(each[1]), optional=name == "loss") for name, each in values.items()
    }
    with sw.StepWriter(path, STEP, columns=columns) as writer:
        for i in range(1000):
            rows = np.zeros(1 + i % 37, "f4")
            writer.append({"value": rows}, **{name: each[i] for name, each in values.items()})
    store = sw.StepReader.open(path)
    return store, {**values, "num_steps": [1 + i % 37 for i in range(1000)]}


def test_columns_are_chosen_by_what_they_hold(runs: tuple[sw.StepReader, Any]) -> None:
    found = amounts(runs[0])
    assert [each.name for each in found] == ["max_score", "num_steps", "highest_tile", "loss"]
    assert [is_score(each) for each in found] == [True, False, False, False]


def test_runs_are_counted_as_numpy_does(runs: tuple[sw.StepReader, Any]) -> None:
    store, values = runs
    for each in amounts(store):
        name, found = each.name, run_histogram(store, each)
        known = np.array([x for x in values[name] if x is not None and np.isfinite(x)])
        assert list(found.counts) == counted(known, found), name
        assert found.missing == len(values[name]) - len(known)
        assert found.mean == pytest.approx(known.mean())
        assert (found.low, found.high) == (known.min(), known.max())
        assert found.exact == (name == "highest_tile")


def test_a_few_values_that_are_all_different_are_no_categories(tmp_path: Path) -> None:
    """Their bars would stand side by side, however far apart they are."""
    columns: dict[str, Any] = {"reward": float, "again": float, "highest_tile": int}
    with sw.StepWriter(tmp_path / "steps", [("x", "<i4")], columns=columns) as writer:
        for i, reward in enumerate((1.5, 2.25, 98.5, 99.75)):
            writer.append({"x": [i]}, reward=reward, again=i % 2 * 3.5, highest_tile=2**i)
    store = sw.StepReader.open(tmp_path / "steps")
    found = {each.name: run_histogram(store, each) for each in amounts(store)}
    assert (found["reward"].exact, sum(found["reward"].counts)) == (False, 4)
    assert found["reward"].counts[0] == found["reward"].counts[-1] == 2
    assert list(found["again"].edges) == [0, 3.5]
    assert list(found["highest_tile"].edges) == [1, 2, 4, 8]


def test_a_curve_has_the_mean_and_limits_of_stretches(runs: tuple[sw.StepReader, Any]) -> None:
    store, values = runs
    (curve,) = run_curves(store, amounts(store)[0]).values()
    stretches = np.array(values["max_score"]).reshape(POINTS, -1)
    assert curve.x == tuple(range(0, 1000, 1000 // POINTS))
    np.testing.assert_allclose(curve.mean, stretches.mean(1))
    assert curve.low == tuple(stretches.min(1).tolist())
    assert curve.high == tuple(stretches.max(1).tolist())


def test_part_of_the_runs(runs: tuple[sw.StepReader, Any]) -> None:
    store, values = runs
    part = store.where("max_score < 500")
    scores = [x for x in values["max_score"] if x < 500]
    assert sum(run_histogram(part, amounts(part)[0]).counts) == len(scores)
    assert amounts(store.where("0")) == []
    assert amounts(sw.ArraySource(np.arange(3))) == []


def test_recordings_have_a_curve_each(tmp_path: Path) -> None:
    for number, name in enumerate(("first", "second")):
        with sw.ReplayWriter(tmp_path / "replays", name) as writer:
            for episode in range(3):
                for step in range(episode + 1):
                    writer.record_step(
                        observation=np.zeros(2, "f4"),
                        action=0,
                        reward=float(10 * number + 1),
                        terminated=step == episode,
                    )
    store = sw.ReplayReader.open(tmp_path / "replays")
    rewards = amounts(store)[0]
    assert rewards.name == "total_reward"
    assert {name: curve.mean for name, curve in run_curves(store, rewards).items()} == {
        "first": (1.0, 2.0, 3.0),
        "second": (11.0, 22.0, 33.0),
    }


# Of rows.


def test_all_rows_of_a_small_source_are_seen() -> None:
    random = np.random.default_rng(0)
    arrays = {"x": random.random((300, 4)), "y": random.integers(0, 9, 300)}
    found = sample(sw.ArraySource(arrays))
    assert (found.rows, found.of, found.left_out, found.problem) == (300, 300, 0, "")
    for name, values in arrays.items():
        shown = found.fields[name].histogram
        assert shown is not None
        assert sum(shown.counts) == values.size
        assert shown.mean == pytest.approx(values.mean())
        assert list(shown.counts) == counted(values.reshape(-1), shown)


def test_a_sample_comes_from_all_over_a_source() -> None:
    found = sample(sw.ArraySource(np.arange(1_000_000)), 1024)
    shown = found.fields["data"].histogram
    assert shown is not None
    assert 512 <= found.rows <= 1024
    assert shown.low < 150_000
    assert shown.high > 850_000
    assert shown.mean == pytest.approx(500_000, rel=0.25)


def test_text_bytes_and_lists(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"text": str, "blob": bytes, "tokens": sw.Field("<i4", ragged=True)}
    texts = ["", "ab", "<i>c</i>"] * 20
    with sw.RecordWriter(tmp_path / "records", fields) as writer:
        writer.append(
            {
                "text": texts,
                "blob": [b"x" * i for i in range(60)],
                "tokens": [np.arange(i % 5, dtype="i4") for i in range(60)],
            }
        )
    store = sw.RecordReader.open(tmp_path / "records")
    found = sample(store)
    lengths = {"text": [len(t) for t in texts], "blob": list(range(60))}
    lengths["tokens"] = [i % 5 for i in range(60)]
    for name, expected in lengths.items():
        shown = found.fields[name].histogram
        assert found.fields[name].of == "lengths"
        assert shown is not None
        assert list(shown.counts) == counted(expected, shown)
    assert found.fields["text"].example in texts[1:3]
    sizes = record_sizes(store)
    assert sizes is not None
    assert sum(sizes.counts) == 60


def test_large_records_are_not_read(tmp_path: Path) -> None:
    with sw.RecordWriter(tmp_path / "records", {"blob": bytes}) as writer:
        writer.append({"blob": [b"x" * (1 << 20 if i == 5 else 9) for i in range(20)]})
    found = sample(sw.RecordReader.open(tmp_path / "records"))
    assert (found.rows, found.left_out) == (19, 1)
    shown = found.fields["blob"].histogram
    assert shown is not None
    assert (shown.low, shown.high) == (9, 9)


def test_damaged_rows_are_left_out_and_named(tmp_path: Path) -> None:
    with sw.StepWriter(tmp_path / "steps", STEP) as writer:
        writer.append({"value": np.arange(40_000, dtype="f4")})
    with (tmp_path / "steps" / "steps.npy").open("r+b") as file:
        file.seek(200_000)
        file.write(b"damage")
    found = sample(sw.StepReader.open(tmp_path / "steps", memory="map"), 40_000)
    assert 0 < found.left_out < 2000
    assert found.rows + found.left_out == 40_000
    assert "steps.npy" in found.problem


def test_a_damaged_game_leaves_the_others_to_be_sampled(folder: Path, tmp_path: Path) -> None:
    with sw.open(folder / "games.a2pack") as pack:
        whole = sample(pack)
    shutil.copy(folder / "games.a2pack", tmp_path)
    with (tmp_path / "games.a2pack").open("r+b") as file:
        file.seek(4096 + 500)
        file.write(b"damage")
    found = sample(sw.open(tmp_path / "games.a2pack"))
    assert (whole.rows, whole.left_out) == (3, 0)
    assert (found.rows, found.left_out) == (2, 1)
    assert "entry 0" in found.problem


def test_recordings_that_are_unlike_are_looked_at_one_by_one(tmp_path: Path) -> None:
    replays.record_all(tmp_path / "replays", "deep", range(3))
    with sw.ReplayWriter(tmp_path / "replays", "flat") as writer:
        writer.record_step(observation=np.ones(1, np.float32), action=1, reward=1.0)
    found = parts(sw.ReplayReader.open(tmp_path / "replays"))
    assert set(found) == {"deep", "flat"}
    assert sample(found["flat"]).fields["observation"].field.shape == (1,)
    assert list(parts(sw.ArraySource(np.arange(3)))) == [""]

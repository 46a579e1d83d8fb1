"""Statistics of sources: NumPy's numbers, in one pass, once."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell import ArraySource, Batch, Source, batches
from stepwell.views import Join
from tests.plain import PlainSource


@pytest.mark.parametrize("make", [ArraySource, PlainSource])
def test_they_are_numpys(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 1000)  # some rows at a time
    random = np.random.default_rng(1)
    columns: dict[str, Any] = {
        "far": random.normal(1e9, 1e-3, 500),  # where a sum of squares has no digit left
        "wide": random.normal(3, 7, (500, 2, 3)).astype("f4"),
        "byte": random.integers(0, 256, (500, 4)).astype("u1"),
        "large": random.integers(0, 2**64, 500, dtype=np.uint64),
        "flag": random.random(500) < 0.3,
        "same": np.full(500, -7, "i2"),
        "time": np.full(500, 3, "m8[s]"),
        "words": [np.arange(n % 4) for n in range(500)],
    }
    made = sw.Ragged.from_list(columns["words"], sw.Field("i8", ragged=True))
    source: Source = make({**columns, "words": made} if make is ArraySource else columns)
    found = source.statistics()
    assert list(found) == ["far", "wide", "byte", "large", "flag", "same"]
    for name, each in found.items():
        values = columns[name]
        assert each.count == 500
        np.testing.assert_allclose(each.mean, values.mean(0, np.float64), rtol=1e-12)
        np.testing.assert_allclose(each.std, values.std(0, np.float64), rtol=1e-5)
        for mine, theirs in ((each.min, values.min(0)), (each.max, values.max(0))):
            assert mine.dtype == values.dtype
            np.testing.assert_array_equal(mine, theirs)
        assert each.mean.shape == each.std.shape == values.shape[1:]
    with pytest.raises(ValueError, match="read-only"):
        found["byte"].max[0] = 0


def test_they_are_made_once_for_a_fingerprint(tmp_path: Path) -> None:
    read: list[int] = []

    def note(batch: Batch) -> Batch:
        read.append(len(batch["x"]))
        return batch

    with sw.StepWriter(tmp_path / "s", [("x", "<f4")]) as writer:
        writer.append({"x": np.arange(100)})
        writer.commit()
        source = sw.StepReader.open(tmp_path / "s")
        view = source.map(note)
        first = view.statistics()
        assert read.count(100) == 1
        assert view.statistics()["x"] is first["x"]
        assert read.count(100) == 1
        assert source.map(lambda b: {"x": b["x"] * 2}).statistics()["x"].max == 198
        assert "_statistics" not in pickle.loads(pickle.dumps(source)).__dict__
        assert source.statistics()["x"].count == 100
        writer.append({"x": np.arange(100)})
    assert source.refresh()
    assert source.statistics()["x"].count == view.statistics()["x"].count == 200


VIEWS: dict[str, Callable[[Source], Source]] = {
    "itself": lambda source: source,
    "columns": lambda source: source.columns(["x"]),
    "select": lambda source: source.select(slice(100, 900)),
    "concat": lambda source: source.concat(source),
    "join": lambda source: Join({"x": source.columns(["x"])}),
    "windows": lambda source: source.windows(1),
    "padded": lambda source: source.windows(1, pad=True),
    "transitions": lambda source: source.transitions(observation="x", terminated=True),
    "returns": lambda source: source.returns_to_go(reward="x"),
}


@pytest.mark.parametrize("view", VIEWS)
def test_rows_that_are_changed_between_those_that_a_fingerprint_is_of(
    view: str, tmp_path: Path
) -> None:
    array = np.arange(1000)
    with sw.RecordWriter(tmp_path / "r", {"x": "<i8"}) as writer:
        writer.append({"x": array})
        writer.commit()
        store = sw.RecordReader.open(tmp_path / "r")
        views = [VIEWS[view](store), VIEWS[view](ArraySource({"x": array}))]
        for each in views:
            assert each.statistics()["x"].max < 1000
        writer.update([501], {"x": np.array([5000])})
    array[501] = 5000
    assert store.refresh()
    for each in views:
        assert each.statistics()["x"].max == each[:]["x"].max() == 5000


def test_values_that_are_no_numbers() -> None:
    found = ArraySource({"a": np.array([1, np.nan, 3]), "b": np.array([1, np.inf])[[0, 1, 1]]})
    made = found.statistics()
    assert np.isnan([getattr(made["a"], n) for n in ("mean", "std", "min", "max")]).all()
    assert made["b"].mean == made["b"].max == np.inf
    assert ArraySource({"t": np.zeros(2, "M8[s]")}).statistics() == {}
    with pytest.raises(ValueError, match="expected rows"):
        ArraySource(np.empty(0)).statistics()

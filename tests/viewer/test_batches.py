"""Rows to look at: a batch is exactly the one that a loader gives at that step."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell.description import Description
from stepwell.viewer.batches import Choice, Lines, chosen, unlike_where
from stepwell.viewer.shelf import Entry, Shelf

STEP = np.dtype([("x", "<i4"), ("run_id", "<u4"), ("step_index", "<u2")])


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Entry:
    """Runs of 1 to 20 steps, whose value is the number of the row."""
    path, first = tmp_path_factory.mktemp("steps") / "steps", 0
    with sw.StepWriter(path, STEP, columns={"length": int}) as writer:
        for length in range(1, 21):
            writer.append({"x": np.arange(first, first + length, dtype="i4")}, length=length)
            first += length
    return Shelf([str(path)])[0]


def values(found: Lines, name: str = "x") -> list[Any]:
    return [line.cells.get(name) for line in found.lines]


def test_rows_in_order(steps: Entry) -> None:
    found = chosen(steps, Choice(row=200), 20)
    assert (found.count, found.short) == (210, 0)
    assert [line.row for line in found.lines] == list(range(200, 210))
    assert values(found) == list(range(200, 210))


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("batch", [16, 64])
def test_a_batch_is_the_loaders(steps: Entry, seed: int, batch: int) -> None:
    loader = sw.Loader(steps.store, batch, seed=seed)
    for step, given in enumerate(islice(loader.forever(), 2 * len(loader) + 3)):
        found = chosen(steps, Choice(seed=seed, step=step, batch=batch), 20)
        assert values(found) == given["x"].tolist()
        assert found.short == batch - len(given["x"])


def test_a_batch_of_some_runs_is_the_loaders(steps: Entry) -> None:
    loader = sw.Loader(steps.store.where("length > 15"), 32, seed=3)
    for step, given in enumerate(loader):
        found = chosen(steps, Choice(where="length > 15", seed=3, step=step, batch=32), 20)
        assert values(found) == given["x"].tolist()
        assert found.count == 90


def test_windows_are_the_loaders_with_their_mask(steps: Entry) -> None:
    loader = sw.Loader(steps.store.windows(8, pad=True), 4, seed=5)
    for step, given in enumerate(islice(loader, 10)):
        found = chosen(steps, Choice(seed=5, step=step, batch=4, window=8), 20)
        mask = given["mask"].reshape(-1)
        assert [not line.padding for line in found.lines] == mask.tolist()
        expected = [x if own else None for x, own in zip(given["x"].flat, mask, strict=True)]
        assert values(found) == expected
        assert [line.step for line in found.lines] == list(range(8)) * 4


def test_windows_in_order(steps: Entry) -> None:
    found = chosen(steps, Choice(row=1, window=4), 8)
    assert found.count == 210
    assert [(line.row, line.step) for line in found.lines] == [
        (r, s) for r in (1, 2) for s in range(4)
    ]
    assert values(found) == [1, 2, None, None, 2, None, None, None]


def test_many_windows_are_shown_in_part(steps: Entry) -> None:
    found = chosen(steps, Choice(seed=1, batch=100, window=20), 20)
    assert len(found.lines) == 200
    assert found.notes == ["the first 10 of 100 windows are shown"]


WRONG = {
    "a row too far": (Choice(row=210), IndexError, "expected a row below 210, got 210"),
    "a window too far": (Choice(row=999, window=2), IndexError, "a window below 210, got 999"),
    "no batch": (Choice(seed=1, batch=0), ValueError, "batch of 1 to 200 rows to look at, got 0"),
    "a huge batch": (Choice(seed=1, batch=10**9), ValueError, "got 1,000,000,000"),
    "a huge window": (Choice(window=10**9), ValueError, "windows of 1 to 200 steps"),
    "a mistake in SQL": (Choice(where="lenght > 1"), ValueError, "no such column: lenght"),
    "no rows": (Choice(where="length > 99", seed=1), ValueError, "there are no rows"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(steps: Entry, name: str) -> None:
    choice, error, words = WRONG[name]
    with pytest.raises(error, match=words):
        chosen(steps, choice, 20)


def test_nothing_to_look_at_is_no_error(steps: Entry) -> None:
    assert chosen(steps, Choice(where="length > 99"), 20).lines == []


def test_a_field_that_a_record_lacks_is_not_zero(tmp_path: Path) -> None:
    fields = {"label": sw.Field("<i8", optional=True), "text": sw.Field(str, optional=True)}
    with sw.RecordWriter(tmp_path / "records", fields) as writer:
        writer.append({"label": [1, 2]})
        writer.append({"text": ["<b>"]})
    found = chosen(Shelf([str(tmp_path / "records")])[0], Choice(), 20)
    assert values(found, "label") == [1, 2, None]
    assert values(found, "text") == [None, None, "<b>"]


def test_a_damaged_row_leaves_the_others(tmp_path: Path) -> None:
    with sw.StepWriter(tmp_path / "steps", STEP) as writer:
        writer.append({"x": np.arange(2000, dtype="i4")})
    with (tmp_path / "steps" / "steps.npy").open("r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    entry = Shelf([str(tmp_path / "steps")])[0]
    found = chosen(entry, Choice(row=390), 40)  # blocks of checksums have 409 rows
    damaged = [line.row for line in found.lines if line.damage]
    assert damaged == [line.row for line in found.lines if line.cells["x"] is None]
    assert 0 < len(damaged) < 40
    assert "steps.npy" in str(next(line.damage for line in found.lines if line.damage))


def test_unlike_recordings_begin_with_the_first() -> None:
    facts = {"unlike": "…", "recordings": {"it's": {}, "other": {}}}
    about = Description("replay", "", 0, 0, {}, facts=facts)
    assert unlike_where(about) == "run_id = 'it''s'"
    assert unlike_where(Description("replay", "", 0, 0, {})) == ""

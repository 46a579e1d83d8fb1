"""The runs of stores, page by page, and what people ask of them in SQL."""

import threading
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from stepwell.viewer.listing import list_runs
from stepwell.viewer.shelf import Shelf
from tests.query_contract import ENDLESS, NO_CONDITIONS
from tests.viewer.serving import Viewer, number_of


def test_about(viewer: Viewer, folder: Path) -> None:
    for name in ("steps", "games.a2pack", "games", "replays"):
        found = viewer.json(f"/data/{number_of(viewer, folder / name)}/about")
        with sw.open(folder / name) as store:
            want = store.describe()
            assert found["noun"] == store.noun
        assert (found["kind"], found["rows"], found["runs"]) == (want.kind, want.rows, want.runs)
        assert found["fields"] == {name: str(each) for name, each in want.fields.items()}
        assert found["problem"] is None


def test_a_number_that_was_not_given(viewer: Viewer) -> None:
    assert "expected the number of a store that is shown" in viewer.error("/data/999/about", 404)


def test_runs_page_by_page(viewer: Viewer, folder: Path) -> None:
    number = number_of(viewer, folder / "steps")
    first = viewer.json(f"/data/{number}/runs", limit=10)
    assert (first["count"], first["key"], len(first["rows"])) == (30, "id", 10)
    assert first["columns"] == ["id", "first_step_idx", "num_steps", "score", "name"]
    assert first["rows"][1] == [1, 5, 6, 1, "<b>run 1</b>"]
    assert first["rows"][7][3] == str(7 * 2**58)  # more than JavaScript's numbers hold
    last = viewer.json(f"/data/{number}/runs", limit=10, offset=25)
    assert [row[0] for row in last["rows"]] == [25, 26, 27, 28, 29]
    assert viewer.json(f"/data/{number}/runs", limit=10**9)["count"] == 30
    assert viewer.json(f"/data/{number}/runs", limit=0, offset=10**15)["rows"] == []
    assert viewer.json(f"/data/{number}/runs", offset=10**18 - 1)["rows"] == []


def test_a_page_behind_any_number(folder: Path) -> None:
    with sw.open(folder / "steps") as store:
        assert isinstance(store, sw.StepReader)
        found = list_runs(Shelf().add_store(store), offset=10**20)
    assert (found["rows"], found["count"]) == ([], 30)


def test_runs_sorted(viewer: Viewer, folder: Path) -> None:
    number = number_of(viewer, folder / "steps")
    found = viewer.json(f"/data/{number}/runs", sort="num_steps", desc="1", limit=3)
    assert [row[2] for row in found["rows"]] == [34, 33, 32]
    found = viewer.json(f"/data/{number}/runs", sort="num_steps", limit=3, where="id > 4")
    assert [row[0] for row in found["rows"]] == [5, 6, 7]
    sentence = viewer.error(f"/data/{number}/runs", 400, sort='id"; DROP TABLE runs --')
    assert sentence.startswith("sort: expected one of id, first_step_idx, num_steps")


@pytest.mark.parametrize("name", ["steps", "games.a2pack", "games", "replays"])
def test_runs_for_which_a_condition_holds(viewer: Viewer, folder: Path, name: str) -> None:
    number = number_of(viewer, folder / name)
    with sw.open(folder / name) as store:
        key, table = store.runs_key, store.runs_table
        for condition in ("1", "0", "(0) OR (1)", f"{key} <> ''  -- all"):
            found = viewer.json(f"/data/{number}/runs", where=condition)
            keys = store.query(f"SELECT {key} FROM {table} WHERE {condition}").rows
            place = found["columns"].index(key)
            assert [row[place] for row in found["rows"]] == [each for (each,) in keys]
            assert found["count"] == len(keys)


@pytest.mark.parametrize("condition", [each for each in NO_CONDITIONS if each.strip()])
def test_what_is_no_condition_is_a_sentence(viewer: Viewer, folder: Path, condition: str) -> None:
    for name in ("steps", "games.a2pack", "replays"):
        number = number_of(viewer, folder / name)
        assert viewer.error(f"/data/{number}/runs", 400, where=condition).startswith("where ")


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("scor > 3", "no such column: scor; the columns are id, first_step_idx"),
        ("score >", "where 'score >': the condition ends too early; the columns are id"),
        ("score > ?", "Incorrect number of bindings"),
        ("name = 'run 3", "a quote is not closed; the columns are id"),
        ('"name = 3', "a quote is not closed; the columns are id"),
        ("score > 3 @ 4", 'unrecognized token: "@"; the columns are id'),
        ("load_extension('x')", "not authorized"),
        ("x" * 20_000, "expected at most 10,000 letters, got 20,000"),
    ],
)
def test_mistakes_in_a_condition(viewer: Viewer, folder: Path, condition: str, words: str) -> None:
    number = number_of(viewer, folder / "steps")
    assert words in viewer.error(f"/data/{number}/runs", 400, where=condition)


def test_conditions_cannot_write(viewer: Viewer, folder: Path) -> None:
    number = number_of(viewer, folder / "steps")
    before = (folder / "steps" / "metadata.db").read_bytes()
    for condition in (
        "1; DELETE FROM runs",
        "id IN (DELETE FROM runs RETURNING id)",
        "1) ; ATTACH 'x' AS y --",
        "writefile('x', 'y')",
    ):
        viewer.error(f"/data/{number}/runs", 400, where=condition)
    assert (folder / "steps" / "metadata.db").read_bytes() == before


def test_a_condition_that_never_ends_holds_nobody_up(
    viewer: Viewer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them at once than may be worked on at once."""
    monkeypatch.setattr("stepwell.viewer.listing.TIMEOUT_S", 0.5)
    number = number_of(viewer, folder / "steps")
    answers: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(
                viewer.error(f"/data/{number}/runs", 408, where=f"({ENDLESS}) > 0")
            )
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    answered = 0
    while not answers:
        assert viewer.json(f"/data/{number}/run", key=3)["steps"] == 8
        answered += 1
    assert answered > 1
    for thread in threads:
        thread.join()
    assert len(answers) == 6
    assert all("not done within 0.5 s" in each for each in answers)


def test_rows_without_runs(viewer: Viewer, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.arange(5))
    number = number_of(viewer, tmp_path / "rows.npy")
    assert "is an array: its rows have no runs" in viewer.error(f"/data/{number}/runs", 400)
    assert "is an array: its rows have no runs" in viewer.error(f"/data/{number}/run", 400, key="1")


def test_runs_that_sql_does_not_reach(viewer: Viewer) -> None:
    columns = {"label": ["a", "<i>b</i>", None]}
    store = sw.formats.arrays({"x": np.arange(9)}, run_lengths=[2, 3, 4], run_columns=columns)
    number = viewer.add(store).number
    found = viewer.json(f"/data/{number}/runs", offset=1)
    assert found == {
        "columns": ["id", "label"],
        "rows": [[1, "<i>b</i>"], [2, None]],
        "count": 3,
        "key": "id",
    }
    assert viewer.json(f"/data/{number}/run", key=2)["steps"] == 4
    _, parts = viewer.chunk(number, 2, 0, 10)
    assert parts["x"].tolist() == [5, 6, 7, 8]
    assert "no runs to choose by SQL" in viewer.error(f"/data/{number}/runs", 400, where="1")
    assert "cannot be sorted" in viewer.error(f"/data/{number}/runs", 400, sort="label")
    for key in (3, "a", "", "-1", "1e0", "²"):
        assert f"no run {str(key)!r}" in viewer.error(f"/data/{number}/run", 404, key=key)

"""Reading step datasets: parts by SQL, runs, windows, rows that are appended meanwhile."""

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import StepReader, StepWriter
from tests.contract import assert_batch
from tests.steps import (
    COLUMNS,
    LENGTHS,
    STEP,
    build,
    columns,
    fields,
    of_before,
    ranges,
    rows_of_all,
)

ROWS = rows_of_all()
RUNS = [{"id": i, "num_steps": n, **columns(i)} for i, n in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("steps") / "a"
    build(path)
    return path


@pytest.fixture(params=["ram", "map", "shared"])
def dataset(request: pytest.FixtureRequest, path: Path) -> StepReader:
    return StepReader.open(path, memory=request.param)


def rows_of_runs(ids: list[int]) -> Any:
    parts = [ROWS[r.start : r.stop] for i, r in enumerate(ranges()) if i in ids]
    return np.concatenate([ROWS[:0], *parts])


def ids_of(dataset: StepReader) -> list[int]:
    return [run["id"] for run in dataset.runs]


# Parts.


@pytest.mark.parametrize(
    ("condition", "values", "want"),
    [
        ("1", [], [0, 1, 2, 3, 4, 5]),
        ("0", [], []),
        ("NULL", [], []),
        ("max_score >= ?", [30], [3, 4, 5]),
        ("max_score BETWEEN ? AND ?", [10, 30], [1, 2, 3]),
        ("engine = ?", ["quick"], [0, 3]),
        ("engine IS NULL", [], [2, 5]),
        ("num_steps = 0", [], [2]),
        ("elapsed_s > ? OR id = ?", [0.9, 0], [0, 4, 5]),
        ("max_score > (SELECT avg(max_score) FROM runs)", [], [3, 4, 5]),
        ("id % 2 = 1 -- every other", [], [1, 3, 5]),
        ("engine LIKE '%ow' /* slow */", [], [1, 4]),
        ("engine IN ('quick', ')') OR '(' = ')'", [], [0, 3]),
        ("max_score > ? AND max_score < ?", [np.int64(10).item(), 1e30], [2, 3, 4, 5]),
    ],
)
def test_where(dataset: StepReader, condition: str, values: list[Any], want: list[int]) -> None:
    part = dataset.where(condition, *values)
    assert type(part) is StepReader
    assert ids_of(part) == want
    assert len(part.runs) == len(want)
    assert_batch(part[:], fields(rows_of_runs(want)))
    # A part of a part is what both conditions choose.
    again = part.where("id IN (0, 3, 5)")
    assert ids_of(again) == [i for i in want if i in (0, 3, 5)]
    assert_batch(again[:], fields(rows_of_runs(ids_of(again))))
    assert len(dataset) == len(ROWS)


@pytest.mark.parametrize(
    "condition",
    [
        "",
        "score > 3",
        "max_score >",
        "max_score > ? AND",
        "max_score = 'x",
        "/* no end",
        "1; DROP TABLE runs",
        "1) --",
        "count(*) > 1",
        "DELETE FROM runs",
        "ATTACH 'other.db' AS other",
        "PRAGMA user_version = 3",
        "id IN (DELETE FROM runs RETURNING id)",
        "1) UNION SELECT 5 WHERE (1",
        "1) UNION SELECT id AS first_step_idx FROM runs WHERE (1",
        "1) UNION ALL SELECT '0 0 999' AS first_step_idx FROM runs WHERE (1",
        "1) ORDER BY id) UNION SELECT '9 9 9' FROM (SELECT 1 WHERE (1",
        "1) LIMIT (1",
        "1) OR (0) GROUP BY (id",
        "load_extension('x')",
        "no_such_function(3)",
        "\ud800",
        "a\0b",
    ],
)
def test_where_wants_a_condition(path: Path, condition: str) -> None:
    dataset = StepReader.open(path)
    with pytest.raises(ValueError, match="where "):
        dataset.where(condition)
    assert next(iter(dataset.runs))["id"] == 0
    assert len(StepReader.open(path)) == len(ROWS)
    assert not (path.parent / "other.db").exists()


@pytest.mark.parametrize("values", [[], [1, 2], [2**63], [b"\xff", 1]])
def test_where_wants_the_right_values(path: Path, values: list[Any]) -> None:
    with pytest.raises(
        ValueError, match="the columns are id, first_step_idx, num_steps, max_score"
    ):
        StepReader.open(path).where("max_score > ?", *values)
    for value in (object(), [1]):
        with pytest.raises(TypeError, match="expected a number, text"):
            StepReader.open(path).where("max_score > ?", value)


def test_split(dataset: StepReader) -> None:
    seen = set()
    for seed in range(8):
        for fraction, count in ((0, 0), (0.5, 3), (0.7, 4), (1, 6)):
            first, second = dataset.split(fraction, seed)
            assert len(first.runs) == count
            assert sorted(ids_of(first) + ids_of(second)) == list(range(6))
            assert ids_of(first) == sorted(ids_of(first))
            assert_batch(first[:], fields(rows_of_runs(ids_of(first))))
            assert_batch(second[:], fields(rows_of_runs(ids_of(second))))
            assert ids_of(dataset.split(fraction, seed)[0]) == ids_of(first)
        seen.add(tuple(ids_of(dataset.split(0.5, seed)[0])))
    assert len(seen) > 3
    part = dataset.where("id > 2")
    assert sorted(ids_of(part.split(0.4)[0]) + ids_of(part.split(0.4)[1])) == [3, 4, 5]
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="fraction"):
            dataset.split(wrong)


# Runs.


def test_run(dataset: StepReader) -> None:
    for i, places in enumerate(ranges()):
        want = fields(ROWS[places.start : places.stop])
        assert_batch(dataset.run(i), want)
        part = dataset.where("id = ?", i)
        assert_batch(part.run(i), want)
        with pytest.raises(IndexError, match=f"no run {i + 1} here"):
            part.run(i + 1)
    for missing in (-1, 6, 10**30):
        with pytest.raises(IndexError, match="no run"):
            dataset.run(missing)


def test_the_table_of_runs(dataset: StepReader) -> None:
    table = dataset.runs
    names = ["id", "first_step_idx", "num_steps", *COLUMNS]
    assert table.columns == names
    assert len(table) == 6
    assert [{k: run[k] for k in RUNS[0]} for run in table] == RUNS
    assert table[0] == next(iter(table))
    assert table[-1]["id"] == 5
    assert [run["id"] for run in table[1:5:2]] == [1, 3]
    assert table["max_score"].tolist() == [0, 10, 20, 30, 40, 50]
    assert table["max_score"].dtype.kind == "i"
    assert table["engine"].tolist() == ["quick", "slow", None] * 2
    assert repr(table) == f"StepRuns(6 rows, {', '.join(names)})"
    with pytest.raises(KeyError, match="no column 'score'; there are id"):
        table["score"]
    for outside in (6, -7):
        with pytest.raises(IndexError):
            table[outside]
    part = dataset.where("id IN (1, 4)").runs
    assert [run["id"] for run in part] == part["id"].tolist() == [1, 4]
    assert part[1]["id"] == 4
    for some in (table, part):
        for cut in (slice(1, 4), slice(None, 2), slice(1, 99), slice(0, 6, 3), slice(4, 1)):
            assert some[cut] == list(some)[cut]


def test_the_table_in_arrow(dataset: StepReader) -> None:
    pytest.importorskip("pyarrow")
    table = dataset.where("id > 0").runs.to_arrow()
    assert table.column_names == dataset.runs.columns
    assert table.to_pylist() == list(dataset.runs)[1:]


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="pandas is not here")
def test_the_table_in_pandas(dataset: StepReader) -> None:
    frame = dataset.where("id > 0").runs.to_pandas()
    assert list(frame.columns) == dataset.runs.columns
    assert frame["max_score"].tolist() == [10, 20, 30, 40, 50]


def test_query(dataset: StepReader) -> None:
    found = dataset.query("SELECT engine, sum(num_steps) AS n FROM runs GROUP BY 1 ORDER BY n")
    assert found.columns == ["engine", "n"]
    assert found.rows == [("slow", 13), (None, 20), ("quick", 37)]
    assert found["n"].tolist() == [13, 20, 37]
    part = dataset.where("id IN (1, 3, 4)")
    assert part.query("SELECT id FROM runs WHERE num_steps > ?", 1).rows == [(3,), (4,)]
    assert dataset.where("0").query("SELECT count(*) FROM runs").rows == [(0,)]
    for wrong in (
        "DELETE FROM runs",
        "SELECT",
        "",
        "CREATE TABLE x (y)",
        "PRAGMA user_version = 1",
        "DROP VIEW runs",
        "DELETE FROM main.runs",
    ):
        with pytest.raises(ValueError):
            dataset.query(wrong)
    assert len(dataset.runs) == 6


# What it says about itself; the exam of every writer has more.


def test_runs_have_places(dataset: StepReader) -> None:
    runs = dataset.runs
    assert runs.starts.tolist() == runs["first_step_idx"].tolist()
    assert runs.counts.tolist() == LENGTHS
    part = dataset.where("id IN (0, 3, 4)").runs
    assert part.starts.tolist() == [0, 7, 37]  # counted in the part
    assert part.counts.tolist() == [7, 30, 12]


def test_describe(dataset: StepReader) -> None:
    about = dataset.describe()
    assert (about.runs, about.columns) == (6, ("id", "first_step_idx", "num_steps", *COLUMNS))
    assert about.facts["row_bytes"] == STEP.itemsize
    assert about.facts["shard_rows"] == 0
    part = dataset.where("id = 3").describe()
    assert (part.rows, part.runs) == (LENGTHS[3], 1)


@pytest.mark.parametrize("shard_rows", [None, 8])
def test_health(quick_path: Path, shard_rows: int | None) -> None:
    path = quick_path / "a"
    build(path, LENGTHS[:4], shard_rows=shard_rows)

    def health() -> str:
        return StepReader.open(path, memory="map").describe().health

    assert health() == "fine"
    with StepWriter(path, mode="a") as writer:
        assert health() == "a writer is at work"
        writer.append(np.zeros(30, STEP), max_score=0)
        writer._flush()
        shutil.copytree(path, quick_path / "killed")
        writer.rollback()
    assert health() == "fine"
    path = quick_path / "killed"
    assert health() == "rows behind the last commit: a writer was killed"
    StepWriter(path, mode="a").close()
    assert health() == "fine"
    manifest = (path / "manifest.json").read_bytes()
    build(path)
    (path / "manifest.json").write_bytes(manifest)
    assert health() == "headers or manifest behind the last commit: a writer was killed"
    assert StepReader.open(path).verify().unchecked == ()
    of_before(path)
    report = StepReader.open(path).verify()
    assert report.ok
    assert any("the manifest covers the first 38" in each for each in report.unchecked)


def test_verify_reports_what_is_gone(quick_path: Path) -> None:
    build(quick_path / "a", shard_rows=8)
    dataset = StepReader.open(quick_path / "a")
    (quick_path / "a/shards/steps_00003.npy").unlink()
    for quick in (True, False):
        (problem,) = dataset.verify(quick=quick).problems
        assert problem.path == str(quick_path / "a/shards/steps_00003.npy")
    (quick_path / "a/metadata.db").unlink()
    assert not dataset.verify().ok


# Rows that are appended.


def test_an_old_reader_can_verify(quick_path: Path) -> None:
    build(quick_path / "a", LENGTHS[:3])
    old = StepReader.open(quick_path / "a")
    build(quick_path / "a")
    assert old.verify().ok
    assert ids_of(old.where("1")) == [0, 1, 2]
    assert old.query("SELECT count(*) FROM runs").rows == [(3,)]
    with pytest.raises(ValueError, match="a part of a dataset does not grow"):
        old.where("1").refresh()


# Threads and processes; the exam of every source has more.


def test_nothing_stays_open(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for memory in ("ram", "map", "shared"):
        dataset = StepReader.open(path, memory=memory)
        dataset.where("1").take([0])
        list(dataset.runs)
        dataset.verify()
        del dataset
    assert len(os.listdir("/proc/self/fd")) == before


def test_options(path: Path) -> None:
    wrong: Any = "gpu"
    with pytest.raises(ValueError, match="memory: expected 'ram', 'map' or 'shared', got 'gpu'"):
        StepReader.open(path, memory=wrong)

"""Damaged and contradictory step datasets: the exact rows, or an error that says where."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import (
    ChecksumError,
    FormatError,
    StepReader,
    StepwellError,
    StepWriter,
    VersionError,
)
from stepwell.files.npy import header_bytes
from tests import scaled
from tests.contract import assert_batch
from tests.steps import LENGTHS, STEP, build, built, fields, rows_of_all, tampered

ROWS = rows_of_all()
HEADER = len(header_bytes(STEP, 0))


@pytest.fixture
def path(quick_path: Path) -> Path:
    return built(quick_path / "a")


def sql(text: str, *values: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with tampered(path) as database:
            database.execute(text, values)

    return change


def meta(key: str, value: Any) -> Callable[[Path], Any]:
    return sql("UPDATE meta SET value = ? WHERE key = ?", value, key)


def content(data: bytes) -> Callable[[Path], Any]:
    return lambda path: (path / "metadata.db").write_bytes(data)


def array(data: Any, *, known: bool = True) -> Callable[[Path], None]:
    """Another array; without `known`, in a dataset whose database does not have the dtype."""

    def change(path: Path) -> None:
        np.save(path / "steps.npy", data)
        if not known:
            sql("DELETE FROM meta WHERE key = 'dtype'")(path)

    return change


def no_array(path: Path) -> None:
    (path / "steps.npy").unlink()


def fewer_than_none(path: Path) -> None:
    sql("DELETE FROM runs")(path)
    sql("INSERT INTO runs (id, first_step_idx, num_steps, max_score) VALUES (0, 5, -9, 0)")(path)
    meta("rows", "-4")(path)


@pytest.mark.parametrize(
    ("change", "message", "kind"),
    [
        (no_array, r"steps\.npy", FileNotFoundError),
        *(
            (content(data), "SQLite: |table of runs|is empty", FormatError)
            for data in (b"", b"hello", bytes(4096), b"SQLite format 3\0" + bytes(200))
        ),
        (array(np.zeros(70, "<i4")), "expected rows", FormatError),
        (array(np.zeros(70, "<i4"), known=False), "expected rows with fields", FormatError),
        (array(np.zeros(70, "V0"), known=False), "expected rows with fields", FormatError),
        (array(np.zeros(70, [("x", "<i4")])), "expected rows of", FormatError),
        (array(np.zeros(70, STEP.newbyteorder(">"))), "expected rows of", FormatError),
        (array(np.zeros((70, 1), STEP)), "one axis", FormatError),
        (array(np.zeros((), STEP)), "got a single value", FormatError),
        (array(np.array([None] * 70)), "Python objects", FormatError),
        (sql("DROP TABLE runs"), "expected a table of runs", FormatError),
        (sql("ALTER TABLE runs RENAME num_steps TO n"), "runs: no column num_steps", FormatError),
        (meta("rows", "71"), "expected 70 rows.* got 71", FormatError),
        (meta("rows", "x"), "meta: ValueError", FormatError),
        (meta("rows", b"\xff"), "meta: ", FormatError),
        (meta("shard_rows", "-1"), "got shard_rows=-1", FormatError),
        (meta("dtype", ""), "meta: JSONDecodeError", FormatError),
        (meta("dtype", "{}"), "meta: |expected rows of", FormatError),
        (meta("dtype", "[[1, 2]]"), "meta: ", FormatError),
        (meta("dtype", '"O"'), "expected rows of object", FormatError),
        (meta("dtype", "[" * 10**5), "meta: RecursionError", FormatError),
        *(
            (meta("format_version", other), f"expected version 1, got '{other}'", VersionError)
            for other in ("2", "", "1.0")
        ),
        (sql("DELETE FROM runs"), "expected 0 rows, where the last run ends, got 70", FormatError),
        (sql("DELETE FROM runs WHERE id = 5"), "expected 50 rows", FormatError),
        *(
            (sql(f"UPDATE runs SET num_steps = {steps} WHERE id = 5"), "rows, where", FormatError)
            for steps in ("9223372036854775807", "9e999", "20.5")
        ),
        (fewer_than_none, "expected -4 rows", FormatError),
    ],
)
def test_refused(
    path: Path, change: Callable[[Path], Any], message: str, kind: type[Exception]
) -> None:
    """Readers and writers refuse a dataset in the same words, and change nothing."""
    change(path)
    before = {f: f.read_bytes() for f in path.rglob("*") if f.is_file() and "-shm" not in f.name}
    for memory in ("ram", "map", "shared"):
        with pytest.raises(kind, match=message) as caught:
            StepReader.open(path, memory=memory)
    with pytest.raises(kind, match=message):
        StepWriter(path, mode="a")
    for file, data in before.items():
        assert "-wal" in file.name or file.read_bytes() == data
    if isinstance(caught.value, FormatError):
        assert caught.value.path is not None
        assert caught.value.path.startswith(str(path))


def test_no_database(path: Path) -> None:
    (path / "metadata.db").unlink()
    for memory in ("ram", "map"):
        with pytest.raises(FormatError, match="expected a step dataset, got a folder"):
            StepReader.open(path, memory=memory)
    with pytest.raises(FileExistsError, match=r"with manifest\.json, steps\.npy"):
        StepWriter(path, STEP, mode="a")
    assert np.load(path / "steps.npy").tobytes() == ROWS.tobytes()


def test_no_shard(quick_path: Path) -> None:
    build(quick_path / "b", shard_rows=9)
    for number in (7, 3):
        (quick_path / "b" / "shards" / f"steps_0000{number}.npy").unlink()
        for memory in ("ram", "map"):
            with pytest.raises(FileNotFoundError, match=f"steps_0000{number}"):
                StepReader.open(quick_path / "b", memory=memory)


# The array.


@pytest.mark.parametrize("more", [1, STEP.itemsize, 1000])
def test_an_array_longer_than_the_database(path: Path, more: int) -> None:
    with (path / "steps.npy").open("ab") as file:
        file.write(b"x" * more)
    for memory in ("ram", "map", "shared"):
        dataset = StepReader.open(path, memory=memory)
        assert_batch(dataset[:], fields(ROWS))
        assert dataset.verify().ok
    assert np.load(path / "steps.npy").tobytes() == ROWS.tobytes()
    build(path, [*LENGTHS, 2])
    assert_batch(StepReader.open(path)[:], fields(rows_of_all([*LENGTHS, 2])))


@pytest.mark.parametrize("rows", [0, 3, len(ROWS) - 1])
def test_a_header_that_is_stale(path: Path, rows: int) -> None:
    with (path / "steps.npy").open("r+b") as file:
        file.write(header_bytes(STEP, rows))
    for memory in ("ram", "map"):
        assert_batch(StepReader.open(path, memory=memory)[:], fields(ROWS))
    StepWriter(path, mode="a").close()  # mends it
    assert np.load(path / "steps.npy").tobytes() == ROWS.tobytes()


@pytest.mark.parametrize("rows", [len(ROWS) + 1, 10**9, 10**17])
def test_a_header_that_knows_more_than_the_database(path: Path, rows: int) -> None:
    with (path / "steps.npy").open("r+b") as file:
        file.write(header_bytes(STEP, rows))
    for memory in ("ram", "map", "shared"):
        with pytest.raises(FormatError, match=f"expected {rows} rows, as steps.npy states, got 70"):
            StepReader.open(path, memory=memory)
    with pytest.raises(FormatError, match=f"expected {rows} rows, as steps.npy states, got 70"):
        StepWriter(path, mode="a")


def test_every_length_of_the_array(path: Path) -> None:
    whole = (path / "steps.npy").read_bytes()
    for size in (*range(HEADER + 50), *range(HEADER + 50, len(whole), 7), len(whole) - 1):
        (path / "steps.npy").write_bytes(whole[:size])
        with pytest.raises(FormatError) as caught:
            StepReader.open(path, memory="map" if size % 2 else "ram")
        assert caught.value.path == str(path / "steps.npy")
        if size >= HEADER:
            there = (size - HEADER) // STEP.itemsize
            assert f"truncated: expected {len(ROWS)} rows, as the database has, got {there}" in str(
                caught.value
            )
            assert caught.value.offset == HEADER + there * STEP.itemsize
    (path / "steps.npy").write_bytes(whole)
    assert_batch(StepReader.open(path)[:], fields(ROWS))


# The database.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("num_steps = -3 WHERE id = 1", "run "),
        ("first_step_idx = -9223372036854775807 WHERE id = 1", "run 1"),
        ("first_step_idx = 3 WHERE id = 1", "run 1: expected to begin at row 7, got 3"),
        ("first_step_idx = 9 WHERE id = 3", "run 3: expected to begin at row 8, got 9"),
        ("num_steps = 29 WHERE id = 3", "run 4: expected to begin at row 37, got 38"),
        ("num_steps = 31 WHERE id = 3", "run 4: expected to begin at row 39, got 38"),
    ],
)
def test_ranges_that_overlap_or_leave_gaps(path: Path, change: str, message: str) -> None:
    sql(f"UPDATE runs SET {change}")(path)
    for memory in ("ram", "map"):
        dataset = StepReader.open(path, memory=memory)
        assert_batch(dataset[:], fields(ROWS))
        # Whatever the ranges are, the rows are rows of the dataset.
        assert len(dataset.where("1")[:]["board"]) == len(dataset.where("1"))
        assert len(dataset.windows(2)[:]["board"]) == len(dataset.windows(2))
        changed, problem = dataset.verify().problems
        assert type(problem) is FormatError
        assert message in str(problem)
        assert isinstance(changed, ChecksumError)
        for each in (problem, changed):
            assert str(path / "metadata.db") in str(each)


@pytest.mark.parametrize("value", ["'x'", "2.5", "x'00'"])
def test_numbers_that_are_none(path: Path, value: str) -> None:
    sql(f"UPDATE runs SET num_steps = {value} WHERE id = 1")(path)
    dataset = StepReader.open(path)
    assert_batch(dataset[:], fields(ROWS))
    for call in (lambda: dataset.where("1"), lambda: dataset.windows(2), lambda: dataset.run(0)):
        with pytest.raises(FormatError, match="not all whole numbers"):
            call()
    changed, problem = dataset.verify().problems
    assert "run 1: expected whole numbers" in str(problem)
    assert isinstance(changed, ChecksumError)


def test_text_that_is_none(path: Path) -> None:
    sql("UPDATE runs SET engine = CAST(x'ff' AS TEXT) WHERE id = 1")(path)
    dataset = StepReader.open(path)
    for call in (
        lambda: dataset.runs["engine"],
        lambda: list(dataset.runs),
        lambda: dataset.query("SELECT engine FROM runs"),
    ):
        with pytest.raises(FormatError, match="decode to UTF-8") as caught:
            call()
        assert caught.value.path == str(path / "metadata.db")
    sql("UPDATE runs SET first_step_idx = CAST(x'ff' AS TEXT) WHERE id = 1")(path)
    with pytest.raises(FormatError, match="decode to UTF-8"):
        StepReader.open(path).where("1")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("run_id", 6, "row 40: expected run_id 4, got 6 (1 such rows here)"),
        ("run_id", 2**32 - 1, "row 40: expected run_id 4, got 4294967295"),
        ("step_index", 0, "row 40: expected step_index 2, got 0"),
    ],
)
def test_rows_of_another_run(path: Path, field: str, value: int, message: str) -> None:
    rows = ROWS.copy()
    rows[field][40] = value
    (path / "steps.npy").write_bytes(header_bytes(STEP, len(rows)) + rows.tobytes())
    problems = StepReader.open(path, memory="map").verify().problems
    assert message in str(problems[0])
    assert [type(problem) for problem in problems] == [FormatError, ChecksumError]


def test_every_length_of_the_database(path: Path) -> None:
    whole = (path / "metadata.db").read_bytes()
    sizes = [*range(0, len(whole), scaled(257)), *range(0, 120, 7), len(whole) - 1]
    for size in sizes:
        _exact_or_refused(path, whole[:size])


def test_a_database_with_damage(path: Path) -> None:
    whole = (path / "metadata.db").read_bytes()
    chance = np.random.default_rng(1)
    for _ in range(scaled(150)):
        damaged = bytearray(whole)
        for at in chance.integers(0, len(whole), chance.integers(1, 40)):
            damaged[at] = chance.integers(256)
        _exact_or_refused(path, bytes(damaged), same=False)


def _exact_or_refused(path: Path, content: bytes, *, same: bool = True) -> None:
    """Rows never change by what is wrong with the database; which runs they are may."""
    for left in path.glob("metadata.db-*"):
        left.unlink()
    (path / "metadata.db").write_bytes(content)
    try:
        dataset = StepReader.open(path, memory="map")
        assert dataset[:]["board"].tobytes() == ROWS["board"].tobytes()[: len(dataset) * 8]
        if "max_score" in dataset.runs.columns:  # or its name is what was damaged
            part = dataset.where("max_score >= 0")
            assert len(part[:]["board"]) == len(part)
        list(dataset.runs)
        dataset.windows(3)
        dataset.verify()
        if same:
            assert_batch(dataset[:], fields(ROWS))
    except (StepwellError, OSError):
        pass

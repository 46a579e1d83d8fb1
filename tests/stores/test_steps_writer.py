"""Writing step datasets: what may be written, by whom, and what is there afterwards."""

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from stepwell import ChecksumError, Field, FormatError, SchemaError, StepReader, StepWriter
from stepwell.stores import RunColumn
from tests.arrays import STRUCTURES, random_array
from tests.contract import assert_batch
from tests.steps import (
    COLUMNS,
    LENGTHS,
    STEP,
    build,
    columns,
    fields,
    ranges,
    rows_of,
    rows_of_all,
    tampered,
)
from tests.writer_contract import WriterContract, WriterKit


class Kit(WriterKit):
    """A stamp is a run: its number, the rows of it and what is known of it."""

    store = StepReader
    writer = StepWriter
    recordable = False  # SQLite writes by itself; test_steps_kills has power cuts around it
    small_disk = "512k"
    shard_rows: ClassVar[int | None] = None

    def open(self, path: Path, mode: Any = "x") -> StepWriter:
        return StepWriter(path, STEP, COLUMNS, mode=mode, shard_rows=self.shard_rows)

    def append(self, writer: Any, stamp: int) -> None:
        writer.append(rows_of(stamp - 1, stamp % 4 * 3), **columns(stamp))

    def stamps(self, store: Any) -> list[int]:
        ids = store.runs["id"].tolist()
        rows = rows_of_all([(run + 1) % 4 * 3 for run in ids])
        assert_batch(store[:], fields(rows))
        # Plain NumPy reads the same, but maybe not the last commit: the header follows it.
        size = self.shard_rows or len(rows)
        for number, file in enumerate(sorted(Path(store.path).rglob("steps*.npy"))):
            there, want = np.load(file), rows[number * size :][: self.shard_rows]
            assert there[: len(want)].tobytes() == want[: len(there)].tobytes()
        return [score // 10 for score in store.runs["max_score"].tolist()]


KIT = Kit()


class TestWriter(WriterContract):
    kit = KIT


PACKED = {
    name: dtype
    for name, dtype in STRUCTURES.items()
    if name not in ("padding", "overlapping", "out of order", "only empty fields", "titles")
}
PLAIN = np.dtype([("x", "<i4"), ("y", "<f4", (2,))])


# What goes in comes out.


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("shard_rows", [None, 7])
def test_any_packed_dtype(quick_path: Path, name: str, shard_rows: int | None) -> None:
    rows = random_array(PACKED[name], 20)
    with StepWriter(quick_path / "a", PACKED[name], shard_rows=shard_rows) as writer:
        assert writer.dtype == PACKED[name]
        assert writer.append(rows[:5]) == 0
        assert writer.append({f: rows[f][5:] for f in rows.dtype.names or ()}) == 1
    for memory in ("ram", "map"):
        dataset = StepReader.open(quick_path / "a", memory=memory)
        assert dataset.dtype == PACKED[name]
        assert dataset.verify().ok
        assert_batch(dataset[:], fields(rows))
    files = sorted(quick_path.rglob("*.npy"))
    assert b"".join(np.load(file).tobytes() for file in files) == rows.tobytes()


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("<i4", "with fields"),
        ([("x", "O")], "plain numbers"),
        (STRUCTURES["padding"], "packed fields, 11 bytes a row"),
        (STRUCTURES["overlapping"], "packed fields"),
        (STRUCTURES["only empty fields"], "packed fields"),
        ([("x", "f4"), ("run_id", "f4")], "run_id is filled in: expected a whole number"),
        ([("step_index", "u2", (2,))], "step_index is filled in"),
        ([("δ", "f4")], "Latin-1"),
        ({"x": str}, "field 'x': expected rows of one size, kept as they are, got Field..str"),
        ({"x": Field("f4", compress="zstd")}, "kept as they are"),
        ({"x": ("f4", 4)}, "expected a dtype and a tuple as shape"),  # NumPy's offset, or a shape
    ],
)
def test_no_other_dtype(quick_path: Path, dtype: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StepWriter(quick_path / "a", dtype)
    assert not list(quick_path.rglob("*.npy"))
    with StepWriter(quick_path / "a", PLAIN):  # nothing is in the way
        pass


def test_fields_as_other_stores_have_them(quick_path: Path) -> None:
    given: dict[str, Any] = {
        "obs": Field("<f4", (4,)),
        "image": ("u1", (2, 2)),
        "action": "<i4",
        "done": bool,
    }
    with StepWriter(quick_path / "a", given):
        pass
    wanted = np.dtype(
        [("obs", "<f4", 4), ("image", "u1", (2, 2)), ("action", "<i4"), ("done", "?")]
    )
    assert StepReader.open(quick_path / "a").dtype == wanted


def test_run_and_step_are_filled_in(quick_path: Path) -> None:
    rows = rows_of_all()
    for given in ({"run_id": 77, "step_index": 9}, {}):
        path = quick_path / str(len(given))
        with StepWriter(path, STEP, COLUMNS) as writer:
            for run, places in enumerate(ranges()):
                part = fields(rows[places.start : places.stop])
                for name in ("run_id", "step_index"):
                    if name in given:
                        part[name] = np.full(len(places), given[name])
                    else:
                        del part[name]
                writer.append(part, **columns(run))
        assert_batch(StepReader.open(path)[:], fields(rows))


def test_numbers_of_another_type_that_fit(quick_path: Path) -> None:
    with StepWriter(
        quick_path / "a", [("u", "u1"), ("i", ">i2"), ("f", "<f4"), ("s", "S3")]
    ) as writer:
        writer.append({"u": [0, 255], "i": np.array([1, 2], "u8"), "f": [1, 2], "s": [b"a", b"b"]})
        writer.append(
            np.array([(7, -3, 0.5, b"abc")], "i8,i8,f8,S5").view(
                [("u", "i8"), ("i", "i8"), ("f", "f8"), ("s", "S5")]
            )
        )
    got = StepReader.open(quick_path / "a")[:]
    assert got["u"].tolist() == [0, 255, 7]
    assert got["i"].tolist() == [1, 2, -3]
    assert got["f"].tolist() == [1, 2, 0.5]
    assert got["s"].tolist() == [b"a", b"b", b"abc"]


# What is refused, before anything is written.

GOOD = {"x": np.arange(3, dtype="i4"), "y": np.zeros((3, 2), "f4")}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, r"missing \['x', 'y'\]"),
        ({"x": GOOD["x"]}, r"missing \['y'\]"),
        ({**GOOD, "z": GOOD["x"]}, r"unknown \['z'\]"),
        ({**GOOD, "x": GOOD["x"][:2]}, "equal lengths"),
        ({**GOOD, "x": 5}, "equal lengths"),
        ({**GOOD, "x": GOOD["y"]}, r"x: expected int32 \(3,\), got float32 \(3, 2\)"),
        ({**GOOD, "x": np.arange(3.0)}, "x: expected int32"),
        ({**GOOD, "x": np.zeros(3, "?") * 1j}, "x: expected int32"),
        ({**GOOD, "x": np.array(["a"] * 3)}, "x: expected int32"),
        ({**GOOD, "x": np.array([None] * 3)}, "x: expected int32"),
        ({**GOOD, "x": [0, 2**31, 0]}, "x: .*2147483648.* does not fit int32"),
        ({**GOOD, "x": np.full(3, 2**64 - 1, "u8")}, "x: .*18446744073709551615.* does not fit"),
        ({**GOOD, "y": np.zeros(3, "f4")}, r"y: expected float32 \(3, 2\)"),
        ({**GOOD, "y": np.zeros((3, 2), "M8[s]")}, "y: expected float32"),
        (np.zeros(3), "expected rows of"),
        (np.zeros((3, 2), PLAIN), r"x: expected int32 \(3,\), got int32 \(3, 2\)"),
        (np.zeros(3, [("x", "i4")]), "missing"),
        ([1, 2], "expected rows of"),
        (None, "expected rows of"),
    ],
)
def test_rows_of_another_kind(quick_path: Path, rows: Any, message: str) -> None:
    with StepWriter(quick_path / "a", PLAIN) as writer:
        writer.append(GOOD)
        with pytest.raises(SchemaError, match=message):
            writer.append(rows)
        assert len(writer) == 3
        assert writer.append(GOOD) == 1
    assert len(StepReader.open(quick_path / "a")) == 6


OTHERS = np.dtype([("s", "S2"), ("n", [("a", "i4")]), ("t", "<M8[ns]"), ("f", "<f4")])


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("s", [b"abc"], r"s: .*abc.* does not fit"),
        ("s", [5], "s: expected"),
        ("s", ["ab"], "s: expected"),
        ("n", np.zeros(1, [("b", "f4")]), "n: expected"),
        ("t", np.array(["3000-01-01"], "M8[s]"), "t: .*3000-01-01.* does not fit"),
        ("f", [1e300], "f: .*1e.300.* does not fit"),
    ],
)
def test_values_that_would_change(quick_path: Path, name: str, values: Any, message: str) -> None:
    rows = fields(np.zeros(1, OTHERS))
    with StepWriter(quick_path / "a", OTHERS) as writer:
        with pytest.raises(SchemaError, match=message):
            writer.append({**rows, name: values})
        with pytest.raises(TypeError, match="mask"):
            writer.append({**rows, "f": np.ma.masked_array([1.0], [True])})
        writer.append({**rows, "f": [np.inf]})
    assert len(StepReader.open(quick_path / "a")) == 1


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({}, "run column max_score: expected a value, got none; one that is declared optional"),
        ({"max_score": None}, "max_score: expected a value, got None"),
        ({"max_score": float("nan")}, "max_score: expected a value, got nan"),
        ({"max_score": 1, "moves": 3}, "no run column moves; there are max_score, engine"),
        ({"max_score": 1, "id": 3}, "no run column id"),
        ({"max_score": 2**63}, "max_score: 9223372036854775808 is beyond the 64 bits"),
        ({"max_score": -(2**63) - 1}, "beyond the 64 bits"),
        ({"max_score": np.uint64(2**64 - 1)}, "beyond the 64 bits"),
        ({"max_score": "many"}, "max_score: expected INTEGER, got str"),
        ({"max_score": 1.5}, "max_score: expected INTEGER, got float"),
        ({"max_score": [1]}, "expected INTEGER, got list"),
        ({"max_score": 1, "engine": 5}, "engine: expected TEXT, got int"),
        ({"max_score": 1, "engine": b"x"}, "engine: expected TEXT, got bytes"),
        ({"max_score": 1, "engine": "\ud800"}, "engine: .* not text that SQLite can keep"),
        ({"max_score": 1, "elapsed_s": "1"}, "elapsed_s: expected REAL, got str"),
    ],
)
def test_columns_of_another_kind(quick_path: Path, known: dict[str, Any], message: str) -> None:
    with StepWriter(quick_path / "a", STEP, COLUMNS) as writer:
        with pytest.raises(SchemaError, match=message):
            writer.append(rows_of(0, 3), **known)
        assert len(writer) == 0
        assert writer.append(rows_of(0, 3), max_score=1) == 0
    assert StepReader.open(quick_path / "a").runs[0]["max_score"] == 1


def test_columns_of_every_kind(quick_path: Path) -> None:
    types = {"i": int, "f": float, "s": str, "b": bytes, "rows": int}
    kinds = {name: RunColumn(kind, optional=True) for name, kind in types.items()}
    values: list[dict[str, Any]] = [
        {"i": -(2**63), "f": 0.1, "s": "ä\0b", "b": b"\0\xff", "rows": 2**63 - 1},
        {
            "i": np.int8(-3),
            "f": np.float32(0.5),
            "s": np.str_("x"),
            "b": np.bytes_(b"y"),
            "rows": True,
        },
        {"f": float("nan")},
        {"f": float("inf"), "i": None, "b": b"a\0\0"},
    ]
    with StepWriter(quick_path / "a", PLAIN, kinds) as writer:
        for known in values:
            writer.append(GOOD, **known)
    runs = StepReader.open(quick_path / "a").runs
    assert runs["b"].tolist() == [b"\0\xff", b"y", None, b"a\0\0"]
    assert runs["s"].tolist() == ["ä\0b", "x", None, None]
    for run, known in zip(runs, values, strict=True):
        for name in kinds:
            want = known.get(name)
            assert run[name] == (None if want != want else want)


def test_a_column_that_comes_later(quick_path: Path) -> None:
    path = quick_path / "a"
    build(path, LENGTHS[:3])
    reader = StepReader.open(path)
    with StepWriter(path, mode="a") as writer:
        writer.add_column("note", RunColumn(str, optional=True))
        writer.add_column("solved", RunColumn(int, indexed=True), np.array([True, False, True]))
        with pytest.raises(SchemaError, match="run column solved: expected a value, got none"):
            writer.append(rows_of(3, 5), **columns(3))
        writer.append(rows_of(3, 5), **columns(3), solved=0, note="late")
    assert len(reader.where("solved")) == 7  # rows as of its commit, columns as they are
    assert reader.refresh()
    assert [(run["note"], run["solved"]) for run in reader.runs] == [
        *((None, 1), (None, 0), (None, 1), ("late", 0))
    ]
    assert reader.verify().ok
    assert reader.runs.types == {
        **COLUMNS,
        "note": RunColumn(str, optional=True),
        "solved": RunColumn(int, indexed=True),
    }
    with tampered(path) as opened:
        opened.execute("UPDATE runs SET solved = 1 WHERE id = 1")
    assert "run 1: expected a checksum" in str(reader.verify().problems)
    with StepWriter(path, mode="a") as writer, pytest.raises(ChecksumError, match="run 1"):
        writer.add_column("more", int, [1, 2, 3, 4])  # damage does not get new checksums


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("Engine", [1, 2, 3], "run column Engine: expected a new name"),
        ("id", [1, 2, 3], "'id' cannot name a run column"),
        ("x", None, "run column x: expected a value for each of 3 runs, got None"),
        ("x", [1, float("nan"), 3], "got nan; RunColumn.*optional=True"),
        ("x", [1, 2], "x: expected a value for 3 runs, got 2"),
        ("x", ["1", "2", "3"], "x: expected REAL, got str"),
    ],
)
def test_no_such_column_later(quick_path: Path, column: str, values: Any, message: str) -> None:
    path = quick_path / "a"
    build(path, LENGTHS[:3])
    with StepWriter(path, mode="a") as writer:
        with pytest.raises(ValueError, match=message):
            writer.add_column(column, float, values)
        writer.append(rows_of(3, 5), **columns(3))
        with pytest.raises(ValueError, match="expected no uncommitted runs, got 1"):
            writer.add_column("y", RunColumn(float, optional=True))
    reader = StepReader.open(path)
    assert reader.runs.columns == ["id", "first_step_idx", "num_steps", *COLUMNS]
    assert len(reader.runs) == 4


def test_zeros_at_the_end_of_text_and_bytes(quick_path: Path) -> None:
    with StepWriter(quick_path / "a", PLAIN, {"s": str, "b": bytes}) as writer:
        for s, b in (("a\0\0", b"a\0\0"), ("b", b"")):
            writer.append(GOOD, s=s, b=b)
    with StepReader.open(quick_path / "a") as dataset:
        for table in (dataset.runs, dataset.query("SELECT s, b FROM runs ORDER BY id")):
            assert table["s"].tolist() == ["a\0\0", "b"]
            assert table["b"].tolist() == [b"a\0\0", b""]
            assert table.to_pandas()["s"].tolist() == ["a\0\0", "b"]
            assert table.to_arrow()["s"].to_pylist() == ["a\0\0", "b"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"a b": int}, "cannot name"),
        ({"": int}, "cannot name"),
        ({1: int}, "cannot name"),
        ({'x"y': int}, "cannot name"),
        ({"ID": int}, "cannot name"),
        ({"num_steps": int}, "cannot name"),
        ({"x" * 61: int}, "cannot name"),
        ({"a": int, "A": int}, "differ only in case"),
        ({"a": complex}, "a run column of int, float, str, bytes"),
    ],
)
def test_columns_that_cannot_be(quick_path: Path, names: dict[Any, type], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StepWriter(quick_path / "a", PLAIN, names)
    with pytest.raises(TypeError, match="columns: expected a dict of names and types"):
        StepWriter(quick_path / "a", PLAIN, list(names))  # type: ignore[arg-type]
    assert not (quick_path / "a" / "metadata.db").exists()


def test_words_of_sql_are_names_too(quick_path: Path) -> None:
    with StepWriter(
        quick_path / "a", PLAIN, {"select": RunColumn(int, indexed=True), "from": str}
    ) as w:
        w.append(GOOD, **{"select": 4, "from": "x"})
    assert len(StepReader.open(quick_path / "a").where('"select" = 4')) == 3


@pytest.mark.parametrize("length", [256, 257])
def test_a_run_longer_than_its_step_index(quick_path: Path, length: int) -> None:
    with StepWriter(quick_path / "a", STEP, COLUMNS) as writer:
        rows = np.zeros(length, STEP)
        if length == 256:
            writer.append(rows, max_score=0)
        else:
            with pytest.raises(SchemaError, match="run 0: expected step_index up to 255, got 256"):
                writer.append(rows, max_score=0)
            assert len(writer) == 0


def test_more_runs_than_run_id_can_name(quick_path: Path) -> None:
    dtype = np.dtype([("run_id", "u1"), ("x", "u1")])
    with StepWriter(quick_path / "a", dtype) as writer:
        for run in range(256):
            assert writer.append({"x": [run]}) == run
        with pytest.raises(SchemaError, match="expected run_id up to 255, got 256"):
            writer.append({"x": [0]})
    got = StepReader.open(quick_path / "a")[:]
    assert got["run_id"].tolist() == got["x"].tolist() == list(range(256))


# Commits.


def test_appending_recomputes_only_the_last_block(quick_path: Path) -> None:
    """The checksums of what was there before are taken over, be they right or wrong."""
    build(quick_path / "a", LENGTHS[:3])
    path = quick_path / "a" / "manifest.json"
    text = json.loads(path.read_text())
    text["blocks"] = ["00000000"]
    path.write_text(json.dumps(text))
    build(quick_path / "a")
    (problem,) = StepReader.open(quick_path / "a").verify().problems
    assert type(problem) is ChecksumError
    path.unlink()
    build(quick_path / "a", [*LENGTHS, 1])
    assert StepReader.open(quick_path / "a").verify().ok


def test_after_a_commit_that_failed(quick_path: Path) -> None:
    writer = StepWriter(quick_path / "a", PLAIN)
    writer.append(GOOD)
    with tampered(quick_path / "a") as database:
        database.execute("DROP TABLE runs")
    with pytest.raises(FormatError, match="no such table"):
        writer.commit()
    with pytest.raises(ValueError, match=r"a write to .* failed; open it again"):
        writer.append(GOOD)
    with pytest.raises(ValueError, match="uncommitted changes are lost"):
        writer.close()

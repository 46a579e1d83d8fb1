"""What people hold becomes a source, and a source what they want: with the real libraries."""

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, strategies as st

import stepwell as sw
from stepwell import ArraySource, Field, Ragged, SchemaError, Source, batches
from tests import children
from tests.contract import Expected, SourceContract, assert_batch
from tests.formats.rows import Given, assert_same, contents, mixed, rows, schema_of

DTYPES = ["?", "i1", "u2", "<i4", "u8", "i8", "f4", "f8"]
KINDS = ["fixed", "ragged", "str", "bytes"]


def exam(values: dict[str, Any]) -> Expected:
    """Rows as the exam expects them: text as its bytes."""
    return {
        name: [np.frombuffer(v.encode(), np.uint8) if isinstance(v, str) else v for v in column]
        if isinstance(column, list)
        else column
        for name, column in values.items()
    }


SOME = {name: mixed(40)[name] for name in ("image", "label", "score", "done", "tokens", "text")}


def table(values: dict[str, Any]) -> pa.Table:
    return Given(values).to_arrow()


def in_chunks(whole: pa.Table) -> pa.Table:
    parts = [whole.slice(0, 7), whole.slice(7, 0), whole.slice(7, 20), whole.slice(27)]
    return pa.concat_tables(parts)


def dataset(values: dict[str, Any]) -> Any:
    """As Hugging Face has it: no list has a size."""
    datasets = pytest.importorskip("datasets")
    lists = {name: [np.asarray(v).tolist() for v in column] for name, column in values.items()}
    made = datasets.Dataset.from_dict(lists)
    return made.cast_column("image", datasets.List(datasets.List(datasets.Value("uint8"))))


class Exam(SourceContract):
    held: Callable[..., Any]

    @pytest.fixture
    def expected(self) -> Expected:
        return exam(SOME)

    @pytest.fixture
    def source(self, expected: Expected) -> Source:
        return sw.as_source(type(self).held(SOME))


class TestFrames(Exam):
    held = staticmethod(lambda values: Given(values).to_pandas())


class TestTables(Exam):
    held = staticmethod(table)


class TestTablesInChunks(Exam):
    held = staticmethod(lambda values: in_chunks(table(values)))


class TestBatches(Exam):
    held = staticmethod(lambda values: Given(values)[:])


class TestTensors(Exam):
    @pytest.fixture
    def expected(self) -> Expected:
        return {name: np.asarray(SOME[name]) for name in ("image", "label", "done")}

    @pytest.fixture
    def source(self, expected: Expected) -> Source:
        return sw.as_source({name: torch.from_numpy(a.copy()) for name, a in expected.items()})


class TestFiles(Exam):
    @pytest.fixture
    def source(self, expected: Expected, tmp_path: Path) -> Source:
        sw.convert(Given(SOME), tmp_path / "a.parquet")
        return sw.as_source(tmp_path / "a.parquet")


class TestDatasets(Exam):
    @pytest.fixture
    def expected(self) -> Expected:
        some = {name: SOME[name] for name in ("image", "label", "text")}
        return exam({**some, "tokens": [row.astype("i8") for row in SOME["tokens"]]})

    @pytest.fixture
    def source(self, expected: Expected) -> Source:
        return sw.as_source(
            dataset({name: SOME[name] for name in ("image", "label", "text", "tokens")})
        )


# Round trips.


@given(values=rows(DTYPES, KINDS, min_rows=0))
def test_there_and_back_through_arrow(values: dict[str, Any]) -> None:
    got = sw.as_source(Given(values).to_arrow())
    assert got.schema == schema_of(values)
    assert_same(contents(got), values)


@given(values=rows(DTYPES, KINDS, min_rows=0))
def test_there_and_back_through_polars(values: dict[str, Any]) -> None:
    polars = pytest.importorskip("polars")
    got = sw.as_source(polars.DataFrame(Given(values)))
    assert got.schema == schema_of(values)
    assert_same(contents(got), values)


@given(values=rows(DTYPES, KINDS))
def test_there_and_back_through_pandas(values: dict[str, Any]) -> None:
    got = contents(sw.as_source(Given(values).to_pandas()))
    for name, column in values.items():
        if isinstance(column, list) and len({np.shape(row) for row in column}) == 1:
            got[name] = list(got[name])  # in pandas, arrays of one shape are no ragged field
    assert_same(got, values)


@given(values=rows(DTYPES, KINDS, min_rows=0), size=st.sampled_from([1, 50, 8 << 20]))
def test_a_batch_is_a_source_of_its_rows(values: dict[str, Any], size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "BATCH_BYTES", size)
        got = sw.as_source(Given(values)[:])
        assert got.schema == schema_of(values)
        assert_same(contents(got), values)
        assert_same(contents(sw.as_source(got.to_arrow())), values)


def test_times_come_back_as_times() -> None:
    frame = pd.DataFrame(
        {
            "at": pd.date_range("2024-01-01", periods=3, tz="Europe/Berlin"),
            "took": pd.to_timedelta([1, 2, 3], unit="s"),
        }
    )
    source = sw.as_source(frame)
    assert source.schema == {"at": Field("<i8"), "took": Field("<i8")}
    for same in (source, pickle.loads(pickle.dumps(source))):
        pd.testing.assert_frame_equal(same.to_pandas(), frame)
        assert same.to_arrow().schema.field("at").type.tz == "Europe/Berlin"


# Nothing is copied where memory can be used.


def test_numbers_are_used_where_they_are() -> None:
    array = np.arange(6.0)
    held = {
        "tensor": torch.from_numpy(array),
        "frame": pd.DataFrame({"a": array}, copy=False),
        "series": pd.Series(array, copy=False),
        "table": pa.table({"a": array}),
        "array": pa.array(array),
        "mapping": {"a": torch.from_numpy(array).requires_grad_()},
    }
    for name, each in held.items():
        source = sw.as_source(each)
        array[2] += 1
        assert source[next(iter(source.schema))][2] == array[2], name


@pytest.mark.parametrize("way", [sw.as_source, sw.open, lambda held: sw.Loader(held, 2).source])
def test_open_and_loader_take_the_same(way: Callable[[Any], Source], tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(4))
    held = [torch.arange(4), pd.Series(range(4), name="x"), pa.table({"x": range(4)})]
    for each in [*held, {"x": torch.arange(4)}, duckdb.sql("select range as x from range(4)")]:
        source = way(each)
        assert source[next(iter(source.schema))][:].tolist() == [0, 1, 2, 3]
    assert way(tmp_path / "a.npz")["x"][:].tolist() == [0, 1, 2, 3]


def test_names() -> None:
    assert list(sw.as_source(torch.zeros(2)).schema) == ["data"]
    assert list(sw.as_source(pd.Series([1])).schema) == ["data"]
    assert list(sw.as_source(pd.Series([1], name="x")).schema) == ["x"]
    assert list(sw.as_source(pa.array([1])).schema) == ["data"]
    assert list(sw.as_source(pd.DataFrame(np.zeros((1, 2)))).schema) == ["0", "1"]


def test_a_file_is_read_once_and_pickles_as_its_path(tmp_path: Path) -> None:
    sw.convert(Given(mixed(1000)), tmp_path / "a.parquet")
    source = sw.as_source(str(tmp_path / "a.parquet"))
    assert type(source) is ArraySource
    assert len(pickle.dumps(source)) < 1000
    assert source.fingerprint == sw.open(tmp_path / "a.parquet").fingerprint
    (tmp_path / "a.parquet").unlink()
    assert_same(contents(source), mixed(1000))


def test_arrays_keep_their_runs_in_a_pickle() -> None:
    made = sw.formats.arrays({"x": np.arange(6)}, run_lengths=[2, 4])
    for same in (made, pickle.loads(pickle.dumps(made))):
        assert len(same.windows(2)) == 4


def test_equal_lists_of_datasets_are_arrays(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "image": datasets.Array2D((3, 2), "float32"),
            "pair": datasets.List(datasets.Value("int64")),
            "fixed": datasets.List(datasets.Value("int64"), length=2),
            "text": datasets.Value("string"),
            "any": datasets.List(datasets.Value("int64")),
        }
    )
    image = np.arange(24, dtype="f4").reshape(4, 3, 2)
    lists = {"image": image.tolist(), "pair": [[1, 2]] * 4, "fixed": [[3, 4]] * 4}
    made = datasets.Dataset.from_dict(
        {**lists, "text": list("abcd"), "any": [[1], [], [2], [3, 4]]}, features=features
    )
    made.save_to_disk(tmp_path / "saved")
    for held in (made, tmp_path / "saved"):
        source = sw.as_source(held)
        assert {name: str(field) for name, field in source.schema.items()} == {
            "image": "float32[3, 2]",
            "pair": "int64[2]",
            "fixed": "int64[2]",
            "text": "str",
            "any": "int64[*]",
        }
        assert source["image"][:].tobytes() == image.tobytes()
    assert sw.open(tmp_path / "saved").schema["image"] == Field("f4", (3, 2))
    shuffled = made.shuffle(seed=3)
    assert sw.as_source(shuffled)["text"][:] == list(shuffled["text"])
    chosen = made.with_format("torch", columns=["pair"])
    assert list(sw.as_source(chosen).schema) == ["pair"]


# Refused, in one sentence.


def bad_datasets() -> list[Any]:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"x": [1, 2]})
    splits = datasets.DatasetDict(train=made, test=made)
    return [splits, made.with_transform(lambda row: row), made.to_iterable_dataset()]


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (pd.DataFrame(), "expected at least one column, got none"),
        (pd.DataFrame(columns=["x"]), "'x' has neither rows nor a type; astype"),
        (pd.DataFrame({"x": ["a", None]}), "column 'x', row 1: expected a value, got null; fill"),
        (pd.DataFrame({"x": pd.array([1, None], "Int64")}), "column 'x', row 1: .* got null"),
        (pd.DataFrame({"x": [pd.NaT, pd.Timestamp(0)]}), "column 'x', row 0: .* got null"),
        (pd.DataFrame({"x": [[1], [2, None]]}), "column 'x', row 1: .* got null"),
        (pd.DataFrame({"x": ["a", 1]}), "column 'x': expected numbers, text, bytes or arrays"),
        (pd.DataFrame({"x": [object(), 2]}), "column 'x': expected numbers, text"),
        (pd.DataFrame({"x": [{"a": 1}, {"a": 2}]}), "column 'x' is struct"),
        (
            pd.DataFrame({"x": [np.zeros(2), np.zeros(3, "f4")]}),
            r"column 'x', row 1: expected float64\[\*\], got float32 \(3,\)",
        ),
        (pd.DataFrame([[1, 2]], columns=["x", "x"]), "two columns are named 'x'"),
        (pa.table([[1], [2]], names=["x", "x"]), "two columns are named 'x'"),
        (pa.table({"x": [1, None]}), "column 'x', row 1: expected a value, got null; fill"),
        (pa.table({"x": [[1], [2], [3, None]]}), "column 'x', row 2: .* got null"),
        (pa.table({"x": [["a"]]}), r"column 'x' is list<.*string>: expected numbers"),
        (pa.table({}), "expected at least one column, got none"),
        (np.array([1, "a"], object), "expected plain numbers, got Python objects"),
    ],
)
def test_rows_that_a_source_cannot_have(held: Any, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        sw.as_source(held)


def test_a_null_is_found_in_a_later_chunk() -> None:
    whole = pa.chunked_array([[1, 2], [], [3, None]])
    with pytest.raises(SchemaError, match="column 'x', row 3"):
        sw.as_source(pa.table({"x": whole}))


@pytest.mark.parametrize(
    ("held", "text"),
    [
        ([1, 2], "got <class 'list'>; ArraySource wraps"),
        (torch.zeros(2, dtype=torch.bfloat16), "that NumPy can hold, got torch.bfloat16"),
        (torch.eye(2).to_sparse(), "that NumPy can hold, got torch.float32, torch.sparse_coo"),
        (torch.zeros(2, device="meta"), "that NumPy can hold, got .* meta tensor"),
    ],
)
def test_what_is_no_source(held: Any, text: str) -> None:
    for way in (sw.as_source, sw.open):
        with pytest.raises(TypeError, match=text):
            way(held)


def test_categories_and_objects_of_polars() -> None:
    polars = pytest.importorskip("polars")
    kinds = [polars.Categorical, polars.Enum(["long enough to be a view", "a"])]
    for kind in kinds:
        column = polars.Series("x", ["a", "long enough to be a view", "a"], dtype=kind)
        got = sw.as_source(polars.DataFrame([column])[1:])[:]["x"]
        assert got.to_list() == ["long enough to be a view", "a"]
    objects = polars.Series("x", [object()], dtype=polars.Object)  # whose addresses it hands over
    for held in (objects, polars.DataFrame([objects])):
        with pytest.raises(SchemaError, match=r"column 'x': expected numbers, .* got objects"):
            sw.as_source(held)


def test_a_stream_that_fails_is_no_shorter_table() -> None:
    def parts() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"x": [1]})
        raise ValueError("the rest is lost")

    stream = pa.RecordBatchReader.from_batches(pa.schema([("x", pa.int64())]), parts())
    with pytest.raises(ValueError, match="the rest is lost"):
        sw.as_source(stream)


def test_datasets_that_are_no_rows() -> None:
    splits, transformed, streamed = bad_datasets()
    with pytest.raises(TypeError, match="expected one split, got train, test"):
        sw.as_source(splits)
    with pytest.raises(TypeError, match=r"with a transform, .* reset_format\(\)"):
        sw.as_source(transformed)
    with pytest.raises(TypeError, match="without streaming=True"):
        sw.as_source(streamed)


def test_frames_without_rows() -> None:
    empty = sw.as_source(pd.DataFrame({"x": np.empty(0, "f4"), "t": pd.Series([], dtype=str)}))
    assert empty.schema == {"x": Field("f4"), "t": Field(str)}
    with pytest.raises(ValueError, match="the source has no rows"):
        sw.Loader(empty, 4)
    for held in (empty.to_arrow(), empty.columns(["x"]).to_pandas()):
        assert len(sw.as_source(held)) == 0
    assert duckdb.execute("select count(*) from empty").fetchall() == [(0,)]


# Other libraries read sources.


def test_duckdb_and_polars_read_a_source_by_name(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    with sw.StepWriter(tmp_path / "s", [("obs", "<f4", (4,)), ("n", "<i8")]) as writer:
        writer.append({"obs": np.ones((50, 4)), "n": np.arange(50)})
    steps = sw.open(tmp_path / "s")
    assert duckdb.execute("select sum(n), max(obs[1]) from steps where n < 10").fetchall() == [
        (45, 1)
    ]
    runs = steps.runs
    assert runs is not None
    assert duckdb.execute("select count(*) from runs").fetchall() == [(1,)]
    frame = polars.DataFrame(steps)
    assert frame["n"].to_list() == list(range(50))
    assert frame["obs"].to_numpy().shape == (50, 4)
    assert steps.to_pandas()["n"].tolist() == list(range(50))


def test_a_stream_is_read_as_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 800)
    read = []

    def noted(batch: sw.Batch) -> sw.Batch:
        read.append(len(batch["data"]))
        return batch

    source = ArraySource(np.arange(10_000)).map(noted)
    read.clear()
    stream = pa.RecordBatchReader.from_stream(source)
    assert read == []
    assert stream.read_next_batch().num_rows == 100
    assert sum(read) <= 300
    assert stream.read_all().num_rows == 9_900


def test_closed_sources_give_nothing(tmp_path: Path) -> None:
    sw.convert(Given(SOME), tmp_path / "a.parquet")
    for closed in (ArraySource(np.arange(3)), sw.open(tmp_path / "a.parquet")):
        closed.close()
        for read in (
            lambda s: s.to_arrow(),
            lambda s: s.to_pandas(),
            lambda s: s.__arrow_c_stream__(),
            lambda s: np.asarray(s.columns(list(s.schema)[:1])),
        ):
            with pytest.raises(ValueError, match="closed"):
                read(closed)


def test_one_field_is_an_array_and_several_are_not() -> None:
    source = sw.as_source({"x": np.ones((3, 2), "f4"), "y": np.arange(3)})
    assert np.asarray(source["x"]).shape == (3, 2)
    assert np.asarray(source.columns(["y"]), "f8").tolist() == [0.0, 1.0, 2.0]
    assert torch.as_tensor(source["y"]).tolist() == [0, 1, 2]
    for make in (np.asarray, pd.DataFrame):
        with pytest.raises(TypeError, match=r"got \{x: float32\[2\], y: int64\}; source\['name'\]"):
            make(source)
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(source["y"], copy=False)


def test_ragged_rows_are_objects_of_one_array() -> None:
    pair = Ragged.from_list([np.zeros(2), np.ones(2)], Field("f8", ragged=True))
    assert np.asarray(pair).shape == (2,)
    words = Ragged.from_list(["a", "bc"], Field(str))
    assert pd.DataFrame({"pair": pair, "words": words})["words"].tolist() == ["a", "bc"]
    assert np.asarray(words, "U2").tolist() == ["a", "bc"]
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(pair, copy=False)


def test_queries_and_episodes_are_tables(tmp_path: Path) -> None:
    with sw.ReplayWriter(tmp_path / "r", "run") as writer:
        for i in range(6):
            writer.record_step(
                observation=np.zeros(2, "f4"), action=i, reward=1.0, terminated=i % 3 == 2
            )
    replays = sw.open(tmp_path / "r")
    assert isinstance(replays, sw.ReplayReader)
    episodes = replays.episodes
    assert episodes.to_pandas()["total_reward"].tolist() == [3.0, 3.0]
    assert [each.steps for each in episodes] == [3, 3]
    assert episodes[1].terminated is True
    found = replays.query("select episode_id, steps from episodes order by number")
    assert duckdb.execute("select sum(steps) from found").fetchall() == [(6,)]
    assert duckdb.execute("select sum(total_reward) from episodes").fetchall() == [(6,)]
    assert found.to_pandas()["steps"].tolist() == found.to_arrow()["steps"].to_pylist() == [3, 3]


def test_a_loader_of_a_frame_resumes_with_an_equal_one() -> None:
    def frame() -> pd.DataFrame:
        return pd.DataFrame({"x": np.arange(100), "t": [str(i) for i in range(100)]})

    first = sw.Loader(frame(), 8, seed=3)
    loop = iter(first)
    for _ in range(5):
        next(loop)
    second = sw.Loader(in_chunks(pa.Table.from_pandas(frame())), 8, seed=3)
    second.load_state_dict(first.state_dict())
    assert_batch(next(iter(second)), exam({"x": (b := next(loop))["x"], "t": b["t"].to_list()}))
    with pytest.raises(sw.StateError, match="fingerprint"):
        sw.Loader(frame().assign(x=0), 8, seed=3).load_state_dict(first.state_dict())


def test_no_library_is_imported_that_nobody_uses() -> None:
    script = (
        "import stepwell as sw, numpy as np, sys; sw.as_source({'x': np.zeros(3)}).take([0]);"
        "print([m for m in ('torch', 'pandas', 'pyarrow', 'datasets') if m in sys.modules])"
    )
    assert children.answer(script).strip() == "[]"
    assert "pandas" in sys.modules

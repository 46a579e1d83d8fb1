"""Arrow's types, in Parquet files, Arrow files and saved Hugging Face datasets."""

import datetime
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

import stepwell as sw
from stepwell import Field
from stepwell.formats.parquet import ParquetSource
from tests.formats.rows import assert_same, contents, refused

NOON = datetime.datetime(2020, 2, 29, 12)


def columns(rows: int) -> dict[str, tuple[list[Any], pa.DataType, Field]]:
    """Values of every type that a store can hold, and what field they are."""
    i = range(rows)
    pair = pa.list_(pa.int32(), 2)
    noon = int(NOON.replace(tzinfo=datetime.UTC).timestamp())
    return {
        "int8": ([k % 100 - 50 for k in i], pa.int8(), Field("i1")),
        "uint64": ([2**64 - 1 - k for k in i], pa.uint64(), Field("u8")),
        "float16": ([np.float16(k) for k in i], pa.float16(), Field("f2")),
        "float64": ([k / 3 for k in i], pa.float64(), Field("f8")),
        "bool": ([k % 3 == 0 for k in i], pa.bool_(), Field("?")),
        "text": (["ä日\N{GRINNING FACE}"[: k % 4] for k in i], pa.string(), Field(str)),
        "large": ([f"{k}" for k in i], pa.large_string(), Field(str)),
        "blob": ([bytes([0, k % 256]) * (k % 3) for k in i], pa.binary(), Field(bytes)),
        "list": ([list(range(k % 4)) for k in i], pa.list_(pa.float32()), Field("f4", (), True)),
        "large_list": (
            [[k] * (k % 2) for k in i],
            pa.large_list(pa.int16()),
            Field("i2", (), True),
        ),
        "fixed": ([[k, -k] for k in i], pa.list_(pa.int64(), 2), Field("i8", 2)),
        "matrix": ([[[k, 1], [2, 3], [4, 5]] for k in i], pa.list_(pair, 3), Field("i4", (3, 2))),
        "points": ([[[k, 1]] * (k % 3) for k in i], pa.list_(pair), Field("i4", 2, True)),
        "when": ([k * 10**6 for k in i], pa.timestamp("us", "Europe/Rome"), Field("i8")),
        "naive": ([noon * 10**9 for _ in i], pa.timestamp("ns"), Field("i8")),
        "day": ([noon // 86400 for _ in i], pa.date32(), Field("i4")),
        "time": (list(i), pa.time64("us"), Field("i8")),
        "span": (list(i), pa.duration("ms"), Field("i8")),
    }


def table(rows: int = 100) -> pa.Table:
    return pa.table({name: pa.array(v, kind) for name, (v, kind, _) in columns(rows).items()})


def expected(rows: int = 100) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, (values, _, field) in columns(rows).items():
        if field.kind != "array":
            made[name] = values
        elif field.ragged:
            made[name] = [np.array(v, field.dtype).reshape(len(v), *field.shape) for v in values]
        else:
            made[name] = np.array(values, field.dtype).reshape(rows, *field.shape)
    return made


def saved_dataset(
    path: Path, table: pa.Table, features: dict[str, Any] | None = None, files: int = 2
) -> Path:
    """What `Dataset.save_to_disk` leaves, file by file."""
    path.mkdir()
    names = [f"data-{k:05d}-of-{files:05d}.arrow" for k in range(files)]
    step = -(-len(table) // files)
    marked = table.replace_schema_metadata({"huggingface": json.dumps({"info": {}})})
    for k, name in enumerate(names):
        part = marked.slice(k * step, step)
        with pa.OSFile(str(path / name), "wb") as out, pa.ipc.new_stream(out, part.schema) as file:
            file.write_table(part, max_chunksize=7)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (path / "state.json").write_text(json.dumps(state))
    (path / "dataset_info.json").write_text(json.dumps({"features": features or {}}))
    return path


def ipc_file(path: Path, table: pa.Table) -> Path:
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as file:
        file.write_table(table, max_chunksize=7)
    return path


@pytest.mark.parametrize("rows", [0, 1, 100])
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "saved"])
def test_every_type_goes_there_and_back(rows: int, name: str, tmp_path: Path) -> None:
    given = table(rows)
    if name == "a.parquet":
        parquet.write_table(given, tmp_path / name, row_group_size=7)
    elif name == "a.arrow":
        ipc_file(tmp_path / name, given)
    else:
        saved_dataset(tmp_path / name, given, files=3 if rows > 1 else 1)
    report = sw.convert(tmp_path / name, tmp_path / "store")
    assert (report.rows, report.target_kind) == (rows, "records")
    assert_same(contents(tmp_path / "store"), expected(rows))
    sw.convert(tmp_path / "store", tmp_path / "b.parquet")
    back = parquet.read_table(tmp_path / "b.parquet")
    assert back.column_names == given.column_names
    for column in given.column_names:
        assert back[column].to_pylist() == given[column].to_pylist(), column
        if column not in ("large", "large_list", "list", "fixed", "matrix", "points"):
            assert back[column].type == given[column].type


def test_types_that_only_say_how_values_are_kept(tmp_path: Path) -> None:
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12).reshape(2, 2, 3))
    given = pa.table(
        {
            "category": pa.array(["a", "ä"]).dictionary_encode(),
            "fixed": pa.array([b"ab", b"cd"], pa.binary(2)),
            "tensor": tensor,
        }
    )
    parquet.write_table(given, tmp_path / "a.parquet")
    want = {
        "category": ["a", "ä"],
        "fixed": np.frombuffer(b"abcd", np.uint8).reshape(2, 2),
        "tensor": np.arange(12).reshape(2, 2, 3),
    }
    assert_same(contents(ParquetSource(tmp_path / "a.parquet")), want)


def test_a_frame_of_pandas(tmp_path: Path) -> None:
    frame = pd.DataFrame({"größe": [1, 2], "Größe": [0.5, 1.5], "text": ["a", ""]})
    frame.to_parquet(tmp_path / "a.parquet")
    sw.convert(tmp_path / "a.parquet", tmp_path / "store")
    assert list(contents(tmp_path / "store")) == ["gr__e", "Gr__e_2", "text"]
    sw.convert(tmp_path / "store", tmp_path / "b.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "b.parquet"), frame)


def test_directories(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for k in (0, 1, 2):
        part = table().slice(k * 40, 40)
        parquet.write_table(part, tmp_path / "in" / f"part-{k}.parquet")
    sw.convert(tmp_path / "in", tmp_path / "store")
    assert_same(contents(tmp_path / "store"), expected())
    sw.convert(tmp_path / "store", tmp_path / "out", to="parquet", part_bytes=4000)
    parts = sorted((tmp_path / "out").glob("*.parquet"))
    assert len(parts) > 2
    assert parts[0].name == "data-00000.parquet"
    assert parquet.read_table(tmp_path / "out").num_rows == 100  # as a data set of Arrow's


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([{"a": 1}]), "column 'x' is struct<a: int64>"),
        (pa.array([[{"a": 1}]]), "column 'x' is list<item: struct<a: int64>>"),
        (pa.array([["a"]]), "column 'x' is list<item: string>"),
        (pa.array([[[1]]]), "column 'x' is list<item: list<item: int64>>"),
        (pa.array([1], pa.decimal128(5, 2)), "column 'x' is decimal128"),
        (pa.array([None]), "column 'x' is null"),
        (pa.array([[]], pa.list_(pa.int8(), 0)), "column 'x' is fixed_size_list"),
    ],
)
def test_types_that_are_refused(column: pa.Array, text: str, tmp_path: Path) -> None:
    saved_dataset(tmp_path / "a", pa.table({"n": [1], "x": column}), files=1)
    refused(tmp_path / "a", re.escape(text))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2, 3, None]),
        pa.array(["a", "b", "", None]),
        pa.array([b"", b"b", b"", None]),
        pa.array([[1], [2, 3], [], None]),
        pa.array([[1], [2, 3], [], [4, None]]),
        pa.array([[1, 2], [2, 3], [1, 1], [4, None]], pa.list_(pa.int8(), 2)),
        pa.array([[1, 2], [2, 3], [1, 1], None], pa.list_(pa.int8(), 2)),
        pa.array(["a", "b", "", None]).dictionary_encode(),
        pa.array([NOON, NOON, NOON, None]),
        pa.array([True, False, True, None]),
    ],
    ids=lambda column: str(column.type),
)
def test_nulls(column: pa.Array, tmp_path: Path) -> None:
    parquet.write_table(
        pa.table({"n": [1, 2, 3, 4], "x": column}), tmp_path / "a.parquet", row_group_size=2
    )
    refused(tmp_path / "a.parquet", "column 'x', row 3: expected a value, got null")


def test_files_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + bytes(100))
    refused(tmp_path / "a.parquet", r"cannot be read: .* - at .*a.parquet")
    (tmp_path / "in").mkdir()
    parquet.write_table(pa.table({"a": [1]}), tmp_path / "in" / "1.parquet")
    parquet.write_table(pa.table({"a": [1.5]}), tmp_path / "in" / "2.parquet")
    refused(tmp_path / "in", r"2.parquet: expected the columns of 1.parquet")
    path = tmp_path / "b.parquet"
    parquet.write_table(pa.table({"a": np.arange(1000)}), path, use_dictionary=False)
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes(100) + data[104:])
    refused(path, "cannot be read")


# Hugging Face.


def test_what_a_saved_dataset_knows(tmp_path: Path) -> None:
    features = {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}
    given = table(2).append_column("label", pa.array([0, 1], pa.int64()))
    sw.convert(saved_dataset(tmp_path / "data", given, features), tmp_path / "store")
    known = sw.RecordReader.open(tmp_path / "store").attributes
    assert known["features"] == features
    assert known["classes"] == ["neg", "pos"]
    assert known["arrow_types"]["naive"] == {"type": "timestamp", "unit": "ns"}


def test_datasets_that_are_refused(tmp_path: Path) -> None:
    splits = tmp_path / "splits"
    splits.mkdir()
    (splits / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    refused(splits, "expected one split, got 2; convert train, test alone")
    data = saved_dataset(tmp_path / "data", pa.table({"a": list(range(100))}))
    state = data / "state.json"
    kept = json.loads(state.read_text())
    changes: list[tuple[dict[str, Any], str]] = [
        ({"_indices_data_files": [{"filename": "indices.arrow"}]}, "flatten_indices"),
        ({"_data_files": None}, "expected _data_files with names"),
        ({"_data_files": []}, "expected at least one data file"),
    ]
    for change, text in changes:
        state.write_text(json.dumps({**kept, **change}))
        refused(data, text)
    state.write_text("{")
    refused(data, "cannot be read: Expecting property name")
    state.write_text(json.dumps(kept))
    arrow = data / "data-00000-of-00002.arrow"
    arrow.write_bytes(arrow.read_bytes()[:-300])
    refused(data, r"data-00000-of-00002.arrow|records")
    arrow.unlink()
    with pytest.raises(FileNotFoundError, match=r"data-00000-of-00002.arrow"):
        sw.convert(data, tmp_path / "store")
    assert not (tmp_path / "store").exists()

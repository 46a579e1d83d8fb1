"""What the tests of the converters share: a store as lists, and files that others have written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stepwell import Field, Ragged, RecordReader, RecordWriter

Arrays = dict[str, NDArray[Any]]


def contents(path: Path) -> dict[str, Any]:
    """All of a store: an array for each field of fixed shape, a list of records for others."""
    with RecordReader.open(path) as store:
        batch = store[:]
        return {
            name: values.to_list() if isinstance(values, Ragged) else values
            for name, values in batch.items()
        }


def assert_same(got: dict[str, Any], want: dict[str, Any]) -> None:
    """The same fields in the same order, of the same dtypes, with the same values."""
    assert list(got) == list(want)
    for name, values in want.items():
        if isinstance(values, np.ndarray):
            assert got[name].dtype == values.dtype, name
            assert got[name].tobytes() == values.tobytes(), name
            assert got[name].shape == values.shape, name
        else:
            assert len(got[name]) == len(values), name
            for a, b in zip(got[name], values, strict=True):
                assert type(a) is type(b), name
                if isinstance(b, np.ndarray):
                    assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), name
                else:
                    assert a == b, name


def attributes(path: Path) -> dict[str, Any]:
    """A store's attributes, without what the converter keeps for itself."""
    with RecordReader.open(path) as store:
        return {k: v for k, v in store.attributes.items() if k != "conversion"}


def mixed(rows: int = 100, seed: int = 0) -> dict[str, Any]:
    """Records of every kind there is; some of them empty."""
    random = np.random.default_rng(seed)
    return {
        "image": random.integers(0, 256, (rows, 4, 3), np.uint8),
        "label": random.integers(-9, 9, rows),
        "score": random.normal(size=rows).astype("f4"),
        "done": random.random(rows) < 0.5,
        "tokens": [
            random.integers(0, 99, n).astype("i4") for n in random.integers(0, 5, rows).tolist()
        ],
        "pairs": [random.normal(size=(n, 2)) for n in random.integers(0, 3, rows).tolist()],
        "text": ["ä日\N{GRINNING FACE}x"[: i % 5] for i in range(rows)],
        "blob": [bytes([0, 255, i % 256] * (i % 3)) for i in range(rows)],
    }


def store_of(
    path: Path, records: dict[str, Any], attributes: dict[str, Any] | None = None, **options: Any
) -> Path:
    """A store with these records."""
    fields = {name: _field(values) for name, values in records.items()}
    with RecordWriter(path, fields, attributes=attributes, **options) as store:
        if len(next(iter(records.values()))):
            store.append(records)
    return path


def _field(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return Field(values.dtype, values.shape[1:])
    first = values[0] if values else np.empty(0, "i4")
    if isinstance(first, np.ndarray):
        return Field(first.dtype, first.shape[1:], ragged=True)
    return type(first)


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
    state: dict[str, Any] = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "8a3f0c11",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": "train",
    }
    (path / "state.json").write_text(json.dumps(state))
    info = {"citation": "", "description": "", "features": features or {}, "license": ""}
    (path / "dataset_info.json").write_text(json.dumps(info))
    return path

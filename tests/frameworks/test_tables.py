"""What users hold, given to a Loader, and what they make of a source and of its batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import stepwell as sw

N = 300
ID, XY = np.arange(N), np.arange(2 * N, dtype=np.float32).reshape(N, 2)
NAMES = [f"row {i}" for i in range(N)]


def table() -> Any:
    pairs = pa.FixedSizeListArray.from_arrays(pa.array(XY.ravel()), 2)
    return pa.table({"id": ID, "xy": pairs, "name": NAMES})


def written(path: Path, write: Callable[[Path], Any]) -> Path:
    write(path)
    return path


def hugging_face() -> Any:
    from datasets import Dataset  # for every other test of a process, it is seconds for nothing

    return Dataset.from_dict({"id": ID, "xy": XY.tolist(), "name": NAMES})


HELD: dict[str, Callable[[Path], Any]] = {
    "a tensor": lambda _: torch.from_numpy(ID),
    "tensors": lambda _: {"id": torch.from_numpy(ID), "xy": torch.from_numpy(XY)},
    "a Series": lambda _: pd.Series(ID, name="id"),
    "a DataFrame": lambda _: pd.DataFrame({"id": ID, "name": NAMES}),
    "a Polars frame": lambda _: pl.DataFrame({"id": ID, "xy": XY, "name": NAMES}),
    "an Arrow table": lambda _: table(),
    "a Hugging Face dataset": lambda _: hugging_face(),
    "Parquet": lambda folder: written(folder / "a.parquet", lambda p: pq.write_table(table(), p)),
    "npz": lambda folder: written(folder / "a.npz", lambda p: np.savez(p, id=ID, xy=XY)),
}


@pytest.mark.row("taken")
@pytest.mark.parametrize("name", HELD)
def test_a_loader_takes_what_users_hold(name: str, tmp_path: Path) -> None:
    loader = sw.Loader(HELD[name](tmp_path), 64, seed=7)
    epochs = []
    for _ in range(2):
        batches = list(loader)
        key = "data" if name == "a tensor" else "id"
        ids = np.concatenate([batch[key] for batch in batches])
        assert sorted(ids) == list(range(N))
        epochs.append(ids.tolist())
        if "xy" in batches[0]:  # lists of equal length are a shape
            np.testing.assert_array_equal(np.concatenate([b["xy"] for b in batches]), XY[ids])
        if "name" in batches[0]:
            assert [text for b in batches for text in b["name"]] == [NAMES[i] for i in ids]
    assert epochs[0] != epochs[1]
    assert len(sw.open(HELD[name](tmp_path))) == N


def source() -> sw.Source:
    return sw.as_source({"id": ID, "xy": XY})


@pytest.mark.row("given")
def test_a_source_as_an_array() -> None:
    np.testing.assert_array_equal(np.asarray(source().columns(["xy"])), XY)
    with pytest.raises(TypeError, match=r"to_pandas\(\)"):
        np.asarray(source())
    ids = np.asarray(source()["id"])
    assert ids.dtype == np.int64
    np.testing.assert_array_equal(ids, ID)


@pytest.mark.row("given")
def test_data_frames_of_batches_and_sources() -> None:
    batch = source().take([3, 1])
    frame = sw.as_source(batch).to_pandas()
    assert frame["id"].tolist() == [3, 1]
    np.testing.assert_array_equal(np.stack(list(frame["xy"])), XY[[3, 1]])
    assert pd.DataFrame(source().columns(["id"]).take([3, 1])).equals(frame[["id"]])
    assert source().to_pandas()["id"].tolist() == ID.tolist()


@pytest.mark.row("given")
def test_duckdb_polars_and_arrow_read_a_source() -> None:
    rows = source()  # DuckDB finds it by this name
    found: Any = duckdb.sql("select sum(id), sum(xy[2]), count(*) from rows where id >= 100")
    assert found.fetchall() == [(ID[100:].sum(), XY[100:, 1].sum(), N - 100)]
    np.testing.assert_array_equal(pl.DataFrame(rows)["xy"].to_numpy(), XY)
    assert pa.table(rows).column("id").to_pylist() == ID.tolist()
    assert pa.table(rows).schema.field("xy").type.list_size == 2

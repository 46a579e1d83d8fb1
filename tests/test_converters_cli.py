"""`stepwell convert`, run as a user runs it."""

import json
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from tests.converters import assert_same, contents, mixed, store_of
from tests.test_cli import stepwell


@pytest.fixture
def npy(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", np.arange(1000.0))
    return tmp_path / "a.npy"


def test_there_and_back(npy: Path, tmp_path: Path) -> None:
    done = stepwell("convert", npy, tmp_path / "store", "--compress", "zstd", "--level", "5")
    assert (done.returncode, done.stderr) == (0, "")
    for text in (str(tmp_path / "store"), "npy", "records     1,000"):
        assert text in done.stdout
    with sw.RecordReader.open(tmp_path / "store") as store:
        assert store.schema["data"].compress == "zstd"
    done = stepwell("convert", tmp_path / "store", tmp_path / "b.npy", "--json")
    facts = json.loads(done.stdout)
    assert facts.pop("seconds") >= 0
    assert facts == {
        "path": str(tmp_path / "b.npy"),
        "from": "records",
        "to": "npy",
        "records": 1000,
        "resumed_at": 0,
    }
    assert (tmp_path / "b.npy").read_bytes() == npy.read_bytes()


def test_options(tmp_path: Path) -> None:
    records = mixed()
    store = store_of(tmp_path / "store", records)
    for _ in range(2):
        args = ("--to", "parquet", "--field", "text", "--overwrite")
        done = stepwell("convert", store, tmp_path / "out", *args)
        assert (done.returncode, done.stderr) == (0, "")
    done = stepwell("convert", tmp_path / "out", tmp_path / "text", "--chunk-records", "7")
    assert (done.returncode, done.stderr) == (0, "")
    assert_same(contents(tmp_path / "text"), {"text": records["text"]})


def test_errors_are_one_line(npy: Path, tmp_path: Path) -> None:
    assert stepwell("convert", npy, tmp_path / "store").returncode == 0
    (tmp_path / "empty").mkdir()
    for args, code, text in [
        ((npy, tmp_path / "store"), 1, "this conversion is finished (1,000 records)"),
        ((tmp_path / "empty", tmp_path / "b"), 1, "expected a record store, a .npy"),
        ((npy, tmp_path / "b.npy"), 2, "must be a record store"),
        ((tmp_path / "store", tmp_path / "b.npy", "--field", "x"), 1, "expected a field of data"),
    ]:
        done = stepwell("convert", *args)
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.startswith("error: ")
        assert text in done.stderr
        assert done.stderr.count("\n") == 1

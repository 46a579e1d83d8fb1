"""Directories of files with labels become a record store, and come back."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell import FormatError, SchemaError
from tests.converters import assert_same, attributes, contents, store_of

FILES = {
    "hünd/a.png": b"one",
    "hünd/b.png": b"",
    "hünd/sub/ordner/日本.png": b"\0\xff",
    "katze/a.png": b"two",
    "Zebra/x": os.urandom(5000),
}


def tree(path: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def files_in(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and not file.name.startswith(".")
    }


def test_there_and_back(tmp_path: Path) -> None:
    root = tree(tmp_path / "in", FILES)
    (root / "leer").mkdir()
    (root / ".git").mkdir()
    (root / "katze" / ".DS_Store").write_bytes(b"?")
    (root / "README").write_bytes(b"?")
    report = sw.convert(root, tmp_path / "store")
    assert report == (tmp_path / "store", "folder", "records", 5, 0)
    order = ["Zebra/x", "hünd/a.png", "hünd/b.png", "hünd/sub/ordner/日本.png", "katze/a.png"]
    assert attributes(tmp_path / "store") == {"classes": ["Zebra", "hünd", "katze", "leer"]}
    want = {
        "data": [FILES[name] for name in order],
        "label": np.array([0, 1, 1, 1, 2]),
        "name": [name.partition("/")[2] for name in order],
    }
    assert_same(contents(tmp_path / "store"), want)
    sw.convert(tmp_path / "store", tmp_path / "out", to="folder")
    assert files_in(tmp_path / "out") == FILES
    assert (tmp_path / "out" / "leer").is_dir()
    sw.convert(tmp_path / "out", tmp_path / "again")
    assert_same(contents(tmp_path / "again"), want)
    assert attributes(tmp_path / "again") == attributes(tmp_path / "store")


def test_classes_without_files(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    sw.convert(tmp_path / "in", tmp_path / "store")
    assert len(sw.RecordReader.open(tmp_path / "store")) == 0
    sw.convert(tmp_path / "store", tmp_path / "out", to="folder")
    assert (tmp_path / "out" / "a").is_dir()


def test_numbers_where_there_are_no_names(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", {"data": [b"x", b"y"], "label": np.array([7, 0], "u1")})
    sw.convert(store, tmp_path / "out", to="folder")
    assert files_in(tmp_path / "out") == {"7/00000000": b"x", "0/00000001": b"y"}


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/../../x", "", ".", "a//b", "a/", "a\0b"], ids=ascii
)
def test_names_that_lead_elsewhere(name: str, tmp_path: Path) -> None:
    records = {"data": [b"x"], "label": np.zeros(1, int), "name": [name]}
    store = store_of(tmp_path / "store", records, {"classes": ["a"]})
    with pytest.raises(SchemaError, match="row 0: a name must be a path inside the folder"):
        sw.convert(store, tmp_path / "out", to="folder")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "x").exists()


def test_stores_that_are_refused(tmp_path: Path) -> None:
    zeros = np.zeros(2, int)
    names = ["a", "a"]
    refused: list[tuple[dict[str, Any], list[str], str]] = [
        ({"x": zeros}, ["a"], "expected a field 'data' of bytes, got x"),
        ({"data": zeros, "label": zeros}, ["a"], "expected a field 'data' of bytes, got int64"),
        ({"data": [b"", b""]}, ["a"], "expected a field 'label' of whole numbers, got data"),
        ({"data": [b"", b""], "label": zeros / 2}, ["a"], "whole numbers, got float64"),
        (
            {"data": [b"", b""], "label": zeros, "name": zeros},
            ["a"],
            "expected a field 'name' of text, got int64",
        ),
        ({"data": [b"", b""], "label": zeros - 1}, ["a"], "row 0: expected a label below 1"),
        ({"data": [b"", b""], "label": zeros}, ["../a"], "a class must be a path inside"),
        (
            {"data": [b"", b""], "label": zeros, "name": names},
            ["b"],
            "row 1: b/a is there already",
        ),
    ]
    for k, (records, classes, text) in enumerate(refused):
        store = store_of(tmp_path / f"store{k}", records, {"classes": classes})
        with pytest.raises(SchemaError, match=text):
            sw.convert(store, tmp_path / f"out{k}", to="folder")
        assert not (tmp_path / f"out{k}").exists()


def test_directories_that_are_refused(tmp_path: Path) -> None:
    root = tree(tmp_path / "in", {"a/x": b""})
    os.rename(root / "a" / "x", os.fsencode(root / "a") + b"/\xff")
    with pytest.raises(FormatError, match="expected a name in UTF-8"):
        sw.convert(root, tmp_path / "store")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match=r"expected a record store, a .npy"):
        sw.convert(tmp_path / "empty", tmp_path / "store")
    for name in ("train.parquet", "a.arrow", "a.array_record"):
        tree(tmp_path / name, {f"data/{name}": b""})
        with pytest.raises(FormatError, match="data has records of its own: convert that"):
            sw.convert(tmp_path / name, tmp_path / "store")
    assert not (tmp_path / "store").exists()

"""Folders of files with labels become a record store, and come back."""

import os
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from stepwell import SchemaError
from tests.formats.rows import Given, Values, assert_same, contents, refused

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
        str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


def test_there_and_back(tmp_path: Path) -> None:
    root = tree(tmp_path / "in", FILES)
    (root / "leer").mkdir()
    (root / ".git").mkdir()
    (root / "katze" / ".DS_Store").write_bytes(b"?")
    (root / "README").write_bytes(b"?")
    report = sw.convert(root, tmp_path / "store")
    assert (report.source_kind, report.rows) == ("folder", 5)
    order = ["Zebra/x", "hünd/a.png", "hünd/b.png", "hünd/sub/ordner/日本.png", "katze/a.png"]
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


def test_numbers_where_there_are_no_names(tmp_path: Path) -> None:
    values: Values = {"data": [b"x", b"y"], "label": np.array([7, 0], "u1")}
    sw.convert(Given(values), tmp_path / "out", to="folder")
    assert files_in(tmp_path / "out") == {"7/00000000": b"x", "0/00000001": b"y"}


ZEROS = np.zeros(2, int)
TWO = [b"", b""]
REFUSED: list[tuple[Values, list[str], str]] = [
    ({"data": ZEROS, "label": ZEROS}, ["a"], "expected a field 'data' of bytes, got int64"),
    ({"data": TWO}, ["a"], "expected a field 'label' of whole numbers, got data"),
    ({"data": TWO, "label": ZEROS / 2}, ["a"], "whole numbers, got float64"),
    ({"data": TWO, "label": ZEROS, "name": ZEROS}, ["a"], "'name' of text, got int64"),
    ({"data": TWO, "label": ZEROS - 1}, ["a"], "row 0: expected a label below 1"),
    ({"data": TWO, "label": ZEROS}, ["../a"], "a class must be a path inside"),
    ({"data": TWO, "label": ZEROS, "name": ["a", "a"]}, ["b"], "row 1: b/a is there already"),
    *(
        ({"data": TWO, "label": ZEROS, "name": [name, "b"]}, ["a"], "row 0: a name must be a path")
        for name in ("../x", "/etc/x", "a/../../x", "", ".", "a//b", "a/", "a\0b")
    ),
]


@pytest.mark.parametrize(("values", "classes", "text"), REFUSED)
def test_rows_that_are_refused(
    values: Values, classes: list[str], text: str, tmp_path: Path
) -> None:
    with pytest.raises(SchemaError, match=text):
        sw.convert(Given(values, {"classes": classes}), tmp_path / "out", to="folder")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "x").exists()


def test_folders_that_are_refused(tmp_path: Path) -> None:
    root = tree(tmp_path / "in", {"a/x": b""})
    os.rename(root / "a" / "x", os.fsencode(root / "a") + b"/\xff")
    refused(root, "expected a name in UTF-8")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "expected one of arrayrecord, arrow")
    for name in ("train.parquet", "a.arrow", "a.array_record", "a.shard", "meta.json"):
        tree(tmp_path / f"{name}s", {f"data/{name}": b"", "data/writer.lock": b""})
        refused(tmp_path / f"{name}s", "data is a dataset of its own")

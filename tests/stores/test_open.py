"""`stepwell.open`: the path says which store it is."""

import os
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from tests.contract import assert_batch


def test_npy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.arange(12))
    (tmp_path / "link.npy").symlink_to("a.npy")
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "a.npy", str(tmp_path / "a.npy"), "a.npy", tmp_path / "link.npy"):
        source = sw.open(path)
        assert type(source) is sw.ArraySource
        assert source.path == str(path)
        assert_batch(source[:], {"data": np.arange(12)})
    assert_batch(sw.open(tmp_path / "a.npy", memory="map")[:], {"data": np.arange(12)})


def test_arrayrecord(tmp_path: Path) -> None:
    array = np.arange(12, dtype="<i4").reshape(6, 2)
    sw.convert(sw.ArraySource(array), tmp_path / "a", to="arrayrecord")
    source = sw.open(tmp_path / "a")
    assert type(source) is sw.stores.ArrayRecordSource
    assert_batch(source[:], {"data": array})
    assert_batch(sw.open(tmp_path / "a", dtype="<i8")[:], {"data": array.view("<i8")[:, 0]})


def test_nothing_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none.npy", tmp_path / "none", tmp_path / "none" / "a.npy"):
        with pytest.raises(FileNotFoundError) as caught:
            sw.open(path)
        assert caught.value.filename == str(path)
    (tmp_path / "broken.npy").symlink_to("none")
    with pytest.raises(FileNotFoundError):
        sw.open(tmp_path / "broken.npy")


@pytest.mark.parametrize("kind", ["text", "empty directory", "directory", "pipe", "npy directory"])
def test_something_else(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("x.npy" if kind in ("pipe", "npy directory") else "x")
    if kind == "text":
        path.write_text("hello")
    elif kind == "pipe":
        os.mkfifo(path)  # to open it would wait for ever
    else:
        path.mkdir()
    if kind == "directory":
        (path / "notes.txt").touch()
    with pytest.raises(sw.FormatError, match="expected an array, a pack, a step dataset") as caught:
        sw.open(path)
    assert caught.value.path == str(path)


def test_options_are_the_store_s(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(12))
    with pytest.raises(TypeError, match="dtype"):
        sw.open(tmp_path / "a.npy", dtype="i4")
    with pytest.raises(ValueError, match="'ram' or 'map'"):
        sw.open(tmp_path / "a.npy", memory="gpu")


def test_a_path_that_holds_two_stores(tmp_path: Path) -> None:
    with sw.StepWriter(tmp_path / "s", [("x", "<i8")]) as writer:
        writer.append({"x": [1]})
    with sw.ShardWriter(tmp_path / "a", 2) as shards:
        shards.append([[1, 2]])
    for file in (tmp_path / "a").glob("*.shard"):
        file.rename(tmp_path / "s" / file.name)
    with pytest.raises(sw.FormatError, match="a step dataset and a folder of shards"):
        sw.open(tmp_path / "s")
    assert len(sw.StepReader.open(tmp_path / "s")) == 1

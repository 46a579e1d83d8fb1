"""Mapped rows that are not in memory: the same rows, whatever the disk has to be asked for."""

import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from stepwell import _core

N = 20_000
VALUES = np.random.default_rng(0).integers(0, 256, (N, 96), dtype=np.uint8)


def drop(path: Path) -> None:
    """Have the system forget what it has of a file, or of the files in a folder."""
    for each in [path] if path.is_file() else path.rglob("*"):
        if each.is_file():
            with each.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def steps(path: Path) -> Callable[[], sw.Source]:
    with sw.StepWriter(path, [("x", "u1", (96,)), ("i", "<i8")], shard_rows=7_000) as writer:
        writer.append({"x": VALUES, "i": np.arange(N)})
        writer.commit()
    return lambda: sw.StepReader.open(path, memory="map").columns(["x"])


def npy(path: Path) -> Callable[[], sw.Source]:
    np.save(path, VALUES)
    return lambda: sw.ArraySource(path, memory="map").columns({"x": "data"})


def records(path: Path) -> Callable[[], sw.Source]:
    with sw.RecordWriter(path, {"x": sw.Field(np.dtype("u1"), (96,)), "n": "u1"}) as writer:
        writer.append({"x": VALUES, "n": VALUES[:, 0]})
        writer.commit()
    return lambda: sw.RecordReader.open(path).columns(["x"])


def ragged(path: Path) -> Callable[[], sw.Source]:
    fields = {"x": sw.Field(np.dtype("u1"), ragged=True)}
    with sw.RecordWriter(path, fields) as writer:
        writer.append({"x": list(VALUES)})
        writer.commit()
    return lambda: sw.RecordReader.open(path)


def rows_of(batch: sw.Batch) -> list[list[int]]:
    return [np.asarray(row).tolist() for row in batch["x"]]


@pytest.mark.parametrize("make", [steps, npy, records, ragged])
def test_rows_from_the_disk_are_those_from_memory(
    make: Callable[[Path], Callable[[], sw.Source]], tmp_path: Path
) -> None:
    path = tmp_path / "rows.npy"
    opened = make(path)
    order = np.random.default_rng(1).integers(0, N, 3_000)
    for size in (1, 40, 1_000):  # few rows, more than are looked at first, several parts
        drop(path)
        source = opened()
        for at in range(0, min(20 * size, 3_000), size):
            rows = order[at : at + size]
            assert rows_of(source.take(rows)) == VALUES[rows].tolist()
    for batch in (7, 600):
        drop(path)
        with sw.Loader(opened().select(order), batch, shuffle=False) as loader:
            for at, got in enumerate(loader):
                assert rows_of(got) == VALUES[order[at * batch : (at + 1) * batch]].tolist()


@pytest.mark.parametrize("kind", ["steps", "npy", "structured", "records"])
def test_few_rows_are_few_pages(kind: str, tmp_path: Path) -> None:
    """A fault would have the system read megabytes around each of them."""
    path, count = tmp_path / "rows.npy", 20_000
    rows = np.zeros(count, [("x", "u1", (2048,))])
    if kind == "records":
        with sw.RecordWriter(path, {"x": sw.Field(np.dtype("u1"), (2048,))}) as records:
            records.append({"x": rows["x"]})
        source: sw.Source = sw.RecordReader.open(path)
    elif kind == "steps":
        with sw.StepWriter(path, rows.dtype) as steps:
            steps.append({"x": rows["x"]})
        source = sw.StepReader.open(path, memory="map")
    else:
        np.save(path, rows if kind == "structured" else rows["x"])
        source = sw.ArraySource(path, memory="map")
    drop(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
    for at in range(5):
        source.take(np.arange(at * 10, count, 400))
    read = (resource.getrusage(resource.RUSAGE_SELF).ru_inblock - before) * 512
    assert read < 250 * 4 * 4096  # four pages a row


def test_it_is_warm_once_rows_were_there() -> None:
    cold = _core.Cold()
    data = VALUES.reshape(-1)
    table = _core.table_reader(VALUES, [(0, 96)])
    reader = _core.cold_reader(table, data, 96, 0, 96, cold)
    assert cold.is_cold
    rows = np.arange(0, N, 20)
    assert np.array_equal(reader.take(rows)[: len(rows) * 96], VALUES[rows].reshape(-1))
    assert not cold.is_cold  # this memory has no disk


def test_rows_that_leave_the_memory_are_refused() -> None:
    table = _core.table_reader(VALUES, [(0, 96)])
    for stride, begin, end in ((97, 0, 97), (96, 50, 40), (96, 0, 97)):
        with pytest.raises(ValueError, match="leave the memory"):
            _core.cold_reader(table, VALUES.reshape(-1), stride, begin, end, _core.Cold())


def test_a_bad_row_is_named_before_anything_is_asked_for(tmp_path: Path) -> None:
    source = npy(tmp_path / "rows.npy")()
    with pytest.raises(IndexError, match=str(N)):
        source.take([0, N])

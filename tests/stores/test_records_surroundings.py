"""Record stores among interruptions, other stores, other threads and what users put beside them."""

import itertools
import json
import resource
import shutil
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from stepwell import ChecksumError, Field, FormatError, RecordReader, RecordWriter
from tests import children

FRAMED = Field("<i8", compress="lz4")
"""No column, though nothing of it gets smaller."""


def lose_tables(path: Path) -> None:
    for file in [*path.glob("*.offset"), *path.glob("*.sums")]:
        file.unlink()


ODD: list[Any] = [[1], {9: "n"}, {"a": (1, 2)}, {"v": "x" * (2 << 20)}, {"a": float("nan")}]


def test_attributes_come_back_as_they_were(quick_path: Path) -> None:
    kept = {"classes": {"9": "nine"}, "list": [1, {"a": None}], "text": "\u00e4"}
    with RecordWriter(quick_path / "a", {"x": "<i8"}, attributes=kept) as store:
        store.append({"x": [1]})
        for odd in ODD:  # what JSON would change
            with pytest.raises((TypeError, ValueError)):
                store.set_attributes(odd)
    assert RecordReader.open(quick_path / "a").attributes == kept
    with RecordWriter(quick_path / "a", mode="a") as store:
        given: dict[str, Any] = {"v": [1]}
        store.set_attributes(given)
        given["v"].append(object())  # no longer of interest
        store.commit()
        store.set_attributes({"v": 2})
        store.rollback()
        assert store.attributes == {"v": [1]}
    assert RecordReader.open(quick_path / "a").attributes == {"v": [1]}


def test_salvage_after_deletes_has_every_live_record(quick_path: Path) -> None:
    with RecordWriter(quick_path / "a", {"x": FRAMED}, threads=2, chunk_records=4) as store:
        store.append({"x": np.arange(10)})
        store.commit()
        store.delete([0])
        store.append({"x": [100]})  # under the number of a record that was moved
        store.commit()
        store.delete([len(store) - 1, 3])
        store.append({"x": [200, 201]})
        live = set(store["x"][:].tolist())
    lose_tables(quick_path / "a")
    report = RecordReader.salvage(quick_path / "a", quick_path / "b")
    salvaged = RecordReader.open(quick_path / "b")
    assert live <= set(salvaged["x"][:].tolist())
    assert report.returned == len(salvaged) - len(live) > 0


def test_salvage_without_deletes_is_exact(quick_path: Path) -> None:
    """Frames that were rolled back, and of a writer that was killed, do not count."""
    script = """
import os, sys
import numpy as np
from stepwell import Field, RecordWriter
fields = {"x": Field("<i8", compress="lz4"), "t": Field(str, optional=True)}
store = RecordWriter(sys.argv[1], fields, chunk_records=10, grow_bytes=512)
store.append({"x": np.arange(20), "t": [str(i) for i in range(20)]})
store.commit()
for _ in range(5):
    store.update(np.arange(20), {"x": np.full(20, -1)})
store.rollback()
store.append({"x": [20]})
store.update([3], {"t": ["three"]})
store.commit()
store.append({"x": [-2]})
os._exit(0)
"""
    path = quick_path / "a"
    children.answer(script, path)
    with RecordWriter(path, mode="a") as store:
        store.append({"x": [21], "t": ["21"]})
    want = RecordReader.open(path)
    numbers, texts = want["x"][:].tolist(), want["t"][:]
    assert numbers == list(range(22))
    assert all(file.stat().st_size < 1000 for file in (path / "chunk").iterdir())
    lose_tables(path)
    report = RecordReader.salvage(path, quick_path / "b")
    found = RecordReader.open(quick_path / "b")
    assert (found["x"][:].tolist(), found["t"][:]) == (numbers, texts)
    assert (report.returned, report.lost_bytes, report.missing) == (0, 0, 1)
    RecordWriter(quick_path / "empty", {"x": "<i8"}).close()
    assert RecordReader.salvage(quick_path / "empty", quick_path / "c").records == 0
    assert len(RecordReader.open(quick_path / "c")) == 0


def test_another_store_in_its_place(quick_path: Path) -> None:
    path = quick_path / "a"
    with RecordWriter(path, {"x": "<i8"}) as store:
        store.append({"x": np.ones(100, int)})
    reader = RecordReader.open(path)
    assert reader["x"][0] == 1
    shutil.rmtree(path)
    with RecordWriter(path, {"x": "<i8"}) as store:
        store.append({"x": np.full(200, 2)})
    with pytest.raises(FormatError, match="another store is here now"):
        reader.refresh()


def interrupt_after(lines: int) -> Any:
    """A tracer that raises KeyboardInterrupt at one of the lines of stepwell that are run."""
    left = lines

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if "/stepwell/stores/records/" not in frame.f_code.co_filename:
            return None
        left -= event == "line"
        if left == 0:
            raise KeyboardInterrupt
        return trace

    return trace


def test_an_interrupted_change_is_not_committed(quick_path: Path) -> None:
    """Ctrl-C at any line of a delete must not mix the fields of records."""
    names, before, torn = [f"f{i}" for i in range(3)], sys.gettrace(), 0
    for turn in itertools.count(1):
        path = quick_path / str(turn)
        store = RecordWriter(path, dict.fromkeys(names, "<i8"))
        store.append({name: np.arange(12) for name in names})
        store.commit()
        store.append({name: np.arange(12, 15) for name in names})
        interrupted = True
        try:
            sys.settrace(interrupt_after(turn))
            store.delete([0, 4, 5])
            interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        try:
            store.commit()
        except ValueError as error:
            assert "was interrupted; rollback() drops it" in str(error)  # noqa: PT017
            torn += 1
            store.rollback()
            assert len(store) == 12
        store.close()
        found = RecordReader.open(path)[:]
        assert all((found[name] == found["f0"]).all() for name in names)
        if not interrupted:
            break
    assert sorted(found["f0"]) == sorted({*range(15)} - {0, 4, 5})
    assert torn > 10


@pytest.mark.parametrize(("field", "table"), [(FRAMED, "x.offset"), ("<i8", "x.column")])
def test_a_write_does_not_hide_damage(quick_path: Path, field: Any, table: str) -> None:
    path = quick_path / "a"
    with RecordWriter(path, {"x": field}) as store:
        store.append({"x": np.arange(100)})
    entries = np.fromfile(path / table, "u1").reshape(100, -1)
    entries[[3, 4]] = entries[[4, 3]]
    entries.tofile(path / table)
    with pytest.raises(ChecksumError, match="do not fit their checksum"):  # noqa: SIM117
        with RecordWriter(path, mode="a") as store:
            store.append({"x": [100]})
    assert len(RecordReader.open(path)) == 100


def test_sums_that_are_missing_are_made(quick_path: Path) -> None:
    """Those of a column are not: nothing else says that the values are right."""
    path = quick_path / "a"
    with RecordWriter(quick_path / "b", {"x": "<i8"}) as store:
        store.append({"x": np.arange(2000)})
    (quick_path / "b" / "x.sums").unlink()
    for opened in (RecordReader.open, lambda path: RecordWriter(path, mode="a")):
        with pytest.raises(FormatError, match=r"missing.*x\.sums"):
            opened(quick_path / "b")
    with RecordWriter(path, {"x": FRAMED}) as store:
        store.append({"x": np.arange(2000)})
    (path / "x.sums").unlink()
    with RecordWriter(path, mode="a") as store:
        store.append({"x": [2000]})
    assert RecordReader.open(path).verify().ok
    assert RecordReader.open(path)["x"][:].tolist() == list(range(2001))


def test_a_rebalance_that_is_stopped_leaves_nothing(quick_path: Path) -> None:
    path = quick_path / "a"
    store = RecordWriter(path, {"x": ("u1", (64,))}, chunk_records=50_000)
    store.append({"x": np.zeros((200_000, 64), "u1")})
    store.commit()
    before = {file.name for file in [*path.iterdir(), *(path / "chunk").iterdir()]}

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            store.rebalance(progress=stop)
    assert {file.name for file in [*path.iterdir(), *(path / "chunk").iterdir()]} == before
    store.rebalance()
    store.close()
    assert len(RecordReader.open(path)) == 200_000


def test_few_open_files(quick_path: Path) -> None:
    script = """
import resource, sys
import numpy as np
from stepwell import Field, RecordReader, RecordWriter
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
with RecordWriter(sys.argv[1], {"x": Field("<i8", compress="lz4")}, chunk_records=10) as store:
    store.append({"x": np.arange(5000)})
found = RecordReader.open(sys.argv[1])
assert found["x"][:].tolist() == list(range(5000))
"""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64
    children.answer(script, quick_path / "a")


def test_more_chunks_than_can_be_mapped(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.stores.records.chunk.MAX_CHUNKS", 5)
    with RecordWriter(quick_path / "a", {"x": FRAMED}, chunk_records=2) as store:
        store.append({"x": np.arange(10)})
        store.commit()
        with pytest.raises(ValueError, match="up to 5 chunks; rebalance it"):
            store.append({"x": [10]})
        with pytest.raises(ValueError, match="up to 5 chunks; rebalance it"):
            store.rebalance(chunk_records=1)
        assert store["x"][:].tolist() == list(range(10))
        store.rebalance(chunk_records=100)
        store.append({"x": [10]})
    assert RecordReader.open(quick_path / "a")["x"][:].tolist() == list(range(11))


def test_fewer_records_than_threads(quick_path: Path) -> None:
    """A chunk that a thread found nothing for has no file, and needs none."""
    made = {"x": Field("u1", (1 << 18,), compress="zstd")}
    for count in range(1, 4):
        with RecordWriter(quick_path / "a", made, mode="a", threads=4) as store:
            store.append({"x": np.full((1, 1 << 18), count)})
    meta = quick_path / "a" / "meta.json"  # as an earlier version left it
    text = json.loads(meta.read_text())
    text["chunks"]["unfull"].append([text["chunks"]["num"], 0, 0])
    text["chunks"]["num"] += 1
    del text["crc32c"]
    meta.write_text(json.dumps(text))
    with RecordWriter(quick_path / "a", mode="a") as store:
        assert store["x"][:, 0].tolist() == [1, 2, 3]


def test_files_of_others_stay(quick_path: Path) -> None:
    path = quick_path / "a"
    with RecordWriter(path, {"x": "<i8"}) as store:
        store.append({"x": [1]})
    mine = [path / "x.backup.offset", path / "chunk" / "0-backup.zr", path / "notes.txt"]
    for file in mine:
        file.write_text("mine")
    with RecordWriter(path, mode="a") as store:
        store.rebalance()
    assert all(file.read_text() == "mine" for file in mine)


def test_parts_of_rows(quick_path: Path) -> None:
    array = np.arange(20).reshape(4, 5)
    with RecordWriter(quick_path / "a", {"x": ("<i8", (5,)), "t": str}) as writer:
        writer.append({"x": array, "t": ["a", "b", "", "d"]})
    store = RecordReader.open(quick_path / "a")
    column = store["x"]
    assert column[0, 1] == array[0, 1]
    assert column[1:3, 2].tolist() == array[1:3, 2].tolist()
    assert column[[2, 0], 1:3].tolist() == array[[2, 0], 1:3].tolist()
    assert list(store["t"]) == ["a", "b", "", "d"]
    with pytest.raises(TypeError, match="expected one index"):
        store["t"][0, 1]


def test_a_reader_that_looked_between_a_crash_and_the_next_writer(quick_path: Path) -> None:
    """What a killed writer had begun may be mapped; the next one writes to the same file."""
    options: Any = {"chunk_records": 3, "grow_bytes": 4096}
    with RecordWriter(quick_path / "a", {"n": "<i8", "t": "str"}, **options) as store:
        store.commit()
        store.append({"n": [1], "t": ["a text of some length"]})
        shutil.copytree(quick_path / "a", quick_path / "b")  # as a kill leaves it
    reader = RecordReader.open(quick_path / "b")
    with RecordWriter(quick_path / "b", mode="a") as store:
        store.append({"n": [2, 3], "t": ["abc", "defg"]})
    assert reader.refresh()
    assert reader[:]["n"].tolist() == [2, 3]

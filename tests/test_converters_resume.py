"""A conversion goes on where it was, and says so when it cannot."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import stepwell as sw
from stepwell import BusyError, RecordReader, RecordWriter
from stepwell.converters import folder, incoming, into, outgoing
from stepwell.files.lock import WriterLock
from tests import SANITIZED, children
from tests.converters import assert_same, contents, mixed, store_of

MIB = 1 << 20


class Stop(BaseException):
    """Stands for a kill: nothing but the disk remembers."""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (incoming, outgoing, folder):
        monkeypatch.setattr(module, "BATCH_BYTES", 1000)
    monkeypatch.setattr(into, "_COMMIT_BYTES", 1)


def stop_at(records: int) -> Callable[[int, int], None]:
    def on_progress(done: int, total: int) -> None:
        if done >= records:
            raise Stop

    return on_progress


@pytest.fixture
def npy(tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", np.arange(1000.0))
    return tmp_path / "a.npy"


# Into a store.


def test_a_store_goes_on(npy: Path, tmp_path: Path) -> None:
    target = tmp_path / "store"
    with pytest.raises(Stop):
        sw.convert(npy, target, on_progress=stop_at(500))
    assert 375 <= len(RecordReader.open(target)) <= 625
    seen: list[tuple[int, int]] = []
    report = sw.convert(npy, target, on_progress=lambda *done: seen.append(done))
    assert report.resumed_at == seen[0][0] > 0
    assert seen[-1] == (1000, 1000)
    assert_same(contents(target), {"data": np.arange(1000.0)})
    for _ in range(2):
        with pytest.raises(FileExistsError, match=r"store exists \(this conversion is finished"):
            sw.convert(npy, target)
    assert sw.convert(npy, target, overwrite=True).resumed_at == 0
    assert_same(contents(target), {"data": np.arange(1000.0)})


def test_what_was_begun_with_another_source_or_other_options(npy: Path, tmp_path: Path) -> None:
    target = tmp_path / "store"
    with pytest.raises(Stop):
        sw.convert(npy, target, on_progress=stop_at(500))
    count = len(RecordReader.open(target))
    with pytest.raises(FileExistsError, match="begun; compress: 'none', asked"):
        sw.convert(npy, target, compress="zstd")
    with pytest.raises(FileExistsError, match="chunk_records: 8192, asked for 7"):
        sw.convert(npy, target, chunk_records=7)
    np.save(tmp_path / "b.npy", np.arange(1000.0))
    with pytest.raises(FileExistsError, match=r"source: '.*a.npy', asked for '.*b.npy'"):
        sw.convert(tmp_path / "b.npy", target)
    np.save(npy, np.arange(1000.0) + 1)
    with pytest.raises(FileExistsError, match=r"a.npy has changed since"):
        sw.convert(npy, target)
    assert len(RecordReader.open(target)) == count
    assert sw.convert(npy, target, overwrite=True).resumed_at == 0
    assert_same(contents(target), {"data": np.arange(1000.0) + 1})


def test_the_same_command_goes_on_with_overwrite_too(npy: Path, tmp_path: Path) -> None:
    target = tmp_path / "store"
    with pytest.raises(Stop):
        sw.convert(npy, target, on_progress=stop_at(500), overwrite=True)
    assert sw.convert(npy, target, overwrite=True).resumed_at > 0


def test_what_nobody_converted_is_left_alone(npy: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("x")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="not a record store: it is left alone"):
            sw.convert(npy, tmp_path / "mine", overwrite=overwrite)
    store = store_of(tmp_path / "store", mixed())
    with pytest.raises(FileExistsError, match="a record store of 100 records"):
        sw.convert(npy, store)
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match="was not made by a conversion"):
            sw.convert(store, tmp_path / "mine", to="parquet", overwrite=overwrite)
    assert (tmp_path / "mine" / "precious").read_text() == "x"


def test_somebody_else_is_writing(npy: Path, tmp_path: Path) -> None:
    target = tmp_path / "store"
    with pytest.raises(Stop):
        sw.convert(npy, target, on_progress=stop_at(500))
    with RecordWriter(target, mode="a"):
        for overwrite in (False, True):
            with pytest.raises(BusyError):
                sw.convert(npy, target, overwrite=overwrite)
        with pytest.raises(BusyError):
            sw.convert(npy, target, overwrite=True, compress="zstd")
    sw.convert(npy, target)


def test_an_error_late_keeps_what_was_committed(tmp_path: Path) -> None:
    values = [*range(999), None]
    parquet.write_table(pa.table({"a": values}), tmp_path / "a.parquet", row_group_size=100)
    for _ in range(2):
        with pytest.raises(sw.SchemaError, match="column 'a', row 999"):
            sw.convert(tmp_path / "a.parquet", tmp_path / "store")
        assert len(RecordReader.open(tmp_path / "store")) >= 900


# Out of a store.

OUT: dict[str, dict[str, Any]] = {
    "out.npy": {"field": "image"},
    "out": {"to": "parquet", "part_bytes": 500},
    "out.array_record": {"field": "blob", "part_bytes": 500},
    "files": {"to": "folder"},
}


def a_store(path: Path) -> Path:
    records = mixed(300)
    records |= {"data": records["blob"], "label": np.abs(records["label"])}
    records["name"] = [f"{i}" for i in range(300)]
    return store_of(path, records)


def tree(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {path.suffix: path.read_bytes()}
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != ".stepwell.json"
    }


@pytest.mark.parametrize("name", OUT)
def test_files_go_on(name: str, quick_path: Path) -> None:
    store = a_store(quick_path / "store")
    target = quick_path / name
    part = quick_path / f"{name}.part"
    options = OUT[name]
    with pytest.raises(Stop):
        sw.convert(store, target, **options, on_progress=stop_at(150))
    assert not target.exists()
    assert part.is_dir()
    report = sw.convert(store, target, **options)
    assert report.resumed_at > 0
    assert not part.exists()
    whole = quick_path / f"whole{target.suffix}"
    sw.convert(store, whole, **options)
    if "part_bytes" in options:  # files may be cut elsewhere; records are in the same order
        sw.convert(target, quick_path / "a")
        sw.convert(whole, quick_path / "b")
        assert_same(contents(quick_path / "a"), contents(quick_path / "b"))
    else:
        assert tree(target) == tree(whole)
    with pytest.raises(FileExistsError, match="exists"):
        sw.convert(store, target, **options)
    assert sw.convert(store, target, **options, overwrite=True).resumed_at == 0
    assert sorted(p.name for p in quick_path.iterdir() if p.name.endswith((".part", ".tmp"))) == []


@pytest.mark.parametrize("name", OUT)
def test_files_of_another_conversion(name: str, quick_path: Path) -> None:
    store = a_store(quick_path / "store")
    target = quick_path / name
    options = OUT[name]
    with pytest.raises(Stop):
        sw.convert(store, target, **options, on_progress=stop_at(150))
    lock = WriterLock(quick_path / f"{name}.part" / ".lock")
    with pytest.raises(BusyError):
        sw.convert(store, target, **options)
    lock.release()
    with RecordWriter(store, mode="a") as opened:
        opened.update([7], {"blob": [b"new"], "score": np.ones(1, "f4")})
    with pytest.raises(FileExistsError, match=r"another conversion .*store has changed since"):
        sw.convert(store, target, **options)
    assert sw.convert(store, target, **options, overwrite=True).resumed_at == 0
    assert target.exists()


def test_a_folder_that_is_somebody_elses(quick_path: Path) -> None:
    store = a_store(quick_path / "store")
    (quick_path / "out.npy.part").mkdir()
    (quick_path / "out.npy.part" / "x").write_text("")
    with pytest.raises(FileExistsError, match=r"somebody else's.*out.npy.part"):
        sw.convert(store, quick_path / "out.npy", field="image", overwrite=True)
    assert (quick_path / "out.npy.part" / "x").exists()


def test_single_files_are_whole_or_not_there(quick_path: Path) -> None:
    store = a_store(quick_path / "store")
    for name in ("a.npz", "a.parquet"):
        with pytest.raises(Stop):
            sw.convert(store, quick_path / name, on_progress=stop_at(150))
        assert not (quick_path / name).exists()
        sw.convert(store, quick_path / name)
        with pytest.raises(FileExistsError, match="exists; overwrite replaces it"):
            sw.convert(store, quick_path / name)
        sw.convert(store, quick_path / name, overwrite=True)
    assert sorted(path.name for path in quick_path.iterdir()) == ["a.npz", "a.parquet", "store"]


def test_what_is_finished_says_what_it_is(quick_path: Path) -> None:
    store = a_store(quick_path / "store")
    sw.convert(store, quick_path / "out", to="parquet")
    about = json.loads((quick_path / "out" / ".stepwell.json").read_text())
    assert about["finished"] is True
    assert about["about"]["records"] == 300
    with pytest.raises(FileExistsError, match="this conversion is finished"):
        sw.convert(store, quick_path / "out", to="parquet")
    with pytest.raises(FileExistsError, match="another conversion"):
        sw.convert(store, quick_path / "out", to="folder")


# Which format.


@pytest.mark.parametrize(
    ("source", "target", "options", "text"),
    [
        ("a.npy", "b.npy", {}, "a.npy is npy, so .*b.npy must be a record store"),
        ("a.npy", "b", {"to": "parquet"}, "must be a record store"),
        ("a.npy", "b", {"field": "x"}, "field chooses from a record store that is read"),
        ("a.npy", "b", {"compress": "flate"}, "compress: expected none, zstd"),
        ("store", "b", {}, "expected a name that ends in .npy, .npz, .parquet, .array_record"),
        ("store", "b", {"to": "csv"}, "expected one of npy, npz, .*, got 'csv'"),
        ("store", "b", {"to": "npz"}, "expected a name that ends in .npz"),
        ("store", "b.npy", {"to": "npz"}, "the name says npy, asked for npz"),
        ("store", "b.npy", {"compress": "zstd"}, "compress is for a record store that is made"),
    ],
)
def test_calls_that_are_refused(
    source: str, target: str, options: Any, text: str, npy: Path, tmp_path: Path
) -> None:
    store_of(tmp_path / "store", mixed(3))
    with pytest.raises(ValueError, match=text):
        sw.convert(tmp_path / source, tmp_path / target, **options)
    assert not (tmp_path / target).exists()


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        sw.convert(tmp_path / "absent.npy", tmp_path / "store")
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(sw.FormatError, match=r"expected a record store, a .npy"):
        sw.convert(tmp_path / "a.csv", tmp_path / "store")


# Memory.

# What is mapped is the system's to take back; what is allocated is not.
GROWTH = """
import sys
from pathlib import Path
import stepwell as sw
path = Path(sys.argv[1])
seen = []
def held(*_):
    text = Path("/proc/self/status").read_text()
    seen.append(int(text.partition("RssAnon:")[2].split()[0]) * 1024)
def there_and_back(name, **options):
    sw.convert(path / f"{name}.npy", path / f"{name}-store", **options)
    sw.convert(path / f"{name}-store", path / f"{name}-out", to="parquet", **options)
    sw.convert(path / f"{name}-out", path / f"{name}-again", **options)
there_and_back("few")
held()
there_and_back("many", on_progress=held)
print(max(seen) - seen[0])
"""


@pytest.mark.skipif(SANITIZED, reason="ASan keeps what was freed")
def test_memory_is_bounded(quick_path: Path) -> None:
    data = np.random.default_rng(0).bytes(256 * MIB)
    rows = np.frombuffer(data, np.int64).reshape(256, -1)
    np.save(quick_path / "many.npy", rows)
    np.save(quick_path / "few.npy", rows[:1])
    assert int(children.answer(GROWTH, quick_path)) < 128 * MIB
    with RecordReader.open(quick_path / "many-again") as store:
        for i in range(0, 256, 32):
            assert (store[i : i + 32]["data"] == rows[i : i + 32]).all()


def test_a_store_of_one_s_own_is_left_alone(npy: Path, tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "mine", {"x": "<i8"}) as store:
        store.append({"x": np.arange(5)})
    with pytest.raises(FileExistsError, match="no conversion has made: it is left alone"):
        sw.convert(npy, tmp_path / "mine", overwrite=True)
    assert len(RecordReader.open(tmp_path / "mine")) == 5


def test_what_is_replaced_stays_until_the_new_one_is_whole(npy: Path, tmp_path: Path) -> None:
    target = tmp_path / "store"
    sw.convert(npy, target)
    np.save(tmp_path / "b.npy", np.arange(2000.0))
    with pytest.raises(Stop):
        sw.convert(tmp_path / "b.npy", target, overwrite=True, on_progress=stop_at(1000))
    assert_same(contents(target), {"data": np.arange(1000.0)})
    report = sw.convert(tmp_path / "b.npy", target, overwrite=True)
    assert report.resumed_at > 0
    assert_same(contents(target), {"data": np.arange(2000.0)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.npy", "store"]

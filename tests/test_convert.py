"""`convert`: what it makes of what, where it goes on, and what it leaves alone."""

import json
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # noqa: F401  pyarrow would import it in every worker again, for half a second
import pyarrow as pa
import pytest
from pyarrow import parquet

import stepwell as sw
from stepwell import (
    BusyError,
    FormatError,
    RecordReader,
    RecordWriter,
    SchemaError,
    ShardWriter,
    StepWriter,
    Writer,
    batches,
)
from stepwell.files.lock import WriterLock
from stepwell.formats import into_records, into_steps
from stepwell.formats.npz import NpzSource
from stepwell.kinds import MADE
from stepwell.replay import ReplayReader
from tests import SANITIZED, children
from tests.crash.kills import Victims
from tests.formats.rows import Given, assert_same, contents, mixed
from tests.replays import record_all
from tests.test_cli import stepwell

MIB = 1 << 20


class Stop(BaseException):
    """Stands for a kill: nothing but the disk remembers."""


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 1000)
    monkeypatch.setattr(into_records, "_COMMIT_BYTES", 1)
    monkeypatch.setattr(into_steps, "_COMMIT_S", 0)


def stop_at(rows: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done >= rows:
            raise Stop

    return progress


@pytest.fixture
def npy(quick_path: Path) -> Path:
    np.save(quick_path / "a.npy", np.arange(1000.0))
    return quick_path / "a.npy"


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


# What is made of what.


def test_bytes_of_both_sides(npy: Path, quick_path: Path) -> None:
    for target, to, runs in [
        ("store", "records", None),
        ("steps", "steps", 1),
        ("b.npy", None, None),
    ]:
        report = sw.convert(npy, quick_path / target, to=to)
        assert (report.rows, report.runs, report.resumed_at) == (1000, runs, 0)
        assert report.source_bytes == on_disk(npy)
        assert report.target_bytes == on_disk(quick_path / target)
        assert report.ratio == pytest.approx(report.target_bytes / report.source_bytes)


def on_disk(path: Path) -> int:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(min(f.stat().st_size, f.stat().st_blocks * 512) for f in files)


def test_a_replay_store_as_steps(tmp_path: Path) -> None:
    record_all(tmp_path / "replays", "a", range(35))
    record_all(tmp_path / "replays", "b", range(100, 120))
    report = sw.convert(tmp_path / "replays", tmp_path / "out")
    assert (report.source_kind, report.target_kind) == ("replay", "steps")
    with (
        ReplayReader.open(tmp_path / "replays") as source,
        sw.StepReader.open(tmp_path / "out") as out,
    ):
        episodes = list(source.episodes)
        assert report.rows == len(out) == len(source)
        assert set(out.schema) >= {"observation.inner.0", "next_observation.camera", "reward"}
        for name, values in source[:].items():
            found = out[:][name.replace("/(", "/").replace(")", "").replace("/", ".")]
            assert (found.dtype, found.tobytes()) == (values.dtype, values.tobytes())
        assert list(out.runs["episode_id"]) == [e.episode_id for e in episodes]
        assert list(out.runs["total_reward"]) == [e.total_reward for e in episodes]
        assert out.verify().ok
    sw.convert(tmp_path / "replays", tmp_path / "b", where="run_id = 'b' AND total_reward > 1100")
    with sw.StepReader.open(tmp_path / "b") as part:
        assert part[:]["reward"].tolist() == [float(i) for i in range(110, 120)]
    three_steps = ReplayReader.open(tmp_path / "replays", run="b", n_step=3)
    sw.convert(three_steps, tmp_path / "three", to="steps")  # a source of one's own making
    with sw.StepReader.open(tmp_path / "three") as three:
        assert "discount" in three.schema
        assert len(three.runs) == 2


def test_a_source_of_the_caller_stays_open(npy: Path, tmp_path: Path) -> None:
    with sw.open(npy) as source:
        for name in ("a", "b"):
            assert sw.convert(source, tmp_path / name, to="records").rows == len(source)
        assert len(source.take([0])) == len(source.schema)


def test_our_stores_are_not_eaten_as_folders_of_files(tmp_path: Path) -> None:
    record_all(tmp_path / "stores" / "replays", "a", range(3))
    with pytest.raises(FormatError, match=r"replays is a dataset of its own \(replay\)"):
        sw.convert(tmp_path / "stores", tmp_path / "out")
    (tmp_path / "records" / "chunk").mkdir(parents=True)
    (tmp_path / "records" / "meta.json").write_text("{")
    with pytest.raises(FormatError, match=r"meta.json"):  # damaged or not, it is a record store
        sw.convert(tmp_path / "records", tmp_path / "out.npz")
    assert not (tmp_path / "out").exists()


def test_small_records_that_grow_are_told_of(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(50_000, "i4"))
    with pytest.warns(UserWarning, match=r"2,000,000 bytes, the source has 200,128"):
        report = sw.convert(tmp_path / "a.npy", tmp_path / "store", compress="zstd")
    assert report.ratio is not None
    assert report.ratio > 5
    report = sw.convert(tmp_path / "a.npy", tmp_path / "column")  # which has no such costs
    assert report.ratio is not None
    assert report.ratio < 1.05


def test_several_fields_and_their_names(tmp_path: Path) -> None:
    values = {"größe": np.arange(5), "b/c": np.zeros((5, 2)), "text": [""] * 5}
    sw.convert(Given(values), tmp_path / "store", to="records")
    assert list(contents(tmp_path / "store")) == ["gr__e", "b_c", "text"]
    sw.convert(tmp_path / "store", tmp_path / "a.npy", field=["b/c", "größe"])
    assert np.load(tmp_path / "a.npy").dtype.names == ("b/c", "größe")
    sw.convert(tmp_path / "store", tmp_path / "again", to="records", field=["größe"])
    assert list(contents(tmp_path / "again")) == ["gr__e"]
    with pytest.raises(SchemaError, match="expected a field of größe, b/c, text, got 'x'"):
        sw.convert(tmp_path / "store", tmp_path / "x.npy", field="x")


@pytest.mark.parametrize(
    ("source", "target", "options", "text"),
    [
        ("a.npy", "b", {"compress": "lzma"}, "compress: expected"),
        ("a.npy", "b.npz", {"compress": "zstd"}, "compress: expected a record store"),
        ("a.npy", "b", {"to": "csv"}, "expected one of records, shards, steps, npy, .* got 'csv'"),
        ("a.npy", "b", {"to": "replay"}, "expected one of records"),
        ("a.npy", "b", {"to": "npz"}, "expected a name that ends in .npz"),
        ("a.npy", "b.npy", {"to": "npz"}, "to: expected 'npy' for .*b.npy, got 'npz'"),
        ("a.npy", "b", {"where": "score > 3"}, "no runs to choose"),
        ("a.npz", "b", {"where": "score > 3"}, "no runs to choose"),
        ("a.npy", "b", {"mode": "w"}, "mode: expected 'x' or 'a'"),
        ("a.npy", "b", {"mode": "a", "force": True}, "expected mode='a', which"),
        ("a.npy", "b", {"to": "steps", "part_bytes": 7}, "expected at least 8, got 7"),
        ("a.npy", "a.npy", {"force": True}, "is the source itself"),
        ("store", "store/b.npy", {}, "is the source itself, or inside it"),
        (
            "store",
            "b",
            {},
            r"expected to= \(--to\) records, shards, steps or a format, or a name that ends",
        ),
    ],
)
def test_calls_that_are_refused(
    source: str, target: str, options: Any, text: str, npy: Path, quick_path: Path
) -> None:
    sw.convert(npy, quick_path / "store")
    sw.convert(npy, quick_path / "a.npz")
    before = names(quick_path)
    with pytest.raises(ValueError, match=text):
        sw.convert(quick_path / source, quick_path / target, **options)
    assert names(quick_path) == before


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        sw.convert(tmp_path / "absent.npy", tmp_path / "store")
    with pytest.raises(ValueError, match=r"s3://a/b.npy is a URL: expected to= .* shards or steps"):
        sw.convert(Given({"data": np.zeros(3)}), "s3://a/b.npy")
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(FormatError, match=r"expected one of arrayrecord, arrow, .*a.csv"):
        sw.convert(tmp_path / "a.csv", tmp_path / "store")


# What is there already.


def test_what_is_there_is_kept_replaced_or_gone_on_with(npy: Path, quick_path: Path) -> None:
    for target, to in [
        *(("store", "records"), ("steps", "steps"), ("parts", "parquet")),
        *(("b.npy", "npy"), ("b.npz", "npz"), ("b.parquet", "parquet")),
    ]:
        sw.convert(npy, quick_path / target, to=to)
        with pytest.raises(FileExistsError, match=f"{target} exists; force=True"):
            sw.convert(npy, quick_path / target, to=to)
        assert sw.convert(npy, quick_path / target, to=to, force=True).resumed_at == 0
        if to in ("records", "steps"):
            assert sw.convert(npy, quick_path / target, mode="a").rows == 1000
            with sw.open(quick_path / target) as made:
                assert made[:]["data"].tolist() == [*range(1000)] * 2
        else:
            with pytest.raises(FileExistsError, match="mode='a': expected records or"):
                sw.convert(npy, quick_path / target, to=to, mode="a")
    sw.convert(npy, quick_path / "new", to="records", mode="a")
    assert not [name for name in names(quick_path) if name.endswith((".part", ".tmp"))]


def test_what_is_of_another_kind_is_left_alone(npy: Path, quick_path: Path) -> None:
    (quick_path / "mine" / "sub").mkdir(parents=True)
    (quick_path / "mine" / "precious").write_text("x")
    sw.convert(npy, quick_path / "steps", to="steps")
    sw.convert(npy, quick_path / "parts", to="parquet")
    (quick_path / "parts" / "notes.txt").write_text("x")
    for target, to in [
        *(("mine", "records"), ("mine", "parquet"), ("mine", "folder"), ("mine", "steps")),
        *(("steps", "records"), ("parts", "parquet"), ("mine/precious", "records")),
    ]:
        with pytest.raises(FileExistsError, match=f"force: expected {to} "):
            sw.convert(npy, quick_path / target, to=to, force=True)
    assert (quick_path / "mine" / "precious").read_text() == "x"
    assert (quick_path / "parts" / "notes.txt").read_text() == "x"
    (quick_path / "empty").mkdir()
    sw.convert(npy, quick_path / "empty", to="steps")


WRITERS: dict[str, Callable[[Path], Writer]] = {
    "records": lambda path: RecordWriter(path, mode="a"),
    "shards": lambda path: ShardWriter(path, mode="a"),
    "steps": lambda path: StepWriter(path, mode="a"),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_store_that_is_written_to_is_not_replaced(kind: str, tmp_path: Path) -> None:
    source = Given({"data": np.zeros((5, 2), "f4")})
    sw.convert(source, tmp_path / "out", to=kind)
    with WRITERS[kind](tmp_path / "out"), pytest.raises(BusyError):
        sw.convert(source, tmp_path / "out", to=kind, force=True)
    sw.convert(source, tmp_path / "out", to=kind, force=True)
    assert names(tmp_path) == ["out"]


def test_what_is_replaced_stays_until_the_new_one_is_whole(
    npy: Path, quick_path: Path, small_batches: None
) -> None:
    target = quick_path / "store"
    sw.convert(npy, target)
    np.save(quick_path / "b.npy", np.arange(2000.0))
    with pytest.raises(Stop):
        sw.convert(quick_path / "b.npy", target, force=True, progress=stop_at(1000))
    assert_same(contents(target), {"data": np.arange(1000.0)})
    report = sw.convert(quick_path / "b.npy", target, force=True)
    assert report.resumed_at > 0
    assert_same(contents(target), {"data": np.arange(2000.0)})
    assert names(quick_path) == ["a.npy", "b.npy", "store"]


# After a stop.

RESUMED: dict[str, dict[str, Any]] = {
    "store": {"to": "records", "compress": "zstd"},
    "steps": {"to": "steps", "field": ["image", "label"]},
    "shards": {"to": "shards", "field": "acts", "part_bytes": 400},
    "out.npy": {"field": "image"},
    "out.safetensors": {"field": ["image", "label"]},
    "parts": {"to": "parquet", "part_bytes": 500},
    "out.array_record": {"field": "blob", "part_bytes": 500},
    "files": {"to": "folder"},
}


@cache
def rows_to_convert() -> dict[str, Any]:
    values = mixed(300)
    values |= {"data": values["blob"], "label": np.abs(values["label"])}
    values["acts"] = np.random.default_rng(0).random((300, 4), np.float32)
    values["name"] = [f"{i}ü" for i in range(300)]
    return values


def a_store(path: Path) -> Path:
    sw.convert(Given(rows_to_convert()), path, to="records")
    return path


def tree(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@pytest.mark.parametrize("name", RESUMED)
def test_it_goes_on(name: str, quick_path: Path, small_batches: None) -> None:
    store, target, options = a_store(quick_path / "in"), quick_path / name, RESUMED[name]
    with pytest.raises(Stop):
        sw.convert(store, target, **options, progress=stop_at(150))
    assert not target.exists()
    assert (quick_path / f"{name}.part").is_dir()
    lock = WriterLock(quick_path / f"{name}.part" / ".lock")
    with pytest.raises(BusyError):
        sw.convert(store, target, **options)
    lock.release()
    seen: list[tuple[int, int]] = []
    report = sw.convert(store, target, **options, progress=lambda *done: seen.append(done))
    assert report.resumed_at == seen[0][0] > 0
    assert seen[-1] == (300, 300)
    whole = quick_path / f"whole{target.suffix}"
    sw.convert(store, whole, **options)
    if "to" in options and name != "files":  # files may be cut elsewhere; rows are in order
        for made, back in ((target, "a"), (whole, "b")):
            sw.convert(made, quick_path / f"{back}.npz")
        one, two = (NpzSource(quick_path / f"{b}.npz") for b in "ab")
        assert_same(contents(one), contents(two))
    else:
        assert tree(target) == tree(whole)
    assert not [each for each in names(quick_path) if each.endswith((".part", ".tmp"))]


@pytest.mark.parametrize("name", ["store", "out.npy", "parts"])
def test_what_was_begun_otherwise(name: str, quick_path: Path, small_batches: None) -> None:
    store, target, options = a_store(quick_path / "in"), quick_path / name, RESUMED[name]
    with pytest.raises(Stop):
        sw.convert(store, target, **options, progress=stop_at(150))
    other = {**options, "field": ["score"]}
    with pytest.raises(FileExistsError, match=r"different conversion \(fields: .*, now"):
        sw.convert(store, target, **other)
    shutil.copytree(store, quick_path / "copy")
    with pytest.raises(FileExistsError, match=r"source: '.*in', now '.*copy'"):
        sw.convert(quick_path / "copy", target, **options)
    with RecordWriter(store, mode="a") as opened:
        opened.update([7], {"blob": [b"new"], "score": np.ones(1, "f4")})
    with pytest.raises(FileExistsError, match=r"in has changed since\); force starts again"):
        sw.convert(store, target, **options)
    assert sw.convert(store, target, **options, force=True).resumed_at == 0
    assert target.exists()


def test_a_folder_that_is_not_ours(npy: Path, quick_path: Path) -> None:
    (quick_path / "out.part").mkdir()
    (quick_path / "out.part" / "x").write_text("")
    with pytest.raises(FileExistsError, match="expected an unfinished conversion, got other files"):
        sw.convert(npy, quick_path / "out", force=True)
    assert (quick_path / "out.part" / "x").exists()


def test_single_files_are_whole_or_not_there(quick_path: Path, small_batches: None) -> None:
    store = a_store(quick_path / "in")
    for name in ("a.npz", "a.parquet", "a.arrow", "a.gif", "a.mp4"):
        with pytest.raises(Stop):
            sw.convert(store, quick_path / name, progress=stop_at(150))
        assert names(quick_path) == ["in"]


def test_an_error_late_keeps_what_was_committed(quick_path: Path, small_batches: None) -> None:
    path = quick_path / "a.parquet"
    parquet.write_table(pa.table({"a": [*range(999), None]}), path, row_group_size=100)
    seen: list[int] = []
    for _ in range(2):
        seen.clear()
        with pytest.raises(SchemaError, match="column 'a', row 999"):
            sw.convert(path, quick_path / "out", progress=lambda done, _: seen.append(done))
    assert seen[0] >= 900


# After kills.

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("a.npz", "from-npz", {"compress": "zstd"}),
    ("a.parquet", "from-parquet", {}),
    ("store", "out.npz", {}),
    *(("store", f"out-{name}", options) for name, options in RESUMED.items()),
]


def work(path: Path, first: int) -> Iterator[int]:
    """Convert case `first`, in small steps so that there are many moments to be killed at."""
    batches.BATCH_BYTES = 700
    into_records._COMMIT_BYTES = 1
    into_steps._COMMIT_S = 0
    source, target, options = CASES[first]
    if not (path / target).exists():
        sw.convert(path / source, path / target, **options)
    yield first
    signal.pause()


def test_kills(quick_path: Path) -> None:
    at = quick_path / "work"
    a_store(at / "store")
    for name in ("a.npz", "a.parquet"):
        sw.convert(at / "store", at / name)
    chance = random.Random()
    kills = 0
    with Victims("tests.test_convert:work", at) as victims:
        for case, (source, target, options) in enumerate(CASES):
            longest_s = 0.015
            while victims.kill(case, chance.uniform(0, longest_s)) != case:
                kills += 1
                longest_s *= 1.3
                if (at / target).exists():  # killed before it could say so
                    break
            whole = quick_path / f"whole{Path(target).suffix}"
            sw.convert(at / source, whole, **({} if "." in target else {"to": "records"}) | options)
            assert_alike(at / target, whole)
            shutil.rmtree(whole) if whole.is_dir() else whole.unlink()
            with pytest.raises(FileExistsError):
                sw.convert(at / source, at / target, **options)
    assert kills > len(CASES)
    assert not [name for name in names(at) if name.endswith(".part")]


def assert_alike(made: Path, whole: Path) -> None:
    """The same rows, or the same files."""
    if made.name == "out-files" or made.suffix in (".npy", ".npz", ".safetensors"):
        assert tree(made) == tree(whole)
        return
    for path in (made, whole):
        sw.convert(path, path.with_name("alike-" + path.name + ".npz"), force=True)
    with_names = [path.with_name("alike-" + path.name + ".npz") for path in (made, whole)]
    one, two = (contents(NpzSource(path)) for path in with_names)
    assert_same(one, two)


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
there_and_back("many", progress=held)
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


# The command.


def test_the_command(npy: Path, quick_path: Path) -> None:
    done = stepwell("convert", npy, quick_path / "store", "--compress", "zstd", "--level", "5")
    assert (done.returncode, done.stderr) == (0, "")
    for text in (str(quick_path / "store"), "npy", "1000", "ratio"):
        assert text in done.stdout
    for _ in range(2):
        args = ("--field", "data", "--json", "--force")
        done = stepwell("convert", quick_path / "store", quick_path / "b.npy", *args)
        facts = json.loads(done.stdout)
        assert facts["seconds"] >= 0
        assert {k: facts[k] for k in ("from", "to", "rows", "runs", "resumed_at")} == {
            "from": "records",
            "to": "npy",
            "rows": 1000,
            "runs": None,
            "resumed_at": 0,
        }
    assert (quick_path / "b.npy").read_bytes() == npy.read_bytes()
    done = stepwell("convert", npy, quick_path / "store", "--append")
    assert (done.returncode, done.stderr) == (0, "")
    (quick_path / "empty").mkdir()
    for paths, code, text in [
        ((npy, quick_path / "store"), 2, "store exists"),
        ((quick_path / "empty", quick_path / "b"), 2, "expected one of arrayrecord"),
        ((quick_path / "store", quick_path / "c.npy", "--field", "x"), 2, "expected a field"),
        ((quick_path / "store", quick_path / "c"), 2, "expected to= (--to) records"),
    ]:
        done = stepwell("convert", *paths)
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.startswith("error: ")
        assert text in done.stderr
        assert done.stderr.count("\n") == 1

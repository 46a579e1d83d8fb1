"""Stores below a URL: the same rows as of the same files on this machine."""

import os
import pickle
import resource
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import stepwell as sw
from stepwell import Batch, Ragged, RecordWriter, ShardWriter, StepReader, StepWriter
from stepwell.files.mirror import Mirror
from stepwell.source import Source
from stepwell.store import Store
from tests import children, packs, records, runs, scaled
from tests.arrays import random_array
from tests.buckets import Bucket
from tests.contract import Expected, SourceContract, assert_batch, pick
from tests.steps import LENGTHS, build, fields, ranges, rows_of_all


class TestSteps(SourceContract):
    """By way of obstore's own files, which other processes can read, too."""

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("bucket") / "steps"
        build(folder, LENGTHS, shard_rows=9)
        return folder

    @pytest.fixture
    def expected(self) -> Expected:
        return fields(rows_of_all())

    @pytest.fixture
    def source(self, folder: Path) -> Source:
        return StepReader.open(f"file://{folder}")

    def runs(self, expected: Expected) -> list[range]:
        return ranges()

    def test_after_fork(self, source: Source, expected: Expected) -> None:
        """The threads of obstore do not follow, which is said, in place of waiting for them."""
        assert_batch(source.take([3, 1]), pick(expected, [3, 1]))
        for ask in (lambda: source.take([3, 1]), lambda: StepReader.open("file:///absent")):
            with pytest.raises(AssertionError, match="RuntimeError: buckets cannot be read after"):
                children.in_fork(ask)
        assert_batch(source.take([3, 1]), pick(expected, [3, 1]))


def test_what_is_here_is_read_while_others_make_room(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(bytes(range(256)) * 64)
    mirror = Mirror(f"file://{tmp_path}")
    file = mirror.sparse("bytes")
    units = file.first + np.arange(file.units)
    want = (tmp_path / "bytes").read_bytes()
    assert mirror.reading(units, file.path.read_bytes) == want
    requests, turns = mirror.statistics.requests, 0

    def lost() -> bytes:
        nonlocal turns
        turns += 1
        if turns == 1:
            mirror.forget(units)
        return file.path.read_bytes()

    assert mirror.reading(units, lost) == want  # not what a hole is read as
    assert (turns, mirror.statistics.requests) == (2, requests + 1)
    with ThreadPoolExecutor(1) as pool, mirror._lock:
        assert pool.submit(mirror.reading, units, file.path.read_bytes).result(60) == want


# Any store.

MIB = 1 << 20
LARGE = np.dtype([("x", "<f4", (40,)), ("run_id", "<i8"), ("step_index", "<i4")])


def large_steps(path: Path, **options: Any) -> None:
    """170 KB of rows in 20 runs."""
    with StepWriter(path, LARGE, {"score": int}, **options) as writer:
        for run in range(20):
            writer.append({"x": np.random.default_rng(run).random((50, 40))}, score=run)


STORES = ["steps", "steps-shards", "records", "packed-records", "journal", "runs.a2pack"]
STORES += ["raw.a2pack", "plain.npy", "fields.npy", "shards"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: Bucket) -> Path:
    """Stores of every kind, in a folder and in the bucket."""
    folder = tmp_path_factory.mktemp("stores")
    large_steps(folder / "steps")
    large_steps(folder / "steps-shards", shard_rows=130)
    records.build(folder / "records", range(200))
    records.build(folder / "packed-records", range(200), "zstd")
    with RecordWriter(folder / "open", records.fields()) as writer:
        writer.append(records.batch(range(50)))
        writer.commit()
        records.copy(folder / "open", folder / "journal")  # as a killed writer leaves it
    for path in (folder / "journal").rglob("*.*"):
        if path.name != "journal.zr" and path.stat().st_size > MIB:  # zeros, made ahead
            os.truncate(path, MIB)
    shutil.rmtree(folder / "open")
    random = np.random.default_rng(0)
    packs.write(folder / "runs.a2pack", [runs.RUN_V1, runs.RUN_V2] * 40)
    packs.write(folder / "raw.a2pack", [random.bytes(n * 90) for n in range(99)], [1000] * 99)
    np.save(folder / "plain.npy", random.random((500, 7)))
    np.save(folder / "fields.npy", random_array(LARGE, 300, seed=1))
    with ShardWriter(folder / "shards", 16) as shards:
        shards.append(random.random((100, 16), np.float32))
    server.upload(folder, "stores")
    return folder


@pytest.mark.parametrize("name", STORES)
def test_is_the_same_as_here(folder: Path, s3: Bucket, name: str) -> None:
    here, far = sw.open(folder / name), sw.open(s3.url(f"stores/{name}"), **s3.options)
    assert type(far) is type(here)
    assert isinstance(far, Store)
    assert (len(far), far.schema, far.path) == (len(here), here.schema, s3.url(f"stores/{name}"))
    assert_same(far[:], here[:])
    assert far.fingerprint == here.fingerprint
    assert far.describe().bytes
    assert far.verify().ok
    assert far.verify(quick=True).ok
    assert not far.refresh()
    if name != "shards":
        assert far._units() is not None
    part = pickle.loads(pickle.dumps(far.select(slice(None, None, 3))))
    assert_same(part[:], here.select(slice(None, None, 3))[:])
    far.close()
    with pytest.raises(ValueError, match="closed"):
        far.take([1])


@settings(max_examples=scaled(60, smallest=20))
@given(data=st.data())
def test_any_rows_in_any_window(folder: Path, server: Bucket, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(STORES[:-1]))
    window = data.draw(st.sampled_from([4096, 20_000, 1 << 20]))
    connections = data.draw(st.integers(1, 5))
    here = sw.open(folder / name)
    options = {**server.options, "window_bytes": window, "connections": connections}
    far = sw.open(server.url(f"stores/{name}"), **options)
    for _ in range(2):
        rows = np.array(data.draw(st.lists(st.integers(0, len(here) - 1), max_size=80)), np.int64)
        assert_same(far.take(rows), here.take(rows))
        names = [data.draw(st.sampled_from(list(here.schema)))]
        assert_same(far.columns(names).take(rows), here.columns(names).take(rows))
    units = far._units()
    assert units is not None
    mirror = far._units().mirror  # type: ignore[union-attr]
    assert len(mirror._units) <= max(window // 4096, 0)
    assert on_disk(mirror) <= window + 4096


def on_disk(mirror: Mirror) -> int:
    """Bytes of units that a mirror has."""
    return sum(
        max(os.stat(file.path).st_blocks * 512 - file.head_bytes, 0) for file, _ in mirror._order
    )


def assert_same(got: Batch, want: Batch) -> None:
    expected = {
        name: list(Ragged(values.values, values.offsets)) if isinstance(values, Ragged) else values
        for name, values in want.items()
    }
    assert_batch(got, expected)


def test_loaders(folder: Path, s3: Bucket) -> None:
    for name in ("steps-shards", "records", "plain.npy"):
        here, far = sw.open(folder / name), sw.open(s3.url(f"stores/{name}"), **s3.options)
        loaders = [sw.Loader(each, 64, sampler=sw.Shuffle(5)) for each in (here, far)]
        for want, got in zip(*loaders, strict=True):
            assert_same(got, want)
        state = loaders[0].state_dict()
        loaders[1].load_state_dict(state)
        assert loaders[1].state_dict() == state


def test_units(folder: Path, s3: Bucket) -> None:
    """What a loader asks for before it takes is what a take fetches, and no more."""
    far = sw.open(s3.url("stores/steps-shards"), **s3.options, window_bytes=40_000)
    windows = far.where("score > 3").windows(4)
    view = windows.select(slice(None, None, 5)).concat(windows)
    rows = np.random.default_rng(3).integers(0, len(view), 30)
    units, mirror = view._units(), far._units().mirror  # type: ignore[union-attr]
    assert units is not None
    wanted = units.of(rows)
    assert units.missing(wanted).tolist() == wanted.tolist()
    coming = units.bring(wanted)
    assert not len(units.missing(wanted))
    coming.wait()
    requests = mirror.statistics.requests
    assert_same(
        view.take(rows),
        sw.open(folder / "steps")
        .where("score > 3")
        .windows(4)
        .select(slice(None, None, 5))
        .concat(sw.open(folder / "steps").where("score > 3").windows(4))
        .take(rows),
    )
    assert mirror.statistics.requests == requests
    coming.release()
    assert on_disk(mirror) <= 40_000
    units.bring(wanted)  # nobody waits for it, or lets it go
    view.take(np.arange(len(view)))
    assert on_disk(mirror) <= 40_000


def test_many_shards(quick_path: Path) -> None:
    """Under the usual limit of descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with StepWriter(quick_path / "a", [("x", "<i4")], shard_rows=2) as writer:
        writer.append({"x": np.arange(400)})
    few = len(os.listdir("/proc/self/fd")) + 100  # other tests have left some open
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        for options in ({}, {"cache": quick_path / "c"}):
            far = StepReader.open(f"file://{quick_path}/a", **options)
            assert far["x"][::-1].tolist() == list(range(400))[::-1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

"""Shards of a bucket that are kept on the disk: fetched once, checked, within a size."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from obstore.store import MemoryStore

from stepwell import ChecksumError, FetchError, FormatError, Loader, ShardReader
from tests.buckets import Bucket, bucket
from tests.contract import assert_array
from tests.proxy import changed, cut, status, times
from tests.reference import shards as reference
from tests.shards import Floats, assert_same, build

COUNTS = [100, 0, 60, 80]
WIDTH = 16
SHARD_BYTES = 32 + 100 * WIDTH * 4


@pytest.fixture(scope="module", autouse=True)
def rows(tmp_path_factory: pytest.TempPathFactory, server: Bucket) -> Floats:
    """A corpus: `cached`, and `cached-bare` without a list."""
    return server.corpus(tmp_path_factory.mktemp("cache"), "cached", COUNTS, WIDTH)


def kept(cache: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in cache.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["cached", "cached-bare"])
def test_fetched_once(s3: Bucket, rows: Floats, tmp_path: Path, name: str) -> None:
    chosen = np.random.default_rng(0).integers(0, len(rows), 500)
    reader = s3.open(name, cache=tmp_path / "c")
    s3.proxy.requests.clear()
    for _ in range(3):
        assert_same(reader.take(chosen)["data"], rows[chosen])
    assert len(s3.proxy.requests) == 3  # each shard with rows, in one range
    again = s3.open(name, cache=tmp_path / "c")
    s3.proxy.requests.clear()
    assert_same(again.take(chosen)["data"], rows[chosen])
    assert_same(np.concatenate([b["data"] for b in Loader(again, 50, shuffle=False)]), rows)
    assert not s3.proxy.requests
    assert sum(kept(tmp_path / "c").values()) == 3 * 32 + rows.nbytes


def test_batches_come_from_what_is_there(s3: Bucket, rows: Floats, tmp_path: Path) -> None:
    reader = s3.open("cached", cache=tmp_path / "c")
    reader.take([0, 200])
    s3.proxy.forget()
    assert_same(np.concatenate([b.rows for b in reader.batches(7)]), rows)
    assert {request.path[-12:] for request in s3.proxy.requests} == {"000002.shard"}
    assert set(kept(tmp_path / "c")) == {"000000.shard", "000003.shard"}  # they bring nothing
    reader.take([100])
    s3.proxy.forget()
    assert_same(np.concatenate([b.rows for b in reader.batches(7)]), rows)
    assert s3.open("cached", cache=tmp_path / "c").verify().ok
    assert not s3.proxy.asked_for(".shard")


@pytest.mark.parametrize("shards", [0, 1, 2])
def test_no_more_than_asked_for(s3: Bucket, rows: Floats, tmp_path: Path, shards: int) -> None:
    with pytest.raises(ValueError, match="cache_bytes: expected at least 0"):
        s3.open("cached", cache=tmp_path, cache_bytes=-1)
    most = shards * SHARD_BYTES or 100
    reader = s3.open("cached", cache=tmp_path / "c", cache_bytes=most)
    random = np.random.default_rng(0)
    for _ in range(10):
        chosen = random.integers(0, len(rows), 20)
        assert_same(reader.take(chosen)["data"], rows[chosen])
        assert sum(kept(tmp_path / "c").values()) <= most
    assert bool(kept(tmp_path / "c")) == bool(shards)


def test_corpora_share_the_room(s3: Bucket, rows: Floats, tmp_path: Path) -> None:
    """And no file is touched that is not of a cache."""
    mine = tmp_path / "c" / "mine"
    build(mine, [1000])
    for name in ("cached", "cached-bare"):
        reader = s3.open(name, cache=tmp_path / "c", cache_bytes=2 * SHARD_BYTES)
        assert_same(reader.take([0, 100])["data"], rows[[0, 100]])
        found = [path for path in (tmp_path / "c").glob("*/*.shard") if path.parent != mine]
        assert sum(path.stat().st_size for path in found) <= 2 * SHARD_BYTES
    assert len({path.parent for path in found}) == 1  # those of the other one went
    assert len(list(mine.iterdir())) == 1


def test_what_a_kill_left_is_removed(s3: Bucket, tmp_path: Path) -> None:
    reader = s3.open("cached", cache=tmp_path)
    reader.take([0])
    (folder,) = tmp_path.iterdir()
    old, young = (folder / f".000002.shard.{n}.tmp" for n in ("0" * 8, "1" * 8))
    for path in (old, young):
        path.write_bytes(b"some of it")
    os.utime(old, (0, 0))
    reader.take([100])
    assert not old.exists()
    assert young.exists()  # someone may be writing it


def test_a_kept_shard_that_is_cut(s3: Bucket, rows: Floats, tmp_path: Path) -> None:
    reader = s3.open("cached", cache=tmp_path)
    for ask in (lambda: reader.take([99])["data"], lambda: next(reader.batches()).rows[99:100]):
        reader.take([0])
        (path,) = tmp_path.rglob("000000.shard")
        os.truncate(path, 4096)
        assert_same(ask(), rows[[99]])


@pytest.mark.parametrize("opened", ["before", "after"])
def test_a_kept_shard_that_becomes_a_link(
    s3: Bucket, rows: Floats, tmp_path: Path, opened: str
) -> None:
    """What it leads to is neither read, nor written through, nor touched."""
    reader = s3.open("cached", cache=tmp_path / "c")
    reader.take([0])
    (path,) = (tmp_path / "c").rglob("000000.shard")
    victim = tmp_path / "victim"
    victim.write_bytes(b"years of work")
    os.utime(victim, (0, 0))
    path.unlink()
    path.symlink_to(victim)
    if opened == "after":
        reader = s3.open("cached", cache=tmp_path / "c")
    assert_same(reader.take([99])["data"], rows[[99]])
    assert (victim.read_bytes(), victim.stat().st_mtime) == (b"years of work", 0)
    assert path.is_symlink() == (opened == "before")  # it is replaced where it is needed


@pytest.mark.parametrize("opened", ["before", "after"])
def test_the_folder_of_kept_shards_that_becomes_a_link(
    s3: Bucket, tmp_path: Path, opened: str
) -> None:
    """Nothing is put into what it leads to, or read from there."""
    reader = s3.open("cached", cache=tmp_path / "c")
    reader.take([0])
    (folder,) = (tmp_path / "c").iterdir()
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    calls: list[Callable[[], Any]] = [
        lambda: reader.take([0]),
        lambda: reader.take([150]),
        lambda: list(reader.batches(50)),
        lambda: s3.open("cached", cache=tmp_path / "c"),
    ]
    for call in calls if opened == "before" else calls[-1:]:
        with pytest.raises(FormatError, match="expected a folder, got a link"):
            call()
    assert list(kept(tmp_path / "elsewhere")) == ["000000.shard"]


def test_a_folder_in_the_place_of_a_kept_shard(s3: Bucket, rows: Floats, tmp_path: Path) -> None:
    reader = s3.open("cached", cache=tmp_path)
    (folder,) = tmp_path.iterdir()
    (folder / "000000.shard" / "work").mkdir(parents=True)
    with pytest.raises(FormatError, match="expected a regular file, got a folder") as caught:
        reader.take([0])
    assert caught.value.path == str(folder / "000000.shard")
    assert_same(reader.take([100])["data"], rows[[100]])
    assert (folder / "000000.shard" / "work").is_dir()


@pytest.mark.parametrize("letters", [242, 249])
def test_a_name_too_long_for_a_file(tmp_path: Path, letters: int) -> None:
    store = MemoryStore()
    rows = build(tmp_path / "a", [4], names=["a.shard"])
    obstore.put(store, "n" * letters + ".shard", (tmp_path / "a" / "a.shard").read_bytes())
    assert_same(ShardReader(store, cache=tmp_path / "c")[:]["data"], rows)


def test_a_cache_that_is_read_only(
    s3: Bucket, rows: Floats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.open("cached", cache=tmp_path)[:]

    def refuse(*args: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "utime", refuse)
    assert_same(s3.open("cached", cache=tmp_path)[:]["data"], rows)


def test_a_disk_that_is_full(
    s3: Bucket, rows: Floats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = s3.open("cached", cache=tmp_path)

    def refuse(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match=r"No space left.*000000\.shard"):
            reader.take([0])
    assert not kept(tmp_path)
    assert_same(reader.take([0])["data"], rows[:1])


def test_what_was_used_last_stays(s3: Bucket, tmp_path: Path) -> None:
    reader = s3.open("cached", cache=tmp_path / "c", cache_bytes=2 * SHARD_BYTES)
    for row in (0, 100, 0, 160):
        reader.take([row])
    assert set(kept(tmp_path / "c")) == {"000000.shard", "000003.shard"}


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a value": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "the header": lambda data: b"X" + data[1:],
    "the width": lambda data: reference.header(len(data) - 32, 1, 1) + data[32:],
    "cut": lambda data: data[:-1],
    "empty": lambda data: b"",
}


@pytest.mark.parametrize("how", DAMAGES)
def test_what_is_damaged_is_replaced(s3: Bucket, rows: Floats, tmp_path: Path, how: str) -> None:
    s3.open("cached", cache=tmp_path).take([0, 100])
    (path,) = tmp_path.rglob("000000.shard")
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[how](whole))
    assert_same(s3.open("cached", cache=tmp_path).take([0, 100])["data"], rows[[0, 100]])
    assert path.read_bytes() == whole


def test_other_bytes_are_not_kept(s3: Bucket, rows: Floats, tmp_path: Path) -> None:
    s3.proxy.fault = times(1, changed, of="000000.shard")
    assert_same(s3.open("cached", cache=tmp_path / "a").take([5])["data"], rows[[5]])
    s3.proxy.fault = times(None, changed, of="000000.shard")
    reader = s3.open("cached", cache=tmp_path / "b")
    for _ in range(2):
        with pytest.raises(ChecksumError, match="expected CRC32C") as caught:
            reader.take([5])
        assert caught.value.path == s3.url("cached/000000.shard")
        assert not kept(tmp_path / "b")
    s3.proxy.fault = None
    assert_same(reader.take([5])["data"], rows[[5]])


def test_faults_on_the_way(s3: Bucket, rows: Floats, tmp_path: Path) -> None:
    s3.proxy.fault = times(2, cut, of="000000.shard")
    assert_same(s3.open("cached", cache=tmp_path / "a").take([5])["data"], rows[[5]])
    reader = s3.open("cached", cache=tmp_path / "b")
    s3.proxy.fault = times(None, status(403), of="000000.shard")
    with pytest.raises(FetchError) as caught:
        reader.take([5])
    assert caught.value.url == s3.url("cached/000000.shard")
    assert not kept(tmp_path / "b")


def test_a_shard_that_is_not_what_the_list_says(tmp_path: Path) -> None:
    store = MemoryStore()
    build(tmp_path / "a", [4], checksums=False)
    obstore.put(store, "shards.json", (tmp_path / "a" / "shards.json").read_bytes())
    build(tmp_path / "b", [4], "float16", width=10)  # as many bytes
    obstore.put(store, "000000.shard", (tmp_path / "b" / "000000.shard").read_bytes())
    reader = ShardReader(store, cache=tmp_path / "c")
    for _ in range(2):
        with pytest.raises(FormatError, match=r"expected 000000\.shard with 4 rows"):
            reader.take([0])


def test_corpora_of_the_same_name(tmp_path: Path) -> None:
    """Stores that are not the same, with files that are called the same."""
    stores: list[Any] = [MemoryStore(), MemoryStore()]
    wanted = []
    for number, store in enumerate(stores):
        rows = build(tmp_path / str(number), [0, 5 + number], width=WIDTH)
        for path in (tmp_path / str(number)).iterdir():
            obstore.put(store, path.name, path.read_bytes())
        wanted.append(rows)
    for store, rows in zip(stores, wanted, strict=True):
        assert_same(ShardReader(store, cache=tmp_path / "c")[:]["data"], rows)


@pytest.mark.parametrize("named", ["in the call", "in the environment"])
def test_the_same_url_of_another_server(
    s3: Bucket, rows: Floats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    assert_same(s3.open("cached-bare", cache=tmp_path / "c")[:]["data"], rows)
    with bucket() as other:  # the same objects, which nobody knows here
        other.proxy.requests.clear()
        options = dict(other.options)
        if named == "in the environment":
            monkeypatch.setenv("AWS_ENDPOINT_URL", options.pop("endpoint"))
        reader = ShardReader.open(other.url("cached-bare"), cache=tmp_path / "c", **options)
        assert_same(reader[:]["data"], rows)
        assert {r.begin for r in other.proxy.asked_for(".shard")} == {0}
        assert len({r.end for r in other.proxy.asked_for("000000.shard")}) == 2


def test_threads_and_little_room(s3: Bucket, rows: Floats, tmp_path: Path) -> None:
    readers = [s3.open("cached", cache=tmp_path / "c", cache_bytes=SHARD_BYTES) for _ in range(2)]

    def work(number: int) -> None:
        random = np.random.default_rng(number)
        for _ in range(5):
            chosen = random.integers(0, len(rows), 10)
            assert_array(readers[number % 2].take(chosen)["data"], rows[chosen])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))

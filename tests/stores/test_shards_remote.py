"""Corpora in buckets: the same rows, in the same order, however they are fetched."""

import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from hypothesis import given, settings, strategies as st
from obstore.store import LocalStore, MemoryStore

from stepwell import ChecksumError, FetchError, FormatError, Loader, ShardReader, ShardWriter
from stepwell.source import Source
from tests import children, scaled
from tests.buckets import Bucket
from tests.contract import Expected, SourceContract, assert_array, assert_batch, pick
from tests.reference import shards as reference
from tests.shards import COUNTS, assert_same, build, values

MIB = 1 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, server: Bucket) -> Path:
    """Three MiB in four shards, in a folder and in the bucket: `large`, and without a list."""
    folder = tmp_path_factory.mktemp("large")
    rows = np.random.default_rng(0).standard_normal((1500, 512), np.float32)
    with ShardWriter(folder, 512, shard_bytes=MIB * 3 // 4 + 5000) as writer:
        writer.append(rows)
    server.upload(folder, "large")
    for path in folder.glob("*.shard"):
        (folder / "listed").mkdir(exist_ok=True)
        (folder / "listed" / path.name).write_bytes(path.read_bytes())
    server.upload(folder / "listed", "without-list")
    return folder


class TestInABucket(SourceContract):
    """By way of obstore's own files, which other processes can read, too."""

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("bucket") / "corpus"
        build(folder, COUNTS, "float16", checksums=True)
        return folder

    @pytest.fixture
    def expected(self, folder: Path) -> Expected:
        shards = reference.read_corpus(reference.names_in(folder))
        return {"data": np.array([row for shard in shards for row in shard.rows], "<f2")}

    @pytest.fixture
    def source(self, folder: Path) -> Source:
        return ShardReader.open(f"file://{folder}")

    def test_after_fork(self, source: Source, expected: Expected) -> None:
        """The threads of obstore do not follow, which is said, in place of waiting for them."""
        assert_batch(source.take([3, 1]), pick(expected, [3, 1]))
        for ask in (lambda: source.take([3, 1]), lambda: ShardReader.open("file:///absent")):
            with pytest.raises(AssertionError, match="RuntimeError: buckets cannot be read after"):
                children.in_fork(ask)
        assert_batch(source.take([3, 1]), pick(expected, [3, 1]))


# Order.


def fingerprint(reader: ShardReader, window_bytes: int, dtype: Any = np.float64) -> list[Any]:
    return [
        (batch.row_ids.tobytes(), batch.rows.tobytes())
        for batch in reader.batches(500, dtype, window_bytes)
    ]


@pytest.mark.parametrize("name", ["large", "without-list"])
@pytest.mark.parametrize("connections", [1, 8])
@pytest.mark.parametrize("window_bytes", [MIB, 64 * MIB])
def test_order(
    s3: Bucket,
    large: Path,
    name: str,
    connections: int,
    window_bytes: int,
    child: ProcessPoolExecutor,
) -> None:
    want = fingerprint(ShardReader.open(large), 8 * MIB)
    assert fingerprint(ShardReader.open(large), window_bytes) == want
    reader = s3.open(name, connections=connections)
    assert fingerprint(reader, window_bytes) == want
    begun = reader.batches(500, window_bytes=window_bytes)
    next(begun), next(begun)
    assert fingerprint(reader, window_bytes) == want  # begun again in the middle
    assert next(begun).rows.tobytes() == want[2][1]
    assert child.submit(fingerprint, reader, window_bytes).result(60) == want  # pickled


@settings(max_examples=scaled(25))
@given(data=st.data())
def test_any_batches_and_windows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    kind = data.draw(st.sampled_from(reference.KINDS))
    counts = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=4).filter(any))
    build(folder, counts, kind, width=9, checksums=data.draw(st.sampled_from([None, False, True])))
    local = ShardReader.open(folder)
    far = ShardReader(LocalStore(folder), connections=data.draw(st.integers(1, 4)))
    assert (len(far), far.width, far.stored_dtype) == (len(local), 9, kind)
    for _ in range(3):
        size, window = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 3000))
        for mine, theirs in zip(
            far.batches(size, window_bytes=window), local.batches(size), strict=True
        ):
            assert_array(mine.rows, theirs.rows)
            assert_array(mine.row_ids, theirs.row_ids)
    rows = data.draw(st.lists(st.integers(0, len(local) - 1), max_size=50))
    assert_array(far.take(rows)["data"], local.take(rows)["data"])
    assert far.verify().ok


def test_rows_in_any_order(s3: Bucket, large: Path) -> None:
    local, far = ShardReader.open(large), s3.open("large")
    random = np.random.default_rng(1)
    for count in (1, 7, 300):
        rows = random.integers(0, len(far), count)
        assert_array(far.take(rows)["data"], local.take(rows)["data"])
    s3.proxy.forget()
    far.take(np.arange(1000, 1010))
    assert len(s3.proxy.requests) == 1  # neighbours come together
    far.take(random.permutation(1500))
    sizes = [request.size for request in s3.proxy.requests]
    assert max(sizes) <= 4 * MIB
    part = far.subsample(0.01)
    assert_array(part[:]["data"], local.subsample(0.01)[:]["data"])
    got = [batch["data"] for batch in Loader(far, 700, seed=1)]
    want = [batch["data"] for batch in Loader(local, 700, seed=1)]
    for mine, theirs in zip(got, want, strict=True):
        assert_array(mine, theirs)


def test_rows_of_one_shard_come_several_at_a_time(s3: Bucket, tmp_path: Path) -> None:
    rows = build(tmp_path, [40], width=1 << 14)
    s3.upload(tmp_path, "wide")
    reader = s3.open("wide")
    s3.proxy.forget()
    s3.proxy.latency_s = 0.05
    assert_same(reader.take([36, 0, 12, 4, 8, 12])["data"], rows[[36, 0, 12, 4, 8, 12]])
    assert len(s3.proxy.requests) == 5  # each row once
    assert s3.proxy.most_in_flight > 2 << 16


def test_views_and_out(s3: Bucket, large: Path) -> None:
    local, far = ShardReader.open(large), s3.open("large")
    for batch in far.batches(700, None):
        assert not batch.rows.flags.writeable
        assert_array(batch.rows, local.take(batch.row_ids)["data"])
    for dtype in (np.float32, np.float64):
        out = np.zeros((512, 512), dtype)
        for mine, theirs in zip(far.batches(out=out), local.batches(512), strict=True):
            assert_same(mine.rows, theirs.rows)


def test_a_list_that_is_not_what_the_shards_are(s3: Bucket, tmp_path: Path) -> None:
    """Half as wide and twice as many rows: as many bytes, and other rows."""
    build(tmp_path, [4, 6], width=64, checksums=True)
    path = tmp_path / "shards.json"
    text = path.read_text().replace('"width": 64', '"width": 32')
    path.write_text(text.replace('"rows": 4', '"rows": 8').replace('"rows": 6', '"rows": 12'))
    s3.upload(tmp_path, "halved")
    reads: list[Any] = [
        lambda reader: reader.take([3]),
        lambda reader: list(reader.batches()),
        lambda reader: list(Loader(reader, 3)),
    ]
    for read in reads:
        with pytest.raises(FormatError, match="rows of 64 x float32, got"):
            read(s3.open("halved"))
    assert not s3.open("halved").verify().ok


def test_damage_in_a_bucket(s3: Bucket, tmp_path: Path) -> None:
    """Of the rows and of their checksums: whoever takes some of them comes to it."""
    with ShardWriter(tmp_path, 64, shard_bytes=1 << 15) as writer:
        writer.append(values(500, 64))
    for name, at in (("000001.shard", 5000), ("shards.crc", 16 + 4 * 9)):
        stored = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(stored[:at] + bytes([stored[at] ^ 4]) + stored[at + 1 :])
        s3.upload(tmp_path, name)
        (tmp_path / name).write_bytes(stored)
        reader = s3.open(name)
        assert len(reader.take([0, 499])["data"]) == 2
        for read in (lambda: reader.take([147]), lambda: list(reader.batches())):  # noqa: B023
            with pytest.raises(ChecksumError, match=r"000001.shard:4128") as caught:
                read()
            assert caught.value.offset == 32 + 4096
        reader = s3.open(name, checksums=False)
        assert len(reader.take([147])["data"]) == 1


# How it is asked for.


def test_the_list_stands_for_the_headers(s3: Bucket, large: Path) -> None:
    s3.open("large")
    assert [request.path for request in s3.proxy.requests] == ["/activations/large/shards.json"]
    s3.proxy.forget()
    s3.open("without-list")
    headers = s3.proxy.asked_for(".shard")
    assert {(request.begin, request.end) for request in headers} == {(0, 32)}
    assert len(headers) == len(list(large.glob("*.shard")))


@pytest.mark.parametrize("connections", [1, 8])
@pytest.mark.parametrize("window_bytes", [MIB // 4, 2 * MIB])
@pytest.mark.parametrize("batch_rows", [10, 700])
@pytest.mark.usefixtures("large")
def test_bytes_in_flight(s3: Bucket, connections: int, window_bytes: int, batch_rows: int) -> None:
    reader = s3.open("large", connections=connections)
    s3.proxy.latency_s = 0.005
    assert sum(len(b.rows) for b in reader.batches(batch_rows, None, window_bytes)) == 1500
    sizes = [request.size for request in s3.proxy.requests]
    beside = [request.size for request in s3.proxy.asked_for("shards.crc")]
    headers = 32 * 4
    assert 0 < s3.proxy.most_in_flight <= window_bytes + headers + sum(beside)
    assert max(sizes) <= 4 * MIB
    assert sum(sizes) == 1500 * 2048 + headers + 4 * 1500 // 2  # everything once, and nothing else
    assert len(beside) == 4
    if connections > 1 and window_bytes > MIB // 4:
        assert s3.proxy.most_in_flight > max(sizes)  # several at a time


@pytest.mark.usefixtures("large")
def test_a_loop_that_is_left_stops_asking(s3: Bucket) -> None:
    reader = s3.open("large")
    s3.proxy.forget()
    begun = reader.batches(100, None, MIB)
    next(begun)
    begun.close()
    sizes = [request.size for request in s3.proxy.requests]
    assert 0 < sum(sizes) <= 2 * MIB  # of three


# What there is.


def test_names_in_a_bucket(s3: Bucket, tmp_path: Path) -> None:
    names = ["10.shard", "9.shard", "a b+c%.shard", "é.shard"]
    rows = build(tmp_path / "a", [1, 2, 3, 4], names=names)
    (tmp_path / "a" / "notes.txt").write_text("not a shard")
    build(tmp_path / "a" / "below", [5])
    for name in ("names", "deep/er"):
        s3.upload(tmp_path / "a", name)
        for url in (s3.url(name), s3.url(name) + "/"):
            reader = ShardReader.open(url, **s3.options)
            assert [shard.name for shard in reader.shards] == names
            assert_same(reader[:]["data"], rows)


def test_a_list_decides_what_belongs(s3: Bucket, tmp_path: Path) -> None:
    rows = build(tmp_path / "a", [3, 4], checksums=True)
    build(tmp_path / "b", [9])
    (tmp_path / "a" / "000002.shard").write_bytes((tmp_path / "b" / "000000.shard").read_bytes())
    s3.upload(tmp_path / "a", "decides")
    assert_same(s3.open("decides")[:]["data"], rows)


# News.


@pytest.mark.parametrize("listed", [True, False])
def test_refresh(tmp_path: Path, listed: bool) -> None:
    folder = tmp_path / "acts"
    rows = build(folder, [3], checksums=True if listed else None)
    reader = ShardReader.open(f"file://{folder}")
    assert not reader.refresh()
    again = pickle.dumps(reader)
    more = build(tmp_path / "more", [0, 4])
    (tmp_path / "more" / "000001.shard").rename(folder / "000001.shard")
    if listed:
        assert not reader.refresh()  # the list is what counts
        reference.write_list(folder)
    assert (len(reader), reader.refresh(), len(reader)) == (3, True, 7)
    assert_same(reader[:]["data"], np.concatenate([rows, more]))
    assert len(pickle.loads(again)) == 3
    reader.close()
    with pytest.raises(ValueError, match="closed: a folder of shards at file://"):
        reader.take([0])


# Stores and servers.


@pytest.mark.parametrize("kind", reference.KINDS)
def test_stores_of_obstore(tmp_path: Path, s3: Bucket, kind: str) -> None:
    rows = build(tmp_path, kind=kind, checksums=True)
    memory = MemoryStore()
    for path in tmp_path.iterdir():
        obstore.put(memory, path.name, path.read_bytes())
    s3.upload(tmp_path, f"stores-{kind}")
    for store in (memory, LocalStore(tmp_path), s3.store(f"stores-{kind}")):
        reader = ShardReader(store)
        assert reader.path == repr(store)
        assert reader.verify().ok
        assert_same(reader[:]["data"], rows)
        assert_same(np.concatenate([batch.rows for batch in reader.batches(7)]), rows)


def test_a_plain_web_server(tmp_path: Path, s3: Bucket) -> None:
    rows = build(tmp_path, checksums=True)
    s3.upload(tmp_path, "web")
    reader = ShardReader.open(s3.http_url("web"))
    assert reader.verify().ok
    assert_same(reader.take([40, 3, 40])["data"], rows[[40, 3, 40]])
    assert_same(np.concatenate([batch.rows for batch in reader.batches(7)]), rows)
    (tmp_path / "shards.json").unlink()
    s3.upload(tmp_path, "web-bare")
    with pytest.raises(FetchError, match=r"expected a shards\.json") as caught:
        ShardReader.open(s3.http_url("web-bare"))
    assert caught.value.url.startswith(s3.http_url("web-bare"))


@pytest.mark.parametrize("where", [None, 5, b"acts", object()])
def test_what_is_neither_a_path_nor_a_store(where: Any) -> None:
    with pytest.raises(TypeError, match="a URL or a store"):
        ShardReader(where)

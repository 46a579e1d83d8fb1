"""Shards that are written in a bucket: each writer its own, in the order of the commits."""

import json
import pickle
import re
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from numpy.typing import NDArray

import stepwell as sw
from stepwell import (
    BusyError,
    FetchError,
    FormatError,
    SchemaError,
    ShardReader,
    ShardWriter,
    VersionError,
)
from stepwell.cleaning import clean
from stepwell.errors import KindError
from stepwell.stores.shards.layout import BUCKET_LIST, ShardList
from stepwell.stores.steps.dataset import Dataset
from stepwell.stores.steps.layout import Metadata
from tests import shards
from tests.bucket_writers import answers_lost
from tests.buckets import Bucket
from tests.proxy import Request, cut, dropped, status, times
from tests.reference import shards as reference

PAGE = Path(__file__).parents[2] / "docs/formats/shards.md"
WIDTH = 5
SHARD_BYTES = 20 * WIDTH * 4


def rows_of(who: int, first: int, count: int) -> NDArray[Any]:
    """Rows that show whose they are, and which."""
    made = np.full((count, WIDTH), who, np.float32)
    made[:, 1] = np.arange(first, first + count)
    return made


def writer_of(s3: Bucket, name: str, mode: Any = "a", **options: Any) -> ShardWriter:
    made = {**s3.options, "shard_bytes": SHARD_BYTES, **options}
    return ShardWriter(s3.url(name), WIDTH, mode=mode, **made)


def written(s3: Bucket, name: str, who: int, first: int, count: int) -> None:
    with writer_of(s3, name) as writer:
        writer.append(rows_of(who, first, count))


def check(reader: sw.Store, *wanted: tuple[int, int]) -> None:
    """Each writer's rows are there once and in their order, as many as given."""
    found = reader.take(np.arange(len(reader)))["data"]
    for who, count in wanted:
        mine = found[found[:, 0] == who]
        assert mine[:, 1].tolist() == list(range(count))
    assert len(found) == sum(count for _, count in wanted)
    assert isinstance(reader, ShardReader)
    in_order = np.concatenate([rows for rows, _ in reader.batches(7)])
    assert (in_order == found).all()
    report = reader.verify()
    assert report.ok, report
    assert not report.unchecked


def downloaded(s3: Bucket, name: str, folder: Path) -> Path:
    folder.mkdir()
    for path, data in s3.objects(name).items():
        if "/" not in path:
            (folder / path).write_bytes(data)
    return folder


def test_a_corpus(s3: Bucket, tmp_path: Path) -> None:
    with writer_of(s3, "acts-acts", "x") as writer:
        assert repr(writer) == f"BucketShardWriter('{writer._where}', open)"
        writer.append(rows_of(1, 0, 45))  # two whole shards are committed
        assert (writer.rows, len(writer)) == (40, 45)
        assert len(s3.open("acts-acts")) == 40
        writer.commit()
        writer.append(rows_of(1, 999, 3))
        writer.rollback()
        writer.append(rows_of(1, 45, 10))
    assert writer.conflicts == 0
    reader = sw.open(s3.url("acts-acts"), **s3.options)
    check(reader, (1, 55))
    check(s3.open("acts-acts", cache=tmp_path / "cache"), (1, 55))
    check(pickle.loads(pickle.dumps(reader)), (1, 55))
    copy = downloaded(s3, "acts-acts", tmp_path / "copy")
    check(sw.open(copy), (1, 55))
    assert sw.open(copy).fingerprint == reader.fingerprint
    with pytest.raises(FileExistsError, match="`stepwell convert` makes one to append to"):
        ShardWriter(copy, WIDTH, mode="a")
    listed = reference.read_list(copy)
    assert [row[1] for shard in listed for row in shard.rows] == list(range(55))
    with pytest.raises(FileExistsError, match="mode='a' goes on with it"):
        writer_of(s3, "acts-acts", "x")


def test_the_order_is_that_of_the_commits(s3: Bucket) -> None:
    """Whatever the names are: ids never change."""
    writers = [writer_of(s3, "acts-order") for _ in range(5)]
    for who, writer in enumerate(writers):
        writer.append(rows_of(who, 0, 10))
    reader, seen = None, list[int]()
    for number in (3, 0, 4, 1, 2):
        writers[number].commit()
        seen.append(number)
        if reader is None:
            reader = s3.open("acts-order")
            kept = pickle.dumps(reader)
        else:
            assert reader.refresh()
        assert reader.take(np.arange(len(reader)))["data"][::10, 0].tolist() == seen
    for writer in writers:
        writer.close()
    assert [writer.conflicts for writer in writers] == [1, 1, 1, 0, 1]
    check(s3.open("acts-order"), *((who, 10) for who in range(5)))
    check(pickle.loads(kept), (3, 10))


def test_one_creates(s3: Bucket) -> None:
    one, two = writer_of(s3, "acts-created", "x"), writer_of(s3, "acts-created", "x")
    one.append(rows_of(1, 0, 5))
    two.append(rows_of(2, 0, 5))
    two.commit()
    with pytest.raises(FileExistsError, match="committed to by another writer first"):
        one.commit()
    one.rollback()
    one.close()
    two.append(rows_of(2, 5, 20))
    two.close()
    check(s3.open("acts-created"), (2, 25))


def test_uploaded_shards_are_continued(s3: Bucket, tmp_path: Path) -> None:
    """A list of before becomes one of a bucket, whose first rows are the same."""
    rows = shards.build(tmp_path / "here", [3, 4, 2], checksums=True)
    s3.upload(tmp_path / "here", "acts-uploaded")
    before = s3.open("acts-uploaded")
    with writer_of(s3, "acts-uploaded") as writer:
        writer.append(rows_of(7, 0, 30))
        assert len(writer) == 39
    assert before.refresh()
    reader = s3.open("acts-uploaded")
    found = reader.take(np.arange(39))["data"]
    assert found[:9].tobytes() == rows.tobytes()
    assert found[9:].tobytes() == rows_of(7, 0, 30).tobytes()
    assert reader.verify().ok
    shards.build(tmp_path / "acts-bare", [3, 4])
    s3.upload(tmp_path / "acts-bare", "acts-bare")
    with pytest.raises(FileExistsError, match=r"got objects like"):
        writer_of(s3, "acts-bare")


def test_the_list_of_the_page() -> None:
    (text,) = re.findall(r"```json\n(\{\n[^`]*?\"version\": 2.*?)```", PAGE.read_text(), re.S)
    found = ShardList.parse(text.encode(), "")
    assert found.is_ordered
    assert json.loads(found.dump()) == json.loads(text)
    good = {n: v for n, v in json.loads(text).items() if n not in ("format", "version", "crc32c")}
    for changes in (
        {"width": 4},
        {"dtype": "float64"},
        {"shards": good["shards"] * 2},
        {"shards": [{**good["shards"][0], "checksums": "other.crc"}]},
    ):
        with pytest.raises(FormatError, match=r"not a shards\.json"):
            ShardList.parse(BUCKET_LIST.dump({**good, **changes}), "")
    with pytest.raises(FormatError, match="expected CRC32C"):
        ShardList.parse(text.replace('"change": 2', '"change": 3').encode(), "")
    with pytest.raises(VersionError, match="expected version 2, got 3"):
        ShardList.parse(text.replace('"version": 2', '"version": 3').encode(), "")


@pytest.mark.parametrize("fault", [status(503), cut, dropped])
@pytest.mark.parametrize("part", ["shards.json", ".shard", ".crc"])
def test_what_passes_is_tried_again(s3: Bucket, fault: Any, part: str) -> None:
    name = f"acts-passes{abs(hash((fault, part)))}"
    written(s3, name, 1, 0, 5)
    some = times(2, fault, of=part)
    s3.proxy.fault = lambda request, answer: (
        some(request, answer) if request.method == "PUT" else answer
    )
    written(s3, name, 1, 5, 50)
    s3.proxy.fault = None
    check(s3.open(name), (1, 55))


@pytest.mark.parametrize("way", ["commit", "more", "other", "rollback", "close"])
def test_a_commit_whose_answer_never_comes(s3: Bucket, way: str) -> None:
    name = f"acts-lost-{way}"
    writer: Any = writer_of(s3, name)
    writer.append(rows_of(1, 0, 5))
    work = partial(writer.append, rows_of(1, 5, 20)) if way == "more" else writer.commit
    answers_lost(s3, writer, "shards.json", work)
    count = 25 if way == "more" else 5
    if way == "other":
        written(s3, name, 2, 0, 3)
    if way == "rollback":
        writer.rollback()
        assert len(writer) == 5
    writer.close()
    wanted = [(1, count), (2, 3)] if way == "other" else [(1, count)]
    check(s3.open(name), *wanted)


def test_a_commit_whose_answer_never_came_and_a_writer_that_was_taken_for_dead(s3: Bucket) -> None:
    writer: Any = writer_of(s3, "acts-dead")
    writer.append(rows_of(1, 0, 5))
    answers_lost(s3, writer, "shards.json")
    s3.age("acts-dead", timedelta(days=2))
    clean(s3.url("acts-dead"), older_than=timedelta(days=1), delete=True, **s3.options)
    writer.rollback()
    writer.close()
    check(s3.open("acts-dead"), (1, 5))


def test_clean_changes_nothing_where_nothing_is_to_be_cleaned(s3: Bucket, tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "acts", WIDTH) as writer:
        writer.append(rows_of(1, 0, 5))
    s3.upload(tmp_path, "acts-plain")
    before = s3.objects("acts-plain")
    url = s3.url("acts-plain/acts")
    assert clean(url, older_than=timedelta(0), delete=True, **s3.options) == {}
    assert s3.objects("acts-plain") == before
    obstore.put(s3.store("acts-plain/acts"), "dataset.json", dataset())
    with pytest.raises(
        KindError, match=r"expected one store, found dataset\.json and shards\.json"
    ):
        clean(url, older_than=timedelta(0), delete=True, **s3.options)


def dataset() -> bytes:
    """The document of a step dataset without rows."""
    metadata = Metadata("metadata/x.db", 1, 0)
    return Dataset("0" * 32, np.dtype([("x", "<i4")]), metadata).dump()


def test_a_list_that_is_begun_while_another_writer_looks(s3: Bucket) -> None:
    def other(request: Request) -> None:
        if "list-type=" in request.path:
            s3.proxy.before = None
            written(s3, "acts-meanwhile", 2, 0, 5)

    s3.proxy.before = other
    written(s3, "acts-meanwhile", 1, 0, 5)
    check(s3.open("acts-meanwhile"), (2, 5), (1, 5))


def test_what_is_refused(s3: Bucket) -> None:
    url, options = s3.url("acts-wrong"), s3.options
    with pytest.raises(ValueError, match="a new corpus needs a width"):
        ShardWriter(url, mode="a", **options)
    with pytest.raises(TypeError, match="cache: only for what is read"):
        ShardWriter(url, 3, cache="x", **options)
    with pytest.raises(TypeError, match="endpoint: only for what is in a bucket"):
        ShardWriter("here", 3, endpoint="x")
    s3.proxy.ignored = ("if-match",)
    with pytest.raises(FetchError, match="expected conditional puts"):
        ShardWriter(url, 3, **options)
    assert s3.objects("acts-wrong") == {}
    s3.proxy.forget()
    ShardWriter(url, 3, np.float16, **options).close()
    with pytest.raises(FetchError, match=r"expected \.shard files, found none"):
        s3.open("acts-wrong")
    with pytest.raises(SchemaError, match="expected rows of 3 values, got 5"):
        writer_of(s3, "acts-wrong")
    with writer_of(s3, "acts-wrong", "x") as writer:  # nothing was committed: it counts as empty
        writer.append(rows_of(1, 0, 3))
    with pytest.raises(SchemaError, match="expected rows of 5 values, got 3"):
        ShardWriter(url, 3, mode="a", **options)
    with pytest.raises(SchemaError, match="expected rows of float32, got float16"):
        ShardWriter(url, 5, np.float16, mode="a", **options)
    with writer_of(s3, "acts-wrong") as writer:
        with pytest.raises(SchemaError, match=r"expected \(n, 5\) values"):
            writer.append(np.zeros((2, 4)))
        with pytest.raises(ValueError, match="not into a bucket"):
            writer.adopt("folder")
    obstore.put(s3.store("acts-wrong"), "shards.json", ShardList((), 9, "float32").dump())
    with pytest.raises(SchemaError, match="expected rows of 9 values, got 5"):
        writer_of(s3, "acts-wrong")


def test_clean(s3: Bucket) -> None:
    written(s3, "acts-clean", 1, 0, 30)
    left: Any = writer_of(s3, "acts-clean")
    left.append(rows_of(2, 0, 5))
    left._upload(1)
    s3.age("acts-clean", timedelta(days=2))
    alive: Any = writer_of(s3, "acts-clean")
    alive.append(rows_of(3, 0, 5))
    alive._upload(1)
    options = {**s3.options, "older_than": timedelta(days=1)}
    found = clean(s3.url("acts-clean"), delete=False, **options)
    token = left._announced.token
    assert set(found) == {f"writers/{token}.json", f"{token}-0.shard", f"{token}-0.crc"}
    assert set(clean(s3.url("acts-clean"), delete=True, **options)) == set(found)
    assert not set(found) & set(s3.objects("acts-clean"))
    with pytest.raises(BusyError, match="took the writer for dead"):
        left.commit()
    left.rollback()
    left.close()
    alive.close()
    check(s3.open("acts-clean"), (1, 30), (3, 5))

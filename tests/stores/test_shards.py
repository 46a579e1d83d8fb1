"""Corpora of activations sit the exam of every source; batches are those of the page."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import stepwell as sw
from stepwell import Loader, SchemaError, ShardReader
from stepwell.source import Source
from tests import scaled
from tests.contract import Expected, SourceContract, assert_array
from tests.reference import shards as reference
from tests.shards import COUNTS, WIDTH, assert_same, build

STORED: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    for kind in reference.KINDS:
        build(folder / kind, COUNTS, kind, checksums=True)
    return folder


@pytest.mark.parametrize("kind", reference.KINDS)
class TestShards(SourceContract):
    @pytest.fixture
    def expected(self, corpora: Path, kind: str) -> Expected:
        shards = reference.read_corpus(reference.names_in(corpora / kind))
        rows = np.array([row for shard in shards for row in shard.rows])
        return {"data": rows.astype(STORED.get(kind, "f4"))}

    @pytest.fixture
    def source(self, corpora: Path, kind: str) -> Source:
        return ShardReader.open(corpora / kind)


# In order.


@given(data=st.data())
def test_batches_are_those_of_the_page(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    kind = data.draw(st.sampled_from(reference.KINDS))
    counts = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any))
    build(folder, counts, kind, width=data.draw(st.integers(1, 20)))
    shards = reference.read_corpus(reference.names_in(folder))
    batch_rows = data.draw(st.none() | st.integers(1, 50))
    want = list(reference.batches(shards, batch_rows))
    reader = ShardReader.open(folder)
    assert len(reader) == sum(counts)
    dtypes: list[Any] = (
        [np.float64, np.float32, None, "f2"] if kind == "float16" else [np.float64, "f4"]
    )
    for dtype in dtypes:
        window = data.draw(st.sampled_from([1, 100, 4096, 1 << 20]))
        got = list(reader.batches(batch_rows, dtype, window))
        assert [batch.row_ids.tolist() for batch in got] == [ids for _, ids in want]
        for batch, (rows, _) in zip(got, want, strict=True):
            assert batch.row_ids.dtype == np.int64
            assert batch.rows.dtype == (STORED[kind] if dtype is None else np.dtype(dtype))
            assert_same(batch.rows, rows)


@pytest.mark.parametrize("kind", reference.KINDS)
@pytest.mark.parametrize("window_bytes", [1, 1 << 24])
def test_batches_are_made_ahead(tmp_path: Path, kind: str, window_bytes: int) -> None:
    """By all cores, in pieces that do not divide evenly."""
    rows = build(tmp_path, [3000, 0, 1, 2500], kind, width=131)
    for size, dtype in ((700, "f8"), (1500, "f8"), (1500, "f4")):
        kept = []
        for batch in ShardReader.open(tmp_path).batches(size, dtype, window_bytes):
            assert_same(batch.rows, rows[batch.row_ids])
            if dtype == "f8":
                batch.rows[...] *= 1  # they belong to the caller
            kept.append(batch.rows)
        assert_same(np.concatenate(kept), rows)


def test_batches_begin_again_each_time(tmp_path: Path) -> None:
    build(tmp_path)
    reader = ShardReader.open(tmp_path)
    whole = list(reader.batches(7))
    left = reader.batches(7)
    next(left), next(left)
    for again in (list(reader.batches(7)), list(ShardReader.open(tmp_path).batches(7))):
        for mine, theirs in zip(again, whole, strict=True):
            assert_array(mine.rows, theirs.rows)
            assert_array(mine.row_ids, theirs.row_ids)
    assert_array(next(left).rows, whole[2].rows)  # the one that was begun goes on


def test_no_number_means_up_to_1024(tmp_path: Path) -> None:
    build(tmp_path, [1500, 10, 1024], width=1)
    assert [len(b.rows) for b in ShardReader.open(tmp_path).batches()] == [1024, 476, 10, 1024]


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_views_are_the_files_own_memory(tmp_path: Path, kind: str) -> None:
    rows = build(tmp_path, kind=kind)
    kept = list(ShardReader.open(tmp_path).batches(4, None))
    for batch in kept:
        assert not batch.rows.flags.writeable
        assert not batch.rows.flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            batch.rows[0, 0] = 1
    assert_same(np.concatenate([batch.rows for batch in kept]), rows)  # the reader is gone


def test_bfloat16_has_no_views(tmp_path: Path) -> None:
    build(tmp_path, kind="bfloat16")
    reader = ShardReader.open(tmp_path)
    assert (reader.stored_dtype, reader.dtype) == ("bfloat16", np.dtype("f4"))
    with pytest.raises(ValueError, match="no bfloat16"):
        reader.batches(dtype=None)


# The caller's buffer.


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(k, d) for k in reference.KINDS for d in ("f4", "f8")] + [("float16", "f2")],
)
def test_out_is_filled_again_and_again(tmp_path: Path, kind: str, dtype: str) -> None:
    rows = build(tmp_path, kind=kind)
    out = np.zeros((8, WIDTH), dtype)
    seen = 0
    for batch in ShardReader.open(tmp_path).batches(out=out):
        assert np.shares_memory(batch.rows, out)
        assert batch.rows.ctypes.data == out.ctypes.data
        assert_same(batch.rows, rows[batch.row_ids])
        seen += len(batch.rows)
    assert seen == len(rows)


@pytest.mark.parametrize(
    ("out", "error"),
    [
        (np.zeros((4, WIDTH + 1)), SchemaError),
        (np.zeros((3, WIDTH)), SchemaError),
        (np.zeros((4, WIDTH), np.int64), SchemaError),
        (np.zeros((4, WIDTH), np.float16), SchemaError),
        (np.zeros((4, WIDTH), ">f8"), SchemaError),
        (np.zeros((4, WIDTH), order="F"), ValueError),
        (np.zeros((4, 2 * WIDTH))[:, ::2], ValueError),
        (np.broadcast_to(0.0, (4, WIDTH)), ValueError),
        (np.frombuffer(bytes(4 * WIDTH * 8)).reshape(4, WIDTH), ValueError),  # read-only
        ([[0.0] * WIDTH] * 4, TypeError),
    ],
)
def test_out_with_a_fault(tmp_path: Path, out: Any, error: type[Exception]) -> None:
    build(tmp_path)
    with pytest.raises(error, match="out"):
        ShardReader.open(tmp_path).batches(4, out=out)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_out_may_be_a_tensor(tmp_path: Path, dtype: torch.dtype) -> None:
    rows = build(tmp_path, [7, 2], "float16")
    out = torch.zeros((4, 5), dtype=dtype)
    for batch in ShardReader.open(tmp_path).batches(out=out):
        assert_same(out[: len(batch.rows)].numpy(), rows[batch.row_ids])
    with pytest.raises(TypeError):
        ShardReader.open(tmp_path).batches(out=out.to(torch.bfloat16))


@pytest.mark.parametrize(
    "options",
    [{"batch_rows": 0}, {"batch_rows": -1}, {"window_bytes": 0}, {"dtype": "i4"}, {"dtype": "f2"}],
)
def test_what_batches_refuses(tmp_path: Path, options: dict[str, Any]) -> None:
    build(tmp_path)
    with pytest.raises(ValueError):
        ShardReader.open(tmp_path).batches(**options)


# Names and places.


def test_names_sort_as_bytes(tmp_path: Path) -> None:
    names = ["10.shard", "9.shard", "B.shard", "a.shard", "é.shard", os.fsdecode(b"\xff.shard")]
    rows = build(tmp_path, [1, 2, 3, 4, 5, 6], names=names)
    reader = ShardReader.open(tmp_path)
    assert [shard.name for shard in reader.shards] == names
    assert_same(reader[:]["data"], rows)
    assert_same(np.concatenate([b.rows for b in reader.batches(2)]), rows)
    assert reader.verify().ok


def test_a_list_keeps_its_order(tmp_path: Path) -> None:
    build(tmp_path, [3, 4, 5])
    paths = [tmp_path / f"00000{i}.shard" for i in (2, 0, 2, 1)]
    want = [row for path in paths for row in reference.read_shard(path.read_bytes()).rows]
    reader = ShardReader(paths)
    assert reader.path == str(tmp_path)
    assert_same(reader[:]["data"], want)
    assert_same(np.concatenate([batch.rows for batch in reader.batches()]), want)


def test_one_file_and_other_files(tmp_path: Path) -> None:
    rows = build(tmp_path, [3, 4])
    assert_same(ShardReader.open(tmp_path / "000001.shard")[:]["data"], rows[3:])
    (tmp_path / "notes.txt").write_text("not a shard")
    (tmp_path / ".000002.shard.abc.tmp").write_bytes(b"half")
    assert len(ShardReader.open(str(tmp_path))) == 7


def test_what_open_refuses(tmp_path: Path) -> None:
    build(tmp_path)
    with pytest.raises(TypeError, match="connections: only for what is in a bucket"):
        ShardReader.open(tmp_path, connections=4)
    with pytest.raises(FileNotFoundError):
        ShardReader.open(tmp_path / "absent")
    with pytest.raises(TypeError, match="expected paths, or one URL"):
        ShardReader(["s3://bucket/a.shard"])


def test_any_paths(tmp_path: Path) -> None:
    rows = build(tmp_path, [3], names=["a.shard"])
    for paths in (tmp_path.glob("*.shard"), (tmp_path / "a.shard",), {str(tmp_path / "a.shard")}):
        reader = ShardReader(paths)
        assert_same(reader[:]["data"], rows)
        assert_same(pickle.loads(pickle.dumps(reader))[:]["data"], rows)


# Parts of it.


@settings(max_examples=scaled(100))
@given(
    small=st.floats(0, 1, exclude_min=True),
    large=st.floats(0, 1, exclude_min=True),
)
def test_subsamples(shared_corpus: ShardReader, small: float, large: float) -> None:
    small, large = sorted([small, large])
    parts = [shared_corpus.subsample(fraction) for fraction in (small, large)]
    for part, fraction in zip(parts, (small, large), strict=True):
        assert part.row_ids.tolist() == reference.kept(len(shared_corpus), fraction)
        assert part.weight == 1 / fraction
        assert len(part) == len(part.row_ids)
        assert_array(part[:]["data"], shared_corpus.take(part.row_ids)["data"])
    assert set(parts[0].row_ids) <= set(parts[1].row_ids)


@pytest.fixture(scope="module")
def shared_corpus(tmp_path_factory: pytest.TempPathFactory) -> ShardReader:
    folder = tmp_path_factory.mktemp("subsamples")
    build(folder, [120, 0, 80])
    return ShardReader.open(folder)


def test_a_subsample_is_a_source_and_small_to_send(tmp_path: Path) -> None:
    build(tmp_path, [20_000], "float16", width=1)
    part = ShardReader.open(tmp_path).subsample(0.5)
    sent = pickle.dumps(part)
    assert len(sent) < 2000 + len(str(tmp_path))  # 20,000 row ids are 160,000 bytes
    again = pickle.loads(sent)
    assert again.row_ids.tolist() == part.row_ids.tolist()
    assert (again.fraction, again.weight) == (0.5, 2)
    assert sum(len(batch["data"]) for batch in Loader(part, 4096, seed=3)) == len(part)


@pytest.mark.parametrize("fraction", [0, -0.5, 1.5, float("nan"), float("inf")])
def test_fractions_that_are_none(shared_corpus: ShardReader, fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        shared_corpus.subsample(fraction)


@pytest.mark.parametrize("kind", reference.KINDS)
def test_the_loader_shuffles_a_corpus(tmp_path: Path, kind: str) -> None:
    rows = build(tmp_path, [300, 0, 211], kind)
    reader = ShardReader.open(tmp_path)
    numbered = sw.Loader(np.arange(len(rows)), 64, seed=5)
    order = np.concatenate([batch["data"] for batch in numbered])
    assert sorted(order.tolist()) == list(range(len(rows)))
    for threads in (1, 4):
        got = [batch["data"] for batch in Loader(reader, 64, seed=5, threads=threads)]
        assert_same(np.concatenate(got), rows[order])

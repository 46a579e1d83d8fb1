"""Passes over a corpus in order: begun in the middle, left and continued, over a part of the rows;
and single shards."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from obstore.store import LocalStore

from stepwell import ChecksumError, SchemaError, ShardReader, ShardWriter, StateError
from stepwell.stores import encode_shard
from tests import scaled
from tests.contract import assert_array
from tests.reference import shards as reference
from tests.shards import assert_same, build, shard_bytes, values

COUNTS = [30, 0, 41, 1, 0]


def opened(folder: Path, far: bool) -> ShardReader:
    return ShardReader(LocalStore(folder), connections=2) if far else ShardReader.open(folder)


def joined(batches: Any, name: str = "rows") -> Any:
    return np.concatenate([getattr(batch, name) for batch in batches])


# Begun in the middle.


@settings(max_examples=scaled(60))
@given(data=st.data())
def test_a_pass_begins_anywhere(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    kind = data.draw(st.sampled_from(reference.KINDS))
    counts = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=4).filter(any))
    if data.draw(st.booleans(), label="blocks"):
        rows = values(sum(counts), 9, kind)
        size = data.draw(st.integers(1, 3000))
        with ShardWriter(folder, 9, kind, shard_bytes=size) as writer:
            writer.append(rows)
    else:
        listed = data.draw(st.sampled_from([None, False, True]))
        rows = build(folder, counts, kind, width=9, checksums=listed)
    reader = opened(folder, data.draw(st.booleans(), label="far"))
    start, step = data.draw(st.integers(0, len(rows))), data.draw(st.integers(1, 70))
    window = data.draw(st.sampled_from([1, 5000, 1 << 20]))
    dtype = data.draw(st.sampled_from(["f8", "f4"]))
    out = np.empty((step, 9), dtype) if data.draw(st.booleans(), label="out") else None
    ends, at = np.cumsum([shard.rows for shard in reader.shards]), start
    for batch in reader.batches(step, dtype, window, start_row=start, out=out):
        end = ends[np.searchsorted(ends, at, side="right")]
        assert len(batch) == len(batch.rows) == min(step, end - at)  # never across two shards
        assert_array(batch.row_ids, np.arange(at, at + len(batch)))
        assert_same(batch.rows, rows[at : at + len(batch)])
        at += len(batch)
    assert at == len(rows)


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_views_begin_anywhere(tmp_path: Path, kind: str) -> None:
    rows = build(tmp_path, COUNTS, kind)
    reader = ShardReader.open(tmp_path)
    for start in range(len(rows)):
        assert_same(joined(reader.batches(7, None, start_row=start)), rows[start:])
    assert list(reader.batches(start_row=len(rows))) == []


@pytest.mark.parametrize("start", [-1, 73])
def test_rows_that_no_pass_begins_with(tmp_path: Path, start: int) -> None:
    build(tmp_path, COUNTS)
    with pytest.raises(IndexError, match=f"start_row: expected 0 to 72, got {start}"):
        ShardReader.open(tmp_path).batches(start_row=start)
    with pytest.raises(IndexError, match="start_row"):
        ShardReader.open(tmp_path).subsample(0.5).batches(start_row=start)


def test_a_batch_has_the_length_of_its_rows(tmp_path: Path) -> None:
    rows = build(tmp_path, [5])
    batch = next(ShardReader.open(tmp_path).batches(3))
    mine, row_ids = batch
    assert (len(batch), len(mine), row_ids.tolist()) == (3, 3, [0, 1, 2])
    assert_same(mine, rows[:3])


@pytest.mark.parametrize("far", [False, True])
def test_damage_before_the_first_row_of_a_pass_is_found(tmp_path: Path, far: bool) -> None:
    """Where only all of a shard has a checksum, it is compared before its last rows are given."""
    build(tmp_path, [2000, 5], checksums=True)
    path = tmp_path / "000000.shard"
    path.write_bytes(path.read_bytes()[:40] + b"x" + path.read_bytes()[41:])
    reader = opened(tmp_path, far)
    assert len(joined(reader.batches(start_row=2000))) == 5
    with pytest.raises(ChecksumError):
        list(reader.batches(100, start_row=1950, window_bytes=1000))


# Left and continued.


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("part", [None, 0.4, 1e-9])
def test_a_pass_goes_on_where_its_state_was_taken(
    tmp_path: Path, far: bool, part: float | None
) -> None:
    build(tmp_path, COUNTS, checksums=True)

    def source() -> Any:
        reader = opened(tmp_path, far)
        return reader if part is None else reader.subsample(part)

    whole = list(source().batches(7))
    for left in range(len(whole) + 1):
        begun = source().batches(7)
        for _ in range(left):
            next(begun)
        state = json.loads(json.dumps(begun.state_dict()))
        for step in (7, 4, 1000):
            rest = source().batches(step)
            rest.load_state_dict(state)
            assert rest.row == begun.row
            got = list(rest)
            ids = [i for batch in got for i in batch.row_ids.tolist()]
            assert ids == [i for batch in whole[left:] for i in batch.row_ids.tolist()]
            if got:
                assert_array(joined(got), joined(whole[left:]))
            if step == 7:
                assert [len(batch) for batch in got] == [len(batch) for batch in whole[left:]]
        assert len(list(begun)) == len(whole) - left  # a look at its state changes nothing


def test_a_pass_has_the_rows_of_its_beginning(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, 2, shard_bytes=80) as writer:
        writer.append(np.arange(40.0).reshape(20, 2))
        begun = ShardReader.open(tmp_path).batches(8)
        next(begun)
        state = begun.state_dict()
        writer.append(np.zeros((10, 2)))
    rest = ShardReader.open(tmp_path).batches(8)
    rest.load_state_dict(state)
    assert joined(rest, "row_ids").tolist() == list(range(8, 20))
    assert len(joined(ShardReader.open(tmp_path).batches(8, start_row=8))) == 22


def test_states_of_other_rows_are_refused(tmp_path: Path) -> None:
    build(tmp_path / "a", [4, 5])
    build(tmp_path / "b", [5, 4])
    mine, other = (ShardReader.open(tmp_path / name) for name in "ab")
    state = mine.batches().state_dict()
    for changed, field in (
        (other.batches().state_dict(), "fingerprint"),
        (mine.subsample(0.99).batches().state_dict(), "fingerprint"),
        (state | {"length": 5}, "length"),
        (state | {"length": 90}, "length"),
        (state | {"length": "9"}, "length"),
        (state | {"row": -1}, "row"),
        (state | {"row": None}, "row"),
        (state | {"row": 10}, "row"),
        (state | {"row": 2**70}, "row"),
        (state | {"version": 2}, "version"),
        ({}, "length"),
    ):
        batches = mine.batches(2)
        next(batches)
        with pytest.raises(StateError, match=f"state '{field}': expected"):
            batches.load_state_dict(changed)
        assert next(batches).row_ids.tolist() == [2, 3]  # it is where it was
    part = mine.subsample(0.99).batches()
    with pytest.raises(StateError, match="state 'row': expected"):
        part.load_state_dict(part.state_dict() | {"row": 10})


def test_a_batch_that_failed_is_tried_again(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, 1024) as writer:
        writer.append(np.ones((8, 1024)))
    path = tmp_path / "000000.shard"
    whole = path.read_bytes()
    path.write_bytes(whole[:20000] + b"damage" + whole[20006:])
    batches = ShardReader.open(tmp_path).batches(4)
    assert len(next(batches)) == 4
    for _ in range(2):
        with pytest.raises(ChecksumError):
            next(batches)
        assert batches.row == 4
    with path.open("r+b") as file:
        file.write(whole)
    assert next(batches).row_ids.tolist() == [4, 5, 6, 7]
    assert list(batches) == []


# Over a part.


def test_a_subsample_of_what_has_grown_pickles_as_it_was(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, 2) as writer:
        writer.append(np.zeros((50, 2)))
    reader = ShardReader.open(tmp_path)
    part = reader.subsample(0.3)
    with ShardWriter(tmp_path, 2, mode="a") as writer:
        writer.append(np.ones((50, 2)))
    assert reader.refresh()
    assert pickle.loads(pickle.dumps(part)).row_ids.tolist() == part.row_ids.tolist()


@pytest.mark.parametrize("kind", reference.KINDS)
def test_batches_of_a_subsample(tmp_path: Path, kind: str) -> None:
    rows = build(tmp_path, [300, 0, 211], kind)
    part = ShardReader.open(tmp_path).subsample(0.3)
    ids = part.row_ids
    for dtype in ["f8", "f4", *([None] if kind != "bfloat16" else [])]:
        for start in (0, 1, int(ids[40]), int(ids[40]) + 1, 511):
            got = list(part.batches(32, dtype, start_row=start))
            want = ids[ids >= start]
            assert [len(batch) for batch in got][:-1] == [32] * max(len(got) - 1, 0)
            if len(want):
                assert_array(joined(got, "row_ids"), want)
                assert_same(joined(got), rows[want])
                assert joined(got).dtype == (
                    {"float16": "f2"}.get(kind, "f4") if dtype is None else dtype
                )
            else:
                assert got == []
    for options in ({"batch_rows": 0}, {"dtype": "i4"}):
        with pytest.raises(ValueError):
            part.batches(**options)


# Single shards.


@pytest.mark.parametrize("kind", reference.KINDS)
def test_a_single_shard(tmp_path: Path, kind: str) -> None:
    rows = values(20, kind=kind)
    want = shard_bytes(rows, kind)
    assert encode_shard(rows, kind) == want
    ShardWriter.write_file(tmp_path / "a.shard", rows, kind)
    assert [path.name for path in tmp_path.iterdir()] == ["a.shard"]
    assert (tmp_path / "a.shard").read_bytes() == want
    assert_same(ShardReader.open(tmp_path / "a.shard")[:]["data"], rows)
    with pytest.raises(FileExistsError):
        ShardWriter.write_file(tmp_path / "a.shard", rows)
    assert encode_shard(np.zeros((0, 3))) == reference.header(0, 3, 0)
    assert encode_shard([[1, 2, 3], [4, 5, 6]])[32:] == np.arange(1, 7, dtype="<f4").tobytes()


@pytest.mark.parametrize(
    "rows", [np.zeros(3), np.zeros((3, 0)), np.zeros((1, 2), complex), [[1e300]]]
)
def test_rows_that_make_no_shard(tmp_path: Path, rows: Any) -> None:
    for write in (encode_shard, lambda rows: ShardWriter.write_file(tmp_path / "a.shard", rows)):
        with pytest.raises(SchemaError):
            write(rows)
    assert list(tmp_path.iterdir()) == []

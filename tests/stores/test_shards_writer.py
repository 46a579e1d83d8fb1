"""Shards as they are written: any floats, whole shards, one writer at a time."""

import json
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from ml_dtypes import bfloat16
from numpy.typing import NDArray

from stepwell import FormatError, SchemaError, ShardReader, ShardWriter
from stepwell.stores.shards import writer as writer_module
from tests import scaled
from tests.reference import shards as reference
from tests.shards import assert_same, build, values
from tests.writer_contract import WriterContract, WriterKit


class Kit(WriterKit):
    """A stamp is a number of rows of its own, each of which is full of it."""

    store = ShardReader
    writer = ShardWriter
    small_disk = "512k"

    def open(self, path: Path, mode: Any = "x") -> ShardWriter:
        return ShardWriter(path, 3, mode=mode)

    def append(self, writer: ShardWriter, stamp: int) -> None:
        writer.append(np.full((1 + stamp % 3, 3), stamp))

    def stamps(self, store: ShardReader) -> list[int]:
        rows = store[:]["data"]
        assert np.array_equal(rows, np.concatenate([batch.rows for batch in store.batches(5)]))
        found = sorted({int(stamp) for stamp in rows[:, 0]})
        want = [np.full((1 + stamp % 3, 3), stamp) for stamp in found]
        assert np.array_equal(rows, np.concatenate(want))
        return found


KIT = Kit()


class TestWriter(WriterContract):
    kit = KIT


KINDS = pytest.mark.parametrize("kind", reference.KINDS)
SIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
STORED = {"float32": np.float32, "float16": np.float16, "bfloat16": bfloat16}
LARGEST = {"float32": 3.4028234663852886e38, "float16": 65504.0, "bfloat16": 3.3895313892515355e38}


def written(path: Path, rows: Any, kind: str = "float32", **options: Any) -> ShardReader:
    width = np.asarray(rows).shape[1]
    with ShardWriter(path, width, kind, **options) as writer:
        writer.append(rows)
    reference.check_folder(path)
    return ShardReader.open(path)


# What goes in.


@KINDS
@pytest.mark.parametrize("dtype", ["f2", "<f4", ">f4", "f8", ">f8", "longdouble", bfloat16])
def test_any_floats(tmp_path: Path, kind: str, dtype: Any) -> None:
    rows: NDArray[Any] = values(20, kind="float16")
    rows[~np.isfinite(rows)] = 0
    rows = np.clip(rows, -100, 100).round()  # all of them hold these
    reader = written(tmp_path, rows.astype(dtype), kind)
    assert reader.stored_dtype == kind
    assert_same(reader[:]["data"], rows)


@KINDS
def test_lists_whole_numbers_and_strides(tmp_path: Path, kind: str) -> None:
    rows = np.arange(24, dtype=np.float64).reshape(6, 4)
    for number, form in enumerate(
        [rows.tolist(), rows.astype("i8"), rows.astype("u1"), np.asfortranarray(rows)]
    ):
        assert_same(written(tmp_path / str(number), form, kind)[:]["data"], rows)
    assert_same(written(tmp_path / "b", rows[::-2, ::3], kind)[:]["data"], rows[::-2, ::3])


@KINDS
@settings(max_examples=scaled(40))
@given(data=st.data())
def test_rounded_to_the_nearest(quick_path: Path, kind: str, data: st.DataObject) -> None:
    most = LARGEST[kind]
    row = data.draw(st.lists(st.floats(-most, most, width=32), min_size=1, max_size=20))
    row += [np.inf, -np.inf, np.nan]
    given_rows = np.array([row], np.float32)
    reader = written(Path(mkdtemp(dir=quick_path)), given_rows, kind)
    assert_same(reader[:]["data"], given_rows.astype(STORED[kind]).astype(np.float32))


@KINDS
@pytest.mark.parametrize("dtype", [np.float64, np.longdouble])
def test_values_that_do_not_fit(tmp_path: Path, kind: str, dtype: Any) -> None:
    most = LARGEST[kind]
    wrongs = [most * 1.01, -most * 1.01, 1e300, np.longdouble("1e4000")]
    if kind == "bfloat16":  # rounding would make these infinite
        wrongs += [np.finfo(np.float32).max, -np.finfo(np.float32).max]
    with ShardWriter(tmp_path, 2, kind) as writer:
        for wrong in wrongs:
            if np.isfinite(dtype(wrong)):
                with pytest.raises(SchemaError, match=f"does not fit {kind}"):
                    writer.append(np.array([[0, 1], [np.inf, wrong]], dtype))
        writer.append(np.array([[most, -most], [np.inf, np.nan]], dtype))
    assert_same(ShardReader.open(tmp_path)[:]["data"], [[most, -most], [np.inf, np.nan]])


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        (np.zeros((2, 4)), SchemaError),
        (np.zeros((2, 2)), SchemaError),
        (np.zeros(3), SchemaError),
        (np.zeros((1, 1, 3)), SchemaError),
        (0.0, SchemaError),
        (np.zeros((2, 3), bool), SchemaError),
        (np.zeros((2, 3), complex), SchemaError),
        (np.array([["a", "b", "c"]]), SchemaError),
        (np.array([[None, 1, 2]]), SchemaError),
        (np.ma.masked_array(np.zeros((1, 3)), [[True, False, False]]), TypeError),
    ],
)
def test_rows_that_are_none(tmp_path: Path, rows: Any, error: type[Exception]) -> None:
    with ShardWriter(tmp_path, 3) as writer:
        writer.append(np.ones((2, 3)))
        with pytest.raises(error):
            writer.append(rows)
        writer.append(np.ones((1, 3)))  # it goes on
    assert ShardReader.open(tmp_path)[:]["data"].tolist() == [[1, 1, 1]] * 3


# Shards.


@settings(max_examples=scaled(40))
@given(data=st.data())
def test_roll_over(quick_path: Path, data: st.DataObject) -> None:
    path = Path(mkdtemp(dir=quick_path))
    width = data.draw(st.integers(1, 8))
    shard_bytes = data.draw(st.integers(1, 200))
    parts = data.draw(st.lists(st.integers(0, 30), max_size=6))
    rows = values(sum(parts), width)
    most = max(shard_bytes // (4 * width), 1)
    with ShardWriter(path, width, shard_bytes=shard_bytes) as writer:
        at = 0
        for count in parts:
            writer.append(rows[at : at + count])
            at += count
            assert len(writer) == at
            assert writer.rows == at // most * most
            assert len(list(path.glob("*.shard"))) == at // most
    sizes = [len(s.rows) for s in map(reference.read_shard, map(Path.read_bytes, shards(path)))]
    assert sizes == [most] * (at // most) + [at % most] * (at % most > 0)
    if at:
        reference.check_folder(path)
        assert_same(ShardReader.open(path)[:]["data"], rows)


def shards(path: Path) -> list[Path]:
    return reference.names_in(path)


def test_it_goes_on_at_the_last_whole_shard(tmp_path: Path) -> None:
    rows = values(50, 4)
    writer = ShardWriter(tmp_path, 4, shard_bytes=160)
    writer.append(rows[:27])
    writer.rollback()
    assert (len(writer), writer.rows) == (20, 20)
    writer.append(rows[20:27])
    del writer
    assert_same(ShardReader.open(tmp_path)[:]["data"], rows[:20])
    with ShardWriter(tmp_path, mode="a", shard_bytes=160) as again:
        assert (again.rows, again.width) == (20, 4)
        again.append(rows[again.rows :])
    assert_same(ShardReader.open(tmp_path)[:]["data"], rows)
    reference.check_folder(tmp_path)
    assert sorted(p.name for p in tmp_path.glob(".*")) == [".writer.lock"]


def test_it_keeps_its_dtype_and_width(tmp_path: Path) -> None:
    rows = build(tmp_path, [3], "float16")
    with pytest.raises(SchemaError, match="expected rows of 5 values, got 6"):
        ShardWriter(tmp_path, 6, mode="a")
    with ShardWriter(tmp_path, mode="a") as writer:
        writer.append(rows)
    assert ShardReader.open(tmp_path).stored_dtype == "float16"
    assert_same(ShardReader.open(tmp_path)[:]["data"], np.concatenate([rows, rows]))
    with pytest.raises(ValueError, match="needs a width"):
        ShardWriter(tmp_path / "new")
    for width, shard_bytes in ((0, 1), (-1, 1), (1, 0)):
        with pytest.raises(ValueError, match="expected at least 1"):
            ShardWriter(tmp_path / "new", width, shard_bytes=shard_bytes)
    with pytest.raises(TypeError, match="expected floats"):
        ShardWriter(tmp_path / "new", 1, "int8")
    for dtype in ("float32", np.float64, "bfloat16"):
        with pytest.raises(SchemaError, match="expected rows of float16, got"):
            ShardWriter(tmp_path, dtype=dtype, mode="a")
    ShardWriter(tmp_path, dtype="float16", mode="a").close()
    with pytest.raises(TypeError):
        ShardWriter(tmp_path / "new", 1, shard_bytes=1e6)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ShardWriter(tmp_path / "new", 1.0)  # type: ignore[arg-type]
    ShardWriter(tmp_path / "new", 1).close()  # nobody holds it


def test_shards_of_others_are_not_continued(tmp_path: Path) -> None:
    build(tmp_path, [3], names=["a.shard"])
    with pytest.raises(FormatError, match=r"expected shards named 000000.*got a\.shard"):
        ShardWriter(tmp_path, mode="a")
    (tmp_path / "a.shard").rename(tmp_path / "000001.shard")  # one is missing
    with pytest.raises(FormatError, match=r"got 000001\.shard"):
        ShardWriter(tmp_path, mode="a")


def test_shards_that_the_list_does_not_have(tmp_path: Path) -> None:
    rows = build(tmp_path, [3, 4], checksums=True)
    (tmp_path / "shards.json").unlink()
    with ShardWriter(tmp_path, mode="a") as writer:
        writer.append(rows)
    reader = ShardReader.open(tmp_path)
    assert [shard.crc32c is None for shard in reader.shards] == [True, True, False]
    assert reader.verify().ok
    assert_same(reader[:]["data"], np.concatenate([rows, rows]))


def test_a_kill_between_a_shard_and_the_list(tmp_path: Path) -> None:
    """The checksum that the list would have had is that of the bytes."""
    rows = values(30, 4)
    with ShardWriter(tmp_path, 4, shard_bytes=160) as writer:
        writer.append(rows)
    whole = (tmp_path / "shards.json").read_bytes()
    for known in (2, 0):
        text = json.loads(whole)
        for path in list(shards(tmp_path))[known + 1 :]:
            path.unlink()
        text["shards"] = text["shards"][:known]
        (tmp_path / "shards.json").write_text(json.dumps(text))
        if not known:
            (tmp_path / "shards.json").unlink()
        with ShardWriter(tmp_path, mode="a", shard_bytes=160) as writer:
            assert writer.rows == 10 * (known + 1)
            writer.append(rows[writer.rows :])
        assert (tmp_path / "shards.json").read_bytes() == whole


def test_names_that_would_not_sort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_MAX_SHARDS", 2)
    writer = ShardWriter(tmp_path, 1, shard_bytes=4)
    with pytest.raises(ValueError, match="would not sort"):
        writer.append(np.zeros((3, 1)))
    writer.rollback()
    writer.close()
    assert len(ShardReader.open(tmp_path)) == 2


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_tensors(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    rows = torch.arange(12, dtype=dtype).reshape(3, 4)
    rows.requires_grad = True
    with ShardWriter(tmp_path, 4, getattr(torch, kind)) as writer:
        writer.append(rows)
    reader = ShardReader.open(tmp_path)
    assert reader.stored_dtype == kind
    assert_same(reader[:]["data"], np.arange(12).reshape(3, 4))


# Others.


def test_a_commit_makes_a_shard(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, 2) as writer:
        writer.commit()
        assert not shards(tmp_path)
        for count in (3, 1):
            writer.append(np.zeros((count, 2)))
            writer.commit()
            writer.commit()
        assert [len(ShardReader.open(path)) for path in shards(tmp_path)] == [3, 1]


def test_a_full_shard_is_a_commit(quick_path: Path) -> None:
    """Whoever looks meanwhile sees whole shards; a loop goes on with what it began with."""
    rows = values(30, 4)
    with ShardWriter(quick_path, 4, shard_bytes=160) as writer:
        writer.append(rows[:12])
        reader = ShardReader.open(quick_path)
        begun = reader.batches(5)
        assert_same(next(begun).rows, rows[:5])
        writer.append(rows[12:25])
        assert (len(reader), reader.refresh(), len(reader)) == (10, True, 20)
        assert_same(reader[:]["data"], rows[:20])
        assert_same(np.concatenate([batch.rows for batch in begun]), rows[5:10])


def test_shards_that_do_not_fit_are_no_news(tmp_path: Path) -> None:
    rows = build(tmp_path, [3])
    reader = ShardReader.open(tmp_path)
    build(tmp_path / "b", [2], width=7, names=["1.shard"])
    (tmp_path / "b" / "1.shard").rename(tmp_path / "1.shard")
    with pytest.raises(FormatError, match="expected 5 x float32"):
        reader.refresh()
    assert_same(reader[:]["data"], rows)

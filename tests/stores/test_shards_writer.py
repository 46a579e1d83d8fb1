"""Shards as they are written: any floats, whole shards, one writer at a time."""

import gc
import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from ml_dtypes import bfloat16
from numpy.typing import NDArray

from stepwell import BusyError, FormatError, SchemaError, ShardReader, ShardWriter
from stepwell.stores.shards import writer as writer_module
from tests import children, scaled
from tests.reference import shards as reference
from tests.shards import assert_same, build, values

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
    with ShardWriter(tmp_path, 2, kind) as writer:
        for wrong in (most * 1.01, -most * 1.01, 1e300):
            with pytest.raises(SchemaError, match=f"does not fit {kind}"):
                writer.append(np.array([[0, 1], [np.inf, wrong]], dtype))
        writer.append(np.array([[most, -most], [np.inf, np.nan]], dtype))
    assert_same(ShardReader.open(tmp_path)[:]["data"], [[most, -most], [np.inf, np.nan]])


def test_values_just_below_infinity(tmp_path: Path) -> None:
    """float32 holds them, and rounding would make them infinite."""
    largest = np.finfo(np.float32).max
    with ShardWriter(tmp_path, 1, "bfloat16") as writer:
        for wrong in (largest, -largest):
            with pytest.raises(SchemaError, match="does not fit bfloat16"):
                writer.append(np.array([[wrong]], np.float32))
    with ShardWriter(tmp_path / "long", 1) as writer:
        with pytest.raises(SchemaError, match="does not fit float32"):
            writer.append(np.array([["1e4000"]]).astype(np.longdouble))
        with (
            pytest.raises(SchemaError, match="does not fit float16"),
            ShardWriter(tmp_path / "half", 1, "float16") as half,
        ):
            half.append([[70_000]])


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


def test_a_flush_makes_a_shard(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, 2) as writer:
        writer.flush()
        assert not shards(tmp_path)
        for count in (3, 1):
            writer.append(np.zeros((count, 2)))
            writer.flush()
            writer.flush()
        assert writer.rows == 4
        assert [len(ShardReader.open(path)) for path in shards(tmp_path)] == [3, 1]


@pytest.mark.parametrize("how", ["abort", "error", "forgotten"])
def test_it_goes_on_at_the_last_whole_shard(tmp_path: Path, how: str) -> None:
    rows = values(50, 4)
    path = tmp_path / "a"
    writer = ShardWriter(path, 4, shard_bytes=160)
    if how == "error":
        with suppress(ZeroDivisionError), writer:
            writer.append(rows[:27])
            raise ZeroDivisionError
    else:
        writer.append(rows[:27])
        if how == "abort":
            writer.abort()
            writer.abort()
    del writer
    assert_same(ShardReader.open(path)[:]["data"], rows[:20])
    with ShardWriter(path, shard_bytes=160) as again:
        assert (again.rows, again.width) == (20, 4)
        again.append(rows[again.rows :])
    assert_same(ShardReader.open(path)[:]["data"], rows)
    reference.check_folder(path)
    assert sorted(p.name for p in path.glob(".*")) == [".writer.lock"]


def test_it_keeps_its_dtype_and_width(tmp_path: Path) -> None:
    rows = build(tmp_path, [3], "float16")
    with pytest.raises(SchemaError, match="expected rows of 5 values, got 6"):
        ShardWriter(tmp_path, 6)
    with ShardWriter(tmp_path) as writer:
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
            ShardWriter(tmp_path, dtype=dtype)
    ShardWriter(tmp_path, dtype="float16").close()
    with pytest.raises(TypeError):
        ShardWriter(tmp_path / "new", 1, shard_bytes=1e6)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ShardWriter(tmp_path / "new", 1.0)  # type: ignore[arg-type]
    ShardWriter(tmp_path / "new", 1).close()  # nobody holds it


def test_shards_of_others_are_not_continued(tmp_path: Path) -> None:
    build(tmp_path, [3], names=["a.shard"])
    with pytest.raises(FormatError, match=r"expected shards named 000000.*got a\.shard"):
        ShardWriter(tmp_path)
    (tmp_path / "a.shard").rename(tmp_path / "000001.shard")  # one is missing
    with pytest.raises(FormatError, match=r"got 000001\.shard"):
        ShardWriter(tmp_path)


def test_shards_that_the_list_does_not_have(tmp_path: Path) -> None:
    rows = build(tmp_path, [3, 4], sums=True)
    (tmp_path / "shards.json").unlink()
    with ShardWriter(tmp_path) as writer:
        writer.append(rows)
    reader = ShardReader.open(tmp_path)
    assert [shard.crc32c is None for shard in reader.shards] == [True, True, False]
    assert reader.verify() == []
    assert_same(reader[:]["data"], np.concatenate([rows, rows]))


def test_a_kill_between_a_shard_and_the_list(tmp_path: Path) -> None:
    """The sum that the list would have had is that of the bytes."""
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
        with ShardWriter(tmp_path, shard_bytes=160) as writer:
            assert writer.rows == 10 * (known + 1)
            writer.append(rows[writer.rows :])
        assert (tmp_path / "shards.json").read_bytes() == whole


def test_names_that_would_not_sort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_MOST_SHARDS", 2)
    writer = ShardWriter(tmp_path, 1, shard_bytes=4)
    with pytest.raises(ValueError, match="would not sort"):
        writer.append(np.zeros((3, 1)))
    writer.close()
    assert len(ShardReader.open(tmp_path)) == 2


def test_a_writer_that_is_forgotten_keeps_no_files(tmp_path: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    writer = ShardWriter(tmp_path, 1)
    writer.append(np.zeros((3, 1)))
    del writer
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert os.listdir(tmp_path) == [".writer.lock"]


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


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, 2) as writer:
        writer.append(np.zeros((1, 2)))
        with pytest.raises(BusyError, match="another writer"):
            ShardWriter(tmp_path, 2)
        script = "import sys, stepwell; stepwell.ShardWriter(sys.argv[1], 2)"
        assert "BusyError" in children.python(script, tmp_path).stderr
        writer.append(np.ones((1, 2)))
    assert len(ShardReader.open(tmp_path)) == 2
    ShardWriter(tmp_path).close()


def test_a_writer_that_is_closed(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, 2)
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.append([[0, 0]])
    with pytest.raises(ValueError, match="closed"):
        writer.flush()


def test_a_corpus_that_is_taken_away(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "a", 2)
    writer.append([[0, 0]])
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").mkdir()
    with pytest.raises(BusyError, match="moved or replaced"):
        writer.close()
    assert not list((tmp_path / "a").iterdir())


def test_a_forked_child_does_not_write(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, 2)
    writer.append([[1, 2]])

    def work() -> str:
        with pytest.raises(ValueError, match="closed"):
            writer.append([[3, 4]])
        writer.close()
        return "done"

    assert children.in_fork(work) == "done"
    writer.close()
    assert ShardReader.open(tmp_path)[:]["data"].tolist() == [[1, 2]]


def test_a_writer_stays_where_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    writer = ShardWriter("a", 2)
    writer.append([[1, 2]])
    monkeypatch.chdir(tmp_path / "sub")
    writer.close()
    assert len(ShardReader.open(tmp_path / "a")) == 1


def test_readers_beside_a_writer(quick_path: Path) -> None:
    """Whoever opens the corpus meanwhile sees whole shards, all rows as they were written."""
    rows = np.repeat(np.arange(3000, dtype=np.float32)[:, None], 16, axis=1)
    done = threading.Event()

    def write() -> None:
        with ShardWriter(quick_path, 16, shard_bytes=64 * 100) as writer:
            for begin in range(0, 3000, 75):
                writer.append(rows[begin : begin + 75])
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen: set[int] = set()
    while not done.is_set() or not seen:
        if shards(quick_path):
            reader = ShardReader.open(quick_path)
            assert len(reader) % 100 == 0
            assert reader.verify() == []
            assert (reader[:]["data"] == rows[: len(reader)]).all()
            seen.add(len(reader))
    thread.join()
    assert len(ShardReader.open(quick_path)) == 3000

"""Arrays in files become shards, and come back as they were."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stepwell as sw
from stepwell import FormatError, SchemaError
from tests import children

ROWS = np.random.default_rng(0).standard_normal((1000, 24)).astype(np.float32)


def tensors(path: Path, **arrays: tuple[str, NDArray[Any]]) -> Path:
    """A `.safetensors` file, by hand."""
    about: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, (dtype, array) in arrays.items():
        offsets = [len(body), len(body) + array.nbytes]
        about[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": offsets}
        body += array.tobytes()
    head = json.dumps(about).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + body)
    return path


def stored(path: Path) -> bytes:
    return b"".join(p.read_bytes()[32:] for p in sorted(path.glob("*.shard")))


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
@pytest.mark.parametrize("dtype", ["<f4", "<f2"])
def test_there_and_back(suffix: str, dtype: str, tmp_path: Path) -> None:
    rows = ROWS.astype(dtype)
    source = tmp_path / f"a.{suffix}"
    if suffix == "npy":
        np.save(source, rows)
    elif suffix == "npz":
        np.savez_compressed(source, acts=rows)
    else:
        tensors(source, acts=("F32" if dtype == "<f4" else "F16", rows))
    report = sw.convert(source, tmp_path / "acts", to="shards", part_bytes=10_000)
    assert report == (tmp_path / "acts", suffix, "shards", 1000, 0)
    reader = sw.ShardReader.open(tmp_path / "acts")
    assert len(reader.shards) > 1
    assert reader.take(np.arange(1000))["data"].tobytes() == rows.tobytes()
    assert reader.dtype == rows.dtype
    assert reader.verify().ok
    assert stored(tmp_path / "acts") == rows.tobytes()
    back = tmp_path / f"b.{suffix}"
    assert sw.convert(tmp_path / "acts", back) == (back, "shards", suffix, 1000, 0)
    if suffix == "npy":
        assert back.read_bytes() == source.read_bytes()
    elif suffix == "npz":
        with np.load(back) as arrays:
            assert (arrays["data"].dtype, arrays["data"].tobytes()) == (rows.dtype, rows.tobytes())
    else:
        sw.convert(back, tmp_path / "again", to="shards")
        assert stored(tmp_path / "again") == rows.tobytes()


def test_bfloat16_stays_what_it_is(tmp_path: Path) -> None:
    bits = (ROWS.view(np.uint32) >> 16).astype("<u2")
    tensors(tmp_path / "a.safetensors", acts=("BF16", bits))
    sw.convert(tmp_path / "a.safetensors", tmp_path / "acts", to="shards")
    assert sw.ShardReader.open(tmp_path / "acts").stored_dtype == "bfloat16"
    assert stored(tmp_path / "acts") == bits.tobytes()
    sw.convert(tmp_path / "acts", tmp_path / "b.safetensors")
    sw.convert(tmp_path / "b.safetensors", tmp_path / "again", to="shards")
    assert stored(tmp_path / "again") == bits.tobytes()
    sw.convert(tmp_path / "acts", tmp_path / "b.npy")
    floats = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.load(tmp_path / "b.npy").tobytes() == floats.tobytes()


def test_files_of_safetensors_itself(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    library.save_file({"x": ROWS, "y": np.arange(5)}, tmp_path / "a.safetensors")
    sw.convert(tmp_path / "a.safetensors", tmp_path / "acts", to="shards", field="x")
    assert stored(tmp_path / "acts") == ROWS.tobytes()
    sw.convert(tmp_path / "acts", tmp_path / "b.safetensors")
    assert library.load_file(tmp_path / "b.safetensors")["data"].tobytes() == ROWS.tobytes()


def test_float64_is_rounded(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((10, 3))
    np.save(tmp_path / "a.npy", rows)
    sw.convert(tmp_path / "a.npy", tmp_path / "acts", to="shards")
    assert stored(tmp_path / "acts") == rows.astype("<f4").tobytes()


def test_one_array_of_many(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=ROWS, y=np.arange(1000))
    with pytest.raises(SchemaError, match="choose one of x, y, got None"):
        sw.convert(tmp_path / "a.npz", tmp_path / "acts", to="shards")
    sw.convert(tmp_path / "a.npz", tmp_path / "acts", to="shards", field="x")
    assert stored(tmp_path / "acts") == ROWS.tobytes()
    with pytest.raises(SchemaError, match="'y' is no array of floats with two axes"):
        sw.convert(tmp_path / "a.npz", tmp_path / "more", to="shards", field="y")
    assert not (tmp_path / "more").exists()
    assert not (tmp_path / "more.part").exists()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "a header of 0 bytes does not fit"),
        (b"\xff" * 8 + b"{}", "does not fit the file"),
        (b"\x02" + bytes(7) + b"[]", "no object"),
        (b"\x02" + bytes(7) + b"{]", "does not parse"),
        ((200_000).to_bytes(8, "little") + b"[" * 200_000, "does not parse"),
        ({"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "ends at"),
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]}, "12 bytes for F32"),
        ({"dtype": "F32", "shape": [-1, 2], "data_offsets": [0, 8]}, r"\[-1, 2\]"),
        ({"dtype": "F32", "shape": [1, 2], "data_offsets": [8, 0]}, "at 8 to 0"),
        ({"shape": [1, 2], "data_offsets": [0, 8]}, "dtype"),
    ],
)
def test_damaged_tensors(data: Any, text: str, tmp_path: Path) -> None:
    if isinstance(data, dict):
        head = json.dumps({"x": data}).encode()
        data = len(head).to_bytes(8, "little") + head + bytes(16)
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(FormatError, match=text):
        sw.convert(tmp_path / "a.safetensors", tmp_path / "acts", to="shards")
    assert not (tmp_path / "acts").exists()


@pytest.mark.parametrize(
    ("tag", "array"),
    [("I64", np.zeros((2, 2), "i8")), ("F32", np.zeros(4, "f4")), ("F32", np.zeros((0, 4), "f4"))],
)
def test_tensors_that_are_refused(tag: str, array: NDArray[Any], tmp_path: Path) -> None:
    tensors(tmp_path / "a.safetensors", x=(tag, array))
    with pytest.raises(SchemaError, match=f"'x' is {tag}"):
        sw.convert(tmp_path / "a.safetensors", tmp_path / "acts", to="shards")


def test_calls_that_mean_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROWS)
    tensors(tmp_path / "a.safetensors", x=("F32", ROWS))
    sw.convert(tmp_path / "a.npy", tmp_path / "acts", to="shards")
    sw.convert(tmp_path / "a.npy", tmp_path / "store")
    for source, target, options, text in [
        ("a.safetensors", "store2", {}, "say so, to='shards'"),
        ("a.npy", "b.safetensors", {"to": "shards"}, "the name says safetensors"),
        ("a.npy", "b.safetensors", {}, "must be a record store"),
        ("store", "acts2", {"to": "shards"}, "store is records; shards are made of"),
        ("acts", "acts2", {}, "a .npy, .npz or .safetensors file"),
        ("acts", "a.parquet", {}, "a .npy, .npz or .safetensors file"),
        ("acts", "b.npy", {"to": "npz"}, "not npz"),
        ("acts", "b.npy", {"field": "x"}, "shards have one"),
        ("a.npy", "acts2", {"to": "shards", "compress": "zstd"}, "not packed"),
    ]:
        with pytest.raises(ValueError, match=text):
            sw.convert(tmp_path / source, tmp_path / target, **options)  # type: ignore[arg-type]


def test_what_is_there_is_kept_or_replaced(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROWS)
    target = tmp_path / "acts"
    sw.convert(tmp_path / "a.npy", target, to="shards")
    with pytest.raises(FileExistsError, match="this conversion is finished"):
        sw.convert(tmp_path / "a.npy", target, to="shards")
    np.save(tmp_path / "a.npy", -ROWS)
    with pytest.raises(FileExistsError, match="another conversion"):
        sw.convert(tmp_path / "a.npy", target, to="shards")
    sw.convert(tmp_path / "a.npy", target, to="shards", overwrite=True)
    assert stored(target) == (-ROWS).tobytes()
    mine = tmp_path / "mine"
    with sw.ShardWriter(mine, 24) as writer:
        writer.append(ROWS)
    with pytest.raises(FileExistsError, match="not made by a conversion"):
        sw.convert(tmp_path / "a.npy", mine, to="shards", overwrite=True)
    (tmp_path / "b.npy").write_text("whatever")
    with pytest.raises(FileExistsError, match="overwrite replaces it"):
        sw.convert(mine, tmp_path / "b.npy")
    sw.convert(mine, tmp_path / "b.npy", overwrite=True)  # any plain file
    assert np.load(tmp_path / "b.npy").tobytes() == ROWS.tobytes()


STOPPED = """
import os, sys
import stepwell as sw
def stop(done, total):
    if done >= total // 2:
        os._exit(9)
sw.convert(sys.argv[1], sys.argv[2], to=sys.argv[3], part_bytes=1 << 22, on_progress=stop)
"""


@pytest.mark.parametrize("suffix", ["npy", "safetensors"])
def test_after_a_kill_it_goes_on(suffix: str, tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((10_000, 1024)).astype("<f4")
    source, back = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    if suffix == "npy":
        np.save(source, rows)
    else:
        tensors(source, x=("F32", rows))
    acts = tmp_path / "acts"
    assert children.python(STOPPED, source, acts, "shards").returncode == 9
    assert not acts.exists()
    report = sw.convert(source, acts, to="shards", part_bytes=1 << 22)
    assert report.resumed_at >= 4000
    assert stored(acts) == rows.tobytes()
    assert children.python(STOPPED, acts, back, suffix).returncode == 9
    assert not back.exists()
    seen: list[int] = []
    report = sw.convert(acts, back, on_progress=lambda done, total: seen.append(done))
    assert 0 < report.resumed_at == seen[0]
    assert seen == sorted(seen)
    assert seen[-1] == 10_000
    assert back.read_bytes()[-rows.nbytes :] == rows.tobytes()
    assert not (tmp_path / f"b.{suffix}.part").exists()


def test_memory_does_not_grow_with_the_array(tmp_path: Path) -> None:
    array = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.float32, (32_768, 1024))
    array[:, 0] = np.arange(len(array))
    del array
    tracemalloc.start()
    try:
        sw.convert(tmp_path / "a.npy", tmp_path / "acts", to="shards")
        sw.convert(tmp_path / "acts", tmp_path / "b.safetensors")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20
    taken = sw.ShardReader.open(tmp_path / "acts").take([32_767])
    assert taken["data"][0, 0] == 32_767

"""`.safetensors` files, those of others and damaged ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stepwell as sw
from tests.formats.rows import refused

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


def test_bfloat16_stays_what_it_is(tmp_path: Path) -> None:
    bits = (ROWS.view(np.uint32) >> 16).astype("<u2")
    tensors(tmp_path / "a.safetensors", acts=("BF16", bits))
    sw.convert(tmp_path / "a.safetensors", tmp_path / "acts", to="shards")
    with sw.ShardReader.open(tmp_path / "acts") as acts:
        assert acts.stored_dtype == "bfloat16"
    assert stored(tmp_path / "acts") == bits.tobytes()
    sw.convert(tmp_path / "acts", tmp_path / "b.safetensors")
    assert (tmp_path / "b.safetensors").read_bytes().endswith(bits.tobytes())
    sw.convert(tmp_path / "b.safetensors", tmp_path / "again", to="shards")
    assert stored(tmp_path / "again") == bits.tobytes()
    sw.convert(tmp_path / "acts", tmp_path / "b.npy")
    floats = (bits.astype(np.uint32) << 16).view(np.float32)
    assert np.load(tmp_path / "b.npy").tobytes() == floats.tobytes()


def test_files_of_safetensors_itself(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    library.save_file({"x": ROWS, "y": np.arange(5)}, tmp_path / "a.safetensors")
    refused(tmp_path / "a.safetensors", "equal length, got .*field= chooses one", to="shards")
    sw.convert(tmp_path / "a.safetensors", tmp_path / "acts", to="shards", field="x")
    assert stored(tmp_path / "acts") == ROWS.tobytes()
    sw.convert(tmp_path / "acts", tmp_path / "b.safetensors")
    assert library.load_file(tmp_path / "b.safetensors")["data"].tobytes() == ROWS.tobytes()


def test_float64_is_rounded_for_shards(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((10, 3))
    np.save(tmp_path / "a.npy", rows)
    sw.convert(tmp_path / "a.npy", tmp_path / "acts", to="shards")
    assert stored(tmp_path / "acts") == rows.astype("<f4").tobytes()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "truncated: expected a header of 8 bytes, got 0"),
        (b"\xff" * 8 + b"{}", "header: expected at most"),
        (b"\x02" + bytes(7) + b"[]", "expected an object"),
        (b"\x02" + bytes(7) + b"{]", "does not parse"),
        (b"\x02" + bytes(7) + b"{}", "expected at least one array"),
        ((200_000).to_bytes(8, "little") + b"[" * 200_000, "does not parse"),
        ({"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "truncated: expected"),
        ({"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]}, "the bytes of F32 .* got 12"),
        ({"dtype": "F32", "shape": [-1, 2], "data_offsets": [0, 8]}, r"\[-1, 2\]"),
        ({"dtype": "F32", "shape": [1, 2], "data_offsets": [8, 0]}, "8 and 0"),
        ({"dtype": "F4", "shape": [1, 2], "data_offsets": [0, 1]}, "'x' is F4"),
        ({"shape": [1, 2], "data_offsets": [0, 8]}, "dtype"),
    ],
)
def test_damaged_tensors(data: Any, text: str, tmp_path: Path) -> None:
    if isinstance(data, dict):
        head = json.dumps({"x": data}).encode()
        data = len(head).to_bytes(8, "little") + head + bytes(16)
    (tmp_path / "a.safetensors").write_bytes(data)
    refused(tmp_path / "a.safetensors", text)

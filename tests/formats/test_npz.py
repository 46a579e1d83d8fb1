"""`.npy` and `.npz` files, as NumPy writes and reads them."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stepwell as sw
from stepwell import Source, batches
from stepwell.formats.npz import NpzSource
from tests.contract import Expected, SourceContract
from tests.formats.rows import Given, assert_same, contents, mixed, refused

pytestmark = pytest.mark.filterwarnings("ignore:Stored array in format 3.0")

PLAIN: list[NDArray[Any]] = [
    np.arange(24, dtype=">f4").reshape(4, 3, 2),
    np.array(["2020-01-01", "NaT"], "M8[ns]"),
    np.array([b"a\0", b"bcd"]),
    np.array(["ä", "日本"]),
    np.zeros((0, 5), "f2"),
]

STRUCTURED = [("größe", "<i4"), ("x", ">f8", (2, 2)), ("名", "?"), ("a.b", "S3")]


class TestStream(SourceContract):
    """A format that is read in order sits the exam of sources too."""

    @pytest.fixture
    def expected(self) -> Expected:
        values = mixed(100)
        return {name: values[name] for name in ("image", "tokens", "label", "pairs")}

    @pytest.fixture(params=["whole.npz", "a.npz", "a.parquet", "a.arrow"])
    def source(
        self,
        expected: Expected,
        request: pytest.FixtureRequest,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Source:
        if request.param != "whole.npz":
            monkeypatch.setattr(batches, "BATCH_BYTES", 50)
        sw.convert(Given(expected), tmp_path / request.param)
        made: Source = sw.open(tmp_path / request.param)
        return made


@pytest.mark.parametrize("array", PLAIN, ids=lambda array: f"{array.dtype}{array.shape}")
def test_plain_arrays(array: NDArray[Any], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    sw.convert(tmp_path / "a.npy", tmp_path / "store")
    assert_same(contents(tmp_path / "store"), {"data": array})
    sw.convert(tmp_path / "store", tmp_path / "b.npy")
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_structured_arrays(rows: int, align: bool, tmp_path: Path) -> None:
    dtype = np.dtype(STRUCTURED, align=align)
    array = np.frombuffer(
        np.random.default_rng(0).integers(0, 2, rows * dtype.itemsize, np.uint8), dtype
    )
    np.save(tmp_path / "a.npy", array)
    sw.convert(tmp_path / "a.npy", tmp_path / "store", compress="zstd")
    names = ["gr__e", "x", "_", "a_b"]
    want = dict(zip(names, (array[n] for n in array.dtype.names or ()), strict=True))
    assert_same(contents(tmp_path / "store"), want)
    sw.convert(tmp_path / "store", tmp_path / "b.npy")
    back = np.load(tmp_path / "b.npy")
    array = array.astype(STRUCTURED)  # which has no padding
    assert (back.dtype, back.tobytes()) == (array.dtype, array.tobytes())


# Archives.


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives_of_others(save: Any, tmp_path: Path) -> None:
    rows = 100
    arrays = {
        "infos/goal": np.arange(rows * 6.0).reshape(rows, 3, 2),
        "größe": np.arange(rows),
    }
    save(tmp_path / "a.npz", **arrays)
    sw.convert(tmp_path / "a.npz", tmp_path / "store")
    assert list(contents(tmp_path / "store")) == ["infos_goal", "gr__e"]
    sw.convert(tmp_path / "store", tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as back, zipfile.ZipFile(tmp_path / "b.npz") as archive:
        assert_same(dict(back), arrays)
        assert archive.testzip() is None


def test_ragged_fields_of_others(tmp_path: Path) -> None:
    tokens = np.arange(10, dtype="i2")
    parts: dict[str, Any] = {"tokens": tokens, "tokens.offsets": np.array([0, 3, 3, 10])}
    np.savez(tmp_path / "a.npz", n=np.arange(3), **parts)
    want = {"n": np.arange(3), "tokens": [tokens[:3], tokens[:0], tokens[3:]]}
    assert_same(contents(NpzSource(tmp_path / "a.npz")), want)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"a": np.zeros(3), "b": np.zeros(4)}, "equal length, got a: 3, b: 4"),
        ({"a": np.zeros(3), "b": np.array(1)}, "'b' is a single value"),
        ({"a": np.asfortranarray(np.zeros((3, 2)))}, "'a': rows of a Fortran-ordered array"),
        ({"a": np.array([{}])}, "'a': expected plain numbers, got Python objects"),
        ({"a": np.zeros(3, [("x", "i4")])}, "'a' is structured"),
        ({"a": np.zeros(5), "a.offsets": np.array([0, 3, 2, 5])}, "a.offsets: expected ascending"),
        ({"a": np.zeros(5), "a.offsets": np.array([0, 6])}, "expected 0 to 5, got 0 to 6"),
        ({"a": np.zeros(5), "a.offsets": np.array([1, 5])}, "expected 0 to 5, got 1 to"),
        ({"a": np.zeros(5), "a.offsets": np.array([0, 4])}, "expected 0 to 5, got 0 to 4"),
        ({}, "expected at least one array"),
    ],
)
def test_archives_that_are_refused(arrays: Any, text: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    refused(tmp_path / "a.npz", text)


def test_an_array_that_is_not_as_large_as_its_header_says(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.zeros((100, 10)))
    path.write_bytes(path.read_bytes().replace(b"(100, 10)", b"(100, 90)"))
    refused(path, "bytes of data, got a file of")

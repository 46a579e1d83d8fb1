"""`.npy` and `.npz` files become record stores, and come back as they were."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stepwell as sw
from stepwell import FormatError, SchemaError
from tests.converters import assert_same, attributes, contents, mixed, store_of

pytestmark = pytest.mark.filterwarnings("ignore:Stored array in format 3.0")

PLAIN: list[NDArray[Any]] = [
    np.arange(10),
    np.arange(24, dtype=">f4").reshape(4, 3, 2),
    np.array([True, False]),
    np.array([1 + 2j], "c8"),
    np.array(["2020-01-01", "NaT"], "M8[ns]"),
    np.array([b"a\0", b"bcd"]),
    np.array(["ä", "日本"]),
    np.zeros((0, 5), "f2"),
    np.zeros(0, "u1"),
]

STRUCTURED = np.dtype([("größe", "<i4"), ("x", ">f8", (2, 2)), ("名", "?"), ("a.b", "S3")])


@pytest.mark.parametrize("array", PLAIN, ids=lambda array: f"{array.dtype}{array.shape}")
def test_plain_arrays(array: NDArray[Any], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    report = sw.convert(tmp_path / "a.npy", tmp_path / "store")
    assert report == (tmp_path / "store", "npy", "records", len(array), 0)
    assert_same(contents(tmp_path / "store"), {"data": array})
    sw.convert(tmp_path / "store", tmp_path / "b.npy")
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_structured_arrays(rows: int, tmp_path: Path) -> None:
    array = np.frombuffer(
        np.random.default_rng(0).integers(0, 2, rows * STRUCTURED.itemsize, np.uint8), STRUCTURED
    )
    np.save(tmp_path / "a.npy", array)
    sw.convert(tmp_path / "a.npy", tmp_path / "store", compress="zstd")
    got = contents(tmp_path / "store")
    want = dict(
        zip(["gr__e", "x", "_", "a_b"], (array[n] for n in array.dtype.names or ()), strict=True)
    )
    assert_same(got, want)
    assert attributes(tmp_path / "store") == {"names": {"gr__e": "größe", "_": "名", "a_b": "a.b"}}
    sw.convert(tmp_path / "store", tmp_path / "b.npy")
    back = np.load(tmp_path / "b.npy")
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


def test_a_padded_structure_loses_its_padding_only(tmp_path: Path) -> None:
    array = np.zeros(5, np.dtype([("a", "u1"), ("b", "f8")], align=True))
    array["b"] = np.arange(5)
    np.save(tmp_path / "a.npy", array)
    sw.convert(tmp_path / "a.npy", tmp_path / "store")
    sw.convert(tmp_path / "store", tmp_path / "b.npy")
    back = np.load(tmp_path / "b.npy")
    assert back.dtype == np.dtype([("a", "u1"), ("b", "f8")])
    assert (back["b"] == array["b"]).all()


def test_one_field_of_many(tmp_path: Path) -> None:
    records = mixed()
    store = store_of(tmp_path / "store", records)
    sw.convert(store, tmp_path / "image.npy", field="image")
    image = np.load(tmp_path / "image.npy")
    assert_same({"image": image}, {"image": records["image"]})
    with pytest.raises(SchemaError, match=r"'text' is str: a .npy file has rows of one size"):
        sw.convert(store, tmp_path / "text.npy", field="text")
    with pytest.raises(SchemaError, match=r"'tokens' is int32\[\*\]"):
        sw.convert(store, tmp_path / "all.npy")
    with pytest.raises(SchemaError, match=r"expected a field of image, label, .*, got 'imag'"):
        sw.convert(store, tmp_path / "imag.npy", field="imag")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.npy", "store"]


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.asfortranarray(np.zeros((3, 4))), "Fortran"),
        (np.array(5), "single value"),
        (np.array([{}]), "Python objects"),
        (np.zeros((3, 0)), "has no bytes"),
        (np.zeros(2, [("a", [("b", "i4")])]), "'a': expected plain numbers"),
        (np.zeros((2, 2), [("a", "i4")]), "one axis of structured rows"),
    ],
)
def test_arrays_that_are_refused(array: NDArray[Any], text: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises((FormatError, SchemaError), match=text):
        sw.convert(tmp_path / "a.npy", tmp_path / "store")
    assert not (tmp_path / "store").exists()


# Archives.


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("rows", [0, 1, 100])
def test_archives_of_others(save: Any, rows: int, tmp_path: Path) -> None:
    arrays = {"infos/goal": np.arange(rows * 6.0).reshape(rows, 3, 2), "größe": np.arange(rows)}
    arrays["offsets"] = arrays["größe"] * 2
    save(tmp_path / "a.npz", **arrays)
    sw.convert(tmp_path / "a.npz", tmp_path / "store")
    names = {"infos_goal": "infos/goal", "gr__e": "größe", "offsets": "offsets"}
    want = {name: arrays[original] for name, original in names.items()}
    assert_same(contents(tmp_path / "store"), want)
    sw.convert(tmp_path / "store", tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as back:
        assert_same(dict(back), arrays)


@pytest.mark.parametrize("rows", [0, 1, 2, 100])
def test_every_kind_of_field_goes_there_and_back(rows: int, tmp_path: Path) -> None:
    records = mixed(rows) if rows else {k: v[:0] for k, v in mixed(1).items()}
    store = store_of(tmp_path / "store", mixed(max(rows, 1)))
    if not rows:
        with sw.RecordWriter(store, mode="a") as opened:
            opened.delete([0])
    sw.convert(store, tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["tokens.offsets"].tolist() == [
            0,
            *np.cumsum([len(row) for row in records["tokens"]], dtype=int).tolist(),
        ]
        assert_same({"image": arrays["image"]}, {"image": records["image"]})
    sw.convert(tmp_path / "a.npz", tmp_path / "again")
    assert_same(contents(tmp_path / "again"), records)


def test_ragged_fields_of_others(tmp_path: Path) -> None:
    tokens = np.arange(10, dtype="i2")
    parts: dict[str, Any] = {
        "tokens": tokens,
        "tokens.offsets": np.array([0, 3, 3, 10]),
        "n": np.arange(3),
    }
    np.savez(tmp_path / "a.npz", **parts)
    sw.convert(tmp_path / "a.npz", tmp_path / "store")
    want = {"tokens": [tokens[:3], tokens[:0], tokens[3:]], "n": np.arange(3)}
    assert_same(contents(tmp_path / "store"), want)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"a": np.zeros(3), "b": np.zeros(4)}, "equal length, got a: 3, b: 4"),
        ({"a": np.zeros(3), "b": np.array(1)}, "'b' is a single value"),
        ({"a": np.array([{}])}, "a: expected plain numbers, got Python objects"),
        ({"a": np.zeros(3, [("x", "i4")])}, "'a' is structured"),
        ({"a": np.asfortranarray(np.zeros((3, 4)))}, "a: rows of a Fortran-ordered"),
        ({"a": np.zeros(5), "a.offsets": np.array([0, 3, 2, 5])}, "a.offsets goes back"),
        ({"a": np.zeros(5), "a.offsets": np.array([0, 6])}, "a.offsets does not fit a"),
        ({"a": np.zeros(5), "a.offsets": np.array([1, 5])}, "a.offsets does not fit a"),
        ({"a": np.zeros(5), "a.offsets": np.array([0, 4])}, "a.offsets does not fit a"),
        ({}, "there are no arrays"),
    ],
)
def test_archives_that_are_refused(arrays: Any, text: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises((FormatError, SchemaError), match=text) as caught:
        sw.convert(tmp_path / "a.npz", tmp_path / "store")
    assert str(tmp_path / "a.npz") in str(caught.value)
    assert not (tmp_path / "store").exists()


def test_a_damaged_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.zeros(1000))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[500] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(FormatError, match="cannot be read: Bad CRC-32"):
        sw.convert(tmp_path / "a.npz", tmp_path / "store")
    (tmp_path / "a.npz").write_bytes(data[:500])
    with pytest.raises(FormatError, match="not a zip file"):
        sw.convert(tmp_path / "a.npz", tmp_path / "store")


def test_an_archive_is_one_that_zip_understands(tmp_path: Path) -> None:
    sw.convert(store_of(tmp_path / "store", mixed()), tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert archive.testzip() is None

"""Whole numbers as torch can compute with them: uint16 and uint32 widened, uint64 by name."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch

import stepwell as sw
from stepwell.torch.tensors import Signed, signed_types
from tests.plain import PlainSource

N = 1000
SPREAD = np.random.default_rng(0)


def column(dtype: str, *shape: int) -> Any:
    """Values of the whole range, the ends of it first."""
    info = np.iinfo(dtype)
    values = SPREAD.integers(info.min, info.max, (N, *shape), dtype, endpoint=True)
    values.reshape(N, -1)[:2, 0] = info.max, info.min
    return values


def columns() -> dict[str, Any]:
    return {
        "index": np.arange(N),
        "u2": column("u2"),
        "u4": column("u4", 3),
        "u8": column("u8"),
        "u1": column("u1", 2),
        "i2": column("i2"),
        "f2": np.arange(N, dtype=np.float16),
        "flag": np.arange(N) % 3 == 0,
    }


TYPES = {
    "index": torch.int64,
    "u2": torch.int32,
    "u4": torch.int64,
    "u8": torch.uint64,
    "u1": torch.uint8,
    "i2": torch.int16,
    "f2": torch.float16,
    "flag": torch.bool,
}


def check(batches: Any, expected: dict[str, Any]) -> None:
    seen = 0
    for batch in batches:
        rows = batch["index"].numpy()
        seen += len(rows)
        assert {name: tensor.dtype for name, tensor in batch.items()} == TYPES
        for name, values in expected.items():
            assert np.array_equal(batch[name].numpy(), values[rows])
    assert seen == N


@pytest.mark.parametrize("batch_size", [1, 64, 257, N])
def test_native_threads_widen(batch_size: int) -> None:
    expected = columns()
    loader = sw.torch.Loader(sw.ArraySource(expected), batch_size, threads=2)
    check(loader, expected)


def test_every_other_way_widens_too() -> None:
    expected = columns()
    source = sw.ArraySource(expected)
    check(sw.torch.Loader(PlainSource(expected), 64), expected)
    check(sw.torch.Loader(source, 64, transform=dict), expected)
    check(sw.torch.IterableDataset(source, 64), expected)
    check(sw.torch.DataLoader(source, 64), expected)
    dataset = sw.torch.MapDataset(source)
    check(torch.utils.data.DataLoader(dataset, 64, collate_fn=sw.torch.collate), expected)
    check(torch.utils.data.DataLoader(dataset, 64), expected)
    check([sw.torch.as_tensors(source[:])], expected)


def test_views_that_stay_native_widen() -> None:
    expected = columns()
    source = sw.ArraySource(expected)
    windows = source.concat(source).windows(4, stride=4)
    for batch in sw.torch.Loader(windows, 9):
        rows = batch["index"].numpy()
        assert batch["u4"].dtype == torch.int64
        assert np.array_equal(batch["u4"].numpy(), expected["u4"][rows])
        assert np.array_equal(batch["u2"].numpy(), expected["u2"][rows])


def test_torch_computes_with_the_result() -> None:
    source = sw.ArraySource({"u2": column("u2"), "u4": column("u4")})
    batch = next(iter(sw.torch.Loader(source, N)))
    for tensor in batch.values():
        assert (tensor + 1).max() == tensor.max() + 1
        assert (tensor < 7).sum() >= 1
        assert torch.arange(2**16)[tensor % 7].max() < 7
        assert torch.equal(pickle.loads(pickle.dumps(tensor)), tensor)


def test_a_named_field_becomes_int64() -> None:
    expected = columns()
    names = ["u8", "u2", "u1", "i2"]
    for source in (sw.ArraySource(expected), PlainSource(expected)):
        for batch in sw.torch.Loader(source, 64, as_int64=names):
            rows = batch["index"].numpy()
            assert all(batch[name].dtype == torch.int64 for name in names)
            assert np.array_equal(batch["u8"].numpy().view(np.uint64), expected["u8"][rows])
            for name in names[1:]:
                assert np.array_equal(batch[name].numpy(), expected[name][rows])


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "u8"])
def test_the_core_widens_every_whole_number(dtype: str) -> None:
    values = column(dtype, 5)
    source = sw.ArraySource({"before": np.arange(N, dtype="u1"), "x": values})
    wide = Signed(source, signed_types(source.schema, ["x"]))
    rows = SPREAD.integers(0, N, 3000)
    batch = wide.take(rows)
    assert batch["x"].dtype == np.int64
    assert np.array_equal(batch["x"], values[rows].astype(np.int64))
    assert np.array_equal(batch["before"], rows.astype("u1"))
    into = {"before": np.empty(3000, "u1"), "x": np.empty((3000, 5), np.int64)}
    assert np.array_equal(wide.take(rows, into)["x"], batch["x"])


def test_a_transform_sees_the_types_of_the_source() -> None:
    seen = []

    def transform(batch: sw.Batch) -> sw.Batch:
        seen.append(batch["u2"].dtype)
        return {"twice": batch["u2"] * np.uint64(2)}

    source = sw.ArraySource({"u2": np.arange(8, dtype=np.uint16)})
    loader = sw.torch.Loader(source, 8, shuffle=False, transform=transform, as_int64=["twice"])
    assert next(iter(loader))["twice"].tolist() == list(range(0, 16, 2))
    assert set(seen) == {np.dtype(np.uint16)}


def test_ragged_values_widen() -> None:
    source = PlainSource({"tokens": [np.arange(n % 5, dtype=np.uint16) for n in range(20)]})
    values, offsets = next(iter(sw.torch.Loader(source, 20, shuffle=False)))["tokens"]
    assert values.dtype == torch.int32
    assert values[: offsets[4]].tolist() == [0, 0, 1, 0, 1, 2]
    (values, _) = next(iter(sw.torch.Loader(source, 20, as_int64=["tokens"])))["tokens"]
    assert values.dtype == torch.int64


@pytest.mark.parametrize("make", [sw.torch.Loader, sw.torch.IterableDataset, sw.torch.DataLoader])
def test_names_that_are_wrong(make: Any) -> None:
    source = sw.ArraySource({"board": np.zeros(4, "u8"), "ev": np.zeros(4, "f4")})
    with pytest.raises(KeyError, match=r"as_int64: no field 'bord'; there are \['board', 'ev'\]"):
        make(source, 2, as_int64=["bord"])
    with pytest.raises(sw.SchemaError, match="expected whole numbers, field 'ev' is float32"):
        make(source, 2, as_int64=["ev"])
    with pytest.raises(TypeError, match="expected a list of names, got 'board'"):
        make(source, 2, as_int64="board")


def test_names_that_a_transform_does_not_return() -> None:
    source = sw.ArraySource({"board": np.zeros(4, "u8")})
    loader = sw.torch.Loader(source, 2, transform=lambda b: {"x": b["board"]}, as_int64=["board"])
    with pytest.raises(KeyError, match=r"as_int64: no field 'board'; there are \['x'\]"):
        next(iter(loader))


def test_text_is_no_number() -> None:
    batch = {"caption": sw.Ragged.from_list(["a", "b"], sw.Field(str))}
    with pytest.raises(sw.SchemaError, match="field 'caption' is str"):
        sw.torch.as_tensors(batch, ["caption"])

"""What the core hands over: a dict of arrays over one block, or the caller's own."""

import gc
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import stepwell as sw
from stepwell import _core

ROWS = np.array([5, 0, 5, 2])
PADDED = np.dtype(
    {"names": ["a", "b"], "formats": ["u1", "<f8"], "offsets": [0, 8], "itemsize": 24}
)


def values(dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Six rows, all of them different."""
    size = np.dtype(dtype).itemsize * int(np.prod(shape))
    bytes_ = np.random.default_rng(1).integers(0, 2 if dtype == "?" else 100, 6 * size, np.uint8)
    return np.asarray(bytes_.view(dtype).reshape(6, *shape))


@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 2), (0,)])
@pytest.mark.parametrize(
    "dtype", ["?", "u1", "<f2", ">i4", "<c16", "<M8[ms]", "<m8[s]", "S3", "<U2", "V7", PADDED]
)
def test_arrays_are_those_that_numpy_would_make(dtype: Any, shape: tuple[int, ...]) -> None:
    if dtype is PADDED and shape:
        return  # rows of structures have one axis
    array = values(dtype, shape)
    source = sw.ArraySource({"first": np.arange(6), "x": array})
    for taken in (source.take(ROWS), next(iter(sw.Loader(source, 4, shuffle=False)))):
        rows = taken["first"]
        got, want = taken["x"], array[rows]
        assert (type(got), got.dtype, got.shape) == (np.ndarray, want.dtype, want.shape)
        opaque = array.view(f"V{array.itemsize}")  # whose padding counts
        assert got.tobytes() == opaque[rows].tobytes()
        assert got.flags.c_contiguous
        assert got.flags.writeable
        assert got.flags.aligned


@pytest.mark.parametrize("name", ["a", "b"])
def test_one_array_keeps_the_block_and_nothing_else(name: str) -> None:
    source = sw.ArraySource({"a": np.arange(4096), "b": np.arange(4096.0)})
    rows = np.arange(4096)
    kept = source.take(rows)[name][100:200]
    looped = next(iter(sw.Loader(source, 4096, shuffle=False)))[name][100:200]
    gc.collect()
    for _ in range(8):  # would be given the same memory again
        source.take(rows[::-1].copy())
        list(sw.Loader(source, 4096, seed=3))
    for part in (kept, looped):
        assert part.tolist() == list(range(100, 200))


def reader_of(source: sw.Source) -> _core.Reader:
    reader = source._reader
    assert reader is not None
    return reader


INT64, FLOAT32 = np.dtype(np.int64), np.dtype(np.float32)


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [("a", INT64, ())],
        [("a", INT64, ()), ("b", FLOAT32, (2,))],
        [("a", INT64, ()), ("b", FLOAT32, (3, 2))],
        [("a", FLOAT32, ()), ("b", FLOAT32, (3,))],
    ],
)
def test_a_layout_of_other_fields_is_refused(fields: list[Any]) -> None:
    source = sw.ArraySource({"a": np.arange(4), "b": np.zeros((4, 3), np.float32)})
    with pytest.raises(ValueError, match="not those of the reader"):
        _core.Layout(reader_of(source), fields)


@pytest.mark.parametrize(
    "rows", [[1, 2], np.arange(4, dtype=np.int32), np.arange(8)[::2], np.zeros((1, 1), np.int64)]
)
def test_rows_of_another_kind_are_refused(rows: Any) -> None:
    layout = _core.Layout(reader_of(sw.ArraySource(np.arange(9))), [("x", INT64, ())])
    with pytest.raises(TypeError, match="contiguous array of int64"):
        layout.take(rows)
    with pytest.raises(TypeError, match="contiguous array of int64"):
        layout.read(rows, {"x": np.zeros(4, np.int64)})


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


OUT: dict[str, Callable[[], Any]] = {
    "another type": lambda: np.zeros((4, 3), np.int32),
    "another shape": lambda: np.zeros((4, 2), np.float32),
    "other axes": lambda: np.zeros(12, np.float32),
    "too few rows": lambda: np.zeros((3, 3), np.float32),
    "other strides": lambda: np.zeros((3, 4), np.float32).T,
    "no writing": lambda: frozen(np.zeros((4, 3), np.float32)),
    "bytes swapped": lambda: np.zeros((4, 3), ">f4"),
    "no array": lambda: [[0.0] * 3] * 4,
}


@pytest.mark.parametrize("wrong", OUT)
def test_out_that_does_not_fit_is_left_alone(wrong: str) -> None:
    source = sw.ArraySource({"a": np.arange(1, 7), "b": np.ones((6, 3), np.float32)})
    first = np.zeros(4, np.int64)
    out = {"a": first, "b": OUT[wrong]()}
    assert source._batch_layout is not None
    assert source._batch_layout.read(ROWS, out) is None
    with pytest.raises((TypeError, ValueError), match=r"out\['b'\]: expected"):
        source.take(ROWS, out)
    assert not first.any()


@pytest.mark.parametrize("wrap", [dict, MappingProxyType])
def test_out_is_filled_and_returned_in_the_order_of_the_fields(
    wrap: Callable[[dict[str, Any]], Mapping[str, Any]],
) -> None:
    source = sw.ArraySource({"a": np.arange(6), "b": values("<f4", (3,))})

    class Mine(np.ndarray[Any, Any]):
        pass

    out = {"b": np.zeros((4, 3), np.float32), "a": np.zeros(4, "q").view(Mine)}
    taken = source.take(ROWS, wrap(out))
    assert list(taken) == ["a", "b"]
    assert all(taken[name] is out[name] for name in out)
    assert taken["a"].tolist() == ROWS.tolist()
    assert taken["b"].tobytes() == source.take(ROWS)["b"].tobytes()


def test_a_batch_of_another_reader_is_refused() -> None:
    source = sw.ArraySource(np.arange(100))
    order, schedule = sw.Shuffle(1).order(100), _core.Schedule(100, 64, 0, 1, False, 0, 0)
    assert isinstance(order, _core.Order)
    blocks = _core.shared_blocks()
    prefetch = _core.Prefetch(reader_of(source), order, schedule, blocks, 1, 2)
    other = _core.Layout(reader_of(sw.ArraySource(np.zeros((2, 9)))), [("x", np.dtype("f8"), (9,))])
    with pytest.raises(ValueError, match="of another reader"):
        prefetch.next(other)


@pytest.mark.parametrize(("threads", "depth"), [(1, 4), (2, 4), (3, 6), (16, 32)])
def test_the_batches_ahead_follow_the_threads(threads: int, depth: int) -> None:
    source = sw.ArraySource(np.arange(100))
    assert sw.Loader(source, 2, threads=threads)._prefetch == depth
    assert sw.Loader(source, 2, threads=threads, prefetch=None)._prefetch == depth
    assert sw.Loader(source, 2, threads=threads, prefetch=3)._prefetch == 3

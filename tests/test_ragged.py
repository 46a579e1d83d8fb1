"""`Ragged`: rows of different lengths in one array."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from stepwell import Field, Ragged

INT16 = Field(np.dtype("i2"), ragged=True)


@pytest.fixture
def ragged() -> Ragged:
    return Ragged(np.arange(10, dtype="i2"), np.array([0, 3, 3, 4, 10]))


def lists(ragged: Ragged) -> list[Any]:
    return [row.tolist() for row in ragged.to_list()]


def test_rows(ragged: Ragged) -> None:
    assert len(ragged) == 4
    assert lists(ragged) == [[0, 1, 2], [], [3], [4, 5, 6, 7, 8, 9]]
    assert ragged.lengths.tolist() == [3, 0, 1, 6]
    assert [row.tolist() for row in ragged] == lists(ragged)
    assert [row.tolist() for row in reversed(ragged)] == lists(ragged)[::-1]


def test_one_row(ragged: Ragged) -> None:
    for i in range(-4, 4):
        assert ragged.row(i).tolist() == ragged[i].tolist() == lists(ragged)[i]


def test_one_row_outside(ragged: Ragged) -> None:
    for i in (4, -5, 10**30):
        with pytest.raises(IndexError):
            ragged[i]
        with pytest.raises(IndexError):
            ragged.row(i)
    wrong: Any = 1.0
    with pytest.raises(TypeError):
        ragged[wrong]


def test_slices(ragged: Ragged) -> None:
    for key in (slice(None), slice(1, 3), slice(None, None, -1), slice(-2, None), slice(9, 20)):
        assert [row.tolist() for row in ragged[key]] == lists(ragged)[key]


def test_rows_are_not_copies(ragged: Ragged) -> None:
    ragged.row(3)[0] = 77
    assert ragged.values[4] == 77


def test_padded(ragged: Ragged) -> None:
    assert ragged.to_padded().tolist() == [
        [0, 1, 2, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
        [3, 0, 0, 0, 0, 0],
        [4, 5, 6, 7, 8, 9],
    ]
    padded = ragged.to_padded(-1)
    assert padded.dtype == np.int16
    assert padded[0].tolist() == [0, 1, 2, -1, -1, -1]


def test_padded_of_items_with_a_shape() -> None:
    values = np.arange(12.0).reshape(6, 2)
    ragged = Ragged(values, np.array([0, 1, 6]))
    padded = ragged.to_padded(np.nan)
    assert padded.shape == (2, 5, 2)
    np.testing.assert_array_equal(padded[1], values[1:])
    np.testing.assert_array_equal(padded[0, :1], values[:1])
    assert np.isnan(padded[0, 1:]).all()


def test_part_of_a_larger_array() -> None:
    # Offsets need not begin at 0, nor end where the values do.
    ragged = Ragged(np.arange(10), np.array([2, 3, 6]))
    assert lists(ragged) == [[2], [3, 4, 5]]
    assert ragged.to_padded(9).tolist() == [[2, 9, 9], [3, 4, 5]]


@given(st.lists(st.lists(st.integers(-(2**15), 2**15 - 1), max_size=9), max_size=9))
def test_round_trip(rows: list[list[int]]) -> None:
    ragged = Ragged.from_list([np.array(row, "i2") for row in rows], INT16)
    assert lists(ragged) == rows
    assert [row.tolist() for row in ragged[:]] == rows
    padded = ragged.to_padded(7)
    assert ragged.values.dtype == padded.dtype == np.int16
    assert padded.shape == (len(rows), max(map(len, rows), default=0))
    for row, line in zip(rows, padded, strict=True):
        assert line[: len(row)].tolist() == row
        assert (line[len(row) :] == 7).all()


def test_from_list_keeps_the_item_s_shape() -> None:
    rows: list[NDArray[Any]] = [np.ones((2, 3)), np.zeros((0, 3)), np.full((1, 3), 5.0)]
    ragged = Ragged.from_list(rows, Field(np.dtype("f8"), (3,), ragged=True))
    assert ragged.values.shape == (3, 3)
    for mine, theirs in zip(ragged, rows, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_pickle_and_repr(ragged: Ragged) -> None:
    assert lists(pickle.loads(pickle.dumps(ragged))) == lists(ragged)
    assert repr(ragged) == "Ragged(4 rows, 10 x int16)"


def test_fields_describe_themselves() -> None:
    assert str(INT16) == "int16[*]"
    assert str(Field(np.dtype("f4"), (2, 3), ragged=True)) == "float32[*, 2, 3]"
    assert str(Field(np.dtype("f4"), (2, 3))) == "float32[2, 3]"
    assert str(Field(np.dtype(">u2"))) == ">u2"
    assert Field(np.dtype("f4"), (2, 3)).row_bytes == 24
    assert Field(np.dtype("f4"), (2, 0)).row_bytes == 0
    assert Field(np.dtype("f4"), (3,)) == Field(np.dtype("<f4"), (3,))
    assert Field(np.dtype("f4")) != Field(np.dtype("f4"), ragged=True)


@pytest.mark.parametrize(("name", "bytes_"), [("f32", "<f4"), ("i64", "<i8"), ("u16", "<u2")])
def test_a_dtype_by_its_bits_is_answered_by_its_bytes(name: str, bytes_: str) -> None:
    with pytest.raises(TypeError, match=f"got '{name}': write '{bytes_}', which counts bytes"):
        Field(name)
    with pytest.raises(TypeError, match=r"expected a dtype of NumPy, got 'f33'$"):
        Field("f33")

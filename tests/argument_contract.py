"""The exam of `Source` itself: every argument of a call, right and wrong.

`Source` checks arguments before a store sees them, so this exam is for engines and not for stores:
a source that the core reads, one that Python fills, ragged fields included (tests/test_source.py),
a map and a stack of views over both kinds (tests/test_views.py). A store that has a `take` of its
own sits it, too. What every store answers is in tests/contract.py.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import DTypeLike

from stepwell import SchemaError, Source
from stepwell.source import Schema
from tests.contract import (
    Expected,
    SourceContract,
    assert_batch,
    buffers,
    pick,
)

ROW_TYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i2", ">i8", ">u8"]


def wrong_buffers(fault: str, schema: Schema, count: int) -> dict[str, Any]:
    """The arrays a take of `count` rows wants, the last of them with a fault."""
    out: dict[str, Any] = dict(buffers(schema, count))
    name = list(schema)[-1]
    right = out.get(name, np.zeros((count, 2), np.uint8))  # ragged: no array is right
    match fault:
        case "dtype":
            out[name] = np.zeros(right.shape, "V3")
        case "byte order":
            swapped = right.dtype.newbyteorder()
            out[name] = np.zeros(right.shape, ">i2" if swapped == right.dtype else swapped)
        case "short":
            out[name] = right[:-1].copy()
        case "long":
            out[name] = np.concatenate([right, right])
        case "another axis":
            out[name] = right[..., None].copy()
        case "read-only":
            right.flags.writeable = False
            out[name] = right
        case "not contiguous":
            out[name] = np.repeat(right, 2, axis=0)[::2]
        case "backwards":
            out[name] = right[::-1]
        case "a list":
            out[name] = right.tolist()
        case "None":
            out[name] = None
        case "missing":
            out.pop(name, None)
            out["other"] = right
        case "unknown":
            out["other"] = right
    return out


class ArgumentContract(SourceContract):
    """An engine sits the exam of a store, too."""

    # Rows.

    @given(data=st.data())
    def test_take_by_mask(self, source: Source, expected: Expected, data: st.DataObject) -> None:
        marks = st.lists(st.booleans(), min_size=len(source), max_size=len(source))
        mask = np.array(data.draw(marks))
        assert_batch(source.take(mask), pick(expected, mask))

    @pytest.mark.parametrize("dtype", ROW_TYPES)
    def test_take_any_whole_numbers(
        self, source: Source, expected: Expected, dtype: DTypeLike
    ) -> None:
        rows = np.array([3, len(source) - 1, 0, 3, 7])
        assert_batch(source.take(rows.astype(dtype)), pick(expected, rows))

    def test_take_any_array_of_numbers(self, source: Source, expected: Expected) -> None:
        rows = np.array([9, 2, 2, 11, len(source) - 1, 0], np.int64)
        frozen = rows.copy()
        frozen.flags.writeable = False
        unaligned = np.ndarray(rows.shape, np.int64, bytearray(rows.nbytes + 1), 1)
        unaligned[...] = rows
        forms = (rows, frozen, unaligned, rows.tolist(), tuple(rows), rows.astype(object))
        for form in forms:
            assert_batch(source.take(form), pick(expected, rows))
        assert_batch(source.take(rows[::-1]), pick(expected, rows[::-1]))
        assert_batch(source.take(np.repeat(rows, 3)[::3]), pick(expected, rows))
        assert_batch(source.take(range(5, 15, 3)), pick(expected, [5, 8, 11, 14]))

    @pytest.mark.parametrize("rows", [(), np.empty(0, np.int64), np.empty(0, np.uint8)])
    def test_take_an_empty_array(self, source: Source, expected: Expected, rows: Any) -> None:
        assert_batch(source.take(rows), pick(expected, slice(0, 0)))

    @pytest.mark.parametrize("row", [-1, -(2**63), "length", 10**12, 2**63, 2**64 - 1, 10**30])
    @pytest.mark.parametrize("place", [0, 1, -1])
    def test_take_names_the_bad_row(self, source: Source, row: int | str, place: int) -> None:
        bad = len(source) if isinstance(row, str) else row
        rows = [0, 1, 2, 3]
        rows.insert(place % 5, bad)
        with pytest.raises(IndexError, match=rf"row {bad} .* {len(source)} rows"):
            source.take(rows)
        with pytest.raises(IndexError, match=rf"row {bad} "):
            source.take(np.array([*rows, bad + 1 if bad > 0 else bad - 1], object))
        if 0 < bad < 2**64:
            with pytest.raises(IndexError, match=rf"row {bad} "):
                source.take(np.array(rows, np.uint64))

    def test_take_names_a_bad_row_far_behind(self, source: Source) -> None:
        rows = np.zeros(50_000, np.int64)
        rows[-2:] = len(source), -1
        with pytest.raises(IndexError, match=f"row {len(source)} "):
            source.take(rows)

    @pytest.mark.parametrize(
        "rows",
        [[0.0], [1.5], np.array([0], np.float32), [1 + 0j], ["0"], [b"0"], [None], [0, None]],
        ids=repr,
    )
    def test_take_wants_whole_numbers(self, source: Source, rows: Any) -> None:
        with pytest.raises(TypeError):
            source.take(rows)

    def test_take_wants_a_whole_mask(self, source: Source) -> None:
        for length in (0, 1, len(source) - 1, len(source) + 1):
            with pytest.raises(IndexError, match=f"mask of {len(source)} rows, got {length}"):
                source.take(np.ones(length, bool))

    @pytest.mark.parametrize("rows", [0, np.int64(3), [[0, 1]], np.zeros((1, 0), np.int64), None])
    def test_take_wants_one_axis(self, source: Source, rows: Any) -> None:
        with pytest.raises(ValueError, match="one-dimensional"):
            source.take(rows)

    # The caller's buffers.

    def test_out_may_be_in_any_order(self, source: Source, expected: Expected) -> None:
        out = buffers(source.schema, 2)
        swapped = dict(reversed(out.items()))
        assert_batch(source.take([1, 4], swapped), pick(expected, [1, 4]))

    @pytest.mark.parametrize(
        "fault",
        [
            *("dtype", "byte order", "short", "long", "another axis", "read-only"),
            *("not contiguous", "backwards", "a list", "None", "missing", "unknown"),
        ],
    )
    def test_out_with_a_fault(self, source: Source, fault: str) -> None:
        out = wrong_buffers(fault, source.schema, 4)
        arrays = [array for array in out.values() if isinstance(array, np.ndarray)]
        before = [array.tobytes() for array in arrays]
        with pytest.raises((SchemaError, TypeError, ValueError), match="out"):
            source.take([0, 1, 2, 3], out)
        assert [array.tobytes() for array in arrays] == before

    def test_out_must_be_a_dict(self, source: Source) -> None:
        wrong: Any = [*buffers(source.schema, 1).values()]
        with pytest.raises(TypeError, match="out: expected a dict"):
            source.take([0], wrong)

    # Indexing.

    def test_one_row_outside(self, source: Source) -> None:
        for i in (len(source), -len(source) - 1, 10**30, -(10**30)):
            with pytest.raises(IndexError, match=f"row {i} "):
                source[i]

    @given(data=st.data())
    def test_slices(self, source: Source, expected: Expected, data: st.DataObject) -> None:
        key = data.draw(st.slices(len(source)))
        assert_batch(source[key], pick(expected, key))

    def test_arrays_as_index(self, source: Source, expected: Expected) -> None:
        mask = np.arange(len(source)) % 3 == 0
        for key in ([3, 1, 3], np.array([3, 1, 3], np.uint8), mask, mask.tolist()):
            assert_batch(source[key], pick(expected, key))

    @pytest.mark.parametrize("key", [1.5, None, np.array(1.5), (0, 1.0)], ids=repr)
    def test_nothing_else_as_index(self, source: Source, key: Any) -> None:
        with pytest.raises((TypeError, ValueError)):
            source[key]

    # Views.

    def test_select_mask(self, source: Source, expected: Expected) -> None:
        mask = np.arange(len(source)) % 3 == 1
        assert_batch(source.select(mask)[:], pick(expected, mask))

    def test_select_keeps_what_it_was_given(self, source: Source, expected: Expected) -> None:
        rows = np.array([3, 1, 2])
        view = source.select(rows)
        rows[:] = 0
        assert_batch(view[:], pick(expected, [3, 1, 2]))

    def test_select_names_the_bad_row(self, source: Source) -> None:
        for bad in (-1, len(source), 10**30):
            with pytest.raises(IndexError, match=f"row {bad} "):
                source.select([0, bad])
        with pytest.raises(IndexError, match="row 3 is outside a source of 3 rows"):
            source.select([0, 1, 2]).take([3])

    def test_columns_names_the_unknown(self, source: Source) -> None:
        with pytest.raises(KeyError, match="no field 'nothing'"):
            source.columns(["nothing"])

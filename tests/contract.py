"""The exam every source sits.

    class TestShards(SourceContract):
        @pytest.fixture
        def expected(self) -> Expected: ...              # the rows, as NumPy would hold them
        @pytest.fixture
        def source(self, expected: Expected) -> Source: ...

A new promise is added here once and holds for every store and every view: the right rows in the
right order, the caller's buffers filled, memory, threads, fork, spawn, pickling, `close`, and views
over it. What `Source` checks before a store is asked (odd rows, wrong buffers, anything else as an
index) is in tests/argument_contract.py, once per engine. The rows number between 20 and 127, so
that even int8 can name each of them.
"""

import html
import pickle
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from stepwell import Batch, Ragged, SchemaError, Source
from stepwell.source import Schema
from stepwell.store import Store
from tests import children, scaled

Values = NDArray[Any] | list[NDArray[Any]]
Expected = dict[str, Values]
"""One array per field; a ragged field is a list with one array per row."""

FEW = settings(max_examples=scaled(25, smallest=10))
"""Every store sits the exam, so each draws a few examples."""


# What NumPy makes of the same rows.


def size(expected: Expected) -> int:
    return len(next(iter(expected.values())))


def pick(expected: Expected, rows: Any) -> Expected:
    """The rows by NumPy's own indexing."""
    places = np.arange(size(expected))[rows]
    return {
        name: [values[i] for i in places] if isinstance(values, list) else values[places]
        for name, values in expected.items()
    }


def join(*parts: Expected) -> Expected:
    """The rows of each part in turn."""
    joined: Expected = {}
    for name, values in parts[0].items():
        columns = [part[name] for part in parts]
        if isinstance(values, list):
            joined[name] = [row for column in columns for row in column]
        else:
            joined[name] = np.concatenate(columns, dtype=values.dtype)
    return joined


def windows(expected: Expected, runs: Sequence[range], length: int, stride: int) -> Expected:
    """The windows of each run in turn."""
    starts = [i for run in runs for i in run[::stride] if i + length <= run.stop]
    places = np.array(starts, np.int64)[:, None] + np.arange(length)
    return {name: np.asarray(values)[places] for name, values in expected.items()}


def assert_array(got: NDArray[Any], want: NDArray[Any]) -> None:
    """The same type, shape and bytes; bytes between the fields of a structure do not count."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.dtype.names:
        for name in want.dtype.names:
            assert_array(got[name], want[name])
    elif got.tobytes() != want.tobytes():  # NaN, -0.0 and NaT included
        np.testing.assert_array_equal(got, want)
        raise AssertionError(f"equal but not the same bytes: {got!r}, {want!r}")


def assert_batch(got: Batch, want: Expected) -> None:
    assert list(got) == list(want)
    for name, values in want.items():
        if isinstance(values, list):
            assert isinstance(got[name], Ragged)
            assert got[name].offsets.dtype == np.int64
            assert got[name].lengths.tolist() == [len(row) for row in values]
            for mine, theirs in zip(got[name][:1], values[:1], strict=True):
                assert_value(mine, theirs, got[name].kind)
            if values:  # all rows at once: there are tests with a hundred thousand of them
                begin, end = got[name].offsets[[0, -1]]
                joined = np.concatenate(values, dtype=values[0].dtype)
                assert_array(got[name].values[begin:end], joined)
        else:
            assert type(got[name]) is np.ndarray
            assert_array(got[name], values)


def assert_row(got: dict[str, Any], want: Expected, row: int) -> None:
    """One row, as `source[row]` and iteration give it."""
    assert list(got) == list(want)
    for name, values in want.items():
        assert_value(got[name], np.asarray(values[row]))


def assert_value(got: Any, want: NDArray[Any], kind: str | None = None) -> None:
    """A row of a field: an array, or the text or bytes that the array holds."""
    if isinstance(got, str | bytes) and want.dtype.kind not in "US":  # NumPy's own text is a value
        assert kind in (None, type(got).__name__)
        got = np.frombuffer(got.encode() if isinstance(got, str) else got, np.uint8)
    assert_array(np.asarray(got), want)


# Buffers a caller might bring.


def buffers(schema: Schema, count: int) -> dict[str, NDArray[Any]]:
    """Arrays for every field of fixed shape, filled with a pattern."""
    made = {}
    for name, field in schema.items():
        if not field.ragged:
            memory = np.full(count * field.row_bytes, 0xA5, np.uint8)
            made[name] = np.ndarray((count, *field.shape), field.dtype, memory)
    return made


def assert_untouched(out: dict[str, NDArray[Any]]) -> None:
    for array in out.values():
        assert set(array.tobytes()) <= {0xA5}


class SourceContract:
    """Subclasses provide two fixtures: a source, and the rows it was made from."""

    @pytest.fixture
    def expected(self) -> Expected:
        pytest.fail("an exam needs a fixture `expected`")

    @pytest.fixture
    def source(self, expected: Expected) -> Source:
        pytest.fail("an exam needs a fixture `source`")

    def runs(self, expected: Expected) -> list[range]:
        """The rows between which windows may reach."""
        return [range(size(expected))]

    # What it is.

    def test_is_a_source_of_the_rows(self, source: Source, expected: Expected) -> None:
        assert isinstance(source, Source)
        assert len(source) == size(expected)
        assert 20 <= len(source) <= 127  # or the exam is not one
        assert_batch(source.take(np.arange(len(source))), expected)

    def test_schema_describes_every_field(self, source: Source, expected: Expected) -> None:
        assert list(source.schema) == list(expected)
        for name, values in expected.items():
            field = source.schema[name]
            assert field.ragged == isinstance(values, list)
            example = values[0] if isinstance(values, list) else values
            assert field.dtype == example.dtype
            assert field.shape == example.shape[1:]

    def test_nbytes_counts_fixed_fields(self, source: Source, expected: Expected) -> None:
        fixed = [values for values in expected.values() if not isinstance(values, list)]
        assert source.nbytes == sum(values.nbytes for values in fixed)

    def test_repr_says_what_there_is(self, source: Source) -> None:
        text = repr(source)
        assert text.startswith(f"{type(source).__name__}({len(source)} rows, ")
        size = source.describe().bytes if isinstance(source, Store) else source.nbytes
        assert f"{size:,} bytes" in text
        for name, field in source.schema.items():
            assert f"{name}: {field}" in text
        if source.path is not None:
            assert repr(str(source.path)) in text
        page = source._repr_html_()
        assert f'<td style="text-align: left">{len(source):,}</td>' in page
        for name, field in source.schema.items():
            assert html.escape(f"{name}: {field}") in page

    # Take.

    @FEW
    @given(data=st.data())
    def test_take_is_numpy_indexing(
        self, source: Source, expected: Expected, data: st.DataObject
    ) -> None:
        rows = data.draw(st.lists(st.integers(0, len(source) - 1), max_size=64))
        assert_batch(source.take(rows), pick(expected, np.array(rows, np.int64)))

    def test_take_nothing(self, source: Source, expected: Expected) -> None:
        for out in (None, buffers(source.schema, 0)):
            assert_batch(source.take([], out), pick(expected, slice(0, 0)))

    def test_take_large_batches(self, source: Source, expected: Expected) -> None:
        # Large enough to be shared among threads, in sizes that do not divide evenly.
        random = np.random.default_rng(1)
        for count in (1023, 4096, scaled(20_011)):
            rows = random.integers(0, len(source), count)
            for out in (None, buffers(source.schema, count)):
                assert_batch(source.take(rows, out), pick(expected, rows))

    # The caller's buffers.

    def test_out_is_filled_and_returned(self, source: Source, expected: Expected) -> None:
        rows = [5, 0, 5, len(source) - 1]
        out = buffers(source.schema, len(rows))
        batch = source.take(rows, out=out)
        assert_batch(batch, pick(expected, rows))
        for name, array in out.items():
            assert batch[name] is array

    def test_out_may_be_any_memory(self, source: Source, expected: Expected) -> None:
        # Inside a larger buffer, at an odd address: shared memory looks like this.
        out = {}
        for name, array in buffers(source.schema, 3).items():
            memory = bytearray(array.nbytes + 8)
            out[name] = np.ndarray(array.shape, array.dtype, memory, offset=3)
        assert_batch(source.take([2, 2, 6], out), pick(expected, [2, 2, 6]))

    @pytest.mark.parametrize("count", [3, 20_000])
    def test_a_bad_row_leaves_out_untouched(self, source: Source, count: int) -> None:
        rows = np.zeros(count, np.int64)
        rows[-1] = len(source)
        out = buffers(source.schema, count)
        with pytest.raises(IndexError, match=f"row {len(source)} "):
            source.take(rows, out)
        assert_untouched(out)

    # Indexing and iteration.

    def test_one_row(self, source: Source, expected: Expected) -> None:
        last = len(source) - 1
        for i in (0, 1, last, -1, -len(source), np.int8(3), np.uint64(3), np.array(3)):
            assert_row(source[i], expected, int(i) % len(source))

    def test_slices_reach_beyond_the_ends(self, source: Source, expected: Expected) -> None:
        for key in (slice(None), slice(-(10**30), 10**30), slice(10**30, None), slice(5, 2)):
            assert_batch(source[key], pick(expected, key))

    def test_a_field_is_a_column(self, source: Source, expected: Expected) -> None:
        for name, values in expected.items():
            assert name in source
            column = source[name]
            assert len(column) == len(source)
            assert_value(column[7], np.asarray(values[7]))
            assert_batch({name: column.take([9, 1])[name]}, pick({name: values}, [9, 1]))
            for mine, theirs in zip(column[2:5], values[2:5], strict=True):
                assert_value(mine, np.asarray(theirs))
            for mine, row in zip(column[[1, 9]], (1, 9), strict=True):
                assert_value(mine, np.asarray(values[row]))
        assert "no such field" not in source
        with pytest.raises(KeyError, match="no field 'no such field'"):
            source["no such field"]

    def test_iteration(self, source: Source, expected: Expected) -> None:
        for _ in range(2):
            rows = list(source)
            assert len(rows) == len(source)
            for i, row in enumerate(rows):
                assert_row(row, expected, i)

    def test_getitems(self, source: Source, expected: Expected) -> None:
        rows = source.__getitems__([7, 7, 0])
        assert isinstance(rows, list)
        for row, i in zip(rows, [7, 7, 0], strict=True):
            assert_row(row, expected, i)

    # Memory.

    def test_part_of_a_batch_keeps_it(self, source: Source, expected: Expected) -> None:
        parts = []
        for i in range(50):
            rows = (np.arange(40) * 7 + i) % len(source)
            batch = source.take(rows)
            name = list(batch)[i % len(batch)]
            want = pick(expected, rows[11:13])[name]
            parts.append((batch[name][11:13], want))
            del batch
            source.take(rows[::-1])  # would land in the same memory, were it free
        for part, want in parts:
            for mine, theirs in zip(part, want, strict=True):
                assert_value(mine, np.asarray(theirs))

    def test_batches_belong_to_the_caller(self, source: Source, expected: Expected) -> None:
        batch = source.take([4, 4])
        for values in batch.values():
            array = values.values if isinstance(values, Ragged) else values
            array[...] = np.zeros((), array.dtype)
        assert_batch(source.take([4, 4]), pick(expected, [4, 4]))

    # Threads and processes.

    def test_threads(self, source: Source, expected: Expected) -> None:
        def work(seed: int) -> None:
            random = np.random.default_rng(seed)
            for _ in range(scaled(8, smallest=2)):
                rows = random.integers(0, len(source), random.integers(1, 3000))
                assert_batch(source.take(rows), pick(expected, rows))

        children.at_once(*(partial(work, seed) for seed in range(8)))

    def test_after_fork(self, source: Source, expected: Expected) -> None:
        rows = np.random.default_rng(4).integers(0, len(source), 5000)
        before = source.take(rows)  # the parent's threads and memory are in use by now
        assert_batch(children.in_fork(lambda: source.take(rows)), pick(expected, rows))
        assert_batch(before, pick(expected, rows))
        assert_batch(source.take(rows), pick(expected, rows))

    def test_in_another_process(
        self, source: Source, expected: Expected, child: ProcessPoolExecutor
    ) -> None:
        rows = np.random.default_rng(5).integers(0, len(source), 5000)
        batch = child.submit(children.read, source, rows).result(60)
        assert_batch(batch, pick(expected, rows))
        assert child.submit(children.fingerprint, source).result(60) == source.fingerprint

    def test_pickle(self, source: Source, expected: Expected) -> None:
        for _ in range(2):  # unread, then read
            copy = pickle.loads(pickle.dumps(source))
            assert type(copy) is type(source)
            assert copy.schema == source.schema
            assert repr(copy) == repr(source)
            assert_batch(copy[:], expected)
            assert_batch(source[:], expected)

    def test_with_statement(self, source: Source, expected: Expected) -> None:
        with source as entered:
            assert entered is source
            batch = source.take([2, 3])
        assert_batch(batch, pick(expected, [2, 3]))
        source.close()  # again: nothing to do

    # Identity.

    def test_fingerprint(self, source: Source) -> None:
        assert source.fingerprint == source.fingerprint
        assert pickle.loads(pickle.dumps(source)).fingerprint == source.fingerprint
        others = {
            source.select(slice(1, None)).fingerprint,
            source.select(slice(None, -1)).fingerprint,
            source.select(slice(None, None, -1)).fingerprint,
            source.concat(source).fingerprint,
        }
        assert len(others) == 4
        assert source.fingerprint not in others

    # Views of it.

    def test_columns(self, source: Source, expected: Expected) -> None:
        names = list(expected)[::-1]
        for count in range(1, len(names) + 1):
            view = source.columns(names[:count])
            assert list(view.schema) == names[:count]
            want = {name: expected[name] for name in names[:count]}
            assert_batch(view.take([8, 1]), pick(want, [8, 1]))

    def test_concat(self, source: Source, expected: Expected) -> None:
        part = source.select(slice(5, 0, -2))
        view = source.concat(part, source.select([]), source)
        want = join(expected, pick(expected, slice(5, 0, -2)), expected)
        rows = np.random.default_rng(6).permutation(size(want))
        assert len(view) == size(want)
        assert_batch(view.take(rows), pick(want, rows))
        assert_batch(view[:], want)

    def test_map(self, source: Source, expected: Expected) -> None:
        view = source.map(_add_position)
        want = {**expected, "position": np.arange(len(source))}
        assert list(view.schema) == [*source.schema, "position"]
        batch = view.take([3, 0, 3])
        assert batch.pop("position").tolist() == [0, 1, 2]
        assert_batch(batch, pick({name: want[name] for name in expected}, [3, 0, 3]))

    def test_windows(self, source: Source, expected: Expected) -> None:
        if any(field.ragged for field in source.schema.values()):
            with pytest.raises(SchemaError, match="fixed shape"):
                source.windows(3)
            return
        for length, stride in ((1, 1), (3, 1), (4, 3), (2, 5), (len(source), 1)):
            view = source.windows(length, stride)
            want = windows(expected, self.runs(expected), length, stride)
            assert len(view) == size(want)
            assert_batch(view[:], want)
            rows = np.arange(len(view))[::-2]
            assert_batch(view.take(rows, buffers(view.schema, len(rows))), pick(want, rows))
        assert len(source.windows(len(source) + 1)) == 0
        assert_batch(source.windows(2, 1).take([]), windows(expected, [], 2, 1))

    def test_statistics(self, source: Source, expected: Expected) -> None:
        found = source.statistics()
        numbers = {n: np.asarray(v) for n, v in expected.items() if not isinstance(v, list)}
        assert list(found) == [n for n, v in numbers.items() if v.dtype.kind in "biuf"]
        for name, each in found.items():
            values, limits = numbers[name], (each.min, each.max)
            for mine, theirs in zip(limits, (values.min(0), values.max(0)), strict=True):
                np.testing.assert_array_equal(mine, theirs)
            with np.errstate(all="ignore"):
                np.testing.assert_allclose(each.mean, values.mean(0, np.float64), rtol=1e-6)
        assert source.statistics().keys() == found.keys()

    @FEW
    @given(data=st.data())
    def test_views_of_views(self, source: Source, expected: Expected, data: st.DataObject) -> None:
        view, want = source, expected
        for _ in range(data.draw(st.integers(1, 5))):
            view, want = a_view(view, want, data)
        rows = np.arange(len(view))[::-1]
        assert_batch(view.take(rows), pick(want, rows))
        assert_batch(view.take(rows, buffers(view.schema, len(rows))), pick(want, rows))


def a_view(source: Source, expected: Expected, data: st.DataObject) -> tuple[Source, Expected]:
    """Any view, and the rows it should have."""
    match data.draw(st.sampled_from(["select", "slice", "columns", "concat", "map"])):
        case "select":
            rows = np.array(data.draw(st.lists(st.integers(0, 2**40), max_size=200)), np.int64)
            rows = rows % len(source) if len(source) else rows[:0]
            return source.select(rows), pick(expected, rows)
        case "slice":
            key = data.draw(st.slices(len(source)))
            return source.select(key), pick(expected, key)
        case "columns":
            names = data.draw(st.permutations(list(expected)))
            names = names[: data.draw(st.integers(1, len(names)))]
            return source.columns(names), {name: expected[name] for name in names}
        case "concat":
            view = source.concat(source.select(slice(0, 2)))
            return view, join(expected, pick(expected, slice(0, 2)))
        case _:
            return source.map(_unchanged), expected


def _add_position(batch: Batch) -> Batch:
    count = len(next(iter(batch.values())))
    return {**batch, "position": np.arange(count)}


def _unchanged(batch: Batch) -> Batch:
    return batch

"""Views: sources made of sources, read by the core or by Python."""

import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from stepwell import ArraySource, Batch, Field, Ragged, SchemaError, Source, _core
from stepwell.views import Join
from tests.argument_contract import ArgumentContract
from tests.arrays import STEP, random_array
from tests.contract import Expected, SourceContract, assert_batch, join, pick, windows
from tests.plain import PlainSource

Store = Callable[[Expected], Source]
WORDS = Field(np.dtype("u1"), ragged=True)


def values(count: int, seed: int = 0) -> Expected:
    array = random_array(STEP, count, seed)
    return {name: array[name].copy() for name in STEP.names or ()}


def doubled(batch: Batch) -> Batch:
    return {"move": batch["move"] * 2, "sum": batch["board"].astype("f8") + batch["move"]}


def in_words(batch: Batch) -> Batch:
    """A field of rows that have different lengths, and one of fixed shape."""
    words = [np.frombuffer(b"step" * (int(move) % 4), "u1") for move in batch["move"]]
    return {"words": Ragged.from_list(words, WORDS), "ev": batch["ev"]}


# The exam, for views of a store that the core reads and of one that Python reads.


class ViewContract(SourceContract):
    @pytest.fixture(params=[ArraySource, PlainSource], ids=["native", "python"])
    def store(self, request: pytest.FixtureRequest) -> Store:
        store: Store = request.param
        return store


CHOSEN = np.random.default_rng(0).integers(0, 40, 100)


def spelled() -> Expected:
    made = in_words(values(60))
    return {"words": made["words"].to_list(), "ev": made["ev"]}


def followed(rows: Expected) -> Expected:
    """Steps of one run, and what was seen after each; nothing after the last."""
    seen = np.asarray(rows["ev"])
    after = np.concatenate([seen[1:], np.zeros_like(seen[:1])])
    return {**rows, "next_ev": after, "terminated": np.arange(len(seen)) == len(seen) - 1}


def padded(rows: Expected, length: int, stride: int) -> Expected:
    """Windows with zeros behind the last row, and the mask of those that are rows."""
    count = len(rows["ev"])
    places = np.arange(0, count, stride)[:, None] + np.arange(length)
    made: Expected = {}
    for name, column in rows.items():
        more = np.zeros((length, *np.shape(column)[1:]), column[0].dtype)
        made[name] = np.concatenate([np.asarray(column), more])[places]
    return {**made, "mask": places < count}


CASES: dict[str, tuple[Callable[[Store], Source], Callable[[], Expected]]] = {
    # a view of a store, and the rows that it has
    "select": (lambda s: s(values(40)).select(CHOSEN), lambda: pick(values(40), CHOSEN)),
    "slice": (
        lambda s: s(values(200)).select(slice(190, 3, -3)),
        lambda: pick(values(200), slice(190, 3, -3)),
    ),
    "columns": (
        lambda s: s(values(50)).columns(["done", "board"]),
        lambda: {name: values(50)[name] for name in ("done", "board")},
    ),
    "map to ragged": (lambda s: s(values(60)).map(in_words), spelled),
    "windows": (
        lambda s: s(values(90)).windows(5, 2),
        lambda: windows(values(90), [range(90)], 5, 2),
    ),
    "padded windows of transitions": (
        lambda s: (
            s(values(90)).transitions(observation="ev", terminated=True).windows(5, 3, pad=True)
        ),
        lambda: padded(followed(values(90)), 5, 3),
    ),
    "join": (
        lambda s: Join(
            {
                "step": s(values(50)),
                "index": ArraySource(np.arange(50)),
                "ev": s(values(50, 1)).columns(["ev"]),
            }
        ),
        lambda: {
            **{f"step.{name}": column for name, column in values(50).items()},
            "index": np.arange(50),
            "ev": values(50, 1)["ev"],
        },
    ),
}


@pytest.mark.parametrize("name", CASES)
class TestViews(ViewContract):
    @pytest.fixture
    def expected(self, name: str) -> Expected:
        return CASES[name][1]()

    @pytest.fixture
    def source(self, store: Store, name: str) -> Source:
        return CASES[name][0](store)


class TestConcat(ViewContract):
    def runs(self, expected: Expected) -> list[range]:
        return [range(30), range(30, 31), range(31, 31), range(31, 100)]

    @pytest.fixture
    def expected(self) -> Expected:
        return join(values(30), values(1, 1), values(69, 2))

    @pytest.fixture
    def source(self, store: Store) -> Source:
        return store(values(30)).concat(store(values(1, 1)), store(values(0)), store(values(69, 2)))


class TestConcatOfBothKinds(TestConcat):
    @pytest.fixture
    def source(self) -> Source:
        native: Store = ArraySource  # type: ignore[assignment]
        parts = native(values(1, 1)), PlainSource(values(0)), native(values(69, 2))
        return PlainSource(values(30)).concat(*parts)


class TestMap(ViewContract, ArgumentContract):
    """The one view that has a `take` of its own."""

    @pytest.fixture
    def expected(self) -> Expected:
        return dict(doubled(values(60)))

    @pytest.fixture
    def source(self, store: Store) -> Source:
        return store(values(60)).map(doubled)


class TestNested(ViewContract, ArgumentContract):
    """A stack of views is an engine of its own: each view turns its rows into those below."""

    def runs(self, expected: Expected) -> list[range]:
        return [range(25), range(25, 35)]

    @pytest.fixture
    def expected(self) -> Expected:
        both = pick(join(values(40), values(70, 1)), slice(89, 19, -2))
        return {name: both[name] for name in ("move", "ev")}

    @pytest.fixture
    def source(self, store: Store) -> Source:
        both = store(values(40)).concat(store(values(70, 1)).select(slice(None)))
        # Backwards: rows 89, 87, … 41 of the second part, then 39, 37, … 21 of the first.
        return both.select(slice(89, 19, -2)).columns(["move", "ev"])

    def test_runs(self, source: Source, expected: Expected) -> None:
        starts, counts = source._runs()
        assert starts.tolist() == [0, 25]
        assert counts.tolist() == [25, 10]


# Windows stay inside runs, whatever was done to the rows before.


def stretches(run_of: NDArray[np.int64]) -> list[range]:
    """Neighbouring positions with the same run."""
    edges = [0, *(np.flatnonzero(np.diff(run_of)) + 1).tolist(), len(run_of)]
    return [range(a, b) for a, b in pairwise(edges)]


@given(data=st.data())
def test_windows_never_leave_a_run(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=6))
    total = sum(lengths)
    numbers = np.arange(total)
    parts = np.split(numbers, np.cumsum(lengths)[:-1])
    source: Source = ArraySource(parts[0]).concat(*map(ArraySource, parts[1:]))
    run_of = np.repeat(np.arange(len(lengths)), lengths)  # of each row of the view
    rows = numbers
    for _ in range(data.draw(st.integers(0, 3))):
        kind = data.draw(st.sampled_from(["slice", "rows", "columns", "map", "join"]))
        if kind == "slice":
            key: Any = data.draw(st.slices(len(rows)))
            source, rows, run_of = source.select(key), rows[key], run_of[key]
        elif kind == "rows" and len(rows):
            key = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=30))
            chosen = np.array(key, np.int64)
            source, rows = source.select(key), rows[chosen]
            # A run that is left and entered again is two: what was between may be dropped later.
            run_of = np.cumsum(np.diff(run_of[chosen], prepend=-1) != 0)
        elif kind == "columns":
            source = source.columns(["data"])
        elif kind == "map":
            source = source.map(dict)
        elif kind == "join":
            source = Join({"data": source})
    length, stride = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 4)))
    want = windows({"data": rows}, stretches(run_of), length, stride)
    assert_batch(source.windows(length, stride)[:], want)


def test_windows_of_windows() -> None:
    source = ArraySource(np.arange(5)).concat(ArraySource(np.arange(10, 14)))
    pairs = source.windows(2).windows(2, 2)
    assert pairs[:]["data"].tolist() == [
        [[0, 1], [1, 2]],
        [[2, 3], [3, 4]],
        [[10, 11], [11, 12]],
    ]


def test_windows_of_joined_sources_end_where_any_part_does() -> None:
    left = ArraySource(np.arange(4)).concat(ArraySource(np.arange(4, 9)))
    right = ArraySource(np.arange(7)).concat(ArraySource(np.arange(7, 9)))
    view = Join({"left": left, "right": right}).windows(2)
    assert view[:]["left"].tolist() == [[0, 1], [1, 2], [2, 3], [4, 5], [5, 6], [7, 8]]


# Select.


def test_slices_of_endless_sources_store_nothing() -> None:
    source = ArraySource(np.broadcast_to(np.uint8(7), (2**62,)))
    view = source.select(slice(None, None, -1)).select(slice(5, -5, 3)).concat(source.select([0]))
    assert len(view) == (2**62 - 10 + 2) // 3 + 1
    assert view.take([0, len(view) - 1])["data"].tolist() == [7, 7]
    assert len(pickle.dumps(source.select(slice(1, 5)).select(slice(1, 2))._rows)) < 200
    with pytest.raises(IndexError, match=f"row {len(view)} "):
        view.take([len(view)])


@pytest.mark.parametrize("step", [2**63, -(2**63), 10**30, -(10**30)])
def test_slices_with_huge_steps(step: int) -> None:
    view = ArraySource(np.arange(10)).select(slice(None, None, step))
    assert view[:]["data"].tolist() == list(range(10))[::step]
    assert len(view.windows(2)) == 0
    with pytest.raises(ValueError, match="zero"):
        view.select(slice(None, None, 0))


def test_views_of_files_pickle_small(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", random_array(STEP, 10_000))
    source = ArraySource(tmp_path / "a.npy", memory="map")
    views = [
        source.select(slice(None, None, -1)),
        source.columns(["ev"]),
        source.windows(3),
        source.concat(source),
        Join({"a": source, "b": source}),
        source.map(doubled),
    ]
    for view in views:
        assert len(pickle.dumps(view)) < 800


# Columns.


def test_one_column_by_its_name() -> None:
    view = ArraySource({"ab": np.arange(3), "b": np.arange(3)}).columns("ab")
    assert list(view.schema) == ["ab"]


# Map.


def test_map_is_given_just_the_rows_asked_for() -> None:
    asked: list[list[int]] = []

    def note(batch: Batch) -> Batch:
        asked.append(batch["data"].tolist())
        return batch

    view = ArraySource(np.arange(10)).map(note)
    asked.clear()
    view.take([3, 1, 3])
    view[2]
    view[4:6]
    assert asked == [[3, 1, 3], [2], [4, 5]]


def test_map_of_changing_shape() -> None:
    # Padding to the longest row of a batch gives another shape each time: fine, but not
    # into buffers made for the first.
    source = PlainSource({"words": [np.arange(n) for n in range(1, 9)]})
    view = source.map(lambda batch: {"padded": batch["words"].to_padded()})
    assert view.take([0, 4])["padded"].shape == (2, 5)
    out = {"padded": np.zeros((2, 1), np.int64)}
    with pytest.raises(SchemaError, match=r"expected \{padded: int64\[1\]\}, got .*\[5\]"):
        view.take([0, 4], out)
    assert (out["padded"] == 0).all()
    assert view.take([0, 0], out)["padded"] is out["padded"]


def test_map_of_no_rows() -> None:
    view = ArraySource(np.empty((0, 3))).map(lambda batch: {"x": batch["data"].sum(axis=1)})
    assert len(view) == 0
    assert str(view.schema["x"]) == "float64"


# What no view can be made of.

FIVE = ArraySource(np.arange(5))
TWO = ArraySource({"a": np.arange(3), "b": np.arange(3)})
ENDLESS = ArraySource(np.broadcast_to(np.uint8(7), (2**62,)))


def two(**fields: Any) -> Source:
    return TWO.concat(ArraySource(fields))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        *(
            (
                lambda n=n, s=s: FIVE.windows(*([n] if s == "length" else [2, n])),
                ValueError,
                f"{s} must be at least 1 .*got {n}",
            )
            for n in (0, -1, 2**63, 10**30)
            for s in ("length", "stride")
        ),
        (lambda: FIVE.windows(2.5), TypeError, "float"),  # type: ignore[arg-type]
        (lambda: FIVE.windows(2**61).take([]), ValueError, "too large for memory"),
        (lambda: ENDLESS.concat(ENDLESS), ValueError, r"more than 2\*\*63 rows"),
        (lambda: FIVE.select([0.5]), TypeError, "whole numbers"),
        (lambda: FIVE.select([[0]]), ValueError, "one-dimensional"),
        (lambda: FIVE.select(3), ValueError, "one-dimensional"),
        (lambda: FIVE.select([True, False]), IndexError, "mask of 5 rows, got 2"),
        (lambda: TWO.columns([]), ValueError, "one or more different fields"),
        (lambda: TWO.columns(["a", "a"]), ValueError, "one or more different fields"),
        *(
            (call, SchemaError, r"part 1: expected fields \{a: int64, b: int64\}")
            for call in (
                lambda: two(a=np.arange(3)),
                lambda: two(a=np.arange(3), c=np.arange(3)),
                lambda: two(b=np.arange(3), a=np.arange(3)),
                lambda: two(a=np.arange(3), b=np.arange(3.0)),
                lambda: two(a=np.arange(3), b=np.zeros((3, 1), np.int64)),
            )
        ),
        *(
            (lambda fn=fn: FIVE.map(fn), error, message)
            for fn, error, message in (
                (lambda batch: None, TypeError, "expected a dict of arrays"),
                (lambda batch: batch["data"], TypeError, "expected a dict of arrays"),
                (lambda batch: {"x": [1]}, TypeError, "expected an array as 'x'"),
                (lambda batch: {"x": batch["data"][:0]}, SchemaError, "1 rows of 'x'.* gave 0"),
                (lambda batch: {"x": np.zeros(9)}, SchemaError, "1 rows of 'x'.* gave 9"),
            )
        ),
        (lambda: Join({}), ValueError, "at least one source"),
        (lambda: Join({"a": FIVE, "b": TWO}), ValueError, r"equal lengths, got \{'a': 5, 'b': 3\}"),
    ],
)
def test_refused(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


# All of them.


class Noting(PlainSource):
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_closing_a_view_closes_what_it_looks_at() -> None:
    first, second = Noting({"a": np.arange(5)}), Noting({"a": np.arange(5)})
    both = first.select([1, 2]).concat(second.windows(1).map(lambda b: {"a": b["a"][:, 0]}))
    view = Join({"both": both.columns(["a"]).select(slice(1, None))})
    with view:
        assert view[:]["both"].tolist() == [2, 0, 1, 2, 3, 4]
        assert first.closed == second.closed == 0
    assert first.closed == second.closed == 1


def test_fingerprints_tell_views_apart() -> None:
    source = ArraySource(np.arange(1000))
    other = ArraySource(np.arange(1000, 2000))
    views = [
        source,
        other,
        source.select(slice(0, 500)),
        source.select(slice(500, 1000)),
        source.select(slice(0, 1000, 2)),
        source.select(slice(None, None, -1)),
        source.select(np.arange(500) + 7),
        other.select(slice(0, 500)),
        source.windows(2),
        source.windows(3),
        source.windows(2, 2),
        source.concat(other),
        other.concat(source),
        source.concat(source),
        Join({"a": source}),
        Join({"b": source}),
        Join({"a": source, "b": other}),
    ]
    assert len({view.fingerprint for view in views}) == len(views)
    # What is read of a row does not change which row it is.
    assert source.columns(["data"]).fingerprint == source.fingerprint
    assert source.map(dict).fingerprint == source.fingerprint
    # However the rows were named.
    assert source.select([5, 6, 7]).fingerprint == source.select(slice(5, 8)).fingerprint


# The core's readers.


def test_readers_refuse() -> None:
    table = np.arange(40, dtype=np.uint8).reshape(10, 4)
    reader = _core.table_reader(table, [(0, 1), (1, 3)])
    for fields in ([(0, 5)], [(5, 0)], [(3, 2)], [(2**64 - 1, 2)], [(1, 2**64 - 1)]):
        with pytest.raises(ValueError, match="leaves its row"):
            _core.table_reader(table, fields)
    with pytest.raises(ValueError, match="neighbours"):
        _core.table_reader(table[:, ::2], [(0, 1)])
    other = _core.table_reader(table, [(0, 2)])
    short = _core.table_reader(table[:3], [(0, 2)])
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: _core.concat_reader([]), "nothing to concatenate"),
        (lambda: _core.join_reader([]), "nothing to join"),
        (lambda: _core.concat_reader([reader, other]), "fields differ"),
        (lambda: _core.join_reader([other, short]), "lengths differ"),
        (lambda: reader.read(np.arange(2), [np.zeros(2, "u1")]), "one output for each field"),
        (
            lambda: reader.read(np.arange(2), [np.zeros(2, "u1"), np.zeros(5, "u1")]),
            "wrong size",
        ),
    ]
    for call, message in wrong:
        with pytest.raises(ValueError, match=message):
            call()


def test_a_map_beyond_its_base_is_noticed() -> None:
    # No view makes such a reader; the core does not believe that.
    base = _core.table_reader(np.zeros((5, 4), np.uint8), [(0, 4)])
    for index in (5, -1, 2**62):
        reader = _core.mapped_reader(base, _core.index_map(np.array([index])))
        with pytest.raises(IndexError, match=f"row {index} "):
            reader.read(np.zeros(1, np.int64), [np.zeros(4, np.uint8)])
        with pytest.raises(IndexError, match=f"row {index} "):
            reader.read(np.zeros(50_000, np.int64), [np.zeros(200_000, np.uint8)])


def test_windows_too_large_for_memory_are_refused() -> None:
    source = ArraySource(np.zeros((2**61, 0), np.uint8)).windows(2**60)
    with pytest.raises(MemoryError):
        source.take(np.arange(16))
    assert source.fingerprint  # of rows that nobody could hold

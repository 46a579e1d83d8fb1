"""Stores as a newcomer would write them: by Python, or by a reader of the core."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from stepwell import Batch, Field, SchemaError, Source, _core
from stepwell.source import Rows, Schema
from tests.argument_contract import ArgumentContract
from tests.children import answer
from tests.contract import Expected
from tests.plain import PlainSource


class TestPlainSource(ArgumentContract):
    @pytest.fixture
    def expected(self) -> Expected:
        random = np.random.default_rng(0)
        return {
            "x": random.normal(size=(50, 3)),
            "words": [np.arange(n * n % 11, dtype=np.int16) for n in range(50)],
            "label": random.integers(0, 9, 50),
            "points": [random.normal(size=(n % 4, 2)) for n in range(50)],
        }

    @pytest.fixture
    def source(self, expected: Expected) -> Source:
        return PlainSource(expected)


class NativeSource(Source):
    """Bytes whose rows are a number and a square; all it has is a reader."""

    def __init__(self, table: bytes) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table) // 16

    @property
    def schema(self) -> Schema:
        return {"number": Field(np.dtype("<i8")), "square": Field(np.dtype("<u4"), (2,))}

    def _native(self, names: Sequence[str]) -> _core.Reader:
        rows = np.frombuffer(self._table, np.uint8).reshape(-1, 16)
        places = {"number": (0, 8), "square": (8, 8)}
        return _core.table_reader(rows, [places[name] for name in names])


class TestNativeSource(ArgumentContract):
    @pytest.fixture
    def expected(self) -> Expected:
        numbers = np.arange(100)
        squares = np.stack([numbers**2, numbers**2 + 1], axis=1)
        return {"number": numbers.astype("<i8"), "square": squares.astype("<u4")}

    @pytest.fixture
    def source(self, expected: Expected) -> Source:
        table = np.zeros(100, [("number", "<i8"), ("square", "<u4", (2,))])
        for name, values in expected.items():
            table[name] = values
        return NativeSource(table.tobytes())


class Unfinished(Source):
    @property
    def schema(self) -> Schema:
        return {"x": Field(np.dtype("f4"))}

    def __len__(self) -> int:
        return 3


def test_a_source_needs_a_way_to_read() -> None:
    with pytest.raises(TypeError, match="Unfinished defines neither _fill nor _native"):
        Unfinished().take([0])


class Careless(PlainSource):
    """Puts its own array into `out` instead of filling the one that is there."""

    def _fill(self, rows: Rows, out: Batch) -> None:
        out["x"] = np.asarray(self._values["x"])[rows]


def test_an_array_put_into_out_is_copied_into_the_one_given() -> None:
    source = Careless({"x": np.arange(20)})
    mine = np.zeros(2, np.int64)
    assert source.take([3, 4], {"x": mine})["x"] is mine
    assert mine.tolist() == [3, 4]
    assert source.windows(3).take([5, 1])["x"].tolist() == [[5, 6, 7], [1, 2, 3]]


@pytest.mark.parametrize("wrong", [np.zeros(3), np.zeros((2, 1), np.int64), np.int64(3), None])
def test_a_wrong_array_put_into_out_is_refused(wrong: Any) -> None:
    class Wrong(PlainSource):
        def _fill(self, rows: Rows, out: Batch) -> None:
            out["x"] = wrong

    with pytest.raises(SchemaError, match="'x'"):
        Wrong({"x": np.arange(20)}).take([3, 4])


def test_a_fingerprint_does_not_depend_on_padding() -> None:
    rows = np.zeros(20, np.dtype([("a", "u1"), ("b", "<i8")], align=True))
    source = PlainSource({"x": rows})
    assert len({source.fingerprint for _ in range(20)}) == 1


@pytest.mark.parametrize("view", ["plain", "select", "concat"])
def test_rows_changed_while_they_are_taken(view: str) -> None:
    # Every batch is right for some moment, or an IndexError; never memory that is not ours.
    script = """
import sys, threading, numpy as np, stepwell as sw
source = sw.ArraySource(np.arange(100_000))
source = {
    "plain": source,
    "select": source.select(np.arange(100_000)),
    "concat": source.concat(source),
}[sys.argv[1]]
rows = np.arange(400_000) % 100_000
stop = threading.Event()
def change():
    while not stop.is_set():
        rows[399_000:] = 2**45
        rows[399_000:] = 5
threading.Thread(target=change).start()
outcomes = set()
for _ in range(100):
    try:
        outcomes.add(len(source.take(rows)["data"]))
    except IndexError:
        outcomes.add("refused")
stop.set()
print(sorted(map(str, outcomes)))
"""
    assert set(eval(answer(script, view))) <= {"400000", "refused"}

"""Stores as a newcomer would write them: by Python, or by a reader of the core."""

from collections.abc import Sequence

import numpy as np
import pytest

from stepwell import Field, Source, _core
from stepwell.source import Schema
from tests.contract import Expected, SourceContract
from tests.plain import PlainSource


class TestPlainSource(SourceContract):
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


class TestNativeSource(SourceContract):
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

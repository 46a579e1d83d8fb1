"""Rows of every kind, as plain Python and NumPy have them, and sources of such rows."""

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import stepwell as sw
from stepwell import Field, FormatError, Ragged, SchemaError, Source
from stepwell.source import Batch, Rows, Schema

__all__ = ["Given", "assert_same", "contents", "mixed", "refused", "rows", "schema_of"]

Values = dict[str, Any]
"""An array for each field of fixed shape, a list of rows for others."""


class Given(Source):
    """Values as a source."""

    def __init__(self, values: Values, attributes: dict[str, Any] | None = None) -> None:
        self._values = values
        self.attributes = attributes or {}

    @property
    def schema(self) -> Schema:
        return schema_of(self._values)

    def __len__(self) -> int:
        return len(next(iter(self._values.values())))

    def _fill(self, rows: Rows, out: Batch) -> None:
        for name, field in self.schema.items():
            values = self._values[name]
            if field.ragged:
                out[name] = Ragged.from_list([values[i] for i in rows], field)
            else:
                out[name][...] = values[rows]


def schema_of(values: Values) -> dict[str, Field]:
    """The fields that such values are; a list without rows is one of int32."""
    made = {}
    for name, column in values.items():
        if isinstance(column, np.ndarray):
            made[name] = Field(column.dtype, column.shape[1:])
            continue
        first = column[0] if len(column) else np.empty(0, "i4")
        made[name] = (
            Field(first.dtype, first.shape[1:], ragged=True)
            if isinstance(first, np.ndarray)
            else Field(type(first))
        )
    return made


def contents(source: Source | str | Path) -> Values:
    """All rows of a source, or of a store at a path."""
    if not isinstance(source, Source):
        with sw.open(source) as opened:
            return contents(opened)
    return {
        name: values.to_list() if isinstance(values, Ragged) else values.copy()
        for name, values in source.take(np.arange(len(source))).items()
    }


def assert_same(got: Values, want: Values) -> None:
    """The same fields in the same order, of the same dtypes, with the same bytes."""
    assert list(got) == list(want)
    for name, values in want.items():
        assert len(got[name]) == len(values), name
        alone = isinstance(values, np.ndarray)
        both = [(got[name], values)] if alone else zip(got[name], values, strict=True)
        for a, b in both:
            assert type(a) is type(b), name
            if not isinstance(b, np.ndarray):
                assert a == b, name
                continue
            assert a.shape == b.shape, name
            assert (a.dtype, a.tobytes()) == (b.dtype, b.tobytes()), name


def refused(path: Path, text: str, **options: Any) -> None:
    """What is at a path cannot be converted; the error says why and where, and nothing is left."""
    before = sorted(path.parent.iterdir())
    with pytest.raises((FormatError, SchemaError), match=text) as caught:
        sw.convert(path, path.parent / "store", **options)
    assert path.name in str(caught.value)
    assert sorted(path.parent.iterdir()) == before


def mixed(rows: int = 100, seed: int = 0) -> Values:
    """Rows of every kind there is; some of them empty."""
    random = np.random.default_rng(seed)
    return {
        "image": random.integers(0, 256, (rows, 4, 3), np.uint8),
        "label": random.integers(-9, 9, rows),
        "score": random.normal(size=rows).astype("f4"),
        "done": random.random(rows) < 0.5,
        "tokens": [
            random.integers(0, 99, n).astype("i4") for n in random.integers(0, 5, rows).tolist()
        ],
        "pairs": [random.normal(size=(n, 2)) for n in random.integers(0, 3, rows).tolist()],
        "text": ["ä日\N{GRINNING FACE}x"[: i % 5] for i in range(rows)],
        "blob": [bytes([0, 255, i % 256] * (i % 3)) for i in range(rows)],
    }


NAMES = st.text(string.ascii_letters + string.digits + "_./ äß日", min_size=1, max_size=12)


@st.composite
def rows(
    draw: st.DrawFn,
    dtypes: Sequence[str],
    kinds: Sequence[str] = ("fixed",),
    most_fields: int = 4,
    names: st.SearchStrategy[str] = NAMES,
    min_rows: int = 1,
) -> Values:
    """Rows of any schema with fields of these dtypes and kinds: fixed, ragged, str, bytes."""
    count = draw(st.integers(min_rows, 40))
    chosen = draw(st.lists(names, min_size=1, max_size=most_fields, unique_by=str.lower))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    made: Values = {}
    for name in chosen:
        kind, dtype = draw(st.sampled_from(kinds)), np.dtype(draw(st.sampled_from(dtypes)))
        shape = draw(hnp.array_shapes(min_dims=0, max_dims=2, max_side=3))
        if kind == "fixed":
            made[name] = _numbers(random, dtype, (count, *shape))
        elif kind == "ragged":
            lengths = random.integers(0, 4, count).tolist()
            made[name] = [_numbers(random, dtype, (n, *shape)) for n in lengths]
        elif kind == "str":
            made[name] = draw(st.lists(st.text(max_size=5), min_size=count, max_size=count))
        else:
            made[name] = [random.bytes(int(n)) for n in random.integers(0, 5, count)]
    return made


def _numbers(random: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Any values that a dtype has, but no NaN: what is equal is to be the same."""
    if dtype.kind == "b":
        return random.random(shape) < 0.5  # type: ignore[no-any-return]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        native = dtype.newbyteorder("=")
        return random.integers(limits.min, limits.max, shape, native, endpoint=True).astype(dtype)  # type: ignore[no-any-return]
    return (random.normal(size=shape) * 100).astype(dtype)  # type: ignore[no-any-return]

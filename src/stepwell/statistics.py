"""Mean, spread and limits of the fields of a source: what inputs are normalised with."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepwell.batches import in_order

if TYPE_CHECKING:
    from stepwell.source import Source

_AT_ONCE = 1 << 20
"""Bytes of rows that are looked at together: what is computed of them stays in the caches."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """Of one field, each with the shape of a row.

    `mean` and `std` are float64, `min` and `max` of the field's own type. `std` is that of the rows
    themselves, as NumPy's (`ddof=0`). Where a value is NaN, so are all four.
    """

    count: int
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    min: NDArray[Any]
    max: NDArray[Any]


def cached(source: "Source") -> dict[str, Statistics]:
    """The statistics of a source, kept with it for as long as its rows stay.

    A fingerprint alone is of a few rows, and may be that of others too."""
    moment = source._as_of()
    if moment is None:
        return _of(source)
    key = moment, source.fingerprint
    known = source.__dict__.get("_statistics")
    if known is None or known[0] != key:
        known = source.__dict__["_statistics"] = key, _of(source)
    return dict(known[1])


def _of(source: "Source") -> dict[str, Statistics]:
    names = [n for n, f in source.schema.items() if not f.ragged and f.dtype.kind in "biuf"]
    if not len(source):
        raise ValueError("expected rows to make statistics of, got none")
    found: dict[str, tuple[Any, ...]] = {}
    for batch in in_order(source.columns(names), max_bytes=_AT_ONCE) if names else ():
        with np.errstate(over="ignore", invalid="ignore"):
            for name, values in batch.items():
                part = _part(values)
                found[name] = _merged(found[name], part) if name in found else part
    return {name: _finished(*part) for name, part in found.items()}


def _part(values: NDArray[Any]) -> tuple[Any, ...]:
    """Of some rows: how many, their mean, the squares of what they differ from it, their limits."""
    apart = values.astype(np.float64)
    mean = _fold(np.add, apart) / len(values)
    apart -= mean
    np.square(apart, out=apart)
    limits = _fold(np.minimum, values), _fold(np.maximum, values)
    return len(values), mean, _fold(np.add, apart), *limits


def _fold(combine: np.ufunc, values: NDArray[Any]) -> Any:
    """What `combine.reduce` gives along the first axis, which takes ten times as long where rows
    are short: one half with the other, as long as there are many."""
    while values.ndim > 1 and len(values) > 16:
        half, odd = divmod(len(values), 2)
        folded = combine(values[:half], values[half : 2 * half])
        if odd:
            folded[0] = combine(folded[0], values[-1])
        values = folded
    return combine.reduce(values, axis=0)


def _merged(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same of both (Chan, Golub and LeVeque 1979): stable, however many parts there are."""
    count, apart = a[0] + b[0], b[1] - a[1]
    mean = a[1] + apart * (b[0] / count)
    squares = a[2] + b[2] + apart * apart * (a[0] * (b[0] / count))
    return count, mean, squares, np.minimum(a[3], b[3]), np.maximum(a[4], b[4])


def _finished(count: int, mean: Any, squares: Any, low: Any, high: Any) -> Statistics:
    each = [np.asarray(part) for part in (mean, np.sqrt(squares / count), low, high)]
    for array in each:
        array.flags.writeable = False  # whoever asks next gets the same
    return Statistics(count, *each)

"""Arrays in memory as a source with runs."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stepwell.errors import SchemaError
from stepwell.formats.runs import RunList
from stepwell.source import Rows
from stepwell.stores.arrays import ArraySource

__all__ = ["arrays"]


class _Arrays(ArraySource):
    runs: Any = None

    def _runs(self) -> tuple[Rows, Rows]:
        return super()._runs() if self.runs is None else (self.runs.starts, self.runs.counts)


def arrays(
    columns: Mapping[str, ArrayLike],
    *,
    run_lengths: ArrayLike | None = None,
    ends: ArrayLike | None = None,
    run_columns: Mapping[str, Iterable[Any]] | None = None,
) -> ArraySource:
    """Equally long arrays as a source, cut into runs: `convert(arrays(…), out, to="steps")`.

    Runs have the given lengths, or end where `ends` is True (terminated or truncated; rows behind
    the last end are a run too); with neither, all rows are one run. `run_columns` have a value for
    each run. Raises `SchemaError` for arrays of unequal length.
    """
    if run_lengths is not None and ends is not None:
        raise ValueError("give either run_lengths or ends")
    source = _Arrays({name: np.asarray(values) for name, values in columns.items()})
    counts = _lengths(len(source), run_lengths, ends)
    known = {name: list(values) for name, values in (run_columns or {}).items()}
    for name, values in known.items():
        if len(values) != len(counts):
            raise SchemaError(f"{name}: expected a value for {len(counts)} runs, got {len(values)}")
    source.runs = RunList(counts, known)
    return source


def _lengths(rows: int, given: ArrayLike | None, ends: ArrayLike | None) -> Any:
    """The lengths of the runs, by whichever of both there is."""
    if given is not None:
        lengths = np.asarray(given)
        if lengths.ndim != 1 or (lengths.size and lengths.dtype.kind not in "iu"):
            raise SchemaError(f"run_lengths: expected whole numbers, got {lengths.dtype}")
        if lengths.min(initial=0) < 0 or lengths.sum() != rows:
            raise SchemaError(f"run_lengths: expected {rows} rows in all, got {lengths.sum()}")
        return lengths.astype(np.int64)
    if ends is None:
        return [rows]
    flags = np.asarray(ends)
    if flags.dtype != np.bool or flags.shape != (rows,):
        raise SchemaError(f"ends: expected {rows} booleans, got {flags.dtype} {flags.shape}")
    return np.diff(np.unique(np.concatenate([[0], np.flatnonzero(flags) + 1, [rows]])))

"""The runs that the rows of a source belong to, as a target with runs needs them."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell.batches import in_order
from stepwell.errors import FormatError, SchemaError
from stepwell.source import Rows, Source
from stepwell.store import QueryTable, Runs
from stepwell.stores.arrays import ArraySource
from stepwell.stores.steps import RunColumn

OWN_FIELDS = ("run_id", "step_index")
"""Fields of a step dataset that its writer fills in."""

_OWN_COLUMNS = ("id", "first_step_idx", "num_steps")
_ENDS = ("terminals", "timeouts", "terminations", "truncations", "terminated", "truncated", "dones")
_REWARDS = ("rewards", "reward")
_OBSERVATIONS = "observations"


class RunList(QueryTable, Runs):
    """Runs, one after another, and what is known of each."""

    def __init__(
        self,
        counts: ArrayLike,
        columns: Iterable[str] = (),
        rows: Iterable[tuple[Any, ...]] = (),
        types: Mapping[str, RunColumn] | None = None,
    ) -> None:
        self._counts = np.asarray(counts, np.int64)
        self.types = dict(types or {})
        """The types of columns, where their values alone do not show them."""
        self.needed: set[str] = set()
        """Columns without which the rows would mean something else."""
        super().__init__(list(columns), list(rows) or [()] * len(self._counts))

    @property
    def starts(self) -> Rows:
        return np.cumsum(self._counts) - self._counts

    @property
    def counts(self) -> Rows:
        return self._counts


def find_runs(source: Source) -> RunList:
    """The runs of a source, in the order of their rows.

    Those it knows itself; else they begin where `step_index` is 0, if there is a `run_id` too, or
    end behind flags (`terminals`, `truncated`, …); else all rows are one run. Runs that are
    found so have their `total_reward` where there are rewards.
    """
    known = getattr(source, "runs", None)
    if known is not None:
        _, counts = source._runs()
        if int(counts.sum()) != len(source):
            raise FormatError(f"expected runs of {len(source)} rows in all, got {counts.sum()}")
        if isinstance(known, RunList):
            return known
        names = list(known.columns)
        if set(_OWN_COLUMNS) <= set(names):  # of a step dataset, which fills them in
            names = [name for name in names if name not in _OWN_COLUMNS]
        rows = known._select(names, range(len(known))) if names else ()
        return RunList(counts, names, rows, getattr(known, "types", None))
    starts, counts = source._runs()
    if len(starts) == 1:
        flags = [name for name in _ENDS if _is_flag(source, name)]
        if set(OWN_FIELDS) <= set(source.schema):
            counts = _between(_begins(source), len(source))
        elif flags:
            counts = _between(_stops(source, flags), len(source))
    rewards = [name for name in _REWARDS if _is_flag(source, name)]
    if not rewards:
        return RunList(counts)
    return RunList(counts, ["total_reward"], zip(_totals(source, rewards[0], counts)))


def _is_flag(source: Source, name: str) -> bool:
    """Whether there is a field of one number a row."""
    field = source.schema.get(name)
    if field is None or field.ragged or field.dtype.kind not in "biuf":
        return False
    return int(np.prod(field.shape)) == 1


def _between(stops: NDArray[np.intp], rows: int) -> Rows:
    """The lengths of runs that end before these rows, and of the one behind them."""
    bounds = np.unique(np.concatenate([[0], stops, [rows]]))
    return np.diff(bounds)


def _begins(source: Source) -> NDArray[np.intp]:
    found, at, last = [np.empty(0, np.intp)], 0, None
    for batch in in_order(source.columns(list(OWN_FIELDS))):
        ids = batch["run_id"]
        changed = np.diff(ids, prepend=ids[:1] if last is None else last) != 0
        found.append(np.flatnonzero((batch["step_index"] == 0) | changed) + at)
        at, last = at + len(ids), ids[-1:]
    return np.concatenate(found)


def _stops(source: Source, flags: Sequence[str]) -> NDArray[np.intp]:
    """Where runs end: behind each row for which one of the flags is set."""
    found, at = [np.empty(0, np.intp)], 0
    for batch in in_order(source.columns(flags)):
        set_ = np.logical_or.reduce([batch[name].reshape(-1) != 0 for name in flags])
        found.append(np.flatnonzero(set_) + at + 1)
        at += len(set_)
    return np.concatenate(found)


def _totals(source: Source, name: str, counts: Rows) -> list[float]:
    """The sum of the rewards of each run."""
    totals = np.zeros(len(counts))
    ends, at = np.cumsum(counts), 0
    for batch in in_order(source.columns([name])):
        rewards = batch[name].reshape(-1).astype(np.float64)
        run = np.searchsorted(ends, np.arange(at, at + len(rewards)), side="right")
        np.add.at(totals, run, rewards)
        at += len(rewards)
    return totals.tolist()


def equally_long(
    path: Path, lengths: Mapping[str, int | None], fields: Sequence[str] | None
) -> tuple[list[str], int]:
    """The arrays of a file that are rows of one table, and how many rows there are.

    Those in `fields`, or all of them, equally long; or, where there are `observations` (a
    dictionary in the style of D4RL), those of that length: others are left out, with a warning.
    None is the length of a single value.
    """
    if not lengths:
        raise FormatError("expected at least one array, got none", path=str(path))
    if fields is not None:
        for name in fields:
            if name not in lengths:
                raise SchemaError(f"{path}: expected a field of {', '.join(lengths)}, got {name!r}")
        lengths = {name: lengths[name] for name in fields}
    rows = lengths.get(_OBSERVATIONS)
    if rows is not None and len(lengths) > 1:
        if not rows:
            raise FormatError(f"{_OBSERVATIONS}: expected rows, got none", path=str(path))
        others = {name: length for name, length in lengths.items() if length != rows}
        if others:
            listed = ", ".join(
                f"{n} ({'one value' if k is None else k})" for n, k in others.items()
            )
            warnings.warn(f"{path}: {rows} rows; left out: {listed}", stacklevel=2)
        return [name for name in lengths if name not in others], rows
    for name, length in lengths.items():
        if length is None:
            raise SchemaError(f"{path}: {name!r} is a single value, expected a row for each record")
    if len(set(lengths.values())) != 1:
        listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise SchemaError(
            f"{path}: expected arrays of equal length, got {listed}; field= chooses one"
        )
    return list(lengths), next(iter(lengths.values())) or 0


# Arrays in memory.


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
    source = ArraySource({name: np.asarray(values) for name, values in columns.items()})
    counts = _lengths(len(source), run_lengths, ends)
    known = {name: list(values) for name, values in (run_columns or {}).items()}
    for name, values in known.items():
        if len(values) != len(counts):
            raise SchemaError(f"{name}: expected a value for {len(counts)} runs, got {len(values)}")
    source.runs = RunList(counts, known, zip(*known.values(), strict=True))
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
    return _between(np.flatnonzero(flags) + 1, rows)

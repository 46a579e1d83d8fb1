"""What the values of a store look like: of all runs by SQL, of its rows by a sample.

The columns and fields that there are decide what is shown, not the kind of the store.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import FormatError, StepwellError
from stepwell.field import Field, Ragged
from stepwell.source import Batch, Rows, Source
from stepwell.store import Store

BINS = 40
DISTINCT = 12
"""Up to this number of different values, each is counted."""
POINTS = 200

_CHARTS = 6
_TIMEOUT_S = 5.0
_ROWS = 4096
_BLOCK = 64
_BYTES = 32 << 20
_ROW_BYTES = 4 << 20
_VALUES = 1 << 16
_SIZED_ROWS = 1 << 16
_SECONDS = 2.0
_RECORDINGS = 8

_FIRST = ("score|reward|return", "(^|_)(steps|length)$", "tile", "elapsed|duration")
_NO_AMOUNT = re.compile("(^|_)(id|idx|index|ref|board|seed|hash|checksum|number|kind|version)$")


@dataclass(frozen=True)
class Histogram:
    """How often values occur: each of them where there are few, else in bins of one width."""

    edges: tuple[float, ...]
    """The values, or where each bin begins and the last one ends."""
    counts: tuple[int, ...]
    low: float
    mean: float
    high: float
    exact: bool = False
    """Whether the edges are values."""
    missing: int = 0
    """Values that are no finite number."""


@dataclass(frozen=True)
class Curve:
    """A column over the runs, in the order in which they were recorded."""

    x: tuple[int, ...]
    """The number of the first run of each stretch."""
    low: tuple[float, ...]
    mean: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class FieldSample:
    """What was seen of a field."""

    field: Field
    of: str = "values"
    """What is counted: values, lengths, or nothing."""
    histogram: Histogram | None = None
    example: str = ""


@dataclass(frozen=True)
class Sample:
    """Some rows of a source, spread over all of it."""

    rows: int
    of: int
    fields: Mapping[str, FieldSample]
    left_out: int = 0
    """Rows that could not be read, or are too large to look at."""
    problem: str = ""
    """Why the first of them could not be read."""


def bin_edges(low: float, high: float, whole: bool, count: int) -> list[float]:
    """Where the bins of `count` values begin and the last one ends; those of whole numbers are
    whole numbers wide."""
    bins = max(8, min(BINS, math.ceil(2 * count ** (1 / 3))))  # Rice's rule
    if whole:
        span = int(high) - int(low) + 1
        width = -(-span // bins)
        return [int(low) + width * i for i in range(-(-span // width) + 1)]
    return [low + (high - low) * i / bins for i in range(bins + 1)]


def histogram(values: NDArray[Any]) -> Histogram | None:
    """The histogram of numbers; None where there is no finite one."""
    flat = values.reshape(-1)
    if flat.dtype.kind not in "biuf":
        return None
    if len(flat) > _VALUES:  # at random: every Nth would follow the width of pictures
        flat = flat[np.random.default_rng(0).integers(len(flat), size=_VALUES)]
    finite = flat[np.isfinite(flat)]
    if not len(finite):
        return None
    low, high, whole = finite.min().item(), finite.max().item(), flat.dtype.kind in "biu"
    limits = float(low), float(finite.mean(dtype=np.float64)), float(high)
    missing = len(flat) - len(finite)
    few, counts = np.unique(finite[:_BLOCK], return_counts=True)
    if len(few) <= DISTINCT:
        few, counts = np.unique(finite, return_counts=True)
    if len(few) <= DISTINCT:
        exact = tuple(map(float, few))
        return Histogram(exact, tuple(counts.tolist()), *limits, exact=True, missing=missing)
    edges = bin_edges(low, high, whole, len(finite))
    wide = finite.astype(np.float64)
    counts, _ = np.histogram(wide, np.array(edges, np.float64))
    return Histogram(tuple(map(float, edges)), tuple(counts.tolist()), *limits, missing=missing)


# Of runs, by SQL: it stays quick with a million of them, and keeps none in memory.


@dataclass(frozen=True)
class Amount:
    """A column of runs that counts or measures something."""

    name: str
    low: float
    mean: float
    high: float
    count: int
    missing: int
    whole: bool

    @property
    def sql(self) -> str:
        return _finite(self.name)


def amounts(store: Store) -> list[Amount]:
    """The columns of runs that are worth seeing: scores first, then lengths, then others.

    Names, numbers of other things, flags and columns with a single value are not. Raises
    `TimeoutError` where the runs are too many.
    """
    runs = store.runs
    if runs is None or not len(runs):
        return []
    names = [n for n in runs.columns if n != store.runs_key and not _NO_AMOUNT.search(n)]
    names.sort(key=lambda name: next((i for i, p in enumerate(_FIRST) if re.search(p, name)), 9))
    if not names:
        return []
    facts = (
        f"min({v}), avg({v}), max({v}), count({v}), total(typeof({v}) = 'integer')"
        for v in map(_finite, names)
    )
    sql = f"SELECT count(*), {', '.join(facts)} FROM {store.runs_table}"
    ((every, *found),) = store.query(sql, timeout_s=_TIMEOUT_S).rows
    seen = []
    for i, name in enumerate(names):
        low, mean, high, count, whole = found[5 * i : 5 * i + 5]
        is_flag = whole == count and (low, high) == (0, 1)
        if count and low != high and not is_flag:
            seen.append(Amount(name, low, mean, high, count, every - count, whole == count))
    return seen[:_CHARTS]


def run_histogram(store: Store, each: Amount) -> Histogram:
    """How the values of a column are spread over all runs."""
    table = store.runs_table
    limits = float(each.low), float(each.mean), float(each.high)
    sql = f"SELECT DISTINCT v FROM (SELECT {each.sql} AS v FROM {table}) WHERE v IS NOT NULL"
    few = len(store.query(f"{sql} LIMIT ?", DISTINCT + 1, timeout_s=_TIMEOUT_S))
    if few <= DISTINCT and (each.whole or 2 * few <= each.count):  # else no two are alike
        sql = f"SELECT {each.sql} AS v, count(*) FROM {table} GROUP BY v HAVING v IS NOT NULL"
        pairs = store.query(f"{sql} ORDER BY v", timeout_s=_TIMEOUT_S).rows
        values, counts = zip(*pairs, strict=True)
        exact = tuple(map(float, values))
        return Histogram(exact, tuple(counts), *limits, exact=True, missing=each.missing)
    edges = bin_edges(each.low, each.high, each.whole, each.count)
    bins = len(edges) - 1
    place = "(v - ?) / ?" if each.whole else "CAST((v - ?) / ? AS INTEGER)"
    width = edges[1] - edges[0] if each.whole else (each.high - each.low) / bins
    sql = f"SELECT min({place}, ?), count(*) FROM (SELECT {each.sql} AS v FROM {table})"
    pairs = store.query(
        f"{sql} WHERE v IS NOT NULL GROUP BY 1", each.low, width, bins - 1, timeout_s=_TIMEOUT_S
    ).rows
    counted = dict(pairs)
    return Histogram(
        tuple(map(float, edges)),
        tuple(counted.get(i, 0) for i in range(bins)),
        *limits,
        missing=each.missing,
    )


def is_score(each: Amount) -> bool:
    """Whether a column is one that is followed over time."""
    return re.search(_FIRST[0], each.name) is not None


def run_curves(store: Store, each: Amount) -> dict[str, Curve]:
    """A column over the runs, in the order in which they were recorded; of each recording where
    there are several."""
    runs, table = store.runs, store.runs_table
    assert runs is not None
    group = "''"
    if "run_id" in runs.columns and store.runs_key != "run_id":
        sql = f"SELECT DISTINCT run_id FROM {table} LIMIT ?"
        if len(store.query(sql, _RECORDINGS + 1, timeout_s=_TIMEOUT_S)) <= _RECORDINGS:
            group = "run_id"
    order = _quoted("started_at" if "started_at" in runs.columns else store.runs_key)
    place = f"row_number() OVER (PARTITION BY {group} ORDER BY {order}) - 1"
    every = f"SELECT {group} AS g, {place} AS place, {each.sql} AS v FROM {table}"
    sql = f"SELECT g, min(place), min(v), avg(v), max(v) FROM ({every})"
    stretch = -(-len(runs) // POINTS)
    sql += " GROUP BY g, place / ? HAVING count(v) > 0 ORDER BY 1, 2"
    found: dict[str, list[tuple[Any, ...]]] = {}
    for recording, *rest in store.query(sql, stretch, timeout_s=_TIMEOUT_S).rows:
        found.setdefault(str(recording), []).append(tuple(rest))
    return {
        recording: Curve(*(tuple(values) for values in zip(*rows, strict=True)))
        for recording, rows in found.items()
        if len(rows) > 1
    }


def _finite(name: str) -> str:
    """A column where it is a finite number, else NULL; text is above every number."""
    column = _quoted(name)
    return f"CASE WHEN {column} BETWEEN -1e308 AND 1e308 THEN {column} END"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# Of rows, by a sample.


def parts(store: Store) -> dict[str, Source]:
    """The store, or each of its recordings where they have unlike fields."""
    if "unlike" not in store.describe().facts:
        return {"": store}
    found = store.query(f"SELECT DISTINCT run_id FROM {store.runs_table} LIMIT {_RECORDINGS}")
    return {name: store.where("run_id = ?", name) for (name,) in found.rows}


def sample(source: Source, max_rows: int = _ROWS) -> Sample:
    """What some rows have, spread over the source; as many as can be read in a moment."""
    schema, length = source.schema, len(source)
    taken: dict[str, list[Any]] = {name: [] for name in schema}
    seen, left_out, problem, size = 0, 0, "", 0
    end = monotonic() + _SECONDS
    for rows, too_large in _blocks(source, max_rows):
        left_out += too_large
        for count, batch in _read(source, rows):
            if isinstance(batch, Exception):
                left_out, problem = left_out + count, problem or str(batch)
                continue
            seen += count
            for name, values in batch.items():
                taken[name].append(values)
                size += values.values.nbytes if isinstance(values, Ragged) else values.nbytes
        if size > _BYTES or monotonic() > end:
            break
    fields = {name: _seen(schema[name], values) for name, values in taken.items()}
    return Sample(seen, length, fields, left_out, problem)


def _read(source: Source, rows: Rows) -> Iterator[tuple[int, Batch | Exception]]:
    """The rows in pieces: how many, and what they have, or why they cannot be read."""
    if not len(rows):
        return
    try:
        found: Batch | Exception = source.take(rows)
    except FormatError as error:  # some of them are damaged
        if len(rows) > 1:
            for half in np.array_split(rows, 2):
                yield from _read(source, half)
            return
        found = error
    except (StepwellError, OSError) as error:
        found = error
    yield len(rows), found


def record_sizes(source: Source) -> Histogram | None:
    """The stored bytes of fields without a fixed size, a row; None where they are not known."""
    names = [name for name, field in source.schema.items() if field.ragged]
    if not names or not len(source):
        return None
    sizes = source._sizes(_spread(len(source), _SIZED_ROWS), names)
    return None if sizes is None else histogram(sizes)


def _spread(length: int, count: int) -> Rows:
    """Up to `count` rows at random, in order, the same every time."""
    if length <= count:
        return np.arange(length, dtype=np.int64)
    return np.unique(np.random.default_rng(0).integers(length, size=count))


def _blocks(source: Source, max_rows: int) -> Iterator[tuple[Rows, int]]:
    """Neighbouring rows from all over a source, in no order, and how many are too large."""
    length, schema = len(source), source.schema
    ragged = [name for name, field in schema.items() if field.ragged]
    row_bytes = sum(field.row_bytes for field in schema.values() if not field.ragged)
    block = max(1, min(_BLOCK, _ROW_BYTES // max(row_bytes, 1)))
    count = -(-min(max_rows, length) // block)
    every = -(-length // block)
    random = np.random.default_rng(0)
    chosen = random.permutation(every) if every <= 4 * count else random.integers(every, size=count)
    for number in dict.fromkeys(chosen[:count].tolist()):
        rows = np.arange(number * block, min(number * block + block, length), dtype=np.int64)
        sizes = source._sizes(rows, ragged) if ragged else None
        fits = rows if sizes is None else rows[sizes <= _ROW_BYTES // block]
        yield fits, len(rows) - len(fits)


def _seen(field: Field, values: Sequence[Any]) -> FieldSample:
    """What the values of a field, in several batches, have in common."""
    if not values:
        return FieldSample(field, "nothing")
    if field.ragged:
        lengths = histogram(np.concatenate([each.lengths for each in values]))
        first = next((row for each in values for row in each if len(row)), "")
        example = first if isinstance(first, str) else f"{len(first):,} bytes"
        return FieldSample(field, "lengths", lengths, "" if field.kind == "array" else example)
    found = np.concatenate(values)
    if field.dtype.kind in "biuf" and field.dtype.names is None:
        return FieldSample(field, "values", histogram(found))
    if field.dtype.kind in "US":
        return FieldSample(field, "lengths", histogram(np.char.str_len(found)), str(found.flat[0]))
    return FieldSample(field, "nothing", None, str(found.flat[0]) if found.size else "")

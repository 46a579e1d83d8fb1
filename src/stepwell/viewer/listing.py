"""The runs of a store, page by page: by SQL where it can, whatever their number."""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from stepwell.errors import FormatError, StepwellError
from stepwell.store import Store
from stepwell.viewer.shelf import Entry

TIMEOUT_S = 5.0
MAX_ROWS = 1000
_EXACT = 2**53  # whole numbers that JavaScript has


def safe(value: Any) -> Any:
    """A value as JSON and JavaScript can hold it."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _EXACT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return f"{len(value):,} bytes: {value[:32].hex()}"
    return safe(value.item()) if hasattr(value, "item") else str(value)


def has_sql(store: Store) -> bool:
    """Whether the runs of a store can be queried."""
    return type(store).query is not Store.query


def list_runs(
    entry: Entry,
    *,
    where: str = "",
    sort: str = "",
    descending: bool = False,
    offset: int = 0,
    limit: int = 100,
) -> dict[str, Any]:
    """Some of the runs for which a condition holds, and how many there are.

    Where SQL meets a damaged run, the others are listed without it, and the damage is reported.
    Raises `ValueError` for a mistake in the condition, `TimeoutError` for one that takes too long.
    """
    store, limit = entry.store, max(0, min(limit, MAX_ROWS))
    columns = entry.remembered("columns", lambda: _columns(store))
    if sort and sort not in columns:
        raise ValueError(f"sort: expected one of {', '.join(columns)}, got {sort!r}")
    if not has_sql(store):
        return _without_sql(store, columns, where, sort, offset, limit)
    count = entry.remembered(("count", where.strip()), lambda: _count(store, where))
    names = ", ".join(map(_quoted, columns))
    sql = f"SELECT {names} FROM {store.runs_table}"
    if where.strip():
        sql += f" WHERE (\n{where}\n)"
    sql += f" {order(store, columns, sort, descending)}"
    begin = max(0, min(offset, count))
    found = {"columns": columns, "count": count, "key": store.runs_key}
    try:
        table = store.query(f"{sql} LIMIT {limit} OFFSET {begin}", timeout_s=TIMEOUT_S)
    except FormatError as error:
        if where.strip() or sort or not _are_rows(store):
            raise
        numbers = store.runs.starts[begin : begin + limit].tolist() if store.runs else []
        rows = [list(_from_row(store, columns, number).values()) for number in numbers]
        return {**found, "rows": rows, "damage": str(error)}
    return {**found, "rows": [[safe(value) for value in row] for row in table.rows]}


def _are_rows(store: Store) -> bool:
    """Whether a run is a row, whose number is its key, as in a pack."""
    return store.runs is not None and bool((store.runs.counts == 1).all())


def _from_row(store: Store, columns: Sequence[str], number: int) -> dict[str, Any]:
    """The columns of a run that is a row, without SQL, which reads all of them: those that the row
    has, and of a damaged one none but its key."""
    values: dict[str, Any] = {}
    with suppress(StepwellError, OSError):
        batch = store.columns([name for name in columns if name in store.schema]).take([number])
        values = {name: safe(column[0]) for name, column in batch.items()}
    return {name: number if name == store.runs_key else values.get(name) for name in columns}


def order(store: Store, columns: Sequence[str], sort: str, descending: bool) -> str:
    """How a list of runs is ordered: no two queries may have those that are alike in another order.

    They are in the order of recording, and so is a list that is not sorted.
    """
    names = [name for name in ("started_at", store.runs_key) if name in columns]
    chosen = [f"{_quoted(sort)} {'DESC' if descending else 'ASC'}"] if sort else []
    return "ORDER BY " + ", ".join([*chosen, *map(_quoted, names)])


def run_row(store: Store, text: str) -> tuple[dict[str, Any], Any]:
    """The columns of the run whose key is written so, and its key. Raises `KeyError`."""
    columns = _columns(store)
    if not has_sql(store):
        runs = store.runs
        number = int(text) if text.isdecimal() else -1
        if runs is None or not 0 <= number < len(runs):
            raise KeyError(f"no run {text!r} - at {store.path}")
        return dict(runs[number]), number
    names = ", ".join(map(_quoted, columns))
    sql = f"SELECT {names} FROM {store.runs_table} WHERE {_quoted(store.runs_key)} = ?"
    try:
        found = store.query(sql, text, timeout_s=TIMEOUT_S).rows
    except FormatError:
        if not _are_rows(store) or not text.isdecimal() or store.runs is None:
            raise
        numbers = [number for number in store.runs.starts.tolist() if str(number) == text]
        found = [tuple(_from_row(store, columns, number).values()) for number in numbers]
    if not found:
        raise KeyError(f"no run {text!r} - at {store.path}")
    row = dict(zip(columns, found[0], strict=True))
    return row, row[store.runs_key]


def _columns(store: Store) -> list[str]:
    runs = store.runs
    if runs is None:
        raise ValueError(f"{store.path} is {store.noun}: its rows have no runs")
    names = runs.columns
    return names if has_sql(store) or store.runs_key in names else [store.runs_key, *names]


def _count(store: Store, where: str) -> int:
    """How many runs a condition holds for. The store itself knows what a condition is."""
    if where.strip():
        runs = getattr(store.where(where, timeout_s=TIMEOUT_S), "runs", None)
    else:
        runs = store.runs
    return 0 if runs is None else len(runs)


def _without_sql(
    store: Store, columns: list[str], where: str, sort: str, offset: int, limit: int
) -> dict[str, Any]:
    if where.strip():
        store.where(where)  # whose error says why not
    if sort and sort != store.runs_key:
        raise ValueError(f"{store.path} is {store.noun}: its runs cannot be sorted")
    runs = store.runs
    count = 0 if runs is None else len(runs)
    some = range(count)[max(0, offset) : max(0, offset) + limit]
    found = [] if runs is None else runs[some.start : some.stop]
    rows = [
        [safe({store.runs_key: number, **row}[name]) for name in columns]
        for number, row in zip(some, found, strict=True)
    ]
    return {"columns": columns, "rows": rows, "count": count, "key": store.runs_key}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

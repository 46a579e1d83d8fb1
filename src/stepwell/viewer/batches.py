"""Rows to look at: in order, or as a loader gives them at a step; one by one or in windows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from stepwell.description import Description
from stepwell.store import Store
from stepwell.viewer.cells import MAX_ROWS, cell, loader_rows, table
from stepwell.viewer.drawings import drawings
from stepwell.viewer.listing import TIMEOUT_S
from stepwell.viewer.shelf import Entry


@dataclass(frozen=True)
class Choice:
    """What to look at, as an address has it."""

    row: int = 0
    where: str = ""
    """A condition on the runs whose rows there are."""
    seed: int | None = None
    """Of a loader; None for rows in order."""
    step: int = 0
    batch: int = 16
    window: int = 0
    """Steps of a window; 0 for single rows."""


@dataclass(frozen=True)
class Line:
    """One row, or a step of a window."""

    row: int
    """Its number, or that of its window."""
    step: int | None
    """Its place in the window."""
    cells: dict[str, Any]
    padding: bool = False
    damage: str | None = None


@dataclass(frozen=True)
class Lines:
    """What was chosen."""

    fields: dict[str, str]
    draw: dict[str, str]
    lines: list[Line]
    count: int
    """How many rows, or windows, there are to choose from."""
    short: int = 0
    """How many rows the last batch of an epoch lacks."""
    notes: list[str] = field(default_factory=list)


def chosen(entry: Entry, choice: Choice, count: int) -> Lines:
    """Rows from `choice.row` on, at most `count`; or the batch of a loader.

    Raises what is wrong with the choice: a `ValueError`, `IndexError` or `TimeoutError`.
    """
    store = part(entry, choice.where)
    if choice.window:
        return _windows(store, choice, count)
    if choice.seed is None:
        if choice.row and choice.row >= len(store):
            raise IndexError(f"expected a row below {len(store):,}, got {choice.row:,}")
        rows: Sequence[int] = range(len(store))[choice.row : choice.row + count]
        short = 0
    else:
        rows, short = loader_rows(store, choice.seed, choice.step, _limited(choice.batch))
    found = table(store, rows)
    lines = [
        Line(row, None, {name: cells[i] for name, cells in found["columns"].items()}, damage=damage)
        for i, (row, damage) in enumerate(zip(rows, found["damage"], strict=True))
    ]
    return Lines(found["fields"], found["draw"], lines, len(store), short)


def unlike_where(about: Description) -> str:
    """A condition for the first recording of a store whose recordings have unlike fields."""
    if "unlike" not in about.facts:
        return ""
    first = next(iter(about.facts.get("recordings", {})), "")
    return "run_id = '" + first.replace("'", "''") + "'"


def part(entry: Entry, where: str) -> Store:
    """The store, or the rows of the runs for which a condition holds."""
    store = entry.store
    if not where.strip():
        return store
    make = lambda: cast(Store, store.where(where, timeout_s=TIMEOUT_S))  # noqa: E731
    return entry.remembered(("part", where.strip()), make)


def _limited(batch: int) -> int:
    if not 1 <= batch <= MAX_ROWS:
        raise ValueError(f"expected a batch of 1 to {MAX_ROWS} rows to look at, got {batch:,}")
    return batch


def _windows(store: Store, choice: Choice, count: int) -> Lines:
    """Windows with all their steps; those that reach beyond the end of a run are padded."""
    length = choice.window
    if not 1 <= length <= MAX_ROWS:
        raise ValueError(f"expected windows of 1 to {MAX_ROWS} steps to look at, got {length:,}")
    view = store.windows(length, pad=True)
    at_once = max(1, MAX_ROWS // length)
    notes, short = [], 0
    if choice.seed is None:
        if choice.row and choice.row >= len(view):
            raise IndexError(f"expected a window below {len(view):,}, got {choice.row:,}")
        stop = choice.row + min(max(1, count // length), at_once)
        rows: Sequence[int] = range(len(view))[choice.row : stop]
    else:
        rows, short = loader_rows(view, choice.seed, choice.step, _limited(choice.batch))
        if len(rows) > at_once:
            notes.append(f"the first {at_once} of {len(rows)} windows are shown")
            rows = rows[:at_once]
    draws = {each.name: each for each in drawings(store.schema)}
    batch = view.take(rows)
    lines = [
        Line(
            row,
            step,
            {name: cell(draws[name], batch[name][i][step]) for name in draws} if is_row else {},
            padding=not is_row,
        )
        for i, row in enumerate(rows)
        for step, is_row in enumerate(batch["mask"][i].tolist())
    ]
    fields = {name: str(each) for name, each in store.schema.items()}
    draw = {name: each.draw for name, each in draws.items()}
    return Lines(fields, draw, lines, len(view), short, notes)

"""`stepwell info`, `head`, `verify` and `query`: one verb for any store."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import stepwell as sw
from stepwell.cli.console import (
    JsonOption,
    err,
    out,
    print_json,
    progress,
    say,
    show,
    show_rows,
    visible,
)
from stepwell.errors import KindError
from stepwell.opening import open_lazily, store_at
from stepwell.store import Report, Store
from stepwell.stores.steps.repair import is_repairable

PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="A store, a file or folder of a format, or a URL.")
]
EndpointOption = Annotated[
    str | None, typer.Option(help="The server of a bucket, where it is not the usual one.")
]


def info(
    path: PathArgument,
    stats: Annotated[
        bool, typer.Option("--stats", help="Lengths of runs, and their columns in numbers.")
    ] = False,
    endpoint: EndpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """What is at PATH: rows, runs, fields, bytes on disk, health. Reads no rows."""
    with open_path(path, endpoint) as source:
        counted = {"stats": _statistics(path, source)} if stats else {}
        noun, about = source.noun, source.describe()
    if as_json:
        show({**about.to_json(), **counted}, as_json)
        return
    facts: dict[str, Any] = {"store": f"{noun} at {path}", "rows": about.rows}
    if about.runs is not None:
        facts["runs"] = about.runs
    facts |= {"bytes on disk": about.bytes, "fields": about.fields}
    if about.columns:
        facts["run columns"] = ", ".join(about.columns)
    show({**facts, **about.facts, **counted, "health": about.health})


def _statistics(path: str, source: Store) -> dict[str, Any]:
    """Lengths of the runs, extremes of numeric columns, the most frequent texts of others."""
    runs = source.runs
    if runs is None:
        raise ValueError(f"{path} has no runs; --stats counts runs")
    found: dict[str, Any] = {}
    if len(runs):
        # In a pack a run is a row, with its steps inside.
        lengths = runs["steps"] if "steps" in runs.columns else runs.counts
        near = np.percentile(lengths, (50, 90, 99), method="nearest").tolist()
        found["run length"] = dict(zip(("p50", "p90", "p99"), near, strict=True))
    for name in runs.columns:
        values = [value for value in runs[name].tolist() if value is not None]
        if values and all(isinstance(value, int | float) for value in values):
            mean = sum(values) / len(values)
            found[name] = {"min": min(values), "mean": mean, "max": max(values)}
        else:
            found[name] = dict(Counter(map(str, values)).most_common(5)) or None
    return found


def head(
    path: PathArgument,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="How many rows.")] = 5,
    start: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    where: Annotated[str | None, typer.Option(help="Only runs for which this holds: SQL.")] = None,
    endpoint: EndpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """The first rows, each value in short; with --json whole, one object a line."""
    with open_path(path, endpoint) as opened:
        store = opened if where is None else opened.where(where)
        rows = list(range(start, min(start + count, len(store))))
        found = store.take(np.array(rows, np.int64))
        there = store.present(rows) if isinstance(store, Store) else {}
    for name, has in there.items():
        found[name] = [v if given else None for v, given in zip(found[name], has, strict=True)]
    if as_json:
        for i, row in enumerate(rows):
            print_json({"row": row, **{name: column[i] for name, column in found.items()}})
        return
    width = (out.width - 10) // len(found) - 3 if out.is_terminal else 40
    width = width if width >= 8 else max(out.width - 20, 8)  # then each value has its line
    lines = [
        (row, *(_short(column[i], width) for column in found.values()))
        for i, row in enumerate(rows)
    ]
    show_rows(("row", *found), lines, numbers=(0,))


def verify(
    path: PathArgument,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only what needs no look at every row.")
    ] = False,
    endpoint: EndpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check everything. Exit code 1 when something is damaged, with a list of what."""
    check(lambda: open_path(path, endpoint), path, quick, as_json)


def check(open_store: Callable[[], Store], path: str, quick: bool, as_json: bool) -> None:
    """Print what `verify` finds, and end with 1 when anything is wrong."""
    try:
        with open_store() as store, progress("verifying") as on_progress:
            report = store.verify(quick=quick, progress=on_progress)
    except KindError:
        raise
    except sw.FormatError as error:
        report = Report("", path, (error,))
    if as_json:
        broken = [
            {"path": p.path, "offset": p.offset, "problem": p.args[0]} for p in report.problems
        ]
        about = {"path": report.path, "ok": report.ok, "problems": broken}
        show({**about, "checked": report.checked, "unchecked": report.unchecked}, as_json)
    else:
        for problem in report.problems:
            err.print(visible(str(problem)), markup=False, soft_wrap=True)
        for each in report.unchecked:
            err.print(visible(f"not checked: {each}"), markup=False, soft_wrap=True)
        verdict = "OK" if report.ok else "INVALID"
        details = ", ".join(report.checked) if report.ok else _problems(len(report.problems))
        say(f"{verdict}: {report.path} ({details})")
    if not report.ok:
        raise typer.Exit(1)


def repair(
    path: PathArgument,
    as_one_run: Annotated[
        bool,
        typer.Option("--as-one-run", help="Keep lost rows that do not know their run as one run."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Rebuild the runs that the database of a step dataset has lost, from the rows themselves.

    What was there before is kept beside, and the last lines name it.
    """
    where = Path(path)
    found = None if "://" in path else store_at(where)
    if found is None and not is_repairable(where):
        raise FileNotFoundError(f"{path}: no rows of a step dataset, which repair rebuilds")
    if found is not None and found.kind != "steps":
        hint = "; `stepwell records salvage` saves its records" * (found.kind == "records")
        raise ValueError(f"{path} is {found.noun}: repair rebuilds step datasets only{hint}")
    with progress("repairing") as on_progress:
        done = sw.StepReader.repair(where, as_one_run=as_one_run, progress=on_progress)
    if as_json:
        print_json(asdict(done))
        return
    for line in done.did or ("nothing to repair",):
        say(line)
    if done.lost:
        say(f"{', '.join(done.lost)}: NULL in these runs, as no row holds them")
    for each in done.kept:
        say(f"kept as it was: {each}")


def query(
    path: PathArgument,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="SELECT ... FROM runs")],
    as_json: JsonOption = False,
) -> None:
    """Query the runs of a store, read-only: "SELECT engine, count(*) FROM runs GROUP BY 1"."""
    with open_path(path, None) as store:
        table = store.query(sql)
    if as_json:
        print_json(list(table))
        return
    show_rows(table.columns, table.rows)


def _problems(count: int) -> str:
    return "1 problem" if count == 1 else f"{count:,} problems"


def open_path(path: str, endpoint: str | None, *, mapped: bool = True) -> Store:
    """What is at a path, its rows not loaded where they can be mapped."""
    if not path:  # which is the folder we are in, for Path
        raise ValueError("PATH: expected a path or a URL, got an empty text")
    options: dict[str, Any] = {} if endpoint is None else {"endpoint": endpoint}
    return open_lazily(path, **options) if mapped else sw.open(path, **options)


def _short(value: Any, width: int) -> str:
    if value is None:
        return "-"
    if isinstance(value, str | bytes):
        text = repr(value)
    else:
        array = np.asarray(value)
        items = array.reshape(-1)[:9].tolist()
        text = " ".join(f"{x:.6g}" if isinstance(x, float) else str(x) for x in items)
        if array.size > 9:
            text = f"{array.dtype}{list(array.shape)} {text}"
    return text if len(text) <= width else f"{text[: width - 1]}…"

"""`stepwell info` and `stepwell bench`: what is at a path, and how fast it comes out."""

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

import stepwell as sw
from stepwell.cli.console import JsonOption, err, out, show

__all__ = ["bench", "info"]

PathArgument = Annotated[
    Path, typer.Argument(help="A .npy or .a2pack file, or a store's directory.")
]
MapOption = Annotated[bool, typer.Option("--map", help="Map the file instead of loading it.")]


def info(path: PathArgument, as_json: JsonOption = False) -> None:
    """What is at PATH: rows, fields, bytes. Reads no data."""
    with _open(path, mapped=True) as source:
        ragged = any(field.ragged for field in source.schema.values())
        facts: dict[str, Any] = {
            "path": str(path),
            "store": type(source).__name__,
            "rows": len(source),
            "row_bytes": sum(f.row_bytes for f in source.schema.values() if not f.ragged),
            "bytes": source.nbytes,
            "fields": {name: str(field) for name, field in source.schema.items()},
        }
        if isinstance(source, sw.StepReader):
            facts["runs"] = len(source.runs)
            facts["run_columns"] = source.runs.columns
    if as_json:
        print(json.dumps(facts))
        return
    besides = ", ragged fields left out" if ragged else ""
    show(
        {
            "store": f"{facts['store']} at {path}",
            "rows": facts["rows"],
            **({"runs": facts["runs"]} if "runs" in facts else {}),
            "bytes": f"{facts['bytes']:,} ({facts['row_bytes']:,} a row{besides})",
            "fields": facts["fields"],
            **({"run columns": ", ".join(facts["run_columns"])} if "run_columns" in facts else {}),
        }
    )


def bench(
    path: PathArgument,
    batch_size: Annotated[int, typer.Option(min=1, max=2**31, help="Rows in a batch.")] = 4096,
    seconds: Annotated[float, typer.Option(min=0.05, help="How long to measure each.")] = 3.0,
    mapped: MapOption = False,
    as_json: JsonOption = False,
) -> None:
    """How fast random batches come out of PATH: single takes, then the loader."""
    with _open(path, mapped=mapped) as source:
        if len(source) == 0:
            raise sw.FormatError("expected rows to read, got none", path=str(path))
        rows = sw.Iid(seed=1).order(len(source))
        count = min(batch_size, len(source))
        takes = (rows.rows(epoch, 0, count) for epoch in range(sys.maxsize))
        loader = sw.Loader(source, batch_size, seed=1)
        with Progress(console=err, transient=True, disable=not err.is_terminal) as bars, loader:
            results = {
                "take": _measure(lambda: _length(source.take(next(takes))), seconds, bars, "take"),
                "loader": _measure(_next_of(loader.forever()), seconds, bars, "loader"),
            }
    if as_json:
        print(json.dumps({"path": str(path), "batch_size": batch_size, **results}))
        return
    table = Table(title=escape(f"{path}: {len(source):,} rows, batches of {batch_size:,}"))
    for column in ("", "rows/s", "first ms", "p50 ms", "p99 ms", "peak memory MB"):
        table.add_column(column, justify="left" if not column else "right")
    for name, result in results.items():
        table.add_row(
            name,
            f"{result['rows_per_s']:,.0f}",
            *(f"{result[key] * 1e3:.3f}" for key in ("first_s", "p50_s", "p99_s")),
            f"{result['peak_rss_bytes'] / 1e6:,.0f}",
        )
    out.print(table)


def _open(path: Path, *, mapped: bool) -> sw.Source:
    can_map = path.suffix == ".npy" or (path / "metadata.db").is_file()
    options = {"memory": "map"} if mapped and can_map else {}
    return sw.open(path, **options)


def _length(batch: sw.Batch) -> int:
    return len(next(iter(batch.values())))


def _next_of(batches: Iterator[sw.Batch]) -> Callable[[], int]:
    return lambda: _length(next(batches))


def _measure(
    step: Callable[[], int], seconds: float, bars: Progress, name: str
) -> dict[str, float | int]:
    """Time `step`, which returns how many rows it read, for about `seconds`."""
    bar = bars.add_task(name, total=seconds)
    times: list[float] = []
    rows = 0
    begin = time.perf_counter()
    while not times or times[-1] - begin < seconds:
        rows += step()
        times.append(time.perf_counter())
        bars.update(bar, completed=times[-1] - begin)
    each = np.diff([begin, *times])
    return {
        "rows_per_s": rows / (times[-1] - begin),
        "batches": len(times),
        "first_s": float(each[0]),
        "p50_s": float(np.median(each)),
        "p99_s": float(np.quantile(each, 0.99)),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }

"""`stepwell records`: what is in a record store, and its upkeep."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

import stepwell as sw
from stepwell.cli.console import JsonOption, err, out, progress, show
from stepwell.cli.verify import verify

__all__ = ["app"]

StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="A record store.")]

app = typer.Typer(no_args_is_help=True, help="Record stores: look at them, keep them in order.")
app.command()(verify)


@app.command()
def info(store: StoreArgument, as_json: JsonOption = False) -> None:
    """Records, fields, chunks, and how much of the files is in use."""
    with sw.RecordReader.open(store) as opened:
        about = opened.describe().to_json()
    codecs = about.pop("codecs")
    about["fields"] = {name: f"{each}, {codecs[name]}" for name, each in about["fields"].items()}
    show(about, as_json)


@app.command()
def head(
    store: StoreArgument,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="How many records.")] = 5,
    start: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """The first records, each value in short; with --json whole, one object a line."""
    with sw.RecordReader.open(store) as opened:
        rows = np.arange(start, min(start + count, len(opened)), dtype=np.int64)
        columns = {name: opened[name][rows] for name in opened.schema}
        there = opened.present(rows)
    if as_json:
        for i, row in enumerate(rows.tolist()):
            values = {
                name: _plain(values[i]) if there[name][i] else None
                for name, values in columns.items()
            }
            print(json.dumps({"record": row, **values}))
        return
    table = Table()
    table.add_column("record", no_wrap=True, min_width=6)
    for name in columns:
        table.add_column(escape(name), overflow="ellipsis", no_wrap=True, min_width=6)
    for i, row in enumerate(rows.tolist()):
        shown = [_short(v[i]) if there[name][i] else "-" for name, v in columns.items()]
        table.add_row(str(row), *map(escape, shown))
    out.print(table)


@app.command()
def rebalance(
    store: StoreArgument,
    chunk_records: Annotated[
        int | None, typer.Option(min=1, help="Records in a chunk from now on.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the live records again, in order, and give back what deleted ones took.

    Safe to kill: the store is as before, or rebalanced.
    """
    with sw.RecordReader.open(store) as reader:
        with sw.RecordWriter(store, mode="a") as writer, progress("rebalancing") as on_progress:
            reader.refresh()
            before = reader.describe().facts
            writer.rebalance(chunk_records=chunk_records, progress=on_progress)
        reader.refresh()
        after = reader.describe().facts
        facts = {
            "path": str(store),
            "records": len(reader),
            "chunk_bytes_before": before["chunk_bytes"],
            "chunk_bytes": after["chunk_bytes"],
            "utilization_before": before["utilization"],
            "utilization": after["utilization"],
        }
    show(facts, as_json)


@app.command()
def salvage(
    store: StoreArgument,
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Directory for a new store.")],
    as_json: JsonOption = False,
) -> None:
    """Make a new store of what is whole in the chunks of a damaged one, which stays as it is."""
    with progress("salvaging") as on_progress:
        report = sw.RecordReader.salvage(store, output, progress=on_progress)
    show({"path": str(output), **asdict(report)}, as_json)
    if report.returned and not as_json:
        err.print("records were deleted from this store; some are back, under old numbers")


def _plain(value: Any) -> Any:
    """A value as JSON has it: bytes in hexadecimal, None for what is not finite."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float | str | None) else str(value)


def _short(value: Any) -> str:
    if isinstance(value, str | bytes):
        text = repr(value)
    else:
        array = np.asarray(value)
        text = " ".join(str(item) for item in array.reshape(-1)[:9].tolist())
        if array.size > 9:
            text = f"{array.dtype}{list(array.shape)} {text}"
    return text if len(text) <= 40 else f"{text[:39]}…"

"""`stepwell records`: the upkeep of record stores."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import stepwell as sw
from stepwell.cli.console import JsonOption, err, local_path, progress, show

StoreArgument = Annotated[
    Path, typer.Argument(metavar="STORE", parser=local_path, help="A record store.")
]

app = typer.Typer(no_args_is_help=True, help="Record stores: keep them in order.")


@app.command()
def rebalance(
    store: StoreArgument,
    chunk_records: Annotated[
        int | None, typer.Option(min=1, help="Records in a chunk from now on.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the live records again, in order, and give back what deleted ones took.

    Small fields of a fixed size become columns, where an older version made them frames.

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
            "data_bytes_before": before["data_bytes"],
            "data_bytes": after["data_bytes"],
            "utilization_before": before["utilization"],
            "utilization": after["utilization"],
        }
    show(facts, as_json)


@app.command()
def salvage(
    store: StoreArgument,
    output: Annotated[
        Path, typer.Argument(metavar="OUT", parser=local_path, help="Directory for a new store.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Make a new store of what is whole in the chunks of a damaged one, which stays as it is."""
    with progress("salvaging") as on_progress:
        report = sw.RecordReader.salvage(store, output, progress=on_progress)
    show({"path": str(output), **asdict(report)}, as_json)
    if report.returned and not as_json:
        err.print("records were deleted from this store; some are back, under old numbers")

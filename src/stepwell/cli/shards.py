"""`stepwell shards`: what is in a corpus of activations."""

import json
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

import stepwell as sw
from stepwell.cli.console import JsonOption, err, out, progress, show

__all__ = ["app"]

CorpusArgument = Annotated[
    str, typer.Argument(metavar="CORPUS", help="A directory of .shard files, a shard or a URL.")
]
EndpointOption = Annotated[
    str | None, typer.Option(help="The server of a bucket, where it is not the usual one.")
]

app = typer.Typer(no_args_is_help=True, help="Activation shards: look at them, check them.")


@app.command()
def info(
    corpus: CorpusArgument, endpoint: EndpointOption = None, as_json: JsonOption = False
) -> None:
    """Rows, width, dtype and shards. Reads headers only."""
    show(_open(corpus, endpoint).describe().to_json(), as_json)


@app.command()
def head(
    corpus: CorpusArgument,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="How many rows.")] = 5,
    start: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    endpoint: EndpointOption = None,
    as_json: JsonOption = False,
) -> None:
    """The first rows; with --json whole, one object a line."""
    reader = _open(corpus, endpoint)
    ids = np.arange(start, min(start + count, len(reader)), dtype=np.int64)
    rows = reader.take(ids)["data"]
    if as_json:
        for row_id, row in zip(ids.tolist(), rows, strict=True):
            # There is no NaN in JSON.
            data = [float(value) if np.isfinite(value) else None for value in row]
            print(json.dumps({"row_id": row_id, "data": data}))
        return
    table = Table("row", "mean", "std", "values")
    for row_id, row in zip(ids.tolist(), rows.astype(np.float64), strict=True):
        values = " ".join(f"{value:.4g}" for value in row[:6]) + (" …" if len(row) > 6 else "")
        table.add_row(f"{row_id:,}", f"{row.mean():.4g}", f"{row.std():.4g}", values)
    out.print(table)


@app.command()
def verify(
    corpus: CorpusArgument, endpoint: EndpointOption = None, as_json: JsonOption = False
) -> None:
    """Read everything. Exit code 2 when something is broken, with a list of what."""
    problems: list[sw.FormatError]
    try:
        reader = _open(corpus, endpoint)
        with progress("verifying") as on_progress:
            problems = list(reader.verify(progress=on_progress).problems)
    except sw.FormatError as error:
        problems = [error]
    if as_json:
        broken = [{"offset": p.offset, "problem": p.args[0], "path": p.path} for p in problems]
        show({"path": corpus, "ok": not problems, "problems": broken}, as_json)
    else:
        for problem in problems:
            err.print(str(problem), markup=False, soft_wrap=True)
        out.print(f"{'INVALID' if problems else 'OK'}: {corpus}", markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(2)


def _open(corpus: str, endpoint: str | None) -> sw.ShardReader:
    options: dict[str, Any] = {} if endpoint is None else {"endpoint": endpoint}
    return sw.ShardReader.open(corpus, **options)

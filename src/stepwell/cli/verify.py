"""`stepwell verify`, for every store that carries sums."""

from pathlib import Path
from typing import Annotated, Any

import typer

import stepwell as sw
from stepwell.cli.console import JsonOption, err, out, progress, show

__all__ = ["verify"]


def verify(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A step dataset, a pack, a record store or shards."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Check everything. Exit code 2 when something is broken, with a list of what."""
    problems: list[sw.FormatError]
    try:
        options: dict[str, Any] = {"memory": "map"} if (path / "metadata.db").is_file() else {}
        with sw.open(path, **options) as source, progress("verifying") as on_progress:
            if not isinstance(
                source, sw.StepDataset | sw.PackReader | sw.RecordStore | sw.ShardReader
            ):
                raise ValueError(f"{path}: nothing here carries sums")
            problems = source.verify(on_progress=on_progress)
    except sw.FormatError as error:
        problems = [error]
    if as_json:
        broken = [{"offset": p.offset, "problem": p.args[0]} for p in problems]
        show({"path": str(path), "ok": not problems, "problems": broken}, as_json)
    else:
        for problem in problems:
            err.print(str(problem), markup=False, soft_wrap=True)
        verdict = "INVALID" if problems else "OK"
        out.print(f"{verdict}: {path}", markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(2)

"""`stepwell verify`, for every store that carries sums."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import stepwell as sw
from stepwell.cli.console import JsonOption, err, out, progress, show
from stepwell.replay import ReplayReader

__all__ = ["check", "verify"]


def verify(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A step dataset, a pack, a record store, a replay store or shards.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Check everything. Exit code 2 when something is broken, with a list of what."""
    check(path, as_json)


def check(path: Path, as_json: bool) -> None:
    """Print what is wrong with a store, and exit with 2 when anything is."""
    problems: list[sw.FormatError]
    try:
        with progress("verifying") as on_progress:
            problems = _problems(path, on_progress)
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


def _problems(path: Path, on_progress: Callable[[int, int], None]) -> list[sw.FormatError]:
    if ReplayReader.recognizes(path):
        with ReplayReader.open(path) as reader:
            return list(reader.verify(progress=on_progress).problems)
    options: dict[str, Any] = {"memory": "map"} if (path / "metadata.db").is_file() else {}
    with sw.open(path, **options) as source:
        if isinstance(source, Store):
            return list(source.verify(progress=on_progress).problems)
        if not isinstance(source, sw.StepReader):
            raise ValueError(f"{path}: nothing here carries checksums")
        return source.verify(on_progress=on_progress)

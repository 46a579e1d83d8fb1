"""`stepwell replay`: the upkeep of replay stores."""

import re
from pathlib import Path
from typing import Annotated

import typer

from stepwell.cli.console import JsonOption, local_path, progress, show

app = typer.Typer(no_args_is_help=True, help="Replay stores: keep them in order.")
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]?)(i?)b?", re.IGNORECASE | re.ASCII)


def _bytes(text: str) -> int:
    """The number of "50GB", "1.5 GiB" or "1000"."""
    found = _BYTES.fullmatch(text.strip())
    if found is None or (found[3] and not found[2]):
        raise typer.BadParameter(f"expected bytes, as in 50GB or 1.5GiB, got {text!r}")
    unit = _UNITS[found[2].lower()]
    return int(float(found[1]) * (unit if not found[3] else 1024 ** (len(str(unit)) // 3)))


@app.callback()
def _group() -> None:
    """With one command alone, that would be the whole of it."""


@app.command()
def remove(
    root: Annotated[
        Path, typer.Argument(metavar="ROOT", parser=local_path, help="A replay store.")
    ],
    where: Annotated[
        str | None,
        typer.Option(help="Which episodes, in SQL: \"run_id = 'a' AND total_reward < 5\"."),
    ] = None,
    keep_bytes: Annotated[
        int | None,
        typer.Option(
            parser=_bytes,
            metavar="BYTES",
            help="Only the oldest, until so much is left on the disk: 50GB.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count them, and estimate the bytes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove episodes, and with the last of a run the run, and return the space.

    A run that is being recorded is refused, or left alone by --keep-bytes. Safe to kill.
    """
    import stepwell as sw

    if where is None and keep_bytes is None:
        raise ValueError("expected --where or --keep-bytes, got neither")
    with progress("removing") as on_progress:
        found = sw.replay.remove(
            root, where, keep_bytes=keep_bytes, dry_run=dry_run, progress=on_progress
        )
    show({"path": str(root), **found._asdict()}, as_json)

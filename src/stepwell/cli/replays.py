"""`stepwell replay`: the upkeep of replay stores."""

import re
from pathlib import Path
from typing import Annotated

import typer

from stepwell.cli.console import JsonOption, local_path, progress, show
from stepwell.cli.view import HostOption, NoOpenOption, PortOption, serve

app = typer.Typer(no_args_is_help=True, help="Replay stores: watch them, keep them in order.")
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BYTES = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt]?)(i?)b?", re.IGNORECASE | re.ASCII)


def _bytes(text: str) -> int:
    """The number of "50GB", "1.5 GiB" or "1000"."""
    found = _BYTES.fullmatch(text.strip())
    if found is None or (found[3] and not found[2]):
        raise typer.BadParameter(f"expected bytes, as in 50GB or 1.5GiB, got {text!r}")
    unit = _UNITS[found[2].lower()]
    return int(float(found[1]) * (unit if not found[3] else 1024 ** (len(str(unit)) // 3)))


@app.command()
def watch(
    root: Annotated[
        Path | None,
        typer.Argument(
            metavar="[ROOT]", parser=local_path, help="The replay store that is recorded to."
        ),
    ] = None,
    run: Annotated[
        list[str] | None, typer.Option(help="Only this run; may be given several times.")
    ] = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8050,
    no_open: NoOpenOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show in a browser what is being recorded with a lane, frame by frame. Needs the extra
    `viewer`.

    With ROOT the recording so far is a click away. Ctrl-C ends it.
    """
    from stepwell.viewer.browser import load

    shelf, _ = load()
    if root is not None:
        shelf.add(str(root))
    serve("/live", {"run": run or []}, host=host, port=port, no_open=no_open, as_json=as_json)


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

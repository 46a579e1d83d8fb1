"""`stepwell 2048`: games made, and old ones made new."""

import time
from pathlib import Path
from typing import Annotated

import typer

from stepwell.cli.console import (
    JsonOption,
    SkipOption,
    err,
    local_path,
    progress,
    show,
    show_skipped,
)
from stepwell.game2048 import migrate_runs, play_to
from stepwell.opening import store_at

app = typer.Typer(no_args_is_help=True, help="2048: play games, bring old ones up to date.")


@app.command()
def play(
    output: Annotated[
        Path, typer.Option("--out", parser=local_path, help="Directory for the .a2run2 files.")
    ],
    games: Annotated[int, typer.Option(min=1, help="How many games.")] = 100,
    depth: Annotated[int, typer.Option(min=1, max=6, help="Own moves to look ahead.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes.")] = 0,
    workers: Annotated[int | None, typer.Option(min=1, help="Games at once.")] = None,
    clock: Annotated[
        bool, typer.Option("--clock", help="Record real times; bytes then differ.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Play games of 2048 with the built-in player. Games that are there already are kept."""
    _refuse_store(output)
    begin = time.perf_counter()
    done = 0

    def count(played: int, total: int) -> None:
        nonlocal done
        done = played
        on_game(played, total)

    try:
        with progress("playing") as on_game:
            paths = play_to(
                output, games, depth=depth, seed=seed, workers=workers, clock=clock, on_game=count
            )
    except KeyboardInterrupt:
        kept = f"; {output} keeps the games that were finished, the same command goes on"
        err.print(f"interrupted{kept if done else ''}", markup=False, soft_wrap=True)
        raise
    facts = {
        "path": str(output),
        "games": len(paths),
        "bytes": sum(path.stat().st_size for path in paths),
        "seconds": round(time.perf_counter() - begin, 3),
    }
    show(facts, as_json)


@app.command()
def migrate(
    source: Annotated[
        Path, typer.Argument(metavar="IN", parser=local_path, help="A run file or a directory.")
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", parser=local_path, help="Directory for the new files.")
    ],
    skip_bad: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Turn v1 runs into v2, leaving the originals alone."""
    _refuse_store(out)
    with progress("migrating") as on_progress:
        report = migrate_runs(source, out, skip_bad=skip_bad, progress=on_progress)
    show_skipped(report.skipped)
    counts = {name: number for name, number in vars(report).items() if name != "skipped"}
    show({**counts, "skipped": len(report.skipped)}, as_json)


def _refuse_store(folder: Path) -> None:
    """Refuse to put run files into a store, which would then have files that it does not know."""
    if folder.exists() and (found := store_at(folder)) is not None:
        raise FileExistsError(f"{folder} is {found.noun}; choose another folder for run files")

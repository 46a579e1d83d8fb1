"""`stepwell migrate-telemetry`: databases that kept arrays as JSON, made replay stores."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepwell.cli.console import JsonOption, err, progress, show, show_skipped

if TYPE_CHECKING:
    from stepwell.telemetry import MigrationReport


def migrate(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The old database; left as it is.")],
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="The replay store.")],
    run_id: Annotated[
        list[str] | None, typer.Option(help="Only this run; can be given several times.")
    ] = None,
    observations: Annotated[
        str | None,
        typer.Option(metavar="DTYPE", help="What observations become, float32 for example."),
    ] = None,
    compress: Annotated[str, typer.Option(help="How arrays are packed.")] = "zstd",
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out steps that cannot be read, list them.")
    ] = False,
    follow: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="Add what is new, as often, until Ctrl-C."),
    ] = None,
    validate: Annotated[
        bool, typer.Option("--validate", help="Only compare the steps that both have.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Move a database that keeps observations and frames as JSON into a replay store. Everything
    is read back and compared. The same command goes on where it was stopped, and adds what was
    recorded since."""
    from stepwell import telemetry  # which loads HDF5

    if validate:
        with progress("comparing") as report_to:
            report = telemetry.validate_telemetry(old, root, run_ids=run_id, progress=report_to)
        _show(report, as_json)
        if report.differences:
            raise typer.Exit(1)
        return
    while True:
        with progress("migrating") as report_to:
            report = telemetry.migrate_telemetry(
                old,
                root,
                run_ids=run_id,
                compress=compress,
                observations=observations,
                skip_bad=skip_bad,
                progress=report_to,
            )
        _show(report, as_json)
        if follow is None:
            return
        time.sleep(follow)


def _show(report: "MigrationReport", as_json: bool) -> None:
    show_skipped(report.skipped)
    for line in report.differences:
        err.print(f"differs: {line}", markup=False, soft_wrap=True)
    renamed = {str(old): new for old, new in report.runs.items() if old != new}
    facts = {
        **vars(report),
        "runs": len(report.runs),
        "renamed": renamed,
        "skipped": len(report.skipped),
        "differences": len(report.differences),
    }
    show(facts, as_json)

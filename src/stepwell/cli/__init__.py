"""The command `stepwell`."""

import typer

from stepwell.cli import (
    console,
    convert,
    games,
    pack,
    record,
    records,
    replay,
    shards,
    sources,
    steps,
    telemetry,
    verify,
)

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Training records at memory speed.",
)
app.command()(sources.info)
app.command()(sources.bench)
app.command()(games.play)
app.command()(games.migrate)
app.command()(steps.build)
app.command()(steps.append)
app.command()(verify.verify)
app.command()(steps.query)
app.command()(steps.export)
app.command()(convert.convert)
app.command("migrate-telemetry")(telemetry.migrate)
app.command()(record.record)
app.add_typer(pack.app, name="pack")
app.add_typer(records.app, name="records")
app.add_typer(shards.app, name="shards")
app.add_typer(replay.app, name="replay")


@app.callback()
def root(version: console.VersionOption = False) -> None:
    pass


def main() -> None:
    console.run(app)

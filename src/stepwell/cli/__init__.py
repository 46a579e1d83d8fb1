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
    steps,
    stores,
    telemetry,
)

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Training records at memory speed.",
)
app.command()(stores.info)
app.command()(stores.head)
app.command()(stores.verify)
app.command()(stores.query)
app.command()(stores.bench)
app.command()(games.play)
app.command()(games.migrate)
app.command()(steps.build)
app.command()(steps.append)
app.command()(steps.export)
app.command()(convert.convert)
app.command("migrate-telemetry")(telemetry.migrate)
app.command()(record.record)
app.add_typer(pack.app, name="pack")
app.add_typer(records.app, name="records")
app.add_typer(replay.app, name="replay")


@app.callback()
def root(version: console.VersionOption = False) -> None:
    pass


def main() -> None:
    console.run(app)

"""The command `stepwell`."""

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

app = console.new_app("Training records at memory speed.")
for command in (
    *(stores.info, stores.head, stores.verify, stores.query, stores.bench),
    *(games.play, games.migrate),
    *(steps.build, steps.append, steps.export),
    convert.convert,
):
    app.command()(command)
app.command("migrate-telemetry")(telemetry.migrate)
app.command()(record.record)
app.add_typer(pack.app, name="pack")
app.add_typer(records.app, name="records")
app.add_typer(replay.app, name="replay")


def main() -> None:
    console.run(app)

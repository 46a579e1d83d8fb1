"""The verbs of the command `stepwell`."""

from stepwell.cli import (
    bench,
    clean,
    console,
    convert,
    games,
    record,
    records,
    replays,
    stores,
    view,
)

app = console.new_app("Training records at memory speed.")
for command in (
    *(stores.info, stores.head, stores.verify, stores.repair, stores.query, bench.bench),
    *(view.view, convert.convert, record.record, clean.clean),
):
    app.command()(command)
app.add_typer(games.app, name="2048")
app.add_typer(records.app, name="records")
app.add_typer(replays.app, name="replay")

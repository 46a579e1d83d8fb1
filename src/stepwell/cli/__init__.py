"""The command `stepwell`."""

import typer

from stepwell.cli import console, games, pack, sources

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
app.add_typer(pack.app, name="pack")


@app.callback()
def root(version: console.VersionOption = False) -> None:
    pass


def main() -> None:
    console.run(app)

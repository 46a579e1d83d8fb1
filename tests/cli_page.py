"""docs/cli.md is made of the commands' own help: `python -m tests.cli_page` writes it."""

from pathlib import Path
from typing import Any

import typer

from stepwell.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

INTRODUCTION = """\
# The command line

Results go to standard output, progress bars and errors to standard error; off a terminal there
are no bars. Exit codes: 0 all is well, 1 the data or the system is at fault, 2 the command line is.
`--json` prints one object for scripts. `stepwell --version` prints the version.
"""


def section(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join(["stepwell", name, *(p.name.upper() for p in arguments)])
    lines = [f"## {usage}", "", command.help, ""]
    for p in arguments:
        lines.append(f"- `{p.name.upper()}`: {p.help}")
    for p in options:
        default = "" if p.default in (None, False) else f" Default: {p.default}."
        lines.append(f"- `{p.opts[0]}`: {p.help}{default}")
    return "\n".join(lines) + "\n"


def page() -> str:
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return "\n".join([INTRODUCTION, *(section(name, c) for name, c in commands.items())])


if __name__ == "__main__":
    PAGE.write_text(page())

"""docs/cli.md is made of the commands' own help: `python -m tests.cli_page` writes it."""

import enum
from pathlib import Path
from typing import Any

import typer

from stepwell.cli import pack
from stepwell.cli.app import app

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

INTRODUCTION = """\
# The command line

Results go to standard output, progress bars and errors to standard error; off a terminal there
are no bars. Exit codes: 0 fine, 1 damage or a difference was found, 2 it cannot be done (usage,
missing, not ours, no room), 130 interrupted, 141 nobody reads the output.
`--json` prints one object for scripts.
`stepwell --version` prints the version.
"""


def section(name: str, command: Any, heading: str = "##") -> str:
    if hasattr(command, "commands"):
        parts = [f"{heading} {name} COMMAND\n\n{command.help}\n"]
        for inner, part in command.commands.items():
            parts.append(section(f"{name} {inner}", part, heading + "#"))
        return "\n".join(parts)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    needed = [f"{p.opts[0]} {p.name.upper()}" for p in options if p.required]
    usage = " ".join([name, *map(_metavar, arguments), *needed])
    lines = [f"{heading} {usage}", "", command.help, ""]
    lines += [f"- `{_metavar(p)}`: {p.help}" for p in arguments]
    lines += [_option(p) for p in options]
    return "\n".join(lines) + "\n"


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _option(p: Any) -> str:
    names = " or ".join(f"`{name}`" for name in (*p.opts, *p.secondary_opts))
    if p.default is None or p.default is False:
        return f"- {names}: {p.help}"
    default = p.opts[0] if p.default is True else p.default
    if isinstance(default, enum.Enum):
        choices = ", ".join(f"`{choice.value}`" for choice in type(default))
        return f"- {names}: {p.help} One of {choices}. Default: {default.value}."
    return f"- {names}: {p.help} Default: {default}."


def page() -> str:
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    sections = [section(f"stepwell {name}", command) for name, command in commands.items()]
    sections.append(section("a2pack", typer.main.get_command(pack.app)))
    return "\n".join([INTRODUCTION, *sections])


if __name__ == "__main__":
    PAGE.write_text(page())

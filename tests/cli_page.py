"""docs/cli.md is made of the commands' own help: `python -m tests.cli_page` writes it."""

import enum
from pathlib import Path
from typing import Any

import typer

from stepwell.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"

INTRODUCTION = """\
# The command line

Results go to standard output, progress bars and errors to standard error; off a terminal there
are no bars. Exit codes: 0 all is well, 1 the data or the system is at fault, 2 the command line is
(or, of `a2pack validate`, the pack). `--json` prints one object for scripts.
`stepwell --version` prints the version.
"""


GROUPS = {"pack": "`a2pack COMMAND` is the same as `stepwell pack COMMAND`."}


def section(name: str, command: Any, heading: str = "##") -> str:
    if hasattr(command, "commands"):
        about = f"{command.help} {GROUPS.get(name, '')}".rstrip()
        parts = [f"{heading} stepwell {name} COMMAND\n\n{about}\n"]
        for inner, part in command.commands.items():
            parts.append(section(f"{name} {inner}", part, heading + "#"))
        return "\n".join(parts)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    needed = [f"{p.opts[0]} {p.name.upper()}" for p in options if p.required]
    usage = " ".join(["stepwell", name, *map(_metavar, arguments), *needed])
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
    return "\n".join([INTRODUCTION, *(section(name, c) for name, c in commands.items())])


if __name__ == "__main__":
    PAGE.write_text(page())

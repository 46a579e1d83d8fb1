"""What all commands share: where they print, how they fail, how they show progress.

Results go to standard output, bars and errors to standard error. Exit codes: 0 fine, 1 damage or
a difference was found, 2 it cannot be done (usage, missing, not ours, no room), 130 interrupted,
141 nobody reads the output.
"""

import io
import json
import math
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

import stepwell as sw
from stepwell.errors import KindError

out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
SkipOption = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out runs or steps that are bad, and list them.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace what exists.")]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="Threads; all cores by default.")]


def new_app(help: str) -> typer.Typer:
    """A command with commands of its own, and `--version`."""
    app = typer.Typer(
        add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=help
    )

    @app.callback()
    def root(version: VersionOption = False) -> None:
        pass

    return app


def run(app: typer.Typer) -> None:
    """Run a command line; what is wrong with the data becomes one line, not a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # paths need not be UTF-8
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        warnings.filterwarnings("ignore", module=r"(gymnasium|minari)\.")  # what we raise anyway
        _run(app)


def _run(app: typer.Typer) -> None:
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except _USAGE as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            sys.exit(2)
        _fail(ValueError(error.format_message().replace("\n", " ")), 2)
    except (KindError, sw.VersionError) as error:
        _fail(error, 2)
    except sw.FormatError as error:
        _fail(error, 1)
    except (sw.StepwellError, OSError, ImportError, ValueError, LookupError, MemoryError) as error:
        _fail(error, 2)
    except KeyboardInterrupt:
        sys.exit(130)
    except SystemExit:
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":  # click's, for a closed pipe
            sys.exit(141)
        raise


def _warn(message: Warning | str, *rest: Any, **named: Any) -> None:
    err.print(Text("warning:", "yellow"), visible(str(message)), markup=False, soft_wrap=True)


_USAGE: Any = typer.BadParameter.__bases__[0]  # of whichever click typer has


def _fail(error: Exception, code: int) -> None:
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    if isinstance(error, OSError) and error.strerror:
        named = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        text = f"{named}{error.strerror}"
    line = str(text).replace("\n", " ")  # HDF5's have several
    err.print(Text("error:", "bold red"), visible(line), markup=False, soft_wrap=True)
    sys.exit(code)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"stepwell {sw.__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
]


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; the function given takes how much is done, and of how much."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        bar = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


def local_path(text: str) -> Path:
    """The path that an argument names. A URL would lose a slash, and name something else."""
    if not text:
        raise typer.BadParameter("expected a path, got an empty text")
    if "://" in text:
        raise typer.BadParameter(f"{text} is a URL; expected a path")
    return Path(text)


def refuse_existing(output: Path, force: bool) -> None:
    """Raise `FileExistsError` for an output that exists, unless it may be replaced."""
    if os.path.lexists(output) and not force:
        raise FileExistsError(f"{output} exists; --force replaces it")


@contextmanager
def written(output: Path, force: bool, suffix: str = "") -> Iterator[Path]:
    """Where to write what is wanted at `output`: there, or for `-` to a file that is then printed.

    Raises `FileExistsError` for what exists, unless it may be replaced.
    """
    if str(output) != "-":
        refuse_existing(output, force)
        yield output
        return
    with TemporaryDirectory() as folder:
        path = Path(folder, f"out{suffix}")
        yield path
        sys.stdout.flush()
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)


_CONTROL = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160))}


def visible(text: str) -> str:
    """Text of a store, of which a terminal obeys nothing."""
    return text.translate(_CONTROL)


def say(line: str) -> None:
    """Print a line as it is: a path may look like markup, and is not to be wrapped."""
    out.print(visible(line), markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one line of JSON: bytes in hexadecimal, null for what is not finite, as in JSONL."""
    print(json.dumps(_plain(value), allow_nan=False))


def show(facts: Mapping[str, Any], as_json: bool = False) -> None:
    """Print facts, one a line; a mapping among them has a line for each of its items."""
    if as_json:
        print_json(facts)
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        lines = (
            [f"{k}: {_text(v)}" for k, v in value.items()] if isinstance(value, Mapping) else None
        )
        for i, line in enumerate([_text(value)] if lines is None else lines or ["none"]):
            say(f"{'' if i else name:{width}}  {line}")


def show_rows(
    names: Sequence[str], rows: Iterable[Sequence[Any]], *, numbers: Collection[int] = ()
) -> None:
    """Print a table, with `numbers` to the right; one too wide has a line for each value.

    For other programs nothing is drawn.
    """
    names = [visible(name) for name in names]
    texts = [["" if value is None else visible(str(value)) for value in row] for row in rows]
    if not out.is_terminal:
        for line in (names, *texts):
            print("\t".join(line))
        return
    if sum(len(name) + 3 for name in names) >= out.width:  # a table would have no room for values
        wide = max(map(len, names))
        for row in texts:
            pairs = zip(names, row, strict=True)
            text = "\n".join(f"{name:{wide}}  {cell}" for name, cell in pairs)
            out.print(Text(text + "\n", no_wrap=True, overflow="ellipsis"))
        return
    table = Table()
    for i, name in enumerate(names):
        side: Any = "right" if i in numbers else "left"
        table.add_column(escape(name), justify=side, no_wrap=not i)
    for row in texts:
        table.add_row(*map(escape, row))
    out.print(table)


def show_skipped(skipped: Iterable[tuple[object, str]]) -> None:
    """Print the files that were left out, each with the reason."""
    for path, reason in skipped:
        line = visible(f"{path}: {reason}")
        err.print(Text("skipped:", "yellow"), line, markup=False, soft_wrap=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "tolist"):  # NumPy's
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, int | float | str | None) else str(value)


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items())
    if isinstance(value, int | float):
        number = f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
        return number if out.is_terminal else number.replace(",", "")  # for other programs
    return str(value)

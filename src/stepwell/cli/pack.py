"""The command `a2pack`, which is also `stepwell pack`."""

import enum
import errno
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import stepwell as sw
from stepwell.cli.console import (
    JsonOption,
    SkipOption,
    WorkersOption,
    err,
    new_app,
    progress,
    run,
    say,
    show,
    show_skipped,
)
from stepwell.game2048 import RunSteps, pack_runs, show as show_board
from stepwell.stores.pack.verify import SAMPLE

app = new_app("Pack recorded runs into one file, and read it.")


class Compression(enum.StrEnum):
    NONE = "none"
    ZSTD = "zstd"
    LZ4 = "lz4"
    ZSTD_DICT = "zstd-dict"


class Boards(enum.StrEnum):
    NUMBER = "number"
    HEX = "hex"


PackOption = Annotated[Path, typer.Option("--packfile", help="The .a2pack file.")]
OutputOption = Annotated[Path, typer.Option("--output", help="The file to write.")]
WhereOption = Annotated[
    str | None, typer.Option("--where", help="Only runs for which this holds: 'max_score > 20000'.")
]


def main() -> None:
    run(app)


@app.command()
def pack(
    input: Annotated[Path, typer.Option(help="Directory that is searched for run files.")],
    output: OutputOption,
    align: Annotated[int, typer.Option(help="Entries begin at multiples of this.")] = 4096,
    compress: Annotated[Compression, typer.Option(help="How to store runs.")] = Compression.NONE,
    level: Annotated[int, typer.Option(min=1, max=22, help="Effort of zstd.")] = 3,
    workers: WorkersOption = None,
    skip_bad: SkipOption = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the output if it exists.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Pack every .a2run2 and .a2run file below a directory into one file."""
    with progress("packing") as on_progress:
        report = pack_runs(
            input,
            output,
            align=align,
            compress=compress.value,
            level=level,
            threads=workers,
            skip_bad=skip_bad,
            replace=force,
            progress=on_progress,
        )
    show_skipped(report.skipped)
    facts = {
        "packfile": str(output),
        "runs": report.packed,
        "skipped": len(report.skipped),
        "input_bytes": report.bytes,
        "pack_bytes": output.stat().st_size,
    }
    show(facts, as_json)


@app.command()
def validate(
    packfile: PackOption,
    full: Annotated[
        bool, typer.Option("--full", help=f"Read every entry, not {SAMPLE} of them.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a pack. Exit code 2 when something is broken, with a list of what."""
    problems: tuple[sw.FormatError, ...] = ()
    entries = 0
    try:
        with _open(packfile) as opened, progress("validating") as on_progress:
            entries = len(opened)
            problems = opened.verify(quick=not full, progress=on_progress).problems
    except sw.FormatError as error:
        problems = (error,)
    checked = entries if full else min(entries, SAMPLE)
    if as_json:
        facts = {"packfile": str(packfile), "ok": not problems, "entries": entries}
        broken = [{"offset": p.offset, "problem": p.args[0]} for p in problems]
        show({**facts, "checked": checked, "problems": broken}, as_json)
    elif not problems:
        say(f"OK: {packfile} ({entries:,} entries, {checked:,} read)")
    else:
        for problem in problems:
            err.print(str(problem), markup=False, soft_wrap=True)
        found = "1 problem" if len(problems) == 1 else f"{len(problems):,} problems"
        say(f"INVALID: {packfile} ({found})")
    if problems:
        raise typer.Exit(2)


@app.command()
def stats(packfile: PackOption, where: WhereOption = None, as_json: JsonOption = False) -> None:
    """Counts, lengths, highest tiles and engines."""
    with _open(packfile, where) as opened:
        facts: dict[str, Any] = {
            "packfile": str(packfile),
            "version": opened.version,
            "stored_bytes": opened.stored_bytes,
            **asdict(opened.stats),
        }
    show(facts, as_json)


@app.command()
def to_jsonl(
    packfile: PackOption,
    output: OutputOption,
    parallel: Annotated[bool, typer.Option(help="Use all cores.")] = True,
    workers: WorkersOption = None,
    steps: Annotated[bool, typer.Option("--steps", help="A line for each step.")] = False,
    runs_only: Annotated[
        bool, typer.Option("--runs-only", help="A line for each run (the default).")
    ] = False,
    boards: Annotated[
        Boards, typer.Option(help="Boards of runs as numbers or as 16-digit strings.")
    ] = Boards.NUMBER,
    where: WhereOption = None,
) -> None:
    """Write runs or steps as lines of JSON."""
    if steps and runs_only:
        raise ValueError("give --steps or --runs-only, not both")
    with _open(packfile, where) as opened, progress("writing") as on_progress:
        opened.to_jsonl(
            output,
            parallel,
            workers,
            steps=steps,
            boards=boards.value,
            progress=on_progress,
        )
        lines = opened.stats.total_steps if steps else len(opened)
    say(f"{output}: {lines:,} lines, {output.stat().st_size:,} bytes")


@app.command()
def to_parquet(packfile: PackOption, output: OutputOption, where: WhereOption = None) -> None:
    """Write steps as a Parquet or Arrow file (extra `parquet`); the name says which."""
    with _open(packfile, where) as opened, progress("writing") as on_progress:
        made = sw.convert(RunSteps(opened), output, force=True, progress=on_progress)
    say(f"{output}: {made.rows:,} steps, {made.target_bytes:,} bytes")


@app.command()
def extract(
    packfile: PackOption,
    indices: Annotated[str, typer.Option(help="Which runs: 0,5,42")],
    output: Annotated[Path, typer.Option(help="Directory for the files.")],
) -> None:
    """Write the payloads of some entries to files of their own."""
    try:
        wanted = [int(part) for part in indices.split(",")]
    except ValueError:
        raise ValueError(f"--indices: expected numbers like 0,5,42, got {indices!r}") from None
    with _open(packfile) as opened:
        for path in opened.extract(wanted, output):
            say(str(path))


@app.command()
def inspect(
    packfile: PackOption,
    index: Annotated[int, typer.Option(help="Which run.")],
    as_json: JsonOption = False,
) -> None:
    """A summary of one run."""
    with _open(packfile) as opened:
        kind = opened.kind(index)
        facts: dict[str, Any] = {
            "packfile": str(packfile),
            "index": index,
            "kind": kind,
            "bytes": len(opened.slice(index)),
        }
        if kind.startswith("raw"):
            show(facts, as_json)
            return
        decoded = opened.decode(index)
    moves = np.bincount(decoded.moves, minlength=4).tolist()
    facts |= {
        **decoded.meta._asdict(),
        "moves": dict(zip(("up", "down", "left", "right"), moves, strict=True)),
        "steps_with_branches": int(decoded.has_branches.sum()),
        "final_board": f"{decoded.final_board:#018x}",
    }
    show(facts, as_json)
    if not as_json:
        say(show_board(decoded.final_board))


def _open(packfile: Path, where: str | None = None) -> sw.PackReader:
    if packfile.is_dir():  # which is no pack that is broken
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(packfile))
    opened = sw.PackReader.open(packfile)
    return opened if where is None else opened.where(where)

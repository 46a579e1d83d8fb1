"""The command `a2pack`: packs of runs."""

import enum
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import stepwell as sw
from stepwell.cli.console import (
    ForceOption,
    JsonOption,
    SkipOption,
    WorkersOption,
    local_path,
    new_app,
    progress,
    refuse_existing,
    say,
    show,
    show_skipped,
    written,
)
from stepwell.cli.stores import check
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


class StepLayout(enum.StrEnum):
    ORIGINAL = "original"
    SEED = "seed"


FileArgument = Annotated[
    Path | None, typer.Argument(metavar="FILE", parser=local_path, help="The .a2pack file.")
]
PackOption = Annotated[Path | None, typer.Option("--packfile", parser=local_path, help="The same.")]
OutputOption = Annotated[
    Path, typer.Option("--output", parser=local_path, help="The file to write.")
]
WhereOption = Annotated[
    str | None, typer.Option("--where", help="Only runs for which this holds: 'max_score > 20000'.")
]


@app.command()
def pack(
    input: Annotated[
        Path, typer.Option(parser=local_path, help="Directory that is searched for run files.")
    ],
    output: OutputOption,
    align: Annotated[int, typer.Option(help="Entries begin at multiples of this.")] = 4096,
    compress: Annotated[Compression, typer.Option(help="How to store runs.")] = Compression.NONE,
    level: Annotated[int, typer.Option(min=1, max=22, help="Effort of zstd.")] = 3,
    workers: WorkersOption = None,
    skip_bad: SkipOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Pack every .a2run2 and .a2run file below a directory into one file."""
    input.stat()  # what is missing is said first
    refuse_existing(output, force)
    layout: dict[str, Any] = {"align": align, "compress": compress.value, "level": level}
    options: dict[str, Any] = {"threads": workers, "skip_bad": skip_bad, "replace": force}
    with progress("packing") as on_progress:
        report = pack_runs(input, output, progress=on_progress, **layout, **options)
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
    file: FileArgument = None,
    packfile: PackOption = None,
    full: Annotated[
        bool, typer.Option("--full", help=f"Read every entry, not {SAMPLE} of them.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a pack. Exit code 1 when something is damaged, with a list of what."""
    path = _path(file, packfile)
    check(lambda: sw.PackReader.open(path), str(path), not full, as_json)


@app.command()
def stats(
    file: FileArgument = None,
    packfile: PackOption = None,
    where: WhereOption = None,
    as_json: JsonOption = False,
) -> None:
    """Counts, lengths, highest tiles and engines."""
    with _open(file, packfile, where) as opened:
        facts: dict[str, Any] = {
            "packfile": str(file or packfile),
            "version": opened.version,
            "stored_bytes": opened.stored_bytes,
            **asdict(opened.stats),
        }
    show(facts, as_json)


@app.command()
def to_jsonl(
    file: FileArgument = None,
    packfile: PackOption = None,
    *,
    output: OutputOption,
    parallel: Annotated[bool, typer.Option(help="Use all cores.")] = True,
    workers: WorkersOption = None,
    steps: Annotated[bool, typer.Option("--steps", help="A line for each step.")] = False,
    runs_only: Annotated[
        bool, typer.Option("--runs-only", help="A line for each run (the default).")
    ] = False,
    layout: Annotated[
        StepLayout,
        typer.Option(
            help="Steps as the original program writes them, or (seed) with boards as numbers "
            "and a line at the end of each run."
        ),
    ] = StepLayout.ORIGINAL,
    runs: Annotated[
        Path | None,
        typer.Option(
            parser=local_path,
            help="Steps to --output, and the final board, scores and engine of each run here.",
        ),
    ] = None,
    boards: Annotated[
        Boards, typer.Option(help="Boards as numbers or as 16-digit strings.")
    ] = Boards.NUMBER,
    where: WhereOption = None,
    force: ForceOption = False,
) -> None:
    """Write runs or steps as lines of JSON; - is standard output."""
    seed = layout is StepLayout.SEED
    steps = steps or seed or runs is not None
    if steps and runs_only:
        raise ValueError("give --steps or --runs-only, not both")
    if runs and (str(runs) == "-" or runs.resolve() == output.resolve()):
        raise ValueError(f"--runs: expected a file of its own, got {runs}")
    ends = seed and not runs
    options: dict[str, Any] = {"steps": steps, "layout": layout.value, "ends": ends}
    with _open(file, packfile, where) as opened, written(output, force) as path:
        if runs:
            refuse_existing(runs, force)
            opened.to_jsonl(runs, parallel, workers, ends=True, boards=boards.value)
        with progress("writing") as on_progress:
            opened.to_jsonl(
                path, parallel, workers, progress=on_progress, boards=boards.value, **options
            )
        lines, size = opened.stats.total_steps if steps else len(opened), path.stat().st_size
        lines += len(opened) if ends else 0
    if str(output) != "-":
        say(f"{output}: {lines:,} lines, {size:,} bytes")
        if runs:
            say(f"{runs}: {len(opened):,} lines, {runs.stat().st_size:,} bytes")


@app.command()
def to_parquet(
    file: FileArgument = None,
    packfile: PackOption = None,
    *,
    output: OutputOption,
    where: WhereOption = None,
    force: ForceOption = False,
) -> None:
    """Write steps as a Parquet or Arrow file (extra `parquet`), by its name."""
    with _open(file, packfile, where) as opened, progress("writing") as on_progress:
        made = sw.convert(RunSteps(opened), output, force=force, progress=on_progress)
    say(f"{output}: {made.rows:,} steps, {made.target_bytes:,} bytes")


@app.command()
def extract(
    file: FileArgument = None,
    packfile: PackOption = None,
    *,
    indices: Annotated[str, typer.Option(help="Which runs: 0,5,42")],
    output: Annotated[Path, typer.Option(parser=local_path, help="Directory for the files.")],
    force: ForceOption = False,
) -> None:
    """Write the payloads of some entries to files of their own."""
    try:
        wanted = [int(part) for part in indices.split(",")]
    except ValueError:
        raise ValueError(f"--indices: expected numbers like 0,5,42, got {indices!r}") from None
    if output.is_dir() and any(output.iterdir()) and not force:
        raise FileExistsError(f"{output} has files in it; --force replaces those of the same names")
    with _open(file, packfile) as opened:
        for path in opened.extract(wanted, output):
            say(str(path))


@app.command()
def inspect(
    file: FileArgument = None,
    packfile: PackOption = None,
    *,
    index: Annotated[int, typer.Option(help="Which run.")],
    as_json: JsonOption = False,
) -> None:
    """A summary of one run."""
    with _open(file, packfile) as opened:
        kind = opened.kind(index)
        facts: dict[str, Any] = {
            "packfile": str(file or packfile),
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


def _path(file: Path | None, packfile: Path | None) -> Path:
    if (found := file or packfile) is None or (file and packfile):
        raise ValueError("expected one pack: a2pack VERB FILE, or --packfile FILE")
    return found


def _open(file: Path | None, packfile: Path | None, where: str | None = None) -> sw.PackReader:
    opened = sw.PackReader.open(_path(file, packfile))
    return opened if where is None else opened.where(where)

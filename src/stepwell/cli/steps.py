"""`stepwell build`, `append` and `export`: step datasets."""

import csv
import time
from pathlib import Path
from typing import Annotated

import typer

import stepwell as sw
from stepwell.cli.console import (
    JsonOption,
    SkipOption,
    WorkersOption,
    out,
    progress,
    show,
    show_skipped,
)
from stepwell.game2048 import BuildReport, append_runs, build_dataset

RunsArgument = Annotated[
    Path, typer.Argument(metavar="RUNS", help="A directory of run files, or a pack.")
]
DatasetArgument = Annotated[Path, typer.Argument(metavar="DATASET", help="A step dataset.")]


def build(
    runs: RunsArgument,
    output: Annotated[Path, typer.Argument(metavar="OUT", help="Directory for the dataset.")],
    shard_bytes: Annotated[
        int | None, typer.Option(min=32, help="Spread the rows over files of this size.")
    ] = None,
    skip_bad: SkipOption = False,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a step dataset of recorded runs. It appears when it is complete."""
    begin = time.perf_counter()
    with progress("building") as on_progress:
        report = build_dataset(
            runs,
            output,
            shard_bytes=shard_bytes,
            skip_bad=skip_bad,
            threads=workers,
            progress=on_progress,
        )
    _report(report, begin, as_json)


def append(
    dataset: DatasetArgument,
    runs: RunsArgument,
    skip_bad: SkipOption = False,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add recorded runs to a step dataset: all of them, or none."""
    begin = time.perf_counter()
    with progress("appending") as on_progress:
        report = append_runs(
            dataset, runs, skip_bad=skip_bad, threads=workers, progress=on_progress
        )
    _report(report, begin, as_json)


def _report(report: BuildReport, begin: float, as_json: bool) -> None:
    show_skipped([(Path(name), reason) for name, reason in report.skipped])
    facts = {
        "path": str(report.path),
        "runs": report.runs,
        "steps": report.steps,
        "skipped": len(report.skipped),
        "seconds": round(time.perf_counter() - begin, 3),
    }
    show(facts, as_json)


def export(
    dataset: DatasetArgument,
    output: Annotated[
        Path, typer.Argument(metavar="OUT", help="FILE.parquet or FILE.npz: steps; FILE.csv: runs.")
    ],
    where: Annotated[
        str | None, typer.Option("--where", help="Only runs for which this holds.")
    ] = None,
) -> None:
    """Write the steps as Parquet or NPZ, or the runs as CSV; the name says which."""
    kinds = (".parquet", ".npz", ".csv")
    if output.suffix not in kinds:
        raise ValueError(f"{output}: expected a name that ends in {', '.join(kinds)}")
    with sw.StepReader.open(dataset, memory="map") as opened, progress("writing") as on_progress:
        part = opened if where is None else opened.where(where)
        if output.suffix != ".csv":
            sw.convert(part, output, force=True, progress=on_progress)
        else:
            with output.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, part.runs.columns)
                writer.writeheader()
                writer.writerows(part.runs)
    out.print(f"{output}: {output.stat().st_size:,} bytes", markup=False, soft_wrap=True)

"""`stepwell convert`: other formats into a record store, and out of it."""

import enum
import time
from pathlib import Path
from typing import Annotated

import typer

import stepwell as sw
from stepwell.cli.console import JsonOption, progress, show

__all__ = ["convert"]


class Packing(enum.StrEnum):
    RAW = "raw"
    FLATE = "flate"
    ZSTD = "zstd"
    ZSTD_DICT = "zstd-dict"
    LZ4 = "lz4"


class To(enum.StrEnum):
    NPY = "npy"
    NPZ = "npz"
    PARQUET = "parquet"
    ARRAYRECORD = "arrayrecord"
    FOLDER = "folder"


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="A record store; or a .npy, .npz or .parquet file, or a directory of "
            ".array_record or .parquet files, of a Hugging Face dataset or of a folder for each "
            "class.",
        ),
    ],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="What to make: a record store, unless IN is one.")
    ],
    to: Annotated[
        To | None,
        typer.Option(
            help="What to make of a record store, where the name OUT does not say it: "
            "npy, npz, parquet, arrayrecord or folder."
        ),
    ] = None,
    field: Annotated[
        str | None, typer.Option(help="Only this field of the record store IN.")
    ] = None,
    compress: Annotated[
        Packing, typer.Option(help="How the record store OUT packs records.")
    ] = Packing.RAW,
    level: Annotated[
        int | None, typer.Option(min=1, max=19, help="How hard it packs them.")
    ] = None,
    chunk_records: Annotated[
        int, typer.Option(min=1, max=2**31, help="Records in a chunk of it.")
    ] = 8192,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT if it is of another conversion.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a record store of IN, or something else of a record store. The same command goes on
    where it was stopped."""
    begin = time.perf_counter()
    with progress("converting") as on_progress:
        report = sw.convert(
            source,
            target,
            to=None if to is None else to.value,
            field=field,
            compress=compress.value,
            level=level,
            chunk_records=chunk_records,
            overwrite=overwrite,
            on_progress=on_progress,
        )
    show(
        {
            "path": str(report.path),
            "from": report.source_format,
            "to": report.target_format,
            "records": report.records,
            "resumed_at": report.resumed_at,
            "seconds": round(time.perf_counter() - begin, 3),
        },
        as_json,
    )

"""`stepwell convert`: other formats into a record store or shards, and out of them."""

import enum
import time
from pathlib import Path
from typing import Annotated

import typer

import stepwell as sw
from stepwell.cli.console import JsonOption, progress, show

__all__ = ["convert"]


class Packing(enum.StrEnum):
    NONE = "none"
    ZSTD = "zstd"
    ZSTD_DICT = "zstd-dict"
    LZ4 = "lz4"
    GZIP = "gzip"


class To(enum.StrEnum):
    NPY = "npy"
    NPZ = "npz"
    PARQUET = "parquet"
    ARRAYRECORD = "arrayrecord"
    FOLDER = "folder"
    SHARDS = "shards"
    SAFETENSORS = "safetensors"


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="A record store; or a .npy, .npz, .parquet or .safetensors file, or a directory "
            "of .shard, .array_record or .parquet files, of a Hugging Face dataset or of a folder "
            "for each class.",
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="What to make: a record store, unless IN is one, or shards."
        ),
    ],
    to: Annotated[
        To | None,
        typer.Option(
            help="What to make, where the name OUT does not say it: of a record store npy, npz, "
            "parquet, arrayrecord or folder; of a file with an array, shards; of shards npy, npz "
            "or safetensors."
        ),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(help="Only this field of the record store IN; the array to make shards of."),
    ] = None,
    compress: Annotated[
        Packing, typer.Option(help="How the record store OUT packs records.")
    ] = Packing.NONE,
    level: Annotated[
        int | None, typer.Option(min=1, max=19, help="How hard it packs them.")
    ] = None,
    chunk_records: Annotated[
        int, typer.Option(min=1, max=2**31, help="Records in a chunk of it.")
    ] = 8192,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT, unless it is a directory of others.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a record store of IN, or something else of a record store; or shards of an array, and
    back. The same command goes on where it was stopped."""
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

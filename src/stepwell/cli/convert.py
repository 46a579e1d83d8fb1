"""`stepwell convert`: from stores and formats to stores and formats."""

import enum
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

import stepwell as sw
from stepwell.cli.console import (
    ForceOption,
    JsonOption,
    SkipOption,
    WorkersOption,
    err,
    progress,
    show,
    show_skipped,
    visible,
    written,
)
from stepwell.cli.record import register_atari, translated
from stepwell.formats import BY_NAME


class Packing(enum.StrEnum):
    NONE = "none"
    ZSTD = "zstd"
    ZSTD_DICT = "zstd-dict"
    LZ4 = "lz4"
    GZIP = "gzip"


class To(enum.StrEnum):
    RECORDS = "records"
    SHARDS = "shards"
    STEPS = "steps"
    NPY = "npy"
    NPZ = "npz"
    PARQUET = "parquet"
    ARROW = "arrow"
    ARRAYRECORD = "arrayrecord"
    SAFETENSORS = "safetensors"
    FOLDER = "folder"
    JSONL = "jsonl"
    MINARI = "minari"
    VIDEO = "video"


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="A store, a file or folder of a format, minari:NAME, 2048 runs, old telemetry.",
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="OUT", help="What to make, here or at the URL of a bucket; - prints it."
        ),
    ],
    to: Annotated[
        To | None, typer.Option(help="The kind to make, where the name OUT does not show it.")
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="Only this field of IN; may be given several times.")
    ] = None,
    where: Annotated[str | None, typer.Option(help="Only runs for which this holds: SQL.")] = None,
    compress: Annotated[
        Packing, typer.Option(help="How OUT packs records, if it is a record store or a pack.")
    ] = Packing.NONE,
    level: Annotated[
        int | None, typer.Option(min=1, max=19, help="How hard it packs them.")
    ] = None,
    chunk_records: Annotated[
        int, typer.Option(min=1, max=2**31, help="Records in a chunk of it.")
    ] = 8192,
    part_bytes: Annotated[
        int | None, typer.Option(min=1, help="Spread OUT over files of this size.")
    ] = None,
    skip_bad: SkipOption = False,
    without_values: Annotated[
        bool,
        typer.Option(
            "--without-values", help="Take games that recorded no values of moves: NaN for them."
        ),
    ] = False,
    threads: WorkersOption = None,
    fps: Annotated[float | None, typer.Option(help="Frames a second, of a video.")] = None,
    env: Annotated[
        str | None, typer.Option(help="The environment whose spaces a Minari dataset gets.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Do it in pieces with Ray: local, for this machine's cores, or an address."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="With --ray: pieces at once; all cores by default.")
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Add to the store OUT instead of making it.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="With --append: games too that are in OUT already.")
    ] = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a store, a file or a folder of another. Run it again to go on after an interrupt."""
    if not source or not target:
        raise ValueError("IN and OUT: expected two paths, got an empty text")
    if target == "-":
        suffixes = BY_NAME[to.value].suffixes if to and to.value in BY_NAME else ()
        if not suffixes or append or part_bytes:
            raise ValueError("-: expected --to and a format that is one file, to print")
    if ray is None and workers is not None:
        raise ValueError("--workers: expected --ray beside it; --threads is for one process")
    options: dict[str, Any] = {"fps": fps, "env": env}
    options = {name: value for name, value in options.items() if value is not None}
    if ray is not None:
        _check_alone(target, append=append, again=again, threads=threads, **options)
    begin = time.perf_counter()
    register_atari(env or "")
    with (
        written(Path(target), True, suffixes[0]) if target == "-" else nullcontext(target) as out,
        progress("converting") as on_progress,
        translated(env) if env else _kept(target),
    ):
        given: dict[str, Any] = {
            "to": None if to is None else to.value,
            "field": field or None,
            "where": where,
            "compress": compress.value,
            "level": level,
            "chunk_records": chunk_records,
            "part_bytes": part_bytes,
            "skip_bad": skip_bad,
            "without_values": without_values,
            "force": force,
            "progress": on_progress,
        }
        if ray is not None:
            report = sw.ray.convert(source, out, address=ray, workers=workers, **given)
        else:
            mode: Any = "a" if append else "x"
            report = sw.convert(
                source, out, mode=mode, again=again, threads=threads, **given, **options
            )
    show_skipped(report.skipped)
    if target == "-":
        return
    facts = {
        "path": report.path,
        "from": report.source_kind,
        "to": report.target_kind,
        "rows": report.rows,
        "runs": report.runs,
        "skipped": len(report.skipped) or None,
        "resumed_at": report.resumed_at,
        "bytes": report.target_bytes,
        "source_bytes": report.source_bytes,
        "ratio": None if report.ratio is None else round(report.ratio, 3),
        "seconds": round(time.perf_counter() - begin, 3),
    }
    show({name: value for name, value in facts.items() if as_json or value is not None}, as_json)


def _check_alone(target: str, **options: Any) -> None:
    """Raise `ValueError` for options that pieces cannot have."""
    if target == "-":
        raise ValueError("--ray: expected a path to build, got -, which is printed")
    for name, value in options.items():
        if value:
            raise ValueError(f"--ray: expected a new store built in pieces, got --{name}")


@contextmanager
def _kept(target: str) -> Iterator[None]:
    """Report what an interrupted conversion leaves."""
    try:
        yield
    except KeyboardInterrupt:
        kept = Path(f"{target}.part").exists()
        rest = f"; {target}.part keeps what was done, the same command goes on" if kept else ""
        err.print(visible(f"interrupted{rest}"), markup=False, soft_wrap=True)
        raise

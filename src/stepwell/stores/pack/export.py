"""Packs as JSON lines, Parquet and Arrow, in bounded memory and in order."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell import _core
from stepwell.errors import FormatError, SchemaError
from stepwell.files.atomic import new_file
from stepwell.ordered import in_order
from stepwell.source import Rows

if TYPE_CHECKING:
    import pyarrow as pa

    from stepwell.stores.pack.reader import PackReader

__all__ = ["arrow_batches", "to_arrow", "to_jsonl", "to_parquet"]

Progress = Callable[[int, int], None]

# Enough runs for a thread to be busy for milliseconds, few enough for megabytes of text.
_TEXT_CHUNK_BYTES = 1 << 18
_ROW_GROUP_BYTES = 1 << 23


def to_jsonl(
    pack: "PackReader",
    path: Path,
    threads: int,
    steps: bool,
    hex_boards: bool,
    on_progress: Progress | None,
) -> None:
    _refuse_self(pack, path)
    _only_runs(pack)

    def lines(rows: Rows) -> tuple[int, Any]:
        try:
            file, entries = pack._payloads(rows, 1)
            text = _core.to_jsonl(
                file, entries.view(np.uint8), pack._numbers[rows], pack._path, steps, hex_boards
            )
        except FormatError:
            pack._decode(rows, threads=1)  # knows which run to name, and where in the file it is
            raise
        pack._scanned(rows)
        return len(rows), text

    done = 0
    chunks = _chunks(pack, _TEXT_CHUNK_BYTES)
    ahead = None if threads > 1 else 0
    with new_file(path) as out:
        for runs, text in in_order(lines, chunks, threads, ahead=ahead):
            out.write(text.data)
            done += runs
            if on_progress is not None:
                on_progress(done, len(pack))


def to_parquet(pack: "PackReader", path: Path, on_progress: Progress | None) -> None:
    parquet = _library("pyarrow.parquet")
    _refuse_self(pack, path)
    with new_file(path) as out, parquet.ParquetWriter(out, _arrow_schema()) as writer:
        for batch in _record_batches(pack, on_progress):
            writer.write_batch(batch, row_group_size=max(len(batch), 1))


def to_arrow(pack: "PackReader", path: Path, on_progress: Progress | None) -> None:
    ipc = _library("pyarrow.ipc")
    _refuse_self(pack, path)
    with new_file(path) as out, ipc.new_file(out, _arrow_schema()) as writer:
        for batch in _record_batches(pack, on_progress):
            writer.write_batch(batch)


def arrow_batches(pack: "PackReader") -> "pa.RecordBatchReader":
    arrow = _library("pyarrow")
    reader: pa.RecordBatchReader = arrow.RecordBatchReader.from_batches(
        _arrow_schema(), _record_batches(pack, None)
    )
    return reader


def _arrow_schema() -> "pa.Schema":
    arrow = _library("pyarrow")
    four = arrow.list_(arrow.field("item", arrow.float32(), nullable=False), 4)
    columns = {
        "run_idx": arrow.int64(),
        "step_idx": arrow.uint32(),
        "board": arrow.uint64(),
        "move": arrow.uint8(),
        "ev_legal": arrow.uint8(),
        "ev_values": four,
        "has_branches": arrow.bool_(),
    }
    return arrow.schema([arrow.field(n, kind, nullable=False) for n, kind in columns.items()])


def _record_batches(pack: "PackReader", on_progress: Progress | None) -> "Iterator[pa.RecordBatch]":
    _only_runs(pack)
    arrow, schema = _library("pyarrow"), _arrow_schema()
    done = 0
    for rows in _chunks(pack, _ROW_GROUP_BYTES):
        runs = pack._decode(rows)
        lengths = np.diff(runs.offsets)
        within = np.arange(len(runs.boards)) - np.repeat(runs.offsets[:-1], lengths)
        yield arrow.record_batch(
            [
                arrow.array(np.repeat(pack._numbers[rows], lengths)),
                arrow.array(within.astype(np.uint32)),
                arrow.array(runs.boards),
                arrow.array(runs.moves),
                arrow.array(runs.ev_legal),
                arrow.FixedSizeListArray.from_arrays(
                    arrow.array(runs.ev_values.reshape(-1)), type=schema.field("ev_values").type
                ),
                arrow.array(runs.has_branches),
            ],
            schema=schema,
        )
        pack._scanned(rows)
        done += len(rows)
        if on_progress is not None:
            on_progress(done, len(pack))


def _chunks(pack: "PackReader", size: int) -> Iterator[Rows]:
    """Neighbouring runs of about this many bytes together, at least one run."""
    for rows in pack._chunks(65_536):
        entries = pack._entries[rows]
        ends = np.cumsum(np.maximum(entries["length"], entries["reserved"]), dtype=np.int64)
        yield from np.split(rows, np.flatnonzero(np.diff(ends // size)) + 1)


def _refuse_self(pack: "PackReader", path: Path) -> None:
    if path.exists() and path.samefile(pack.path):
        raise ValueError(f"{path} is the pack itself")


def _only_runs(pack: "PackReader") -> None:
    if not pack._all_runs:
        raise SchemaError("only runs have steps; this pack holds other payloads too")


def _library(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError("this needs an extra: pip install 'stepwell[parquet]'") from error

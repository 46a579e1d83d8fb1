"""Parquet files, and folders of them."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.files.atomic import new_file
from stepwell.formats import arrow
from stepwell.formats.parts import PART_BYTES, Part, write_series
from stepwell.formats.streams import BATCH_BYTES, Progress, rows_of
from stepwell.source import Batch, Source

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ParquetSource", "write", "write_folder"]

SUFFIX = ".parquet"
_MOST_ROWS = 1 << 16
_GROUP_BYTES = 4 * BATCH_BYTES


class ParquetSource(arrow.Tables):
    """The rows of a file, or of all `.parquet` files of a folder in the order of their names."""

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        where = Path(path)
        super().__init__(where, sorted(where.glob(f"*{SUFFIX}")) if where.is_dir() else [where])

    def _look(self, file: Path) -> "tuple[pa.Schema, int]":
        with _opened(file) as opened:
            return opened.schema_arrow, opened.metadata.num_rows

    def _tables(self, file: Path, skip: int, names: list[str]) -> "Iterator[pa.RecordBatch]":
        with _opened(file) as opened:
            first, _ = _group_of(opened.metadata, skip)
            for group in range(first, opened.num_row_groups):
                facts = opened.metadata.row_group(group)
                count = min(_MOST_ROWS, rows_of(facts.total_byte_size // max(1, facts.num_rows)))
                # On this thread: the others would read ahead, and wait for nobody.
                found = opened.iter_batches(
                    count, row_groups=[group], columns=names, use_threads=False
                )
                while True:
                    with arrow.arrow_damage(file):
                        rows = next(found, None)
                    if rows is None:
                        break
                    yield rows

    def _skipped(self, file: Path, skip: int) -> int:
        with _opened(file) as opened:
            return _group_of(opened.metadata, skip)[1]


def _group_of(metadata: Any, row: int) -> tuple[int, int]:
    """The row group that a row is in, and the rows before it."""
    begin = 0
    for group in range(metadata.num_row_groups):
        end = begin + metadata.row_group(group).num_rows
        if row < end:
            return group, begin
        begin = end
    return metadata.num_row_groups, begin


def _opened(file: Path) -> Any:
    arrow.library()
    from pyarrow import parquet

    file.stat()
    with arrow.arrow_damage(file):
        # Row groups may be as large as the file: their pages are read as they are needed.
        return parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)


def write(source: Source, path: Path, *, progress: Progress) -> None:
    """Write one file. After a kill this begins again; a folder of parts goes on."""
    schema = arrow.schema_of(source)
    with new_file(path) as out:
        _write(out, schema, arrow.record_batches(source, schema, progress))


def write_folder(
    source: Source, part: Part, *, progress: Progress, part_bytes: int = PART_BYTES
) -> None:
    """Write a folder of files of about `part_bytes`."""
    schema = arrow.schema_of(source)

    def write_part(path: Path, batches: Iterator[Batch]) -> None:
        _write(path, schema, (arrow.record_batch(batch, schema) for batch in batches))

    write_series(source, part, SUFFIX, write_part, part_bytes, progress)


def _write(out: Any, schema: "pa.Schema", batches: "Iterator[pa.RecordBatch]") -> None:
    pyarrow = arrow.library()
    from pyarrow import parquet

    with parquet.ParquetWriter(out, schema) as writer:
        held: list[pa.RecordBatch] = []
        size = 0

        def flush() -> None:
            if held:
                table = pyarrow.Table.from_batches(held, schema)
                writer.write_table(table, row_group_size=max(1, len(table)))
            held.clear()

        for batch in batches:
            held.append(batch)
            size += batch.nbytes
            if size >= _GROUP_BYTES:
                flush()
                size = 0
        flush()

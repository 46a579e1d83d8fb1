"""Parquet files, and folders of them."""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.arrow import library, record_batch, schema_of
from stepwell.batches import BATCH_BYTES, in_order, rows_of
from stepwell.files.atomic import new_file
from stepwell.formats import arrow
from stepwell.formats.parts import PART_BYTES, Part, write_series
from stepwell.formats.streams import Progress
from stepwell.source import Batch, Source

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".parquet"
_MAX_ROWS = 1 << 16
_GROUP_BYTES = 4 * BATCH_BYTES


class ParquetSource(arrow.Tables):
    """The rows of a file, or of all `.parquet` files of a folder in the order of their names."""

    kind = "parquet"
    noun = "Parquet"

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        where = Path(path)
        super().__init__(where, sorted(where.glob(f"*{SUFFIX}")) if where.is_dir() else [where])

    def _look(self, file: Path) -> "tuple[pa.Schema, int]":
        with _opened(file) as opened:
            return opened.schema_arrow, opened.metadata.num_rows

    def _tables(
        self, file: Path, skip: int, names: list[str]
    ) -> "Iterator[tuple[int, pa.RecordBatch]]":
        with _opened(file) as opened, arrow.arrow_damage(file):
            end = 0
            for group in range(opened.num_row_groups):
                facts = opened.metadata.row_group(group)
                begin, end = end, end + facts.num_rows
                if end <= skip:
                    continue
                count = min(_MAX_ROWS, rows_of(facts.total_byte_size // max(1, facts.num_rows)))
                # On this thread: the others would read ahead, and wait for nobody.
                for rows in opened.iter_batches(
                    count, row_groups=[group], columns=names, use_threads=False
                ):
                    yield begin, rows
                    begin += len(rows)


def _opened(file: Path) -> Any:
    library()
    from pyarrow import parquet

    file.stat()
    with arrow.arrow_damage(file):
        # Row groups may be as large as the file: their pages are read as they are needed.
        return parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)


def write(source: Source, path: Path, *, progress: Progress) -> None:
    """Write one file. After a kill this begins again; a folder of parts goes on."""
    schema = schema_of(source)
    with new_file(path, follow=True) as out:
        _write(schema, out, in_order(source, progress=progress))


def write_folder(
    source: Source, part: Part, *, progress: Progress, part_bytes: int = PART_BYTES
) -> None:
    """Write a folder of files of about `part_bytes`."""
    write_file = partial(_write, schema_of(source))
    write_series(source, part, SUFFIX, write_file, part_bytes, progress)


def _write(schema: "pa.Schema", out: Any, batches: Iterator[Batch]) -> None:
    pyarrow = library()
    from pyarrow import parquet

    with parquet.ParquetWriter(out, schema) as writer:
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in chain(batches, [None]):
            if batch is not None:
                held.append(record_batch(batch, schema))
                size += held[-1].nbytes
            if held and (batch is None or size >= _GROUP_BYTES):
                table = pyarrow.Table.from_batches(held, schema)
                writer.write_table(table, row_group_size=max(1, len(table)))
                held, size = [], 0

"""Parquet files and directories of them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.converters import arrow
from stepwell.converters.incoming import (
    BATCH_BYTES,
    Incoming,
    damage_in,
    files_sum,
    rows_of,
    size_of,
)
from stepwell.converters.outgoing import Outgoing
from stepwell.converters.parts import PartFolder
from stepwell.converters.series import write_series
from stepwell.errors import SchemaError
from stepwell.files.atomic import new_file
from stepwell.source import Batch

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["open_parquet", "write_parquet", "write_parquet_parts"]

_MOST_ROWS = 1 << 16
_GROUP_BYTES = 4 * BATCH_BYTES


def open_parquet(path: Path) -> Incoming:
    """The rows of a file, or of all `.parquet` files of a directory in the order of their names."""
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    counts = []
    schema: pa.Schema = None
    for file in files:
        with _opened(file) as opened:
            found = opened.schema_arrow.remove_metadata()
            counts.append(opened.metadata.num_rows)
        if schema is None:
            schema = found
        elif not found.equals(schema):
            raise SchemaError(f"{file}: expected the columns of {files[0].name}, got others")
    try:
        columns = arrow.columns_of(schema)
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}") from None
    times = arrow.times_of(schema)

    def batches(first: int) -> Iterator[Batch]:
        begin = 0
        for file, count in zip(files, counts, strict=True):
            if first < begin + count:
                yield from _batches(file, begin, first)
            begin += count

    listed = [(file.name, file.stat()) for file in files]
    attributes = {arrow.TYPES: times} if times else {}
    return Incoming("parquet", columns, sum(counts), files_sum(listed), batches, attributes)


def _batches(file: Path, begin: int, first: int) -> Iterator[Batch]:
    """The rows of a file from `first` on; `begin` is the number of its first one."""
    with _opened(file) as opened:
        for group in range(opened.num_row_groups):
            facts = opened.metadata.row_group(group)
            end = begin + facts.num_rows
            if end <= first:
                begin = end
                continue
            count = min(_MOST_ROWS, rows_of(facts.total_byte_size // max(1, facts.num_rows)))
            # On this thread: the others would read ahead, and be asked to wait for nobody.
            found = opened.iter_batches(count, row_groups=[group], use_threads=False)
            while True:
                with _damage_in(file):
                    rows = next(found, None)
                if rows is None:
                    break
                after = begin + len(rows)
                if after > first:
                    skipped = max(0, first - begin)
                    yield _named(file, rows.slice(skipped), begin + skipped)
                begin = after


def _named(file: Path, rows: "pa.RecordBatch", first: int) -> Batch:
    try:
        return arrow.batch_of(rows, first)
    except SchemaError as error:
        raise SchemaError(f"{file}: {error}") from None


def _opened(file: Path) -> Any:
    arrow.library()
    from pyarrow import parquet

    with _damage_in(file):
        # Row groups may be as large as the file: their pages are read as they are needed.
        return parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)


def _damage_in(file: Path) -> Any:
    return damage_in(file, arrow.library().ArrowException, OSError)


def write_parquet(source: Outgoing, path: Path, on_progress: Callable[[int, int], None]) -> None:
    """Write one file. After a kill this begins anew; a directory of parts goes on."""
    schema = _schema_of(source)

    def told() -> Iterator[Batch]:
        done = 0
        for batch in source.batches(0):
            yield batch
            done += len(next(iter(batch.values())))
            on_progress(done, source.total)

    with new_file(path) as out:
        _write(out, schema, told())


def write_parquet_parts(
    source: Outgoing,
    folder: PartFolder,
    part_bytes: int,
    on_progress: Callable[[int, int], None],
) -> None:
    """Write a directory of files."""
    schema = _schema_of(source)

    def write_part(path: Path, batches: Iterator[Batch]) -> None:
        _write(path, schema, batches)

    write_series(source, folder, ".parquet", write_part, part_bytes, on_progress)


def _schema_of(source: Outgoing) -> "pa.Schema":
    times = source.store.attributes.get(arrow.TYPES)
    return arrow.schema_of(source.columns, times)


def _write(out: Any, schema: "pa.Schema", batches: Iterator[Batch]) -> None:
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
            held.append(arrow.record_batch(batch, schema))
            size += size_of(batch)
            if size >= _GROUP_BYTES:
                flush()
                size = 0
        flush()

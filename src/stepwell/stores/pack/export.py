"""Packs as JSON lines, Parquet and Arrow, in bounded memory and in order."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.errors import FormatError, SchemaError
from stepwell.files.atomic import new_file
from stepwell.ordered import in_order
from stepwell.source import Rows
from stepwell.store import Progress
from stepwell.stores.pack.layout import groups
from stepwell.stores.pack.payload import PayloadType

if TYPE_CHECKING:
    import pyarrow as pa

    from stepwell.stores.pack.reader import PackReader

# Enough items for a thread to be busy for milliseconds, few enough for megabytes of text.
_TEXT_CHUNK_BYTES = 1 << 18
_ROW_GROUP_BYTES = 1 << 23


def to_jsonl(
    pack: "PackReader",
    path: Path,
    threads: int,
    progress: Progress,
    options: Mapping[str, Any],
) -> None:
    _refuse_self(pack, path)
    text_of = _only_type(pack).json_lines(**options)

    def lines(rows: Rows) -> tuple[int, Any]:
        try:
            numbers = pack._numbers[rows]
            file, entries = pack._opened.payloads(pack._entries[rows], numbers, 1)
            text = text_of(file, entries, numbers, pack.path)
        except FormatError:
            pack._decode(rows, threads=1)  # knows which item to name, and where in the file it is
            raise
        pack._scanned(rows)
        return len(rows), text

    done = 0
    chunks = _chunks(pack, _TEXT_CHUNK_BYTES)
    ahead = None if threads > 1 else 0
    with new_file(path) as out:
        for items, text in in_order(lines, chunks, threads, ahead=ahead):
            out.write(text.data)
            done += items
            progress(done, len(pack))


def to_parquet(pack: "PackReader", path: Path, progress: Progress) -> None:
    schema = _schema(pack, path)
    from pyarrow.parquet import ParquetWriter

    with new_file(path) as out, ParquetWriter(out, schema) as writer:
        for batch in _record_batches(pack, progress):
            writer.write_batch(batch, row_group_size=max(len(batch), 1))


def to_arrow(pack: "PackReader", path: Path, progress: Progress) -> None:
    schema = _schema(pack, path)
    from pyarrow import ipc

    with new_file(path) as out, ipc.new_file(out, schema) as writer:
        for batch in _record_batches(pack, progress):
            writer.write_batch(batch)


def arrow_batches(pack: "PackReader") -> "pa.RecordBatchReader":
    schema = _schema(pack)
    from pyarrow import RecordBatchReader

    return RecordBatchReader.from_batches(schema, _record_batches(pack, lambda done, total: None))


def _schema(pack: "PackReader", path: Path | None = None) -> "pa.Schema":
    if path is not None:
        _refuse_self(pack, path)
    try:
        return _only_type(pack).arrow_schema()
    except ImportError as error:
        raise ImportError("this needs an extra: pip install 'stepwell[parquet]'") from error


def _record_batches(pack: "PackReader", progress: Progress) -> "Iterator[pa.RecordBatch]":
    done = 0
    for rows in _chunks(pack, _ROW_GROUP_BYTES):
        yield pack._type.arrow_batch(pack._decode(rows), pack._numbers[rows])
        pack._scanned(rows)
        done += len(rows)
        progress(done, len(pack))


def _chunks(pack: "PackReader", size: int) -> Iterator[Rows]:
    """Neighbouring entries of about this many bytes together, at least one."""
    for rows in pack._chunks(65_536):
        entries = pack._entries[rows]
        sizes = np.maximum(entries["length"], entries["reserved"])
        yield from (rows[part] for part in groups(sizes, size))


def _refuse_self(pack: "PackReader", path: Path) -> None:
    if path.exists() and path.samefile(pack.path):
        raise ValueError(f"{path} is the pack itself")


def _only_type(pack: "PackReader") -> PayloadType:
    """The type of all payloads of a pack."""
    known = pack._type
    other = ~known.mask(pack._entries["kind"])
    if other.any():
        row = int(other.argmax())
        raise SchemaError(
            f"expected {known.name} only, got {pack.kind(row)} as entry {pack._numbers[row]} of "
            f"{pack.path}"
        )
    return known

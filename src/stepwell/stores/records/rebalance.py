"""Live records, in order, in new chunks under the next generation."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stepwell import _core
from stepwell.files.atomic import sync_path
from stepwell.stores.records.chunk import ChunkFile
from stepwell.stores.records.journal import Change
from stepwell.stores.records.layout import CHUNKS, ENTRY, sums_path, table_path
from stepwell.stores.records.meta import ChunkState
from stepwell.stores.records.tables import TableFile
from stepwell.stores.records.writer import RecordWriter

__all__ = ["rebalance"]

_LOOK_ROWS = 1 << 16
_SLAB_BYTES = 1 << 23
_FRAME = 32


def rebalance(
    writer: RecordWriter,
    records: _core.Records,
    chunk_records: int | None,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """Nothing but new files until the last step, which is one rename."""
    root, old = writer.root, writer.meta
    writer.checkpoint()
    generation, length = old.generation + 1, old.length
    size = chunk_records or old.chunk_records
    tables: list[TableFile] = []
    chunk: ChunkFile | None = None
    first_chunk = writer.meta.next_chunk
    numbers = list(range(len(old.fields)))
    try:
        for name in old.fields:
            paths = table_path(root, name, generation), sums_path(root, name, generation)
            for path in paths:
                path.unlink(missing_ok=True)
            tables.append(TableFile(*paths))
        at = 0
        while at < length:
            look = np.arange(at, min(at + _LOOK_ROWS, length), dtype=np.int64)
            places = records.places(look, numbers).view(ENTRY).reshape(len(numbers), -1)
            ends = np.cumsum(places["length"].sum(0, dtype=np.int64) + _FRAME * len(numbers))
            begin = 0
            while begin < len(look):
                if chunk is None or chunk.records >= size:
                    if chunk is not None:
                        chunk.sync()
                        chunk.close(cut=True)
                    chunk = writer.new_chunk()
                limit = (int(ends[begin - 1]) if begin else 0) + _SLAB_BYTES
                fit = max(int(np.searchsorted(ends, limit, "right")), begin + 1)
                end = min(fit, begin + size - chunk.records)
                rows = look[begin:end]
                part = np.ascontiguousarray(places[:, begin:end]).view(np.uint8).reshape(-1)
                frames, made = records.copy_frames(rows, part, rows, chunk.id, chunk.position)
                chunk.write(frames, len(rows))
                entries = made.view(ENTRY).reshape(len(numbers), -1)
                for table, appended in zip(tables, entries, strict=True):
                    empty = np.empty(0, np.int64)
                    change = Change(int(rows[0]), appended, empty, np.empty(0, ENTRY))
                    table.change(change, int(rows[-1]) + 1)
                begin = end
            at += len(look)
            if on_progress is not None:
                on_progress(at, length)
        unfull: tuple[ChunkState, ...] = ()
        if chunk is not None:
            chunk.sync()
            unfull = (chunk.state,) if chunk.records < size else ()
        for table in tables:
            table.cut(length)
            table.sync()
    finally:
        for table in tables:
            table.close()
        if chunk is not None:
            chunk.close(cut=True)
    sync_path(root / CHUNKS)
    sync_path(root)
    writer.switch(
        replace(
            writer.meta,
            generation=generation,
            peak=length,
            chunk_records=size,
            first_chunk=first_chunk,
            unfull=unfull,
        )
    )

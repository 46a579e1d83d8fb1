"""Live records, in order, in new chunks under the next generation."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.files.atomic import sync_path
from stepwell.ordered import in_order
from stepwell.source import Rows
from stepwell.stores.records.chunk import ChunkFile, OpenChunks
from stepwell.stores.records.journal import Change
from stepwell.stores.records.layout import CHUNKS, ENTRY, FRAME_BYTES, chunk_name, table_names
from stepwell.stores.records.meta import Meta
from stepwell.stores.records.tables import TableFile

_LOOK_ROWS = 1 << 16
# As with appends. For larger writes the system takes larger pages, and a virtual machine has
# given those that were free for a while back to its host.
_SLAB_BYTES = 1 << 20


class _Slab(NamedTuple):
    """Records that are copied together, and where they go."""

    rows: Rows
    places: NDArray[Any]
    chunk: ChunkFile
    position: int


def rebalance(
    root: Path,
    old: Meta,
    records: _core.Records,
    *,
    chunk_records: int,
    grow_bytes: int,
    progress: Callable[[int, int], None] | None,
) -> Meta:
    """Write new files, and return the meta.json that will make them the store."""
    generation, first_chunk = old.generation + 1, old.next_chunk
    made = replace(
        old,
        generation=generation,
        peak=old.length,
        chunk_records=chunk_records,
        first_chunk=first_chunk,
        deletes=0,
        unfull=(),
    )
    chunks = OpenChunks(root, made, grow_bytes)
    with _removed_if_it_fails(root, made, chunks), ExitStack() as opened:
        opened.callback(chunks.close, cut=True)
        tables = []
        for name in old.fields:
            names = table_names(name, generation)
            for each in names:
                (root / each).unlink(missing_ok=True)
            tables.append(TableFile(root, *names))
            opened.callback(tables[-1].close)

        def copied(slab: _Slab) -> tuple[_Slab, NDArray[np.uint8], NDArray[Any]]:
            flat = np.ascontiguousarray(slab.places).view(np.uint8).reshape(-1)
            frames, entries = records.copy_frames(
                slab.rows, flat, slab.rows, slab.chunk.id, slab.position
            )
            return slab, frames, entries.view(ENTRY).reshape(len(tables), -1)

        chunk: ChunkFile | None = None
        nothing = np.empty(0, np.int64), np.empty(0, ENTRY)
        for slab, frames, entries in in_order(copied, _plan(records, made, chunks.begin), 1):
            if chunk is not None and chunk is not slab.chunk:
                chunk.close(cut=True)
            chunk, end = slab.chunk, int(slab.rows[-1]) + 1
            chunk.write(frames, len(slab.rows))
            for table, appended in zip(tables, entries, strict=True):
                table.change(Change(int(slab.rows[0]), appended, *nothing), end)
            if progress is not None:
                progress(end, old.length)
        # At the end, all of them: the disk has been at work all the while.
        for state in chunks.states():
            sync_path(root / chunk_name(state.id))
        for table in tables:
            table.cut(old.length)
            table.sync()
    sync_path(root / CHUNKS)
    sync_path(root)
    return replace(made, next_chunk=chunks.next, unfull=chunks.unfull)


@contextmanager
def _removed_if_it_fails(root: Path, made: Meta, chunks: OpenChunks) -> Iterator[None]:
    """A rebalance that was stopped, by a full disk perhaps, leaves nothing behind."""
    try:
        yield
    except BaseException:
        chunks.rollback()
        for name in made.fields:
            for each in table_names(name, made.generation):
                (root / each).unlink(missing_ok=True)
        raise


def _plan(
    records: _core.Records, meta: Meta, new_chunk: Callable[[], ChunkFile]
) -> Iterator[_Slab]:
    """All records in order, in slabs of about a megabyte that do not cross a chunk."""
    numbers = list(meta.numbers.values())
    chunk, position, room = None, 0, 0
    for at in range(0, meta.length, _LOOK_ROWS):
        rows = np.arange(at, min(at + _LOOK_ROWS, meta.length), dtype=np.int64)
        places = records.places(rows, numbers).view(ENTRY).reshape(len(numbers), -1)
        aligned = (places["length"].astype(np.int64) + 7) // 8 * 8 + FRAME_BYTES
        ends = np.cumsum(np.where(places["offset"] > 0, aligned, 0).sum(0))
        begin = 0
        while begin < len(rows):
            if chunk is None or not room:
                chunk, position, room = new_chunk(), 0, meta.chunk_records
            before = int(ends[begin - 1]) if begin else 0
            fit = max(int(np.searchsorted(ends, before + _SLAB_BYTES, "right")), begin + 1)
            end = min(fit, begin + room)
            yield _Slab(rows[begin:end], places[:, begin:end], chunk, position)
            position += int(ends[end - 1]) - before
            room -= end - begin
            begin = end

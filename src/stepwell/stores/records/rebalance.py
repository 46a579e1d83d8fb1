"""Live records, in order, in new chunks under the next generation."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.files.atomic import sync_path
from stepwell.source import Rows
from stepwell.store import Progress
from stepwell.stores.records.chunk import OpenChunks
from stepwell.stores.records.layout import ENTRY, FRAME_BYTES, table_names
from stepwell.stores.records.meta import Meta
from stepwell.stores.records.tables import Change, Entries, TableFile

_LOOK_ROWS = 1 << 16


def rebalance(
    root: Path, old: Meta, records: _core.Records, grow_bytes: int, progress: Progress | None
) -> Meta:
    """Write new files, and return the meta.json that will make them the store.

    When it is stopped, by a full disk perhaps, it leaves nothing behind.
    """
    made = replace(
        old,
        generation=old.generation + 1,
        peak=old.length,
        first_chunk=old.next_chunk,
        deletes=0,
        unfull=(),
    )

    def copied(
        rows: Rows, places: Entries, begin: int, end: int, chunk: int, position: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        if progress is not None:
            progress(int(rows[end - 1]) + 1, old.length)
        flat = np.ascontiguousarray(places[:, begin:end]).view(np.uint8).reshape(-1)
        return records.copy_frames(rows[begin:end], flat, rows[begin:end], chunk, position)

    chunks = OpenChunks(root, made, grow_bytes)
    names = [table_names(name, made.generation) for name in made.fields]
    _remove(root, names)
    try:
        with ExitStack() as opened:
            opened.callback(chunks.close, cut=True)
            tables = []
            for each in names:
                tables.append(TableFile(root, *each))
                opened.callback(tables[-1].close)
            for at in range(0, old.length, _LOOK_ROWS):
                rows = np.arange(at, min(at + _LOOK_ROWS, old.length), dtype=np.int64)
                places = records.places(rows, range(len(names))).view(ENTRY).reshape(len(names), -1)
                aligned = (places["length"].astype(np.int64) + 7) // 8 * 8 + FRAME_BYTES
                ends = np.cumsum(np.where(places["offset"] > 0, aligned, 0).sum(0))
                (chunk,), make = chunks.with_room(1), partial(copied, rows, places)
                entries = chunks.put(chunk, ends, 0, len(rows), make)
                for table, appended in zip(tables, entries, strict=True):
                    table.change(Change(at, appended), at + len(rows))
            chunks.sync()  # of all of them: the disk has been at work all the while
            for table in tables:
                table.cut(old.length)
                table.sync()
    except BaseException:
        chunks.rollback()
        _remove(root, names)
        raise
    sync_path(root)
    return replace(made, next_chunk=chunks.next, unfull=chunks.unfull)


def _remove(root: Path, names: list[tuple[str, str]]) -> None:
    for name in (name for both in names for name in both):
        (root / name).unlink(missing_ok=True)

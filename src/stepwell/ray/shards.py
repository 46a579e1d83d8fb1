"""Activation shards: each is written by a task, and then moved to where it belongs."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from stepwell.batches import in_order
from stepwell.errors import FormatError
from stepwell.formats.into_shards import rows_of
from stepwell.formats.parts import PART_BYTES
from stepwell.ray.finished import Facts
from stepwell.ray.origin import Origin, Rows
from stepwell.ray.work import Piece, Work
from stepwell.stores import ShardWriter
from stepwell.stores.shards.layout import Shard


@dataclass(frozen=True)
class _Kind:
    """What a shard is like."""

    name: str
    width: int
    dtype: str
    shard_bytes: int


def build(work: Work, origin: Origin) -> None:
    """Make the folder of shards."""
    rows = origin.rows
    size = work.request.options.get("part_bytes", PART_BYTES)
    kind = _Kind(*rows_of(rows), size)
    step = max(size // Shard("", 0, kind.width, kind.dtype).row_bytes, 1)
    with ShardWriter(work.made, kind.width, kind.dtype, mode="a", shard_bytes=size) as writer:
        moved, pieces, folders = writer.rows, list[Piece](), list[Path]()
        for number, at in enumerate(range(0, len(rows), step)):
            part = range(at, min(at + step, len(rows)))
            folders.append(work.finished.folder / f"rows-{number:06}.shards")
            there = None if at < moved else folders[-1]  # moved before a kill
            pieces.append(Piece(part, (folders[-1], kind, origin.of(part)), there))
        work.do("rows", _written, pieces)
        for folder in folders[-(-moved // step) :]:
            writer.adopt(folder)
        if writer.rows != len(rows):
            raise FormatError(f"expected {len(rows)} rows, got {writer.rows}", path=str(work.made))


def _written(folder: Path, kind: _Kind, rows: Rows) -> Facts:
    """Write a corpus of one shard."""
    shutil.rmtree(folder, ignore_errors=True)  # of a task that was killed
    with ShardWriter(folder, kind.width, kind.dtype, shard_bytes=kind.shard_bytes) as writer:
        for batch in in_order(rows.open()):
            writer.append(batch[kind.name])
    return {}

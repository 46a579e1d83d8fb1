"""A record store, whose chunks tasks write, and the store's own writer takes over."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from stepwell.batches import in_order
from stepwell.field import Field
from stepwell.formats.into_records import Plan
from stepwell.ray.finished import Facts
from stepwell.ray.origin import Origin, Rows
from stepwell.ray.work import Piece, Work, piece_bytes
from stepwell.stores import RecordWriter
from stepwell.stores.records.assembly import PartRecords, adopt, give_back, learned


@dataclass(frozen=True)
class _Place:
    """Where the records of a piece go."""

    folder: Path
    fields: dict[str, Field]
    names: dict[str, str]
    chunk_records: int
    first: int
    dictionaries: list[Path]


def build(work: Work, origin: Origin) -> None:
    """Make the store."""
    rows, options = origin.rows, dict(work.request.options)
    size = options.pop("chunk_records")
    fields, names, attributes = Plan.of(rows, **options)
    first = next(in_order(rows), None) if len(rows) else None
    words: list[Path] = []
    if first is not None:
        batch = {names[name]: values for name, values in first.items()}
        words = learned(work.finished.folder / "words", fields, batch)
    each = max(rows.nbytes // max(len(rows), 1), 1)
    step = max(piece_bytes(rows.nbytes) // (each * size), 1) * size
    pieces, folders = [], []
    for number, at in enumerate(range(0, len(rows), step)):
        part = range(at, min(at + step, len(rows)))
        folders.append(work.finished.folder / f"rows-{number:06}.chunks")
        place = _Place(folders[-1], fields, names, size, at, words)
        pieces.append(Piece(part, (place, origin.of(part)), folders[-1]))
    facts = work.do("rows", _written, pieces)
    if work.made.exists():  # killed while it was put together: nobody has opened it since
        for folder, known in zip(folders, facts, strict=True):
            give_back(work.made, folder, known)
        shutil.rmtree(work.made)
    with RecordWriter(
        work.made, fields, mode="a", chunk_records=size, attributes=attributes
    ) as writer:
        for path in words:
            shutil.copyfile(path, work.made / path.name)
        for folder, known in zip(folders, facts, strict=True):
            adopt(writer, folder, known)


def _written(place: _Place, rows: Rows) -> Facts:
    """Write the records of a piece."""
    part = PartRecords(
        *(place.folder, place.fields, place.chunk_records, place.first, place.dictionaries)
    )
    try:
        for batch in in_order(rows.open()):
            part.append({place.names[name]: values for name, values in batch.items()})
        return part.finish()
    finally:
        part.close()

"""A store made anew from what is in the chunks of a damaged one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.files.atomic import write_file
from stepwell.stores.records.journal import read_commits
from stepwell.stores.records.layout import CHUNKS, ENTRY, JOURNAL, RecordField, dictionary_path
from stepwell.stores.records.meta import Meta
from stepwell.stores.records.tables import map_file
from stepwell.stores.records.writer import RecordWriter, create_store, load_dictionary

__all__ = ["SalvageReport", "salvage"]

_FOUND = np.dtype(
    [
        ("offset", "<u8"),
        ("record", "<u8"),
        ("stored", "<u4"),
        ("length", "<u4"),
        ("field", "<u2"),
        ("codec", "<u2"),
        ("chunk", "<u4"),
    ]
)
_ROWS = 4096


@dataclass(frozen=True)
class SalvageReport:
    """What was found."""

    records: int
    """In the new store."""
    frames: int
    """Whole frames, older ones of a record included."""
    missing: int
    """Fields of records for which no whole frame was found."""
    lost_bytes: int
    """Bytes of chunks that are no whole frame."""
    returned: int
    """Records beyond the length that the store had: moved or deleted ones, under old numbers."""


def salvage(
    path: Path,
    out: Path,
    fields: dict[str, RecordField] | None,
    on_progress: Callable[[int, int], None] | None,
) -> SalvageReport:
    """Find the newest whole frame of every record, and copy it to a new store."""
    meta = _known(path, fields)
    frames, lost = _frames(path, meta)
    known = list(meta.fields.values())
    fit = frames["field"] < len(known)
    items = np.array([field.item_bytes for field in known])[np.where(fit, frames["field"], 0)]
    ragged = np.array([field.ragged for field in known])[np.where(fit, frames["field"], 0)]
    fit &= np.where(ragged, frames["length"] % items == 0, frames["length"] == items)
    # The sum of a frame does not cover its number: one that is out of bounds is damaged.
    fit &= frames["record"] < (meta.peak if fields is None else 16 * len(frames) + (1 << 16))
    lost += int(frames["stored"][~fit].sum(dtype=np.int64))
    frames = frames[fit]
    order = np.lexsort((frames["offset"], frames["chunk"], frames["record"], frames["field"]))
    frames = frames[order]
    same = (frames["field"][1:] == frames["field"][:-1]) & (
        frames["record"][1:] == frames["record"][:-1]
    )
    newest = frames[~np.append(same, False)]
    count = int(newest["record"].max()) + 1 if len(newest) else 0
    if fields is None:
        count = max(count, meta.length)
    tables = [np.zeros(count, ENTRY) for _ in known]
    for number, table in enumerate(tables):
        part = newest[newest["field"] == number]
        for name, column in (("offset", "offset"), ("chunk", "chunk"), ("length", "stored")):
            table[name][part["record"]] = part[column]
    _copy(path, out, meta, tables, count, on_progress)
    return SalvageReport(
        records=count,
        frames=len(frames),
        missing=sum(int((table["offset"] == 0).sum()) for table in tables),
        lost_bytes=lost,
        returned=count - meta.length if fields is None else 0,
    )


def _known(path: Path, fields: dict[str, RecordField] | None) -> Meta:
    """What is known of the store: its last commit, or the fields alone."""
    if fields is not None:
        return Meta(fields, 8192, next_chunk=1 << 31)
    meta = Meta.read(path)
    for commit in read_commits(path / JOURNAL, len(meta.fields), meta.commit):
        meta = replace(
            meta,
            length=commit.length,
            peak=commit.peak,
            next_chunk=commit.next_chunk,
            unfull=commit.unfull,
        )
    return meta


def _frames(path: Path, meta: Meta) -> tuple[NDArray[Any], int]:
    """The whole frames of all chunks, and how many bytes are none."""
    ends = {state.id: state.position for state in meta.unfull}
    found, lost = [np.empty(0, _FOUND)], 0
    for file in sorted((path / CHUNKS).glob("*.zr")):
        if not file.stem.isdecimal() or not meta.first_chunk <= int(file.stem) < meta.next_chunk:
            continue
        number = int(file.stem)
        data = map_file(file)
        end = ends.get(number)
        frames, bytes_lost = _core.find_frames(data[:end], end is not None)
        made = frames.view(_FOUND).copy()
        made["chunk"] = number
        found.append(made)
        lost += bytes_lost
    return np.concatenate(found), lost


def _copy(
    path: Path,
    out: Path,
    meta: Meta,
    tables: list[NDArray[Any]],
    count: int,
    on_progress: Callable[[int, int], None] | None,
) -> None:
    nothing = np.empty(0, np.uint8)
    fields, words = [], {}
    for (name, field), table in zip(meta.fields.items(), tables, strict=True):
        words[name] = dictionary_path(path, name) if field.compress == "zstd-dict" else None
        made = load_dictionary(path, name, field) if words[name] else None
        fields.append(
            (name, field.item_bytes, field.ragged, made, table.view(np.uint8), nothing, path)
        )
    chunks = _core.Chunks(path / CHUNKS, meta.first_chunk)
    records = _core.Records(chunks, fields, nothing, count, 0, True)
    create_store(out, Meta(meta.fields, meta.chunk_records, attributes=meta.attributes))
    for name, words_path in words.items():
        if words_path is not None and words_path.exists():
            write_file(dictionary_path(out, name), words_path.read_bytes())
    writer = RecordWriter(out)
    try:
        for begin in range(0, count, _ROWS):
            rows = np.arange(begin, min(begin + _ROWS, count), dtype=np.int64)
            writer.append_copies(records, rows)
            writer.commit()
            if on_progress is not None:
                on_progress(begin + len(rows), count)
    finally:
        writer.close()

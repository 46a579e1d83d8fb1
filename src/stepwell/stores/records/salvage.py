"""A new store made of what is in the chunks of a damaged one."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.files.atomic import write_file
from stepwell.files.regular import read_inside
from stepwell.source import Field
from stepwell.store import Progress
from stepwell.stores.records.frames import MAX_DICTIONARY, load_dictionary
from stepwell.stores.records.journal import read_commits
from stepwell.stores.records.layout import (
    CHUNKS,
    ENTRY,
    chunk_name,
    chunk_numbers,
    codec_number,
    dictionary_name,
)
from stepwell.stores.records.meta import Meta
from stepwell.stores.records.tables import map_file
from stepwell.stores.records.writer import RecordWriter

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
    """Records more than the store had: moved ones under old numbers, deleted ones, older states."""


def salvage(
    path: Path,
    out: Path,
    fields: dict[str, Field] | None,
    progress: Progress | None,
) -> SalvageReport:
    """Find the newest whole frame of every record, and copy it to a new store."""
    meta = _known(path, fields)
    every, lost = _frames(path, meta)
    frames = every[_usable(every, path, meta)]
    lost += int(every["stored"].sum(dtype=np.int64) - frames["stored"].sum(dtype=np.int64))
    # In the order in which they were written: updates go to the newest chunk.
    frames = frames[np.lexsort((frames["offset"], frames["chunk"]))]
    count = int(frames["record"].max()) + 1 if len(frames) else 0
    count = max(count, meta.length)
    extra: list[dict[int, int]] = []
    if meta.deletes or fields is not None:
        extra = _superseded(frames)
    tables = [np.zeros(count + len(extra), ENTRY) for _ in meta.fields]
    for number, table in enumerate(tables):
        part = frames[frames["field"] == number]  # the last of a record is put there last
        table[part["record"]] = _entries(part)
        for i, found in enumerate(extra):
            if number in found:
                table[count + i] = _entries(frames[found[number] : found[number] + 1])[0]
    _copy(path, out, meta, tables, progress)
    return SalvageReport(
        records=count + len(extra),
        frames=len(frames),
        missing=sum(int((table["offset"] == 0).sum()) for table in tables),
        lost_bytes=lost,
        returned=count + len(extra) - meta.length if fields is None else len(extra),
    )


def _usable(frames: NDArray[Any], path: Path, meta: Meta) -> NDArray[np.bool]:
    """Which frames can be those of a record of this store."""
    fields = list(meta.fields.items())
    if not len(frames):
        return np.zeros(0, np.bool)
    fit = frames["field"] < len(fields)
    of = np.where(fit, frames["field"], 0)
    items = np.array([field.row_bytes for _, field in fields])[of]
    ragged = np.array([field.ragged for _, field in fields])[of]
    fit &= np.where(ragged, frames["length"] % items == 0, frames["length"] == items)
    # The checksum of a frame does not cover its number: one that is out of bounds is damaged.
    fit &= frames["record"] < meta.peak + 16 * len(frames) + (1 << 16)
    for number, (name, _) in enumerate(fields):
        if not (path / dictionary_name(name)).exists():  # nobody could unpack them
            fit &= (frames["field"] != number) | (frames["codec"] != codec_number("zstd-dict"))
    return fit


def _superseded(frames: NDArray[Any]) -> list[dict[int, int]]:
    """Records that others have taken the numbers of, or older states of a record.

    A record that a delete has moved keeps its number in its frames; another one may have been
    appended under that number since. Frames do not tell that from an update, so whatever was
    written over as a whole comes back, too.
    """
    now: dict[int, dict[int, int]] = {}
    older: list[dict[int, int]] = []
    for record, group in _groups(frames):
        before = now.get(record)
        if before is not None and before.keys() <= group.keys():
            older.append(before)
            now[record] = group
        else:
            now[record] = {**(before or {}), **group}
    return older


def _groups(frames: NDArray[Any]) -> Iterator[tuple[int, dict[int, int]]]:
    """Fields that were written together: neighbours of one number, each field once."""
    group: dict[int, int] = {}
    last = -1
    for i, (record, field) in enumerate(
        zip(frames["record"].tolist(), frames["field"].tolist(), strict=True)
    ):
        if group and (record != last or field in group):
            yield last, group
            group = {}
        group[field], last = i, record
    if group:
        yield last, group


def _entries(frames: NDArray[Any]) -> NDArray[Any]:
    made = np.zeros(len(frames), ENTRY)
    made["offset"], made["chunk"] = frames["offset"], frames["chunk"]
    made["length"] = frames["stored"]
    return made


def _known(path: Path, fields: dict[str, Field] | None) -> Meta:
    """What is known of the store: its last commit, or the fields alone."""
    if fields is not None:
        return Meta(fields, 8192, next_chunk=1 << 31, deletes=1)
    meta = Meta.read(path)
    commits = read_commits(path, meta)
    return commits[-1].after if commits else meta


def _frames(path: Path, meta: Meta) -> tuple[NDArray[Any], int]:
    """The whole frames of all chunks, and how many bytes are none."""
    ends = {state.id: state.position for state in meta.unfull}
    found, lost = [np.empty(0, _FOUND)], 0
    for number in chunk_numbers(path):
        if not meta.first_chunk <= number < meta.next_chunk:
            continue
        data = map_file(path, chunk_name(number))
        end = ends.get(number)
        frames, bytes_lost = _core.find_frames(data[:end], end is not None)
        made = frames.view(_FOUND).copy()
        made["chunk"] = number
        found.append(made)
        lost += bytes_lost
    return np.concatenate(found), lost


def _copy(
    path: Path, out: Path, meta: Meta, tables: list[NDArray[Any]], progress: Progress | None
) -> None:
    nothing = np.empty(0, np.uint8)
    fields, made = [], {}
    for (name, field), table in zip(meta.fields.items(), tables, strict=True):
        words = load_dictionary(path, name, field) if field.compress == "zstd-dict" else None
        entries = table.view(np.uint8)
        fields.append((name, field.row_bytes, field.ragged, words, entries, nothing, path))
        lost = not table["offset"].all()
        made[name] = replace(field, optional=True) if lost else field
    count = len(tables[0])
    chunks = _core.Chunks(path / CHUNKS, meta.first_chunk)
    records = _core.Records(chunks, fields, nothing, count, True)
    with RecordWriter(
        out, made, chunk_records=meta.chunk_records, attributes=meta.attributes
    ) as writer:
        for name, _, _, words, *_ in fields:
            if words is not None:
                file = dictionary_name(name)
                write_file(out / file, read_inside(path, file, MAX_DICTIONARY), follow=False)
        writer.commit()
        new = replace(writer._meta, length=count, commit=writer._meta.commit + 1)
        writer._rewrite(records, new, meta.chunk_records, progress)

"""A new store made of what is in the chunks of a damaged one."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError, KindError
from stepwell.files.atomic import write_file
from stepwell.store import Progress, what_is_at
from stepwell.stores.records.journal import read_commits
from stepwell.stores.records.layout import (
    CHUNKS,
    ENTRY,
    META,
    Meta,
    chunk_name,
    chunk_numbers,
    codec_number,
    dictionary_name,
    read_dictionary,
)
from stepwell.stores.records.tables import map_file
from stepwell.stores.records.view import records_of
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
    """Counts of what was found and written."""

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
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> SalvageReport:
    """Write what is in the chunks of a store, whose tables may be lost, to a new one: the newest
    whole frame of every field and record."""
    root = Path(path)
    if not os.path.lexists(root / META):
        raise KindError(f"expected a record store, got {what_is_at(root)}", path=str(root))
    if Path(out).resolve().is_relative_to(root.resolve()):
        raise ValueError(f"{out} is the damaged store itself, or inside it; choose another folder")
    if os.path.lexists(Path(out) / META):
        raise FileExistsError(f"{out} is a record store already; choose a new folder")
    meta = Meta.read(root)
    whole = True
    try:
        for commit in read_commits(root, meta)[0]:
            meta = commit.after
    except FormatError:
        whole = False  # whatever is behind the ends that meta.json knows may be of a lost commit
    every, lost = _frames(root, meta, whole)
    frames = every[_usable(every, root, meta)]
    lost += int(every["stored"].sum(dtype=np.int64) - frames["stored"].sum(dtype=np.int64))
    # In the order in which they were written: updates go to the newest chunk.
    frames = frames[np.lexsort((frames["offset"], frames["chunk"]))]
    count = max(int(frames["record"].max(initial=0)) + bool(len(frames)), meta.length)
    for older in _superseded(frames) if meta.deletes else ():
        frames["record"][list(older.values())] = count
        count += 1
    tables = np.zeros((len(meta.fields), count), ENTRY)
    # By position, and the last frame of a record stays.
    tables[frames["field"], frames["record"]] = frames[["offset", "chunk", "stored"]]
    _copy(root, Path(out), replace(meta, length=count), tables, progress)
    return SalvageReport(
        records=count,
        frames=len(frames),
        missing=int((tables["offset"] == 0).sum()),
        lost_bytes=lost,
        returned=count - meta.length,
    )


def _usable(frames: NDArray[Any], path: Path, meta: Meta) -> NDArray[np.bool]:
    """Which frames can be those of a record of this store."""
    fields = list(meta.fields.items())
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

    A record that a delete has moved keeps its number in its frames; another record may have been
    appended under that number since. In the frames that looks like an update, so whatever was
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


def _frames(path: Path, meta: Meta, whole: bool) -> tuple[NDArray[Any], int]:
    """The whole frames of all chunks, and how many bytes are none."""
    ends = {state.id: state.position for state in meta.unfull if whole}
    found, lost = [np.empty(0, _FOUND)], 0
    for number in chunk_numbers(path):
        if number < meta.first_chunk or (whole and number >= meta.next_chunk):
            continue
        data = map_file(path, chunk_name(number))
        end = ends.get(number)
        frames, bytes_lost = _core.find_frames(
            data[:end], end is not None, path / chunk_name(number)
        )
        made = frames.view(_FOUND).copy()
        made["chunk"] = number
        found.append(made)
        lost += bytes_lost
    return np.concatenate(found), lost


def _copy(
    path: Path, out: Path, meta: Meta, tables: NDArray[Any], progress: Progress | None
) -> None:
    chunks = _core.Chunks(path / CHUNKS, meta.first_chunk)
    nothing = np.empty(0, np.uint8)
    records = records_of(path, meta, chunks, [(table.view(np.uint8), nothing) for table in tables])
    fields = {
        name: field if table["offset"].all() else replace(field, optional=True)
        for (name, field), table in zip(meta.fields.items(), tables, strict=True)
    }
    with RecordWriter(
        out, fields, chunk_records=meta.chunk_records, attributes=meta.attributes
    ) as writer:
        for name in fields:
            with suppress(FileNotFoundError):
                words = read_dictionary(path, name)
                write_file(out / dictionary_name(name), words, follow=False)
        writer.commit()
        new = replace(writer._meta, length=meta.length, commit=writer._meta.commit + 1)
        writer._rewrite(records, new, progress)

"""A new store made of what is in the chunks of a damaged one."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError, KindError
from stepwell.files.atomic import write_file
from stepwell.files.regular import bytes_on_disk
from stepwell.store import Progress, what_is_at
from stepwell.stores.records.journal import Commit, read_commits
from stepwell.stores.records.layout import (
    BLOCK_BYTES,
    CHECKSUM,
    CHUNKS,
    COLUMN_CHECKSUM,
    ENTRY,
    META,
    Meta,
    chunk_name,
    chunk_numbers,
    codec_number,
    dictionary_name,
    read_dictionary,
)
from stepwell.stores.records.tables import (
    block_count,
    change_memory,
    checksums_of,
    column_entries,
    map_file,
    own_copy,
)
from stepwell.stores.records.values import Values
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
    """Fields of records for which no whole frame or value was found."""
    lost_bytes: int
    """Bytes of chunks that are no whole frame, and of values that do not fit their checksum."""
    returned: int
    """Records more than the store had: moved ones under old numbers, deleted ones, older states."""


def salvage(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> SalvageReport:
    """Write what is whole in a damaged store to a new one: the newest whole frame of every field
    and record, whose tables may be lost, and the values of columns that fit their checksums."""
    root = Path(path)
    if not os.path.lexists(root / META):
        raise KindError(f"expected a record store, got {what_is_at(root)}", path=str(root))
    if Path(out).resolve().is_relative_to(root.resolve()):
        raise ValueError(f"{out} is the damaged store itself, or inside it; choose another folder")
    if os.path.lexists(Path(out) / META):
        raise FileExistsError(f"{out} is a record store already; choose a new folder")
    meta = Meta.read(root)
    whole, commits = True, list[Commit]()
    try:
        commits = read_commits(root, meta)[0]
        meta = commits[-1].after if commits else meta
    except FormatError:
        whole = False  # whatever is behind the ends that meta.json knows may be of a lost commit
    every, lost = _frames(root, meta, whole)
    frames = every[_usable(every, root, meta)]
    lost += int(every["stored"].sum(dtype=np.int64) - frames["stored"].sum(dtype=np.int64))
    # In the order in which they were written: updates go to the newest chunk.
    frames = frames[np.lexsort((frames["offset"], frames["chunk"]))]
    values: dict[str, Values] = {}
    if meta.columns:
        tables, values, lost_values = _by_tables(root, meta, commits, frames, whole)
        count, lost = tables.shape[1], lost + lost_values
    else:
        count = max(int(frames["record"].max(initial=0)) + bool(len(frames)), meta.length)
        for older in _superseded(frames) if meta.deletes else ():
            frames["record"][list(older.values())] = count
            count += 1
        tables = _newest(frames, meta, count)
    missing = {
        name: int(np.count_nonzero(values[name].there == 0 if name in values else t["offset"] == 0))
        for name, t in zip(meta.fields, tables, strict=True)
    }
    _copy(root, Path(out), replace(meta, length=count), tables, values, missing, progress)
    return SalvageReport(
        records=count,
        frames=len(frames),
        missing=sum(missing.values()),
        lost_bytes=lost,
        returned=count - meta.length,
    )


def _newest(frames: NDArray[Any], meta: Meta, count: int) -> NDArray[Any]:
    """Tables that lead to the last frame of each field and record."""
    tables = np.zeros((len(meta.fields), count), ENTRY)
    inside = frames[frames["record"] < count]
    # By position, and the last frame of a record stays.
    tables[inside["field"], inside["record"]] = inside[["offset", "chunk", "stored"]]
    return tables


def _by_tables(
    root: Path, meta: Meta, commits: list[Commit], frames: NDArray[Any], whole: bool
) -> tuple[NDArray[Any], dict[str, Values], int]:
    """Places of frames, values of columns, and bytes of values lost, of a store that has columns.

    Values are where their records are now, and frames have the numbers that their records had
    then. So places are those of the tables; one that is lost is looked for by the number, where
    nothing was ever deleted.
    """
    read = {name: _read_table(root, meta, name, commits) for name in meta.fields}
    count = meta.length
    if not whole:  # up to the last record that a lost commit can have written
        for entries, fit in read.values():
            some = entries.view(np.uint8).reshape(len(entries), -1).any(axis=1) & fit
            count = max(count, int(np.flatnonzero(some).max(initial=-1)) + 1)
    tables = np.zeros((len(meta.fields), count), ENTRY)
    by_number = np.zeros_like(tables) if meta.deletes else _newest(frames, meta, count)
    known = {*frames[["field", "chunk", "offset", "stored"]].tolist()}
    values, lost = dict[str, Values](), 0
    for number, (name, (found, fit)) in enumerate(read.items()):
        entries, usable = np.zeros(count, found.dtype), np.zeros(count, np.bool)
        there = min(count, len(found))
        entries[:there], usable[:there] = found[:there], fit[:there]
        if name in meta.columns:
            field = meta.fields[name]
            lines = entries.view(np.uint8).reshape(count, found.itemsize)
            lost += int((~usable).sum()) * field.row_bytes
            if field.optional:
                usable &= lines[:, 0] == 1
            data = lines[usable, int(field.optional) :].reshape(-1)
            values[name] = Values(count, data, None, usable.astype(np.uint8))
            continue
        places = entries[["chunk", "offset", "length"]].tolist()
        framed = np.array([(number, *place) in known for place in places], np.bool)
        tables[number][~usable] = by_number[number][~usable]
        tables[number][usable & framed] = entries[usable & framed]
    return tables, values, lost


def _read_table(
    root: Path, meta: Meta, name: str, commits: list[Commit]
) -> tuple[NDArray[Any], NDArray[np.bool]]:
    """The entries that are there, and which of them are in whole blocks."""
    dtype, files = meta.entry(name), meta.table_names(name)
    sizes = [os.stat(root / f).st_size if os.path.lexists(root / f) else 0 for f in files]
    changes = [commit.changes[meta.numbers[name]] for commit in commits]
    # No more than there is: the room that a file has grown ahead is a hole.
    there = bytes_on_disk(root / files[0]) // dtype.itemsize + 1
    rows = min(max(meta.peak, sizes[0] // dtype.itemsize), meta.peak + there)
    ends = [change.first + len(change.appended) for change in changes]
    ends += [int(change.rows.max(initial=-1)) + 1 for change in changes]
    rows = max([min(rows, sizes[0] // dtype.itemsize), *ends])
    blocks = block_count(rows + 1, dtype.itemsize)
    checksum = COLUMN_CHECKSUM if name in meta.columns else CHECKSUM
    wanted = blocks * BLOCK_BYTES, blocks * checksum.itemsize
    table, checks = (
        own_copy(root, file, want) if size else np.zeros(want, np.uint8)
        for file, want, size in zip(files, wanted, sizes, strict=True)
    )
    for change in changes:
        change_memory(table, checks.view(checksum), change)
    every, stored = np.arange(blocks), checks.view(checksum)
    fit = checksums_of(table, every, stored, "") == stored["crc"]
    begins = np.arange(rows) * dtype.itemsize
    entries = table[: rows * dtype.itemsize].view(dtype)
    return entries, fit[begins // BLOCK_BYTES] & fit[(begins + dtype.itemsize - 1) // BLOCK_BYTES]


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
    path: Path,
    out: Path,
    meta: Meta,
    tables: NDArray[Any],
    values: Mapping[str, Values],
    missing: Mapping[str, int],
    progress: Progress | None,
) -> None:
    chunks = _core.Chunks(path / CHUNKS, meta.first_chunk)
    nothing = np.empty(0, np.uint8)
    fields = {
        name: replace(field, optional=True) if missing[name] else field
        for name, field in meta.fields.items()
    }
    entries = dict(zip(fields, tables, strict=True))
    for name, given in values.items():
        size, marked = fields[name].row_bytes, fields[name].optional
        entries[name] = column_entries(given, size, marked=marked)
    made = [(each.view(np.uint8), nothing) for each in entries.values()]
    records = records_of(path, replace(meta, fields=fields), chunks, made)
    with RecordWriter(
        out, fields, chunk_records=meta.chunk_records, attributes=meta.attributes
    ) as writer:
        for name in fields:
            with suppress(FileNotFoundError):
                words = read_dictionary(path, name)
                write_file(out / dictionary_name(name), words, follow=False)
        writer.commit()
        new = replace(
            writer._meta,
            length=meta.length,
            commit=writer._meta.commit + 1,
            columns=writer._meta.columns | meta.columns,
        )
        writer._rewrite(records, meta.columns, new, progress)

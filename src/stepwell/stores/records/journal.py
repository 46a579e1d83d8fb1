"""journal.zr: the commits since the last checkpoint, each whole or not there."""

import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import ChecksumError, FormatError
from stepwell.files.journal import Framing
from stepwell.files.regular import open_inside
from stepwell.source import Rows
from stepwell.stores.records.layout import ENTRY, JOURNAL
from stepwell.stores.records.meta import MAX_RECORDS, ChunkState, Meta

FRAMING = Framing(b"ZRJL", whole=True)
_FRAME_BYTES = len(FRAMING.frame(b""))
_HEAD = struct.Struct("<3Q2IQ")
_CHUNK = struct.Struct("<2IQ")
_FIELD = struct.Struct("<3Q")
CHANGED = np.dtype([("record", "<u8"), ("entry", ENTRY)])


@dataclass(frozen=True)
class Change:
    """New entries of one field: some behind the others, and some in the place of others."""

    first: int
    appended: NDArray[Any]
    rows: Rows
    changed: NDArray[Any]


@dataclass(frozen=True)
class Commit:
    after: Meta
    """What the store is after it."""
    changes: tuple[Change, ...]

    def encode(self) -> bytes:
        """The body of its record."""
        meta = self.after
        head = (meta.commit, meta.length, meta.peak, meta.next_chunk)
        parts = [_HEAD.pack(*head, len(meta.unfull), meta.deletes)]
        parts += [_CHUNK.pack(state.id, state.records, state.position) for state in meta.unfull]
        for change in self.changes:
            together = np.empty(len(change.rows), CHANGED)
            together["record"], together["entry"] = change.rows, change.changed
            counts = (change.first, len(change.appended), len(change.rows))
            parts += [_FIELD.pack(*counts), change.appended.tobytes(), together.tobytes()]
        return b"".join(parts)


def read_commits(root: Path, meta: Meta) -> list[Commit]:
    """The whole commits of a journal that meta.json does not have.

    What follows them may be torn or old. Raises `ChecksumError` when a later commit shows that
    one was damaged, and `FormatError` for one that does not follow on the one before.
    """
    path = root / JOURNAL
    try:
        with open(open_inside(root, JOURNAL), "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return []
            data = np.fromfile(file, np.uint8)
    except FileNotFoundError:
        return []
    found: list[Commit] = []
    before, end, last = meta, 0, None
    for at, body in FRAMING.records(data):
        commit = _decode(body, meta)
        if commit is None or (last is not None and commit.after.commit != last + 1):
            break
        last = commit.after.commit
        if last > before.commit:
            if last != before.commit + 1:
                break
            if not _follows(commit, before):
                raise FormatError(f"commit {last} contradicts itself", path=str(path), offset=at)
            before = commit.after
            found.append(commit)
        end = at + _FRAME_BYTES + len(body)
    for at in FRAMING.places(data, end):
        rest = FRAMING.body_at(data, at)
        later = None if rest is None else _decode(rest, meta)
        if later is not None and later.after.commit > before.commit:
            raise ChecksumError(
                f"commit {before.commit + 1} is damaged, commit {later.after.commit} is whole",
                path=str(path),
                offset=end,
            )
    return found


def _follows(commit: Commit, before: Meta) -> bool:
    """Whether a commit can come behind what the store was."""
    after, length = commit.after, before.length
    appended = {len(change.appended) for change in commit.changes}
    more = next(iter(appended))
    try:
        after.check()
    except ValueError:
        return False
    return (
        len(appended) == 1
        and (after.length == length + more if more else after.length <= length)
        and after.peak == max(before.peak, after.length)
        and before.next_chunk <= after.next_chunk
        and all(
            (change.first == length or not more) and int(change.rows.max(initial=-1)) < length
            for change in commit.changes
        )
    )


def _decode(body: NDArray[np.uint8], meta: Meta) -> Commit | None:
    """A commit whose checksum is right; None for one that no writer of this store made."""
    if len(body) < _HEAD.size:
        return None
    data, size = body.data, len(body)
    number, length, peak, next_chunk, chunks, deletes = _HEAD.unpack_from(data)
    at = _HEAD.size
    if chunks * _CHUNK.size > size - at or max(length, peak) > MAX_RECORDS or length > peak:
        return None
    unfull = []
    for _ in range(chunks):
        i, records, position = _CHUNK.unpack_from(data, at)
        unfull.append(ChunkState(i, position, records))
        at += _CHUNK.size
    changes: list[Change] = []
    for _ in meta.fields:
        if at + _FIELD.size > size:
            return None
        first, appended, changed = _FIELD.unpack_from(data, at)
        at += _FIELD.size
        need = appended * ENTRY.itemsize + changed * CHANGED.itemsize
        if need > size - at or first + appended > peak:
            return None
        middle, end = at + appended * ENTRY.itemsize, at + need
        together = body[middle:end].view(CHANGED)
        rows = together["record"]
        if len(rows) and int(rows.max()) >= peak:
            return None
        changes.append(
            Change(first, body[at:middle].view(ENTRY), rows.astype(np.int64), together["entry"])
        )
        at = end
    if at != size:
        return None
    after = replace(
        meta,
        commit=number,
        length=length,
        peak=peak,
        next_chunk=next_chunk,
        deletes=deletes,
        unfull=tuple(unfull),
    )
    return Commit(after, tuple(changes))

"""journal.zr: the commits since the last checkpoint, each whole or not there."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError
from stepwell.source import Rows
from stepwell.stores.records.layout import ENTRY, MOST_CHUNKS
from stepwell.stores.records.meta import MOST_RECORDS, ChunkState, Meta

__all__ = ["Change", "Commit", "read_commits"]

_MAGIC = b"ZRJL"
_MAGIC_NUMBER = int.from_bytes(_MAGIC, "little")
_HEAD = struct.Struct("<4sI4Q2IQ")
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
    number: int
    length: int
    peak: int
    next_chunk: int
    deletes: int
    unfull: tuple[ChunkState, ...]
    changes: tuple[Change, ...]

    def encode(self) -> bytes:
        parts = [_CHUNK.pack(state.id, state.records, state.position) for state in self.unfull]
        for change in self.changes:
            together = np.empty(len(change.rows), CHANGED)
            together["record"], together["entry"] = change.rows, change.changed
            counts = (change.first, len(change.appended), len(change.rows))
            parts += [_FIELD.pack(*counts), change.appended.tobytes(), together.tobytes()]
        body = b"".join(parts)
        head = _HEAD.pack(
            _MAGIC,
            0,
            _HEAD.size + len(body),
            self.number,
            self.length,
            self.peak,
            self.next_chunk,
            len(self.unfull),
            self.deletes,
        )
        crc = _core.crc32c(np.frombuffer(head[8:] + body, np.uint8))
        return head[:4] + crc.to_bytes(4, "little") + head[8:] + body


def read_commits(path: Path, meta: Meta) -> list[Commit]:
    """The whole commits of a journal that meta.json does not have.

    What follows them may be torn or old. Raises `ChecksumError` when a later commit shows that
    one was damaged, and `FormatError` for one that does not follow on the one before.
    """
    try:
        data = np.fromfile(path, np.uint8)
    except FileNotFoundError:
        return []
    fields, after = len(meta.fields), meta.commit
    found: list[Commit] = []
    at, last = 0, None
    while (commit := _commit_at(data, at, fields)) is not None:
        if last is not None and commit.number != last + 1:
            break
        last = commit.number
        if last > after:
            if last != after + 1:
                break
            before = found[-1] if found else meta
            if not _follows(commit, before.length, before.peak, before.next_chunk, meta):
                raise FormatError(f"commit {last} contradicts itself", path=str(path), offset=at)
            after = last
            found.append(commit)
        at += _size_at(data, at)
    rest = data[at : len(data) - len(data) % 8]
    for place in np.flatnonzero(rest.view("<u8") % (1 << 32) == _MAGIC_NUMBER):
        later = _commit_at(data, at + 8 * int(place), fields)
        if later is not None and later.number > after:
            raise ChecksumError(
                f"commit {after + 1} is damaged, commit {later.number} is whole",
                path=str(path),
                offset=at,
            )
    return found


def _follows(commit: Commit, length: int, peak: int, next_chunk: int, meta: Meta) -> bool:
    """Whether a commit can come behind one with these numbers."""
    appended = {len(change.appended) for change in commit.changes}
    more = next(iter(appended))
    end = meta.first_chunk + MOST_CHUNKS
    return (
        len(appended) == 1
        and (commit.length == length + more if more else commit.length <= length)
        and commit.peak == max(peak, commit.length)
        and next_chunk <= commit.next_chunk <= end
        and len({state.id for state in commit.unfull}) == len(commit.unfull)
        and all(
            meta.first_chunk <= state.id < commit.next_chunk and state.position % 8 == 0
            for state in commit.unfull
        )
        and all(
            (change.first == length or not more) and int(change.rows.max(initial=-1)) < length
            for change in commit.changes
        )
    )


def _size_at(data: NDArray[np.uint8], at: int) -> int:
    return int(data[at + 8 : at + 16].view("<u8")[0])


def _commit_at(data: NDArray[np.uint8], at: int, fields: int) -> Commit | None:
    if at + _HEAD.size > len(data):
        return None
    magic, crc, size, *_ = _HEAD.unpack_from(data.data, at)
    if magic != _MAGIC or not _HEAD.size <= size <= len(data) - at or size % 8:
        return None
    if _core.crc32c(data[at + 8 : at + size]) != crc:
        return None
    return _decode(data[at : at + size], fields)


def _decode(data: NDArray[np.uint8], fields: int) -> Commit | None:
    """A commit whose sum is right; None for one that no writer of this store made."""
    _, _, size, number, length, peak, next_chunk, chunks, deletes = _HEAD.unpack_from(data.data)
    at = _HEAD.size
    if chunks * _CHUNK.size > size - at or max(length, peak) > MOST_RECORDS or length > peak:
        return None
    unfull = []
    for _ in range(chunks):
        i, records, position = _CHUNK.unpack_from(data.data, at)
        unfull.append(ChunkState(i, position, records))
        at += _CHUNK.size
    changes: list[Change] = []
    for _ in range(fields):
        if at + _FIELD.size > size:
            return None
        first, appended, changed = _FIELD.unpack_from(data.data, at)
        at += _FIELD.size
        need = appended * ENTRY.itemsize + changed * CHANGED.itemsize
        if need > size - at or first + appended > peak:
            return None
        middle, end = at + appended * ENTRY.itemsize, at + need
        together = data[middle:end].view(CHANGED)
        rows = together["record"]
        if len(rows) and int(rows.max()) >= peak:
            return None
        changes.append(
            Change(first, data[at:middle].view(ENTRY), rows.astype(np.int64), together["entry"])
        )
        at = end
    if at != size:
        return None
    return Commit(number, length, peak, next_chunk, deletes, tuple(unfull), tuple(changes))

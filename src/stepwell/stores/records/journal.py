"""journal.zr: the commits since the last checkpoint, each whole or not there."""

import json
import struct
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import ChecksumError, FormatError
from stepwell.files.journal import SEAL_BYTES, Framing, read_journal
from stepwell.stores.records.layout import COLUMN_CHECKSUM, JOURNAL, ChunkState, Meta
from stepwell.stores.records.tables import Change

FRAMING = Framing(b"ZRJL", whole=True, seal_magic=b"ZRSL")
_FRAME_BYTES = len(FRAMING.frame(b""))
_HEAD = struct.Struct("<3Q2IQ")
_CHUNK = np.dtype([("id", "<u4"), ("records", "<u4"), ("position", "<u8")])
_FIELD = struct.Struct("<3Q")
_MAX_TRIES = 10


@dataclass(frozen=True)
class Commit:
    after: Meta
    """The state of the store after it."""
    changes: tuple[Change, ...]
    attributed: bool = False
    """It sets the attributes, too."""

    def encode(self) -> list[bytes | NDArray[np.uint8]]:
        """The parts of the body of its record."""
        meta = self.after
        head = (meta.commit, meta.length, meta.peak, meta.next_chunk)
        chunks = np.array([(s.id, s.records, s.position) for s in meta.unfull], _CHUNK)
        parts: list[bytes | NDArray[np.uint8]] = [
            _HEAD.pack(*head, len(chunks), meta.deletes),
            chunks.tobytes(),
        ]
        for change in self.changes:
            parts.append(_FIELD.pack(change.first, len(change.appended), len(change.rows)))
            if not len(change.blocks):
                continue
            together = np.empty(len(change.rows), _changed(change.appended.dtype))
            together["record"], together["entry"] = change.rows, change.changed
            parts += [change.appended.view(np.uint8), together.view(np.uint8)]
            parts.append(bytes(-(change.appended.nbytes + together.nbytes) % 8))
            if change.checksums is not None:
                crcs = change.checksums["crc"].tobytes()
                parts += [crcs, bytes(-len(crcs) % 8)]
        if self.attributed:
            text = json.dumps(meta.attributes).encode()
            parts.append(text.ljust(-(-len(text) // 8) * 8))
        return parts

    @classmethod
    def decode(cls, body: NDArray[np.uint8], before: Meta) -> "Commit":
        """Raises `ValueError`, or another of `_UNREADABLE`, when it cannot come behind `before`."""
        number, length, peak, next_chunk, count, deletes = _HEAD.unpack_from(body.data)
        unfull, at = _items(body, _HEAD.size, _CHUNK, count)
        changes: list[Change] = []
        for name in before.fields:
            dtype = before.entry(name)
            first, appended, changed = _FIELD.unpack_from(body.data, at)
            if appended and first != before.length:
                raise ValueError(f"expected new records from {before.length} on, got {first}")
            entries, at = _items(body, at + _FIELD.size, dtype, appended)
            together, at = _items(body, at, _changed(dtype), changed)
            rows = together["record"]
            if len(rows) and int(rows.max()) >= before.length:
                raise ValueError(f"expected a record below {before.length}, got {rows.max()}")
            begin = min(first, before.length)  # where nothing is appended, it is not used
            change = Change(begin, entries, rows.astype(np.int64), together["entry"])
            at += -at % 8
            if name in before.columns:
                made = np.empty(len(change.blocks), COLUMN_CHECKSUM)
                made["commit"] = number
                made["crc"], at = _items(body, at, np.dtype("<u4"), len(made))
                change.checksums = made
                at += -at % 8
            changes.append(change)
        if at > len(body):
            raise ValueError(f"expected at least {at} bytes, got {len(body)}")
        more = len(changes[0].appended)
        attributes = json.loads(body[at:].tobytes()) if at < len(body) else None
        follows = (
            isinstance(attributes, dict | None)
            and all(len(change.appended) == more for change in changes)
            and (length == before.length + more if more else length <= before.length)
            and peak == max(before.peak, length)
            and before.next_chunk <= next_chunk
        )
        if not follows:
            raise ValueError(f"expected {before.length} and {more} records, got {length}")
        after = replace(
            before,
            commit=number,
            length=length,
            peak=peak,
            next_chunk=next_chunk,
            deletes=deletes,
            unfull=tuple(ChunkState(i, end, records) for i, records, end in unfull.tolist()),
            attributes=before.attributes if attributes is None else attributes,
        )
        after.check()
        return cls(after, tuple(changes), attributes is not None)


_UNREADABLE = (ValueError, OverflowError, RecursionError, struct.error)


@cache
def _changed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A record, and the entry that takes the place of its own."""
    return np.dtype([("record", "<u8"), ("entry", dtype)])


def _items(
    body: NDArray[np.uint8], at: int, dtype: np.dtype[Any], count: int
) -> tuple[NDArray[Any], int]:
    """`count` items, and where they end."""
    return np.frombuffer(body, dtype, count, at), at + count * dtype.itemsize


def read_commits(root: Path, meta: Meta) -> tuple[list[Commit], bool]:
    """The whole commits of a journal that meta.json does not have, and whether something is behind
    them, which is torn or old.

    Raises `ChecksumError` when a later commit or a seal shows that one was damaged, and
    `FormatError` for one that does not follow on the one before.
    """
    data = read_journal(root, JOURNAL)
    if not len(data):
        return [], False
    for tries in range(_MAX_TRIES):
        try:
            return _commits(data, meta, str(root / JOURNAL))
        except ChecksumError:
            # Beside a writer, the end may have been read after the beginning was written over.
            again = read_journal(root, JOURNAL)
            if tries == _MAX_TRIES - 1 or np.array_equal(again, data):
                raise
            data = again
    raise AssertionError


def _commits(data: NDArray[np.uint8], meta: Meta, path: str) -> tuple[list[Commit], bool]:
    found: list[Commit] = []
    before, end, last = meta, 0, None
    for at, body in FRAMING.records(data):
        number = _number(body)
        if number > before.commit + 1 or (last is not None and number != last + 1):
            break
        if number > before.commit:
            try:
                found.append(Commit.decode(body, before))
            except _UNREADABLE as error:
                message = f"commit {number} contradicts itself: {error}"
                raise FormatError(message, path=path, offset=at) from None
            before = found[-1].after
        last, end = number, at + _FRAME_BYTES + len(body)
    known = max([FRAMING.sealed(data, end), *map(_number, FRAMING.later(data, end))])
    if known > before.commit:
        raise ChecksumError(
            f"commit {before.commit + 1} is damaged, and commit {known} was there; "
            "`salvage` makes a new store of what is left",
            path=path,
            offset=end,
        )
    return found, bool(data[end + (SEAL_BYTES if end else 0) :].any())


def _number(body: NDArray[np.uint8]) -> int:
    return int.from_bytes(body[:8].tobytes(), "little")

"""What a record store holds at one moment, mapped into memory. Looking never writes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import BusyError, ChecksumError, FormatError
from stepwell.files.lock import is_locked
from stepwell.source import Batch, Ragged, Rows
from stepwell.stores.records.control import boot_number, map_control, read_control
from stepwell.stores.records.frames import load_dictionary
from stepwell.stores.records.journal import Commit, read_commits
from stepwell.stores.records.layout import (
    CHUNKS,
    ENTRY,
    LOCK,
    MAX_CHUNKS,
    META,
    TABLE_BLOCK,
    chunk_numbers,
    table_names,
)
from stepwell.stores.records.meta import Meta
from stepwell.stores.records.tables import change_memory, map_file, own_copy

_PATIENCE_S = 5.0
_SETTLE_S = 0.25

Places = NDArray[Any]
"""Entries of rows, an array for each field."""


class Moment(NamedTuple):
    """Which commit of which store a reader sees."""

    store_id: str
    generation: int
    commit: int
    length: int


@dataclass(frozen=True)
class View:
    """A store as of one commit, mapped."""

    meta: Meta
    length: int
    commit: int
    numbered: bool
    """Every frame has the number of its record: nothing was deleted."""
    control: NDArray[np.uint8]
    """writer.lock; empty where the tables are a copy."""
    chunks: _core.Chunks
    records: _core.Records

    @property
    def moment(self) -> Moment:
        return Moment(self.meta.store_id, self.meta.generation, self.commit, self.length)

    def places(self, rows: Rows, names: Sequence[str]) -> Places:
        found = self.records.places(rows, [self.meta.numbers[name] for name in names])
        return found.view(ENTRY).reshape(len(names), len(rows))

    def problems(
        self, name: str, rows: Rows, places: NDArray[np.uint8], max_: int, *, numbered: bool = False
    ) -> list[FormatError]:
        """What is wrong with the frames of a field at these places."""
        number = self.meta.numbers[name]
        return [
            (ChecksumError if is_checksum else FormatError)(message, path=path, offset=offset)
            for message, path, offset, is_checksum in self.records.find_problems(
                number, rows, places, max_, numbered
            )
        ]

    def fill(self, rows: Rows, places: Places, out: Batch, names: Sequence[str]) -> None:
        """Put what is at these places into a batch."""
        for i, name in enumerate(names):
            number, field = self.meta.numbers[name], self.meta.fields[name]
            entries = places[i].view(np.uint8)
            if field.ragged:
                offsets, data = self.records.read_ragged(number, rows, entries)
                values = data.view(field.dtype).reshape(-1, *field.shape)
                out[name] = Ragged(values, offsets.view(np.int64), field.kind)
            else:
                flat = out[name].reshape(-1).view(np.uint8) if len(rows) else np.empty(0, np.uint8)
                self.records.read_fixed(number, rows, entries, flat)


def look(root: Path, *, checksums: bool, old: View | None = None, at: Moment | None = None) -> View:
    """Map a store as it is now; `old` is what was mapped before, `at` what is to be seen again.

    The tables are those of the last commit that writer.lock has. Where the journal has more than
    that and nobody is writing, because the machine was restarted or a writer was killed in the
    middle of a commit, they are copied, and the commits are done to the copy.

    Raises `BusyError` when a writer stays in the middle of a commit, `FormatError` for a damaged
    store and `FileNotFoundError` where there is none.
    """
    begin = time.monotonic()
    while True:
        meta = Meta.read(root)
        if old is not None and old.meta.store_id != meta.store_id:
            raise FormatError("another store is here now; open it again", path=str(root))
        try:
            control = map_control(root)
            seen, before = read_control(control), control.tobytes()
            known, odd = seen.settled and seen.commit >= meta.commit, seen.sequence % 2 == 1
            live = is_locked(root / LOCK)
            if live and not known and (odd or boot_number()):
                # It opens the store, or is in the middle of a commit.
                if time.monotonic() < begin + (_PATIENCE_S if odd else _SETTLE_S):
                    time.sleep(0.002)
                    continue
                if odd:
                    raise BusyError(f"the writer of {root} stays in the middle of a commit")
            # Whoever opens a store is to know of a damaged journal, beside a writer, too.
            commits = read_commits(root, meta) if old is None or not (live and known) else []
            done = meta.commit + len(commits)
            if known and (live or seen.commit >= done):
                now = _at(at, root, meta, seen.length, seen.commit)
                return _mapped(root, meta, control, *now, None, checksums=checksums, old=old)
            now = _at(at, root, meta, commits[-1].after.length if commits else meta.length, done)
            if not commits and not odd:
                return _mapped(root, meta, control, *now, None, checksums=checksums, old=old)
            view = _mapped(root, meta, control, *now, commits, checksums=checksums, old=old)
            if map_control(root).tobytes() == before and Meta.read(root) == meta:
                return view
            # Else a writer came meanwhile, and perhaps a part of what it did was copied.
        except ChecksumError:
            # Perhaps there was a checkpoint between the look at meta.json and that at the journal.
            if Meta.read(root).commit == meta.commit:
                raise
        except FileNotFoundError as error:
            # Another generation may have taken the place of the one that was being looked at.
            if Meta.read(root).generation == meta.generation:
                raise FormatError("the file is missing", path=str(error.filename)) from None


def look_at(meta: Meta, root: Path, old: View | None) -> View:
    """Map a store for its own writer, who knows what is committed."""
    now = meta.length, meta.commit
    return _mapped(root, meta, map_control(root), *now, None, checksums=True, old=old)


def _at(at: Moment | None, root: Path, meta: Meta, length: int, commit: int) -> tuple[int, int]:
    """The length and commit to see: the latest, or those of an earlier moment.

    Entries behind the end stay as they were, so an earlier length can be seen again.
    """
    if at is None:
        return length, commit
    if at.store_id != meta.store_id:
        raise FormatError("another store is here now; open it again", path=str(root))
    if commit < at.commit:
        raise FormatError(
            f"expected at least {at.commit} commits, got {commit}", path=str(root / META)
        )
    if at.length > length and at.generation != meta.generation:
        raise BusyError(f"{root} has become shorter, and was rebalanced; open it again")
    return at.length, at.commit


def _mapped(
    root: Path,
    meta: Meta,
    control: NDArray[np.uint8],
    length: int,
    commit: int,
    commits: list[Commit] | None,
    *,
    checksums: bool,
    old: View | None,
) -> View:
    """A view of the tables as they are, or of a copy with the `commits` done to it."""
    same = old is not None and old.meta.generation == meta.generation
    chunks = old.chunks if same and old else _core.Chunks(root / CHUNKS, meta.first_chunk)
    fields = []
    for number, (name, field) in enumerate(meta.fields.items()):
        table, sums = _table(root, name, meta, number, length, commits)
        dictionary = load_dictionary(root, name, field) if field.compress == "zstd-dict" else None
        path = root / table_names(name, meta.generation)[0]
        fields.append((name, field.row_bytes, field.ragged, dictionary, table, sums, path))
    if commits is not None:
        control = np.empty(0, np.uint8)
    records = _core.Records(chunks, fields, control, length, checksums)
    # All that there are now: a rebalance would take away the names.
    ids = [i for i in chunk_numbers(root) if 0 <= i - meta.first_chunk < MAX_CHUNKS]
    chunks.map_all(np.array(ids, np.int64))
    deletes = commits[-1].after.deletes if commits else meta.deletes
    numbered = not deletes and (commits is not None or commit == meta.commit)
    return View(meta, length, commit, numbered, control, chunks, records)


def _table(
    root: Path, name: str, meta: Meta, number: int, length: int, commits: list[Commit] | None
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The entries of a field, and their checksums; none where the file does not exist."""
    table, sums = table_names(name, meta.generation)
    nothing = np.empty(0, np.uint8)
    if commits is None:
        if not length and not (root / table).exists():
            return nothing, nothing
        return map_file(root, table), _or_nothing(lambda: map_file(root, sums))
    there = (root / table).stat().st_size // ENTRY.itemsize
    if there < meta.length:
        raise FormatError(f"expected {meta.length} entries, got {there}", path=str(root / table))
    # Whole blocks: a checksum is that of all entries of a block.
    blocks = -(-max([length, meta.length, *(c.after.length for c in commits)]) // TABLE_BLOCK)
    entries = own_copy(root, table, blocks * TABLE_BLOCK * ENTRY.itemsize)
    checks = _or_nothing(lambda: own_copy(root, sums, blocks * 4))
    for commit in commits:
        change_memory(entries, checks, commit.changes[number])
    return entries, checks


def _or_nothing(read: Any) -> NDArray[np.uint8]:
    try:
        made: NDArray[np.uint8] = read()
    except FileNotFoundError:
        return np.empty(0, np.uint8)
    return made

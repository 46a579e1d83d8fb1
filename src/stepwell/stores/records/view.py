"""A record store at one moment, mapped into memory. Looking never writes."""

import mmap
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import BusyError, ChecksumError, FormatError
from stepwell.files.journal import boot_number
from stepwell.files.lock import is_locked
from stepwell.files.regular import open_inside
from stepwell.source import Batch, Ragged, Rows
from stepwell.stores.records.journal import Commit, read_commits
from stepwell.stores.records.layout import (
    BLOCK_BYTES,
    CHECKSUM,
    CHUNKS,
    COLUMN_CHECKSUM,
    JOURNAL,
    LOCK,
    MAX_CHUNKS,
    META,
    Meta,
    chunk_numbers,
    load_dictionary,
)
from stepwell.stores.records.tables import (
    Entries,
    change_memory,
    check_column,
    check_entries,
    map_file,
    own_copy,
)

_PATIENCE_S = 5.0
_SETTLE_S = 0.25
_NOTHING = np.empty(0, np.uint8)
_NO_ROWS = np.empty(0, np.int64)
_CONTROL_BYTES = 64


class Control(NamedTuple):
    """The contents of writer.lock, where readers of this machine see what was committed."""

    sequence: int
    """Odd while entries are being changed."""
    commit: int
    length: int
    of_this_boot: bool
    """Whether it was written since the machine started; else it is not used."""
    attributed: int
    """The last commit that set attributes."""


def map_control(root: Path, *, write: bool = False) -> NDArray[np.uint8]:
    """The numbers of writer.lock; empty for a reader where there is no such file."""
    try:
        file = open_inside(root, LOCK, os.O_RDWR if write else os.O_RDONLY)
    except FileNotFoundError:
        return _NOTHING
    try:
        if os.fstat(file).st_size < _CONTROL_BYTES:
            if not write:
                return _NOTHING
            os.pwrite(file, bytes(_CONTROL_BYTES), 0)  # not a hole: a full disk is reported here
        access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
        return np.frombuffer(mmap.mmap(file, _CONTROL_BYTES, access=access), np.uint8)
    finally:
        os.close(file)


def read_control(control: NDArray[np.uint8], root: Path) -> Control:
    if not len(control):
        return Control(0, 0, 0, False, 0)
    sequence, commit, length, boot, attributed = _core.read_control(control, f"{root}/{LOCK}")
    return Control(sequence, commit, length, boot == boot_number() != 0, attributed)


@dataclass(frozen=True)
class View:
    """A store as of one commit, mapped."""

    meta: Meta
    """Its length, commit and deletes are those of the commit that is seen."""
    control: NDArray[np.uint8]
    """writer.lock; empty where the tables are a copy."""
    chunks: _core.Chunks
    records: _core.Records

    def entries(self, rows: Rows, names: Sequence[str]) -> list[Entries]:
        """The entries of each field, all of one commit."""
        found = self.records.entries(rows, [self.meta.numbers[name] for name in names])
        return [each.view(self.meta.entry(name)) for name, each in zip(names, found, strict=True)]

    def present(self, name: str, entries: Entries) -> NDArray[np.bool]:
        """Which of the records with these entries have the field."""
        if name not in self.meta.columns:
            return entries["offset"] > 0
        if not self.meta.fields[name].optional:
            return np.ones(len(entries), np.bool)
        return np.asarray(entries.view(np.uint8)[:: entries.itemsize] == 1)

    def stored_bytes(self, name: str, rows: Rows) -> NDArray[np.int64]:
        """Bytes that each of these records has stored for a field."""
        field = self.meta.fields[name]
        if name in self.meta.columns and not field.optional:
            return np.full(len(rows), field.row_bytes, np.int64)
        (entries,) = self.entries(rows, [name])
        if name in self.meta.columns:
            return self.present(name, entries) * np.int64(field.row_bytes)
        return entries["length"].astype(np.int64)

    def problems(
        self, name: str, rows: Rows, places: Entries, max_: int, *, numbered: bool = False
    ) -> list[FormatError]:
        """The problems of the frames of a field at these places."""
        number = self.meta.numbers[name]
        return [
            (ChecksumError if is_checksum else FormatError)(message, path=path, offset=offset)
            for message, path, offset, is_checksum in self.records.find_problems(
                number, rows, places.view(np.uint8), max_, numbered
            )
        ]

    def fill(self, rows: Rows, found: Sequence[Entries], out: Batch, names: Sequence[str]) -> None:
        """Put what these entries are, or lead to, into a batch."""
        for name, entries in zip(names, found, strict=True):
            number, field = self.meta.numbers[name], self.meta.fields[name]
            if field.ragged:
                offsets, data = self.records.read_ragged(number, rows, entries.view(np.uint8))
                values = data.view(field.dtype).reshape(-1, *field.shape)
                out[name] = Ragged(values, offsets.view(np.int64), field.kind)
                continue
            flat = out[name].reshape(-1).view(np.uint8)
            if name not in self.meta.columns:
                self.records.read_fixed(number, rows, entries.view(np.uint8), flat)
                continue
            lines = entries.view(np.uint8).reshape(len(rows), entries.itemsize)
            to = flat.reshape(len(rows), field.row_bytes)
            to[:] = lines[:, int(field.optional) :]
            to[~self.present(name, entries)] = 0


def look(root: Path, *, checksums: bool, old: View | None = None, at: Meta | None = None) -> View:
    """Map a store as it is now; `old` is what was mapped before, `at` what is to be seen again.

    The tables are those of the last commit that writer.lock has. Where the journal has more than
    that and nobody is writing, because the machine was restarted or a writer was killed in the
    middle of a commit, they are copied, and the commits are done to the copy.

    Raises `BusyError` when a writer stays in the middle of a commit, `FormatError` for a damaged
    store and `FileNotFoundError` where there is none.
    """
    begin = time.monotonic()
    known_as = at if old is None else old.meta
    while True:
        meta, todo = Meta.read(root), None
        if known_as is not None and known_as.store_id != meta.store_id:
            raise FormatError("another store is here now; open it again", path=str(root))
        try:
            control = map_control(root)
            seen = read_control(control, root)
            odd = seen.sequence % 2 == 1
            known = seen.of_this_boot and not odd and seen.commit >= meta.commit
            live = is_locked(root / LOCK)
            if live and not known and (odd or boot_number()):
                # It opens the store, or is in the middle of a commit.
                if time.monotonic() < begin + (_PATIENCE_S if odd else _SETTLE_S):
                    time.sleep(0.002)
                    continue
                if odd:
                    raise BusyError(f"the writer of {root} stays in the middle of a commit")
            # Whoever opens a store is to know of a damaged journal, beside a writer, too.
            commits, more = list[Commit](), False
            if old is None or not (live and known) or seen.attributed > meta.commit:
                commits, more = read_commits(root, meta)
            states = [meta, *(commit.after for commit in commits)]
            now = states[-1]
            if known and (live or seen.commit >= now.commit):
                now = [state for state in states if state.commit <= seen.commit][-1]
                if now.commit < seen.attributed and _waits(begin, root, seen):
                    continue  # for meta.json: there was a checkpoint between two looks
                if seen.commit != now.commit:  # perhaps something was deleted since
                    now = replace(now, commit=seen.commit, length=seen.length, deletes=1)
            elif commits or odd or more or is_grown(root, meta):
                todo = commits
            view = mapped(root, now, control, todo, checksums=checksums, old=old, at=at)
            if todo is None:
                return view
            if _is_still(root, seen) and Meta.read(root) == meta:
                return view
            # Else a writer came meanwhile, and perhaps a part of what it did was copied.
        except FormatError:
            # Perhaps there was a checkpoint, or another generation, between the look at meta.json
            # and that at the journal; or a writer came while the tables were copied.
            if Meta.read(root) == meta and (todo is None or _is_still(root, seen)):
                raise
        except FileNotFoundError as error:
            # Another generation may have taken the place of the one that was being looked at.
            if Meta.read(root).generation == meta.generation:
                raise FormatError("the file is missing", path=str(error.filename)) from None


def _is_still(root: Path, seen: Control) -> bool:
    """Whether no writer has committed since."""
    return read_control(map_control(root), root) == seen


def _waits(begin: float, root: Path, seen: Control) -> bool:
    """Wait a little. Raises `ChecksumError` when a commit does not appear."""
    if time.monotonic() > begin + _PATIENCE_S:
        message = f"expected commit {seen.attributed}, which writer.lock has, got none"
        raise ChecksumError(message, path=str(root / JOURNAL))
    time.sleep(0.002)
    return True


def _back(now: Meta, at: Meta, root: Path) -> Meta:
    """An earlier moment: entries behind the end stay as they were, so its length can be seen."""
    if now.commit < at.commit:
        raise FormatError(
            f"expected at least {at.commit} commits, got {now.commit}", path=str(root / META)
        )
    if at.length > now.length and at.generation != now.generation:
        raise BusyError(f"{root} has become shorter, and was rebalanced; open it again")
    return replace(now, length=at.length, commit=at.commit, attributes=at.attributes)


def mapped(
    root: Path,
    meta: Meta,
    control: NDArray[np.uint8],
    commits: list[Commit] | None = None,
    *,
    checksums: bool = True,
    old: View | None,
    at: Meta | None = None,
) -> View:
    """A view of the tables as they are, or of a copy with the `commits` done to it; with `at`, as
    long as it was then."""
    same = old is not None and old.meta.generation == meta.generation
    chunks = old.chunks if same and old else _core.Chunks(root / CHUNKS, meta.first_chunk)
    if commits is not None:
        control = _NOTHING
    tables = [
        files_of(root, name, meta) if commits is None else redone(root, name, meta, commits)
        for name in meta.fields
    ]
    if at is not None:
        meta = _back(meta, at, root)
    records = records_of(root, meta, chunks, tables, control, checksums=checksums)
    # All that there are now: a rebalance would take away the names.
    ids = [i for i in chunk_numbers(root) if 0 <= i - meta.first_chunk < MAX_CHUNKS]
    chunks.map_all(np.array(ids, np.int64))
    return View(meta, control, chunks, records)


def records_of(
    root: Path,
    meta: Meta,
    chunks: _core.Chunks,
    tables: Iterable[tuple[NDArray[np.uint8], NDArray[np.uint8]]],
    control: NDArray[np.uint8] = _NOTHING,
    *,
    checksums: bool = True,
) -> _core.Records:
    """The records that tables, each with its checksums, lead to."""
    fields: list[Any] = []
    for (name, field), (table, crcs) in zip(meta.fields.items(), tables, strict=True):
        dictionary = load_dictionary(root, name, field)
        path, beside = (f"{root}/{file}" for file in meta.table_names(name))
        column = name in meta.columns
        about = (name, field.row_bytes, field.ragged, dictionary, table, crcs, path, beside)
        fields.append((*about, column, column and field.optional))
    return _core.Records(chunks, fields, control, meta.length, checksums)


def files_of(root: Path, name: str, meta: Meta) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The entries of a field, and their checksums; none where that file does not exist."""
    table, checksums = meta.table_names(name)
    checked = name in meta.columns or os.path.lexists(root / checksums)
    found = map_file(root, table), map_file(root, checksums) if checked else _NOTHING
    if meta.length and checked and not len(found[1]) and name in meta.columns:
        raise FormatError("the checksums are missing", path=str(root / checksums))
    return found


def is_grown(root: Path, meta: Meta) -> bool:
    """Whether a table has more room than at the last checkpoint: its writer did not close it."""
    for name in meta.fields:
        table = root / meta.table_names(name)[0]
        if table.exists() and table.stat().st_size > meta.peak * meta.entry(name).itemsize:
            return True
    return False


def redone(
    root: Path, name: str, meta: Meta, commits: list[Commit]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A copy of both with some commits done to it; `meta` is the state after them.

    Raises `ChecksumError` when the table has entries of yet another commit.
    """
    table, checksums = meta.table_names(name)
    column, size = name in meta.columns, meta.entry(name).itemsize
    checked = column or os.path.lexists(root / checksums)
    checksum = COLUMN_CHECKSUM if column else CHECKSUM
    changes = [commit.changes[meta.numbers[name]] for commit in commits]
    there = (root / table).stat().st_size // size
    need = changes[0].first if changes else meta.length  # what no commit brings
    if there < need:
        message = f"truncated: expected {need} entries, got {there}"
        raise FormatError(message, path=str(root / table))
    lengths = [meta.peak, *(commit.after.length for commit in commits)]
    rows = [int(change.rows.max(initial=-1)) for change in changes]
    # Whole blocks: a checksum is that of all entries of a block.
    blocks = (max(*lengths, *rows, 0) + 1) * size // BLOCK_BYTES + 1
    entries = own_copy(root, table, blocks * BLOCK_BYTES)
    stored = own_copy(root, checksums, blocks * checksum.itemsize) if checked else _NOTHING
    checks = stored.view(checksum)
    for change in changes:
        change_memory(entries, checks, change)
    if column:
        changed = np.unique(np.concatenate([_NO_ROWS, *(change.blocks for change in changes)]))
        check_column(entries, checks, changed, meta.commit, root / table)
    else:
        check_entries(entries, meta, root / table)
    return entries, stored

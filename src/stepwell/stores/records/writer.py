"""Changes to a record store: crash-safe, one writer at a time.

A commit is: payloads synced; the new entries written to the journal and synced, which is what
counts; then the tables, which only follow. The next writer does again what the journal has and
meta.json does not.
"""

import copy
import operator
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError, SchemaError
from stepwell.field import FieldLike, as_fields
from stepwell.files.atomic import sync_path
from stepwell.files.journal import Journal, boot_number
from stepwell.files.regular import check_inside
from stepwell.source import Batch, Rows, Schema, Source, as_rows
from stepwell.store import Progress
from stepwell.stores.records.chunk import FrameWriter, OpenChunks, entries_of, rebalance
from stepwell.stores.records.journal import FRAMING, Commit, read_commits
from stepwell.stores.records.layout import (
    CHUNKS,
    JOURNAL,
    LOCK,
    META,
    Meta,
    checked,
    checked_attributes,
    chunk_name,
    fit_for_columns,
    is_left_over,
    need_codec,
    remove_left_over,
    remove_stale,
)
from stepwell.stores.records.staging import Staging
from stepwell.stores.records.tables import Entries, TableFile
from stepwell.stores.records.values import Values, as_values
from stepwell.stores.records.view import (
    View,
    is_grown,
    map_control,
    mapped,
    read_control,
    redone,
)
from stepwell.writer import Mode, Writer, check_mode, exclusive, local_path

GROW_BYTES = 1 << 30
_JOURNAL_BYTES = 1 << 24
_JOURNAL_STEP = 1 << 20


class RecordWriter(Writer):
    """Records of several fields, to be appended, changed and deleted while others read.

        fields = {"image": ("u1", (28, 28)), "label": "<i8", "text": Field(str, optional=True)}
        with RecordWriter("images", fields) as writer:
            writer.append({"image": images, "label": labels})
            writer.commit()                             there for others, and after a crash
            writer.update([7], {"label": [3]}); writer.delete([0])

    **Deleting record i puts the last record in its place**: the store stays without gaps, and
    numbers change. A writer reads what it has, uncommitted changes included: `len(writer)`,
    `writer[7]`, `writer["label"]`, `take`. It is no source; `RecordReader` is.

    `fields`, `chunk_records` and `attributes` are those of a new store; of one that exists,
    `fields` may be left out and are compared if they are not. `threads` pack, up to 4 of them;
    files grow by `grow_bytes` at a time.
    """

    noun = "a record store"

    _chunks: OpenChunks
    _journal: Journal
    _attributed = 0
    """The last commit of this writer that set attributes."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Mapping[str, FieldLike] | None = None,
        *,
        mode: Mode = "x",
        chunk_records: int = 8192,
        attributes: dict[str, Any] | None = None,
        threads: int | None = None,
        grow_bytes: int = GROW_BYTES,
    ) -> None:
        check_mode(mode)
        root = local_path(path, self.noun)
        if grow_bytes < 1:
            raise ValueError(f"grow_bytes: expected at least 1, got {grow_bytes}")
        if threads is not None and not 1 <= threads <= 4:
            raise ValueError(f"threads: expected 1 to 4, got {threads}")
        size = _count("chunk_records", chunk_records)
        given = None if fields is None else checked(as_fields(fields))
        there = self._holds_commits(root)
        if given is None and not there:
            if mode == "x":
                raise ValueError("fields: expected those of the new store, got None")
            raise FileNotFoundError(f"no record store at {root}, and no fields to begin one")
        made = Meta(
            given or {},
            size,
            attributes=checked_attributes(attributes or {}),
            columns=fit_for_columns(given or {}),
        )
        # Before a lock is made in what is no store.
        for field in (Meta.read(root) if mode == "a" and there else made).fields.values():
            need_codec(field)
        self._grow_bytes = grow_bytes
        self._tables: list[TableFile] = []
        self._attributes: dict[str, Any] | None = None
        self._view: View | None = None
        self._born = self._begin(root, LOCK, mode)
        with self._opening():
            if self._born:
                made = Meta.read(root)
                if given is not None and _kept(given) != _kept(made.fields):
                    raise SchemaError(
                        f"the store has the fields {_kept(made.fields)}, got {_kept(given)}"
                    )
            else:
                made = replace(made, store_id=secrets.token_hex(8))
                remove_left_over(root)
            packed = any(field.compress != "none" for field in made.fields.values())
            self._threads = threads or (min(_core.usable_cores(), 4) if packed else 1)
            self._open(made)

    @classmethod
    def _holds_commits(cls, root: Path) -> bool:
        return os.path.lexists(root / META)  # the first commit makes it

    @classmethod
    def _is_left_over(cls, path: Path) -> bool:
        return is_left_over(path)

    # Properties.

    @property
    def path(self) -> str:
        """The path of the store."""
        return str(self._root)

    def __len__(self) -> int:
        self._check_open()
        return self._staging.length

    @property
    def schema(self) -> Schema:
        """The fields of a record, in order."""
        return dict(self._meta.fields)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the store."""
        given = self._attributes
        return copy.deepcopy(self._meta.attributes if given is None else given)

    def __getitem__(self, key: Any) -> Any:
        """`writer[i]` is a record, `writer[a:b]` a batch, `writer["x"]` a field."""
        return _Uncommitted(self)[key]

    def take(self, rows: ArrayLike, out: Mapping[str, NDArray[Any]] | None = None) -> Batch:
        """Return the given records in the given order; see `Source.take`."""
        return _Uncommitted(self).take(rows, out)

    @exclusive
    def present(self, rows: ArrayLike) -> dict[str, NDArray[np.bool]]:
        """Which of these records have each field; one that is missing reads as zeros or empty."""
        names, view = list(self._meta.fields), self._committed()
        found = self._entries(self._rows(rows), names)
        return {name: view.present(name, each) for name, each in zip(names, found, strict=True)}

    # Changes.

    @exclusive
    def append(self, batch: Mapping[str, Any]) -> range:
        """Add records: a dict of arrays or lists of equal length. Returns their numbers.

        Optional fields may be left out, or be None in a list. All of the batch is added, or
        nothing.
        """
        values = as_values(batch, self._meta.fields, whole=True)
        count, begin = next(iter(values.values())).count, self._staging.length
        # Numbers that were used before go to the newest chunk, like updates.
        used = begin < max(self._meta.peak, self._staging.peak)
        numbers = np.arange(begin, begin + count, dtype=np.int64)
        entries = self._write(values, numbers, newest=used)
        with self._changing():
            self._staging.append(count, entries)
        return range(begin, begin + count)

    @exclusive
    def update(self, rows: ArrayLike, batch: Mapping[str, Any]) -> None:
        """Replace fields of these records, each of which may be named once."""
        numbers = self._distinct(rows)
        values = as_values(batch, self._meta.fields, whole=False)
        count = next(iter(values.values())).count
        if count != len(numbers):
            raise ValueError(f"expected values for {len(numbers)} records, got {count}")
        # To the newest chunk alone: there, the last frame of a record is the newest.
        entries = self._write(values, numbers, newest=True)
        with self._changing():
            self._staging.update(numbers, entries)

    @exclusive
    def delete(self, rows: ArrayLike) -> None:
        """Remove these records; from the highest on, the last record takes the place of each."""
        numbers = self._distinct(rows)
        with self._changing():
            self._staging.delete(numbers)

    @exclusive
    def set_attributes(self, attributes: dict[str, Any]) -> None:
        """Keep something with the store, from the next commit on; anything JSON can hold."""
        self._attributes = checked_attributes(attributes)

    @exclusive
    def rebalance(
        self, *, chunk_records: int | None = None, progress: Progress | None = None
    ) -> None:
        """Write all live records again, in order, and remove everything else.

        Small fields of fixed size become columns where they are none, in a store of version 1.
        Commits first. Killed at any moment, the store is as it was before, or rebalanced. Readers
        go on with what they have until they refresh.
        """
        size = self._meta.chunk_records if chunk_records is None else chunk_records
        size = _count("chunk_records", size)
        self._commit()
        self._checkpoint()
        columns = self._meta.columns
        more = columns | fit_for_columns(self._meta.fields)
        new = replace(self._meta, chunk_records=size, columns=more)
        self._rewrite(self._committed().records, columns, new, progress)

    def _commit(self) -> None:
        chunks = self._chunks
        given = self._attributes
        changed = self._staging.touched or given is not None
        if changed or not self._born:
            number, changes = self._meta.commit + 1, self._staging.changes()
            for table, change in zip(self._tables, changes, strict=True):
                table.seal(change, number, self._meta.peak)
            after = replace(
                self._meta,
                commit=number,
                length=self._staging.length,
                peak=max(self._staging.length, self._meta.peak),
                next_chunk=chunks.next,
                deletes=self._meta.deletes + self._staging.deletes,
                unfull=chunks.unfull,
                attributes=self._meta.attributes if given is None else given,
            )
            commit = Commit(after, changes, given is not None)
            body = commit.encode()  # the disk is at work on the payloads meanwhile
            with self._at_risk():
                chunks.sync()
                if not self._born:  # which makes it a store, and syncs the names
                    self._meta.write(self._root)
                    self._born = True
                if changed:
                    self._journal.append(*body)
                    self._journal.sync(after.commit)
                    self._apply(commit)
                    self._announce()
                    self._stage()
                    chunks.committed()
                    self._attributes = None
        if given is not None or self._journal.end > _JOURNAL_BYTES:
            self._checkpoint()

    def _rollback(self) -> None:
        self._chunks.rollback()
        self._attributes = None
        self._stage()

    def _release(self) -> None:
        """Leave files of the size of what is in them, where nothing failed."""
        opened = hasattr(self, "_frames")
        whole = opened and self._born and not self._failed and self._in_place
        with ExitStack() as last:  # all of it, whichever part fails
            if hasattr(self, "_journal"):
                last.callback(self._journal.close)
            for table in self._tables:
                last.callback(table.close)
            if opened:
                chunks = self._chunks
                last.callback(lambda: chunks.close(cut=whole and not self._failed))
            if whole:
                if self._journal.end:
                    self._checkpoint()
                self._journal.restart(cut=True)
                for table in self._tables:
                    table.cut(self._meta.peak)
            self._tables, self._view = [], None

    # Below this line: for this package.

    def _write(
        self, values: Mapping[str, Values], numbers: Rows, *, newest: bool
    ) -> dict[int, Entries]:
        """The entries of values, those of frames behind what is in the chunks."""
        return entries_of(self._meta, self._frames, values, numbers, newest=newest)

    def _rewrite(
        self,
        records: _core.Records,
        columns: frozenset[str],
        meta: Meta,
        progress: Progress | None,
    ) -> None:
        """Become a copy of these records, as they are stored, in new files."""
        made = rebalance(self._root, meta, records, columns, self._grow_bytes, progress)
        with self._at_risk():
            made.write(self._root)
            self._chunks.close(cut=False)
            self._meta = made
            self._journal.restart(cut=False)
            self._open_tables()
            self._open_chunks()
            self._announce()
            remove_stale(self._root, made)

    def _open(self, meta: Meta) -> None:
        root, self._meta = self._root, meta
        self._lock_path = str(root / LOCK)
        with suppress(FileExistsError):
            (root / CHUNKS).mkdir()
        check_inside(root, chunk_name(0))  # the folder is one, and no link
        commits, more = read_commits(root, meta) if self._born else ([], False)
        new = not (root / JOURNAL).exists()
        self._journal = Journal(root, JOURNAL, FRAMING, step_bytes=_JOURNAL_STEP)
        self._control = map_control(root, write=True)
        seen, last = read_control(self._control, root), meta.commit + len(commits)
        if self._born and seen.of_this_boot and seen.commit > last:
            raise ChecksumError(
                f"expected {seen.commit} commits, got {last}", path=str(root / JOURNAL)
            )
        done = seen.of_this_boot and seen.commit == last
        if self._born and not done and (commits or more or is_grown(root, meta)):
            after = commits[-1].after if commits else meta
            for name in meta.fields:  # before anything is changed
                redone(root, name, after, commits)
        self._open_tables()
        if new:
            sync_path(root)  # commits to a journal whose name is lost are lost
        if commits:
            # Readers wait until all of them are done: those in between are mixed with later ones.
            _core.begin_change(self._control, self._lock_path)
            for commit in commits:
                self._apply(commit)
            self._announce()
        self._open_chunks()
        if commits:
            self._checkpoint()
        self._announce()
        remove_stale(root, self._meta)

    def _open_tables(self) -> None:
        root, meta = self._root, self._meta
        while self._tables:
            self._tables.pop().close()
        for name in meta.fields:
            names = meta.table_names(name)
            path = root / names[0]
            if meta.peak and not path.exists():
                raise FormatError("a table is missing", path=str(path))
            self._tables.append(TableFile(root, names, meta.entry(name)))
            self._tables[-1].need(meta)

    def _open_chunks(self) -> None:
        self._chunks = OpenChunks(self._root, self._meta, self._grow_bytes)
        self._frames = FrameWriter(self._root, self._meta, self._chunks, self._threads)
        self._stage()

    def _announce(self) -> None:
        """Report the last commit to readers."""
        meta, path = self._meta, self._lock_path
        _core.begin_change(self._control, path)
        _core.end_change(
            self._control, path, meta.commit, meta.length, boot_number(), self._attributed
        )

    def _stage(self) -> None:
        """Begin with what is committed."""
        self._staging = Staging(self._tables, self._meta.length)

    def _checkpoint(self) -> None:
        """Bring meta.json up to the last commit, so that the journal can begin again."""
        with self._at_risk():
            for table in self._tables:
                table.sync()
            self._meta.write(self._root)
            self._journal.restart(cut=False)

    def _apply(self, commit: Commit) -> None:
        """Do what a commit does to the tables; readers wait for `_announce` then."""
        before, after = self._meta.peak, commit.after.peak
        for table, change in zip(self._tables, commit.changes, strict=True):
            table.write_ahead(change, before, after)
        _core.begin_change(self._control, self._lock_path)
        for table, change in zip(self._tables, commit.changes, strict=True):
            table.change(change, before)
        self._meta = commit.after
        if commit.attributed:
            self._attributed = commit.after.commit

    def _committed(self) -> View:
        """The store as of its last commit."""
        if self._view is None or self._view.meta is not self._meta:
            control = map_control(self._root)
            self._view = mapped(self._root, self._meta, control, old=self._view)
        return self._view

    def _entries(self, rows: Rows, names: Sequence[str]) -> list[Entries]:
        """The entries of these rows, changes included."""
        staging, view = self._staging, self._committed()
        if not staging.touched:
            return view.entries(rows, names)
        ids = staging.ids(rows)
        found, inside = [], ids < staging.base
        for name, entries in zip(names, view.entries(ids[inside], names), strict=True):
            found.append(np.zeros(len(rows), entries.dtype))
            found[-1][inside] = entries
            staging.overlay(view.meta.numbers[name], ids, found[-1])
        return found

    def _rows(self, rows: ArrayLike) -> Rows:
        numbers = as_rows(rows, len(self))
        _core.check_rows(numbers, len(self))
        return numbers

    def _distinct(self, rows: ArrayLike) -> Rows:
        numbers = self._rows(rows)
        found = np.sort(numbers)
        again = found[1:][found[1:] == found[:-1]]
        if len(again):
            raise ValueError(f"record {again[0]} is named more than once")
        return numbers


class _Uncommitted(Source):
    """A writer's records. Made for a call, or for a column: a writer that kept it would keep itself
    alive, and its lock."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer

    def __len__(self) -> int:
        return len(self._writer)

    @property
    def schema(self) -> Schema:
        return self._writer.schema

    def _check_open(self) -> None:
        self._writer._check_open()

    def _fill_columns(self, rows: Rows, out: Batch, names: Sequence[str]) -> None:
        writer = self._writer
        with writer._turn():
            writer._check_usable()
            _core.check_rows(rows, len(self))  # again: another thread may have deleted some
            writer._committed().fill(rows, writer._entries(rows, names), out, names)


def _count(name: str, number: int) -> int:
    if not 1 <= operator.index(number) < 1 << 32:
        raise ValueError(f"{name}: expected 1 to 2**32 - 1, got {number}")
    return operator.index(number)


def _kept(fields: Schema) -> str:
    """All that a writer goes by."""
    return ", ".join(
        f"{name}: {field} ({field.compress}{', optional' if field.optional else ''})"
        for name, field in fields.items()
    )

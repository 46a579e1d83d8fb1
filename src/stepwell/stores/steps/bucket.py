"""Rows appended to a step dataset in a bucket, by many processes at once.

A writer stages runs here, uploads them as shards of its own, and commits by one conditional put of
`dataset.json`. Who is second puts its shards behind those of the first, without uploading them
again.
"""

import os
import shutil
from collections.abc import Mapping
from contextlib import closing, suppress
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from stepwell.bucket_writer import BucketWriter
from stepwell.errors import BusyError, ChecksumError, FetchError, FormatError, SchemaError
from stepwell.field import FieldLike
from stepwell.files import catalog
from stepwell.files.checked import BLOCK_BYTES
from stepwell.files.commit import Announcement, Head, Outdated
from stepwell.files.mirror_place import TemporaryPlace
from stepwell.files.npy import header_bytes
from stepwell.files.objects import RANGE_BYTES, TRIES
from stepwell.files.remote import is_missing
from stepwell.files.staged import Staged
from stepwell.stores.steps import database
from stepwell.stores.steps.database import RunColumn
from stepwell.stores.steps.dataset import Dataset
from stepwell.stores.steps.layout import DATASET, Metadata, Part, Piece, listed_pieces, row_dtype
from stepwell.stores.steps.writer import StepWriter, check_columns
from stepwell.writer import Mode, check_mode

SHARD_BYTES = 1 << 28
_ROOM_BYTES = 1 << 27
_MAX_RESERVED = 1 << 16
_RESERVED = 1 << 10


class BucketStepWriter(BucketWriter, StepWriter):
    """The writer of a step dataset in a bucket; made by `StepWriter(url, …)`."""

    def __init__(
        self,
        path: Any,
        dtype: DTypeLike | Mapping[str, FieldLike] | None = None,
        columns: Mapping[str, type | RunColumn] | None = None,
        *,
        mode: Mode = "x",
        shard_rows: int | None = None,
        **bucket: Any,
    ) -> None:
        check_mode(mode)
        wanted = None if dtype is None else row_dtype(dtype)
        known = database.run_columns(columns)
        if shard_rows is not None and index(shard_rows) < 1:
            raise ValueError(f"shard_rows must be at least 1, got {shard_rows}")
        self._reach(path, bucket)
        self._place: TemporaryPlace | None = TemporaryPlace(_ROOM_BYTES)
        self._head = Head(self._files, DATASET, Dataset.parse, Dataset.dump)
        self._reset()
        self._refuse_in_bucket(mode, wanted)
        self._ready(None)
        with self._opening():
            self._announcement = Announcement(self._files)
            self._begun(mode, wanted, known)
            self._shard_rows = shard_rows or max(SHARD_BYTES // self._dtype.itemsize, 1)

    @property
    def _folder(self) -> Path:
        """For databases on their way; gone with the process, even a killed one."""
        assert self._place is not None
        return self._place.root

    # Opening.

    def _refuse_in_bucket(self, mode: Mode, dtype: np.dtype[Any] | None) -> None:
        """Raise for what `mode` does not go on with, before anything is written."""
        there = self._head.read()
        if there is None and (others := sorted(self._files.names(""))):
            there = self._head.read()  # another writer may have begun it before they were listed
            if there is None:
                raise FileExistsError(
                    f"expected a step dataset that was written in a bucket, or nothing, got "
                    f"objects like {', '.join(others[:3])}: {self._where}"
                )
        if there is not None and there.runs and mode == "x":
            raise FileExistsError(f"{self._where} exists already; mode='a' goes on with it")
        if there is not None:
            return
        if dtype is None:
            raise FileNotFoundError(f"no dataset at {self._where}; a new one needs a dtype")

    def _begun(
        self, mode: Mode, dtype: np.dtype[Any] | None, columns: Mapping[str, RunColumn]
    ) -> None:
        """Have a dataset, which may be empty, and know what it is of."""
        there = self._head.read()
        if there is None:
            self._create(dtype, columns, 0)
        there = self._newest()
        is_empty = mode == "x" and not there.runs and dtype is not None
        if is_empty and (dtype != there.dtype or not self._has_columns(there, columns)):
            self._create(dtype, columns, 0)  # nothing was committed: it counts as empty
            there = self._newest()
        if there.runs and mode == "x":
            raise FileExistsError(f"{self._where} was begun by another writer meanwhile")
        self._id, self._is_new = there.id, mode == "x"
        self._dtype, self._max_rows = there.dtype, 1 << 62
        self._rows, self._runs = there.rows, there.runs
        if dtype not in (None, self._dtype):
            raise SchemaError(f"expected rows of {self._dtype}, as the dataset has, got {dtype}")
        with catalog.reading(self._base(there)) as opened:
            found = database.columns(opened)
        self._columns = {name: each for name, each in found.items() if name not in database.OWN}
        check_columns(self._columns, columns)

    def _newest(self) -> Dataset:
        """What counts now, whose database is here."""

        def look(there: Dataset | None) -> None:
            if there is not None:
                self._base(there)

        there = self._head.change(look, self._announced)
        if there is None:
            raise BusyError(f"{self._where} was removed while it was opened")
        return there

    def _has_columns(self, there: Dataset, columns: Mapping[str, RunColumn]) -> bool:
        with catalog.reading(self._base(there)) as opened:
            found = database.columns(opened)
        mine = {name: (each.sql, each.required) for name, each in columns.items()}
        return mine == {n: tuple(each) for n, each in found.items() if n not in database.OWN}

    def _create(
        self, dtype: np.dtype[Any] | None, columns: Mapping[str, RunColumn], shard_rows: int
    ) -> None:
        """A dataset without rows, unless another writer begins one first."""
        assert dtype is not None
        replaced, path = self._head.seen, self._folder / "empty.db"
        database.create(path, dtype, columns, shard_rows)
        identity = database.look(path).identity.removeprefix("id:")
        metadata = self._put_database(path)
        path.unlink()

        def make(there: Dataset | None) -> Dataset | None:
            if (None if there is None else there.id) != (None if replaced is None else replaced.id):
                return None
            if there is not None and there.runs:
                return None
            change = 0 if there is None else there.change + 1
            return Dataset(identity, dtype, metadata, change=change, by=self._announced.token)

        self._head.change(make, self._announced)

    # Writing.

    def __len__(self) -> int:
        return self._rows + self._written + self._pending_rows

    def add_column(self, name: str, column: Any, values: Any = None) -> None:
        """Not in a bucket: others may be writing runs without it."""
        raise ValueError(
            f"{name}: a dataset in a bucket has the columns that it was begun with; "
            "`stepwell convert` makes a local copy, which can get others"
        )

    # Below this line: for this package.

    def _reset(self) -> None:
        """Nothing is appended."""
        self._pending, self._pending_rows, self._new_runs = [], 0, []
        self._written = 0
        """Rows in shards, none of which is committed."""
        self._uploaded: list[Part] = []
        self._staged: list[Staged] = []
        self._is_unsure = False
        """Whether a commit may have been made whose answer was lost, or may still be: its condition
        holds until the document has changed."""

    def _reserve(self) -> None:
        if self._next_run < self._end_run:
            return
        limit = 1 << 62
        if "run_id" in (self._dtype.names or ()) and self._dtype["run_id"].kind in "iu":
            limit = int(np.iinfo(self._dtype["run_id"]).max) + 1
        count = max(min(self._reserved, limit >> 12), 1)

        def make(there: Dataset | None) -> Dataset:
            if self._is_unsure and self._new_runs:
                there = self._same_or_mine(there)
                self._find_committed(there)
                self._rows, self._runs = there.rows, there.runs
            there = self._same(there)
            first.append(there.next_run)
            end = max(min(there.next_run + count, limit), there.next_run + 1)
            return there.changed(self._announced.token, next_run=end)

        first = list[int]()
        made = self._head.change(make, self._announced)
        assert made is not None
        self._is_unsure = False
        self._next_run, self._end_run = first[-1], made.next_run
        self._reserved = min(self._reserved * 2, _MAX_RESERVED)

    _next_run = 0
    _end_run = 0
    """The ids from `_next_run` up to it are this writer's."""
    _reserved = _RESERVED

    def _same(self, there: Dataset | None) -> Dataset:
        """What counts now, if it is the dataset that was opened."""
        if there is None or there.id != self._id:
            raise BusyError(
                f"{self._where} was replaced by another dataset while it was written to"
            )
        if self._is_new and there.runs:
            raise FileExistsError(
                f"{self._where} was committed to by another writer first; mode='a' goes on with it"
            )
        return there

    def _places(self, rows: int) -> list[Piece]:
        """Where the next rows go: into the staged files, by their numbers, counted from the first
        row that is not uploaded."""
        before = sum(part.rows for part in self._uploaded)
        first, size = self._written - before, self._shard_rows
        count = -(-(first + rows) // size)
        every = [Part("", size, 0)] * count
        return listed_pieces(Path(), every, first, first + rows)

    def _write(self, *pending: NDArray[np.void]) -> NDArray[np.uint8]:
        self._upload(len(self._staged) - 1)  # whole ones; the last one may have room
        data = np.concatenate([rows.view(np.uint8) for rows in pending])
        at, size = 0, self._dtype.itemsize
        head = len(header_bytes(self._dtype, 0))
        for piece in self._places(len(data) // size):
            if piece.number == len(self._staged):
                self._staged.append(Staged(head))
            end = at + piece.rows * size
            self._staged[piece.number].write(data[at:end], piece.inside * size)
            at = end
        return data

    def _settle(self, data: NDArray[np.uint8]) -> None:
        at, size = 0, self._dtype.itemsize
        for piece in self._places(len(data) // size):
            end = at + piece.rows * size
            self._staged[piece.number].settle(data[at:end])
            at = end
        self._written += len(data) // size
        self._pending, self._pending_rows = [], 0

    def _upload(self, count: int) -> None:
        """Put the first of the staged files where they stay."""
        for _ in range(count):
            staged = self._staged[0]
            rows = staged.payload_bytes // self._dtype.itemsize
            if rows:
                part = Part(f"shards/{self._announced.new_name('.npy')}", rows, staged.size)
                header = header_bytes(self._dtype, rows, staged.head_bytes)
                staged.upload(self._files, part.name, part.checksums, header)
                self._uploaded.append(part)
            self._staged.pop(0).close()

    def _commit(self) -> None:
        if not self._new_runs:
            return
        self._flush()
        self._upload(len(self._staged))
        tried = list[Metadata]()

        def make(there: Dataset | None) -> Dataset | None:
            unsure = self._is_unsure
            self._is_unsure = unsure and not tried  # refused: so nothing of before comes any more
            if unsure:
                self._find_committed(self._same_or_mine(there))
                if not self._new_runs:
                    return None
            there = self._same(there)
            self.conflicts += bool(tried) and there.metadata != based[-1]
            path = self._with_runs(there)
            based.append(there.metadata)
            tried.append(self._put_database(path))
            self._is_unsure = True  # from the put on, until its answer
            return there.changed(
                self._announced.token,
                metadata=tried[-1],
                rows=there.rows + self._written,
                runs=there.runs + len(self._new_runs),
                parts=there.parts + tuple(self._uploaded),
            )

        based = list[Metadata]()
        made = self._head.change(make, self._announced)
        assert made is not None
        self._rows, self._runs, self._is_new = made.rows, made.runs, False
        if tried and made.metadata == tried[-1]:
            os.replace(self._folder / "next.db", self._folder / "base.db")
            self._based = made.metadata
        self._reset()
        with suppress(FetchError):  # what others were quicker than; `clean` finds it, too
            self._files.remove(each.name for each in tried if each != made.metadata)

    def _rollback(self) -> None:
        if self._is_unsure and self._new_runs:
            # A request that is still under way must not be carried out once this returns.
            def make(there: Dataset | None) -> Dataset:
                there = self._same_or_mine(there)
                self._find_committed(there)
                return there.changed(self._announced.token)

            try:
                made = self._head.change(make, self._announced)
                assert made is not None
                self._rows, self._runs = made.rows, made.runs
            except BusyError:  # taken for dead: what counts may name them, and `clean` knows
                self._uploaded.clear()
        uploaded = self._uploaded
        self._close_staged()
        self._reset()
        with suppress(FetchError):
            self._files.remove(name for each in uploaded for name in (each.name, each.checksums))

    def _same_or_mine(self, there: Dataset | None) -> Dataset:
        """The same dataset, where its first runs may be those of this writer."""
        is_new, self._is_new = self._is_new, False
        try:
            return self._same(there)
        finally:
            self._is_new = is_new

    def _find_committed(self, there: Dataset) -> None:
        """Forget runs and shards that a commit has whose answer was lost."""
        if not self._new_runs:
            return
        first, last = self._new_runs[0][0], self._new_runs[-1][0]
        with catalog.reading(self._base(there)) as opened:
            sql = "SELECT id FROM runs WHERE id BETWEEN ? AND ?"
            ids = {run for (run,) in opened.execute(sql, (first, last))}
        known = {part.name for part in there.parts}
        done = [run for run in self._new_runs if run[0] in ids]
        self._new_runs = [run for run in self._new_runs if run[0] not in ids]
        self._uploaded = [part for part in self._uploaded if part.name not in known]
        self._written -= sum(run[2] for run in done)
        self._is_new = self._is_new and not done

    # The database.

    _based: Metadata | None = None
    """Which one `base.db` is."""

    def _base(self, there: Dataset) -> Path:
        """The database of a commit, here."""
        path = self._folder / "base.db"
        if self._based == there.metadata:
            return path
        self._based = None
        name, size, _ = there.metadata
        url = self._files.url_of(name)
        for left in reversed(range(TRIES)):
            try:
                with path.open("w+b") as file:
                    for at in range(0, size, RANGE_BYTES):
                        file.write(self._files.read(name, at, min(at + RANGE_BYTES, size)).data)
                    file.flush()
                    there.metadata.check(file, url)
                break
            except FetchError as error:
                if is_missing(error):
                    gone = "expected the database of the last commit, there is no such object"
                    raise Outdated(FormatError(gone, path=url)) from None
                raise
            except ChecksumError:  # it came damaged
                if not left:
                    raise
        self._based = there.metadata
        return path

    def _with_runs(self, there: Dataset) -> Path:
        """That of the next commit: the new runs behind those that are there."""
        path, start, runs = self._folder / "next.db", there.rows, list[tuple[Any, ...]]()
        shutil.copyfile(self._base(there), path)
        for run, _, count, *values in self._new_runs:
            runs.append((run, start, count, *values))
            start += count
        with closing(catalog.connect(path)) as opened:
            blocks = database.block_meta(BLOCK_BYTES, b"")
            database.append(opened, path, list(self._columns), runs, start, blocks)
        return path

    def _put_database(self, path: Path) -> Metadata:
        with closing(catalog.connect(path)) as opened, catalog.in_turn():
            opened.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
        with path.open("rb") as file:
            made = Metadata.of(f"metadata/{self._announced.new_name('.db')}", file)
            self._files.put(made.name, file)
        return made

    def _release(self) -> None:
        self._place = None
        super()._release()

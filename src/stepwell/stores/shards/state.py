"""Something kept for each row of a corpus between two passes over it."""

import errno
import mmap
import os
from contextlib import ExitStack, suppress
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError, SchemaError
from stepwell.files.atomic import is_temporary, sweep, sync_path
from stepwell.files.document import Document, whole_number
from stepwell.files.journal import SEAL_BYTES, Framing, Journal, boot_number, read_journal
from stepwell.files.npy import dtype_from_json, dtype_to_json
from stepwell.files.regular import open_inside
from stepwell.fit import fit_into
from stepwell.source import Rows, as_rows, is_masked
from stepwell.writer import Mode, Writer, exclusive

META = Document("state.json", "stepwell-rowstate", 2, older=(1,), indent=None)
FRAMING = Framing(b"RST1", whole=False, seal_magic=b"RSTS")
VALUES, THERE, CHECKSUMS = "values", "there", "checksums"
JOURNAL, LOCK = "journal", "writer.lock"
_HEAD_BYTES = len(FRAMING.frame(b""))
_JOURNAL_BYTES = 1 << 24
_MAX_ROWS = 1 << 48
_PIECE_BYTES = 1 << 20


class RowState(Writer):
    """A vector for each row id: `put` for a batch, `get` for any other, in a directory of its own.

        state = RowState("warm/", width=32)     goes on with what is there; mode="x" wants nothing
        state.put(row_ids, codes)
        start = state.get(row_ids)              zeros for rows that have none yet

    A `put` is there whole or not at all, whatever happens, and seen by `get` at once. After
    `commit` it survives a power cut, too; `rollback` drops the puts since. A full journal (16 MiB)
    is a commit, as a full shard is. One process at a time.

    Every vector has a checksum, and `get` raises `ChecksumError` for one that was changed since; a
    state of version 0.1 has none, and `checked` is False.
    """

    noun = "a row state"

    def __init__(
        self,
        path: str | os.PathLike[str],
        width: int | None = None,
        dtype: DTypeLike | None = None,
        *,
        mode: Mode = "a",
    ) -> None:
        self._files: dict[str, int] = {}
        self._journal: Journal | None = None
        self._committed = 0
        """The end of the journal at the last commit."""
        self._replayed = False
        there = self._begin(path, LOCK, mode)
        with self._opening():
            sweep(self._root, META.name)
            make = self._described if there else self._made
            self._width, self._dtype, self._checked = make(width, dtype)
            row_bytes = self._width * self._dtype.itemsize
            self._sizes = {VALUES: row_bytes, THERE: 1} | ({CHECKSUMS: 4} if self._checked else {})
            self._late = _Late(self._width, self._dtype)
            for name in self._sizes:
                self._files[name] = open_inside(self._root, name, os.O_RDWR | os.O_CREAT)
            if os.fstat(self._files[THERE]).st_size and not os.path.lexists(self._root / JOURNAL):
                raise FormatError("expected a journal, found none", path=str(self._root / JOURNAL))
            self._journal = Journal(self._root, JOURNAL, FRAMING)
            sync_path(self._root)
            self._map()
            surplus = self._surplus()
            replayed = self._replay(self._journal)
            self._check_cut(surplus)
            if replayed:
                # Behind what is whole may be records that nobody is to find again.
                self._checkpoint()
            self._replayed = True

    @property
    def width(self) -> int:
        """Values in a row."""
        return self._width

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a value."""
        return self._dtype

    @property
    def checked(self) -> bool:
        """Whether vectors have checksums; those of version 0.1 have none."""
        return self._checked

    def __repr__(self) -> str:
        unchecked = "" if self._checked else ", without checksums"
        return f"RowState({self._width} x {self._dtype}, path={str(self._root)!r}{unchecked})"

    @exclusive
    def __len__(self) -> int:
        """How many rows have something."""
        late, _ = self._late.last()
        return self._tables.count() + int((~self._in_tables(late)).sum())

    def put(self, row_ids: ArrayLike, values: ArrayLike) -> None:
        """Keep a vector for each of these rows, in place of what there was; all or none."""
        ids = _as_ids(row_ids)
        if is_masked(values):
            raise TypeError("a masked array would lose its mask; fill it first")
        made = np.zeros((len(ids), self._width), self._dtype)
        fit_into("values", np.asarray(values), made)
        # numpy.unique takes ten times as long.
        rising = ids if (ids[1:] > ids[:-1]).all() else np.sort(ids)
        if (rising[1:] == rising[:-1]).any():
            raise ValueError("a row is named more than once")
        self._put(ids, made, len(ids).to_bytes(8, "little") + ids.tobytes() + made.tobytes())

    @exclusive
    def _put(self, ids: Rows, values: NDArray[Any], body: bytes) -> None:
        journal = self._journal
        assert journal is not None
        self._make_room(int(ids.max(initial=-1)) + 1)
        size = _HEAD_BYTES + len(body)
        if journal.end and journal.end + size > _JOURNAL_BYTES:
            self._checkpoint()
        # A put survives the process at once, and the machine after a commit.
        boot = boot_number()
        seal = FRAMING.seal(journal.end + size, boot) if boot else bytes(SEAL_BYTES)
        with self._changing():
            try:
                journal.append(body, seal=seal)
            except BaseException:
                self._failed, self._torn = journal.torn, False
                raise
            with suppress(OSError):  # the seal in the journal says it, too
                self._note(seal)
            self._late.put(ids, values)

    @exclusive
    def get(self, row_ids: ArrayLike) -> NDArray[Any]:
        """The vectors of these rows; zeros for those without."""
        ids = _as_ids(row_ids)
        inside = ids < self._rows
        known = ids if inside.all() else ids[inside]
        found = np.empty((len(known), self._width), self._dtype)
        self._tables.get(known, _bytes_of(found))
        places = self._late.places(known)
        late = places >= 0
        found[late] = self._late.values[places[late]]
        if len(known) == len(ids):
            return found
        every = np.zeros((len(ids), self._width), self._dtype)
        every[inside] = found
        return every

    @exclusive
    def present(self, row_ids: ArrayLike) -> NDArray[np.bool]:
        """Which of these rows have something."""
        ids = _as_ids(row_ids)
        found = ids < self._rows
        known = ids[found]
        found[found] = self._in_tables(known) | (self._late.places(known) >= 0)
        return found

    # Below this line: the methods of `Writer`.

    def _commit(self) -> None:
        journal = self._journal
        assert journal is not None
        if journal.end > self._committed:
            with self._at_risk():
                journal.sync(journal.end - SEAL_BYTES)
            self._committed = journal.end

    def _rollback(self) -> None:
        assert self._journal is not None
        with self._at_risk():
            self._note(bytes(SEAL_BYTES))
            self._journal.cut(self._committed)
        with self._changing():
            self._late.clear()
            self._map()
            self._replay(self._journal)

    def _release(self) -> None:
        """Apply the journal to the tables, if possible; else the next writer does it."""
        journal = self._journal
        try:
            settled = self._replayed and not self._failed and self._in_place
            if journal is not None and journal.end and settled:
                self._checkpoint()
        finally:
            self._forget_tables()
            files, self._files, self._journal = self._files, {}, None
            with ExitStack() as closing:
                for file in files.values():
                    closing.callback(os.close, file)
                if journal is not None:
                    closing.callback(journal.close)

    @classmethod
    def _holds_commits(cls, root: Path) -> bool:
        """A state is one from the moment that its width and dtype are written down."""
        return os.path.lexists(root / META.name)

    @classmethod
    def _is_left_over(cls, path: Path) -> bool:
        return path.name == LOCK or is_temporary(path, META.name)

    # Below this line: for this package.

    def _described(
        self, width: int | None, dtype: DTypeLike | None
    ) -> tuple[int, np.dtype[Any], bool]:
        """The width and dtype of the state that is there, and whether it has checksums."""
        with META.parsing(self._root) as text:
            there, kept = whole_number(text["width"], 1 << 62, min_=1), text["dtype"]
            there_dtype, checked = dtype_from_json(kept), text["version"] > 1
        if width not in (None, there) or (dtype is not None and np.dtype(dtype) != there_dtype):
            raise SchemaError(f"expected {there} x {there_dtype}, got {width} x {dtype}")
        return there, there_dtype, checked

    def _made(self, width: int | None, dtype: DTypeLike | None) -> tuple[int, np.dtype[Any], bool]:
        """The width and dtype of a new state, written down."""
        if width is None or index(width) < 1:
            raise ValueError(f"width: expected at least 1 for a new state, got {width}")
        made = np.dtype(np.float32 if dtype is None else dtype)
        if made.names or made.hasobject or made.shape or not made.itemsize:
            raise ValueError(f"expected a plain dtype, got {made}")
        META.write(self._root, {"width": width, "dtype": dtype_to_json(made)})
        return width, made, True

    def _rows_of(self, name: str) -> int:
        """Rows that a table has room for."""
        return os.fstat(self._files[name]).st_size // self._sizes[name]

    def _map(self) -> None:
        rows = min(map(self._rows_of, self._sizes))
        self._late.make_room(rows)
        parts = {name: np.empty(0, np.uint8) for name in (VALUES, THERE, CHECKSUMS)}
        for name, size in self._sizes.items():
            if rows:
                parts[name] = np.frombuffer(mmap.mmap(self._files[name], rows * size), np.uint8)
        row_bytes = self._sizes[VALUES]
        self._tables = _core.StateTables(
            parts[VALUES], parts[THERE], parts[CHECKSUMS], row_bytes, self._root
        )
        self._rows = rows

    def _forget_tables(self) -> None:
        nothing = np.empty(0, np.uint8)
        self._tables = _core.StateTables(nothing, nothing, nothing, 1, self._root)
        self._rows = 0

    def _in_tables(self, rows: Rows) -> NDArray[np.bool]:
        found = np.empty(len(rows), np.uint8)
        self._tables.present(rows, found)
        return found.astype(np.bool)

    def _surplus(self) -> set[int]:
        """Rows of which one table has something, where another has already ended."""
        found: set[int] = set()
        for name, size in self._sizes.items():
            end, step = self._rows_of(name) * size, _PIECE_BYTES // size * size or size
            for at in range(self._rows * size, end, step):
                piece = np.frombuffer(os.pread(self._files[name], step, at), np.uint8)
                found.update(((np.flatnonzero(piece) + at) // size).tolist())
        return found

    def _check_cut(self, surplus: set[int]) -> None:
        """Raise `FormatError` when rows are in some tables only: someone cut the others. Those that
        the journal has may be so after a crash."""
        lost = surplus - set(self._late.ids.tolist())
        if lost:
            short = min(self._sizes, key=self._rows_of)
            raise FormatError(
                f"truncated: expected {max(lost) + 1} rows, got {self._rows_of(short)}",
                path=str(self._root / short),
                offset=os.fstat(self._files[short]).st_size,
            )

    def _make_room(self, rows: int) -> None:
        """Room on the disk before it is written to through memory, where nothing can be refused."""
        if rows <= self._rows:
            return
        rows = max(rows, self._rows * 5 // 4, 4096)
        for name, size in self._sizes.items():
            self._grow(name, rows * size)
        with self._changing():
            self._map()

    def _grow(self, name: str, size: int) -> None:
        """All of it or nothing."""
        file, path = self._files[name], str(self._root / name)
        before = os.fstat(file).st_size
        if size <= before:
            return
        disk = os.fstatvfs(file)
        try:
            # Some file systems take all there is before they refuse.
            if disk.f_blocks and size - before > disk.f_bavail * disk.f_frsize:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(file, before)
            error.filename = path
            raise

    def _apply(self, ids: Rows, values: NDArray[Any]) -> None:
        self._tables.put(ids, _bytes_of(values))

    def _replay(self, journal: Journal) -> bool:
        """Do again what the journal has: some of it may not have reached the tables. Return
        whether it has anything.

        Raises `ChecksumError` for a put that was there and was damaged; what was torn while it
        was written is dropped.
        """
        data, puts, end = read_journal(self._root, JOURNAL), [], 0
        for at, body in FRAMING.records(data):
            put = self._parsed(body)
            if put is None:
                break
            puts.append(put)
            end = at + _HEAD_BYTES + len(body)
        noted = np.frombuffer(os.pread(self._lock_file, SEAL_BYTES, 0), np.uint8)
        if max(FRAMING.sealed(data, end), FRAMING.sealed(noted, 0)) > end:
            raise ChecksumError(
                f"put {len(puts)} of this journal is damaged", path=str(journal.path), offset=end
            )
        for ids, values in puts:
            self._make_room(int(ids.max(initial=-1)) + 1)
            self._late.put(ids, values)
            journal.end = end + SEAL_BYTES
        return len(data) > 0

    def _parsed(self, body: NDArray[np.uint8]) -> tuple[Rows, NDArray[Any]] | None:
        """The rows and vectors of a record; None for one that no put has written."""
        count = int(body[:8].view("<u8")[0]) if len(body) >= 8 else -1
        if len(body) != 8 + count * (8 + self._width * self._dtype.itemsize):
            return None
        ids = body[8 : 8 + 8 * count].view(np.int64)
        if count and not 0 <= int(ids.min()) <= int(ids.max()) < _MAX_ROWS:
            return None
        return ids, body[8 + 8 * count :].view(self._dtype).reshape(count, self._width)

    @property
    def _lock_file(self) -> int:
        assert self._lock is not None
        return self._lock.file

    def _note(self, seal: bytes) -> None:
        """Write down outside of the journal, for as long as the machine runs, where it ends."""
        os.pwrite(self._lock_file, seal, 0)

    def _sync(self, name: str, file: int) -> None:
        try:
            os.fsync(file)
        except OSError as error:
            error.filename = str(self._root / name)
            raise

    def _checkpoint(self) -> None:
        """Everything in the tables, on the disk; then the journal begins again.

        Nothing reaches a table before it is in the journal on the disk: the system writes tables
        when it likes, and a part of a put must not be all that a power cut leaves of it.
        """
        journal = self._journal
        assert journal is not None
        self._commit()
        with self._at_risk():  # until the tables have everything the journal is needed
            self._apply(*self._late.last())
            for name, file in self._files.items():
                self._sync(name, file)
            self._note(bytes(SEAL_BYTES))
            journal.restart(cut=True)
        with self._changing():
            self._late.clear()
            self._committed = 0


def _bytes_of(values: NDArray[Any]) -> NDArray[np.uint8]:
    return values.reshape(-1).view(np.uint8)


def _as_ids(row_ids: ArrayLike) -> Rows:
    """Row ids as a source takes them, any that a state may have."""
    ids = as_rows(row_ids, _MAX_ROWS)
    _core.check_rows(ids, _MAX_ROWS)
    return ids


class _Late:
    """Vectors that are in the journal and not yet in the tables; the last one of a row counts."""

    def __init__(self, width: int, dtype: np.dtype[Any]) -> None:
        self.values = np.zeros((0, width), dtype)
        self._ids = np.zeros(0, np.int64)
        self._count = 0
        self._slots = np.zeros(0, np.int32)  # for each row 1 + its place, or 0

    @property
    def ids(self) -> Rows:
        """In the order in which they came, repeats included."""
        return self._ids[: self._count]

    def make_room(self, rows: int) -> None:
        """Memory for `rows` rows, most of which is never touched."""
        slots = np.zeros(rows, np.int32)
        slots[self.ids] = self._slots[self.ids]
        self._slots = slots

    def put(self, ids: Rows, values: NDArray[Any]) -> None:
        """Rows for which there is room."""
        begin, end = self._count, self._count + len(ids)
        if end > len(self._ids):
            self._ids = np.resize(self._ids, max(end, 2 * begin))
            more = np.zeros((len(self._ids), self.values.shape[1]), self.values.dtype)
            more[:begin] = self.values[:begin]
            self.values = more
        self._ids[begin:end] = ids
        self.values[begin:end] = values
        self._count = end
        self._slots[ids] = np.arange(begin + 1, end + 1)  # from here on it is seen

    def places(self, ids: Rows) -> Rows:
        """Where in `values` the vectors of these rows are; -1 for rows without."""
        return self._slots[ids] - np.int64(1)

    def last(self) -> tuple[Rows, NDArray[Any]]:
        """Each row once, and its vector."""
        counts = self._slots[self.ids] == np.arange(1, self._count + 1)
        return self.ids[counts], self.values[: self._count][counts]

    def clear(self) -> None:
        self._slots = np.zeros(len(self._slots), np.int32)  # gives the old pages back
        self._count = 0
        self._ids, self.values = self._ids[:0], self.values[:0]

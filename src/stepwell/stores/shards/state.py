"""Something kept for each row of a corpus between two passes over it."""

import errno
import json
import mmap
import os
import struct
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from operator import index
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from stepwell import _core
from stepwell.errors import FormatError, SchemaError, VersionError
from stepwell.files.atomic import sync_path, write_all, write_file
from stepwell.files.lock import WriterLock
from stepwell.files.npy import dtype_from_json, dtype_to_json
from stepwell.fit import fit_into
from stepwell.source import Rows, is_masked

__all__ = ["RowState"]

META, VALUES, THERE, JOURNAL, LOCK = "state.json", "values", "there", "journal", "writer.lock"
_HEAD = struct.Struct("<4sIQ")
_MAGIC = b"RST1"
_JOURNAL_BYTES = 1 << 24
_MOST_ROWS = 1 << 48
_MANY_ROWS = 1 << 20
_PIECE_BYTES = 1 << 20


class RowState:
    """A vector for each row id: `put` for a batch, `get` for any other, in a directory of its own.

        state = RowState("warm/", width=32)
        state.put(row_ids, codes)
        start = state.get(row_ids)              zeros for rows that have none yet

    A `put` is there whole or not at all, whatever happens; after `flush` or `close` it survives
    a power cut, too. One process at a time.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        width: int | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        self._root = Path(path).absolute()
        self._root.mkdir(parents=True, exist_ok=True)
        self._lock = WriterLock(self._root / LOCK)
        self._turn = threading.Lock()
        self._files: dict[str, int] = {}
        self._end = 0
        self._failed = False
        try:
            self._width, self._dtype = self._begin(width, dtype)
            self._late = _Late(self._width, self._dtype)
            for name in (VALUES, THERE, JOURNAL):
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._files[name] = os.open(self._root / name, flags, 0o666)
            sync_path(self._root)
            self._map()
            self._replay()
        except BaseException:
            self._let_go()
            raise

    @property
    def width(self) -> int:
        return self._width

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    def __repr__(self) -> str:
        return f"RowState({self._width} x {self._dtype}, path={str(self._root)!r})"

    def __len__(self) -> int:
        """How many rows have something."""
        with self._turn:
            self._check_open()
            late, _ = self._late.last()
            return int(self._there.sum(dtype=np.int64)) + int((self._there[late] == 0).sum())

    def put(self, row_ids: ArrayLike, values: ArrayLike) -> None:
        """Keep a vector for each of these rows, in place of what there was; all or none."""
        ids = self._ids(row_ids)
        if is_masked(values):
            raise TypeError("a masked array would lose its mask; fill it first")
        given = np.asarray(values)
        made = np.zeros((len(ids), self._width), self._dtype)
        if given.shape != made.shape:
            raise SchemaError(f"expected {made.shape} values, got {given.shape}")
        fit_into("values", given, made)
        # numpy.unique takes ten times as long.
        rising = ids if (ids[1:] > ids[:-1]).all() else np.sort(ids)
        if (rising[1:] == rising[:-1]).any():
            raise ValueError("a row is named more than once")
        body = len(ids).to_bytes(8, "little") + ids.tobytes() + made.tobytes()
        crc = _core.crc32c(np.frombuffer(body, np.uint8))
        record = np.frombuffer(_HEAD.pack(_MAGIC, crc, len(body)) + body, np.uint8)
        with self._turn:
            self._check_open()
            self._make_room(int(ids.max(initial=-1)) + 1)
            if self._end and self._end + len(record) > _JOURNAL_BYTES:
                self._checkpoint()
            try:
                write_all(self._files[JOURNAL], record, self._end, self._root / JOURNAL)
            except BaseException:
                self._failed = True  # a part of it may be there
                with suppress(OSError):
                    os.ftruncate(self._files[JOURNAL], self._end)
                    self._failed = False
                raise
            self._end += len(record)
            self._late.put(ids, made)

    def get(self, row_ids: ArrayLike) -> NDArray[Any]:
        """What was kept for these rows; zeros for those without."""
        ids = self._ids(row_ids)
        with self._turn:
            self._check_open()
            inside = ids < len(self._values)
            if inside.all():
                found = np.asarray(self._values[ids])
            else:
                found = np.zeros((len(ids), self._width), self._dtype)
                found[inside] = self._values[ids[inside]]
            places = self._late.places(ids)
            late = places >= 0
            found[late] = self._late.values[places[late]]
            return found

    def present(self, row_ids: ArrayLike) -> NDArray[np.bool]:
        """Which of these rows have something."""
        ids = self._ids(row_ids)
        with self._turn:
            self._check_open()
            inside = ids < len(self._there)
            found = np.zeros(len(ids), np.bool)
            found[inside] = self._there[ids[inside]] != 0
            return found | (self._late.places(ids) >= 0)

    def flush(self) -> None:
        """Wait until everything is on the disk."""
        with self._turn:
            self._check_open()
            self._sync(JOURNAL, os.fdatasync)

    def close(self) -> None:
        with self._turn:
            if not self._lock.held:
                return
            try:
                if self._end and not self._failed:
                    self._checkpoint()
            finally:
                self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_files"):
            self._let_go()  # the journal has what the tables do not

    # Below this line: for this package.

    def _begin(self, width: int | None, dtype: DTypeLike | None) -> tuple[int, np.dtype[Any]]:
        path = self._root / META
        if path.exists():
            try:
                text = json.loads(path.read_bytes())
                if text["format"] != "stepwell-rowstate":
                    raise ValueError(text)
                if text["version"] != 1:
                    message = f"expected version 1, got {text['version']!r}"
                    raise VersionError(message, path=str(path))
                there, kept = text["width"], dtype_from_json(text["dtype"])
                if type(there) is not int or there < 1:
                    raise ValueError(text)
            except VersionError:
                raise
            except Exception as error:
                raise FormatError(f"not a row state: {error!r}", path=str(path)) from None
            if width not in (None, there) or (dtype is not None and np.dtype(dtype) != kept):
                raise SchemaError(f"expected {there} x {kept}, got {width} x {dtype}")
            return there, kept
        if width is None or index(width) < 1:
            raise ValueError(f"width: expected at least 1 for a new state, got {width}")
        made = np.dtype(np.float32 if dtype is None else dtype)
        if made.names or made.hasobject or made.shape or not made.itemsize:
            raise ValueError(f"expected a plain dtype, got {made}")
        text = {"format": "stepwell-rowstate", "version": 1, "width": width,
                "dtype": dtype_to_json(made)}  # fmt: skip
        write_file(path, json.dumps(text).encode())
        return width, made

    def _map(self) -> None:
        size = self._width * self._dtype.itemsize
        rows = min(
            os.fstat(self._files[VALUES]).st_size // size, os.fstat(self._files[THERE]).st_size
        )
        self._late.make_room(rows)
        if not rows:
            self._values = np.zeros((0, self._width), self._dtype)
            self._there = np.zeros(0, np.uint8)
            return
        values, there = (
            mmap.mmap(self._files[VALUES], rows * size),
            mmap.mmap(self._files[THERE], rows),
        )
        self._values = np.frombuffer(values, self._dtype).reshape(rows, self._width)
        self._there = np.frombuffer(there, np.uint8)

    def _check_values(self) -> None:
        """Raise `FormatError` if there are rows without values: someone cut the file."""
        known = os.fstat(self._files[THERE]).st_size
        for at in range(len(self._values), known, _PIECE_BYTES):
            if any(os.pread(self._files[THERE], _PIECE_BYTES, at)):
                raise FormatError(
                    f"expected {known} rows, the file has {len(self._values)}",
                    path=str(self._root / VALUES),
                    offset=self._values.nbytes,
                )

    def _make_room(self, rows: int) -> None:
        """Room on the disk before it is written to through memory, where nothing can be refused."""
        if rows <= len(self._values):
            return
        rows = max(rows, len(self._values) * 5 // 4, 4096)
        self._grow(VALUES, rows * self._width * self._dtype.itemsize)
        self._grow(THERE, rows)
        self._map()

    def _grow(self, name: str, size: int) -> None:
        """All of it or nothing."""
        file, path = self._files[name], str(self._root / name)
        before = os.fstat(file).st_size
        if size <= before:
            return
        disk = os.fstatvfs(file)
        try:
            # Some file systems take all there is before they say that it is too little.
            if disk.f_blocks and size - before > disk.f_bavail * disk.f_frsize:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(file, before)
            error.filename = path
            raise

    def _apply(self, ids: Rows, values: NDArray[Any]) -> None:
        self._values[ids] = values
        self._there[ids] = 1

    def _replay(self) -> None:
        """Do again what the journal has: some of it may not have reached the tables."""
        data = np.fromfile(self._root / JOURNAL, np.uint8)
        if not len(data):  # else the tables may be anything
            self._check_values()
        at = 0
        while at + _HEAD.size <= len(data):
            magic, crc, size = _HEAD.unpack_from(data.data, at)
            body = data[at + _HEAD.size : at + _HEAD.size + size]
            if magic != _MAGIC or len(body) != size or size < 8 or _core.crc32c(body) != crc:
                break
            count = int(body[:8].view("<u8")[0])
            if size != 8 + count * (8 + self._width * self._dtype.itemsize):
                break
            ids = body[8 : 8 + 8 * count].view(np.int64)
            values = body[8 + 8 * count :].view(self._dtype).reshape(count, self._width)
            if count and not 0 <= int(ids.min()) <= int(ids.max()) < _MOST_ROWS:
                break
            self._make_room(int(ids.max(initial=-1)) + 1)
            self._late.put(ids, values)
            at += _HEAD.size + size
        self._end = at
        if len(data):  # behind what is whole there may be records that nobody is to find again
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Everything in the tables, on the disk; then the journal begins anew.

        Nothing reaches a table before it is in the journal on the disk: the system writes tables
        when it likes, and a part of a put must not be all that a power cut leaves of it.
        """
        self._sync(JOURNAL, os.fdatasync)
        self._failed = True  # until the tables have everything the journal is needed
        self._apply(*self._late.last())
        self._late.clear()
        self._sync(VALUES)
        self._sync(THERE)
        os.ftruncate(self._files[JOURNAL], 0)
        self._sync(JOURNAL)
        self._end = 0
        self._failed = False

    def _sync(self, name: str, call: Callable[[int], None] | None = None) -> None:
        """Wait for the disk. What it refused once it does not try again, nor say so: a journal
        that may have a hole is not to be written on."""
        try:
            (call or os.fsync)(self._files[name])
        except OSError as error:
            self._failed = True
            error.filename = str(self._root / name)
            raise

    def _ids(self, row_ids: ArrayLike) -> Rows:
        ids = np.asarray(row_ids)
        if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
            raise TypeError(f"expected row ids, got {ids.dtype} {ids.shape}")
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < _MOST_ROWS:
            raise IndexError(f"row ids from {ids.min()} to {ids.max()}")
        return ids.astype(np.int64)

    def _check_open(self) -> None:
        if not self._lock.held:
            raise ValueError(f"{self._root} is closed")
        if self._failed:
            raise ValueError(f"a write to {self._root} failed; open it again to go on")

    def _let_go(self) -> None:
        self._values, self._there = np.zeros((0, 0)), np.zeros(0, np.uint8)
        files, self._files = self._files, {}
        try:
            with ExitStack() as closing:
                for file in files.values():
                    closing.callback(os.close, file)
        finally:
            self._lock.release()


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
        """Memory for so many rows, most of which is never touched."""
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
        found = np.full(len(ids), -1, np.int64)
        inside = ids < len(self._slots)
        found[inside] = self._slots[ids[inside]] - np.int64(1)
        return found

    def last(self) -> tuple[Rows, NDArray[Any]]:
        """Each row once, and its vector."""
        counts = self._slots[self.ids] == np.arange(1, self._count + 1)
        return self.ids[counts], self.values[: self._count][counts]

    def clear(self) -> None:
        if len(self._slots) > _MANY_ROWS:
            self._slots = np.zeros(len(self._slots), np.int32)  # gives the old pages back
        else:
            self._slots[self.ids] = 0
        self._count = 0
        self._ids, self.values = self._ids[:0], self.values[:0]

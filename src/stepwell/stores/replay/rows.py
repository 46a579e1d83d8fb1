"""The arrays of a run, as a reader sees them: any rows of any dataset, in any order.

Places come from HDF5's index of chunks, the core's threads read and unpack. A file that is not
ours is left to h5py.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError
from stepwell.files.regular import open_inside
from stepwell.source import Field, Rows
from stepwell.stores.replay.chunk_index import ChunkIndex, Places
from stepwell.stores.replay.directory import DatasetEntry, Directory, is_ours, read_mark
from stepwell.stores.replay.layout import CHECKSUM, CHECKSUMS, CODECS, STEP_COLUMNS, STEPS

_POOLED_FROM = 1 << 21
_CHUNKS_AT_ONCE = 256
_BOTH_LEFT_OUT = 3  # the mask of a chunk that is as it is where there are two filters


class ArrayRows(Protocol):
    """The datasets of a run."""

    path: Path

    def leaves(self, kind: str) -> list[str]: ...
    def field(self, name: str) -> Field: ...
    def length(self, name: str) -> int: ...
    def there(self, name: str, rows: Rows) -> NDArray[np.bool_]: ...
    def read(self, name: str, rows: Rows, out: NDArray[Any] | None = None) -> NDArray[Any]: ...
    def close(self) -> None: ...


def check_rows(rows: Rows, length: int, name: str, path: Path) -> None:
    """Raise `IndexError` unless all of these rows are among those of a dataset."""
    if len(rows) and (rows.min() < 0 or rows.max() >= length):
        first, last = rows.min(), rows.max()
        raise IndexError(
            f"{name}: expected rows below {length:,}, got {first:,} to {last:,} - at {path}"
        )


def open_rows(
    root: Path, name: str, run_id: str | None = None, *, keeps: bool = False
) -> ArrayRows:
    """Open the file of a run below a folder, ours or another program's.

    Raises `FileNotFoundError`, and `FormatError` when it is not HDF5 or that of another run.
    """
    path = root / name
    with os.fdopen(open_inside(root, name), "rb") as file:
        ours = is_ours(file.fileno())
    if ours:
        return RunFile(path, run_id, keeps=keeps)
    from stepwell.stores.replay.foreign import ForeignFile

    return ForeignFile(path, run_id)


class RunFile:
    """A file of ours, to which a writer may be adding rows. Safe from any thread, after a fork."""

    def __init__(self, path: Path, run_id: str | None = None, *, keeps: bool = False) -> None:
        """`keeps` goes on with this file when one comes into its place from which episodes were
        removed, or that is of another run of the same name."""
        self.path = path
        self._run_id = run_id
        self._keeps = keeps
        self._lock = threading.RLock()
        self._file = -1
        self._passed_over = (-1, -1)
        self._open()

    def close(self) -> None:
        with self._lock:
            file, self._file = self._file, -1
            if file >= 0:
                os.close(file)

    __del__ = close

    def leaves(self, kind: str) -> list[str]:
        """The dataset called `kind`, or all of those below it, as they were written."""
        with self._lock:
            self._follow()
            names = self._directory.datasets
            return [name for name in names if name == kind or name.startswith(kind + "/")]

    def field(self, name: str) -> Field:
        """The field of a dataset. Raises `KeyError` when there is none of that name."""
        return self.entry(name).field

    def entry(self, name: str) -> DatasetEntry:
        """The same, and how its rows are stored."""
        with self._lock:
            self._follow()
            return self._dataset(name)[0]

    @property
    def names(self) -> list[str]:
        """Every dataset."""
        with self._lock:
            self._follow()
            return list(self._directory.datasets)

    @property
    def created_at(self) -> str | None:
        """When the run began, if the file knows."""
        return self._directory.created_at

    @property
    def removals(self) -> int:
        """How often rows were removed."""
        with self._lock:
            self._follow()
            return self._directory.removed

    def there(self, name: str, rows: Rows) -> NDArray[np.bool_]:
        """Which of these rows the dataset has: not those behind its end, nor removed ones."""
        with self._lock:
            found = rows < self.length(name)
            if not self._directory.removed:
                return found
            near = np.flatnonzero(found)
            entry, places = self._places(name, rows[near])
            for i in np.flatnonzero(self._checksums(name, rows[near]) == 0).tolist():
                at = int(places.offsets[i])  # of a removed row there is nothing, or zeros
                found[near[i]] = at and any(os.pread(self._file, entry.field.row_bytes, at))
            return found

    @property
    def committed(self) -> int | None:
        """Rows of all datasets together that the database had, None in files that do not know."""
        with self._lock:
            self._follow()
            return read_mark(self._file, self._directory.base)

    def length(self, name: str) -> int:
        """Rows that a dataset has by now, committed or not. Raises `KeyError` as `field` does."""
        with self._lock:
            self._follow()
            rows, checksums = self._dataset(name)[1].rows(), f"{CHECKSUMS}/{name}"
            if checksums in self._directory.datasets:  # of rows that are there, written after them
                rows = min(rows, self._dataset(checksums)[1].rows())
            return rows

    def read(self, name: str, rows: Rows, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return rows of a dataset in the given order, repeats included.

        Raises `KeyError` for a dataset that is not there, `IndexError` for a row that is not,
        `ChecksumError` or `FormatError` for one that is damaged.
        """
        with self._lock:
            self._follow()
            entry, places = self._find(name, rows)
            checksums = self._checksums(name, rows)
            file = os.dup(self._file)  # another thread may open another file in this one's place
        try:
            if out is None:
                out = _fresh(len(rows), entry.field)
            with self._naming(name, rows):
                _unpack(file, self.path, entry, places, checksums, out.reshape(-1).view(np.uint8))
        finally:
            os.close(file)
        return out

    def read_all(self, name: str, count: int) -> NDArray[Any]:
        """The first `count` rows of a dataset of scalars, chunk by chunk.

        Raises `ChecksumError` or `FormatError` when one of them is damaged.
        """
        found = self._read_chunks(name, count)
        if count and f"{CHECKSUMS}/{name}" in self._directory.datasets:
            stored = found.reshape(-1).view(np.uint8)
            stated = self._read_chunks(f"{CHECKSUMS}/{name}", count)
            _compare(name, 0, stated, stored, len(stored) // count, self.path)
        return found

    def read_steps(self, count: int) -> list[NDArray[Any]]:
        """Of the first steps their places, rewards and flags."""
        found = [self.read_all(name, count) for name in (STEPS, "rewards", "dones")]
        if found[0].shape != (count, len(STEP_COLUMNS)):
            raise FormatError(f"{STEPS}: expected {len(STEP_COLUMNS)} columns", path=str(self.path))
        return found

    def _read_chunks(self, name: str, count: int) -> NDArray[Any]:
        with self._lock:
            self._follow()
            entry, index = self._dataset(name)
            field, size = entry.field, os.fstat(self._file).st_size
            room = min(index.rows(), size // field.row_bytes)  # before anything is made for them
            checked = f"{CHECKSUMS}/{name}" in self._directory.datasets
            find = self._places if self._directory.removed and checked else self._find
            _, places = find(name, np.arange(0, min(count, room), entry.chunk_rows))
            chunk_bytes = entry.chunk_rows * field.row_bytes
            data = b"".join(
                os.pread(self._file, chunk_bytes, start) if start else bytes(chunk_bytes)
                for start in places.offsets.tolist()
            )
        if min(room, len(data) // field.row_bytes) < count:
            message = f"{name}: truncated: expected {count:,} rows, got fewer"
            raise FormatError(message, path=str(self.path))
        items = count * (field.row_bytes // field.dtype.itemsize)
        return np.frombuffer(data, field.dtype, items).reshape(count, *field.shape)

    def stored(self, name: str, count: int) -> Iterator[tuple[int, bytes, int]]:
        """The chunks of the first rows of a dataset as they are stored: the first row of each, its
        bytes, and the mask of filters left out. Those of removed rows are not there.

        Raises `ChecksumError` or `FormatError` when one of the rows is damaged.
        """
        entry = self.entry(name)
        size, each = entry.field.row_bytes, entry.chunk_rows
        for begin in range(0, count, each * _CHUNKS_AT_ONCE):
            rows = np.arange(begin, min(count, begin + each * _CHUNKS_AT_ONCE), dtype=np.int64)
            with self._lock:
                self._check_length(name, count)
                checksums = self._checksums(name, rows)
                _, places = self._places(name, rows[::each])
                self._check_chunks(name, rows, each, checksums, places)
            lengths = places.sizes.tolist() if each == 1 else [size * each] * len(places.sizes)
            for i, offset in enumerate(places.offsets.tolist()):
                first = begin + i * each
                if not offset:
                    continue
                data = self._chunk(f"{name}[{first}]", offset, lengths[i], size * each)
                if len(checksums):
                    # A packed row is as long as it is, and may be longer than the row itself.
                    kept = np.frombuffer(data, np.uint8)
                    kept = kept[: size * (count - first)] if each > 1 else kept
                    stated = checksums[first - begin :]
                    _compare(name, first, stated, kept, len(kept) if each == 1 else size, self.path)
                yield first, data, int(places.masks[i])

    def _check_chunks(
        self, name: str, rows: Rows, each: int, checksums: NDArray[np.uint32], places: Places
    ) -> None:
        """Raise `FormatError` for a chunk of `each` rows that is not there, unless all of them are
        marked as removed."""
        there = np.ones(len(places.offsets), bool)
        if self._directory.removed and len(checksums):
            there = np.maximum.reduceat(checksums, np.arange(0, len(rows), each)) != 0
        self._check_found(name, rows[::each][there], places.offsets[there])

    def _chunk(self, name: str, offset: int, size: int, raw_size: int) -> bytes:
        data = b""
        if 0 < size <= raw_size + raw_size // 8 + 4096:  # before anything is made for it
            data = os.pread(self._file, size, offset)
        if not data or len(data) < size:
            message = f"{name}: expected a chunk of {size:,} bytes, got {len(data):,}"
            raise FormatError(message, path=str(self.path), offset=offset)
        return data

    def _check_length(self, name: str, count: int) -> None:
        length = self._dataset(name)[1].rows()
        if length < count:
            message = f"{name}: truncated: expected {count:,} rows, got {length:,}"
            raise FormatError(message, path=str(self.path))

    def stored_bytes(self, name: str, count: int) -> int:
        """The bytes of the chunks of the first `count` rows of a dataset.

        Raises `FormatError` when the file ends before one of them.
        """
        with self._lock:
            self._follow()
            entry, _ = self._dataset(name)
            self._check_length(name, count)
            chunks = np.arange(0, count, entry.chunk_rows, dtype=np.int64)
            find = self._places if self._directory.removed else self._find
            _, places = find(name, chunks)
            size = os.fstat(self._file).st_size
        end = int((places.offsets + places.sizes).max()) if count else 0
        if end > size:
            message = f"{name}: truncated: expected at least {end:,} bytes, got {size:,}"
            raise FormatError(message, path=str(self.path))
        if entry.chunk_rows > 1:
            there = int(np.count_nonzero(places.offsets))
            return there * entry.chunk_rows * entry.field.row_bytes
        return int(places.sizes.sum(dtype=np.int64))

    def _find(self, name: str, rows: Rows) -> tuple[DatasetEntry, Places]:
        """The places of rows, each of them there."""
        entry, places = self._places(name, rows)
        self._check_found(name, rows, places.offsets)
        return entry, places

    def _check_found(self, name: str, rows: Rows, offsets: NDArray[np.uint64]) -> None:
        missing = np.flatnonzero(offsets == 0)
        if len(missing):
            message = f"{name}: row {rows[missing[0]]:,} has no chunk{self._hint}"
            raise FormatError(message, path=str(self.path))

    @property
    def _hint(self) -> str:
        return "; episodes of this run were removed" if self._directory.removed else ""

    def _places(self, name: str, rows: Rows) -> tuple[DatasetEntry, Places]:
        """The places of rows of a dataset, 0 for those without a chunk."""
        entry, index = self._dataset(name)
        check_rows(rows, index.rows(), name, self.path)
        places = index.find(rows // entry.chunk_rows)
        if entry.chunk_rows > 1:
            within = (rows % entry.chunk_rows).astype(np.uint64)
            offsets = places.offsets + within * np.uint64(entry.field.row_bytes)
            offsets[places.offsets == 0] = 0
            sizes = np.full_like(places.sizes, entry.field.row_bytes)
            places = Places(offsets, sizes, places.masks)
        return entry, places

    def _checksums(self, name: str, rows: Rows) -> NDArray[np.uint32]:
        """The checksums of stored rows, where the file has them."""
        name = f"{CHECKSUMS}/{name}"
        if name not in self._directory.datasets:
            return np.empty(0, np.uint32)
        entry, places = self._find(name, rows)
        if entry.field != CHECKSUM:
            raise FormatError(f"{name}: expected uint32, got {entry.field}", path=str(self.path))
        found = np.empty(len(rows), np.uint32)
        none = np.empty(0, np.uint32)
        with self._naming(name, rows):
            _unpack(self._file, self.path, entry, places, none, found.view(np.uint8))
        return found

    @contextmanager
    def _naming(self, name: str, rows: Rows) -> Iterator[None]:
        """Errors that count the rows of a call name the dataset and its row instead."""
        try:
            yield
        except FormatError as error:
            row = f"{name}[{rows[error.offset or 0]}]"
            message = f"{row}: {error.args[0]}{self._hint}"
            raise type(error)(message, path=str(self.path)) from None

    def _dataset(self, name: str) -> tuple[DatasetEntry, ChunkIndex]:
        if self._file < 0:
            raise ValueError(f"closed: {self.path}")
        if name not in self._directory.datasets:
            raise KeyError(f"there is no dataset {name!r} - at {self.path}")
        entry = self._directory.datasets[name]
        index = self._indexes.get(name)
        if index is None:
            size = entry.chunk_rows * entry.field.row_bytes
            base = self._directory.base
            element = entry.planes * entry.field.dtype.itemsize
            index = ChunkIndex(self._file, self.path, base, entry.header, size, element)
            self._indexes[name] = index
        return entry, index

    def _open(self) -> None:
        file = open_inside(self.path.parent, self.path.name)
        try:
            directory = Directory.read(file, self.path)
            if self._run_id is not None and directory.run_id != self._run_id:
                raise FormatError(
                    f"expected the run {self._run_id!r}, got {directory.run_id!r}",
                    path=str(self.path),
                )
        except BaseException:
            os.close(file)
            raise
        self.close()
        self._file = file
        self._directory = directory
        self._indexes: dict[str, ChunkIndex] = {}

    def catch_up(self) -> None:
        """Go on with the file that is in this one's place now, whatever was removed from it."""
        with self._lock:
            keeps, self._keeps, self._passed_over = self._keeps, False, (-1, -1)
            try:
                self._follow()
            finally:
                self._keeps = keeps

    def _follow(self) -> None:
        """Look before every read whether another file has come into this one's place: its writer
        added a dataset, or was killed and goes on, and rows that were not committed are others."""
        if self._file < 0:
            raise ValueError(f"closed: {self.path}")
        here = os.fstat(self._file)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return
        place = (there.st_dev, there.st_ino)
        if place not in ((here.st_dev, here.st_ino), self._passed_over):
            if self._keeps and not self._continues():
                self._passed_over = place
            else:
                self._open()

    def _continues(self) -> bool:
        """Whether the file that is in the place of this one has all that this one had."""
        try:
            with closing(RunFile(self.path, self._run_id)) as other:
                mine, its = self._directory, other._directory
        except FileNotFoundError:
            return False
        same = None in (mine.created_at, its.created_at) or mine.created_at == its.created_at
        return same and mine.removed == its.removed


def _compare(
    name: str, first: int, stated: NDArray[Any], stored: NDArray[np.uint8], size: int, path: Path
) -> None:
    """Raise `ChecksumError` unless rows of `size` bytes, from `first` on, have the checksums that
    are stated; those of removed rows are zeros, and so is their checksum."""
    found = _core.checksum_each(stored, size).view(np.uint32)
    wrong = found != stated[: len(found)]
    if wrong.any():
        wrong &= (stated[: len(found)] != 0) | stored.reshape(-1, size).any(1)
    for i in np.flatnonzero(wrong)[:1]:
        message = f"{name}[{first + i}]: expected CRC32C {stated[i]:08x}, got {found[i]:08x}"
        raise ChecksumError(message, path=str(path))


def _fresh(count: int, field: Field) -> NDArray[Any]:
    """An array to be filled. Large ones are of the pool that batches are of: new pages would cost
    as much as unpacking into them."""
    size, shape = count * field.row_bytes, (count, *field.shape)
    if size < _POOLED_FROM:
        return np.empty(shape, field.dtype)
    return _core.shared_blocks().take(size)[:size].view(field.dtype).reshape(shape)


def _unpack(
    file: int,
    path: Path,
    entry: DatasetEntry,
    places: Places,
    checksums: NDArray[np.uint32],
    out: NDArray[np.uint8],
) -> None:
    """Read and unpack what is at `places`. Errors count the rows of the call."""
    raw = (places.masks != 0).astype(np.uint8)
    if entry.planes > 1:
        partly = np.flatnonzero((places.masks != 0) & (places.masks != _BOTH_LEFT_OUT))
        if len(partly):
            mask = places.masks[partly[0]]
            raise FormatError(f"expected both filters or none, got {mask}", offset=int(partly[0]))
    codec = CODECS.get(str(entry.field.compress))
    if codec is not None:
        cells = (places.offsets, places.sizes, raw, checksums)
        _core.read_cells(file, path, codec, *cells, entry.field.row_bytes, out, entry.planes)
        return
    for i, (offset, size) in enumerate(
        zip(places.offsets.tolist(), places.sizes.tolist(), strict=True)
    ):
        if size > entry.field.row_bytes + entry.field.row_bytes // 8 + 4096:
            raise FormatError(f"expected a packed row, got {size} bytes", offset=i)
        stored = np.frombuffer(os.pread(file, size, offset), np.uint8)
        if len(checksums) and (found := _core.crc32c(stored)) != checksums[i]:
            raise ChecksumError(f"expected CRC32C {checksums[i]:08x}, got {found:08x}", offset=i)
        target = out[i * entry.field.row_bytes : (i + 1) * entry.field.row_bytes]
        _unpack_one(entry, stored, bool(raw[i]), target, i)


def _unpack_one(
    entry: DatasetEntry, stored: NDArray[np.uint8], raw: bool, out: NDArray[np.uint8], number: int
) -> None:
    try:
        if raw:
            out[:] = stored
        elif entry.field.compress == "lzf":
            _core.unpack_lzf(stored, out)
        else:
            raise FormatError(f"no codec {entry.field.compress!r} is known", offset=number)
    except ValueError as error:
        raise FormatError(str(error.args[0]), offset=number) from None

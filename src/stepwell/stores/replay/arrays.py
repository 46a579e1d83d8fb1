"""The HDF5 file of a run, as its writer sees it.

Rows are packed by the core's threads and handed to HDF5 as finished chunks, so the file is plain
HDF5 and HDF5 does not have to do the work. The file is in SWMR mode from the moment it has its
name: whenever the writer is killed, others can open it with `swmr=True`. That mode allows no new
datasets, and a file whose writer was killed can never be written to again; in both cases a copy
takes its place.
"""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import hdf5plugin
import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.files.atomic import sync_path, temporary_name
from stepwell.source import Field
from stepwell.stores.replay.channels import Channel
from stepwell.stores.replay.directory import DatasetEntry, Directory, space_for, write_mark
from stepwell.stores.replay.hdf5 import (
    LIBVER,
    flush,
    limit_attempts,
    row_of,
    translated,
    write_chunks,
    writing,
)
from stepwell.stores.replay.items import HURRIED, Pace
from stepwell.stores.replay.layout import CHECKSUM, CHECKSUMS, CODECS, UNSUMMED
from stepwell.stores.replay.rows import RunFile

_LEVEL = 3  # of zstd, and of gzip: what 4 saves costs twice the time
_CODECS = {
    h5py.h5z.FILTER_DEFLATE: "gzip",
    h5py.h5z.FILTER_LZF: "lzf",
    hdf5plugin.Zstd.filter_id: "zstd",
}

_README = (
    "Row i of steps, rewards and dones is step i of the run. The columns of steps are the episode, "
    "the step in it, and the rows of its frame, observation and action, -1 for none: an episode's "
    "observations are file['observations'][rows[:, 3]] for its rows of steps. Those are "
    "steps[start:start + length] by episodes/starts and episodes/lengths; with several agents "
    "they lie between others, and column 0 shows which they are. What was seen after the last "
    "step of an episode is a row of observations, too, that no step names."
)
_PLUGIN = " Packed by zstd, HDF5 filter 32015: {}. In Python, `import hdf5plugin` before reading."


class Removal(NamedTuple):
    """Rows to be left out of a copy: a mask of those of each array, and what takes the place of
    the datasets of scalars."""

    rows: Mapping[str, NDArray[np.bool_]]
    numbers: Mapping[str, NDArray[Any]]


class ArrayFile:
    """Appends rows to the datasets of one run. One thread at a time."""

    def __init__(self, path: Path, rows: Mapping[str, int]) -> None:
        """Go on with a file that was closed; `rows` is what each of its datasets must hold.

        Raises `FormatError` when it was not closed, or holds anything else.
        """
        self._path = path
        self._columns: dict[str, _Column] = {}
        with translated(path):
            # Both at once: a writer that is killed between opening and SWMR leaves a file that
            # nobody can open.
            access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
            access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
            access.set_file_locking(False, True)
            limit_attempts(access, 1)  # nobody else writes
            # No cache of chunks: HDF5 does not survive one that it cannot write to a full disk.
            access.set_cache(0, 521, 0, 0.75)
            mode = h5py.h5f.ACC_RDWR | h5py.h5f.ACC_SWMR_WRITE
            encoded = os.fsencode(path)
            self._guard = ExitStack()
            self._file = self._guard.enter_context(
                writing(lambda: h5py.File(h5py.h5f.open(encoded, mode, fapl=access)))
            )
            try:
                for name, count in rows.items():
                    self._columns[name] = _column(_dataset(self._file, name, count, path))
            except BaseException:
                self.close()
                raise

    @property
    def rows(self) -> dict[str, int]:
        return {name: column.rows for name, column in self._columns.items()}

    def append(self, name: str, rows: _core.RowBuffer, count: int, pace: Pace = HURRIED) -> None:
        """Put `count` rows behind the others, those of the same numbers in the buffer, and their
        checksums into their dataset."""
        with translated(self._path):
            checksums = self._columns[name].append(rows, count, pace)
            self._numbers(f"{CHECKSUMS}/{name}").append_array(checksums)

    def append_numbers(self, name: str, values: NDArray[Any]) -> None:
        """The same for a dataset of scalars, of which not all have checksums."""
        with translated(self._path):
            checksums = self._numbers(name).append_array(values)
            if f"{CHECKSUMS}/{name}" in self._columns:
                self._numbers(f"{CHECKSUMS}/{name}").append_array(checksums)

    def _numbers(self, name: str) -> "_Small":
        column = self._columns[name]
        if not isinstance(column, _Small):
            raise FormatError(f"{name}: expected many rows a chunk", path=str(self._path))
        return column

    def flush(self) -> None:
        """Everything appended so far is on the disk, and readers can see it."""
        with translated(self._path):
            for column in self._columns.values():
                column.flush()
            flush(self._file)
        sync_path(self._path)

    def mark_committed(self) -> None:
        """Note in the file that the database has all of its rows. Nobody has to wait for that."""
        base = int(self._file.userblock_size)
        if base:
            with suppress(OSError):
                write_mark(self._file.id.get_vfd_handle(), base, sum(self.rows.values()))

    def close(self) -> None:
        with translated(self._path):
            self._guard.close()


def build_file(
    path: Path,
    attributes: Mapping[str, Any],
    rows: Mapping[str, int],
    channels: Iterable[Channel],
    numbers: Mapping[str, Field],
    removal: Removal | None = None,
) -> dict[str, int]:
    """Put a closed file in the place of the one at `path`, and return the rows of its datasets.

    It has the first `rows` of each dataset that was there, chunk by chunk as they are stored, and
    new ones for `channels` and `numbers`; rows of a `removal` are left out of it. Readers find the
    old file or the new one. HDF5 does not read the old one, of which it may understand nothing any
    more.

    Raises `FormatError`, and changes nothing, when one of those rows is damaged.
    """
    beside = temporary_name(path)
    fresh = {name: Channel("", field) for name, field in numbers.items()}
    fresh |= {channel.name: channel for channel in channels}
    for name in [name for name in fresh if name not in UNSUMMED]:
        fresh[f"{CHECKSUMS}/{name}"] = Channel("", CHECKSUM)
    found = dict(rows) | dict.fromkeys(fresh, 0)
    base, removed = space_for(found), 0
    removal = removal or Removal({}, {})
    try:
        options = {"libver": LIBVER, "locking": False, "userblock_size": base}
        with translated(path), writing(lambda: h5py.File(beside, "x", **options)) as new:
            new.attrs.update(attributes)
            if rows:
                with closing(RunFile(path, attributes["run_id"])) as old:
                    removed = old.removals + bool(removal.numbers)
                    for name, count in rows.items():
                        _copy(old, new, name, count, removal)
            for name, each in fresh.items():
                _create(new, name, each.field, each.chunk_rows, each.planes)
            entries = {name: _entry(new[name]) for name in found}
            packed = [name for name, each in entries.items() if each.field.compress == "zstd"]
            text = _README + (_PLUGIN.format(", ".join(packed)) if packed else "")
            new.attrs["README"] = np.bytes_(text)  # a `str` would lie where HDF5 has no checksum
        with beside.open("r+b") as file:
            run = str(attributes["run_id"]), str(attributes["created_at"])
            file.write(Directory(run[0], base, entries, run[1], removed).to_bytes())
            file.flush()
            write_mark(file.fileno(), base, sum(rows.values()))
        sync_path(beside)
        beside.replace(path)
        sync_path(path.parent)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
    return found


def _entry(dataset: h5py.Dataset) -> DatasetEntry:
    filters = _filters(dataset)
    codec = _CODECS[filters[-1]] if filters else "none"
    header = int(h5py.h5o.get_info(dataset.id).addr)
    return DatasetEntry(header, row_of(dataset, codec), int(dataset.chunks[0]), _planes(dataset))


def _planes(dataset: h5py.Dataset) -> int:
    return dataset.dtype.itemsize if dataset.dtype.subdtype else 1


def _filters(dataset: h5py.Dataset) -> list[int]:
    properties = dataset.id.get_create_plist()
    return [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]


def _dataset(file: h5py.File, name: str, count: int, path: Path) -> h5py.Dataset:
    """A dataset of `count` rows."""
    found = file.get(name)
    if not isinstance(found, h5py.Dataset) or found.chunks is None:
        raise FormatError(f"expected a dataset {name!r} in chunks", path=str(path))
    length = int(found.shape[0])
    if length != count:
        raise FormatError(f"{name}: expected {count:,} rows, got {length:,}", path=str(path))
    return found


def _create(
    file: h5py.File, name: str, field: Field, chunk_rows: int, planes: int, count: int = 0
) -> h5py.Dataset:
    filters: dict[str, Any] = {}
    dtype, row = field.dtype, field.shape
    if planes > 1:
        # HDF5's shuffle goes by the bytes of an element: as an array, the last axis is one.
        dtype, row = np.dtype((dtype, row[-1:])), row[:-1]
    if field.compress == "zstd":
        filters = dict(hdf5plugin.Zstd(clevel=_LEVEL), shuffle=planes > 1)
    elif field.compress == "gzip":
        filters = {"compression": "gzip", "compression_opts": _LEVEL, "shuffle": planes > 1}
    elif field.compress != "none":
        filters = {"compression": field.compress}
    return file.create_dataset(
        name,
        (count, *row),
        dtype,
        chunks=(chunk_rows, *row),
        maxshape=(None, *row),
        **filters,
    )


def _copy(old: RunFile, new: h5py.File, name: str, count: int, removal: Removal) -> None:
    entry = old.entry(name)
    if name in removal.numbers:
        column = _Small(_create(new, name, entry.field, entry.chunk_rows, entry.planes))
        column.append_array(removal.numbers[name])
        column.flush()
        return
    copy = _create(new, name, entry.field, entry.chunk_rows, entry.planes, count)
    rest = (0,) * (len(copy.shape) - 1)
    gone = removal.rows.get(name.removeprefix(f"{CHECKSUMS}/"))
    for first, stored, mask in old.stored(name, count):
        here = () if gone is None else gone[first : first + entry.chunk_rows]
        if np.any(here):
            whole = first + entry.chunk_rows <= count and not name.startswith(CHECKSUMS)
            if whole and np.all(here):
                continue
            rows = np.frombuffer(stored, np.uint8).copy().reshape(entry.chunk_rows, -1)
            rows[: len(here)][here] = 0
            stored = rows.tobytes()
        copy.id.write_direct_chunk((first, *rest), stored, mask)


class _Column(ABC):
    """A dataset that grows at its end."""

    def __init__(self, dataset: h5py.Dataset) -> None:
        self.dataset = dataset
        self.rows = int(dataset.shape[0])
        self._row_shape = tuple(map(int, dataset.shape[1:]))

    @abstractmethod
    def append(self, rows: _core.RowBuffer, count: int, pace: Pace) -> NDArray[np.uint32]:
        """Put rows behind the others; returns the checksum of each as stored."""

    def flush(self) -> None:
        """Hand to HDF5 what it does not have yet."""

    def _grow(self, count: int) -> int:
        first, self.rows = self.rows, self.rows + count
        self.dataset.id.set_extent((self.rows, *self._row_shape))
        return first

    def _at(self, row: int) -> tuple[int, ...]:
        return (row, *(0,) * len(self._row_shape))


class _Single(_Column):
    """One row a chunk, packed here or not at all."""

    def __init__(self, dataset: h5py.Dataset) -> None:
        super().__init__(dataset)
        filters = _filters(dataset)
        self._codec = CODECS[_CODECS[filters[-1]] if filters else "none"]
        self._planes = _planes(dataset)
        # The mask has the filters of the dataset that a chunk has not been through.
        self._left_out = (1 << len(filters)) - 1

    def append(self, rows: _core.RowBuffer, count: int, pace: Pace) -> NDArray[np.uint32]:
        packed = rows.packed(self.rows, count, self._codec, _LEVEL, self._planes, pace.hurried)
        write_chunks(self.dataset, self._grow(count), packed, self._left_out)
        return packed.checksums.view(np.uint32)


class _Small(_Column):
    """Many rows a chunk; the last one is written again until it is full."""

    def __init__(self, dataset: h5py.Dataset) -> None:
        super().__init__(dataset)
        self._dtype = dataset.dtype
        self._chunk_rows = int(dataset.chunks[0])
        self._row_bytes = math.prod(self._row_shape) * self._dtype.itemsize
        self._tail = bytearray(self._chunk_rows * self._row_bytes)
        self._written = self.rows
        begun = self.rows % self._chunk_rows
        if begun:
            _, stored = dataset.id.read_direct_chunk(self._at(self.rows - begun))
            self._tail[: begun * self._row_bytes] = stored[: begun * self._row_bytes]

    def append(self, rows: _core.RowBuffer, count: int, pace: Pace) -> NDArray[np.uint32]:
        return self._append(rows.joined(self.rows, count))

    def append_array(self, values: NDArray[Any]) -> NDArray[np.uint32]:
        """Rows that are an array already."""
        return self._append(np.ascontiguousarray(values, self._dtype).reshape(-1).view(np.uint8))

    def _append(self, joined: NDArray[np.uint8]) -> NDArray[np.uint32]:
        count, done = len(joined) // self._row_bytes, 0
        first = self._grow(count)
        while done < count:
            within = (first + done) % self._chunk_rows
            some = min(count - done, self._chunk_rows - within)
            begin, size = within * self._row_bytes, some * self._row_bytes
            start = done * self._row_bytes
            self._tail[begin : begin + size] = joined[start : start + size].data
            done += some
            if within + some == self._chunk_rows:
                self._write(first + done - self._chunk_rows)
        return _core.checksum_each(joined, self._row_bytes).view(np.uint32)

    def flush(self) -> None:
        begun = self.rows % self._chunk_rows
        if begun and self._written != self.rows:
            self._write(self.rows - begun)
        self._written = self.rows

    def _write(self, first: int) -> None:
        self.dataset.id.write_direct_chunk(self._at(first), bytes(self._tail))


class _Filtered(_Column):
    """One row a chunk, packed by a filter of HDF5."""

    def append(self, rows: _core.RowBuffer, count: int, pace: Pace) -> NDArray[np.uint32]:
        joined = rows.joined(self.rows, count)
        first = self._grow(count)
        field = row_of(self.dataset)
        self.dataset[first:] = joined.view(field.dtype).reshape(count, *field.shape)
        self.dataset.flush()
        read = self.dataset.id.read_direct_chunk
        stored = (read(self._at(first + i))[1] for i in range(count))
        return np.array([_core.crc32c(np.frombuffer(s, np.uint8)) for s in stored], np.uint32)


def _column(dataset: h5py.Dataset) -> _Column:
    if dataset.chunks[0] > 1:
        return _Small(dataset)
    filters = _filters(dataset)
    shuffle = [h5py.h5z.FILTER_SHUFFLE] if _planes(dataset) > 1 else []
    codec = CODECS.get(_CODECS[filters[-1]] if filters else "none")
    if codec is None or filters[:-1] != shuffle or not _core.has_codec(codec):
        return _Filtered(dataset)
    return _Single(dataset)

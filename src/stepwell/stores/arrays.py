"""Arrays as a source: in memory, or a `.npy` file loaded or mapped."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError, SchemaError
from stepwell.files.memory import check_room
from stepwell.files.mirror import Mirror, MirroredRows, split_url
from stepwell.files.npy import read_header
from stepwell.files.regular import bytes_on_disk, open_regular
from stepwell.files.remote import BucketOptions, is_url
from stepwell.memory import row_bytes
from stepwell.source import Batch, Field, Ragged, Rows, Schema, bytes_of, is_masked
from stepwell.store import Progress, Report, Runs, Store
from stepwell.units import Units
from stepwell.views import field_of


class ArraySource(Store):
    """Rows of a structured array, of one plain array, or of equally long named arrays.

    A structured array has its own fields; the field of a plain array is called `data`. A `Ragged`
    is a field whose rows have lengths of their own.
    Arrays are used where they are, without a copy. A `.npy` path is loaded by all cores
    into huge pages (`memory="ram"`) or mapped (`memory="map"`), and pickles as its path. A
    mapped file must not shrink while it is read: the system would end the process. Of a URL (extra
    `remote`) parts are fetched when they are needed, or all at once with `memory="ram"`; options
    are those of a bucket, as `StepReader` has them.
    """

    kind = "npy"
    noun = "an array"
    runs: Runs | None = None
    """The runs of the rows, where they are known."""

    def __init__(
        self,
        data: NDArray[Any] | Mapping[str, NDArray[Any] | Ragged] | str | os.PathLike[str],
        *,
        memory: Literal["ram", "map"] | None = None,
        **bucket: Unpack[BucketOptions],
    ) -> None:
        """`memory` is "ram" unless it is given, of a URL "map"."""
        if memory not in ("ram", "map", None):
            raise ValueError(f"memory: expected 'ram' or 'map', got {memory!r}")
        if bucket and not is_url(data):
            raise TypeError(f"{', '.join(bucket)}: only for what is in a bucket")
        self._path: Path | None = None
        self._far: _RemoteArray | None = None
        self._made_by: tuple[Any, ...] | None = None  # a call that makes it again, for pickles
        self._memory = memory
        self.attributes: dict[str, Any] = {}
        """What is known of the fields where they come from."""
        if isinstance(data, str) and is_url(data):
            self._far = _RemoteArray(data, dict(bucket), in_memory=memory == "ram")
            data = self._far.array
        elif isinstance(data, str | os.PathLike):
            self._path = Path(data)
            data = _open_npy(self._path, memory or "ram")
        named = data if isinstance(data, Mapping) else {"data": data}
        arrays = {name: _usable(name, array) for name, array in named.items()}
        lengths = {name: len(array) for name, array in arrays.items()}
        if not arrays:
            raise SchemaError("expected at least one array")
        if len(set(lengths.values())) > 1:
            raise SchemaError(f"arrays must have equal lengths, got {lengths}")
        self._arrays = arrays
        self._length = next(iter(lengths.values()))
        alone = None if isinstance(data, Mapping) else arrays["data"]
        self._record = alone if alone is not None and alone.dtype.names else None
        self._schema = self._fields()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._made_by is not None:
            return self._made_by
        if self._far is not None:
            about = self._far.url, self._memory, self._far.bucket, self._far.mirror.version
            return _again, (type(self), *about), {"attributes": self.attributes, "runs": self.runs}
        data: Any = self._path or self._record
        if data is None:
            data = self._arrays
        kept = {"attributes": self.attributes, "runs": self.runs}
        return partial(type(self), memory=self._memory), (data,), kept

    def _as_of(self) -> object:
        known = self._path or self._far or self._made_by
        return super()._as_of() if known else None  # the caller has them, too

    def __len__(self) -> int:
        return self._length

    @property
    def schema(self) -> Schema:
        return self._schema

    def _runs(self) -> tuple[Rows, Rows]:
        return super()._runs() if self.runs is None else (self.runs.starts, self.runs.counts)

    @classmethod
    def recognizes(cls, path: Path) -> bool:
        return path.suffix == ".npy" and path.is_file()

    @property
    def path(self) -> str | None:  # type: ignore[override]
        """The path of the file; None for arrays in memory."""
        if self._far is not None:
            return self._far.url
        return None if self._path is None else str(self._path)

    def packed(self) -> "ArraySource":
        """The same rows as one structured field `row`: one copy a row, nothing split."""
        if self._record is None:
            raise SchemaError("only structured arrays have packed rows")
        packed = ArraySource({"row": self._record})
        packed._path, packed._made_by = self._path, (ArraySource.packed, (self,))
        packed._far = self._far
        return packed

    def refresh(self) -> bool:
        self._check_open()
        if self._far is None or self._made_by is not None or self._far.mirror.is_current():
            return False
        memory: Any = self._memory
        fresh = type(self)(self._far.url, memory=memory, **self._far.bucket)
        for name in ("_far", "_arrays", "_length", "_record", "_schema"):
            setattr(self, name, getattr(fresh, name))
        self._forget()
        return True

    def _stored_bytes(self) -> int:
        if self._far is not None:
            return self._far.file.about.size
        if self._path is not None:
            return bytes_on_disk(self._path.resolve())
        ragged = [a for a in self._arrays.values() if isinstance(a, Ragged)]
        return self.nbytes + sum(a.values.nbytes + a.offsets.nbytes for a in ragged)

    def _verified(self, quick: bool, progress: Progress) -> Report:
        problems: tuple[FormatError, ...] = ()
        checked, unchecked = "", "the values: arrays in memory have no checksums"
        if self._path is not None:
            checked = f"the header, and that the file holds its {len(self):,} rows"
            unchecked = "the values: a .npy file has no checksums"
            try:
                with open_regular(self._path) as file:
                    read_header(file, self._path)
            except FormatError as error:
                problems = (error,)
        if self._far is not None:
            checked = f"the header, and that the object has {len(self):,} rows and is still there"
            unchecked = "the values: a .npy file has no checksums"
            if not self._far.mirror.is_current():
                gone = "expected the object that was opened, there is another one or none"
                problems = (FormatError(gone, path=self._far.url),)
        progress(len(self), len(self))
        done = (checked,) if checked else ()
        return Report(self.kind, self.path or "", problems, done, (unchecked,))

    def _fields(self) -> dict[str, Field]:
        if self._record is None:
            return {name: field_of(array) for name, array in self._arrays.items()}
        schema = {}
        for name in self._record.dtype.names or ():
            dtype = self._record.dtype[name]
            schema[name] = Field(dtype.base, (*self._record.shape[1:], *dtype.shape))
        return schema

    def _units(self) -> Units | None:
        return None if self._far is None else self._far.units

    def _native(self, names: Sequence[str]) -> _core.Reader | None:
        return self._reader_of(names) if self._far is None else None

    def _reader_of(self, names: Sequence[str]) -> _core.Reader | None:
        self._check_open()
        if self._record is not None:
            fields = self._record.dtype.fields
            assert fields is not None
            layout = [(fields[name][1], self._schema[name].row_bytes) for name in names]
            return self._on_disk(_core.table_reader(row_bytes(self._record), layout), self._record)
        if any(self._schema[name].ragged for name in names):
            return None
        readers = []
        for array, bytes_ in [(self._arrays[n], self._schema[n].row_bytes) for n in names]:
            table = _core.table_reader(row_bytes(array), [(0, bytes_)])
            readers.append(self._on_disk(table, array))
        return readers[0] if len(readers) == 1 else _core.join_reader(readers)

    def _on_disk(self, reader: _core.Reader, array: NDArray[Any]) -> _core.Reader:
        """The same rows, asked for ahead where they are mapped and not in memory."""
        if not _is_mapped(array) or not array.flags.c_contiguous or not array.size:
            return reader
        data = np.asarray(array).reshape(-1).view(np.uint8)
        size = len(data) // len(array)
        return _core.cold_reader(reader, data, size, 0, size, _core.Cold())

    def _fill_columns(self, rows: Rows, out: Batch, names: Sequence[str]) -> None:
        fixed = [name for name in names if not self._schema[name].ragged]
        if fixed:
            reader = self._reader_of(fixed)
            assert reader is not None
            outs = [bytes_of(out[name]) for name in fixed]
            if self._far is None:
                reader.read(rows, outs)
            else:
                self._far.reading(rows, lambda: reader.read(rows, outs))
        for name in names:
            if name not in fixed:
                out[name] = self._arrays[name].take(rows)

    def _sizes(self, rows: Rows, names: Sequence[str]) -> NDArray[np.int64]:
        sizes = np.zeros(len(rows), np.int64)
        for name in names:
            offsets = self._arrays[name].offsets
            sizes += (offsets[rows + 1] - offsets[rows]) * self._schema[name].row_bytes
        return sizes


class _RemoteArray:
    """A `.npy` file below a URL, its rows as far as they are here; or all of them, in memory."""

    def __init__(self, url: str, bucket: dict[str, Any], *, in_memory: bool) -> None:
        above, name = split_url(url)
        self.url, self.bucket = url, bucket
        self.mirror = mirror = Mirror(above, listing=False, **bucket)
        with mirror.translated():
            self.file = mirror.array(name)
            with open_regular(self.file.path) as file:
                header = read_header(file, self.file.path)
        row_bytes = header.data_bytes // max(header.shape[0], 1)
        self.units: MirroredRows | None = None
        if in_memory or not header.data_bytes:
            check_room(header.data_bytes, url)
            block = _core.allocate(header.data_bytes)
            mirror.load(name, self.file.origin, block)
        else:
            self.units = MirroredRows.of_tables(mirror, [(self.file, header.shape[0])], row_bytes)
            with open_regular(self.file.path) as file:
                end = header.data_offset + header.data_bytes
                block = _core.map_file(file.fileno(), end, self.file.path)[header.data_offset :]
        self.array: NDArray[Any] = block.view(header.dtype).reshape(header.shape)

    def reading(self, rows: Rows, work: Callable[[], None]) -> None:
        if self.units is None:
            work()
        else:
            with self.mirror.translated():
                self.mirror.reading(self.units.of(rows), work)


def _again(
    cls: type[ArraySource], url: str, memory: Any, bucket: dict[str, Any], version: str
) -> ArraySource:
    """One that was pickled."""
    made = cls(url, memory=memory, **bucket)
    assert made._far is not None
    made._far.mirror.check_version(version)
    return made


def _usable(name: str, given: Any) -> Any:
    """The array itself where its rows are contiguous, else a copy in which they are."""
    if isinstance(given, Ragged):
        return given
    if is_masked(given):
        raise TypeError(f"{name!r}: a masked array would lose its mask; fill it first")
    array: NDArray[Any] = np.asarray(given)
    if array.ndim == 0:
        raise SchemaError(f"{name!r}: expected rows, got a single value")
    if array.dtype.hasobject:
        raise SchemaError(f"{name!r}: expected plain numbers, got Python objects ({array.dtype})")
    if array.dtype.names and array.ndim > 1:
        raise SchemaError(f"{name!r}: expected one axis of structured rows, got {array.ndim}")
    if array.shape[0] and not array[0].flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array


def _is_mapped(array: NDArray[Any]) -> bool:
    """Whether it is memory of a mapped file: a view of it is a plain array."""
    of: Any = array
    while isinstance(of, np.ndarray) and not isinstance(of, np.memmap):
        of = of.base
    return isinstance(of, np.memmap)


def _open_npy(path: Path, memory: str) -> NDArray[Any]:
    # Opened once: the name may mean another file a moment later.
    with open_regular(path) as file:
        header = read_header(file, path)
        if header.data_bytes == 0:
            return np.ndarray(header.shape, header.dtype)
        if memory == "map":
            return np.memmap(file, header.dtype, "r", header.data_offset, header.shape)
        check_room(header.data_bytes, path)
        block = _core.allocate(header.data_bytes)
        _core.load(file.fileno(), path, header.data_offset, block)
        return block.view(header.dtype).reshape(header.shape)

"""The interface of every store to the loader.

A source is a length, a schema and a batched read:

    len(source)             how many rows
    source.schema           {"board": Field(uint64), "ev": Field(float32, (4,))}
    source.take([9, 0, 9])  those rows, in that order, one array per field

Order belongs to the sampler, time to the loader; a source only answers. A new store
subclasses `Source` and gives it two things: `schema` with `__len__`, and either `_fill`
(Python puts rows into arrays) or `_native` (the core reads them without Python).
"""

import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell import _core, arrow, batches, description, frames
from stepwell.errors import SchemaError
from stepwell.field import Batch as Batch, Field as Field, Ragged as Ragged
from stepwell.lazy import lazy

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from stepwell.torch.resident import Resident
    from stepwell.units import Units

Rows = NDArray[np.int64]
"""Row numbers, each in `range(len(source))`."""

Schema = Mapping[str, Field]


def as_rows(rows: ArrayLike, length: int) -> Rows:
    """Return `rows` as int64 numbers; a mask of `length` becomes the rows it marks.

    Raises `TypeError` for anything but whole numbers. The range is checked where the rows
    are read.
    """
    if type(rows) is np.ndarray and rows.dtype == np.int64 and rows.ndim == 1:
        ready = rows.flags.c_contiguous and rows.flags.aligned
        return rows if ready else rows.copy()
    array = np.asarray(rows)
    if array.ndim != 1:
        got = f"{array.ndim} dimensions" if array.ndim else f"a single {type(rows).__name__}"
        raise ValueError(f"expected one-dimensional rows, got {got}")
    if array.dtype.kind == "b":
        if len(array) != length:
            raise IndexError(f"expected a mask of {length} rows, got {len(array)}")
        return np.flatnonzero(array).astype(np.int64, copy=False)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind == "f" and not hasattr(rows, "dtype"):
        array = np.asarray(rows, object)  # NumPy makes floats of whole numbers around 2**63
    if array.dtype.kind == "O" and all(hasattr(row, "__index__") for row in array):
        array = np.array([operator.index(row) for row in array], object)
    elif array.dtype.kind not in "iu":
        raise TypeError(f"expected whole numbers as rows, got {np.asarray(rows).dtype}")
    if array.dtype.kind in "Ou":  # named here: beyond 63 bits the core would see another row
        outside = (array < 0) | (array >= length)
        if outside.any():
            row = array[outside.argmax()]
            raise IndexError(f"row {row} is outside a source of {length} rows")
    return np.require(array, np.int64, ["C", "A"])


def is_masked(array: object) -> bool:
    """Whether an array has a mask, which a source would lose."""
    # Who has a masked array has imported numpy.ma; nobody else should wait for it.
    masked = sys.modules.get("numpy.ma")
    return masked is not None and isinstance(array, masked.MaskedArray)


def sample_rows(length: int) -> Rows:
    """Return up to 16 rows spread over a source: enough to distinguish two of them."""
    count = min(length, 16)
    return np.array([i * (length - 1) // max(count - 1, 1) for i in range(count)], np.int64)


class Closing:
    """Something that can be closed, and is at the end of a `with`."""

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Source(Closing, ABC):
    """Rows that can be read in any order, from any thread, after fork and spawn."""

    # Provided by a store.

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The fields of a row, in order."""

    @abstractmethod
    def __len__(self) -> int: ...

    def _fill(self, rows: Rows, out: Batch) -> None:
        """Put `rows`, all inside the source, into the arrays of `out`.

        `out` has an array for each field of fixed shape; a ragged field is added to it.
        """
        if type(self)._fill_columns is Source._fill_columns:
            raise TypeError(f"{type(self).__name__} defines neither _fill nor _native")
        self._fill_columns(rows, out, list(self.schema))

    def _fill_columns(self, rows: Rows, out: Batch, names: Sequence[str]) -> None:
        """The same for some fields; a store may know how to leave the others alone."""
        taken = self.take(rows)
        for name in names:
            if self.schema[name].ragged:
                out[name] = taken[name]
            else:
                out[name][...] = taken[name]

    def _from(self, first: int, names: Sequence[str]) -> Iterator[Batch] | None:
        """These fields of the rows from `first` on; None where `take` reads them as well."""
        return None

    def _native(self, names: Sequence[str]) -> _core.Reader | None:
        """Return a reader of these fields that needs no Python, or None."""
        return None

    def _runs(self) -> tuple[Rows, Rows]:
        """First row and number of rows of each run; one run unless the store knows better."""
        return np.zeros(1, np.int64), np.array([len(self)], np.int64)

    def _cuts(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Of each row whether the row that comes next did not follow it, and whether it is the
        last of its run."""
        starts, counts = self._runs()
        over = np.zeros(len(self), bool)
        over[(starts + counts - 1)[counts > 0]] = True
        over[-1:] = True
        return over, over

    def _returns(self, gamma: float, reward: str, flags: Sequence[str]) -> "Source":
        """Of each row the discounted rewards from there to the end of its run, as one field."""
        return transitions.returns(self, gamma, reward, flags)

    def _sizes(self, rows: Rows, names: Sequence[str]) -> NDArray[np.int64] | None:
        """Stored bytes of these ragged fields of each row; None where only reading shows."""
        return None

    @property
    def path(self) -> str | None:
        """The path or URL where the rows are kept; None for arrays in memory and for views."""
        return None

    def _check_open(self) -> None:
        """Raise `ValueError` when the source is closed."""

    def close(self) -> None:
        """Let go of open files. Memory goes with the last reference to it."""

    # The same for every source.

    def take(self, rows: ArrayLike, out: Mapping[str, NDArray[Any]] | None = None) -> Batch:
        """Return the given rows in the given order, repeats included.

        `rows` may be anything NumPy makes whole numbers of, or a mask. The arrays are the
        caller's for as long as it keeps them; `out` provides them instead.
        Raises `IndexError` naming the first row outside `range(len(self))`; `out` is then
        unchanged.
        """
        rows = as_rows(rows, len(self))
        reader, layout = self._reader, self._batch_layout
        if reader is not None and layout is not None:
            try:
                if out is None:
                    return layout.take(rows)
                batch = layout.read(rows, out)
                if batch is None:  # arrays that do not fit, or not in a dict
                    batch = layout.read(rows, self._checked(out, len(rows)))
                    assert batch is not None
                return batch
            except IndexError:
                if reader.length == len(self):
                    raise
            self._forget()  # a view of what has grown
            return self.take(rows, out)
        self._check_open()
        _core.check_rows(rows, len(self))
        given = self._empty(len(rows)) if out is None else self._checked(out, len(rows))
        batch = dict(given)
        self._fill(rows, batch)
        for name, field in self.schema.items():
            if field.ragged or batch[name] is not given[name]:
                self._accept(name, field, batch, given, len(rows))
        return {name: batch[name] for name in self.schema}

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: str) -> "views.Column": ...  # type: ignore[overload-overlap]
    @overload
    def __getitem__(self, key: slice | ArrayLike) -> Batch: ...
    def __getitem__(self, key: Any) -> Any:
        """`source[i]` is a row, `source[a:b]` or `source[rows]` a batch, `source["x"]` a column."""
        if isinstance(key, str):
            return views.Column(self, key)
        if isinstance(key, slice):
            return self.take(np.arange(*key.indices(len(self)), dtype=np.int64))
        if hasattr(key, "__index__") and np.ndim(key) == 0:
            i = operator.index(key)
            if not -len(self) <= i < len(self):
                raise IndexError(f"row {i} is outside a source of {len(self)} rows")
            batch = self.take(np.array([i % len(self)], np.int64))
            return {name: values[0] for name, values in batch.items()}
        return self.take(key)

    def __contains__(self, name: object) -> bool:
        """Whether there is a field of this name."""
        return name in self.schema

    def __getitems__(self, rows: ArrayLike) -> list[dict[str, Any]]:
        """A list of rows, for torch's DataLoader. `stepwell.torch` has a faster way."""
        batch = self.take(rows)
        count = len(next(iter(batch.values())))
        return [{name: values[i] for name, values in batch.items()} for i in range(count)]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for begin in range(0, len(self), 1024):
            batch = self[begin : begin + 1024]
            for i in range(min(1024, len(self) - begin)):
                yield {name: values[i] for name, values in batch.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, ragged fields left out."""
        return len(self) * sum(f.row_bytes for f in self.schema.values() if not f.ragged)

    @property
    def fingerprint(self) -> str:
        """Eight digits that change when the rows do: a checksum of schema, length and 16 rows."""
        return f"{self._checksum(len(self), sample_rows(len(self))):08x}"

    def __repr__(self) -> str:
        return description.text(self)

    def _repr_html_(self) -> str:
        return description.outline(self, lambda: self.nbytes, columns=True)._repr_html_()

    def __getstate__(self) -> dict[str, Any]:
        # Made again where they are needed.
        made = ("_reader", "_batch_layout", "_statistics", "_forgotten")
        return {name: value for name, value in self.__dict__.items() if name not in made}

    # For other libraries.

    def to_arrow(self) -> "pa.Table":
        """All rows as an Arrow table (extra `parquet`). Arrays are lists of a fixed size."""
        return arrow.stream(self).read_all()

    def to_pandas(self) -> "pd.DataFrame":
        """All rows as a data frame. Where a field's rows are arrays, its column has objects."""
        return frames.frame_of(self)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows for DuckDB, Polars and others, a few MiB at a time as they are read."""
        return arrow.stream(self).__arrow_c_stream__(requested_schema)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The only field as one array. Raises `TypeError` for several fields, and for a ragged one:
        of a structured array pandas would make one column of tuples.
        """
        shown = ", ".join(f"{name}: {field}" for name, field in self.schema.items())
        if len(self.schema) > 1 or any(field.ragged for field in self.schema.values()):
            raise TypeError(
                f"expected one field of a fixed shape to make an array of, got {{{shown}}}; "
                "source['name'] is one field, to_pandas() and to_arrow() hold all"
            )
        if copy is False:
            raise ValueError("copy=False: rows are read into a new array")
        (values,) = batches.whole(self).values()
        return np.asarray(values, dtype)

    def to(self, device: Any = "cuda", *, resident: float = 1.0) -> "Resident":
        """The rows in the memory of a device, for `sw.torch.Loader` (extra `torch`).

        With a share `resident` below 1 only the first rows are there, and the others are read
        from this source. Raises `MemoryError` with both sizes when they do not fit.
        """
        made: Resident = import_module("stepwell.torch").Resident(self, device, resident)
        return made

    # Views: sources made of this one.

    def select(self, rows: ArrayLike | slice) -> "views.Select":
        """These rows only, in this order: numbers, a mask or a slice. Slices store nothing."""
        return views.Select.of(self, rows)

    def columns(self, names: Sequence[str] | Mapping[str, str]) -> "views.Columns":
        """These fields only, in this order; `{new: old}` gives them other names."""
        return views.Columns(self, names)

    def concat(self, *others: "Source") -> "views.Concat":
        """The rows of this source, then those of the others."""
        return views.Concat((self, *others))

    def map(self, fn: Callable[[Batch], Batch]) -> "views.Map":
        """`fn` applied to each batch. It may change fields, never the number of rows."""
        return views.Map(self, fn)

    def windows(self, length: int, stride: int = 1, *, pad: bool = False) -> "windows.Windows":
        """Sequences of `length` neighbouring rows, one every `stride` rows, inside runs.

        With `pad` those that reach beyond the end of their run are there too, filled up with
        zeros, and a field `mask` is True for what is a row. With `stride=length` every row is in
        one of them.
        """
        return windows.Windows(self, length, stride, pad)

    def transitions(
        self,
        n_step: int = 1,
        gamma: float = 0.99,
        *,
        observation: str | Sequence[str] | None = None,
        reward: str | None = None,
        terminated: str | bool | None = None,
        truncated: str | None = None,
    ) -> "Source":
        """Steps with what was seen after them: `next_obs` beside `obs`, inside runs.

        With `n_step` above 1, `reward` has the next n rewards added up, each discounted by `gamma`
        once more than the one before, `next_obs`, `terminated` and `truncated` are of the last of
        these steps, and `discount` is what the value of `next_obs` has to be multiplied by: 0
        behind a terminated step. Fewer rewards are added where a run, or an episode in it, ends.

        After a terminated step `next_obs` is zeros, and not to be used; any other step after which
        nothing was seen is left out. Where rows have a `next_obs` already, that is used.

        Fields are found under the usual names (`obs`, `observation`, `observation/camera`, …;
        `reward`; `terminated`, `terminals`, …; `truncated`, `timeouts`, …), or given. `terminated`
        may be True, where every run ends with a terminated step, or False, where none does. Raises
        `SchemaError` for fields that are missing. Flags and rewards are read once, here.
        """
        names = transitions.find(self.schema, observation, reward, terminated, truncated)
        return transitions.Transitions(self, n_step, gamma, names)

    def returns_to_go(
        self,
        gamma: float = 1.0,
        *,
        reward: str | None = None,
        terminated: str | None = None,
        truncated: str | None = None,
    ) -> "Source":
        """These rows with a field `return_to_go`: the rewards from there to the end of the run.

        Each is discounted by `gamma` once more than the one before. An episode also ends behind a
        row that is terminated or truncated. Rewards of rows that `select` left out count; where
        some are missing, the return is NaN.
        """
        found = transitions.find_rewards(self.schema, reward, terminated, truncated)
        return transitions.Returns(self, gamma, *found)

    def statistics(self) -> "dict[str, statistics.Statistics]":
        """Mean, standard deviation, minimum and maximum of every field of numbers.

        Each has the shape of a row. One pass over the rows; asked again, it is as before until
        `refresh` brings others. Arrays in memory can change at any time and are read each time.
        Text, ragged fields and structures are left out.
        """
        return statistics.cached(self)

    # Below this line: for this package.

    def _forget(self, *names: str) -> None:
        """Have what was made of rows made again: there are others now."""
        self.__dict__["_forgotten"] = self.__dict__.get("_forgotten", 0) + 1
        for made in ("_reader", "_batch_layout", "_statistics", *names):
            self.__dict__.pop(made, None)

    def _as_of(self) -> object:
        """Something that is equal for as long as no row can have changed; None where that cannot
        be known."""
        return self.__dict__.get("_forgotten", 0)

    def _fingerprint_of(self, length: int) -> str:
        """The fingerprint that this source had when it had only its first `length` rows."""
        if length == len(self):
            return self.fingerprint
        return f"{self._checksum(length, sample_rows(length)):08x}"

    @property
    def _units(self) -> "Units | None":
        """In which pieces rows are brought from where they are; None for rows in memory."""
        return None

    def _checksum(self, length: int, rows: Rows) -> int:
        """A checksum of the fields, a length, and some rows as they are stored."""
        fields = " ".join(f"{name}:{field.items}" for name, field in self.schema.items())
        crc = _core.crc32c(np.frombuffer(f"{length} {fields}".encode(), np.uint8))
        for values in self.take(rows).values():
            for part in (values.offsets, values.values) if isinstance(values, Ragged) else [values]:
                crc = _core.crc32c(bytes_of(np.ascontiguousarray(part)), crc)
        return crc

    @lazy
    def _reader(self) -> _core.Reader | None:
        self._check_open()
        return self._native(list(self.schema))

    @lazy
    def _batch_layout(self) -> _core.Layout | None:
        """What makes batches of rows that the core reads."""
        reader = self._reader
        if reader is None:
            return None
        fields = [(name, field.dtype, field.shape) for name, field in self.schema.items()]
        return _core.Layout(reader, fields)

    def _accept(self, name: str, field: Field, batch: Batch, given: Batch, count: int) -> None:
        """A value that `_fill` put in: a ragged field, or an array instead of the one given."""
        values: Any = batch.get(name)
        if field.ragged:
            if not isinstance(values, Ragged) or len(values) != count:
                raise SchemaError(f"_fill: expected a Ragged of {count} rows as {name!r}")
        elif np.shape(values) != given[name].shape or np.asarray(values).dtype != field.dtype:
            raise SchemaError(
                f"_fill: expected {field.dtype} {given[name].shape} as {name!r}, "
                f"got {np.asarray(values).dtype} {np.shape(values)}"
            )
        else:
            given[name][...] = values
            batch[name] = given[name]

    def _empty(self, count: int) -> Batch:
        # Padding between the fields of a row would keep what was in memory before.
        return {
            name: (np.zeros if field.dtype.names else np.empty)((count, *field.shape), field.dtype)
            for name, field in self.schema.items()
            if not field.ragged
        }

    def _checked(self, out: Mapping[str, NDArray[Any]], count: int) -> Batch:
        """The caller's arrays in schema order, each of the right kind."""
        fixed = {name: field for name, field in self.schema.items() if not field.ragged}
        if not isinstance(out, Mapping):
            raise TypeError(f"out: expected a dict of arrays, got {type(out)}")
        if set(out) != set(fixed):
            raise SchemaError(f"out: expected fields {list(fixed)}, got {list(out)}")
        for name, field in fixed.items():
            check_buffer(f"out[{name!r}]", out[name], field.dtype, (count, *field.shape))
        return {name: out[name] for name in fixed}


def check_buffer(name: str, array: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raise unless a caller's array can be filled as it is."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name}: expected a NumPy array, got {type(array)}")
    if array.dtype != dtype or array.shape != shape:
        raise SchemaError(f"{name}: expected {dtype} {shape}, got {array.dtype} {array.shape}")
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise ValueError(f"{name}: expected a writable array in C order")


def bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of an array in C order, without a copy."""
    if array.size == 0 or array.itemsize == 0:
        return np.empty(0, np.uint8)
    return array.reshape(-1).view(np.uint8)


# They are made of sources.
from stepwell import statistics, transitions, views, windows  # noqa: E402

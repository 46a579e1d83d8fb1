"""Sources made of other sources, without copying a row.

A view of a source that the core can read is itself one the core can read: row numbers are
translated in native code (`_core.RowMap`), and the fields land in the caller's arrays
directly. Anything else is done here, batch by batch.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepwell import _core
from stepwell.errors import SchemaError
from stepwell.source import Batch, Field, Ragged, Rows, Schema, Source, as_rows, sample_rows
from stepwell.units import Moved, Several, Units


class _View(Source):
    """The rows of a base, one for one."""

    _base: Source

    def __len__(self) -> int:
        return len(self._base)

    @property
    def fingerprint(self) -> str:
        return self._base.fingerprint  # the same rows, whatever is read or made of them

    def _fingerprint_of(self, length: int) -> str:
        return self._base._fingerprint_of(length)

    @property
    def _units(self) -> Units | None:
        return self._base._units

    def _checksum(self, length: int, rows: Rows) -> int:
        return self._base._checksum(length, rows)

    def _as_of(self) -> object:
        return self._base._as_of()

    def _runs(self) -> tuple[Rows, Rows]:
        return self._base._runs()

    def _cuts(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        return self._base._cuts()

    def _check_open(self) -> None:
        self._base._check_open()

    def close(self) -> None:
        self._base.close()


class Translated(_View):
    """Rows of a base found through a row map."""

    def __init__(self, base: Source, rowmap: _core.RowMap) -> None:
        self._base = base
        self._map = rowmap

    def __len__(self) -> int:
        return self._map.length

    def _native(self, names: Sequence[str]) -> _core.Reader | None:
        reader = self._base._native(names)
        return None if reader is None else _core.mapped_reader(reader, self._map)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint_of(len(self))

    def _fingerprint_of(self, length: int) -> str:
        """Of rows of the base, which may have others by now that are not here."""
        rows = self._first_rows(sample_rows(length))
        content = self._base._checksum(length, rows)
        return f"{content:08x}-{_core.crc32c(rows.view(np.uint8)):08x}"

    @property
    def _units(self) -> Units | None:
        units = self._base._units
        return None if units is None else Moved(units, self._map.apply)

    def _checksum(self, length: int, rows: Rows) -> int:
        return self._base._checksum(length, self._first_rows(rows))

    def _first_rows(self, rows: Rows) -> Rows:
        """The row of the base that each row is, or begins with."""
        return self._map.apply(rows)


class Select(Translated):
    """Some rows of a source, in a given order."""

    def __init__(self, base: Source, rows: Rows | slice) -> None:
        self._rows = rows
        if isinstance(rows, slice):
            chosen = range(*rows.indices(len(base)))
            if len(chosen) < 2:  # its step may be any number
                chosen = range(max(chosen.start, 0), max(chosen.start, 0) + len(chosen))
            self._chosen = chosen
            stop = chosen.stop if chosen.stop >= 0 else None
            self._rows = slice(chosen.start, stop, chosen.step)  # the same, though the base grows
            starts, counts = np.array([chosen.start]), np.array([len(chosen)])
            super().__init__(base, _core.range_map(starts, counts, chosen.step))
        else:
            super().__init__(base, _core.index_map(rows))

    @classmethod
    def of(cls, base: Source, rows: ArrayLike | slice) -> "Select":
        if isinstance(rows, slice):
            return cls(base, rows)
        chosen = as_rows(rows, len(base)).copy()  # the caller may change its array later
        chosen.flags.writeable = False
        _core.check_rows(chosen, len(base))
        return cls(base, chosen)

    def __reduce__(self) -> tuple[Any, ...]:
        return Select, (self._base, self._rows)

    @property
    def schema(self) -> Schema:
        return self._base.schema

    def _runs(self) -> tuple[Rows, Rows]:
        """The stretches of this view that stay inside one run of the base."""
        starts, counts = self._base._runs()
        if not isinstance(self._rows, slice):
            run_of = np.searchsorted(starts, self._map.apply(np.arange(len(self))), side="right")
            begins = np.flatnonzero(np.diff(run_of, prepend=0))
            return begins, np.diff(begins, append=len(self))
        chosen = self._chosen
        edges = np.stack([starts, starts + counts])
        if chosen.step > 0:  # the first row at or above each edge
            edges = -((chosen.start - edges) // chosen.step)
        else:  # downwards, the first row below it: runs are entered at their ends, last run first
            edges = ((chosen.start - edges) // -chosen.step + 1)[::-1, ::-1]
        begins, ends = np.clip(edges, 0, len(self))
        return np.ascontiguousarray(begins), ends - begins

    def _cuts(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        rows = self._map.apply(np.arange(len(self)))
        cut, over = (each[rows] for each in self._base._cuts())
        return cut | (np.diff(rows, append=-1) != 1), over

    def _returns(self, gamma: float, reward: str, flags: Sequence[str]) -> Source:
        # Of all rows: those that were not chosen had rewards too.
        return Chosen(self._base._returns(gamma, reward, flags), self._map)

    def _fill(self, rows: Rows, out: Batch) -> None:
        out.update(self._base.take(self._map.apply(rows), out))


class Chosen(Select):
    """The same through a row map, for views that are made of several."""

    def __init__(self, base: Source, rowmap: _core.RowMap) -> None:
        Translated.__init__(self, base, rowmap)
        self._rows = np.empty(0, np.int64)  # they are in the map

    def __reduce__(self) -> tuple[Any, ...]:
        return Select, (self._base, self._map.apply(np.arange(len(self))))


class Columns(_View):
    """Some fields of a source, under their own names or, as `{new: old}`, under others."""

    def __init__(self, base: Source, names: Sequence[str] | Mapping[str, str]) -> None:
        if not isinstance(names, Mapping):
            given = [names] if isinstance(names, str) else list(names)
            names = dict(zip(given, given, strict=True))
            if len(names) < len(given):
                raise ValueError(f"expected one or more different fields, got {given}")
        if not names:
            raise ValueError("expected one or more different fields, got none")
        for name in names.values():
            if name not in base.schema:
                raise KeyError(f"no field {name!r}; there are {sorted(base.schema)}")
        self._base = base
        self._names = dict(names)

    @property
    def schema(self) -> Schema:
        return {name: self._base.schema[old] for name, old in self._names.items()}

    def _native(self, names: Sequence[str]) -> _core.Reader | None:
        return self._base._native([self._names[name] for name in names])

    def _from(self, first: int, names: Sequence[str]) -> Iterator[Batch] | None:
        olds = {name: self._names[name] for name in names}
        found = self._base._from(first, list(dict.fromkeys(olds.values())))
        if found is None:
            return None
        return ({name: batch[old] for name, old in olds.items()} for batch in found)

    def _fill(self, rows: Rows, out: Batch) -> None:
        found = {self._names[name]: array for name, array in out.items()}
        self._base._fill_columns(rows, found, list(dict.fromkeys(self._names.values())))
        out.update({name: found[old] for name, old in self._names.items()})

    def _sizes(self, rows: Rows, names: Sequence[str]) -> NDArray[np.int64] | None:
        return self._base._sizes(rows, [self._names[name] for name in names])

    def _returns(self, gamma: float, reward: str, flags: Sequence[str]) -> Source:
        return self._base._returns(gamma, self._names[reward], [self._names[f] for f in flags])


class Column(Columns):
    """One field of a source, which feels like an array.

    `column[7]` is a value, `column[2:5]` and `column[[1, 9]]` are arrays (lists of text or
    bytes); `column[7, 0]` is a part of a row. As a source it has the one field.
    """

    def __init__(self, base: Source, name: str) -> None:
        super().__init__(base, [name])
        self._name = name

    @property
    def name(self) -> str:
        """The field's name."""
        return self._name

    @property
    def field(self) -> Field:
        """The field's dtype and shape."""
        return self._base.schema[self._name]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of an item; uint8 for text and bytes."""
        return self.field.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The number of rows, then the shape of one; None where each has its own length."""
        field = self.field
        return (len(self), *((None,) if field.ragged else ()), *field.shape)

    @property
    def ndim(self) -> int:
        """The number of axes, that of the rows included."""
        return len(self.shape)

    def __getitem__(self, key: Any) -> Any:
        """One value, or those of a slice or of row numbers."""
        if isinstance(key, str):
            return super().__getitem__(key)
        if isinstance(key, tuple):
            if not key or self.field.ragged:
                raise TypeError(f"{self._name}: expected one index, got {key}")
            found = self[key[0]]
            return found[key[1:]] if isinstance(key[0], int | np.integer) else found[:, *key[1:]]
        values = super().__getitem__(key)[self._name]
        return values.to_list() if isinstance(values, Ragged) and values.kind != "array" else values

    def __iter__(self) -> Iterator[Any]:
        for begin in range(0, len(self), 1024):
            yield from self[begin : begin + 1024]

    def close(self) -> None:
        """The source stays open: it has other fields."""


class Concat(Source):
    """The rows of several sources with the same fields, one source after the other."""

    def __init__(self, parts: Sequence[Source]) -> None:
        if not parts:
            raise ValueError("expected at least one source")
        for i, part in enumerate(parts):
            if part.schema != parts[0].schema or list(part.schema) != list(parts[0].schema):
                raise SchemaError(
                    f"part {i}: expected fields {_text(parts[0].schema)}, got {_text(part.schema)}"
                )
        if sum(map(len, parts)) >= 2**63:
            raise ValueError("the parts have more than 2**63 rows")
        self._parts = tuple(parts)
        self._starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def schema(self) -> Schema:
        return self._parts[0].schema

    @property
    def fingerprint(self) -> str:
        return self._fingerprint_of(len(self))

    def _fingerprint_of(self, length: int) -> str:
        spans = zip(self._parts, self._starts.tolist(), self._starts[1:].tolist(), strict=False)
        there = [
            part._fingerprint_of(min(end, length) - start)
            for part, start, end in spans
            if start < length or length == len(self)
        ]
        return "+".join(there)

    @property
    def _units(self) -> Units | None:
        def rows_of(rows: Rows) -> Iterator[Rows]:
            part_of = np.searchsorted(self._starts, rows, side="right") - 1
            for k, start in enumerate(self._starts[:-1]):
                yield rows[part_of == k] - start

        return Several.of_parts([part._units for part in self._parts], rows_of)

    def _checksum(self, length: int, rows: Rows) -> int:
        part_of = np.searchsorted(self._starts, rows, side="right") - 1
        parts = np.unique(part_of).tolist()
        each = [
            self._parts[k]._checksum(length, rows[part_of == k] - self._starts[k]) for k in parts
        ]
        return _core.crc32c(np.array(each, np.int64).view(np.uint8))

    def _native(self, names: Sequence[str]) -> _core.Reader | None:
        readers = []
        for part, count in zip(self._parts, np.diff(self._starts), strict=True):
            reader = part._native(names)
            if reader is None:
                return None
            if reader.length > count:  # the part has grown since: its new rows are not here
                first = _core.range_map(np.zeros(1, np.int64), np.array([count]))
                reader = _core.mapped_reader(reader, first)
            readers.append(reader)
        return _core.concat_reader(readers)

    def _fill(self, rows: Rows, out: Batch) -> None:
        part_of = np.searchsorted(self._starts, rows, side="right") - 1
        ragged: dict[str, list[Any]] = {
            name: [None] * len(rows) for name, f in self.schema.items() if f.ragged
        }
        for k in np.unique(part_of):
            places = np.flatnonzero(part_of == k)
            taken = self._parts[k].take(rows[places] - self._starts[k])
            for name, values in taken.items():
                if name in ragged:
                    for place, row in zip(places, values, strict=True):
                        ragged[name][place] = row
                else:
                    out[name][places] = values
        for name, parts in ragged.items():
            out[name] = Ragged.from_list(parts, self.schema[name])

    def _runs(self) -> tuple[Rows, Rows]:
        runs = [part._runs() for part in self._firsts()]
        moved = [starts + at for (starts, _), at in zip(runs, self._starts, strict=False)]
        return np.concatenate(moved), np.concatenate([counts for _, counts in runs])

    def _cuts(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        each = [part._cuts() for part in self._firsts()]
        return np.concatenate([cut for cut, _ in each]), np.concatenate([over for _, over in each])

    def _returns(self, gamma: float, reward: str, flags: Sequence[str]) -> Source:
        return Concat([part._returns(gamma, reward, flags) for part in self._firsts()])

    def _firsts(self) -> list[Source]:
        """The parts, with the rows that they had when this was made."""
        return list(map(first_rows, self._parts, np.diff(self._starts).tolist()))

    def _as_of(self) -> object:
        return _as_of_all(self._parts)

    def _check_open(self) -> None:
        for part in self._parts:
            part._check_open()

    def close(self) -> None:
        for part in self._parts:
            part.close()


class Join(Source):
    """The fields of several sources of equal length, side by side.

    A source with one field gives it under its own name in `parts`; one with several gives
    `name.field`.
    """

    def __init__(self, parts: Mapping[str, Source]) -> None:
        if not parts:
            raise ValueError("expected at least one source")
        lengths = {name: len(part) for name, part in parts.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"named sources must have equal lengths, got {lengths}")
        self._parts = dict(parts)
        self._where: dict[str, tuple[str, str]] = {}
        for name, part in parts.items():
            for field in part.schema:
                key = name if len(part.schema) == 1 else f"{name}.{field}"
                if key in self._where:
                    raise ValueError(f"two fields would be called {key!r}")
                self._where[key] = (name, field)

    def __len__(self) -> int:
        return len(next(iter(self._parts.values())))

    @property
    def schema(self) -> Schema:
        return {key: self._parts[name].schema[f] for key, (name, f) in self._where.items()}

    @property
    def fingerprint(self) -> str:
        return self._fingerprint_of(len(self))

    def _fingerprint_of(self, length: int) -> str:
        each = {name: part._fingerprint_of(length) for name, part in self._parts.items()}
        return ",".join(f"{name}:{fingerprint}" for name, fingerprint in each.items())

    @property
    def _units(self) -> Units | None:
        parts = [part._units for part in self._parts.values()]
        return Several.of_parts(parts, lambda rows: [rows] * len(parts))

    def _checksum(self, length: int, rows: Rows) -> int:
        each = [part._checksum(length, rows) for part in self._parts.values()]
        return _core.crc32c(np.array(each, np.int64).view(np.uint8))

    def _native(self, names: Sequence[str]) -> _core.Reader | None:
        readers = []
        # Neighbouring fields of one part are read together: a row is fetched once for all.
        for name, group in groupby((self._where[key] for key in names), operator.itemgetter(0)):
            reader = self._parts[name]._native([field for _, field in group])
            if reader is None:
                return None
            readers.append(reader)
        return _core.join_reader(readers)

    def _fill(self, rows: Rows, out: Batch) -> None:
        for name, part in self._parts.items():
            keys = {field: key for key, (owner, field) in self._where.items() if owner == name}
            arrays = {field: out[key] for field, key in keys.items() if key in out}
            for field, values in part.take(rows, arrays).items():
                out[keys[field]] = values

    def _runs(self) -> tuple[Rows, Rows]:
        # A run ends where it ends in any part.
        runs = [part._runs() for part in self._parts.values()]
        begins = np.unique(np.concatenate([starts[counts > 0] for starts, counts in runs]))
        return begins, np.diff(begins, append=len(self))

    def _cuts(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        cuts, overs = zip(*(part._cuts() for part in self._parts.values()), strict=True)
        return np.logical_or.reduce(cuts), np.logical_or.reduce(overs)

    def _as_of(self) -> object:
        return _as_of_all(self._parts.values())

    def _check_open(self) -> None:
        for part in self._parts.values():
            part._check_open()

    def close(self) -> None:
        for part in self._parts.values():
            part.close()


class Beside(Join):
    """The fields of sources of equal length under their own names; of two alike, the later one."""

    def __init__(self, *parts: Source) -> None:
        owner = {name: part for part in parts for name in part.schema}
        used = [[name for name in part.schema if owner[name] is part] for part in parts]
        chosen = [(part, names) for part, names in zip(parts, used, strict=True) if names]
        self._parts = {
            str(i): part if len(names) == len(part.schema) else part.columns(names)
            for i, (part, names) in enumerate(chosen)
        }
        self._where = {n: (str(i), n) for i, (_, names) in enumerate(chosen) for n in names}


class Map(_View):
    """A function applied to each batch of a source, in Python, as it is read."""

    def __init__(self, base: Source, fn: Callable[[Batch], Batch]) -> None:
        self._base = base
        self._fn = fn
        sample = self._apply(np.arange(min(len(base), 1)))
        self._schema = {name: field_of(values) for name, values in sample.items()}

    @property
    def schema(self) -> Schema:
        return self._schema

    def _apply(self, rows: Rows) -> Batch:
        batch = self._fn(self._base.take(rows))
        if not isinstance(batch, Mapping):
            raise TypeError(f"map: expected a dict of arrays, the function gave {type(batch)}")
        if not batch:
            raise SchemaError("map: the function gave no field")
        for name, values in batch.items():
            if not isinstance(values, np.ndarray | Ragged):
                raise TypeError(f"map: expected an array as {name!r}, got {type(values)}")
            if len(values) != len(rows):
                raise SchemaError(
                    f"map: expected {len(rows)} rows of {name!r}, the function gave {len(values)}"
                )
        return batch

    def take(self, rows: ArrayLike, out: Mapping[str, NDArray[Any]] | None = None) -> Batch:
        if out is not None:
            return super().take(rows, out)
        rows = as_rows(rows, len(self))
        _core.check_rows(rows, len(self))
        return self._apply(rows)

    def _fill(self, rows: Rows, out: Batch) -> None:
        made = self._apply(rows)
        fields = {name: field_of(values) for name, values in made.items()}
        if fields != self._schema:  # without `out`, a function may change its mind
            raise SchemaError(f"map: expected {_text(self._schema)}, got {_text(fields)}")
        out.update(made)


def _as_of_all(parts: Iterable[Source]) -> object:
    moments = [part._as_of() for part in parts]
    return None if None in moments else tuple(moments)


def first_rows(source: Source, count: int) -> Source:
    """A source with the rows that it had when there were `count`."""
    return source if len(source) == count else source.select(slice(count))


def field_of(values: NDArray[Any] | Ragged) -> Field:
    """The field that such values are rows of."""
    if isinstance(values, Ragged):
        return Field(values.values.dtype, values.values.shape[1:], True, values.kind)
    return Field(values.dtype, values.shape[1:])


def _text(schema: Schema) -> str:
    return "{" + ", ".join(f"{name}: {field}" for name, field in schema.items()) + "}"

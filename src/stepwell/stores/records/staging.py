"""Changes to a record store that are not committed yet."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.source import Rows
from stepwell.stores.records.tables import Change, Entries, TableFile


class _Replaced:
    """New entries of records, by what these are known by: the last one of each."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._places: dict[int, int] = {}
        self._entries = bytearray()

    def put(self, ids: Rows, entries: Entries) -> None:
        places = self._places
        at = [places.setdefault(id_, len(places)) for id_ in ids.tolist()]
        self._entries += bytes(len(places) * self._dtype.itemsize - len(self._entries))
        np.frombuffer(self._entries, self._dtype)[at] = entries

    def __len__(self) -> int:
        return len(self._places)

    def overlay(self, ids: Rows, entries: Entries) -> NDArray[np.bool]:
        """Put them over the entries of `ids`; return which of these have some."""
        at = np.array([self._places.get(id_, -1) for id_ in ids.tolist()], np.int64)
        found = at >= 0
        entries[found] = np.frombuffer(self._entries, self._dtype)[at[found]]
        return found

    def all(self) -> tuple[Rows, Entries]:
        ids = np.fromiter(self._places, np.int64, len(self._places))
        return ids, np.frombuffer(bytes(self._entries), self._dtype)


class Staging:
    """A store of `base` committed records, the entries of which are in `tables`, with changes on
    top.

    What is new behind `base` is kept one after another. Below, a record is known by the number that
    it was committed with. When one is deleted there, the last one and it change places, and the
    next that is appended takes over what it was known by.
    """

    touched = False
    deletes = 0
    _shared = False
    """What was appended is in someone's arrays."""

    def __init__(self, tables: Sequence[TableFile], base: int) -> None:
        self.base = self.length = self.peak = base
        self._tables = tables
        self._ids: dict[int, int] = {}
        """What the records at some places below `base` are known by; elsewhere, it is the place."""
        self._replaced = [_Replaced(table.dtype) for table in tables]
        self._appended = [bytearray() for _ in tables]

    def append(self, count: int, entries: dict[int, Entries]) -> None:
        """Records at the end; `entries` has those of the fields that are given."""
        self._own()
        inside = min(count, max(self.base - self.length, 0))
        all_ = {
            field: entries[field] if field in entries else np.zeros(count, table.dtype)
            for field, table in enumerate(self._tables)
        }
        if inside:
            places = np.arange(self.length, self.length + inside)
            self._put(self.ids(places), {field: new[:inside] for field, new in all_.items()})
        for field, appended in enumerate(self._appended):
            appended += all_[field][inside:].view(np.uint8).data
        self.length += count
        self.peak = max(self.peak, self.length)
        self.touched |= count > 0

    def update(self, rows: Rows, entries: dict[int, Entries]) -> None:
        self._own()
        self._put(self.ids(rows), entries)
        self.touched |= len(rows) > 0

    def delete(self, rows: Rows) -> None:
        """From the highest number down, the last record takes the place of each."""
        self._own()
        ids, moved = self._ids, dict[int, int]()
        for row in sorted(rows.tolist(), reverse=True):
            self.length = last = self.length - 1
            if last >= self.base:
                new = moved.pop(last, last)
                if row < last:
                    moved[ids.get(row, row)] = new
            elif row < last:
                ids[row], ids[last] = ids.get(last, last), ids.get(row, row)
        if moved:
            at, fields = np.array(list(moved.values())) - self.base, range(len(self._tables))
            self._put(np.array(list(moved)), {field: self._new(field)[at] for field in fields})
        for table, appended in zip(self._tables, self._appended, strict=True):
            del appended[max(self.length - self.base, 0) * table.dtype.itemsize :]
        self.deletes += len(rows)
        self.touched |= len(rows) > 0

    def ids(self, rows: Rows) -> Rows:
        """What the records at these places are known by."""
        if not self._ids:
            return rows
        return np.array([self._ids.get(row, row) for row in rows.tolist()], np.int64)

    def overlay(self, field: int, ids: Rows, entries: Entries) -> None:
        """Put what is new over the entries of records that are known by `ids`."""
        new = ids >= self.base
        if new.any():
            entries[new] = self._new(field)[ids[new] - self.base]
        if replaced := self._replaced[field]:
            replaced.overlay(ids, entries)

    def changes(self) -> tuple[Change, ...]:
        """All of it. What was appended is not copied, unless the commit fails and there is more."""
        self._shared = True
        end = min(self.base, self.length)
        moved = sorted(row for row, id_ in self._ids.items() if row < end and row != id_)
        rows = np.array(moved, np.int64)
        ids = self.ids(rows)
        return tuple(self._change(field, end, rows, ids) for field in range(len(self._tables)))

    def _change(self, field: int, end: int, rows: Rows, ids: Rows) -> Change:
        """All of a field; `rows` below `end` have the records that are known by these `ids`."""
        table, replaced = self._tables[field], self._replaced[field]
        if not replaced:
            return Change(end, self._new(field), rows, table.entries(ids, self.base))
        entries = np.empty(len(ids), table.dtype)
        old = ~replaced.overlay(ids, entries)
        entries[old] = table.entries(ids[old], self.base)
        others, changed = replaced.all()
        if self.deletes:
            stay = [row < end and self._ids.get(row, row) == row for row in others.tolist()]
            others, changed = others[stay], changed[stay]
        rows = np.concatenate([rows, others])
        order = rows.argsort()
        return Change(end, self._new(field), rows[order], np.concatenate([entries, changed])[order])

    def _put(self, ids: Rows, entries: dict[int, Entries]) -> None:
        new = ids >= self.base
        some = new.any()
        for field, given in entries.items():
            if some:
                self._new(field)[ids[new] - self.base] = given[new]
                self._replaced[field].put(ids[~new], given[~new])
            else:
                self._replaced[field].put(ids, given)

    def _new(self, field: int) -> Entries:
        """What was appended. While someone has it, it cannot grow."""
        return np.frombuffer(self._appended[field], self._tables[field].dtype)

    def _own(self) -> None:
        if self._shared:
            self._appended = [bytearray(appended) for appended in self._appended]
            self._shared = False

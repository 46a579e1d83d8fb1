"""Changes to the entries of a store that are not committed yet."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.source import Rows
from stepwell.stores.records.journal import Change
from stepwell.stores.records.layout import ENTRY

_SIZE = ENTRY.itemsize
_NOTHING = bytes(_SIZE)


class Staging:
    """A store of `base` committed records with changes on top.

    Rows below `base` that were changed are kept by number; those behind it one after another.
    `committed(field, row)` is the committed entry.
    """

    def __init__(self, fields: int, base: int, committed: Callable[[int, int], bytes]) -> None:
        self.base = self.length = self.peak = base
        self._committed = committed
        self._changed: list[dict[int, bytes]] = [{} for _ in range(fields)]
        self._appended = [bytearray() for _ in range(fields)]
        self.touched = False
        self.deletes = 0

    def append(self, count: int, entries: dict[int, bytes]) -> None:
        """Records at the end; `entries` has those of the fields that are given."""
        inside = min(count, max(self.base - self.length, 0))
        for field, appended in enumerate(self._appended):
            given = entries.get(field) or bytes(count * _SIZE)
            for i in range(inside):
                self._changed[field][self.length + i] = given[i * _SIZE : (i + 1) * _SIZE]
            appended += given[inside * _SIZE :]
        self.length += count
        self.peak = max(self.peak, self.length)
        self.touched |= count > 0

    def update(self, rows: Rows, entries: dict[int, bytes]) -> None:
        numbers = rows.tolist()
        for field, given in entries.items():
            parts = [given[at : at + _SIZE] for at in range(0, len(given), _SIZE)]
            if not numbers or max(numbers) < self.base:
                self._changed[field].update(zip(numbers, parts, strict=True))
            else:
                for row, entry in zip(numbers, parts, strict=True):
                    self._set(field, row, entry)
        self.touched |= len(numbers) > 0

    def delete(self, rows: Rows) -> None:
        """From the highest number down, the last record takes the place of each."""
        for row in np.sort(rows)[::-1].tolist():
            last = self.length - 1
            for field, appended in enumerate(self._appended):
                if row != last:
                    self._set(field, row, self.entry(field, last))
                if last >= self.base:
                    del appended[-_SIZE:]
                else:
                    self._changed[field].pop(last, None)
            self.length = last
            self.deletes += 1
        self.touched |= len(rows) > 0

    def entry(self, field: int, row: int) -> bytes:
        if row >= self.base:
            at = (row - self.base) * _SIZE
            return bytes(self._appended[field][at : at + _SIZE])
        return self._changed[field].get(row) or self._committed(field, row)

    def overlay(self, field: int, rows: Rows, places: NDArray[np.uint8]) -> None:
        """Put what was changed over entries of `rows`, 16 bytes each."""
        changed, appended = self._changed[field], self._appended[field]
        entries = places.reshape(-1, _SIZE)
        behind = rows >= self.base
        if behind.any():
            table = np.frombuffer(bytes(appended), np.uint8).reshape(-1, _SIZE)
            entries[behind] = table[rows[behind] - self.base]
        if changed:
            for i, row in enumerate(rows.tolist()):
                if (entry := changed.get(row)) is not None:
                    entries[i] = np.frombuffer(entry, np.uint8)

    def changes(self) -> tuple[Change, ...]:
        return tuple(map(self._change, range(len(self._changed))))

    def _change(self, field: int) -> Change:
        changed = self._changed[field]
        rows = np.array(sorted(changed), np.int64)
        entries = b"".join(changed[row] for row in rows.tolist())
        return Change(
            min(self.base, self.length),
            np.frombuffer(bytes(self._appended[field]), ENTRY),
            rows,
            np.frombuffer(entries, ENTRY),
        )

    def _set(self, field: int, row: int, entry: bytes) -> None:
        if row >= self.base:
            at = (row - self.base) * _SIZE
            self._appended[field][at : at + _SIZE] = entry
        else:
            self._changed[field][row] = entry


def entry_bytes(places: NDArray[np.uint8], fields: Sequence[int], count: int) -> dict[int, bytes]:
    """Entries of all fields, as the core gives them, by field."""
    size = count * _SIZE
    return {field: places[i * size : (i + 1) * size].tobytes() for i, field in enumerate(fields)}


def joined(parts: Sequence[dict[int, bytes]]) -> dict[int, bytes]:
    """Entries of records that follow one another."""
    fields: Any = parts[0] if parts else ()
    return {field: b"".join(part[field] for part in parts) for field in fields}

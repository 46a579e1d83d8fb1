"""A record store below a URL, to read: its tables as files, its chunks as files of holes."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from stepwell.errors import FormatError, KindError
from stepwell.files.mirror import Mirror, MirroredRows
from stepwell.files.residents import Numbers
from stepwell.files.stand_in import StandIn
from stepwell.source import Rows
from stepwell.stores.records.layout import (
    CHUNKS,
    FRAME_BYTES,
    JOURNAL,
    LOCK,
    META,
    Meta,
    chunk_name,
    dictionary_name,
)
from stepwell.stores.records.tables import Entries
from stepwell.stores.records.view import View

T = TypeVar("T")

_CHUNK = re.compile(rf"{CHUNKS}/(0|[1-9][0-9]*)\.zr")
_ALIGN = 8


class RemoteRecords:
    """The files of a store as they were when it was opened, mirrored."""

    def __init__(self, where: Any, options: dict[str, Any]) -> None:
        self._where, self._options = where, options
        self.mirror = mirror = Mirror(where, **options)
        if mirror.about(META) is None:
            raise KindError(f"expected a record store, found no {META}", path=mirror.url)
        mirror.whole(META)
        for name in (JOURNAL, LOCK):
            if mirror.about(name) is not None:
                mirror.whole(name)
        with mirror.translated():
            meta = Meta.read(self.root)
        for name, field in meta.fields.items():
            tables = [*meta.table_names(name)]
            if field.compress == "zstd-dict":
                tables.append(dictionary_name(name))
            for table in tables:
                if mirror.about(table) is not None:
                    mirror.whole(table)
        self._chunks: dict[int, StandIn] = {}
        names = self._chunk_names(meta)
        mirror.side_by_side(mirror.sparse, names)
        for name in names:
            self._chunks[int(name[len(CHUNKS) + 1 : -len(".zr")])] = mirror.sparse(name)

    @property
    def root(self) -> Path:
        return self.mirror.root

    def again(self) -> "RemoteRecords":
        """The same store as it is now."""
        return RemoteRecords(self._where, self._options)

    def _chunk_names(self, meta: Meta) -> list[str]:
        known = [name for name in self.mirror.names() if _CHUNK.fullmatch(name)]
        # Of a web server, which has no list; the journal may have begun another one.
        number = meta.first_chunk
        while self.mirror.about(chunk_name(number)) is not None:
            if chunk_name(number) not in known:
                known.append(chunk_name(number))
            number += 1
        return known

    def bytes_of(self, names: Sequence[str]) -> int:
        """What some objects take in the bucket."""
        found = (self.mirror.about(name) for name in names)
        return sum(about.size for about in found if about is not None)

    def units_at(self, view: View, names: Sequence[str], found: Sequence[Entries]) -> Numbers:
        """The units of the frames that entries of some fields lead to."""
        parts = [np.empty(0, np.int64)]
        for name, entries in zip(names, found, strict=True):
            if name in view.meta.columns:
                continue
            there = entries[entries["offset"] > 0]
            for number in np.unique(there["chunk"]).tolist():
                chunk = self._chunks.get(number)
                if chunk is None:
                    continue  # which the core will say
                mine = there[there["chunk"] == number]
                ends = (mine["offset"] + mine["length"] + (_ALIGN - 1)).astype(np.int64)
                ends = np.clip(ends, 0, chunk.bytes)
                begins = np.clip(mine["offset"].astype(np.int64) - FRAME_BYTES, 0, ends)
                first = np.full(len(mine), chunk.first)
                parts.append(self.mirror.units_of(first, begins, ends - begins))
        return np.unique(np.concatenate(parts))

    def reading(
        self, view: View, names: Sequence[str], found: Sequence[Entries], work: Callable[[], T]
    ) -> T:
        """What `work` returns, which reads the frames that these entries lead to."""
        with self.mirror.translated():
            return self.mirror.reading(self.units_at(view, names, found), work)

    def units(self, view: View) -> MirroredRows:
        names = list(view.meta.fields)

        def of(rows: Rows) -> Numbers:
            return self.units_at(view, names, view.entries(rows, names))

        return MirroredRows(self.mirror, of)

    def problems(
        self, view: View, name: str, rows: Rows, places: Entries, max_: int, numbered: bool
    ) -> list[FormatError]:
        """What is wrong with frames, which are brought a part of the window at a time."""
        found: list[FormatError] = []
        ends = np.cumsum(places["length"].astype(np.int64) + self.mirror.unit_bytes)
        part = ends // max(self.mirror.budget_bytes // 4, 1)
        for some in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(part)) + 1):
            at = places[some]

            def look() -> list[FormatError]:
                return view.problems(name, rows[some], at, max_, numbered=numbered)  # noqa: B023

            wrong = self.reading(view, [name], [at], look)
            if wrong:  # once more: they may have come damaged
                self.mirror.forget(self.units_at(view, [name], [at]))
                wrong = self.reading(view, [name], [at], look)
            for problem in wrong:
                self.mirror.translate(problem)
            found += wrong
            if len(found) >= max_:
                break
        return found[:max_]

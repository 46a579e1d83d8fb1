"""Everything in a store checked against everything else."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import BusyError, FormatError
from stepwell.store import Progress, Report
from stepwell.stores.records.control import read_control
from stepwell.stores.records.layout import CHUNKS, ENTRY, chunk_name
from stepwell.stores.records.meta import Meta
from stepwell.stores.records.view import View, look

_ROWS = 1 << 14
_MAX_PROBLEMS = 100
_MAX_TRIES = 10


def verified(root: Path, *, quick: bool, progress: Progress) -> Report:
    """Check a store as it is now; a writer may be at work."""
    unchecked = ["what was deleted, and older states of records: nothing leads to them"]
    for _ in range(_MAX_TRIES):
        try:
            check = _Check(root, look(root, checksums=True), quick)
            check.run(progress)
        except FormatError as error:
            return Report("records", str(root), (error,), (), ("the rest of the store",))
        except BusyError:
            # Rebalanced meanwhile: what was being read is gone. Or a writer has stopped.
            continue
        if not check.numbered:
            unchecked.append("whose frames they are: records were deleted, or are being changed")
        return Report(
            "records",
            str(root),
            tuple(check.problems[:_MAX_PROBLEMS]),
            (
                "meta.json, the journal and the dictionaries",
                f"the entries of {check.view.length:,} records and their checksums",
                "that every payload is inside its chunk"
                if quick
                else "every frame, the checksum of its payload, and that it unpacks",
            ),
            (*unchecked, *(["the payloads"] if quick else [])),
        )
    progress(0, 0)
    busy = "everything: a writer is in the way; try again"
    return Report("records", str(root), unchecked=(busy,))


class _Check:
    """One pass over a store as of one look at it."""

    def __init__(self, root: Path, view: View, quick: bool) -> None:
        self._root, self.view, self._quick = root, view, quick
        self.problems: list[FormatError] = []
        self.numbered = view.numbered
        """Nothing was deleted, so a frame has the number of its record."""
        self._sizes: dict[int, int] = {}

    def run(self, progress: Progress) -> None:
        length = self.view.length
        progress(0, length)
        for begin in range(0, length, _ROWS):
            rows = np.arange(begin, min(begin + _ROWS, length), dtype=np.int64)
            for number, name in enumerate(self.view.meta.fields):
                try:
                    places = self.view.records.places(rows, [number])
                except FormatError as error:
                    self.problems.append(error)
                    continue
                found = self._frames(name, rows, places)
                found += self._entries(name, rows, places.view(ENTRY))
                if found and self._changed():
                    # Records that a delete moves keep their numbers, and are in two places while
                    # a reader has the old length.
                    self.numbered = False
                    found = self._frames(name, rows, places)
                self.problems += found
            if len(self.problems) >= _MAX_PROBLEMS:
                break
            progress(begin + len(rows), length)
        progress(length, length)

    def _changed(self) -> bool:
        """Whether a writer has committed since the look. Raises `BusyError` after a rebalance."""
        if Meta.read(self._root).generation != self.view.meta.generation:
            raise BusyError(f"{self._root} was rebalanced meanwhile")
        control = self.view.control
        return bool(len(control)) and read_control(control).commit != self.view.commit

    def _frames(self, name: str, rows: Any, places: Any) -> list[FormatError]:
        room = max(_MAX_PROBLEMS - len(self.problems), 0)
        if self._quick:
            return []
        return self.view.problems(name, rows, places, room, numbered=self.numbered)

    def _entries(self, name: str, rows: Any, places: Any) -> list[FormatError]:
        """Two records cannot be in one place, nor any outside its chunk."""
        there = places[places["offset"] > 0]
        found, counts = np.unique(there[["chunk", "offset"]], return_counts=True)
        shared = f"{name}: several of the records {rows[0]} to {rows[-1]} are in one place"
        problems = [self._problem(shared, place) for place in found[counts > 1]]
        if self._quick:
            for chunk in np.unique(there["chunk"]).tolist():
                of, size = there[there["chunk"] == chunk], self._size(chunk)
                left = size - np.minimum(of["offset"], size)
                problems += [
                    self._problem(f"{name}: a payload behind the end of its chunk", place)
                    for place in of[of["length"] > left]
                ]
        return problems

    def _size(self, chunk: int) -> int:
        if chunk not in self._sizes:
            self._sizes[chunk] = 0
            with suppress(FileNotFoundError):
                self._sizes[chunk] = os.stat(self._root / chunk_name(chunk)).st_size
        return self._sizes[chunk]

    def _problem(self, message: str, place: Any) -> FormatError:
        path = os.fspath(self._root / CHUNKS / f"{place['chunk']}.zr")
        return FormatError(message, path=path, offset=int(place["offset"]))

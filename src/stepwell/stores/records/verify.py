"""Everything in a store checked against everything else."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.errors import BusyError, FormatError
from stepwell.source import Rows
from stepwell.store import Progress, Report
from stepwell.stores.records.layout import Meta, chunk_name
from stepwell.stores.records.tables import Entries
from stepwell.stores.records.view import View, look, read_control

if TYPE_CHECKING:
    from stepwell.stores.records.remote import RemoteRecords

_ROWS = 1 << 14
_MAX_PROBLEMS = 100
_MAX_TRIES = 10


def verified(
    root: Path, *, quick: bool, progress: Progress, far: "RemoteRecords | None" = None
) -> Report:
    """Check a store as it is now; a writer may be at work. `far` brings what is in a bucket."""
    unchecked = ["what was deleted, and older states of records: nothing leads to them"]
    for _ in range(_MAX_TRIES):
        try:
            check = _Check(root, look(root, checksums=True), quick, far)
            check.run(progress)
        except FormatError as error:
            return Report("records", str(root), (error,), (), ("the rest of the store",))
        except BusyError:
            # Rebalanced meanwhile: what was being read is gone. Or a writer has stopped.
            continue
        if not check.numbered and check.view.meta.columns < {*check.view.meta.fields}:
            unchecked.append("whose frames they are: records were deleted, or are being changed")
        if len(check.problems) >= _MAX_PROBLEMS:
            unchecked.append(f"the rest: the check ends after {_MAX_PROBLEMS} problems")
        return Report(
            "records",
            str(root),
            tuple(check.problems[:_MAX_PROBLEMS]),
            (
                "meta.json, the journal and the dictionaries",
                f"the entries of {check.view.meta.length:,} records and their checksums",
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

    def __init__(self, root: Path, view: View, quick: bool, far: "RemoteRecords | None") -> None:
        self._root, self.view, self._quick, self._far = root, view, quick, far
        self.problems: list[FormatError] = []
        self.numbered = not view.meta.deletes
        """Nothing was deleted, so a frame has the number of its record."""

    def run(self, progress: Progress) -> None:
        length = self.view.meta.length
        progress(0, length)
        for begin in range(0, length, _ROWS):
            rows = np.arange(begin, min(begin + _ROWS, length), dtype=np.int64)
            for name in self.view.meta.fields:
                try:
                    (places,) = self.view.entries(rows, [name])
                except FormatError as error:
                    self.problems.append(error)
                    continue
                if name in self.view.meta.columns:
                    continue
                found = self._frames(name, rows, places) + self._entries(name, rows, places)
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
        meta, control = self.view.meta, self.view.control
        if Meta.read(self._root).generation != meta.generation:
            raise BusyError(f"{self._root} was rebalanced meanwhile")
        return bool(len(control)) and read_control(control, self._root).commit != meta.commit

    def _frames(self, name: str, rows: Rows, places: Entries) -> list[FormatError]:
        if self._quick:
            return []
        room = max(_MAX_PROBLEMS - len(self.problems), 0)
        if self._far is not None:
            return self._far.problems(self.view, name, rows, places, room, self.numbered)
        return self.view.problems(name, rows, places, room, numbered=self.numbered)

    def _entries(self, name: str, rows: Rows, places: Entries) -> list[FormatError]:
        """Two records cannot be in one place, nor any outside its chunk."""
        there = places[places["offset"] > 0]
        found, counts = np.unique(there[["chunk", "offset"]], return_counts=True)
        shared = f"{name}: several of the records {rows[0]} to {rows[-1]} are in one place"
        problems = [self._problem(shared, place) for place in found[counts > 1]]
        for chunk in np.unique(there["chunk"]).tolist() if self._quick else ():
            path = self._root / chunk_name(chunk)
            size = 0  # a rebalance may take it away at any moment
            with suppress(FileNotFoundError):
                size = path.stat().st_size
            of = there[there["chunk"] == chunk]
            outside = of[of["length"] > size - np.minimum(of["offset"], size)]
            behind = f"{name}: a payload behind the end of its chunk"
            problems += [self._problem(behind, place) for place in outside]
        return problems

    def _problem(self, message: str, place: Any) -> FormatError:
        path = os.fspath(self._root / chunk_name(place["chunk"]))
        return FormatError(message, path=path, offset=int(place["offset"]))

"""Everything in a store checked against everything else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import BusyError, ChecksumError, FormatError
from stepwell.stores.records.layout import ENTRY
from stepwell.stores.records.view import View

__all__ = ["find_problems"]

_ROWS = 1 << 14
_MOST = 100


def find_problems(
    root: Path, view: View, on_progress: Callable[[int, int], None] | None
) -> list[Any]:
    """What is wrong, at most a hundred of it: errors, not raised."""
    problems: list[Exception] = []
    records, length = view.records, view.length
    # Deleting moves records, which keep their old numbers.
    numbered = view.meta.deletes == 0 and view.commit == view.meta.commit
    for begin in range(0, length, _ROWS):
        rows = np.arange(begin, min(begin + _ROWS, length), dtype=np.int64)
        for number, name in enumerate(view.meta.fields):
            try:
                places = records.places(rows, [number])
            except (FormatError, BusyError) as error:
                problems.append(error)
                continue
            room = max(_MOST - len(problems), 0)
            for message, path, offset, is_sum in records.find_problems(
                number, rows, places, room, numbered
            ):
                kind = ChecksumError if is_sum else FormatError
                problems.append(kind(message, path=path, offset=offset))
            problems += _shared_places(name, rows, places.view(ENTRY), root)
        if len(problems) >= _MOST:
            return problems[:_MOST]
        if on_progress is not None:
            on_progress(begin + len(rows), length)
    return problems


def _shared_places(name: str, rows: Any, places: Any, root: Path) -> list[Exception]:
    """Two records cannot be in one place."""
    there = places[places["offset"] > 0]
    found, counts = np.unique(there[["chunk", "offset"]], return_counts=True)
    return [
        FormatError(f"{name}: several of the records {rows[0]} to {rows[-1]} are in one place",
                    path=str(root / "chunk" / f"{place['chunk']}.zr"), offset=int(place["offset"]))
        for place in found[counts > 1]
    ]  # fmt: skip

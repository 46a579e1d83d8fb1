"""Runs that a step dataset has already: what an append is to notice."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.formats.runs import RunList
from stepwell.source import Batch, Source
from stepwell.stores import StepReader

_SAME = ("source", "start_time", "final_board")
"""Columns by which a run is known again, together with its length."""


def refuse_repeats(path: Path | str, source: Source, runs: RunList) -> None:
    """Raise `FileExistsError` for runs that the dataset has already.

    They are known by their columns. A dataset that has not all of them, or nothing in them, as one
    of another program, is compared by rows: of `source`, under the names that it has there.
    """
    if not set(_SAME) <= {*runs.columns}:
        return
    with StepReader.open(path, memory="map") as there:
        names = [name for name in _SAME if name in there.runs.columns]
        places: dict[tuple[Any, ...], list[int]] = {}
        for place, run in enumerate(
            there.runs._select([*names, "num_steps"], range(len(there.runs)))
        ):
            places.setdefault(run, []).append(place)
        gaps = {tuple(value is None for value in run) for run in places}
        repeats = []
        for number, values in enumerate(runs._select(_SAME, range(len(runs)))):
            steps = int(runs.counts[number])
            mine = [value for name, value in zip(_SAME, values, strict=True) if name in names]
            for gap in gaps:
                known = zip((*mine, steps), gap, strict=True)
                found = places.get(tuple(None if gone else value for value, gone in known), [])
                if any(gap) or len(names) < len(_SAME):
                    found = _with_rows(there, found, source, int(runs.starts[number]), steps)
                repeats += [(number, place) for place in found[:1]]
        if repeats:
            number, place = repeats[0]
            raise FileExistsError(
                f"{path}: {len({number for number, _ in repeats})} of {len(runs)} runs are there "
                f"already, the first is {runs[number]['source']}, which is run "
                f"{there.runs[place]['id']}; again=True (--again) adds them too"
            )


def _with_rows(
    there: StepReader, places: list[int], source: Source, start: int, steps: int
) -> list[int]:
    """Of some runs of a dataset, all with the same number of steps, those with these rows."""
    if not places or not steps:
        return []
    last = start + steps - 1
    starts = there.runs.starts[places]
    alike = _alike(there.take(starts + steps - 1), source.take([last]))  # which leaves few
    rows = np.arange(steps)
    return [
        places[i]
        for i in np.flatnonzero(alike)
        if _alike(there.take(starts[i] + rows), source.take(start + rows)).all()
    ]


def _alike(theirs: Batch, ours: Batch) -> NDArray[np.bool_]:
    """Which rows have the same bytes in every field of ours, NaN included."""
    same: NDArray[np.bool_] = np.ones(1, bool)
    for name, values in ours.items():
        pair = theirs[name], np.ascontiguousarray(values, theirs[name].dtype)
        mine, other = (each.view(np.uint8).reshape(len(each), -1) for each in pair)
        same = same & (mine == other).all(axis=1)
    return same

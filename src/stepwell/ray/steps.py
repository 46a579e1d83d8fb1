"""A step dataset, whose rows tasks write straight to their places in its files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell.batches import count_of, in_order
from stepwell.formats.into_steps import Plan
from stepwell.ray.finished import Facts
from stepwell.ray.origin import Origin, Rows
from stepwell.ray.work import Piece, Work, piece_bytes
from stepwell.stores.steps import assembly
from stepwell.stores.steps.layout import FILLED


@dataclass(frozen=True)
class _Place:
    """Where the rows of a piece go, and the runs that they are of."""

    root: Path
    dtype: np.dtype[Any]
    names: dict[str, str]
    shard_rows: int
    first: int
    """Row."""
    first_run: int
    starts: NDArray[np.int64]
    """Of its runs, in the whole dataset."""


def build(work: Work, origin: Origin) -> int:
    """Make the dataset; return how many runs it has."""
    rows, options = origin.rows, work.request.options
    plan = Plan.of(rows, options.get("part_bytes"))
    dtype, counts = plan.dtype, plan.runs.counts
    assembly.check_filled(dtype, counts)
    known = [plan.runs[number] for number in range(len(counts))]
    given = [{name: run[name] for name in plan.columns} for run in known]
    runs = assembly.runs_of(plan.columns, counts, given)
    if not assembly.has_files(work.made, dtype, len(rows), plan.shard_rows):
        work.finished.forget("rows")
        assembly.make_files(work.made, dtype, len(rows), plan.shard_rows)
    size, starts, pieces = piece_bytes(rows.nbytes), plan.runs.starts, []
    for part in assembly.cut(len(rows), dtype.itemsize, plan.shard_rows, size):
        first = int(np.searchsorted(starts, part.start, "right")) - 1
        last = int(np.searchsorted(starts, part.stop, "left"))
        place = _Place(
            *(work.made, dtype, plan.names, plan.shard_rows),
            *(part.start, first, starts[first:last]),
        )
        pieces.append(Piece(part, (place, origin.of(part))))
    checksums = work.do("rows", _written, pieces)
    assembly.make_dataset(work.made, dtype, plan.shard_rows, plan.columns, runs, checksums)
    return len(counts)


def _written(place: _Place, rows: Rows) -> Facts:
    """Write the rows of a piece."""
    row, names = place.first, place.names
    part = assembly.PartRows(place.root, place.dtype, place.shard_rows, row)
    try:
        for batch in in_order(rows.open().columns(list(names))):
            made = np.empty(count_of(batch), place.dtype)
            for name, values in batch.items():
                made[names[name]] = values
            numbers = np.arange(row, row + len(made))
            run = np.searchsorted(place.starts, numbers, "right") - 1
            filled = run + place.first_run, numbers - place.starts[run]
            for name, values in zip(FILLED, filled, strict=True):
                if name in (place.dtype.names or ()):
                    made[name] = values
            part.write(made)
            row += len(made)
        return part.finish()
    finally:
        part.close()

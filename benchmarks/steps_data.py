"""The step datasets that are measured: made-up games of a thousand steps each."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import stepwell as sw
from benchmarks.rows import CHUNK_ROWS, FOLDER, ROW, RUN_STEPS, steps_of

BEST = 100_000
"""Scores are spread evenly below this."""


@contextmanager
def steps_dataset(rows: int, *, keep: bool) -> Iterator[Path]:
    """A dataset of so many rows: found there from an earlier run, or written."""
    path = FOLDER / f"dataset-{rows}"
    if not (path / "metadata.db").exists():
        shutil.rmtree(path, ignore_errors=True)
        write_dataset(path, rows)
    try:
        yield path
    finally:
        if not keep:
            shutil.rmtree(path, ignore_errors=True)


def write_dataset(path: Path, rows: int) -> None:
    """Append runs of a thousand steps until there are `rows` of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {"max_score": sw.stores.RunColumn(int, indexed=True)}
    with sw.StepWriter(path, ROW, columns) as writer:
        append_rows(writer, 0, rows)


def append_rows(writer: sw.StepWriter, begin: int, end: int) -> None:
    """Rows numbered from `begin` on, a run for every thousand."""
    rng = np.random.default_rng(begin)
    for chunk in range(begin, end, CHUNK_ROWS - CHUNK_ROWS % RUN_STEPS):
        last = min(end, chunk + CHUNK_ROWS - CHUNK_ROWS % RUN_STEPS)
        steps = steps_of(rng, chunk, last)
        for at in range(0, len(steps), RUN_STEPS):
            writer.append(steps[at : at + RUN_STEPS], max_score=int(rng.integers(BEST)))

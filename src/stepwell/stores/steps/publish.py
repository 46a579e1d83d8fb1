"""Step datasets that appear when they are complete."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.files.atomic import publish_tree, temporary_name
from stepwell.stores.steps.database import RunColumn
from stepwell.stores.steps.writer import StepWriter


@contextmanager
def new_dataset(
    out: str | os.PathLike[str],
    dtype: np.dtype[Any],
    columns: Mapping[str, RunColumn],
    shard_bytes: int | None,
) -> Iterator[StepWriter]:
    """A writer of a dataset that appears when the block ends well, whole, or not at all."""
    target = Path(out)
    if target.exists():
        raise FileExistsError(f"{target} exists already; expected a path for a new dataset")
    if shard_bytes is not None and shard_bytes < dtype.itemsize:
        raise ValueError(f"shard_bytes must be at least {dtype.itemsize}, got {shard_bytes}")
    beside = temporary_name(target)
    shard_rows = (shard_bytes or 0) // dtype.itemsize
    with (
        publish_tree(beside, target),
        StepWriter(beside, dtype, columns, shard_rows=shard_rows) as writer,
    ):
        yield writer

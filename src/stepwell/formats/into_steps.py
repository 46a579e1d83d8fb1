"""Any source of fixed shapes into a step dataset, run by run."""

import os
import re
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell.batches import count_of, in_order
from stepwell.errors import SchemaError
from stepwell.files.remote import is_url
from stepwell.formats.repeats import refuse_repeats
from stepwell.formats.runs import OWN_FIELDS, RunList, find_runs
from stepwell.formats.streams import Progress, only_fixed
from stepwell.source import Source
from stepwell.stores import RunColumn, StepReader, StepWriter
from stepwell.writer import Mode

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_TUPLE = re.compile(r"/(?:\((\d+)\)(?=/|$))?")
_COMMIT_S = 2.0
_PART_BYTES = 1 << 30


class Plan(NamedTuple):
    """A step dataset that is to be made."""

    dtype: np.dtype[Any]
    names: dict[str, str]
    """The fields that are written, and what they are called in the dataset."""
    runs: RunList
    columns: dict[str, RunColumn]
    shard_rows: int

    @classmethod
    def of(cls, source: Source, part_bytes: int | None) -> "Plan":
        """Raises `SchemaError` for what a step dataset cannot have."""
        only_fixed(source, "a step dataset")
        filled = {
            n for n in OWN_FIELDS if n in source.schema and source.schema[n].dtype.kind in "iu"
        }
        if len(filled) < len(OWN_FIELDS) and not isinstance(source, StepReader):
            filled = set()  # one alone is something else, unless a step dataset has it
        names = _names(source, filled)
        if not len(source):
            raise SchemaError("expected at least one row, got none")
        dtype = np.dtype(
            [
                (names.get(name, name), field.dtype.newbyteorder("="), field.shape)
                for name, field in source.schema.items()
                if name in names or name in filled  # which the writer fills in
            ]
        )
        if part_bytes is not None and part_bytes < dtype.itemsize:
            raise ValueError(f"part_bytes: expected at least {dtype.itemsize}, got {part_bytes}")
        runs = find_runs(source)
        columns = {
            name: runs.types.get(name) or _column(name, [run[k] for run in runs._rows])
            for k, name in enumerate(runs.columns)
        }
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if part_bytes is None and len(source) * dtype.itemsize > memory // 2:
            part_bytes = _PART_BYTES
        return cls(dtype, names, runs, columns, (part_bytes or 0) // dtype.itemsize)


def fill(
    source: Source,
    path: Path | str,
    *,
    progress: Progress,
    append: bool = False,
    again: bool = False,
    part_bytes: int | None = None,
) -> int:
    """Append the runs that are not in the dataset yet; return how many runs the source has.

    With `append` all runs are added to those that are there, in one commit; one that is there
    already raises `FileExistsError`, unless `again` is True. In a bucket it is one commit without
    `append`, too, of a new dataset. Rows are spread over files of `part_bytes`, by default only
    when they would not fit well into this machine's memory.
    """
    plan = Plan.of(source, part_bytes)
    names, dtype, runs, columns = plan.names, plan.dtype, plan.runs, plan.columns
    total = len(source)
    first = 0
    remote = is_url(path)
    shard_rows = plan.shard_rows or (None if remote else 0)
    if append if remote else StepReader.recognizes(Path(path)):
        with StepReader.open(path, memory="map") as there:
            first = 0 if append else len(there.runs)
            for name in runs.needed - {*there.runs.columns}:
                raise SchemaError(
                    f"{path}: expected the run column {name}, which distinguishes these runs from "
                    "others, got none; StepWriter.add_column adds it"
                )
            missing = [name for name in columns if name not in there.runs.columns]
        if missing:
            left = f"left out: {', '.join(missing)} (no such run column; add_column adds one)"
            warnings.warn(left, stacklevel=2)
            columns = {name: each for name, each in columns.items() if name not in missing}
        shard_rows = None
    mode: Mode = "x" if remote and not append else "a"
    with StepWriter(path, dtype, columns, mode=mode, shard_rows=shard_rows) as writer:
        if append and not again:
            refuse_repeats(path, source.columns({names[n]: n for n in names}), runs)
        done = int(runs.counts[:first].sum())
        progress(done, total)
        chosen = source.columns(list(names))
        last = time.monotonic()
        for number, rows in _by_run(chosen, dtype, names, runs, first):
            try:
                known = runs[number]
                writer.append(rows, **{name: known[name] for name in columns})
            except SchemaError as error:
                raise SchemaError(f"run {number}: {error}") from None
            done += len(rows)
            if not append and not remote and time.monotonic() - last >= _COMMIT_S:
                writer.commit()
                last = time.monotonic()
            progress(done, total)
    return len(runs)


def _names(source: Source, filled: set[str]) -> dict[str, str]:
    """The fields that are written, and what they are called in a step dataset."""
    own = [name for name in OWN_FIELDS if name in source.schema]
    if len(own) == 1 and not filled:
        warnings.warn(f"left out: {own[0]} (a step dataset has its own)", stacklevel=2)
    names = {n: _TUPLE.sub(r".\1", n) for n in source.schema if n not in OWN_FIELDS}
    for name, made in names.items():
        if not _NAME.fullmatch(made):
            raise SchemaError(f"{made!r} cannot name a field: letters, digits and _ . - can")
        if source.schema[name].dtype.kind not in "biufc":
            raise SchemaError(f"{name}: expected numbers, got {source.schema[name]}")
    if len(set(names.values())) < len(names):
        raise SchemaError(f"expected different names, got {list(names)}, where / becomes .")
    if not names:
        raise SchemaError("expected fields other than run_id and step_index, got none")
    return names


def _by_run(
    source: Source, dtype: np.dtype[Any], names: dict[str, str], runs: RunList, first: int
) -> Iterator[tuple[int, NDArray[Any]]]:
    """The rows of each run from the given one on. Memory is a batch, or the longest run."""
    counts, number = runs.counts.tolist(), first
    held: list[NDArray[Any]] = []
    missing = counts[number] if number < len(counts) else 0
    for batch in in_order(source, sum(counts[:first])):
        rows = np.empty(count_of(batch), dtype)
        for name, values in batch.items():
            rows[names[name]] = values
        at = 0
        while number < len(counts) and len(rows) - at >= missing:
            run = rows[at : at + missing]
            yield number, np.concatenate([*held, run]) if held else run
            at, held, number = at + missing, [], number + 1
            missing = counts[number] if number < len(counts) else 0
        if at < len(rows):
            held.append(rows[at:])
            missing -= len(rows) - at


def _column(name: str, values: list[Any]) -> RunColumn:
    """The kind of run column that holds these values."""
    kinds = {type(v.item() if isinstance(v, np.generic) else v) for v in values if v is not None}
    if not kinds:
        return RunColumn(str, optional=True)
    if kinds <= {int, bool}:
        return RunColumn(int, optional=True)
    if kinds <= {int, bool, float}:
        return RunColumn(float, optional=True)
    if kinds in ({str}, {bytes}):
        return RunColumn(kinds.pop(), optional=True)
    found = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise SchemaError(f"{name}: expected numbers, texts or bytes, got {found}")

"""`stepwell.ray.write`: a Ray Data dataset as a store. Tasks write their blocks to files beside the
target, which are then converted in pieces: no row goes through one process alone."""

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray.data
from ray.data import Datasink
from ray.data.block import Block, BlockAccessor
from ray.exceptions import RayTaskError

from stepwell.arrow import fields_of
from stepwell.conversion import ConvertReport, check_target
from stepwell.errors import SchemaError
from stepwell.exchange import as_source
from stepwell.files.atomic import make_folder, sync_path
from stepwell.kinds import target_kind
from stepwell.ray.building import check_built, convert
from stepwell.ray.cluster import cause_of
from stepwell.store import Progress

_NAME = re.compile(r"block-\d{6,}-\d{6}\.(parquet|\d+)")


class StoreDatasink(Datasink[int]):
    """Writes blocks to files whose names have their order."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get_name(self) -> str:
        return "stepwell"

    def write(self, blocks: Iterable[Block], ctx: Any) -> int:
        """Write the blocks of a task; how many rows they have."""
        count = 0
        for number, block in enumerate(blocks):
            table = _plain(block)
            if not table.num_rows:
                continue
            path = self._folder / f"block-{ctx.task_idx:06}-{number:06}.parquet"
            beside = path.with_suffix(f".{os.getpid()}")
            pq.write_table(table, beside)
            sync_path(beside)
            beside.rename(path)  # a task that is run again replaces what it wrote
            count += table.num_rows
        return count


def write(
    dataset: "ray.data.Dataset",
    path: str | os.PathLike[str],
    *,
    to: str | None = None,
    workers: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> ConvertReport:
    """Make a step dataset, shards or a record store of a Ray Data dataset, its rows in their order.

    Tasks write blocks to `<path>.blocks`, on a disk that all of them share; `stepwell.ray.convert`
    makes the target of these files, with the same `options`, and the folder goes. Runs are found by
    `run_id` and `step_index`, or by flags, as `convert` finds them. Raises `ValueError` for a
    dataset without rows, and `SchemaError` for columns that no field can be: objects, nulls.
    """
    target = Path(os.path.abspath(path))
    kind = target_kind("", "parquet", str(target), to, "x")
    check_built(kind)
    check_target(target, kind, force=force)
    folder = target.with_name(f"{target.name}.blocks")
    _empty(folder)
    make_folder(folder)
    order = dataset.context.execution_options
    before, order.preserve_order = order.preserve_order, True
    try:
        dataset.write_datasink(StoreDatasink(folder), concurrency=workers)
        if not any(folder.iterdir()):
            raise ValueError("dataset: expected rows, got none")
        made = convert(
            folder, target, to=kind, workers=workers, force=force, progress=progress, **options
        )
        return replace(made, source_kind="ray", source_bytes=None)
    except RayTaskError as error:
        raise cause_of(error) from None
    finally:
        order.preserve_order = before
        _empty(folder)


def _empty(folder: Path) -> None:
    """Remove a folder of blocks; what else is there stays, and is an error."""
    if not folder.exists():
        return
    for path in folder.iterdir():
        if _NAME.fullmatch(path.name):
            path.unlink()
    try:
        folder.rmdir()
    except OSError:
        raise FileExistsError(f"{folder}: expected blocks of a dataset, got other files") from None


def _plain(block: Block) -> pa.Table:
    """A block as a table of columns that are fields."""
    accessor: Any = BlockAccessor.for_block(block)
    table: pa.Table = accessor.to_arrow()
    for place, column in enumerate(table.schema):
        if isinstance(column.type, pa.BaseExtensionType) and not isinstance(
            column.type, pa.FixedShapeTensorType
        ):  # Ray's own, of arrays
            values: Any = accessor.to_numpy(column.name)
            if values.dtype.hasobject:
                raise SchemaError(
                    f"{column.name!r}: expected arrays of one shape, got {column.type}"
                )
            plain = as_source({column.name: values}).to_arrow()
            table = table.set_column(place, plain.schema.field(0), plain.column(0))
    fields_of(table.schema)  # raises for what no field can be
    return table

"""The stores, and `open`, which tells from a path which one it is."""

import os
from pathlib import Path
from typing import Any

from stepwell.errors import FormatError
from stepwell.files.remote import is_url
from stepwell.source import Source
from stepwell.stores.arrayrecord import ArrayRecordSource, convert_to_arrayrecord
from stepwell.stores.arrays import ArraySource
from stepwell.stores.pack import PackReader, PackReport, PackStats, PackWriter, pack_runs
from stepwell.stores.records import RecordColumn, RecordField, RecordStore, SalvageReport
from stepwell.stores.replay.reader import ReplayReader
from stepwell.stores.shards import RowBatch, RowState, Shard, ShardReader, ShardWriter, Subsample
from stepwell.stores.steps import RunColumn, RunTable, StepReader, StepWriter

__all__ = [
    "ArrayRecordSource",
    "ArraySource",
    "PackReader",
    "PackReport",
    "PackStats",
    "PackWriter",
    "RecordColumn",
    "RecordField",
    "RecordStore",
    "ReplayReader",
    "RowBatch",
    "RowState",
    "RunColumn",
    "RunTable",
    "SalvageReport",
    "Shard",
    "ShardReader",
    "ShardWriter",
    "StepReader",
    "StepWriter",
    "Subsample",
    "convert_to_arrayrecord",
    "open",
    "pack_runs",
]


def open(path: str | os.PathLike[str], **options: Any) -> Source:
    """Open whatever is at `path`; `options` go to the store's class.

    Raises `FileNotFoundError`, or `FormatError` when nothing here reads such a path.
    """
    if is_url(path):
        return ShardReader.open(path, **options)
    where = Path(path)
    where.stat()
    if where.is_file() and where.suffix == ".npy":
        return ArraySource(where, **options)
    if where.is_file() and where.suffix == ".a2pack":
        return PackReader(where, **options)
    if where.is_dir() and (where / "metadata.db").is_file():
        return StepReader(where, **options)
    if where.is_dir() and (where / "meta.json").is_file():
        return RecordStore(where, **options)
    if where.is_dir() and any(where.glob("*.array_record")):
        return ArrayRecordSource(where, **options)
    if ReplayReader.recognizes(where):
        return ReplayReader(where, **options)
    if where.suffix == ".shard" or (where.is_dir() and any(where.glob("*.shard"))):
        return ShardReader.open(where, **options)
    raise FormatError(
        "expected a .npy or .a2pack file, a step dataset, a record store, a replay store or a "
        "directory of .shard or .array_record files",
        path=str(where),
    )

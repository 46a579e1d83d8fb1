"""Training records at memory speed.

a store    keeps rows             StepReader, PackReader, RecordStore, ArraySource, …, open
a source   answers take(rows)     Source and its views
a sampler  decides which rows     Shuffle, Block, Sequential, Iid, Weighted
a loader   decides when           Loader, stepwell.torch.Loader, stepwell.jax.Loader
"""

from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from stepwell.conversion import ConvertReport, convert
from stepwell.errors import (
    BusyError,
    ChecksumError,
    FetchError,
    FormatError,
    SchemaError,
    StateError,
    StepwellError,
    VersionError,
)
from stepwell.loader import Loader
from stepwell.run_files import MigrateReport, migrate_runs
from stepwell.runs import Run, RunMeta
from stepwell.sampler import Block, Iid, Sampler, Sequential, Shuffle, Weighted
from stepwell.source import Batch, Field, Ragged, Source
from stepwell.stores import (
    ArrayRecordSource,
    ArraySource,
    PackReader,
    PackReport,
    PackStats,
    PackWriter,
    RecordColumn,
    RecordField,
    RecordStore,
    RowBatch,
    RowState,
    RunColumn,
    RunTable,
    SalvageReport,
    Shard,
    ShardReader,
    ShardWriter,
    StepReader,
    StepWriter,
    Subsample,
    convert_to_arrayrecord,
    open,
    pack_runs,
)

__all__ = [
    "ArrayRecordSource",
    "ArraySource",
    "Batch",
    "Block",
    "BusyError",
    "ChecksumError",
    "ConvertReport",
    "FetchError",
    "Field",
    "FormatError",
    "Iid",
    "Loader",
    "MigrateReport",
    "PackReader",
    "PackReport",
    "PackStats",
    "PackWriter",
    "Ragged",
    "RecordColumn",
    "RecordField",
    "RecordStore",
    "RowBatch",
    "RowState",
    "Run",
    "RunColumn",
    "RunMeta",
    "RunTable",
    "SalvageReport",
    "Sampler",
    "SchemaError",
    "Sequential",
    "Shard",
    "ShardReader",
    "ShardWriter",
    "Shuffle",
    "Source",
    "StateError",
    "StepReader",
    "StepWriter",
    "StepwellError",
    "Subsample",
    "VersionError",
    "Weighted",
    "convert",
    "convert_to_arrayrecord",
    "migrate_runs",
    "open",
    "pack_runs",
]

__version__ = version("stepwell")


def __getattr__(name: str) -> ModuleType:
    # `stepwell.torch` and the others exist without an import, and cost nothing until used.
    if name in ("torch", "jax", "replay", "game2048", "formats"):
        return import_module(f"stepwell.{name}")
    raise AttributeError(f"module 'stepwell' has no attribute {name!r}")

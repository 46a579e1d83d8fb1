"""Training records at memory speed.

a store    keeps rows             StepReader, PackReader, RecordReader, ShardReader, ReplayReader
a writer   changes a store        StepWriter, PackWriter, RecordWriter, ShardWriter, ReplayWriter
a source   answers take(rows)     Source and its views
a sampler  decides which rows     Shuffle, Block, Sequential, Iid, Weighted
a loader   decides when           Loader, stepwell.torch.Loader, stepwell.jax.Loader
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from stepwell.opening import open
from stepwell.sampler import Block, Iid, Sampler, Sequential, Shuffle, Weighted
from stepwell.source import Batch, Field, Ragged, Source
from stepwell.store import Store
from stepwell.stores import (
    ArrayRecordSource,
    ArraySource,
    PackReader,
    PackWriter,
    RecordReader,
    RecordWriter,
    ReplayReader,
    RowState,
    RunColumn,
    ShardReader,
    ShardWriter,
    StepReader,
    StepWriter,
)
from stepwell.stores.pack import PayloadType, set_payload_types
from stepwell.writer import Writer

if TYPE_CHECKING:
    from stepwell.conversion import ConvertReport, convert
    from stepwell.stores.replay.writer import ReplayWriter

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
    "PackReader",
    "PackWriter",
    "Ragged",
    "RecordReader",
    "RecordWriter",
    "ReplayReader",
    "ReplayWriter",
    "RowState",
    "RunColumn",
    "Sampler",
    "SchemaError",
    "Sequential",
    "ShardReader",
    "ShardWriter",
    "Shuffle",
    "Source",
    "StateError",
    "StepReader",
    "StepWriter",
    "StepwellError",
    "Store",
    "VersionError",
    "Weighted",
    "Writer",
    "convert",
    "open",
]

__version__ = "0.2.0"  # the build reads it here: to ask the installed package takes longer


def _payload_types() -> tuple[PayloadType, ...]:
    from stepwell.game2048.payload import RunPayloads

    return (RunPayloads(),)


set_payload_types(_payload_types)


def __getattr__(name: str) -> Any:
    # `stepwell.torch` and the others exist without an import, and cost nothing until used.
    if name in ("convert", "ConvertReport"):
        return getattr(import_module("stepwell.conversion"), name)
    if name == "ReplayWriter":  # which loads HDF5
        return import_module("stepwell.replay").ReplayWriter
    if name in ("torch", "jax", "replay", "telemetry", "game2048", "formats"):
        return import_module(f"stepwell.{name}")
    raise AttributeError(f"module 'stepwell' has no attribute {name!r}")

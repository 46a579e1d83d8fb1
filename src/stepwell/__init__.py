"""Training records at memory speed.

a store    keeps rows             StepReader, PackReader, RecordReader, ShardReader, ReplayReader
a writer   changes a store        StepWriter, PackWriter, RecordWriter, ShardWriter, ReplayWriter
a source   answers take(rows)     Source and its views
a sampler  decides which rows     Shuffle, Block, Sequential, Iid, Weighted
a loader   decides when           Loader, stepwell.torch.Loader, stepwell.jax.Loader

`open` opens whatever is at a path, `convert` goes from any store or format to any other. More is in
`stepwell.replay` (recording), `stepwell.game2048`, `stepwell.formats`, `stepwell.stores` and
`stepwell.telemetry`; docs/names.md has an example of every name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepwell.errors import (
    BusyError,
    ChecksumError,
    FetchError,
    FormatError,
    KindError,
    SchemaError,
    StateError,
    StepwellError,
    VersionError,
)
from stepwell.exchange import as_source
from stepwell.loader import Loader
from stepwell.opening import open
from stepwell.sampler import Block, Iid, Sampler, Sequential, Shuffle, Weighted
from stepwell.source import Batch, Field, Ragged, Source
from stepwell.store import Store
from stepwell.stores import (
    ArraySource,
    PackReader,
    PackWriter,
    RecordReader,
    RecordWriter,
    ReplayReader,
    ShardReader,
    ShardWriter,
    StepReader,
    StepWriter,
)
from stepwell.stores.pack import PayloadType, set_payload_types
from stepwell.writer import Writer

if TYPE_CHECKING:  # they exist without an import: see __getattr__
    from stepwell import (
        formats as formats,
        game2048 as game2048,
        jax as jax,
        replay as replay,
        stores as stores,
        telemetry as telemetry,
        torch as torch,
    )
    from stepwell.conversion import convert
    from stepwell.stores.replay.writer import ReplayWriter

__all__ = [
    "ArraySource",
    "Batch",
    "Block",
    "BusyError",
    "ChecksumError",
    "FetchError",
    "Field",
    "FormatError",
    "Iid",
    "KindError",
    "Loader",
    "PackReader",
    "PackWriter",
    "Ragged",
    "RecordReader",
    "RecordWriter",
    "ReplayReader",
    "ReplayWriter",
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
    "as_source",
    "convert",
    "open",
]

__version__ = "0.2.0"  # the build reads it here: to ask the installed package takes longer


def _payload_types() -> tuple[PayloadType, ...]:
    from stepwell.game2048.payload import RunPayloads

    return (RunPayloads(),)


set_payload_types(_payload_types)


_MODULES = ("formats", "game2048", "jax", "replay", "stores", "telemetry", "torch")

if not TYPE_CHECKING:  # a checker that saw it would take any name for one of ours

    def __getattr__(name: str) -> Any:
        # `stepwell.torch` and the others exist without an import, and cost nothing until used.
        if name == "convert":
            return import_module("stepwell.conversion").convert
        if name == "ReplayWriter":  # which loads HDF5
            return import_module("stepwell.replay").ReplayWriter
        if name in _MODULES:
            return import_module(f"stepwell.{name}")
        raise AttributeError(f"module 'stepwell' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__"])

"""Training records at memory speed.

a store    keeps rows             StepReader, PackReader, RecordReader, ShardReader, ReplayReader
a writer   changes a store        StepWriter, PackWriter, RecordWriter, ShardWriter, ReplayWriter
a source   answers take(rows)     Source and its views
a sampler  decides which rows     Shuffle, Block, Sequential, Iid, Weighted
a mix      is several sources     Mix: each with its share of every batch
a loader   decides when           Loader, stepwell.torch.Loader, stepwell.jax.Loader

`open` opens whatever is at a path, `convert` goes from any store or format to any other, `view`
shows it in a browser. More is in
`stepwell.replay` (recording), `stepwell.game2048`, `stepwell.formats`, `stepwell.stores` and
`stepwell.telemetry`; docs/names.md has an example of every name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # all of them exist without an import: see __getattr__
    from stepwell import (
        formats as formats,
        game2048 as game2048,
        jax as jax,
        ray as ray,
        replay as replay,
        stores as stores,
        telemetry as telemetry,
        torch as torch,
    )
    from stepwell.conversion import convert
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
    from stepwell.mix import Mix
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
    from stepwell.stores.pack import PayloadType
    from stepwell.stores.replay.writer import ReplayWriter
    from stepwell.viewer import view
    from stepwell.writer import Writer

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
    "Mix",
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
    "view",
]

__version__ = "0.2.0"  # the build reads it here: to ask the installed package takes longer

_MODULES = ("formats", "game2048", "jax", "ray", "replay", "stores", "telemetry", "torch")

_HOMES = {
    "conversion": ("convert",),
    "errors": tuple(name for name in __all__ if name.endswith("Error")),
    "exchange": ("as_source",),
    "loader": ("Loader",),
    "mix": ("Mix",),
    "opening": ("open",),
    "replay": ("ReplayWriter",),  # which loads HDF5, where it is there
    "sampler": ("Block", "Iid", "Sampler", "Sequential", "Shuffle", "Weighted"),
    "source": ("Batch", "Field", "Ragged", "Source"),
    "store": ("Store",),
    "viewer": ("view",),
    "writer": ("Writer",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def _payload_types() -> "tuple[PayloadType, ...]":
    """The types that packs know: stores know of no game, so they ask here."""
    from stepwell.game2048.payload import RunPayloads

    return (RunPayloads(),)


if not TYPE_CHECKING:  # a checker that saw it would take any name for one of ours

    def __getattr__(name: str) -> Any:
        # Names cost nothing until they are used: a command answers before NumPy is loaded.
        if name in _MODULES:
            return import_module(f"stepwell.{name}")
        if name not in __all__:
            raise AttributeError(f"module 'stepwell' has no attribute {name!r}")
        home = import_module(f"stepwell.{_HOME.get(name, 'stores')}")
        globals()[name] = found = getattr(home, name)
        return found


def __dir__() -> list[str]:
    # help() and tab completion get every name that is listed: one whose extra is not there would
    # stop them with an ImportError.
    from importlib.util import find_spec

    missing = {name for name in ("jax", "ray", "torch") if find_spec(name) is None}
    return sorted({*__all__, *_MODULES, "__version__"} - missing)

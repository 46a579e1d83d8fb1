"""HDF5 files with arrays of equal length, as D4RL has them; `infos/qpos` is a field too."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from stepwell.batches import rows_of
from stepwell.files.extras import damage_in, library
from stepwell.formats.runs import equally_long
from stepwell.formats.streams import Stream
from stepwell.source import Batch, Field

_DAMAGE = (OSError, ValueError, RuntimeError, KeyError)


class Hdf5Source(Stream):
    """The arrays of a file as fields; see `equally_long`. Needs the extra `hdf5`."""

    kind = "hdf5"
    noun = "an HDF5 file"

    def __init__(self, path: str | os.PathLike[str], fields: Sequence[str] | None = None) -> None:
        where = Path(path)
        h5py = library("h5py", "hdf5")
        where.stat()
        found: dict[str, Any] = {}

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and item.shape is not None:
                found[name] = (item.dtype, item.shape)

        with damage_in(where, *_DAMAGE), h5py.File(where, "r") as file:
            file.visititems(visit)
        lengths = {name: shape[0] if shape else None for name, (_, shape) in found.items()}
        kept, rows = equally_long(where, lengths, fields)
        made = {name: Field(found[name][0], found[name][1][1:]) for name in kept}
        super().__init__(str(where), made, rows)

    def _from(self, first: int, names: Sequence[str]) -> Iterator[Batch]:
        path = Path(str(self.path))
        count = rows_of(sum(self.schema[name].row_bytes for name in names))
        with damage_in(path, *_DAMAGE), library("h5py", "hdf5").File(path, "r") as file:
            for begin in range(first, len(self), count):
                end = min(len(self), begin + count)
                yield {name: file[name][begin:end] for name in names}

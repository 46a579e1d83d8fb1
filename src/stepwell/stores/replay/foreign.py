"""HDF5 files of other programs, by h5py."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from stepwell.errors import FormatError
from stepwell.source import Field, Rows
from stepwell.stores.replay.hdf5 import open_for_reading, row_of, translated
from stepwell.stores.replay.rows import check_rows


class ForeignFile:
    """Rows of the datasets of any HDF5 file. Slower than a file of ours: HDF5 has one lock."""

    def __init__(self, path: Path, run_id: str | None = None) -> None:
        self.path = path
        self._run_id = run_id
        self._lock = threading.RLock()
        open_for_reading(path, run_id).close()

    def close(self) -> None:
        """Nothing stays open between two reads: HDF5 would not see what is written meanwhile."""

    def leaves(self, kind: str) -> list[str]:
        found: list[str] = []

        def note(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                found.append(f"{kind}/{name}")

        with self._opened() as file:
            item = self._get(file, kind)
            if isinstance(item, h5py.Dataset):
                return [kind]
            if isinstance(item, h5py.Group):
                with translated(self.path):
                    item.visititems(note)
        return found

    def field(self, name: str) -> Field:
        with self._opened() as file:
            return row_of(self._dataset(file, name))

    def length(self, name: str) -> int:
        with self._opened() as file:
            return int(self._dataset(file, name).shape[0])

    def there(self, name: str, rows: Rows) -> NDArray[np.bool_]:
        return rows < self.length(name)

    def read(self, name: str, rows: Rows, out: NDArray[Any] | None = None) -> NDArray[Any]:
        with self._opened() as file:
            dataset = self._dataset(file, name)
            check_rows(rows, dataset.shape[0], name, self.path)
            wanted, inverse = np.unique(rows, return_inverse=True)
            with translated(self.path):
                values: NDArray[Any] = dataset[wanted][inverse]
        if out is None:
            return values
        out[...] = values
        return out

    def _dataset(self, file: h5py.File, name: str) -> h5py.Dataset:
        found = self._get(file, name)
        if not isinstance(found, h5py.Dataset) or not found.shape:
            raise KeyError(f"there is no dataset {name!r} - at {self.path}")
        return found

    def _get(self, file: h5py.File, name: str) -> Any:
        """HDF5 can lead to any other file; a reference must not."""
        with translated(self.path):
            item = file.get(name)
        elsewhere = item is not None and item.file.id != file.id
        if isinstance(item, h5py.Dataset):
            elsewhere = elsewhere or item.is_virtual or bool(item.external)
        if elsewhere:
            raise FormatError(f"{name!r} leads to another file", path=str(self.path))
        return item

    @contextmanager
    def _opened(self) -> Iterator[h5py.File]:
        with self._lock, open_for_reading(self.path, self._run_id) as file:
            yield file

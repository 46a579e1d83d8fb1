"""The block before the HDF5 in a run's file: its datasets, and where they are.

HDF5 leaves the first bytes of a file to whoever wants them. Ours are a line with a checksum and a
length, then JSON, then zeros up to the HDF5. A reader that knows where the datasets begin needs
nothing of HDF5 but their chunks.

The last bytes of the block are a mark: how many rows the database had when it was last committed
to. One that has fewer has lost a commit.
"""

import json
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError, VersionError
from stepwell.files.npy import dtype_to_json
from stepwell.source import Field
from stepwell.stores.replay.channels import IN_PLANES, field_from_json

_MAGIC = b"STEPWELL REPLAY "
_LINE_BYTES = 64  # that the first line has at most
_VERSION = 1
_MIN_BASE, _MAX_BASE = 4096, 1 << 24
_MAX_SHARED = 1 << 20  # bytes of a chunk of several rows
_PER_DATASET = 512  # besides its name
_MARK = struct.Struct("<4sIQ")  # sign, CRC32C of the number, number
_MARK_SIGN = b"MARK"
_HDF5 = b"\x89HDF"


@dataclass(frozen=True, slots=True)
class DatasetEntry:
    """A dataset: the address of its object header, its rows, and how they are stored."""

    header: int
    field: Field
    chunk_rows: int
    planes: int = 1  # of the last axis, stored one behind the other

    def to_json(self) -> dict[str, Any]:
        stated = {
            "header": self.header,
            "dtype": dtype_to_json(self.field.dtype),
            "shape": list(self.field.shape),
            "chunk_rows": self.chunk_rows,
            "codec": self.field.compress,
        }
        return stated | ({"planes": self.planes} if self.planes > 1 else {})


@dataclass(frozen=True, slots=True)
class Directory:
    """The datasets of a file by name; addresses count from `base`, where the HDF5 begins."""

    run_id: str
    base: int
    datasets: dict[str, DatasetEntry]
    created_at: str | None = None
    """When the run began, None in files of before: another run may have its name by now."""
    removed: int = 0
    """How often rows of episodes were removed."""

    def to_bytes(self) -> bytes:
        text = json.dumps(
            {
                "run_id": self.run_id,
                "base": self.base,
                "created_at": self.created_at,
                "removed": self.removed,
                "datasets": {name: entry.to_json() for name, entry in self.datasets.items()},
            }
        ).encode()
        crc = _core.crc32c(np.frombuffer(text, np.uint8))
        whole = _MAGIC + f"{_VERSION} {crc:08x} {len(text)}\n".encode() + text
        if len(whole) + _MARK.size > self.base:
            raise ValueError(f"{len(self.datasets)} datasets need more than {self.base} bytes")
        return whole.ljust(self.base, b"\0")

    @classmethod
    def read(cls, file: int, path: Path) -> "Directory":
        """The directory of an open file. Raises `FormatError` when that is not ours."""
        line, _, _ = os.pread(file, _LINE_BYTES, 0).partition(b"\n")
        try:
            if not is_ours(file):
                raise ValueError("expected a file of a replay store")
            version, crc, length = line[len(_MAGIC) :].split(b" ")
            text = os.pread(file, min(int(length), _MAX_BASE), len(line) + 1)
            if int(version) > _VERSION:
                raise VersionError(
                    f"expected version {_VERSION} or below, got {int(version)}", path=str(path)
                )
            expected, found = int(crc, 16), _core.crc32c(np.frombuffer(text, np.uint8))
            if expected != found:
                raise ChecksumError(
                    f"expected a checksum of {expected:08x}, got {found:08x}",
                    path=str(path),
                    offset=0,
                )
            stated = json.loads(text)
            datasets = {name: _entry(entry) for name, entry in stated["datasets"].items()}
            base = int(stated["base"])
            if not _MIN_BASE <= base <= _MAX_BASE or base & (base - 1):
                raise ValueError(f"HDF5 cannot begin at {base}")
            began, removed = stated.get("created_at"), int(stated.get("removed", 0))
            began = None if began is None else str(began)
            return cls(str(stated["run_id"]), base, datasets, began, removed)
        except FormatError:
            raise
        except (
            *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError),
            RecursionError,
        ) as error:
            raise FormatError(f"not a directory of datasets: {error}", path=str(path)) from None


def write_mark(file: int, base: int, rows: int) -> None:
    """Write how many rows, of all datasets together, were committed."""
    os.pwrite(file, _MARK.pack(_MARK_SIGN, _checksum(rows), rows), base - _MARK.size)


def read_mark(file: int, base: int) -> int | None:
    """The rows that were committed when that was marked, None in files without a mark."""
    stored = os.pread(file, _MARK.size, base - _MARK.size)
    if len(stored) < _MARK.size:
        return None
    sign, checksum, rows = _MARK.unpack(stored)
    return rows if (sign, checksum) == (_MARK_SIGN, _checksum(rows)) else None


def find_mark(file: int) -> int | None:
    """The same, of a file whose block was not read."""
    base = _MIN_BASE
    while base <= _MAX_BASE and os.pread(file, 4, base) != _HDF5:
        base *= 2
    return read_mark(file, base)


def _checksum(number: int) -> int:
    return _core.crc32c(np.array([number], "<u8").view(np.uint8))


def is_ours(file: int) -> bool:
    """Whether an open file begins as the files of runs do."""
    return os.pread(file, len(_MAGIC), 0) == _MAGIC


def _entry(stated: Any) -> DatasetEntry:
    field = field_from_json(stated)
    entry = DatasetEntry(
        int(stated["header"]), field, int(stated["chunk_rows"]), int(stated.get("planes", 1))
    )
    whole = entry.chunk_rows == 1 or 1 < entry.chunk_rows * field.row_bytes <= _MAX_SHARED
    apart = (field.dtype.itemsize, entry.chunk_rows) == (1, 1) and field.compress in IN_PLANES
    planes = entry.planes == 1 or (apart and entry.planes == (field.shape or (0,))[-1] > 1)
    if entry.header < 0 or not whole or not planes or field.row_bytes >= 1 << 32:
        raise ValueError(f"expected a possible dataset, got {stated}")
    return entry


def space_for(names: Iterable[str]) -> int:
    """Bytes to leave before the HDF5 for these datasets: a power of two, as HDF5 wants it."""
    size = sum(_PER_DATASET + len(json.dumps(name)) for name in names)
    return min(_MAX_BASE, max(_MIN_BASE, 1 << size.bit_length()))

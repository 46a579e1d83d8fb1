"""A step dataset whose rows several processes write, each its own, straight to their places.

    make_files(root, dtype, rows, shard_rows)             files of their final size
    part = PartRows(root, dtype, shard_rows, first)       in any process and order, also again
    part.write(rows)
    checksums = part.finish()                             on the disk on return
    make_dataset(root, dtype, shard_rows, …, checksums)   which makes it a dataset

The files are those that one `StepWriter` would write of the same rows and runs, byte for byte; the
checksums of the parts are put together, so no row is read again.
"""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.errors import FormatError, SchemaError
from stepwell.files import catalog
from stepwell.files.atomic import make_folder, sync_path, write_all, write_file
from stepwell.files.checked import BLOCK_BYTES, Growing, header_bytes as checksum_header, joined
from stepwell.files.npy import header_bytes
from stepwell.files.regular import open_inside
from stepwell.stores.steps import database
from stepwell.stores.steps.database import RunColumn
from stepwell.stores.steps.layout import CHECKSUMS, DATABASE, FILLED, pieces
from stepwell.stores.steps.manifest import BLOCK_BYTES as MANIFEST_BYTES, Manifest
from stepwell.stores.steps.writer import KEPT_CHECKSUMS, run_values

PartChecksums = Mapping[str, Any]
"""The checksums of a part, as JSON can keep them."""


def cut(rows: int, row_bytes: int, shard_rows: int, part_bytes: int) -> list[range]:
    """Parts of about `part_bytes`, each in one file, where no two share a checksum's block."""
    step = BLOCK_BYTES // math.gcd(row_bytes, BLOCK_BYTES)
    step *= max(part_bytes // (step * row_bytes), 1)
    found = []
    for shard in range(0, rows, shard_rows or rows):
        end = min(shard + (shard_rows or rows), rows)
        found += [range(at, min(at + step, end)) for at in range(shard, end, step)]
    return found


def make_files(root: Path, dtype: np.dtype[Any], rows: int, shard_rows: int) -> None:
    """Make the files of the rows, whose bytes are not there yet."""
    head = len(header_bytes(dtype, 0))
    for piece in pieces(root, rows, shard_rows):
        make_folder(piece.path.parent)
        write_file(piece.path, header_bytes(dtype, piece.rows, head), follow=False)
        os.truncate(piece.path, head + piece.rows * dtype.itemsize)
        sync_path(piece.path)


def has_files(root: Path, dtype: np.dtype[Any], rows: int, shard_rows: int) -> bool:
    """Whether there are such files, of the right size."""
    try:
        for piece in pieces(root, rows, shard_rows):
            with piece.open(dtype, piece.rows) as (_, header):
                if header.shape != (piece.rows,):
                    return False
    except (FileNotFoundError, FormatError):
        return False
    return True


class PartRows:
    """Writes the rows of one part, from row `first` on, and computes their checksums."""

    def __init__(self, root: Path, dtype: np.dtype[Any], shard_rows: int, first: int) -> None:
        number, self._inside = divmod(first, shard_rows) if shard_rows else (0, first)
        (piece,) = pieces(root, first + 1, shard_rows, first)
        assert piece.number == number
        self._path, self._size = piece.path, dtype.itemsize
        self._head = len(header_bytes(dtype, 0))
        self._stream = first * dtype.itemsize
        self._blocks, self._crcs = Growing(), list[list[int]]()
        self._file = open_inside(root, piece.name, os.O_RDWR)

    def write(self, rows: NDArray[Any]) -> None:
        """Put rows behind those that were written."""
        data = rows.view(np.uint8)
        at = self._inside * self._size
        write_all(self._file, data, self._head + at, self._path)
        self._blocks.add(data, at)
        self._inside += len(rows)
        while len(data):
            room = MANIFEST_BYTES - self._stream % MANIFEST_BYTES
            if room == MANIFEST_BYTES or not self._crcs:
                self._crcs.append([0, 0])
            crc, size = self._crcs[-1]
            some, data = data[:room], data[room:]
            self._crcs[-1] = [_core.crc32c(some, crc), size + len(some)]
            self._stream += len(some)

    def finish(self) -> dict[str, Any]:
        """Wait until the rows are on the disk; return their checksums."""
        os.fsync(self._file)
        return {"blocks": self._blocks.rest.hex(), "crcs": self._crcs}

    def close(self) -> None:
        os.close(self._file)


def check_filled(dtype: np.dtype[Any], counts: NDArray[np.int64]) -> None:
    """Raise `SchemaError` when the fields that are filled in are too small for such runs."""
    last = {"run_id": len(counts) - 1, "step_index": int(counts.max(initial=1)) - 1}
    for name in FILLED:
        if name in (dtype.names or ()) and last[name] > np.iinfo(dtype[name]).max:
            limit = np.iinfo(dtype[name]).max
            raise SchemaError(f"expected {name} up to {limit}, got {last[name]}")


def runs_of(
    columns: Mapping[str, RunColumn], counts: NDArray[np.int64], known: Sequence[Mapping[str, Any]]
) -> list[tuple[Any, ...]]:
    """The runs as the database has them. Raises `SchemaError` for values that it cannot have."""
    starts = np.cumsum(counts) - counts
    made = []
    for number, (start, count) in enumerate(zip(starts.tolist(), counts.tolist(), strict=True)):
        try:
            made.append((number, start, count, *run_values(columns, known[number])))
        except SchemaError as error:
            raise SchemaError(f"run {number}: {error}") from None
    return made


def make_dataset(
    root: Path,
    dtype: np.dtype[Any],
    shard_rows: int,
    columns: Mapping[str, RunColumn],
    runs: Sequence[tuple[Any, ...]],
    checksums: Sequence[PartChecksums],
) -> None:
    """Make a dataset of files that have all their rows, with the checksums of parts in order."""
    rows = runs[-1][1] + runs[-1][2]
    blocks, manifest = Growing(), Manifest()
    for part in checksums:
        blocks.rest += bytes.fromhex(part["blocks"])
        for crc, size in part["crcs"]:
            if manifest.covered % MANIFEST_BYTES == 0:
                manifest.blocks.append(0)
            manifest.blocks[-1] = joined(manifest.blocks[-1], crc, size)
            manifest.covered += size
    if manifest.covered != rows * dtype.itemsize:
        raise FormatError(
            f"expected checksums of {rows * dtype.itemsize} bytes, got {manifest.covered}",
            path=str(root),
        )
    write_file(root / CHECKSUMS, checksum_header(), follow=False)
    blocks.store(root, CHECKSUMS, keep=KEPT_CHECKSUMS)
    beside = root / f"{DATABASE}.new"
    for left in root.glob(f"{DATABASE}*"):
        left.unlink()
    database.create(beside, dtype, columns, shard_rows)
    with closing(catalog.connect(beside)) as made:
        meta = database.block_meta(blocks.block_bytes, bytes(blocks.rest))
        database.append(made, beside, list(columns), runs, rows, meta)
    sync_path(beside)
    beside.rename(root / DATABASE)
    manifest.write(root, dtype, rows, len(runs))
    sync_path(root)

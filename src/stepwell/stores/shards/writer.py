"""Shards, written one after another, each whole or not there."""

import os
from contextlib import suppress
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from stepwell import _core
from stepwell.errors import BusyError, FormatError, SchemaError
from stepwell.files.atomic import create_beside, sync_path, temporary_name, write_all, write_file
from stepwell.files.lock import WriterLock
from stepwell.source import is_masked
from stepwell.stores.shards.layout import (
    HEADER_BYTES,
    KINDS,
    MANIFEST,
    SUFFIX,
    Shard,
    header_bytes,
    kind_of,
    manifest_bytes,
    parse_header,
    parse_manifest,
    with_sum,
)

__all__ = ["ShardWriter"]

LOCK = ".writer.lock"
_MOST_SHARDS = 10**6
_PIECE_BYTES = 1 << 22


class ShardWriter:
    """Writes a corpus of activations as shards of about `shard_bytes`.

        with ShardWriter("acts/", width=768) as writer:
            writer.append(rows)                 any floats, (n, width)

    A shard appears under its name when it is full or at the end, whole and on the disk. A writer
    that was killed is continued by opening it again: `rows` says how many are there, and the
    rows to go on with. `dtype` is float32 (if none is given for a new corpus), float16 or
    "bfloat16"; values that it cannot hold are refused.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        width: int | None = None,
        dtype: DTypeLike | str | None = None,
        *,
        shard_bytes: int = 1 << 28,
    ) -> None:
        shard_bytes = index(shard_bytes)
        if shard_bytes < 1:
            raise ValueError(f"shard_bytes: expected at least 1, got {shard_bytes}")
        self._root = Path(path).absolute()
        self._root.mkdir(parents=True, exist_ok=True)
        self._lock = WriterLock(self._root / LOCK)
        self._file = -1
        self._beside = temporary_name(self._root / SUFFIX)
        self._open_rows = self._crc = 0
        self._failed = False
        try:
            self._shards = self._found()
            there = self._shards[0] if self._shards else None
            if width is None and there is None:
                raise ValueError("a new corpus needs a width")
            if width is not None and index(width) < 1:
                raise ValueError(f"width: expected at least 1, got {width}")
            kind = None if dtype is None else kind_of(dtype)
            if there is not None:
                if width is not None and width != there.width:
                    raise SchemaError(f"expected rows of {there.width} values, got {width}")
                if kind is not None and kind != there.kind:
                    raise SchemaError(f"expected rows of {there.kind}, got {kind}")
                kind, width = there.kind, there.width
            kind = kind or KINDS[0]
            assert width is not None
            self._width, self._kind = width, kind
            self._row_bytes = Shard("", 0, width, kind).row_bytes
            self._shard_rows = max(shard_bytes // self._row_bytes, 1)
        except BaseException:
            self._lock.release()
            raise

    @property
    def rows(self) -> int:
        """Rows in whole shards: those that survive a kill."""
        return sum(shard.rows for shard in self._shards)

    @property
    def width(self) -> int:
        return self._width

    def __len__(self) -> int:
        """Rows written, those of the shard that is not whole yet included."""
        return self.rows + (self._open_rows if self._file >= 0 else 0)

    def append(self, rows: ArrayLike) -> None:
        """Add rows. Raises `SchemaError` for another width or values that do not fit."""
        self._check_open()
        data = self._packed(rows)
        at = 0
        while at < len(data):
            if self._file < 0:
                self._begin()
            part = data[at : at + self._shard_rows - self._open_rows]
            self._failed = True  # a part of a row may be there, if this does not go well
            flat = part.reshape(-1)
            at_byte = HEADER_BYTES + self._open_rows * self._row_bytes
            write_all(self._file, flat, at_byte, self._beside)
            self._crc = _core.crc32c(flat, self._crc)
            self._open_rows += len(part)
            self._failed = False
            at += len(part)
            if self._open_rows == self._shard_rows:
                self.flush()

    def flush(self) -> None:
        """Make a whole shard of what there is, which is then safe."""
        self._check_open()
        if self._file < 0:
            return
        if not self._lock.in_place:
            raise BusyError(f"{self._root} was moved or replaced while it was written to")
        self._failed = True
        file, target = self._file, self._root / f"{len(self._shards):06}{SUFFIX}"
        header = header_bytes(self._open_rows, self._width, self._kind)
        write_all(file, np.frombuffer(header, np.uint8), 0, self._beside)
        os.fsync(file)
        self._file = -1
        os.close(file)
        if target.exists():
            raise FileExistsError(f"{target} exists already")
        self._beside.replace(target)
        sync_path(self._root)
        shard = Shard(target.name, self._open_rows, self._width, self._kind, self._crc)
        self._shards.append(shard)
        write_file(self._root / MANIFEST, manifest_bytes(self._shards))
        self._failed = False

    def close(self) -> None:
        """Finish the last shard and let others write."""
        if not self._lock.held:
            return
        try:
            if not self._failed:
                self.flush()
        finally:
            self._drop()
            self._lock.release()

    def abort(self) -> None:
        """Drop the shard that is not whole and let others write."""
        if self._lock.held:
            self._drop()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        self.close() if kind is None else self.abort()

    def __del__(self) -> None:
        if hasattr(self, "_beside"):
            self.abort()

    # Below this line: for this package.

    def _found(self) -> list[Shard]:
        """The whole shards that are there, in order; what a killed writer left is removed."""
        for name in (f"*{SUFFIX}", MANIFEST):
            for left in self._root.glob(f".{name}.*.tmp"):
                left.unlink(missing_ok=True)
        known: dict[str, Shard] = {}
        with suppress(FileNotFoundError):
            path = self._root / MANIFEST
            known = {shard.name: shard for shard in parse_manifest(path.read_bytes(), str(path))}
        found: list[Shard] = []
        manifest = str(self._root / MANIFEST)
        for number in range(_MOST_SHARDS):
            path = self._root / f"{number:06}{SUFFIX}"
            if not path.exists():
                break
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                shard = parse_header(file.read(HEADER_BYTES), path.name, str(path), size)
            found.append(with_sum(shard, known.get(path.name), manifest))
        for name in known.keys() - {shard.name for shard in found}:
            if not (self._root / name).exists():
                raise FormatError(f"expected {name}, which is listed, found none", path=manifest)
        others = {path.name for path in self._root.glob(f"*{SUFFIX}")} - {s.name for s in found}
        if others:
            raise FormatError(
                f"expected shards named 000000{SUFFIX}, 000001{SUFFIX}, …, got {min(others)}",
                path=str(self._root),
            )
        if found and [shard.name for shard in found] != list(known):
            if [shard.name for shard in found[:-1]] == list(known):
                # The last writer was killed between the shard and the list, and knew the sum.
                found[-1] = replace(found[-1], crc32c=_sum_of(self._root / found[-1].name))
            write_file(self._root / MANIFEST, manifest_bytes(found))
        return found

    def _begin(self) -> None:
        if len(self._shards) >= _MOST_SHARDS:
            raise ValueError(f"{_MOST_SHARDS:,} shards, and more would not sort; make larger ones")
        descriptor, self._beside = create_beside(self._root / f"{len(self._shards):06}{SUFFIX}")
        self._file = descriptor
        self._open_rows, self._crc = 0, 0

    def _packed(self, rows: ArrayLike) -> NDArray[np.uint8]:
        """Rows as bytes of the stored kind, (n, bytes of a row)."""
        if is_masked(rows):
            raise TypeError("a masked array would lose its mask; fill it first")
        array = np.asarray(_detached(rows))
        if array.ndim != 2 or array.shape[1] != self._width:
            raise SchemaError(f"expected (n, {self._width}) values, got {array.shape}")
        if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
            raise SchemaError(f"expected floats, got {array.dtype}")
        if self._kind == "bfloat16":
            made: NDArray[Any] = _to_bfloat16(array)
        else:
            with np.errstate(over="ignore"):
                made = np.ascontiguousarray(
                    array, f"<{self._kind[0]}{4 if '32' in self._kind else 2}"
                )
            lost = ~np.isfinite(made) & np.isfinite(array)
            if lost.any():
                raise SchemaError(f"{array[lost][0]!r} does not fit {self._kind}")
        return made.view(np.uint8).reshape(len(made), self._row_bytes)

    def _check_open(self) -> None:
        if not self._lock.held:
            raise ValueError(f"the writer of {self._root} is closed")
        if self._failed:
            raise ValueError(f"a write to {self._root} failed; open it again to go on")

    def _drop(self) -> None:
        file, self._file = self._file, -1
        try:
            if file >= 0:
                os.close(file)
        finally:
            with suppress(OSError):
                self._beside.unlink(missing_ok=True)


def _detached(rows: Any) -> Any:
    """Tensors of torch as NumPy can take them: without a gradient, not bfloat16."""
    if not hasattr(rows, "detach"):
        return rows
    tensor = rows.detach().cpu()
    return tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor


def _sum_of(path: Path) -> int:
    """The CRC32C of everything behind the header."""
    crc = 0
    with path.open("rb") as file:
        file.seek(HEADER_BYTES)
        while len(data := np.fromfile(file, np.uint8, _PIECE_BYTES)):
            crc = _core.crc32c(data, crc)
    return crc


def _to_bfloat16(array: NDArray[Any]) -> NDArray[np.uint16]:
    """The upper halves of float32, rounded to nearest even."""
    if array.dtype.name == "bfloat16":
        return np.ascontiguousarray(array).view(np.uint16)
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(array, np.float32)
    bits = floats.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # What is just below infinity may have been rounded to it.
    lost = ((rounded & np.uint32(0x7FFF)) == np.uint32(0x7F80)) & np.isfinite(array)
    if lost.any():
        raise SchemaError(f"{array[lost][0]!r} does not fit bfloat16")
    return np.where(np.isnan(floats), np.uint32(0x7FC0), rounded).astype(np.uint16)

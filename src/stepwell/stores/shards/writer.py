"""Shards, written one after another, each whole or not there."""

import os
from contextlib import suppress
from dataclasses import replace
from operator import index
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from stepwell import _core
from stepwell.errors import FormatError, SchemaError
from stepwell.files.atomic import (
    create_beside,
    is_temporary,
    new_file,
    sweep,
    sync_path,
    temporary_name,
    write_all,
    write_file,
)
from stepwell.files.checked import (
    Checksums,
    Growing,
    block_count,
    header_bytes as checksum_header,
)
from stepwell.files.remote import BucketOptions, is_remote
from stepwell.fit import changed_by, does_not_fit, fit_into
from stepwell.source import is_masked
from stepwell.stores.shards.layout import (
    CHECKSUMS,
    HEADER_BYTES,
    KINDS,
    LIST,
    SUFFIX,
    Shard,
    header_bytes,
    kind_of,
    list_in,
    listed_in,
    listing,
)
from stepwell.stores.shards.local import LocalShards, shard_names
from stepwell.writer import Mode, Writer, exclusive, local_path

LOCK = ".writer.lock"
_BESIDE = rf".*\{SUFFIX}|{LIST.name}|{CHECKSUMS}"
_MAX_SHARDS = 10**6


class ShardWriter(Writer):
    """Writes a corpus of activations as shards of about `shard_bytes`.

        with ShardWriter("acts/", width=768) as writer:
            writer.append(rows)                 any floats, (n, width)

    A shard appears under its name when it is full and at a commit, whole and on the disk. A writer
    that was killed is continued with `mode="a"`: `rows` is how many are there, and the rows to
    go on with. `dtype` is float32 (if none is given for a new corpus), float16 or "bfloat16";
    floats are rounded to it, and values that it cannot hold are refused.

    To a URL (extra `remote`), with the options of obstore, many writers with `mode="a"` append at a
    time, each shards of its own. Where another writer commits first, shards go behind those of that
    one, and `conflicts` counts it.
    """

    noun = "a folder of shards"

    def __init__(
        self,
        path: str | os.PathLike[str],
        width: int | None = None,
        dtype: DTypeLike | str | None = None,
        *,
        mode: Mode = "x",
        shard_bytes: int = 1 << 28,
        **bucket: Unpack[BucketOptions],
    ) -> None:
        if bucket:
            raise TypeError(f"{', '.join(bucket)}: only for what is in a bucket")
        shard_bytes, kind = checked_options(width, dtype, shard_bytes)
        root = local_path(path, self.noun)
        there = list_in(root) if root.is_dir() else None
        if there is not None and there.is_ordered:
            raise FileExistsError(
                f"expected shards that were written to a path, got a copy of shards that were "
                f"written in a bucket: {root}; `stepwell convert` makes one to append to"
            )
        self._file = -1
        self._beside = temporary_name(root / SUFFIX)
        self._open_rows = self._crc = 0
        self._blocks = Growing()
        self._begin(root, LOCK, mode)
        with self._opening():
            self._shards = self._found()
            first = self._shards[0] if self._shards else None
            self._like = like = shard_like(first, width, kind)
            self._shard_rows = max(shard_bytes // like.row_bytes, 1)
            self._rows = sum(shard.rows for shard in self._shards)

    def __new__(cls, path: Any = "", *args: Any, **options: Any) -> Self:
        if cls is ShardWriter and is_remote(path):
            from stepwell.stores.shards.bucket import BucketShardWriter  # which is a ShardWriter

            return object.__new__(BucketShardWriter)  # type: ignore[return-value]
        return object.__new__(cls)

    _in_one_commit = False
    """In a bucket: full shards wait for the others. At a path each of them counts at once."""
    conflicts = 0
    """How often another writer of a bucket committed first. A path has one writer at a time."""

    @property
    def rows(self) -> int:
        """Rows in whole shards: those that survive a kill."""
        return self._rows

    @property
    def width(self) -> int:
        """Values in a row."""
        return self._like.width

    def __len__(self) -> int:
        """Rows written, those of the shard that is not whole yet included."""
        return self._rows + self._open_rows

    @exclusive
    def append(self, rows: ArrayLike) -> None:
        """Add rows; a shard that is full by then is committed.

        Raises `SchemaError` for another width or values that do not fit. When the disk refuses
        some of the rows, `rollback` drops those behind the last whole shard.
        """
        data = packed(rows, self._like)
        at = 0
        with self._changing():
            while at < len(data):
                if self._file < 0:
                    self._start_shard()
                part = data[at : at + self._shard_rows - self._open_rows]
                flat = part.reshape(-1)
                at_byte = HEADER_BYTES + self._open_rows * self._like.row_bytes
                write_all(self._file, flat, at_byte, self._beside)
                self._crc = _core.crc32c(flat, self._crc)
                self._blocks.add(flat, at_byte - HEADER_BYTES)
                self._open_rows += len(part)
                at += len(part)
                if self._open_rows == self._shard_rows:
                    self._commit()

    @exclusive
    def adopt(self, folder: str | os.PathLike[str]) -> None:
        """Move the shards of another corpus, which `ShardWriter` wrote on the same file system,
        behind those that are here; each is a commit. That corpus is none any more.

        Raises `SchemaError` for rows of another width or kind.
        """
        self._commit()
        other = Path(folder)
        for shard in listed_in(other):
            if (shard.width, shard.kind) != (self._like.width, self._like.kind):
                raise SchemaError(
                    f"expected rows of {self.width} x {self._like.kind}, "
                    f"got {shard.width} x {shard.kind}"
                )
            if shard.first_block is None:
                raise FormatError("expected checksums of blocks, got none", path=str(other))
            known = Checksums(other, CHECKSUMS)
            count = block_count(shard.payload_bytes, known.block_bytes)
            with self._at_risk():
                self._blocks = Growing(
                    known.block_bytes, rest=bytearray(known.entries(shard.first_block, count))
                )
                first = self._store_checksums()
                self._show(
                    other / shard.name,
                    replace(shard, name=self._next_name(), first_block=first),
                )

    @staticmethod
    def write_file(
        path: str | os.PathLike[str], rows: ArrayLike, dtype: DTypeLike | str | None = None
    ) -> None:
        """Write one shard to a file of its own, whole and on the disk, without checksums beside it;
        `encode_shard` makes the same bytes in memory.

        Raises `FileExistsError`, and `SchemaError` as `append` does.
        """
        header, data = _encoded(rows, dtype)
        if os.path.lexists(path):
            raise FileExistsError(f"{os.fspath(path)} exists already")
        with new_file(Path(path)) as file:
            file.write(header)
            file.write(data.reshape(-1).data)

    # Below this line: the methods of `Writer`.

    def _commit(self) -> None:
        """Make a whole shard of what there is."""
        if self._file < 0:
            return
        with self._at_risk():
            name = self._next_name()
            first = self._store_checksums()
            shard = Shard(
                name, self._open_rows, self._like.width, self._like.kind, self._crc, first
            )
            header = header_bytes(shard.rows, shard.width, shard.kind)
            write_all(self._file, np.frombuffer(header, np.uint8), 0, self._beside)
            os.fsync(self._file)
            file, self._file = self._file, -1
            os.close(file)
            self._show(self._beside, shard)
            self._open_rows = 0

    def _rollback(self) -> None:
        """Drop the shard that is not whole."""
        file, self._file, self._open_rows = self._file, -1, 0
        try:
            if file >= 0:
                os.close(file)
        finally:
            with suppress(OSError):
                self._beside.unlink(missing_ok=True)

    _release = _rollback

    @classmethod
    def _holds_commits(cls, root: Path) -> bool:
        return os.path.lexists(root / LIST.name) or bool(shard_names(root))

    @classmethod
    def _is_left_over(cls, path: Path) -> bool:
        return path.name in (LOCK, CHECKSUMS) or is_temporary(path, _BESIDE)

    # Below this line: for this package.

    def _found(self) -> list[Shard]:
        """The whole shards that are there, in order; what a killed writer left is removed."""
        root = self._root
        known = [shard.name for shard in listed_in(root)]
        there = LocalShards.in_folder(root)
        found = there.shards
        for number, shard in enumerate(found):
            if shard.name != f"{number:06}{SUFFIX}":
                raise FormatError(
                    f"expected shards named 000000{SUFFIX}, 000001{SUFFIX}, …, got {shard.name}",
                    path=str(root),
                )
        sweep(root, _BESIDE)
        if found and [shard.name for shard in found] != known:
            if [shard.name for shard in found[:-1]] == known:
                # The last writer was killed between the shard and the list, and knew the checksum.
                found[-1] = self._finished(there, found)
            LIST.write(root, listing(found))
        return found

    def _finished(self, there: LocalShards, found: list[Shard]) -> Shard:
        """The last shard, which no list has yet, with its checksums."""
        self._shards, at = found[:-1], 0
        for data in there.payload(len(found) - 1):
            self._crc = _core.crc32c(data, self._crc)
            self._blocks.add(data, at)
            at += len(data)
        return replace(found[-1], crc32c=self._crc, first_block=self._store_checksums())

    def _next_name(self) -> str:
        if len(self._shards) >= _MAX_SHARDS:
            raise ValueError(f"{_MAX_SHARDS:,} shards, and more would not sort; make larger ones")
        return f"{len(self._shards):06}{SUFFIX}"

    def _show(self, beside: Path, shard: Shard) -> None:
        """Give a whole shard its name, and name it in the list."""
        path = self._root / shard.name
        if os.path.lexists(path):
            raise FileExistsError(f"{path} exists already")
        beside.replace(path)
        sync_path(self._root)
        self._shards.append(shard)
        LIST.write(self._root, listing(self._shards))
        self._rows += shard.rows

    def _store_checksums(self) -> int:
        """Put the checksums of the blocks of the open shard behind those of the others, on the
        disk; where they begin."""
        if not os.path.lexists(self._root / CHECKSUMS):
            write_file(self._root / CHECKSUMS, checksum_header(), follow=False)
        return self._blocks.store_all(self._root, CHECKSUMS, self._known_blocks())

    def _known_blocks(self) -> int:
        """How many checksums of blocks the shards that are there have."""
        size = self._blocks.block_bytes
        return max(
            (
                shard.first_block + block_count(shard.payload_bytes, size)
                for shard in self._shards
                if shard.first_block is not None
            ),
            default=0,
        )

    def _start_shard(self) -> None:
        self._file, self._beside = create_beside(self._root / self._next_name())
        self._open_rows = self._crc = 0
        self._blocks.rest.clear()


def checked_options(
    width: int | None, dtype: DTypeLike | str | None, shard_bytes: int
) -> tuple[int, str | None]:
    """The bytes of a shard, and the kind of its rows, if one is given."""
    shard_bytes = index(shard_bytes)
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes: expected at least 1, got {shard_bytes}")
    if width is not None and index(width) < 1:
        raise ValueError(f"width: expected at least 1, got {width}")
    return shard_bytes, None if dtype is None else kind_of(dtype)


def shard_like(there: Shard | None, width: int | None, kind: str | None) -> Shard:
    """What shards are like that follow the one that is there. Raises `SchemaError` when they are
    wanted otherwise."""
    like = there or Shard("", 0, width or 0, kind or KINDS[0])
    if not like.width:
        raise ValueError("a new corpus needs a width")
    if width not in (None, like.width):
        raise SchemaError(f"expected rows of {like.width} values, got {width}")
    if kind not in (None, like.kind):
        raise SchemaError(f"expected rows of {like.kind}, got {kind}")
    return like


def encode_shard(rows: ArrayLike, dtype: DTypeLike | str | None = None) -> bytes:
    """A whole shard in memory: the header and these rows, (n, width), as float32 or as a `dtype`
    that `ShardWriter` has. Raises `SchemaError` as `append` does."""
    header, data = _encoded(rows, dtype)
    return header + data.tobytes()


def _encoded(rows: ArrayLike, dtype: DTypeLike | str | None) -> tuple[bytes, NDArray[np.uint8]]:
    array = _plain(rows)
    if array.ndim != 2 or not array.shape[1]:
        raise SchemaError(f"expected (n, width) values, got {array.shape}")
    (count, width), kind = array.shape, KINDS[0] if dtype is None else kind_of(dtype)
    return header_bytes(count, width, kind), packed(array, Shard("", count, width, kind))


def packed(rows: ArrayLike, like: Shard) -> NDArray[np.uint8]:
    """Rows as bytes of the kind of a shard, (n, bytes of a row)."""
    array = _plain(rows)
    if array.ndim != 2 or array.shape[1] != like.width:
        raise SchemaError(f"expected (n, {like.width}) values, got {array.shape}")
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise SchemaError(f"expected floats, got {array.dtype}")
    if like.dtype is None:
        made: NDArray[Any] = _to_bfloat16(array)
    elif array.dtype == like.dtype:
        made = np.ascontiguousarray(array)
    else:
        made = np.empty(array.shape, like.dtype)
        numbers = array if array.dtype.kind in "fiu" else array.astype(np.float32)
        fit_into("rows", numbers, made)
    return made.view(np.uint8).reshape(len(made), like.row_bytes)


def _plain(rows: Any) -> NDArray[Any]:
    """Rows as NumPy has them; tensors of torch without a gradient, and not bfloat16."""
    if is_masked(rows):
        raise TypeError("a masked array would lose its mask; fill it first")
    if hasattr(rows, "detach"):
        tensor = rows.detach().cpu()
        rows = tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
    return np.asarray(rows)


def _to_bfloat16(array: NDArray[Any]) -> NDArray[np.uint16]:
    """The upper halves of float32, rounded to nearest even."""
    if array.dtype.name == "bfloat16":
        return np.ascontiguousarray(array).view(np.uint16)
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(array, np.float32)
    bits = floats.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    made = np.where(np.isnan(floats), np.uint32(0x7FC0), rounded)
    kept = (made << np.uint32(16)).view(np.float32)
    lost = changed_by(array, kept) if array.dtype.kind in "iu" else None
    # Values just below infinity may have been rounded to it.
    lost = np.isfinite(array) & ~np.isfinite(kept) if lost is None else lost
    if lost.any():
        raise does_not_fit("rows", array[lost][0], "bfloat16", digits=array.dtype.kind in "iu")
    return made.astype(np.uint16)

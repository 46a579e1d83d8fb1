"""A corpus of activations: in a fixed order with stable row ids, or in any order."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from stepwell import _core
from stepwell.errors import FormatError
from stepwell.files.remote import is_url
from stepwell.ordered import in_order
from stepwell.source import Batch, Field, Rows, Schema, check_buffer
from stepwell.store import Progress, Report, Store
from stepwell.stores.shards.batches import Batches, Passed, RowBatch
from stepwell.stores.shards.device import Crossing, Device, tensors
from stepwell.stores.shards.layout import HEADER_BYTES, KINDS, LIST, MAGIC, SUFFIX, Shard, check_crc
from stepwell.stores.shards.local import WINDOW_BYTES, Corpus, LocalShards, Span, shard_names, whole
from stepwell.stores.shards.remote import RemoteShards
from stepwell.views import Select

BATCH_ROWS = 1024
_HASHED_ROWS = 1 << 20
_MAX_WINDOW = 1 << 62
_NextRows = Callable[[], NDArray[Any]]
_UPCAST = (np.dtype(np.float32), np.dtype(np.float64))


class ShardReader(Store):
    """Rows of all shards, one after another; the number of a row is its id, for ever.

        acts = ShardReader.open("acts/")            a directory, a shard or a URL
        for rows, row_ids in acts.batches():        in order, float64, the same every time
            ...
        for batch in Loader(acts, 4096):            shuffled; batch["data"]

    `take` and the loader give rows in the stored dtype (bfloat16, which NumPy does not have, as
    float32). The files may be larger than memory: `batches` keeps a window of them. Rows are
    compared with their checksums the first time they are read, unless `checksums` is False.
    """

    kind = "shards"
    noun = "a folder of shards"

    def __init__(
        self,
        where: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Any,
        *,
        checksums: bool = True,
        **options: Any,
    ) -> None:
        """A directory of shards, paths in the order of their rows, a URL or an obstore store.

        Options are for what is in a bucket: `connections`, `cache` (a directory), `cache_bytes`,
        `deadline_s`, and those of obstore (`endpoint`, `region`, `skip_signature`, keys).

        Raises `FormatError` naming the shard that does not fit, and `FetchError` for a bucket that
        does not answer.
        """
        self._begin(where, options, checksums)

    def _begin(
        self,
        where: Any,
        options: dict[str, Any],
        checksums: bool = True,
        seen: list[Shard] | None = None,
    ) -> None:
        self._where: Any = where
        self._checksums = checksums
        self._path, self._options = repr(where), options
        if isinstance(where, str | os.PathLike):  # wherever the process goes later
            self._where = self._path = str(where) if is_url(where) else os.path.abspath(where)
        elif isinstance(where, Iterable) and not isinstance(where, bytes):
            self._where = list(where)
        self._shards = self._found(None if seen is None else [shard.name for shard in seen])
        _check_known(seen or (), self._shards)
        covered = all(shard.first_block is not None for shard in self._shards.shards)
        self.checks_rows = checksums and covered
        first = self._shards.shards[0]
        self._width, self._stored_kind, self._stored = first.width, first.kind, first.dtype
        self._dtype = first.dtype or np.dtype(np.float32)
        self._length = int(self._shards.starts[-1])
        if isinstance(self._where, list):
            self._path = os.path.commonpath([os.path.abspath(path) for path in self._where])
        self._cores = _core.usable_cores()  # once: the call takes as long as a small batch
        self._crossing = Crossing()

    def _found(self, names: Collection[str] | None) -> Corpus:
        """The shards that are there now, or those of some names."""
        where, options = self._where, self._options
        shards: Corpus
        if self._is_remote:
            shards = RemoteShards(where, names, checksums=self._checksums, **options)
        elif options:
            raise TypeError(f"{', '.join(options)}: only for what is in a bucket")
        elif isinstance(where, str):
            path = Path(where)
            checks = self._checksums
            if path.is_dir():
                shards = LocalShards.in_folder(path, names, checksums=checks)
            else:
                shards = LocalShards([path], checksums=checks)
            if not shards.shards:
                raise FormatError("expected .shard files, found none", path=str(path))
        else:
            for url in filter(is_url, where):
                raise TypeError(f"expected paths, or one URL of them all, got {url!r} among others")
            shards = LocalShards([Path(path) for path in where], checksums=self._checksums)
            if not shards.shards:
                raise ValueError("expected at least one shard")
        shards.check()
        return shards

    def __getstate__(self) -> dict[str, Any]:
        seen = None if isinstance(self._where, list) else self.shards
        kept = {"where": self._where, "options": self._options, "seen": seen}
        return {**kept, "checksums": self._checksums}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin(**state)

    # Properties.

    @classmethod
    def recognizes(cls, path: Path) -> bool:
        if path.is_dir():
            return os.path.lexists(path / LIST.name) or bool(shard_names(path))
        if path.suffix == SUFFIX or not path.is_file():
            return path.suffix == SUFFIX
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC

    def __len__(self) -> int:
        return self._length

    @property
    def total_rows(self) -> int:
        """The number of rows, as `len`."""
        return len(self)

    @property
    def width(self) -> int:
        """Values in a row."""
        return self._width

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that `take` returns."""
        return self._dtype

    @property
    def stored_dtype(self) -> str:
        """float32, float16 or bfloat16."""
        return self._stored_kind

    @property
    def shards(self) -> list[Shard]:
        """The shards, in the order of their rows."""
        return list(self._shards.shards)

    @property
    def path(self) -> str:
        """The path or URL; of several files, the folder that they are all below."""
        return self._path

    @property
    def schema(self) -> Schema:
        return {"data": Field(self._dtype, (self._width,))}

    def refresh(self) -> bool:
        """See the shards that were written since; return whether there are any."""
        self._check_open()
        if isinstance(self._where, list):
            return False
        if not self._is_remote:
            folder = Path(self._where)
            if not folder.is_dir() or set(shard_names(folder)) == {s.name for s in self.shards}:
                return False
        fresh = self._found(None)
        _check_known(self.shards, fresh)
        if len(fresh.shards) == len(self.shards):
            return False
        self._shards, self._length = fresh, int(fresh.starts[-1])
        self._forget()
        return True

    def close(self) -> None:
        super().close()
        self._shards, self._crossing = self._shards.closed(), Crossing()

    def _stored_bytes(self) -> int:
        return self._shards.stored_bytes

    def _facts(self) -> dict[str, Any]:
        shards = self._shards.shards
        return {
            "shards": len(shards),
            "width": self._width,
            "dtype": self._stored_kind,
            "checksums": sum(shard.crc32c is not None for shard in shards),
            "block_checksums": sum(shard.first_block is not None for shard in shards),
        }

    def _health(self) -> str:
        shards = self._shards
        surplus = next((i for i in range(len(shards.shards)) if shards.surplus(i)), None)
        return (
            "fine" if surplus is None else f"bytes behind the last row of {shards.where(surplus)}"
        )

    # In order.

    def batches(
        self,
        batch_rows: int | None = None,
        dtype: DTypeLike | None = np.float64,
        window_bytes: int = WINDOW_BYTES,
        *,
        start_row: int = 0,
        out: Any = None,
        device: Any = None,
    ) -> Batches:
        """Every row once, in order, `batch_rows` at a time (up to 1,024); never across two shards.

        Each call begins again with row `start_row`, and gives the same batches; a pass that was
        left goes on where its `state_dict` was taken. `dtype` is float64, float32, or None for the
        stored dtype, not copied: such rows are the file's own memory, read-only, and end the
        process if someone cuts the file while they are used. With `out`, an array of `batch_rows`
        rows or a tensor of torch in pinned memory, every batch is put there, in place of the one
        before. With a CUDA `device`, rows are tensors there, copied ahead of the loop.
        """
        self._check_open()
        if out is not None and not isinstance(out, np.ndarray) and hasattr(out, "numpy"):
            out = out.numpy()  # the same memory
        if batch_rows is None:
            batch_rows = min(BATCH_ROWS, len(self)) if out is None else len(out)
        step, window_bytes = index(batch_rows), min(index(window_bytes), _MAX_WINDOW)
        if step < 1 or window_bytes < 1:
            raise ValueError(f"expected at least 1, got {batch_rows=} and {window_bytes=}")
        if out is not None:
            given: np.dtype[Any] = getattr(out, "dtype", self._dtype)
            dtype = given if self._gives(given) else self._dtype
            check_buffer("out", out, dtype, (step, self._width))
            if device is not None:
                raise ValueError("give either out or device")
        wanted, shards, doubles = self._wanted(dtype), self._shards, np.dtype(np.float64)
        there = None if device is None else Device(device)

        def begin(row: int, length: int) -> Iterator[RowBatch]:
            span, watched = shards.span(row, length), shards.watched()
            counts = [shard.rows for shard in shards.shards]
            read: _NextRows
            if there is not None:
                field = Field(wanted, (self._width,))
                feed = self._crossing.feed(there, field, step)
                read = tensors(
                    shards, span, step, window_bytes, field, self._convert, there, feed
                ).__next__
            elif out is not None or not isinstance(shards, LocalShards):
                read = self._copies(shards, span, step, wanted, window_bytes, out).__next__
            elif self._is_stored(wanted):
                read = shards.views(span, step, window_bytes).next
            else:
                cores = self._cores
                read = shards.upcasts(span, step, window_bytes, wanted == doubles, cores).next
            checked = Passed(shards).checked
            for number, first, end in shards.cuts(span, step):
                last = row + end - first
                # No name for it here: its memory is for the next as soon as the caller lets go.
                yield RowBatch(
                    checked(number, first, end, read())
                    if watched[number] or end == counts[number]
                    else read(),
                    range(row, last),
                )
                row = last

        return Batches(self, begin, start_row, len(self), shards.starts[1:])

    def _copies(
        self,
        shards: Corpus,
        span: Span,
        step: int,
        wanted: np.dtype[Any],
        window_bytes: int,
        out: NDArray[Any] | None,
    ) -> Iterator[NDArray[Any]]:
        parts = shards.parts(span, step, window_bytes)
        for (number, begin, end), data in zip(shards.cuts(span, step), parts, strict=True):
            shards.check_rows(number, begin, end)
            if out is None and self._is_stored(wanted):
                rows = data.view(wanted).reshape(-1, self._width)
                rows.flags.writeable = False
            else:
                rows = self._empty_rows(end - begin, wanted) if out is None else out[: end - begin]
                at = HEADER_BYTES + begin * shards.shards[number].row_bytes
                self._convert(data, rows, shards.where(number), at)
            yield rows

    def subsample(self, fraction: float) -> "Subsample":
        """About `fraction` of the rows, chosen by a hash of their ids: the same everywhere, and
        those of a smaller fraction are among those of a larger one. `weight` is 1/fraction."""
        return Subsample(self, kept_rows(len(self), fraction), fraction)

    # Is it whole?

    def _verified(self, quick: bool, progress: Progress) -> Report:
        shards = self._shards
        problems: list[FormatError] = []
        done, total = 0, sum(shard.payload_bytes for shard in shards.shards)
        for number, shard in enumerate(shards.shards):
            where, end = shards.where(number), HEADER_BYTES + shard.payload_bytes
            if surplus := shards.surplus(number):
                message = f"{surplus} bytes behind the last row"
                problems.append(FormatError(message, path=where, offset=end))
            try:
                crc = at = 0
                blocks = None if quick else shards.blocks_of(number)
                for data in () if quick else shards.payload(number):
                    crc = _core.crc32c(data, crc)
                    done += len(data)
                    progress(done, total)
                    if blocks is not None:
                        blocks.check(at, at + len(data))
                        at += len(data)
                shards.check_whole(number)
                if not quick:
                    check_crc(shard, crc, where)
            except FormatError as error:
                problems.append(error)
        if done < total or not total:
            progress(total, total)
        count = len(shards.shards)
        checked = [f"{count} shards have a header, and all of their {len(self):,} rows"]
        bare = [shard.name for shard in shards.shards if shard.crc32c is None]
        unchecked = []
        if quick:
            unchecked.append("the values: a quick check does not read them")
        else:
            match = f"; {count - len(bare)} shards match their checksums"
            checked.append("every value was read" + ("" if problems else match))
            if bare:
                names = ", ".join([*bare[:3], *(["…"] if len(bare) > 3 else [])])
                unchecked.append(
                    f"the values of {len(bare)} shards without a checksum in {LIST.name}: {names}"
                )
        return Report(self.kind, self.path, tuple(problems), tuple(checked), tuple(unchecked))

    # A source.

    def _native(self, names: Sequence[str]) -> _core.Reader | None:
        return self._shards.reader() if self._stored is not None else None

    def _fill(self, rows: Rows, out: Batch) -> None:
        self._convert(self._shards.rows(rows), out["data"], self.path, 0)

    # Below this line: for this package.

    @property
    def _is_remote(self) -> bool:
        return is_url(self._where) or not isinstance(self._where, str | list)

    def _is_stored(self, dtype: np.dtype[Any]) -> bool:
        return self._stored is not None and dtype == self._stored  # to NumPy, None is float64

    def _wanted(self, dtype: DTypeLike | None) -> np.dtype[Any]:
        """The dtype that batches are to have. Raises `ValueError` for one that they cannot."""
        wanted = self._stored if dtype is None else np.dtype(dtype)
        if wanted is None:
            raise ValueError("dtype: expected float32 or float64, as NumPy has no bfloat16")
        if not self._gives(wanted):
            raise ValueError(f"dtype: expected float32, float64 or None, got {wanted}")
        return wanted

    def _gives(self, dtype: np.dtype[Any]) -> bool:
        return dtype in _UPCAST or self._is_stored(dtype)

    def _empty_rows(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        size = count * self._width * dtype.itemsize
        return _core.shared_blocks().take(size)[:size].view(dtype).reshape(count, self._width)

    def _convert(self, data: NDArray[np.uint8], rows: NDArray[Any], where: str, at: int) -> None:
        """Bytes of the file `where`, from byte `at` on, as values of another dtype."""
        flat = rows.reshape(-1).view(np.uint8)
        if self._is_stored(rows.dtype):
            whole(data, where, at).read(np.zeros(1, np.int64), [flat])
            return
        if not rows.flags.aligned:
            made = self._empty_rows(len(rows), rows.dtype)
            self._convert(data, made, where, at)
            rows[...] = made
            return
        doubles = rows.dtype == np.float64
        _core.upcast(KINDS.index(self._stored_kind), data, flat, doubles, self._cores, where, at)


def _check_known(seen: Sequence[Shard], there: Corpus) -> None:
    """Raise `FormatError` unless the shards that were seen are the first that are there."""
    for before, now in zip_longest(seen, there.shards[: len(seen)]):
        if now is not None and None in (before.crc32c, now.crc32c):
            now = replace(now, crc32c=before.crc32c, first_block=before.first_block)
        if before != now:
            raise FormatError("another corpus is here now; open it again", path=there.where(0))


def splitmix64(ids: Rows) -> NDArray[np.uint64]:
    """The hash that decides: the first output of SplitMix64 seeded with the id."""
    mixed = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def kept_rows(length: int, fraction: float) -> Rows:
    """Rows whose hash is below `fraction` of the range, ascending."""
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction: expected more than 0, up to 1, got {fraction}")
    if fraction == 1:
        return np.arange(length, dtype=np.int64)
    limit = np.uint64(int(fraction * 2**64))
    parts = []
    for begin in range(0, length, _HASHED_ROWS):
        ids = np.arange(begin, min(begin + _HASHED_ROWS, length), dtype=np.int64)
        parts.append(ids[splitmix64(ids) < limit])
    return np.concatenate([np.empty(0, np.int64), *parts])


def _subsample(base: ShardReader, fraction: float, count: int) -> "Subsample":
    return Subsample(base, kept_rows(len(base), fraction)[:count], fraction)


class Subsample(Select):
    """Some rows of a corpus: a source, with the ids of its rows and the weight of each."""

    _base: ShardReader

    def __init__(self, base: ShardReader, rows: Rows, fraction: float) -> None:
        super().__init__(base, rows)
        self.fraction = fraction

    def __reduce__(self) -> tuple[Any, ...]:
        # Not a number for each row, but how many they are: the corpus may have grown since.
        return _subsample, (self._base, self.fraction, len(self))

    @property
    def row_ids(self) -> Rows:
        """The ids in the whole corpus."""
        assert not isinstance(self._rows, slice)
        return self._rows

    @property
    def weight(self) -> float:
        """How many rows of the corpus each of these stands for."""
        return 1 / self.fraction

    def batches(
        self,
        batch_rows: int | None = None,
        dtype: DTypeLike | None = np.float64,
        *,
        start_row: int = 0,
    ) -> Batches:
        """Every row once, in order, `batch_rows` at a time (up to 1,024), across shards; from the
        id `start_row` on. As those of the corpus, they have its ids and a state."""
        base, ids, wanted = self._base, self.row_ids, self._base._wanted(dtype)
        step = min(BATCH_ROWS, max(len(self), 1)) if batch_rows is None else index(batch_rows)
        if step < 1:
            raise ValueError(f"expected at least 1, got {batch_rows=}")

        def made(row_ids: Rows) -> RowBatch:
            rows = base.take(row_ids)["data"]
            if rows.dtype != wanted:
                stored, rows = rows, base._empty_rows(len(row_ids), wanted)
                rows[...] = stored
            return RowBatch(rows, row_ids)

        def begin(row: int, length: int) -> Iterator[RowBatch]:
            chosen = ids[:length][np.searchsorted(ids[:length], row) :]
            parts = (chosen[at : at + step].copy() for at in range(0, len(chosen), step))
            return in_order(made, parts, 1, ahead=2)

        return Batches(self, begin, start_row, len(base), range(len(self) + 1))

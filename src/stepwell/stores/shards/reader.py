"""A corpus of activations: in a fixed order with stable row ids, or in any order."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from stepwell import _core
from stepwell.errors import ChecksumError, FormatError, SchemaError
from stepwell.files.remote import RemoteFiles, is_url
from stepwell.source import Batch, Field, Rows, Schema, Source
from stepwell.stores.shards.layout import HEADER_BYTES, KINDS, Shard, Span, cuts
from stepwell.stores.shards.local import LocalShards, check_same
from stepwell.stores.shards.remote import RemoteShards
from stepwell.stores.shards.subsample import Subsample, kept_rows

__all__ = ["RowBatch", "ShardReader"]

WINDOW_BYTES = 8 << 20
BATCH_ROWS = 1024
_MOST_WINDOW = 1 << 62
_REMOTE_OPTIONS = ("connections", "cache", "cache_bytes")
_UPCAST = (np.dtype(np.float32), np.dtype(np.float64))


class RowBatch(NamedTuple):
    """Rows of one shard that follow one another, and their ids."""

    rows: NDArray[Any]
    row_ids: NDArray[np.int64]


class Shards(Protocol):
    """Where the bytes of the shards come from."""

    shards: list[Shard]

    def where(self, number: int) -> str: ...
    def surplus(self, number: int) -> int: ...
    def reader(self) -> _core.Reader | None: ...
    def parts(
        self, spans: Sequence[Span], window_bytes: int, *, mapped: bool = True
    ) -> Iterator[NDArray[np.uint8]]: ...


class ShardReader(Source):
    """Rows of all shards, one after another; the number of a row is its id, for ever.

        acts = ShardReader.open("acts/")
        for rows, row_ids in acts.batches():        in order, float64, the same every time
            ...
        for batch in Loader(acts, 4096):            shuffled; batch["data"]

    `take` and the loader give rows in the stored dtype (bfloat16, which NumPy does not have, as
    float32), or in `dtype`. The files may be larger than memory: `batches` keeps a window of them.
    """

    def __init__(self, shards: Shards, options: dict[str, Any], dtype: DTypeLike | None) -> None:
        check_same(shards.shards, [shards.where(i) for i in range(len(shards.shards))])
        self._shards = shards
        self._options = options
        self._infos = shards.shards
        self._kind = self._infos[0].kind
        self._stored = stored = _stored_dtype(self._kind)
        self._dtype = (stored or np.dtype(np.float32)) if dtype is None else np.dtype(dtype)
        if self._dtype not in (*_UPCAST, *filter(None, [stored])):
            raise ValueError(f"dtype: expected float32, float64 or the stored one, got {dtype}")
        self._starts = np.cumsum([0, *(shard.rows for shard in self._infos)])
        self._cores = _core.usable_cores()  # once: asking takes as long as a small batch

    @classmethod
    def open(
        cls,
        where: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | Any,
        *,
        dtype: DTypeLike | None = None,
        **options: Any,
    ) -> Self:
        """Open a directory of shards, paths in the order of their rows, a URL or an obstore store.

        Options are for what is in a bucket: `connections`, `cache` (a directory), `cache_bytes`,
        `deadline_s`, and those of obstore (`endpoint`, `region`, `skip_signature`, keys).

        Raises `FormatError` naming the shard that does not fit, and `FetchError` for a bucket that
        does not answer.
        """
        shards: Shards
        if isinstance(where, Iterable) and not isinstance(where, str | bytes | os.PathLike):
            where = list(where)
        if is_url(where) or not isinstance(where, str | os.PathLike | list):
            own = {name: options[name] for name in _REMOTE_OPTIONS if name in options}
            rest = {name: value for name, value in options.items() if name not in own}
            shards = RemoteShards(RemoteFiles(where, **rest), **own)
        elif options:
            raise TypeError(f"{', '.join(options)}: only for what is in a bucket")
        elif isinstance(where, str | os.PathLike):
            paths = Path(where)
            shards = LocalShards.in_folder(paths) if paths.is_dir() else LocalShards([paths])
            if not shards.shards:
                raise FormatError("expected .shard files, found none", path=str(paths))
        else:
            for url in filter(is_url, where):
                raise TypeError(f"expected paths, or one URL of them all, got {url!r} among others")
            shards = LocalShards([Path(path) for path in where])
            if not shards.shards:
                raise ValueError("expected at least one shard")
        return cls(shards, {"where": where, "dtype": dtype, **options}, dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._options)

    # What it is.

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def total_rows(self) -> int:
        return len(self)

    @property
    def width(self) -> int:
        """Values in a row."""
        return self._infos[0].width

    @property
    def dtype(self) -> np.dtype[Any]:
        """What `take` gives."""
        return self._dtype

    @property
    def stored_dtype(self) -> str:
        """float32, float16 or bfloat16."""
        return self._kind

    @property
    def shards(self) -> list[Shard]:
        return list(self._infos)

    @property
    def path(self) -> Path | None:
        where = self._options["where"]
        local = isinstance(where, str | os.PathLike) and not is_url(where)
        return Path(where) if local else None

    @property
    def schema(self) -> Schema:
        return {"data": Field(self._dtype, (self.width,))}

    # In order.

    def batches(
        self,
        batch_rows: int | None = None,
        dtype: DTypeLike | None = np.float64,
        window_bytes: int = WINDOW_BYTES,
        *,
        out: Any = None,
    ) -> Iterator[RowBatch]:
        """Every row once, in order, `batch_rows` at a time (up to 1,024); never across two shards.

        Each call begins anew with the first row, and gives the same batches. `dtype` is float64,
        float32, or None for the stored dtype, not copied: such rows are the file's own memory,
        read-only, and end the process if someone cuts the file while they are used. With `out`, an
        array of `batch_rows` rows or a tensor of torch in pinned memory, every batch is put there,
        in place of the one before.
        """
        if out is not None and not isinstance(out, np.ndarray) and hasattr(out, "numpy"):
            out = out.numpy()  # the same memory
        if batch_rows is None:
            batch_rows = min(BATCH_ROWS, len(self)) if out is None else len(out)
        batch_rows, window_bytes = index(batch_rows), min(index(window_bytes), _MOST_WINDOW)
        if batch_rows < 1 or window_bytes < 1:
            raise ValueError(f"{batch_rows} rows a batch, a window of {window_bytes} bytes")
        if out is not None:
            dtype = self._checked_out(out, batch_rows)
        wanted, stored = None if dtype is None else np.dtype(dtype), self._stored
        if wanted is None and stored is None:
            raise ValueError("NumPy has no bfloat16; ask for float32 or float64")
        if wanted is not None and wanted not in (*_UPCAST, *filter(None, [stored])):
            raise ValueError(f"dtype: expected float32, float64 or None, got {wanted}")
        spans = [
            Span(number, 0, shard.rows, batch_rows) for number, shard in enumerate(self._infos)
        ]
        return self._batches(spans, wanted, window_bytes, out)

    def _batches(
        self,
        spans: Sequence[Span],
        wanted: np.dtype[Any] | None,
        window_bytes: int,
        out: NDArray[Any] | None,
    ) -> Iterator[RowBatch]:
        rows, first, integer = self._rows(spans, wanted, window_bytes, out), 0, np.dtype(np.int64)
        for number, begin, end in cuts(spans):
            last = first + end - begin
            # No name for it here: its memory is for the next one as soon as the caller lets go.
            yield RowBatch(
                rows() if end < self._infos[number].rows else self._last_of(number, rows()),
                np.arange(first, last, dtype=integer),
            )
            first = last

    def _last_of(self, number: int, rows: NDArray[Any]) -> NDArray[Any]:
        """The last rows of a shard, if it is still as long as it was."""
        if isinstance(self._shards, LocalShards):
            self._shards.check_whole(number)
        return rows

    def _rows(
        self,
        spans: Sequence[Span],
        wanted: np.dtype[Any] | None,
        window_bytes: int,
        out: NDArray[Any] | None,
    ) -> Callable[[], NDArray[Any]]:
        """What gives the rows of one part of the spans after another."""
        local = self._shards if isinstance(self._shards, LocalShards) and out is None else None
        if out is None and (wanted is None or self._is_stored(wanted)):
            if local is not None:
                return local.views(spans, window_bytes).next
            assert self._stored is not None
            stored, width, parts = self._stored, self.width, self._shards.parts(spans, window_bytes)
            return (_view(data, stored, width) for data in parts).__next__
        assert wanted is not None
        if local is not None:
            return local.upcasts(spans, window_bytes, wanted == np.float64, self._cores).next
        parts = self._shards.parts(spans, window_bytes, mapped=False)
        pairs = zip(cuts(spans), parts, strict=True)
        return (self._converted(cut, data, wanted, out) for cut, data in pairs).__next__

    def _converted(
        self,
        cut: tuple[int, int, int],
        data: NDArray[np.uint8],
        wanted: np.dtype[Any],
        out: NDArray[Any] | None,
    ) -> NDArray[Any]:
        number, begin, end = cut
        rows = self._empty_rows(end - begin, wanted) if out is None else out[: end - begin]
        at = HEADER_BYTES + begin * self._infos[number].row_bytes
        self._convert(data, rows, self._shards.where(number), at)
        return rows

    def subsample(self, fraction: float) -> "Subsample":
        """About `fraction` of the rows, chosen by a hash of their ids: the same everywhere, and
        those of a smaller fraction are among those of a larger one. `weight` is 1/fraction."""
        return Subsample(self, kept_rows(len(self), fraction), fraction)

    def verify(self, *, on_progress: Callable[[int, int], None] | None = None) -> list[FormatError]:
        """Read everything; return what is wrong: sums, and bytes behind the last row."""
        problems: list[FormatError] = []
        done, total = 0, sum(shard.payload_bytes for shard in self._infos)
        for number, shard in enumerate(self._infos):
            where, crc, at = self._shards.where(number), 0, HEADER_BYTES
            if surplus := self._shards.surplus(number):
                problems.append(
                    FormatError(f"{surplus} bytes behind the last row", path=where,
                                offset=HEADER_BYTES + shard.payload_bytes)
                )  # fmt: skip
            step = max((1 << 22) // shard.row_bytes, 1)
            try:
                span = Span(number, 0, shard.rows, step)
                for data in self._shards.parts([span], WINDOW_BYTES, mapped=False):
                    copy = _whole(data, where, at).take(np.zeros(1, np.int64))
                    crc = _core.crc32c(copy[: len(data)], crc)
                    done, at = done + len(data), at + len(data)
                    if on_progress is not None:
                        on_progress(done, total)
                if isinstance(self._shards, LocalShards):
                    self._shards.check_whole(number)
            except FormatError as error:
                problems.append(error)
                continue
            if shard.crc32c is not None and crc != shard.crc32c:
                problems.append(
                    ChecksumError(f"expected CRC32C {shard.crc32c:08x}, got {crc:08x}", path=where)
                )
        return problems

    # A source.

    def take(self, rows: ArrayLike, out: Mapping[str, NDArray[Any]] | None = None) -> Batch:
        """Return the given rows in the given order; see `Source.take`."""
        return super().take(rows, out)

    def _native(self, names: Sequence[str]) -> _core.Reader | None:
        return self._shards.reader() if self._is_stored(self._dtype) else None

    def _fill(self, rows: Rows, out: Batch) -> None:
        reader = self._shards.reader()
        if reader is None:
            assert isinstance(self._shards, RemoteShards)
            data = self._shards.rows(rows, self._starts)
        else:
            data = reader.take(rows)[: len(rows) * self._infos[0].row_bytes]
        self._convert(data, out["data"], str(self._options["where"]), 0)

    # Below this line: for this package.

    def _is_stored(self, dtype: np.dtype[Any]) -> bool:
        return self._stored is not None and dtype == self._stored  # to NumPy, None is float64

    def _empty_rows(self, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        size = count * self.width * dtype.itemsize
        return _core.shared_blocks().take(size)[:size].view(dtype).reshape(count, self.width)

    def _convert(self, data: NDArray[np.uint8], rows: NDArray[Any], where: str, at: int) -> None:
        """Bytes of the file `where`, from byte `at` on, as values of another dtype."""
        flat = rows.reshape(-1).view(np.uint8)
        if self._is_stored(rows.dtype):
            _whole(data, where, at).read(np.zeros(1, np.int64), [flat])
            return
        if not rows.flags.aligned:
            made = self._empty_rows(len(rows), rows.dtype)
            self._convert(data, made, where, at)
            rows[...] = made
            return
        doubles = rows.dtype == np.float64
        _core.upcast(KINDS.index(self._kind), data, flat, doubles, self._cores, where, at)

    def _checked_out(self, out: NDArray[Any], batch_rows: int) -> np.dtype[Any]:
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out: expected a NumPy array, got {type(out)}")
        if out.shape != (batch_rows, self.width):
            raise SchemaError(f"out: expected {(batch_rows, self.width)}, got {out.shape}")
        if not out.flags.c_contiguous or not out.flags.writeable:
            raise ValueError("out: expected a writable array in C order")
        if out.dtype not in _UPCAST and not self._is_stored(out.dtype):
            raise SchemaError(f"out: expected float32 or float64, got {out.dtype}")
        return out.dtype


def _whole(data: NDArray[np.uint8], where: str, at: int) -> _core.Reader:
    """Bytes as one row, to be copied: they may be those of a file that someone cuts meanwhile."""
    return _core.guarded_reader(data, 0, 1, len(data), where, at)


def _view(data: NDArray[np.uint8], dtype: np.dtype[Any], width: int) -> NDArray[Any]:
    rows = data.view(dtype).reshape(-1, width)
    rows.flags.writeable = False
    return rows


def _stored_dtype(kind: str) -> np.dtype[Any] | None:
    return None if kind == "bfloat16" else np.dtype(f"<f{4 if kind == 'float32' else 2}")


def _rebuild(cls: type[ShardReader], options: dict[str, Any]) -> ShardReader:
    return cls.open(**options)

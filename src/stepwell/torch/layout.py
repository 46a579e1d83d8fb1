"""Rows in the memory of a device, and how batches are gathered from them.

A `Table` has one row after the other, fields in an order that aligns each of them. A `Layout` is
where the columns of a batch lie in one piece of memory: batch after batch, column after column. One
kernel fills it; where there is no Triton, a few calls of torch for each column do.
"""

import math
import os
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from stepwell.batches import count_of, in_order
from stepwell.errors import SchemaError
from stepwell.files.memory import free_bytes
from stepwell.source import Field, Rows, Schema, Source, bytes_of
from stepwell.torch.tensors import tensors_of

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SIGNED = {**_WORDS, 1: torch.int8}
_UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}
_ALIGNED = 64


def find_device(given: Any) -> torch.device:
    """The device, with its number. Raises `ValueError` for one that is not here."""
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device: expected 'cpu', 'cuda' or 'cuda:0', got {given!r}") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ValueError(f"device: expected 'cpu' or one of CUDA, got {str(device)!r}")
    if not torch.cuda.is_available():
        raise ValueError(f"device: expected one that is here, got {str(device)!r}: no CUDA device")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ValueError(f"device: expected cuda:0 to cuda:{last}, got {str(device)!r}")
    return torch.device("cuda", index)


class Table:
    """The first rows of a source in the memory of a device; the others stay where they are."""

    def __init__(self, source: Source, device: torch.device, resident: float) -> None:
        for name, field in source.schema.items():
            if field.ragged:
                raise SchemaError(f"to: expected rows of fixed shape, field {name!r} is {field}")
            torch_dtype(name, field.dtype)
        if not 0 < resident <= 1:
            raise ValueError(f"resident: expected a share above 0 and up to 1, got {resident}")
        self.source, self.device, self.process = source, device, os.getpid()
        self.rows = len(source)
        self.number = torch.int32 if self.rows < 2**31 else torch.int64  # half of what is copied
        self.places: dict[str, int] = {}
        sizes = {name: field.row_bytes for name, field in source.schema.items()}
        end = 0
        for name in sorted(sizes, key=lambda name: sizes[name] & -sizes[name], reverse=True):
            self.places[name] = end  # a multiple of every power of two that divides the field
            end += sizes[name]
        unit = min(max(size & -size for size in sizes.values()), 16) or 1
        self.stride = -(-max(end, 1) // unit) * unit
        self.count = math.ceil(self.rows * resident)
        self.memory = self._allocate()
        self._fill()

    @property
    def is_whole(self) -> bool:
        """Whether every row is on the device."""
        return self.count == self.rows

    def _allocate(self) -> torch.Tensor:
        size = self.count * self.stride
        free = free_bytes() if self.device.type == "cpu" else _free_on(self.device)
        if free is None or size <= free:
            try:
                return torch.empty((self.count, self.stride), dtype=torch.uint8, device=self.device)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if self.device.type == "cuda" and not isinstance(error, torch.OutOfMemoryError):
                    raise
        free = free or 0
        share = math.floor(100 * free / max(self.rows * self.stride, 1)) / 100
        hint = f"; to({str(self.device)!r}, resident={share}) leaves the others where they are"
        raise MemoryError(
            f"expected rows of at most {free:,} bytes, the memory that is free on {self.device}, "
            f"got {size:,}{hint if share else ''}"
        )

    def _fill(self) -> None:
        first = 0
        for batch in in_order(self.source) if self.count else ():
            count = min(count_of(batch), self.count - first)
            for name, values in batch.items():
                field = self.source.schema[name]
                if not field.row_bytes:
                    continue
                word, at = word_of(field), self.places[name]
                unit = _WORDS[word]
                part = torch.from_numpy(_contiguous(values[:count])).view(unit)
                there = self.memory.view(unit)[first : first + count]
                end = at + field.row_bytes
                there[:, at // word : end // word] = part.view(count, -1).to(self.device)
            first += count
            if first == self.count:
                break


def _contiguous(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of an array, in memory that torch takes without a warning."""
    array = np.require(values, requirements=["C", "W"])
    return bytes_of(array)


def _free_on(device: torch.device) -> int:
    """Bytes that can be allocated: what the driver has, and what torch keeps to give out again."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def word_of(field: Field) -> int:
    """Bytes of a row of this field that can be copied at once."""
    size = field.row_bytes
    return min(size & -size, 8) or 1


def torch_dtype(name: str, dtype: np.dtype[Any]) -> torch.dtype:
    """The type of tensors. Raises `SchemaError` where torch has none."""
    found: torch.dtype = tensors_of({name: np.empty(0, dtype)})[name].dtype
    return found


class Move(NamedTuple):
    """How a field of the table becomes a column: words of a row, each widened or as it is."""

    at: int
    """Where it begins in a row of the table."""
    word: int
    words: int
    wide: int
    """Bytes that a word has in the column."""
    signed: bool
    begin: int
    """Bytes that a row of the table has in the columns before this one."""


class Column(NamedTuple):
    """A field of a batch, and where it comes from: a field of the table, or None for the mask of
    the rows that are there."""

    name: str
    old: str | None
    kind: np.dtype[Any]
    dtype: torch.dtype
    shape: tuple[int, ...]
    """Of one row of the batch."""
    move: Move


class Layout:
    """Where the columns of a batch are, made of `width` rows of the table for each of its own.

    Of these, `inner` neighbours are one row of the view that has the mask.
    """

    def __init__(
        self,
        table: Table,
        schema: Schema,
        names: Mapping[str, str | None],
        types: Mapping[str, np.dtype[Any]],
        width: int,
        inner: int,
    ) -> None:
        self._table, self._width, self._inner = table, width, inner
        self._is_complete = table.is_whole and None not in names.values()
        olds = [old for old in dict.fromkeys(names.values()) if old is not None]
        self._source = table.source.columns(olds)
        self.columns: list[Column] = []
        end = 0
        for name, field in schema.items():
            kind, old = types.get(name, field.dtype), names[name]
            move = Move(-1, 1, 1, 1, False, end)
            if old is not None:
                stored = table.source.schema[old]
                word = wide = word_of(stored)
                if kind.itemsize != stored.dtype.itemsize:
                    word, wide = stored.dtype.itemsize, kind.itemsize
                words = stored.row_bytes // word
                is_signed = stored.dtype.kind == "i"
                move = Move(table.places[old], word, words, wide, is_signed, end)
            dtype = torch_dtype(name, kind)
            self.columns.append(Column(name, old, kind, dtype, field.shape, move))
            end += move.words * move.wide
        self._row_bytes = end
        self._packed: Any = None  # columns as the kernel has them

    def batch_bytes(self, count: int) -> int:
        """Bytes of a batch of `count` rows."""
        return max(self._row_bytes, 1) * self._capacity(count)

    def _capacity(self, count: int) -> int:
        """Rows of the table that a batch has room for."""
        return -(-count * self._width // _ALIGNED) * _ALIGNED

    def views(self, blocks: torch.Tensor, count: int) -> list[torch.Tensor]:
        """The columns in memory that has `count` rows in each of its batches."""
        return [self._view(blocks, count, column) for column in self.columns]

    def _view(self, blocks: torch.Tensor, count: int, column: Column) -> torch.Tensor:
        begin = column.move.begin * self._capacity(count)
        size = count * math.prod(column.shape) * column.dtype.itemsize
        part = blocks[:, begin : begin + size].view(column.dtype)
        return torch.unflatten(part, 1, (count, *column.shape))

    # Rows of the table.

    def gather(self, rows: torch.Tensor, batches: int) -> torch.Tensor:
        """Batches of the rows of the table with these numbers; zeros for those that are not there.

        They are made on the current stream, in memory of their own.
        """
        count = len(rows) // self._width // batches
        size = (batches, self.batch_bytes(count))
        blocks = torch.empty(size, dtype=torch.uint8, device=rows.device)
        if rows.is_cuda and _has_triton():
            self._gather_at_once(rows, blocks, count)
        else:
            self._gather_columns(rows, blocks, count)
        for column in self.columns:
            if column.old is None:
                first = rows.view(-1, self._inner)[:, 0]
                mask = self._view(blocks, count, column)
                torch.ge(first.view(mask.shape), 0, out=mask)
        return blocks

    def _gather_at_once(self, rows: torch.Tensor, blocks: torch.Tensor, count: int) -> None:
        from stepwell.torch import kernels

        if self._packed is None:
            moves = [column.move for column in self.columns if column.old is not None]
            self._packed = kernels.packed(moves, self._table.stride)
        memory, capacity = self._table.memory, self._capacity(count)
        kernels.gather(memory, rows, blocks, count * self._width, capacity, self._packed)

    def _gather_columns(self, rows: torch.Tensor, blocks: torch.Tensor, count: int) -> None:
        memory = self._table.memory
        if self._is_complete:
            found = memory.index_select(0, rows)
        else:
            found = memory.index_select(0, rows.clamp(0, len(memory) - 1))
            found.masked_fill_(((rows < 0) | (rows >= len(memory)))[:, None], 0)
        for column in self.columns:
            at, word, words, wide, is_signed, _ = column.move
            if column.old is None or not words:
                continue
            kind = _WORDS[word] if word == wide else (_SIGNED if is_signed else _UNSIGNED)[word]
            part = found.view(kind)[:, at // word : at // word + words]
            out = self._words(blocks, count, column)
            out.copy_(torch.unflatten(part, 0, out.shape[:2]))

    def _words(self, blocks: torch.Tensor, count: int, column: Column) -> torch.Tensor:
        """A column as words of each row of the table, of each batch."""
        move, per_batch = column.move, count * self._width
        begin = move.begin * self._capacity(count)
        part = blocks[:, begin : begin + per_batch * move.words * move.wide]
        return torch.unflatten(part.view(_WORDS[move.wide]), 1, (per_batch, move.words))

    # Rows that are not on the device.

    def rest_bytes(self, count: int) -> int:
        """Bytes that `put` needs for `count` rows of the table."""
        return count * self._row_bytes + _ALIGNED * len(self.columns)

    def put(self, rows: Rows, memory: NDArray[np.uint8]) -> int:
        """Have the source put these rows into host memory; return how much of it is used."""
        taken = self._source.take(rows)
        end = 0
        for begin, end, column in self._rest(len(rows)):
            values = taken[str(column.old)]
            there = memory[begin:end].view(column.kind).reshape(values.shape)
            np.copyto(there, values, casting="unsafe")
        return end

    def scatter(
        self, rest: torch.Tensor, places: torch.Tensor, blocks: torch.Tensor, count: int
    ) -> None:
        """Move rows that were put, and copied to the device, to their places in batches."""
        per_batch = count * self._width
        where = (places // per_batch, places % per_batch)
        for begin, end, column in self._rest(len(places)):
            out = self._words(blocks, count, column)
            found = rest[begin:end].view(out.dtype)
            out.index_put_(where, found.view(len(places), column.move.words))

    def _rest(self, count: int) -> Iterator[tuple[int, int, Column]]:
        """Where each column begins and ends in the memory of `put`."""
        end = 0
        for column in self.columns:
            if column.old is not None and column.move.words:
                begin = -(-end // _ALIGNED) * _ALIGNED
                end = begin + count * column.move.words * column.move.wide
                yield begin, end, column

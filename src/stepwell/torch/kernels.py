"""Kernels in Triton, which comes with torch where that has CUDA."""

# mypy: disable-error-code="no-redef, no-untyped-def, no-untyped-call, untyped-decorator"

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from stepwell.torch.layout import Move

_TILE_BYTES = 8192
"""Of rows that one program has, about."""
_SHORT_BYTES = 128
"""Rows up to this size are read as a whole, once, and taken apart in registers."""
_FEW = 4
"""Values of a row that are taken out of its words one by one; more are stored as they lie."""
_LINE = 64
"""Columns and blocks begin at multiples of it."""

_compiled: dict[tuple[object, ...], Any] = {}


class Columns(NamedTuple):
    """Columns as constants of a kernel."""

    values: int
    """Seven numbers of 32 bits for each."""
    number: int
    unit: int
    """Bytes of the words that a row is read in; 0 where each column is read by itself."""
    width: int
    """The power of two from the number of such words on."""


def packed(moves: Sequence[Move], stride: int) -> Columns:
    """Columns as a kernel has them, of rows of `stride` bytes."""
    moves = [move for move in moves if move.words]
    values: list[int] = []
    for move in moves:
        values += [*map(int, move), min(triton.next_power_of_2(move.words), 64)]
    number = sum(each << 32 * i for i, each in enumerate(values))
    unit = _unit(moves, stride)
    width = triton.next_power_of_2(stride // unit) if unit else 1
    return Columns(number, len(moves), unit, width)


def _unit(moves: Sequence[Move], stride: int) -> int:
    for unit in (8, 4):
        if stride > _SHORT_BYTES or stride % unit:
            continue
        if all(
            move.words <= _FEW or (move.word == move.wide and move.word >= unit) for move in moves
        ):
            return unit
    return 0


def gather(
    table: torch.Tensor,
    rows: torch.Tensor,
    blocks: torch.Tensor,
    count: int,
    capacity: int,
    columns: Columns,
) -> None:
    """Put `count` rows of a table into each block, column by column, on the current stream.

    A column has room for `capacity` rows. Rows that the table does not have become zeros.
    """
    stride = table.shape[1]
    block = min(max(triton.next_power_of_2(_TILE_BYTES // stride), 16), 256)
    programs = triton.cdiv(count, block)
    if not count or not columns.number:
        return
    numbers = (len(table), count, programs, capacity // _LINE, blocks.shape[1] // _LINE)
    constants = (stride, *columns, block)
    arguments = (table, rows, blocks, *numbers, *constants)
    grid = (programs * len(blocks), 1, 1)
    # What Triton compiles for. To look it up by itself takes it longer than a small batch does.
    wide = tuple(each >= 2**31 for each in numbers)
    key = (table.device, rows.dtype, rows.data_ptr() % 16, wide, constants)
    with torch.cuda.device(table.device):
        found = _compiled.get(key)
        if found is None:
            _compiled[key] = _gather[grid](*arguments)
        else:
            found[grid](*arguments)


# Numbers differ in the last batch of an epoch, for which nothing is to be compiled again.
@triton.jit(do_not_specialize=["table_rows", "count", "programs", "capacity", "block_lines"])
def _gather(
    table,
    rows,
    out,
    table_rows,
    count,
    programs,
    capacity,  # this and the next in lines
    block_lines,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,  # seven values of 32 bits each: not every Triton has constant tuples
    COLUMN_COUNT: tl.constexpr,
    UNIT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    batch = (program // programs).to(tl.int64)
    i = (program % programs).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    row = tl.load(rows + batch * count + i, mask=inside, other=-1).to(tl.int64)
    there = (row >= 0) & (row < table_rows)
    place = table + row * STRIDE
    first = out + batch * block_lines * 64
    room = tl.cast(capacity, tl.int64) * 64
    if UNIT:
        word: tl.constexpr = tl.int64 if UNIT == 8 else tl.int32
        k = tl.arange(0, WIDTH)[None, :]
        mask = there[:, None] & (k < STRIDE // UNIT)
        whole = tl.load(place.to(tl.pointer_type(word))[:, None] + k, mask=mask, other=0)
    for n in tl.static_range(COLUMN_COUNT):
        target = first + room * ((COLUMNS >> (224 * n + 160)) & 0xFFFFFFFF)
        if UNIT:
            _store(
                whole,
                k,
                target,
                i,
                inside,
                UNIT,
                (COLUMNS >> (224 * n)) & 0xFFFFFFFF,
                (COLUMNS >> (224 * n + 32)) & 0xFFFFFFFF,
                (COLUMNS >> (224 * n + 64)) & 0xFFFFFFFF,
                (COLUMNS >> (224 * n + 96)) & 0xFFFFFFFF,
                (COLUMNS >> (224 * n + 128)) & 0xFFFFFFFF,
            )
        else:
            _copy(
                place,
                target,
                i,
                inside,
                there,
                (COLUMNS >> (224 * n)) & 0xFFFFFFFF,
                (COLUMNS >> (224 * n + 32)) & 0xFFFFFFFF,
                (COLUMNS >> (224 * n + 64)) & 0xFFFFFFFF,
                (COLUMNS >> (224 * n + 96)) & 0xFFFFFFFF,
                (COLUMNS >> (224 * n + 128)) & 0xFFFFFFFF,
                (COLUMNS >> (224 * n + 192)) & 0xFFFFFFFF,
            )


@triton.jit
def _store(
    whole,
    k,
    out,
    i,
    inside,
    UNIT: tl.constexpr,
    AT: tl.constexpr,
    WORD: tl.constexpr,
    WORDS: tl.constexpr,
    WIDE: tl.constexpr,
    SIGNED: tl.constexpr,
):
    if WORD == WIDE and WORD >= UNIT:
        # As it lies: the units of the column, one after the other.
        units: tl.constexpr = WORDS * (WORD // UNIT)
        unit: tl.constexpr = whole.dtype
        to = out.to(tl.pointer_type(unit)) + i[:, None] * units + (k - AT // UNIT)
        mine = (k >= AT // UNIT) & (k < AT // UNIT + units)
        tl.store(to, whole, mask=inside[:, None] & mine)
    else:
        if WIDE == 8:
            wide: tl.constexpr = tl.int64
        elif WIDE == 4:
            wide: tl.constexpr = tl.int32
        elif WIDE == 2:
            wide: tl.constexpr = tl.int16
        else:
            wide: tl.constexpr = tl.int8
        for j in tl.static_range(WORDS):
            # The one of its words that is not left out, and of that the bits of the value.
            one = tl.sum(tl.where(k == (AT + j * WORD) // UNIT, whole, 0), axis=1).to(tl.int64)
            value = one << (64 - 8 * WORD - 8 * ((AT + j * WORD) % UNIT))
            value = value >> (64 - 8 * WORD)
            if not SIGNED:
                value = value & ((1 << 8 * WORD) - 1)
            tl.store(out.to(tl.pointer_type(wide)) + i * WORDS + j, value.to(wide), mask=inside)


@triton.jit
def _copy(
    place,
    out,
    i,
    inside,
    there,
    AT: tl.constexpr,
    WORD: tl.constexpr,
    WORDS: tl.constexpr,
    WIDE: tl.constexpr,
    SIGNED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    if WORD == 8:
        kind: tl.constexpr = tl.int64
    elif WORD == 4:
        kind: tl.constexpr = tl.int32 if SIGNED else tl.uint32
    elif WORD == 2:
        kind: tl.constexpr = tl.int16 if SIGNED else tl.uint16
    else:
        kind: tl.constexpr = tl.int8 if SIGNED else tl.uint8
    if WIDE == 8:
        wide: tl.constexpr = tl.int64
    elif WIDE == 4:
        wide: tl.constexpr = tl.int32
    elif WIDE == 2:
        wide: tl.constexpr = tl.int16
    else:
        wide: tl.constexpr = tl.int8
    source = (place + AT).to(tl.pointer_type(kind))
    target = out.to(tl.pointer_type(wide))
    if WORDS == 1:
        value = tl.load(source, mask=there, other=0)
        tl.store(target + i, value.to(wide), mask=inside)
    else:
        for begin in range(0, WORDS, WIDTH):
            k = begin + tl.arange(0, WIDTH)[None, :]
            some = k < WORDS
            value = tl.load(source[:, None] + k, mask=there[:, None] & some, other=0)
            to = target + i[:, None] * WORDS + k
            tl.store(to, value.to(wide), mask=inside[:, None] & some)

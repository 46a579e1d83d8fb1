"""Kernels in Triton, which comes with torch where that has CUDA."""

# mypy: disable-error-code="no-redef, no-untyped-def, no-untyped-call, untyped-decorator"

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from stepwell.torch.layout import Move

_TILE_BYTES = 8192
"""Of rows that one program has, about."""


def packed(moves: Sequence[Move]) -> tuple[int, int]:
    """Columns as one number that a kernel can have as a constant, and how many there are."""
    values: list[int] = []
    for move in moves:
        if move.words:
            values += [*map(int, move), min(triton.next_power_of_2(move.words), 64)]
    return sum(each << 32 * i for i, each in enumerate(values)), len(values) // 7


def gather(
    table: torch.Tensor,
    rows: torch.Tensor,
    blocks: torch.Tensor,
    count: int,
    capacity: int,
    columns: tuple[int, int],
) -> None:
    """Put `count` rows of a table into each block, column by column, on the current stream.

    A column has room for `capacity` rows. Rows that the table does not have become zeros.
    """
    stride = table.shape[1]
    block = min(max(triton.next_power_of_2(_TILE_BYTES // stride), 16), 256)
    programs = triton.cdiv(count, block)
    if not count or not columns[1]:
        return
    with torch.cuda.device(table.device):
        _gather[(programs * len(blocks),)](
            table,
            rows,
            blocks,
            len(table),
            count,
            programs,
            capacity,
            blocks.shape[1],
            stride,
            *columns,
            block,
        )


# These differ in the last batch of an epoch, for which nothing is to be compiled again.
@triton.jit(do_not_specialize=["table_rows", "count", "programs"])
def _gather(
    table,
    rows,
    out,
    table_rows,
    count,
    programs,
    capacity,
    block_bytes,
    STRIDE: tl.constexpr,
    COLUMNS: tl.constexpr,  # seven values of 32 bits each: not every Triton has constant tuples
    COLUMN_COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    batch = (program // programs).to(tl.int64)
    i = (program % programs).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < count
    row = tl.load(rows + batch * count + i, mask=inside, other=-1).to(tl.int64)
    there = (row >= 0) & (row < table_rows)
    place = table + row * STRIDE
    first = out + batch * block_bytes
    for n in tl.static_range(COLUMN_COUNT):
        _copy(
            place,
            first + tl.cast(capacity, tl.int64) * ((COLUMNS >> (224 * n + 160)) & 0xFFFFFFFF),
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

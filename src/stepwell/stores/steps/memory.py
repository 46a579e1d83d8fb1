"""Rows of a dataset as arrays: mapped, read into memory, or read once for all processes."""

import os
from contextlib import ExitStack
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stepwell import _core
from stepwell.files.npy import NpyHeader
from stepwell.files.shared import shared_block
from stepwell.stores.steps.layout import Piece

_READ_BYTES = 1 << 28  # between two chances of a Ctrl-C


def map_rows(pieces: list[Piece], dtype: np.dtype[Any] | None) -> list[NDArray[Any]]:
    """An array over each file. The files must not shrink while the arrays are used."""
    segments: list[NDArray[Any]] = []
    for piece in pieces:
        with piece.open(dtype, piece.inside + piece.rows) as (file, header):
            if piece.rows:
                place = piece.place(header)
                segments.append(np.memmap(file, header.dtype, "r", place, (piece.rows,)))
            else:
                segments.append(np.empty(0, header.dtype))
    return segments


def load_rows(
    pieces: list[Piece], dtype: np.dtype[Any] | None, owner: str | None = None
) -> NDArray[Any]:
    """All rows in one array on huge pages; shared by all who name the same `owner`."""
    with ExitStack() as stack:
        opened = []
        for piece in pieces:
            file, header = stack.enter_context(piece.open(dtype, piece.inside + piece.rows))
            opened.append((file, header, piece))
            dtype = header.dtype
        kind = header.dtype

        def fill(block: NDArray[np.uint8]) -> None:
            at = 0
            for file, header, piece in opened:
                begin = piece.place(header)
                end = begin + piece.rows * kind.itemsize
                for offset in range(begin, end, _READ_BYTES):
                    part = block[at : at + min(_READ_BYTES, end - offset)]
                    _core.load(file.fileno(), piece.path, offset, part)
                    at += len(part)

        size = sum(piece.rows for piece in pieces) * kind.itemsize
        if owner is None or not size:
            block = _core.allocate(size)
            fill(block)
        else:
            stats = [os.fstat(file.fileno()) for file, _, _ in opened]
            files = [(s.st_dev, s.st_ino) for s in stats]
            places = [(piece.inside, piece.rows) for piece in pieces]
            some = [_checksum(file, header, piece) for file, header, piece in opened]
            block = shared_block(owner, f"{kind} {files} {places} {some}", size, fill)
        return block.view(kind)


def _checksum(file: BinaryIO, header: NpyHeader, piece: Piece) -> int:
    """A checksum of some of the bytes: a new dataset may get the inode of the old one."""
    begin = piece.place(header)
    size = piece.rows * header.dtype.itemsize
    crc = 0
    for k in range(64):
        data = os.pread(file.fileno(), min(size, 4096), begin + max(size - 4096, 0) * k // 63)
        crc = _core.crc32c(np.frombuffer(data, np.uint8), crc)
    return crc

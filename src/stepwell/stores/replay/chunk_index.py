"""Where the chunks of a dataset are: HDF5's own index of them, read from the file itself.

HDF5 keeps the places of the chunks of a dataset with one unlimited dimension in an "extensible
array" (HDF5 File Format Specification, version 3.0, VII.C): a header, an index block with the first
places, then data blocks of growing size, found directly or through secondary blocks. What is
written of it never moves, so places that were committed can be read while a writer adds others, in
any process, without HDF5's library and its one lock.
"""

import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepwell.errors import FormatError
from stepwell.source import Rows

_NOWHERE = (1 << 64) - 1
_SPACE, _LAYOUT, _CONTINUED = 1, 8, 16  # kinds of messages in an object header
_MAX_MESSAGES = 1 << 16  # bytes
_SIZES = (32, 4, 16, 4, 10)  # of every such array that HDF5 makes for a dataset
_EXTENSIBLE_ARRAY = 4
_MAX_ADDRESS = 1 << 62


class Places(NamedTuple):
    """Where chunks are: `offsets` in the file, stored `sizes`, `masks` of filters left out.

    A chunk that was never written has the offset 0.
    """

    offsets: NDArray[np.uint64]
    sizes: NDArray[np.uint32]
    masks: NDArray[np.uint32]


class ChunkIndex:
    """The places of a dataset's chunks. Not safe from several threads at once."""

    def __init__(
        self, file: int, path: Path, base: int, header: int, chunk_bytes: int, element_bytes: int
    ) -> None:
        """`header` is the dataset's object header, `base` what all addresses count from."""
        self._file = file
        self._path = path
        self._base = base
        self._object = header
        self._chunk_bytes = chunk_bytes
        self._element_bytes = element_bytes
        self._address = _NOWHERE
        self._length_at = -1
        self._ready = False
        # The parts that were read of the array, block behind block as they were met.
        self._places = np.zeros((0, 3), "<u8")  # addresses, lengths, masks
        self._used = 0

    def find(self, chunks: Rows) -> Places:
        """The places of chunks, by number."""
        if not len(chunks) or not self._begun():
            return Places(*(np.zeros(len(chunks), kind) for kind in (np.uint64, "u4", "u4")))
        if chunks.max() >= self._max_chunks:
            raise self._damaged(f"no index has a chunk {chunks.max():,}", self._address)
        block, within = self._where(chunks)
        fresh = set(np.unique(block[self._begins[block] < 0]).tolist())
        for number in fresh:
            self._load(number)
        at = self._begins[block] + within
        # A chunk that was not there when its block was read may be there now.
        addresses, lengths, masks = self._places.take(at, 0).T
        there = _written(addresses)
        absent = set(block[~there].tolist()) - fresh
        if absent:
            for number in absent:
                self._load(number)
            addresses, lengths, masks = self._places.take(at, 0).T
            there = _written(addresses)
        if (addresses[there] >= _MAX_ADDRESS).any():
            raise self._damaged("a chunk at an impossible address", self._address)
        if (lengths[there] >= 1 << 32).any():
            raise self._damaged("a chunk of more than 4 GiB", self._address)
        return Places(
            np.where(there, addresses + np.uint64(self._base), np.uint64(0)),
            np.where(there, lengths, 0).astype(np.uint32),
            np.where(there, masks, 0).astype(np.uint32),
        )

    def _begun(self) -> bool:
        """Read the array's header, once there is one: the first chunk brings it along."""
        if not self._ready:
            self._read_object()
            if self._address == _NOWHERE:
                return False
            self._read_header()
            self._ready = True
        return True

    def rows(self) -> int:
        """How long the dataset is by now."""
        if self._length_at < 0:
            self._read_object()
        return int.from_bytes(self._read(self._length_at, 8), "little")

    def _read_header(self) -> None:
        data = self._read(self._address, 72, b"EAHD")
        client, self._element, *sizes = struct.unpack_from("<7B", data, 5)
        right = 13 <= self._element <= 20 if client == 1 else (client, self._element) == (0, 8)
        if not right or tuple(sizes) != _SIZES:
            raise self._damaged("an index with impossible sizes", self._address)
        bits, self._first, self._min_block, pointers, page_bits = sizes
        self._filtered = bool(client)
        self._offset_size = (bits + 7) // 8
        self._page = 1 << page_bits
        (self._index_block,) = struct.unpack_from("<Q", data, 60)
        groups = 1 + bits - (self._min_block.bit_length() - 1)
        numbers = np.arange(groups)
        # Group g has 2^(g/2) data blocks of min_block * 2^((g+1)/2) elements.
        self._blocks = np.left_shift(1, numbers // 2)
        self._sizes = self._min_block * np.left_shift(1, (numbers + 1) // 2)
        self._starts = np.cumsum(self._blocks * self._sizes) - self._blocks * self._sizes
        self._numbers = np.cumsum(self._blocks) - self._blocks
        self._direct = 2 * (pointers - 1)
        self._direct_groups = 2 * (pointers.bit_length() - 1)
        self._groups = groups
        self._max_chunks = self._first + int((self._blocks * self._sizes).sum())
        if not self._ready:
            self._begins = np.full(1 + int(self._blocks.sum()), -1)

    def _where(self, chunks: Rows) -> tuple[Rows, Rows]:
        """For each chunk its block, 0 for the index block and 1 for the first data block, and its
        place in that."""
        after = chunks - self._first
        group = np.searchsorted(self._starts, np.maximum(after, 0), "right") - 1
        size = self._sizes[group]
        rest = np.maximum(after, 0) - self._starts[group]
        block = np.where(after < 0, 0, 1 + self._numbers[group] + rest // size)
        return block, np.where(after < 0, chunks, rest % size)

    def _load(self, block: int) -> None:
        """Read a block, for the first time or again."""
        group = int(np.searchsorted(self._numbers, block - 1, "right")) - 1
        size = self._first if block == 0 else int(self._sizes[group])
        elements = self._read_table(block - 1, size)
        begin = int(self._begins[block])
        if begin < 0:
            begin, self._used = self._used, self._used + size
            if self._used > len(self._places):
                grown = np.zeros((max(2 * len(self._places), self._used), 3), "<u8")
                grown[:begin] = self._places[:begin]
                self._places = grown
            self._begins[block] = begin
        places = self._places[begin : begin + size]
        stored = places.view(np.uint8).reshape(size, -1)
        stored[:, :8] = elements[:, :8]
        if self._filtered:
            width = self._element - 12
            stored[:, 8 : 8 + width] = elements[:, 8 : 8 + width]
            stored[:, 16:20] = elements[:, 8 + width :]
        else:
            places[:, 1] = self._chunk_bytes

    # The blocks.

    def _read_table(self, block: int, size: int) -> NDArray[np.uint8]:
        nothing = np.zeros((size, self._element), np.uint8)
        if self._index_block == _NOWHERE:
            self._read_header()
            if self._index_block == _NOWHERE:
                return nothing
        pointers = self._direct + self._groups - self._direct_groups
        begin = 14 + self._first * self._element
        index = self._read(self._index_block, begin + 8 * pointers, b"EAIB")
        if block < 0:
            return self._table(index[14:begin], size)
        addresses = np.frombuffer(index, "<u8", pointers, begin)
        if block < self._direct:
            return self._data_block(int(addresses[block]), size, nothing)
        group = int(np.searchsorted(self._numbers, block, "right")) - 1
        secondary = int(addresses[self._direct + group - self._direct_groups])
        if secondary == _NOWHERE:
            return nothing
        pages = size // self._page if size > self._page else 0
        marks = int(self._blocks[group]) * ((pages + 7) // 8)
        begin = 14 + self._offset_size + marks
        count = int(self._blocks[group])
        found = self._read(secondary, begin + 8 * count, b"EASB")
        inside = np.frombuffer(found, "<u8", count, begin)
        return self._data_block(int(inside[block - self._numbers[group]]), size, nothing)

    def _data_block(self, address: int, size: int, nothing: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if address == _NOWHERE:
            return nothing
        begin = 14 + self._offset_size
        if size <= self._page:
            data = self._read(address, begin + size * self._element, b"EADB")
            return self._table(data[begin:], size)
        # Large blocks come in pages with a checksum each; the last ones may not be there yet.
        begin += 4
        pages, page_bytes = size // self._page, self._page * self._element
        length = begin + pages * (page_bytes + 4)
        data = self._read(address, begin, b"EADB", whole=length)
        data += bytes(length - len(data))
        paged = np.frombuffer(data, np.uint8, pages * (page_bytes + 4), begin)
        flat = paged.reshape(pages, page_bytes + 4)[:, :page_bytes].reshape(-1)
        return self._table(flat.tobytes(), size)

    def _table(self, data: bytes, size: int) -> NDArray[np.uint8]:
        return np.frombuffer(data, np.uint8, size * self._element).reshape(size, self._element)

    def _read_object(self) -> None:
        """Find the address of the array, and where the number of rows stands, in the messages of
        the dataset's object header."""
        flags = self._read(self._object, 6, b"OHDR")[5]
        begin = self._object + 6 + (16 if flags & 32 else 0) + (4 if flags & 16 else 0)
        width = 1 << (flags & 3)
        parts = [(begin + width, int.from_bytes(self._read(begin, width), "little"))]
        layout = b""
        for begin, size in parts:
            messages = self._read(begin, min(size, _MAX_MESSAGES))
            at = 0
            while at + 4 <= len(messages):
                kind, length = messages[at], int.from_bytes(messages[at + 1 : at + 3], "little")
                at += 6 if flags & 4 else 4
                if kind == _SPACE and messages[at : at + 1] == b"\2":
                    self._length_at = begin + at + 4
                elif kind == _LAYOUT:
                    layout = messages[at : at + length]
                elif kind == _CONTINUED and len(parts) < 16 and at + 16 <= len(messages):
                    where, count = struct.unpack_from("<QQ", messages, at)
                    parts.append((where + 4, count - 8))
                at += length
        if not layout or self._length_at < 0:
            raise self._damaged("a dataset without a shape or a layout", self._object)
        self._address = self._array_address(layout)

    def _array_address(self, layout: bytes) -> int:
        at = 5 + layout[3] * layout[4] if len(layout) > 4 else 0  # behind the shape of a chunk
        if layout[:2] != bytes([4, 2]) or len(layout) < at + 14 or layout[at] != _EXTENSIBLE_ARRAY:
            raise self._damaged("a layout other than chunks in an extensible array", self._object)
        element = int.from_bytes(layout[at - layout[4] : at], "little")
        if element != self._element_bytes:
            message = f"expected elements of {self._element_bytes} bytes, got {element}"
            raise self._damaged(message, self._object)
        (address,) = struct.unpack_from("<Q", layout, at + 6)
        return int(address)

    def _read(self, address: int, size: int, sign: bytes = b"", whole: int = 0) -> bytes:
        """Bytes at an address: `size` of them at least, `whole` where the file has them."""
        if address >= _MAX_ADDRESS or size < 0:
            raise self._damaged("an impossible address", 0)
        data = os.pread(self._file, max(size, whole), self._base + address)
        if len(data) < size:
            raise self._damaged(f"truncated: expected {size} bytes, got {len(data)}", address)
        if not data.startswith(sign):
            raise self._damaged(f"expected {sign.decode()}, got {data[:4]!r}", address)
        return data

    def _damaged(self, message: str, address: int) -> FormatError:
        return FormatError(message, path=str(self._path), offset=self._base + address)


def _written(addresses: NDArray[np.uint64]) -> NDArray[np.bool_]:
    written: NDArray[np.bool_] = (addresses != _NOWHERE) & (addresses != 0)
    return written

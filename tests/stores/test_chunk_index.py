"""HDF5's index of chunks, read from the file's own bytes: the same as HDF5 says, or an error."""

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401 - makes h5py know zstd
import numpy as np
import pytest

from stepwell import FormatError
from stepwell.stores.replay.chunk_index import ChunkIndex, Places
from tests import scaled

LIBVER = ("v110", "v110")
Place = tuple[int, int, int]

# The index block has 4 places and 6 blocks of its own: 16, 2 x 32, 3 of 2 x 64 ...; from then on
# blocks are found through others, and blocks of more than 1,024 places come in pages.
SIZES = [0, 1, 3, 4, 5, 19, 20, 21, 51, 52, 53, 84, 115, 116, 117, 180, 243, 244, 245, 246, 500]
SIZES += [1011, 1012, 1013, 3000, 4083, 4084, 4085]
PAGED = [64_500, 65_523, 65_524, 65_525, 66_600, 131_059, 131_060, 131_061, 133_200]


@contextmanager
def made(path: Path, packed: bool) -> Iterator[tuple[h5py.File, h5py.Dataset]]:
    with h5py.File(path, "w", libver=LIBVER, userblock_size=512) as file:
        options: dict[str, Any] = {"compression": 32015} if packed else {}
        file.create_dataset("x", (0, 4), "u1", maxshape=(None, 4), chunks=(1, 4), **options)
        file.swmr_mode = True
        yield file, file["x"]


def extend(dataset: h5py.Dataset, length: int) -> None:
    """Chunks whose size and mask differ, as far as there are any."""
    first = dataset.shape[0]
    dataset.resize(length, 0)
    filtered = dataset.id.get_create_plist().get_nfilters()
    for i in range(first, length):
        data = struct.pack("<I", i)
        short = filtered and i % 5 == 1
        dataset.id.write_direct_chunk((i, 0), data[:3] if short else data, int(bool(filtered)))
    dataset.flush()


def stated(dataset: h5py.Dataset) -> list[Place]:
    """What HDF5 says."""
    found: list[Place] = []
    dataset.id.chunk_iter(lambda c: found.append((c.byte_offset, c.size, c.filter_mask)))
    return found


def listed(places: Places) -> list[Place]:
    columns = (places.offsets.tolist(), places.sizes.tolist(), places.masks.tolist())
    return list(zip(*columns, strict=True))


@contextmanager
def index_of(path: Path, header: int) -> Iterator[ChunkIndex]:
    file = os.open(path, os.O_RDONLY)
    try:
        yield ChunkIndex(file, path, 512, header, 4, 1)
    finally:
        os.close(file)


def header_of(dataset: h5py.Dataset) -> int:
    return int(h5py.h5o.get_info(dataset.id).addr)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("sizes", [SIZES, PAGED[: scaled(len(PAGED), smallest=3)]])
def test_every_size_while_it_grows(quick_path: Path, sizes: list[int], packed: bool) -> None:
    path = quick_path / "x.h5"
    with made(path, packed) as (file, dataset), index_of(path, header_of(dataset)) as following:
        for size in sizes:
            extend(dataset, size)
            file.flush()
            want = stated(dataset)
            assert len(want) == size
            with index_of(path, header_of(dataset)) as fresh:
                for index in (fresh, following):
                    assert index.rows() == size
                    assert listed(index.find(np.arange(size))) == want
                    backwards = np.arange(size)[::-3]
                    assert listed(index.find(backwards)) == want[::-3]
                    # Behind the end there is nothing yet.
                    assert not index.find(np.arange(size, size + 2000)).offsets.any()


def test_a_chunk_that_no_index_has(quick_path: Path) -> None:
    path = quick_path / "x.h5"
    with made(path, False) as (_, dataset):
        extend(dataset, 30)
        header = header_of(dataset)
    for far in (2**40, 10**18, 2**62):
        with index_of(path, header) as index, pytest.raises(FormatError, match="chunk"):
            index.find(np.array([0, far]))


# Damage.


def blocks(data: bytes) -> dict[bytes, list[range]]:
    """Where the parts of the index are, by their signatures."""
    found: dict[bytes, list[range]] = {}
    lengths = {b"OHDR": 320, b"EAHD": 72, b"EAIB": 300, b"EASB": 120, b"EADB": 60}
    for sign, size in lengths.items():
        at = data.find(sign)
        while at >= 0:
            found.setdefault(sign, []).append(range(at, at + size))
            at = data.find(sign, at + 1)
    return found


def changes(byte: int) -> list[int]:
    return sorted({byte ^ 1, byte ^ 0x80, byte ^ 0xFF, 0, 0xFF} - {byte})


@pytest.mark.parametrize("packed", [False, True])
def test_every_byte_of_the_index(
    quick_path: Path, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong places are for the sums to find; here nothing may hang, crash or take memory."""
    path = quick_path / "x.h5"
    with made(path, packed) as (_, dataset):
        extend(dataset, 700)
        header = header_of(dataset)
    data = path.read_bytes()
    asked = _watched(monkeypatch)
    rows = np.array([0, 3, 4, 19, 20, 60, 250, 400, 699])
    tried = refused = 0
    for ranges in blocks(data).values():
        for place in (place for part in ranges[:3] for place in part if place < len(data)):
            for value in changes(data[place]):
                with path.open("r+b") as file:
                    file.seek(place)
                    file.write(bytes([value]))
                tried += 1
                refused += not _reads(path, header, rows)
                with path.open("r+b") as file:
                    file.seek(place)
                    file.write(data[place : place + 1])
    assert tried > 1000
    assert refused > 100
    assert max(asked) < 1 << 20


@pytest.mark.parametrize("packed", [False, True])
def test_every_length(quick_path: Path, packed: bool) -> None:
    path = quick_path / "x.h5"
    with made(path, packed) as (_, dataset):
        extend(dataset, 300)
        header = header_of(dataset)
    size = path.stat().st_size
    rows = np.arange(300)
    for length in range(size - 1, 0, -41):
        os.truncate(path, length)
        _reads(path, header, rows)


def _reads(path: Path, header: int, rows: np.ndarray[Any, np.dtype[np.int64]]) -> bool:
    with index_of(path, header) as index:
        try:
            index.rows()
            index.find(rows)
        except FormatError:
            return False
    return True


def _watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each read asks for."""
    asked: list[int] = []
    pread: Callable[[int, int, int], bytes] = os.pread

    def watch(file: int, size: int, offset: int) -> bytes:
        asked.append(size)
        return pread(file, size, offset)

    monkeypatch.setattr(os, "pread", watch)
    return asked

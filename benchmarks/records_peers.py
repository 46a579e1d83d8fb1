"""The other formats of records, each read in the quickest way that it documents.

All of these install beside Python 3.11: loaderx (an older release, 2.8.6; later ones ask for
NumPy 2.5, which there is none of for it), array_record, bagz, LMDB, Lance (pylance) and HDF5 (h5py,
with hdf5plugin for zstd). Each gives a batch in the form it has: arrays, lists of bytes, a table
of Arrow. Making one array of the lists would cost them more. What nobody has read is no batch,
so views of mapped memory are joined.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import CALLS, Candidate
from benchmarks.records_data import Records, made
from benchmarks.results import console

Rows = NDArray[np.int64]

LEVEL = 3
"""Of zstd, for everybody."""

_SLOW = 20
"""Calls in a turn of those that take milliseconds."""

_HDF5_CHUNK_BYTES = 8192


@dataclass(frozen=True)
class Peer:
    """A way to read a batch. `payloads` makes bytes of what it gave, to see if they are right."""

    name: str
    take: Callable[[Rows], Any]
    payloads: Callable[[Any], Sequence[Any]]
    calls: int = CALLS

    def candidate(self, *, share: float = 1) -> Candidate:
        return Candidate.of(self.name, self.take, calls=max(3, round(self.calls * share)))

    def check(self, records: Records, rows: Rows) -> None:
        """A benchmark of wrong answers would be worth nothing."""
        taken = self.payloads(self.take(rows))
        if [bytes(payload) for payload in taken] != [records[row].tobytes() for row in rows]:
            raise SystemExit(f"{self.name}: not the records that were written")


def formats(records: Records, folder: Path, *, zstd: bool = False) -> Iterator[Peer]:
    """Those that are installed, with their own copy of the records in `folder`."""
    for name, (packages, readers) in _FORMATS.items():
        missing = [package for package in packages if find_spec(package) is None]
        if missing:
            console.print(f"[dim]{name} is left out: {', '.join(missing)} not installed[/]")
            continue
        try:
            yield from readers(records, folder, zstd)
        except ImportError as error:
            console.print(f"[dim]{name} is left out: {error}[/]")


def numpy_takes(records: Records, folder: Path, batch: int) -> Iterator[tuple[Peer, bool]]:
    """np.take of opaque rows of a `.npy` file, mapped or loaded; and whether it is given `out`."""
    path = npy(records, folder)
    for kind, table in (("mapped", np.load(path, mmap_mode="r")), ("loaded", np.load(path))):
        void = np.asarray(table).reshape(len(records), -1).view(f"V{_row_bytes(records)}")[:, 0]
        out = np.empty(batch, void.dtype)
        yield Peer(f".npy, {kind}, np.take", partial(np.take, void), _voids), False
        # Without mode="clip" NumPy fills a buffer of its own first.
        with_out = partial(np.take, void, out=out, mode="clip")
        yield Peer(f".npy, {kind}, np.take, out=", with_out, _voids), True


def numpy_slices(records: Records, folder: Path) -> Iterator[Peer]:
    """A `.npy` file of all values and one of offsets, mapped: what one writes by hand."""
    values = np.asarray(np.load(npy(records, folder), mmap_mode="r"))
    offsets = records.offsets

    def take(rows: Rows) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        begins, ends = offsets[rows], offsets[rows + 1]
        pairs = zip(begins.tolist(), ends.tolist(), strict=True)
        return np.concatenate([values[a:b] for a, b in pairs]), np.cumsum(ends - begins)

    yield Peer(
        ".npy, mapped, slices joined", take, lambda got: np.split(got[0], got[1][:-1].tolist())
    )


def npy(records: Records, folder: Path) -> Path:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, records.values if records.shape is None else records.table)

    return made(folder / "records.npy", write)


def _loaderx(records: Records, folder: Path, zstd: bool) -> Iterator[Peer]:
    from loaderx import zrecord

    kinds: Any = zrecord
    codec = "zstd" if zstd else "raw"

    def write_dense(path: Path) -> None:
        with kinds.Dense.create(str(path), "u1", records.shape, codec=codec) as out:
            out.append(records.table)

    def write_ragged(path: Path) -> None:
        lengths = np.diff(records.offsets).astype(np.uint64)[:, None]
        with kinds.Ragged.create(str(path), "u1", 1, codec=codec) as out:
            out.append(kinds.RaggedBatch(records.values, records.offsets.astype("i4"), lengths))

    if records.shape is not None:
        dense = kinds.Dense.open(str(made(folder / f"loaderx-{codec}", write_dense)))
        yield Peer("loaderx", lambda rows: np.from_dlpack(dense[rows]), lambda got: got)
        return
    ragged = kinds.Ragged.open(str(made(folder / f"loaderx-{codec}", write_ragged)))

    def take(rows: Rows) -> tuple[NDArray[Any], NDArray[Any]]:
        got = ragged[rows]
        return np.from_dlpack(got.values), np.from_dlpack(got.cu_seqlens)

    yield Peer("loaderx", take, lambda got: np.split(got[0], got[1][1:-1].tolist()))


def _array_record(records: Records, folder: Path, zstd: bool) -> Iterator[Peer]:
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    codec = f"zstd:{LEVEL}" if zstd else "uncompressed"

    def write(path: Path) -> None:
        writer = ArrayRecordWriter(str(path), f"group_size:1,{codec}")
        for record in records:
            writer.write(record)
        writer.close()

    path = made(folder / f"array_record-{codec}", write)
    reader = ArrayRecordReader(str(path), "readahead_buffer_size:0")
    yield Peer("array_record", lambda rows: reader.read(rows.tolist()), _as_they_are, _SLOW)


def _bagz(records: Records, folder: Path, zstd: bool) -> Iterator[Peer]:
    import bagz

    module: Any = bagz
    codec = module.CompressionZstd(level=LEVEL) if zstd else module.CompressionNone()

    def write(path: Path) -> None:
        with module.Writer(str(path), module.Writer.Options(compression=codec)) as out:
            for record in records:
                out.write(record)

    path = made(folder / ("records.bagz" if zstd else "records.bag"), write)
    memory = module.LimitsStorage.IN_MEMORY

    def opened(threads: int) -> Any:
        options = module.Reader.Options(
            compression=codec, limits_storage=memory, max_parallelism=threads
        )
        return module.Reader(str(path), options)

    # It has a hundred threads unless told otherwise, which is for remote files.
    for threads in (1, 2):
        name = f"bagz, read_indices, max_parallelism={threads}"
        yield Peer(name, opened(threads).read_indices, _as_they_are, CALLS // 4)
    one = opened(1)
    yield Peer("bagz, one by one", lambda rows: [one[row] for row in rows.tolist()], _as_they_are)


def _lmdb(records: Records, folder: Path, zstd: bool) -> Iterator[Peer]:
    import lmdb

    keys = [row.to_bytes(4, "big") for row in range(len(records))]

    def write(path: Path) -> None:
        size = 3 * records.values.nbytes + (1 << 26)
        with (
            lmdb.open(str(path), map_size=size, subdir=False, lock=False) as env,
            env.begin(write=True) as transaction,
        ):
            for key, value in zip(keys, _packed(records) if zstd else records, strict=True):
                transaction.put(key, value, append=True)

    path = made(folder / ("zstd.lmdb" if zstd else "raw.lmdb"), write)
    env = lmdb.open(str(path), subdir=False, readonly=True, lock=False)
    views: Any = env.begin(buffers=True)
    if zstd:
        yield from _lmdb_zstd(views, keys)
        return
    copies: Any = env.begin()
    cursor = copies.cursor()

    def get(rows: Rows) -> list[bytes]:
        return [copies.get(keys[row]) for row in rows.tolist()]

    def get_multi(rows: Rows) -> list[bytes]:
        # One value for each key, so neither duplicates nor absent keys have to be sorted out.
        return [value for _, value in cursor.getmulti([keys[row] for row in rows.tolist()])]

    def join(rows: Rows) -> tuple[bytes, list[int]]:
        found = [views.get(keys[row]) for row in rows.tolist()]
        return b"".join(found), [len(each) for each in found]

    yield Peer("LMDB, get", get, _as_they_are)
    yield Peer("LMDB, getmulti", get_multi, _as_they_are)
    yield Peer("LMDB, get, buffers=True, joined", join, _parts)


def _lmdb_zstd(views: Any, keys: Sequence[bytes]) -> Iterator[Peer]:
    """LMDB knows no compression; zstandard unpacks a whole batch with one call."""
    import zstandard

    unpack = zstandard.ZstdDecompressor().multi_decompress_to_buffer
    for threads in (0, 2):

        def take(rows: Rows, threads: int = threads) -> Any:
            return unpack([views.get(keys[row]) for row in rows.tolist()], threads=threads)

        name = "LMDB and zstandard" + (f", {threads} threads" if threads else "")
        yield Peer(name, take, lambda got: [got[i].tobytes() for i in range(len(got))])


def _lance(records: Records, folder: Path, zstd: bool) -> Iterator[Peer]:
    import lance
    import pyarrow as pa

    module: Any = lance
    codec = "zstd" if zstd else "none"

    def write(path: Path) -> None:
        column: Any
        if records.shape is None:
            column = pa.LargeBinaryArray.from_buffers(
                pa.large_binary(),
                len(records),
                [None, pa.py_buffer(records.offsets), pa.py_buffer(records.values)],
            )
        else:
            column = pa.FixedSizeListArray.from_arrays(
                pa.array(records.values), _row_bytes(records)
            )
        about = {"lance-encoding:compression": codec}
        if zstd:
            about["lance-encoding:compression-level"] = str(LEVEL)
        field = pa.field("x", column.type, nullable=False, metadata=about)
        module.write_dataset(pa.table([column], schema=pa.schema([field])), str(path))

    dataset = module.dataset(str(made(folder / f"{codec}.lance", write)))

    def payloads(table: Any) -> list[bytes]:
        column = table.column("x").combine_chunks()
        if records.shape is None:
            return [value.as_buffer().to_pybytes() for value in column]
        values = column.flatten().to_numpy().reshape(len(column), -1)
        return [value.tobytes() for value in values]

    yield Peer("Lance, take", dataset.take, payloads, _SLOW)


def _hdf5(records: Records, folder: Path, zstd: bool) -> Iterator[Peer]:
    import h5py

    options: dict[str, Any] = {}
    if zstd:
        import hdf5plugin

        plugin: Any = hdf5plugin
        options = {"chunks": (_HDF5_CHUNK_BYTES,), **plugin.Zstd(clevel=LEVEL)}

    def write(path: Path) -> None:
        with h5py.File(path, "w", libver="latest") as out:
            data = records.values if records.shape is None else records.table
            out.create_dataset("x", data=data, **options)

    path = made(folder / ("zstd.h5" if zstd else "raw.h5"), write)
    data = h5py.File(path, "r", libver="latest")["x"]
    if records.shape is None:
        offsets = records.offsets

        def slices(rows: Rows) -> list[NDArray[np.uint8]]:
            pairs = zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True)
            return [data[a:b] for a, b in pairs]

        yield Peer("HDF5, slices of flat values", slices, _as_they_are, _SLOW)
        return

    def fancy(rows: Rows) -> NDArray[np.uint8]:
        # It wants every row once, in order.
        wanted, places = np.unique(rows, return_inverse=True)
        taken: NDArray[np.uint8] = data[wanted][places]
        return taken

    yield Peer("HDF5, sorted rows", fancy, _as_they_are, _SLOW)
    yield Peer("HDF5, one by one", lambda rows: [data[row] for row in rows], _as_they_are, _SLOW)


_FORMATS: dict[str, tuple[Sequence[str], Callable[[Records, Path, bool], Iterator[Peer]]]] = {
    "loaderx": (["loaderx"], _loaderx),
    "array_record": (["array_record"], _array_record),
    "bagz": (["bagz"], _bagz),
    "LMDB": (["lmdb"], _lmdb),
    "Lance": (["lance", "pyarrow"], _lance),
    "HDF5": (["h5py"], _hdf5),
}


def _packed(records: Records) -> Iterator[bytes]:
    import zstandard

    pack = zstandard.ZstdCompressor(level=LEVEL).compress
    return (pack(record) for record in records)


def _row_bytes(records: Records) -> int:
    return int(np.prod(records.shape or ()))


def _as_they_are(got: Any) -> Any:
    return got


def _voids(got: Any) -> list[bytes]:
    return [value.tobytes() for value in got]


def _parts(got: tuple[bytes, Sequence[int]]) -> list[bytes]:
    whole, lengths = got
    ends = np.cumsum(lengths).tolist()
    return [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]

"""The other ways to read runs: plain Python, a file for each, and LMDB."""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Call, Candidate
from stepwell import _core, game2048
from stepwell.game2048.runs import RunBatch
from stepwell.stores.pack.layout import ENTRY
from stepwell.stores.pack.payload import Payloads

PYTHON = "plain Python"
FILES, FILES_THREADS = "a file each, Run.load", "a file each, Run.load, 2 threads"
READ_FILES = ("a file each, open, read, close", "a file each, into one buffer, one at a time")
ALONE, ALONE_CACHED = "decoding alone", "decoding alone, payloads in cache"
LMDB_COPIES = ("LMDB, get", "LMDB, getmulti")
LMDB_DROPPED = "LMDB, get, one at a time"
LMDB_VIEWS = ("LMDB, get, buffers=True", "LMDB, getmulti, buffers=True")

CALLS = 60
"""Decoded batches in a turn: enough to forget who had the turn before."""

_FOUR = struct.Struct("<xfxfxfxf").unpack_from
_FLOAT = struct.Struct("<f").unpack_from


class PlainRun(NamedTuple):
    """A run as Python's own numbers; nothing is made of them that costs more."""

    head: tuple[int, int, float, int, int, str | None]
    boards: list[int]
    moves: list[int]
    legal: list[int]
    values: list[Sequence[float]]
    final_board: int


def python_decode(data: bytes) -> PlainRun:
    """Decode a run of version 2: straight on, in one loop, and trusting every byte."""
    head, count, at = _head(data)
    boards, moves, legal = [], [], []
    values: list[Sequence[float]] = []
    nothing = (0.0, 0.0, 0.0, 0.0)
    for _ in range(count):
        byte = data[at]
        at += 1
        board = byte & 127
        shift = 7
        while byte > 127:
            byte = data[at]
            at += 1
            board |= (byte & 127) << shift
            shift += 7
        boards.append(board)
        moves.append(data[at])
        at += 2
        if not data[at - 1]:
            legal.append(0)
            values.append(nothing)
        elif not (data[at] or data[at + 5] or data[at + 10] or data[at + 15]):
            legal.append(15)  # two steps of three are such
            values.append(_FOUR(data, at))
            at += 20
        else:
            mask = 0
            four = [0.0, 0.0, 0.0, 0.0]
            for move in range(4):
                if data[at]:
                    at += 1
                else:
                    (four[move],) = _FLOAT(data, at + 1)
                    mask |= 1 << move
                    at += 5
            legal.append(mask)
            values.append(four)
    final_board, at = _varint(data, at)
    assert at == len(data)
    return PlainRun(head, boards, moves, legal, values, final_board)


def _head(data: bytes) -> tuple[tuple[int, int, float, int, int, str | None], int, int]:
    steps, at = _varint(data, 0)
    start, at = _varint(data, at)
    (elapsed,) = _FLOAT(data, at)
    score, at = _varint(data, at + 4)
    tile, at = _varint(data, at)
    engine = None
    if data[at]:
        length, begin = _varint(data, at + 1)
        at = begin + length
        engine = data[begin:at].decode()
    else:
        at += 1
    count, at = _varint(data, at)
    return (steps, start, elapsed, score, tile, engine), count, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def decoders(files: Sequence[Path]) -> Iterator[Candidate]:
    """Everybody who turns the numbers of runs into steps."""
    payloads = [file.read_bytes() for file in files]
    pool = ThreadPoolExecutor(2)

    def python(rows: NDArray[np.int64]) -> object:
        return [python_decode(payloads[row]) for row in rows.tolist()]

    def load(rows: NDArray[np.int64]) -> object:
        return [game2048.Run.load(files[row]) for row in rows.tolist()]

    def load_threads(rows: NDArray[np.int64]) -> object:
        return list(pool.map(game2048.Run.load, [files[row] for row in rows.tolist()]))

    yield Candidate.of(PYTHON, python, calls=1)
    yield Candidate.of(FILES, load, calls=10)
    yield Candidate.of(FILES_THREADS, load_threads, calls=10)
    yield from _decoding(payloads)


def _decoding(payloads: Sequence[bytes]) -> Iterator[Candidate]:
    """The core's part of a batch and nothing else: no file, no sums, no list of runs.

    The payloads lie in memory of their own: all of them, of which a batch finds few in the
    caches, or the same batch over and over, of which it finds what the caches hold.
    """
    lengths = np.array([len(payload) for payload in payloads])
    file = np.frombuffer(b"".join(payloads), np.uint8)
    entries = np.zeros(len(payloads), ENTRY)
    entries["length"], entries["kind"] = lengths, 2
    entries["offset"][1:] = np.cumsum(lengths[:-1])
    threads = _core.usable_cores()

    def decode(rows: NDArray[np.int64]) -> object:
        return RunBatch(Payloads(file, entries[rows], rows), threads=threads)

    first = np.arange(0, len(payloads))

    def decode_first(rows: NDArray[np.int64]) -> object:
        return decode(first[: len(rows)])

    yield Candidate.of(ALONE, decode, calls=CALLS)
    yield Candidate.of(ALONE_CACHED, decode_first, calls=CALLS)


def file_reads(files: Sequence[Path]) -> Iterator[Candidate]:
    """A file for each payload, opened unbuffered, which is quickest."""
    buffer = memoryview(bytearray(max(file.stat().st_size for file in files) + 1))

    def read(rows: NDArray[np.int64]) -> object:
        payloads = []
        for row in rows.tolist():
            with open(files[row], "rb", buffering=0) as file:
                payloads.append(file.read())
        return payloads

    def read_into(rows: NDArray[np.int64]) -> None:
        for row in rows.tolist():
            with open(files[row], "rb", buffering=0) as file:
                file.readinto(buffer)

    for name, call in zip(READ_FILES, (read, read_into), strict=True):
        yield Candidate.of(name, call, calls=20)


def one_at_a_time(get: Callable[[int], object]) -> Call:
    """A payload is gone when the next one comes: memory is used again and stays in the caches."""

    def call(rows: NDArray[np.int64]) -> None:
        for row in rows.tolist():
            get(row)

    return call


def has_lmdb() -> bool:
    return find_spec("lmdb") is not None


def lmdb_reads(files: Sequence[Path], scratch: Path) -> Iterator[Candidate]:
    """LMDB in one transaction that stays open, with keys made beforehand, one by one or at once."""
    import lmdb

    keys = [i.to_bytes(4, "big") for i in range(len(files))]
    size = sum(file.stat().st_size for file in files)
    path = str(scratch / "lmdb")
    with (
        lmdb.open(path, map_size=2 * size + (1 << 26), subdir=False) as env,
        env.begin(write=True) as transaction,
    ):
        for key, file in zip(keys, files, strict=True):
            transaction.put(key, file.read_bytes(), append=True)
    env = lmdb.open(path, subdir=False, readonly=True, lock=False)
    copies, views = env.begin(), env.begin(buffers=True)
    for names, reading in ((LMDB_COPIES, copies), (LMDB_VIEWS, views)):
        yield Candidate.of(names[0], _gets(reading, keys), calls=50)
        yield Candidate.of(names[1], _get_multi(reading, keys), calls=50)
    yield Candidate.of(LMDB_DROPPED, one_at_a_time(lambda row: copies.get(keys[row])), calls=50)


def _gets(transaction: Any, keys: Sequence[bytes]) -> Call:
    get = transaction.get
    return lambda rows: [get(keys[row]) for row in rows.tolist()]


def _get_multi(transaction: Any, keys: Sequence[bytes]) -> Call:
    cursor = transaction.cursor()

    def call(rows: Any) -> object:
        # One value for each key, so neither duplicates nor absent keys have to be sorted out.
        return [value for _, value in cursor.getmulti([keys[row] for row in rows.tolist()])]

    return call


def read_all(candidates: Iterable[Candidate], files: Sequence[Path], batch: int) -> None:
    """Compare everything that everybody gives with the files; their pages are mapped then."""
    for begin in range(0, len(files), batch):
        rows = np.arange(begin, min(begin + batch, len(files)))
        expected = [file.read_bytes() for file in files[begin : begin + batch]]
        for candidate in candidates:
            with candidate.ready() as call:
                given: Any = call(rows)
            if given is None:  # one at a time
                continue
            payloads = given["payload"] if isinstance(given, dict) else given
            if list(map(bytes, payloads)) != expected:
                raise SystemExit(f"{candidate.name}: not the bytes of the files")

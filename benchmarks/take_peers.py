"""The other ways to take rows of a table in memory, each in the form that suits it best."""

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stepwell as sw
from benchmarks.measure import CALLS, Candidate
from benchmarks.probe import probe
from benchmarks.rows import FLAT, FOLDER, ROW, as_void, split

NUMPY = ("np.take, void, out=", "np.take, void, out=, mode='clip'")
NUMPY_FIELDS = "np.take, void, out=, then split"
FANCY = "array[rows]"

# ArrayRecord answers in tens of milliseconds: it gets fewer calls, and rows that all fit a
# processor's cache, which flatters it.
ARRAY_RECORD_ROWS = 200_000


def probe_name(threads: int) -> str:
    return f"C++ probe, {threads} thread{'s' if threads > 1 else ''}"


def probes(table: NDArray[Any], batch: int, *, threads: int) -> Iterator[Candidate]:
    """The limit, on one thread and on `threads`."""
    out = np.empty(batch, table.dtype)
    for count in sorted({1, threads}):
        yield Candidate(probe_name(count), partial(probe, table, out, threads=count))


def numpy_takes(array: NDArray[Any], mapped: NDArray[Any], batch: int) -> Iterator[Candidate]:
    """NumPy on an array in memory, and on a mapped file."""
    void, mapped_void = as_void(array), as_void(mapped)
    out = np.empty(batch, void.dtype)

    def fields(rows: NDArray[np.int64]) -> object:
        return split(np.take(void, rows, out=out, mode="clip").view(ROW))

    def from_file(rows: NDArray[np.int64]) -> object:
        return np.take(mapped_void, rows, out=out, mode="clip")

    checked, clipped = NUMPY
    yield Candidate.of(checked, lambda rows: np.take(void, rows, out=out))
    yield Candidate.of(clipped, lambda rows: np.take(void, rows, out=out, mode="clip"))
    yield Candidate.of("np.take, void, out=, mapped file", from_file)
    yield Candidate.of(FANCY, lambda rows: array[rows], calls=CALLS // 5)
    yield Candidate.of(NUMPY_FIELDS, fields)


def torch_takes(array: NDArray[Any], batch: int) -> Iterator[Candidate]:
    """torch on rows of four words, and tensordict where it is installed."""
    import torch

    words = torch.from_numpy(array.view(np.int64).reshape(len(array), -1))
    out = torch.empty((batch, words.shape[1]), dtype=words.dtype)

    def index_select(rows: NDArray[np.int64]) -> object:
        return torch.index_select(words, 0, torch.from_numpy(rows), out=out)

    yield Candidate.of("torch.index_select, out=", index_select)
    if find_spec("tensordict"):
        from tensordict import TensorDict

        table = TensorDict({"row": words}, batch_size=[len(words)])
        yield Candidate.of("tensordict, one packed column", lambda r: table[torch.from_numpy(r)])


def array_record_takes(array: NDArray[Any]) -> Iterator[Candidate]:
    """ArrayRecord over the first rows, where it is installed."""
    if not find_spec("array_record"):
        return
    count = min(len(array), ARRAY_RECORD_ROWS)
    reader = open_array_record(array[:count])

    def read(rows: NDArray[np.int64]) -> object:
        return np.frombuffer(b"".join(reader.read((rows % count).tolist())), ROW)

    yield Candidate.of("array_record", read, calls=CALLS // 50)


COLUMNS, MAPPED = "column arrays, np.take of each", "mapped file, np.take"
SQLITE, PARQUET = "SQLite in RAM", "Parquet in RAM"

# They answer in tens and hundreds of milliseconds, and get rows that fit a cache.
DATABASE_ROWS = 1_000_000


def alternatives(array: NDArray[Any], mapped: NDArray[Any], batch: int) -> Iterator[Candidate]:
    """What the design of step datasets (seed 000) decided against, each in its best form."""
    columns, void = split(array), as_void(mapped)
    out = np.empty(batch, void.dtype)
    outs = {
        name: np.empty((batch, *values.shape[1:]), values.dtype) for name, values in columns.items()
    }

    def gathers(rows: NDArray[np.int64]) -> object:
        return [np.take(columns[n], rows, axis=0, out=outs[n], mode="clip") for n in columns]

    yield Candidate.of(COLUMNS, gathers, calls=CALLS // 5)
    yield Candidate.of(MAPPED, lambda rows: np.take(void, rows, out=out, mode="clip"))
    count = min(len(array), DATABASE_ROWS)
    yield Candidate.of(SQLITE, _sqlite(array[:count]), calls=CALLS // 50)
    yield Candidate.of(PARQUET, _parquet(array[:count]), calls=CALLS // 50)


def _sqlite(array: NDArray[Any]) -> Callable[[NDArray[np.int64]], object]:
    """A table in memory, found by its key: one statement for a batch, and arrays of its rows."""
    database = sqlite3.connect(":memory:", check_same_thread=False)
    flat = FLAT.names or ()
    names = ", ".join(f'"{name}"' for name in flat)
    database.execute(f"CREATE TABLE steps (id INTEGER PRIMARY KEY, {names})")
    signed = array.view(FLAT)  # SQLite has no unsigned numbers of 64 bits
    marks = ", ".join("?" * (len(flat) + 1))
    database.executemany(
        f"INSERT INTO steps VALUES ({marks})", ((i, *row) for i, row in enumerate(signed.tolist()))
    )
    sql = f"SELECT {names} FROM json_each(?) AS j CROSS JOIN steps ON steps.id = j.value"

    def take(rows: NDArray[np.int64]) -> object:
        found = database.execute(sql, (json.dumps((rows % len(array)).tolist()),)).fetchall()
        return np.array(found, FLAT)

    return take


def _parquet(array: NDArray[Any]) -> Callable[[NDArray[np.int64]], object]:
    """A file in memory, neither compressed nor encoded, of which the rows are taken."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = array.view(FLAT)
    table = pa.table({name: np.ascontiguousarray(flat[name]) for name in FLAT.names or ()})
    written = pa.BufferOutputStream()
    pq.write_table(table, written, compression="none", use_dictionary=False)
    file = pa.BufferReader(written.getvalue())
    return lambda rows: pq.read_table(file).take(rows % len(array))


def open_array_record(array: NDArray[Any]) -> Any:
    """A reader of a file with a record for each row. It alone holds the file."""
    from array_record.python.array_record_module import ArrayRecordReader

    FOLDER.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="array_record-", dir=FOLDER))
    try:
        sw.convert(sw.ArraySource(array).packed(), folder / "rows", to="arrayrecord")
        (file,) = folder.glob("rows/*.array_record")
        return ArrayRecordReader(str(file), "readahead_buffer_size:0")
    finally:
        shutil.rmtree(folder)

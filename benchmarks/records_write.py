"""Writing to record stores, putting them in order, and opening them."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stepwell as sw
from benchmarks import measure, records_data as data
from benchmarks.measure import Candidate
from benchmarks.records_data import ROW_BYTES
from benchmarks.results import Case, Measured, Target, console

_OURS = "stepwell"
_PLAIN = ("plain file, write and fsync", "plain file, write and fdatasync")
_LMDB = "LMDB, a transaction"
_COPIES = ("shutil.copyfile and fsync", "cp and sync")

_COMMIT_RECORDS = 1000
_COMMITS = 10
"""Of a turn."""
_SMALL_BYTES = 32
"""Of a record that is a value of a column."""

Table = NDArray[np.uint8]


def append_cases(folder: Path, rounds: int) -> list[Case]:
    """Records to the disk, a commit for every thousand."""
    table = data.fixed(_COMMIT_RECORDS, (ROW_BYTES,)).table
    with ExitStack() as stack:
        store = stack.enter_context(_scratch_store(folder / "append"))

        def append(_: object) -> None:
            store.append({"x": table})
            store.commit()

        primed = partial(_primed, folder, _COMMITS * table.nbytes)
        candidates = [Candidate(_OURS, partial(primed, append), _COMMITS)]
        for name, sync in zip(_PLAIN, (os.fsync, os.fdatasync), strict=True):
            path = folder / name
            stack.callback(path.unlink)
            file = stack.enter_context(path.open("wb", buffering=0))
            ready = partial(primed, _writing(file, table, sync))
            candidates.append(Candidate(name, ready, _COMMITS))
        if lmdb := stack.enter_context(_lmdb(folder, table.nbytes * _COMMITS * (rounds + 1))):
            candidates.append(Candidate(_LMDB, partial(primed, _putting(lmdb, table)), _COMMITS))
        before = measure.reset_peak()
        with measure.AnonymousPeak() as peak:
            for _ in range(_COMMITS):
                append(None)
        rss = measure.peak_bytes() - before
        data.settle()
        seconds = measure.race(candidates, lambda: None, rounds=rounds)
    known = {"rss_bytes": rss, "anonymous_bytes": peak.bytes - peak.before}
    found = _by_record(seconds, _COMMIT_RECORDS)
    ours = Measured.of(
        [s / _COMMIT_RECORDS * 1e6 for s in seconds[_OURS]],
        rows_per_s=found.pop(_OURS).rows_per_s,
        **known,
    )
    return [
        Case(
            f"append {_COMMIT_RECORDS:,} records of {ROW_BYTES:,} bytes and commit",
            "us a record",
            ours,
            found,
            [
                Target(
                    "of the speed of a plain file, write and fsync",
                    found[_PLAIN[0]].median / ours.median,
                    at_least=0.7,
                )
            ],
            "on the disk after each commit; a store syncs twice, the payloads and then the journal",
        )
    ]


def small_cases(rows: int, folder: Path, rounds: int) -> list[Case]:
    """Records of four small fields: their size on the disk, and the price of a commit of many."""
    path, names = folder / "small-fields", "abcd"
    table = {name: np.arange(rows, dtype="<f8") for name in names}
    raw = rows * 8 * len(names)
    seconds = []
    for _ in range(rounds):
        data.remove(path)
        data.settle()
        begin = time.perf_counter()
        with sw.RecordWriter(path, dict.fromkeys(names, "<f8")) as store:
            store.append(table)
        seconds.append((time.perf_counter() - begin) / rows * 1e6)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    data.remove(path)
    ours = Measured.of(seconds, rows_per_s=1e6 / float(np.median(seconds)))
    return [
        Case(
            f"append {rows:,} records of 4 fields of 8 bytes, commit and close",
            "us a record",
            ours,
            {},
            [Target("times their raw size on the disk", size / raw, at_most=1.25)],
            f"{size:,} bytes for {raw:,}",
        )
    ]


def update_cases(rows: int, folder: Path, rounds: int) -> list[Case]:
    """Random records, replaced or deleted, in commits of two sizes; small ones, too."""
    few, many = (_COMMIT_RECORDS, _COMMITS), (10 * _COMMIT_RECORDS, 1)
    return [
        case
        for size, (count, commits) in ((ROW_BYTES, few), (ROW_BYTES, many), (_SMALL_BYTES, few))
        if count * _COMMITS <= rows
        for case in _update_cases(rows, size, count, folder, rounds, commits)
    ]


def _update_cases(
    rows: int, size: int, count: int, folder: Path, rounds: int, commits: int
) -> list[Case]:
    table = data.fixed(count, (size,)).table
    rng = np.random.default_rng(2)
    with ExitStack() as stack:
        store = stack.enter_context(_scratch_store(folder / "update", size))
        _fill(store, rows, size)

        def update(wanted: NDArray[np.int64]) -> None:
            store.update(wanted, {"x": table})
            store.commit()

        def delete(wanted: NDArray[np.int64]) -> None:
            store.delete(wanted)
            store.commit()

        def distinct() -> NDArray[np.int64]:
            return rng.choice(len(store), count, replace=False)

        primed = partial(_primed, folder, commits * table.nbytes)
        candidates = [Candidate(_OURS, partial(primed, update), commits)]
        if lmdb := stack.enter_context(_lmdb(folder, rows * size)):
            with lmdb.begin(write=True) as transaction:
                for row in range(rows):
                    transaction.put(_key(row), table[row % count].data, append=True)
            candidates.append(Candidate(_LMDB, partial(primed, _replacing(lmdb, table)), commits))
        data.settle()
        updated = _by_record(measure.race(candidates, distinct, rounds=rounds), count)
        deletes = [Candidate.of(_OURS, delete, calls=commits)]
        few = max(1, min(rounds, rows // 2 // (count * commits)))
        deleted = _by_record(measure.race(deletes, distinct, rounds=few), count)
    small = f" of {size} bytes" if size < ROW_BYTES else ""
    return [
        _update_case(f"{what} {count:,} random records{small} of {rows:,}", size, found)
        for what, found in (("update", updated), ("delete", deleted))
    ]


def _update_case(title: str, size: int, found: dict[str, Measured]) -> Case:
    ours = found.pop(_OURS)
    speed = (ours.rows_per_s or 0) / 1e3
    return Case(
        f"{title} and commit",
        "us a record",
        ours,
        found,
        [Target("thousand records/s", speed, at_least=100)],
        f"{size:,} bytes each; on the disk after each commit",
    )


def rebalance_cases(rows: int, folder: Path) -> list[Case]:
    """A store of which a fifth was replaced, written again: against a copy of what comes out."""
    copy = folder / "copy"
    with ExitStack() as stack:
        store = stack.enter_context(_scratch_store(folder / "rebalance"))
        stack.callback(shutil.rmtree, copy, ignore_errors=True)
        _fill(store, rows)
        rng = np.random.default_rng(3)
        table = data.fixed(rows // 5, (ROW_BYTES,)).table
        seconds: dict[str, list[float]] = {name: [] for name in (_OURS, *_COPIES)}
        chunks = folder / "rebalance" / "chunk"
        memory, size = (0, 0), 2 * rows * ROW_BYTES
        for turn in range(4):
            store.update(rng.choice(rows, len(table), replace=False), {"x": table})
            store.commit()
            data.settle()
            measure.prime_page_cache(folder, size)
            before = measure.reset_peak()
            with measure.AnonymousPeak() as peak:
                taken = _seconds(store.rebalance)
            if turn == 0:  # memory, once; looking at it every millisecond takes time
                memory = measure.peak_bytes() - before, peak.bytes - peak.before
            else:
                seconds[_OURS].append(taken)
            for name, copying in zip(_COPIES, (_copy_files, _cp), strict=True):
                shutil.rmtree(copy, ignore_errors=True)
                data.settle()
                measure.prime_page_cache(folder, size)
                if turn:
                    seconds[name].append(_seconds(partial(copying, chunks, copy)))
        written = sum(file.stat().st_size for file in chunks.iterdir())
    found = {name: Measured.of(each) for name, each in seconds.items()}
    ours = Measured.of(seconds[_OURS], rss_bytes=memory[0], anonymous_bytes=memory[1])
    del found[_OURS]
    quickest = min(found, key=lambda name: found[name].median)
    return [
        Case(
            f"rebalance {rows:,} records of {ROW_BYTES:,} bytes, a fifth of them replaced before",
            "s",
            ours,
            found,
            [
                Target(
                    f"of the speed of the quickest copy of the chunks ({quickest})",
                    found[quickest].median / ours.median,
                    at_least=0.5,
                )
            ],
            f"{written / 1e6:.0f} MB come out, which are copied to compare; on the disk at the end",
        )
    ]


def open_cases(rows: int, folder: Path, rounds: int) -> list[Case]:
    path = folder / "tiny"

    def write(new: Path) -> None:
        with sw.RecordWriter(new, {"x": ("u1", (4,))}) as out:
            for begin in range(0, rows, 1 << 20):
                count = min(1 << 20, rows - begin)
                out.append(
                    {"x": np.arange(begin, begin + count, dtype="<u4").view("u1").reshape(-1, 4)}
                )
                out.commit()

    begin = time.perf_counter()
    data.made(path, write)
    built = time.perf_counter() - begin
    data.settle()
    before = measure.reset_peak()
    with measure.AnonymousPeak() as peak:
        store = sw.RecordReader.open(path)
    rss = measure.peak_bytes() - before
    assert len(store) == rows
    assert store.take([rows - 1])["x"].view("<u4")[0, 0] == rows - 1
    store.close()

    def opened(_: object) -> None:
        sw.RecordReader.open(path).close()

    def first(_: object) -> None:
        with sw.RecordReader.open(path) as each:
            each.take(np.arange(0, rows, rows // 256)[:256])

    candidates = [
        Candidate.of(_OURS, opened, calls=10),
        Candidate.of("stepwell, and 256 records of all chunks", first, calls=10),
    ]
    seconds = measure.race(candidates, lambda: None, rounds=rounds)
    found = {name: Measured.of([s * 1e3 for s in each]) for name, each in seconds.items()}
    del found[_OURS]
    ours = Measured.of(
        [s * 1e3 for s in seconds[_OURS]],
        rss_bytes=rss,
        anonymous_bytes=peak.bytes - peak.before,
    )
    return [
        Case(
            f"open a store of {rows:,} records",
            "ms",
            ours,
            found,
            [Target("median, ms", ours.median, at_most=50)],
            f"4 bytes each, written in {built:.1f} s",
        )
    ]


@contextmanager
def _primed(folder: Path, size: int, call: measure.Call) -> Iterator[measure.Call]:
    """A turn of someone who writes so much: with as much memory at hand as the others have."""
    measure.prime_page_cache(folder, 2 * size)
    yield call


@contextmanager
def _scratch_store(path: Path, size: int = ROW_BYTES) -> Iterator[sw.RecordWriter]:
    """An empty store to write to, gone afterwards."""
    data.remove(path)
    try:
        with sw.RecordWriter(path, {"x": ("u1", (size,))}) as store:
            yield store
    finally:
        data.remove(path)


def _fill(store: sw.RecordWriter, rows: int, size: int = ROW_BYTES) -> None:
    table = data.fixed(10_000, (size,)).table
    for begin in range(0, rows, len(table)):
        store.append({"x": table[: rows - begin]})
        store.commit()


@contextmanager
def _lmdb(folder: Path, size: int) -> Iterator[Any]:
    """An empty database, gone afterwards; None where LMDB is not installed."""
    if find_spec("lmdb") is None:
        console.print("[dim]LMDB is left out: lmdb not installed[/]")
        yield None
        return
    import lmdb

    path = folder / "write.lmdb"
    data.remove(path)
    try:
        # Room for pages that a commit still holds.
        with lmdb.open(str(path), map_size=8 * size + (1 << 30), subdir=False) as env:
            yield env
    finally:
        data.remove(path)
        data.remove(path.with_name(f"{path.name}-lock"))


def _writing(file: Any, table: Table, sync: Callable[[int], None]) -> Callable[[object], None]:
    def write(_: object) -> None:
        file.write(table)
        sync(file.fileno())

    return write


def _putting(env: Any, table: Table) -> Callable[[object], None]:
    def put(_: object) -> None:
        begin = env.stat()["entries"]
        with env.begin(write=True) as transaction:
            for i, value in enumerate(table, begin):
                transaction.put(_key(i), value.data, append=True)

    return put


def _replacing(env: Any, table: Table) -> Callable[[NDArray[np.int64]], None]:
    def replace(wanted: NDArray[np.int64]) -> None:
        with env.begin(write=True) as transaction:
            for row, value in zip(wanted.tolist(), table, strict=False):
                transaction.put(_key(row), value.data)

    return replace


def _key(row: int) -> bytes:
    return row.to_bytes(4, "big")


def _by_record(seconds: dict[str, list[float]], count: int) -> dict[str, Measured]:
    return {
        name: Measured.of(
            [s / count * 1e6 for s in each], rows_per_s=count / float(np.median(each))
        )
        for name, each in seconds.items()
    }


def _copy_files(chunks: Path, copy: Path) -> None:
    copy.mkdir()
    for file in chunks.iterdir():
        shutil.copyfile(file, copy / file.name)
        with (copy / file.name).open("rb") as done:
            os.fsync(done.fileno())


def _cp(chunks: Path, copy: Path) -> None:
    command = 'cp -r --reflink=never "$1" "$2" && sync "$2"/*'
    subprocess.run(["sh", "-c", command, "sh", str(chunks), str(copy)], check=True)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin

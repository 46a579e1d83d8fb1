"""Step datasets after a kill, a power cut and on a failing disk: whole commits, and all of them."""

import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from stepwell import FormatError, StepReader, StepWriter
from stepwell.files.npy import header_bytes
from stepwell.stores.steps import writer as writer_module
from tests.contract import assert_batch
from tests.crash.disk import Acknowledged, Crash, Disk, Synced, Written, recorded
from tests.crash.faults import Kind, fault, on_a_small_disk
from tests.crash.kills import KILLS, Victims
from tests.steps import COLUMNS, STEP, build, columns, fields, rows_of, rows_of_all

SHARD_ROWS = 16
LARGE_SHARD_ROWS = 128


def length(run: int) -> int:
    return run * 7 % 5


@cache
def _rows_of(run: int) -> NDArray[Any]:
    return rows_of(run, length(run))


@cache
def expected(runs: int) -> NDArray[Any]:
    return np.concatenate([np.empty(0, STEP), *map(_rows_of, range(runs))])


# Promise 1: kills.


def work(folder: Path, first: int) -> Iterator[int]:
    """Append one run after the other, each a commit; the stamp is the number of runs."""
    return _work(folder, first, None)


def work_on_shards(folder: Path, first: int) -> Iterator[int]:
    return _work(folder, first, LARGE_SHARD_ROWS)


def _work(folder: Path, first: int, shard_rows: int | None) -> Iterator[int]:
    for begin in count(first - 1, 3):
        with StepWriter(folder / "steps", STEP, COLUMNS, shard_rows=shard_rows) as writer:
            for run in range(begin, begin + 3):
                writer.append_run(_rows_of(run), **columns(run))
                writer.commit()
                yield run + 1


def runs_of(path: Path) -> int:
    """The number of runs of a dataset, all of which is as it should be, read in plain NumPy."""
    with closing(sqlite3.connect(path / "metadata.db")) as database:
        found = database.execute(
            "SELECT id, first_step_idx, num_steps, max_score FROM runs ORDER BY id"
        ).fetchall()
    ids, begins, steps, scores = np.array(found, np.int64).reshape(-1, 4).T
    assert ids.tolist() == list(range(len(found)))
    assert (scores == ids * 10).all()
    rows = expected(len(found))
    assert begins.tolist() == (np.cumsum(steps) - steps).tolist()
    # Readers of ours see the commits of the database.
    with StepReader.open(path) as dataset:
        assert_batch(dataset[:], fields(rows))
        assert len(dataset.runs) == len(found)
    # Plain NumPy sees them too, but maybe for the last one: the header follows.
    run_ids = np.repeat(ids, steps)
    files = sorted((path / "shards").glob("*.npy"))
    size = LARGE_SHARD_ROWS if files else len(rows)
    for number, file in enumerate(files or [path / "steps.npy"]):
        loaded = np.load(file)
        begin, end = number * size, number * size + len(loaded)
        assert loaded.tobytes() == rows[begin:end].tobytes()
        assert (loaded["run_id"] == run_ids[begin:end]).all()
    return len(found)


def is_behind(path: Path, runs: int) -> bool:
    """Whether a writer was killed inside a commit: a tail, an old header, an old manifest."""
    size = sum(f.stat().st_size - len(header_bytes(STEP, 0)) for f in path.rglob("*.npy"))
    manifest = path / "manifest.json"
    known = json.loads(manifest.read_text())["runs"] if manifest.exists() else 0
    return size != expected(runs).nbytes or known != runs


@pytest.mark.parametrize("worker", ["work", "work_on_shards"])
def test_kills(quick_path: Path, worker: str) -> None:
    path = quick_path / "steps"
    chance = random.Random()
    last = interesting = 0
    longest_s = 0.02
    with Victims(f"tests.crash.test_steps_kills:{worker}", quick_path) as victims:
        for _ in range(KILLS):
            acknowledged = victims.kill(last + 1, chance.uniform(0, longest_s))
            assert acknowledged >= last
            # A few commits in each life, on slow machines too.
            longest_s = min(longest_s * 1.2, 2) if acknowledged == last else longest_s * 0.95
            if not (path / "metadata.db").exists():
                assert acknowledged == 0
                continue
            last = runs_of(path)
            assert last in (acknowledged, acknowledged + 1)
            interesting += is_behind(path, last)
    assert last > 0
    assert interesting > 0  # otherwise no kill came at an interesting moment
    with StepWriter(path) as writer:  # mends
        assert len(writer) == len(expected(last))
    assert StepReader.open(path).verify() == []
    assert not is_behind(path, last)
    assert not list(path.rglob(".*"))  # what kills had left


# Promise 2: power cuts. SQLite's own writes are not recorded: its transaction counts as done or
# not done, after what was synced before it.

LENGTHS = [5, 20, 3, 0, 9]


def snapshot(path: Path) -> bytes:
    """The database as one file."""
    with closing(sqlite3.connect(path / "metadata.db")) as database:
        return database.serialize()


def headers(path: Path) -> set[bytes]:
    return {file.read_bytes()[: len(header_bytes(STEP, 0))] for file in path.rglob("*.npy")}


@contextmanager
def recorded_commits(path: Path) -> Iterator[tuple[StepWriter, Disk, Callable[[int], None]]]:
    """A writer, its disk, and a function that commits up to a number of runs.

    The disk acknowledges ("transaction", runs) when SQLite begins to commit, for it tells of a
    statement before it runs, and ("done", runs) when the commit has returned.
    """
    with StepWriter(path) as writer, recorded(path) as disk:
        there = wanted = len(StepReader.open(path).runs)

        def trace(sql: str) -> None:
            if sql == "COMMIT":
                disk.acknowledge(("transaction", wanted))

        def commit(runs: int) -> None:
            nonlocal there, wanted
            wanted = runs
            for run in range(there, runs):
                writer.append_run(rows_of(run, LENGTHS[run]), **columns(run))
            writer.commit()
            disk.acknowledge(("done", runs))
            there = runs

        assert writer._database is not None
        writer._database.set_trace_callback(trace)
        yield writer, disk, commit


@pytest.mark.parametrize("shard_rows", [None, SHARD_ROWS])
@pytest.mark.parametrize("flush_bytes", [1, 1 << 23])
def test_power_cuts(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, shard_rows: int | None, flush_bytes: int
) -> None:
    monkeypatch.setattr(writer_module, "_FLUSH_BYTES", flush_bytes)
    path = quick_path / "steps"
    build(path, LENGTHS[:1], shard_rows=shard_rows)
    databases = {1: snapshot(path)}
    whole = headers(path) | {header_bytes(STEP, 0)}
    with recorded_commits(path) as (_, disk, commit):
        for runs in (2, 4, 5):
            commit(runs)
            databases[runs] = snapshot(path)
            whole |= headers(path)
    size = len(header_bytes(STEP, 0))
    checked = 0
    for crash in disk.crashes(tries=4):
        what, runs = crash.acknowledged or ("done", 1)
        possible = [runs]
        if what == "transaction" and isinstance(crash.after, Acknowledged):  # now or never
            possible.append(max(n for n in databases if n < runs))
        # A header lies in one sector, which a disk writes whole or not at all.
        arrays = [data for name, data in crash.files.items() if name.endswith(".npy")]
        if all(data[:size] in whole for data in arrays):
            for runs in possible:
                checked += 1
                _check_crash(quick_path / str(checked), crash, databases[runs], runs, checked)
    assert checked > 50


def _check_crash(path: Path, crash: Crash, database: bytes, runs: int, number: int) -> None:
    crash.write(path)
    for file in path.glob("metadata.db*"):
        file.unlink()
    (path / "metadata.db").write_bytes(database)
    want = rows_of_all(LENGTHS[:runs])
    assert_batch(StepReader.open(path)[:], fields(want))
    for file in path.rglob("*.npy"):
        assert len(np.load(file)) <= len(want)
    if number % 4 == 0:
        build(path, LENGTHS)
        assert_batch(StepReader.open(path)[:], fields(rows_of_all(LENGTHS)))
        assert StepReader.open(path).verify() == []
    shutil.rmtree(path)


@pytest.mark.parametrize("shard_rows", [None, SHARD_ROWS])
def test_rows_are_on_the_disk_before_the_transaction(
    quick_path: Path, shard_rows: int | None
) -> None:
    build(quick_path / "steps", LENGTHS[:1], shard_rows=shard_rows)
    with recorded_commits(quick_path / "steps") as (_, disk, commit):
        commit(3)
    at = disk.events.index(Acknowledged(("transaction", 3)))
    before, after = disk.events[:at], disk.events[at:]
    waiting: set[int | str] = set()
    for event in before:
        if isinstance(event, Written):
            waiting.add(event.inode)
        elif isinstance(event, Synced):
            waiting.discard(event.what)
    assert any(isinstance(event, Written) for event in before)
    assert waiting == set()
    assert any(isinstance(event, Written) for event in after)  # header and manifest follow


# Promise 8: errors.


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("shard_rows", [None, SHARD_ROWS])
def test_every_call_fails_once(quick_path: Path, kind: Kind, shard_rows: int | None) -> None:
    old = quick_path / "old"
    build(old, LENGTHS[:2], shard_rows=shard_rows)
    failed = set()
    for number in count():
        path = quick_path / str(number)
        shutil.copytree(old, path)
        error = None
        try:
            with fault(kind, number) as injected:
                build(path, LENGTHS)
        except (OSError, FormatError) as caught:
            error = caught
        if injected.name is None:
            assert error is None
            break
        failed.add(injected.name)
        dataset = StepReader.open(path)
        there = len(dataset.runs)
        assert_batch(dataset[:], fields(rows_of_all(LENGTHS[:there])))
        assert there in ((2, 5) if error else (5,))
        build(path, LENGTHS)
        assert_batch(StepReader.open(path)[:], fields(rows_of_all(LENGTHS)))
        assert StepReader.open(path).verify() == []
        shutil.rmtree(path)
    assert "pwrite" in failed


@pytest.mark.parametrize("kind", ["EIO", "ENOSPC"])
def test_a_beginning_that_fails(quick_path: Path, kind: Kind) -> None:
    for number in count():
        path = quick_path / str(number)
        try:
            with fault(kind, number) as injected:
                StepWriter(path, STEP, COLUMNS).close()
        except OSError:
            pass
        build(path, LENGTHS)
        assert_batch(StepReader.open(path)[:], fields(rows_of_all(LENGTHS)))
        assert not list(path.glob("*.new*"))
        shutil.rmtree(path)
        if injected.name is None:
            break


def test_a_run_that_could_not_be_written_is_not_there(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append that failed has appended nothing, and can be tried again."""
    monkeypatch.setattr(writer_module, "_FLUSH_BYTES", 100)
    with StepWriter(quick_path / "steps", STEP, COLUMNS) as writer:
        for run, steps in enumerate(LENGTHS):
            if steps * STEP.itemsize >= 100:
                with pytest.raises(OSError, match="No space left"), fault("full", 0):
                    writer.append_run(rows_of(run, steps), **columns(run))
            assert len(writer) == sum(LENGTHS[:run])
            assert writer.append_run(rows_of(run, steps), **columns(run)) == run
    assert_batch(StepReader.open(quick_path / "steps")[:], fields(rows_of_all(LENGTHS)))
    assert StepReader.open(quick_path / "steps").verify() == []


FULL = """
import errno, sys
from pathlib import Path
import numpy as np
from stepwell import StepReader, StepWriter
path = Path(sys.argv[1]) / "steps"
dtype = np.dtype([("x", "u1", (1000,)), ("run_id", "<u4")])
acknowledged = 0
try:
    with StepWriter(path, dtype, {"text": str}) as writer:
        for run in range(10_000):
            writer.append_run(np.zeros(run % 3, dtype), text="long " * 300)
            writer.commit()
            acknowledged = run + 1
except OSError as error:
    assert error.errno == errno.ENOSPC, repr(error)
else:
    raise SystemExit("there was room")
dataset = StepReader.open(path, memory="map")
assert len(dataset.runs) in (acknowledged, acknowledged + 1), (len(dataset.runs), acknowledged)
assert dataset[:]["run_id"].tolist() == [r for r in range(len(dataset.runs)) for _ in range(r % 3)]
assert dataset.verify() == []
assert 5 < len(np.load(path / "steps.npy")) <= len(dataset)
print("full")
"""


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    assert on_a_small_disk(tmp_path, "512k", FULL) == "full\n"

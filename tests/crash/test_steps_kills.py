"""Step datasets after a power cut and on a full disk; the exam of every writer has the rest."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from stepwell import StepReader, StepWriter
from stepwell.files.npy import header_bytes
from stepwell.stores.steps import writer as writer_module
from tests.contract import assert_batch
from tests.crash.disk import Acknowledged, Crash, Disk, recorded
from tests.crash.faults import Kind, fault
from tests.steps import COLUMNS, STEP, build, columns, fields, rows_of, rows_of_all

SHARD_ROWS = 16

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
    with StepWriter(path, mode="a") as writer, recorded(path) as disk:
        there = wanted = len(StepReader.open(path).runs)

        def trace(sql: str) -> None:
            if sql == "COMMIT":
                disk.acknowledge(("transaction", wanted))

        def commit(runs: int) -> None:
            nonlocal there, wanted
            wanted = runs
            for run in range(there, runs):
                writer.append(rows_of(run, LENGTHS[run]), **columns(run))
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
    monkeypatch.setattr(writer_module, "KEPT_CHECKSUMS", 0 if flush_bytes == 1 else 1024)
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
        assert StepReader.open(path).verify().ok
    shutil.rmtree(path)


# Promise 8: errors.


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
                    writer.append(rows_of(run, steps), **columns(run))
            assert len(writer) == sum(LENGTHS[:run])
            assert writer.append(rows_of(run, steps), **columns(run)) == run
    assert_batch(StepReader.open(quick_path / "steps")[:], fields(rows_of_all(LENGTHS)))
    assert StepReader.open(quick_path / "steps").verify().ok

"""Shards that fill up: each is a commit of its own, in the middle of an append."""

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from stepwell import FormatError, ShardReader, ShardWriter
from tests.crash.disk import recorded
from tests.crash.faults import Kind, fault
from tests.reference import shards as reference

WIDTH = 3
SHARD_ROWS = 5
SHARD_BYTES = SHARD_ROWS * WIDTH * 4


def rows_of(begin: int, end: int) -> NDArray[Any]:
    """Something that differs for every row and value."""
    return np.arange(begin * WIDTH, end * WIDTH, dtype=np.float32).reshape(-1, WIDTH)


def rows_in(path: Path) -> int:
    """The rows of a corpus, all of which is as it should be; 0 where there is none."""
    if not list(path.glob("*.shard")):
        return 0
    shards = reference.read_corpus(reference.names_in(path))
    got = np.array([row for shard in shards for row in shard.rows])
    np.testing.assert_array_equal(got, rows_of(0, len(got)))
    reader = ShardReader.open(path)
    assert reader.verify().ok
    np.testing.assert_array_equal(reader[:]["data"], got)
    return len(got)


def writer_of(path: Path) -> ShardWriter:
    return ShardWriter(path, WIDTH, mode="a", shard_bytes=SHARD_BYTES)


def test_power_cuts(quick_path: Path) -> None:
    path = quick_path / "acts"
    path.mkdir()
    with recorded(path) as disk, writer_of(path) as writer:
        writer.append(rows_of(0, 12))  # two shards and two rows
        disk.acknowledge(writer.rows)
        writer.append(rows_of(12, 18))
        disk.acknowledge(writer.rows)
        writer.close()
        disk.acknowledge(writer.rows)
    for number, crash in enumerate(disk.crashes(tries=2)):
        with crash.restarted(quick_path / str(number)) as copy:
            there = rows_in(copy)
        assert there % SHARD_ROWS == 0 or there == 18
        assert there >= (crash.acknowledged or 0), crash.after
    assert number > 30


def grow(path: Path, rows: int) -> None:
    with writer_of(path) as writer:
        at = len(writer)
        for begin in range(at, rows, 8):
            writer.append(rows_of(begin, min(begin + 8, rows)))


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_call_fails_once(quick_path: Path, kind: Kind) -> None:
    failed = set()
    for number in count():
        path = quick_path / str(number)
        error = None
        try:
            with fault(kind, number) as injected:
                grow(path, 19)
        except (OSError, FormatError, ValueError) as caught:
            error = caught
        if injected.name is None:
            assert error is None
            break
        failed.add(injected.name)
        there = rows_in(path)
        assert there == 19 if error is None else there % SHARD_ROWS == 0 or there == 19
        if injected.name not in ("close", "unlink"):
            assert not list(path.glob(".*.tmp"))  # nothing half-done stays
        grow(path, 19)
        assert rows_in(path) == 19
        assert sorted(p.name for p in path.glob(".*")) == [".writer.lock"]
        shutil.rmtree(path)
    assert "pwrite" in failed


def test_an_append_that_failed(quick_path: Path) -> None:
    """A rollback is needed to go on, from the last whole shard."""
    path = quick_path / "acts"
    with writer_of(path) as writer:
        writer.append(rows_of(0, 7))
        with pytest.raises(OSError, match="No space left") as caught, fault("full", 0):
            writer.append(rows_of(7, 9))
        assert caught.value.filename is not None
        calls: list[Callable[[], None]] = [lambda: writer.append(rows_of(7, 9)), writer.commit]
        for call in calls:
            with pytest.raises(ValueError, match=r"rollback\(\) drops it"):
                call()
        writer.rollback()
        assert rows_in(path) == len(writer) == 5
        writer.append(rows_of(5, 20))
    assert rows_in(path) == 20


def test_a_commit_that_failed(quick_path: Path) -> None:
    """Only the next writer knows what is on the disk."""
    path = quick_path / "acts"
    writer = writer_of(path)
    writer.append(rows_of(0, 7))
    with pytest.raises(OSError, match="No space left"), fault("full", 0):
        writer.commit()
    calls: list[Callable[[], None]] = [writer.commit, writer.rollback]
    for call in [lambda: writer.append(rows_of(7, 9)), *calls]:
        with pytest.raises(ValueError, match="open it again"):
            call()
    with pytest.raises(ValueError, match="uncommitted changes are lost"):
        writer.close()
    assert rows_in(path) == 5
    grow(path, 20)
    assert rows_in(path) == 20

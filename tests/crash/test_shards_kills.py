"""Shards after a kill, a power cut and on a failing disk: whole shards, and all of them."""

import random
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from stepwell import FormatError, ShardReader, ShardWriter
from tests.crash.disk import Crash, recorded
from tests.crash.faults import Kind, fault, on_a_small_disk
from tests.crash.kills import KILLS, Victims
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
    assert reader.verify() == []
    np.testing.assert_array_equal(reader[:]["data"], got)
    return len(got)


# Promise 1: kills.


def work(folder: Path, first: int) -> Iterator[int]:
    """Append rows; the stamp is the number of those in whole shards, one more than that."""
    while True:
        with ShardWriter(folder / "acts", WIDTH, shard_bytes=SHARD_BYTES) as writer:
            for _ in range(9):
                at = len(writer)
                writer.append(rows_of(at, at + 3))
                yield writer.rows + 1
        yield writer.rows + 1


def test_kills(quick_path: Path) -> None:
    path = quick_path / "acts"
    chance = random.Random()
    last = left = 0
    longest_s = 0.01
    with Victims("tests.crash.test_shards_kills:work", quick_path) as victims:
        for _ in range(KILLS):
            acknowledged = victims.kill(last + 1, chance.uniform(0, longest_s)) - 1
            longest_s = min(longest_s * 1.2, 2) if acknowledged <= last else longest_s * 0.95
            left += bool(list(path.glob(".*.tmp")))
            there = rows_in(path)
            assert acknowledged <= there <= max(acknowledged, last) + SHARD_ROWS
            last = there
            if last > 200:  # the reference reads it all, in plain Python
                shutil.rmtree(path)
                last = 0
    assert left > 0  # otherwise no kill came at an interesting moment
    with ShardWriter(path, WIDTH, shard_bytes=SHARD_BYTES) as writer:
        writer.append(rows_of(writer.rows, writer.rows + 1))
    assert rows_in(path) > 0
    assert sorted(p.name for p in path.glob(".*")) == [".writer.lock"]
    reference.check_folder(path)


# Promise 2: power cuts.


def test_power_cuts(quick_path: Path) -> None:
    path = quick_path / "acts"
    path.mkdir()
    with recorded(path) as disk, ShardWriter(path, WIDTH, shard_bytes=SHARD_BYTES) as writer:
        for begin in range(0, 18, 3):
            writer.append(rows_of(begin, begin + 3))
            disk.acknowledge(writer.rows)
        writer.close()
        disk.acknowledge(writer.rows)
    checked = 0
    for crash in disk.crashes(tries=4):
        checked += 1
        _check_crash(quick_path / str(checked), crash, checked)
    assert checked > 100


def _check_crash(path: Path, crash: Crash, number: int) -> None:
    path.mkdir()
    crash.write(path)
    there = rows_in(path)
    done = crash.acknowledged or 0
    assert done <= there <= done + SHARD_ROWS, crash.after
    if number % 4 == 0:
        with ShardWriter(path, WIDTH, shard_bytes=SHARD_BYTES) as writer:
            assert writer.rows == there
            writer.append(rows_of(there, there + 7))
        assert rows_in(path) == there + 7
        reference.check_folder(path)
        assert sorted(p.name for p in path.glob(".*")) == [".writer.lock"]
    shutil.rmtree(path)


# Promise 8: errors.


def grow(path: Path, rows: int) -> None:
    with ShardWriter(path, WIDTH, shard_bytes=SHARD_BYTES) as writer:
        at = len(writer)
        for begin in range(at, rows, 3):
            writer.append(rows_of(begin, min(begin + 3, rows)))


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("before", [0, 7])
def test_every_call_fails_once(quick_path: Path, kind: Kind, before: int) -> None:
    old = quick_path / "old"
    old.mkdir()
    if before:
        grow(old, before)
    failed = set()
    for number in count():
        path = quick_path / str(number)
        shutil.copytree(old, path)
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
        assert there == 19 if error is None else before <= there <= 19
        if injected.name not in ("close", "unlink"):
            assert not list(path.glob(".*.tmp"))  # nothing half-done stays
        grow(path, 19)
        assert rows_in(path) == 19
        assert sorted(p.name for p in path.glob(".*")) == [".writer.lock"]
        shutil.rmtree(path)
    assert "pwrite" in failed


def test_an_append_that_failed(quick_path: Path) -> None:
    """Whoever goes on is told to open it again, and finds the whole shards."""
    path = quick_path / "acts"
    writer = ShardWriter(path, WIDTH, shard_bytes=SHARD_BYTES)
    writer.append(rows_of(0, 7))
    with pytest.raises(OSError, match="No space left") as caught, fault("full", 0):
        writer.append(rows_of(7, 9))
    assert caught.value.filename is not None
    with pytest.raises(ValueError, match="open it again"):
        writer.append(rows_of(7, 9))
    with pytest.raises(ValueError, match="open it again"):
        writer.flush()
    writer.close()
    assert rows_in(path) == 5
    grow(path, 20)
    assert rows_in(path) == 20


FULL = """
import errno, sys
from pathlib import Path
import numpy as np
from stepwell import ShardReader, ShardWriter
path = Path(sys.argv[1]) / "acts"
try:
    with ShardWriter(path, 100, shard_bytes=40_000) as writer:
        for i in range(10_000):
            writer.append(np.full((7, 100), i, "f4"))
except OSError as error:
    assert error.errno == errno.ENOSPC, repr(error)
else:
    raise SystemExit("there was room")
reader = ShardReader.open(path)
assert len(reader) == writer.rows > 300
assert reader.verify() == []
assert reader[:]["data"][:, 0].tolist() == [i // 7 for i in range(len(reader))]
assert not list(path.glob(".*.tmp"))
print("full")
"""


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    assert on_a_small_disk(tmp_path, "512k", FULL) == "full\n"

"""Corpora in a world that moves: files that are cut, threads, forks, little memory."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stepwell import FormatError, ShardReader, ShardWriter
from stepwell.stores.shards import RowBatch
from tests import SANITIZED, children, forks_beside_threads, scaled
from tests.shards import assert_same, build

# Files that are cut while they are mapped. These run in processes of their own, which must live on.

CUT = """
import faulthandler, os, sys, time
from pathlib import Path
import numpy as np
import stepwell as sw

def cut(done=1 << 40, total=0):
    if done > 8 << 20:  # in the middle of the second shard, when more of it was read ahead
        os.truncate(folder / "000001.shard", 4096 + 100)

def work():
    rows = np.arange(len(reader))[::-7].copy()
    if how == "take":
        cut()
        reader.take(rows)
    elif how == "loader":
        for number, batch in enumerate(sw.Loader(reader, 256, threads=4)):
            if number == 2:
                cut()
    elif how == "verify":
        (problem,) = reader.verify(progress=cut).problems
        raise problem
    else:
        dtype = how.split()[1]
        options = {"out": np.zeros((100, 1024), dtype)} if "out" in how else {"dtype": dtype}
        for batch in reader.batches(100, **options):
            if batch.row_ids[0] > 3072 + 100 or how.endswith("early"):
                cut()

if sys.argv[2] == "before":
    faulthandler.enable()
for number, how in enumerate(sys.argv[3:]):
    folder = Path(sys.argv[1]) / str(number)
    with sw.ShardWriter(folder, 1024, "float16", shard_bytes=6 << 20) as writer:
        for i in range(9):
            writer.append(np.full((1024, 1024), i, "f2"))
    reader = sw.ShardReader.open(folder)
    if sys.argv[2] == "after" and not number:
        reader.take([0])
        faulthandler.enable()
        coarse = 6  # CLOCK_MONOTONIC_COARSE of Linux
        looked = time.clock_gettime_ns(coarse)
        while time.clock_gettime_ns(coarse) == looked:
            pass  # ours looks for another once in a tick of this clock
    for _ in range(2):
        try:
            work()
        except sw.FormatError as error:
            assert "truncated while" in str(error), error
            # Where it ends, in the file, or the first row that was not there.
            assert 4096 + 100 <= error.offset < 6 << 20, error.offset
            print(how, Path(error.path).name, sep=": ")
    assert reader.take([5, 1024, 7000])["data"][:, 0].tolist() == [0, 1, 6]  # others are there
print("alive")
"""
WAYS = [
    *("take", "loader", "verify", "batches f8", "batches f8 early"),
    *("batches f4", "batches f8 out", "batches f2 out", "batches f2 out early"),
]


@pytest.mark.parametrize(
    ("traced", "ways"),
    [("no", WAYS), ("before", WAYS), ("after", ["take"]), ("after", ["loader"])],
)
def test_files_that_are_cut(quick_path: Path, traced: str, ways: list[str]) -> None:
    """Faulthandler, too, has a handler; one that comes late puts it in place of ours."""
    lines = children.answer(CUT, quick_path, traced, *ways).splitlines()
    assert lines == [f"{how}: 000001.shard" for how in ways for _ in range(2)] + ["alive"]


# Threads and processes.


def test_threads_that_each_read_everything(tmp_path: Path) -> None:
    rows = build(tmp_path, [700, 0, 900], "float16", width=16)
    reader = ShardReader.open(tmp_path)

    def work(size: int) -> None:
        for _ in range(scaled(5)):
            got = list(reader.batches(size, window_bytes=1 << 12))
            assert_same(np.concatenate([batch.rows for batch in got]), rows)
            assert np.concatenate([b.row_ids for b in got]).tolist() == [*range(len(rows))]

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(50, 56)))


def all_of(batches: Iterator[RowBatch]) -> NDArray[Any]:
    return np.concatenate([batch.rows for batch in batches])


def test_batches_and_a_fork(tmp_path: Path) -> None:
    """A child reads anew, goes on with what was begun, or forgets it; the parent goes on."""
    rows = build(tmp_path, [400, 300], width=64)
    reader = ShardReader.open(tmp_path)
    begun = reader.batches(32, window_bytes=1 << 13)
    first = next(begun)
    assert_same(children.in_fork(lambda: all_of(reader.batches(32))), rows)
    assert_same(children.in_fork(lambda: all_of(begun)), rows[32:])
    assert children.in_fork(begun.close) is None
    assert_same(first.rows, rows[:32])
    assert_same(all_of(begun), rows[32:])


FREED = """
import os, sys, threading, time
import stepwell as sw
reader = sw.ShardReader.open(sys.argv[1])
begun = [reader.batches(10, dtype=dtype) for dtype in (None, "f8") for _ in range(10)]
for each in begun:
    next(each)
child = os.fork()
if not child:
    for _ in range(5):  # their handles may be those of threads that stayed behind
        threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
    del begun, each
    other = reader.batches(10)
    next(other)
    del other
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


@forks_beside_threads
def test_a_fork_with_threads_forgets_what_was_begun(tmp_path: Path) -> None:
    build(tmp_path, [400, 300], width=64)
    assert children.answer(FREED, tmp_path) == "0"


def test_loops_that_are_left(tmp_path: Path) -> None:
    """Threads that read ahead end with their loop."""
    build(tmp_path, [2000], width=64)
    reader = ShardReader.open(tmp_path)
    list(reader.batches())
    before = len(os.listdir("/proc/self/task"))
    for _ in range(50):
        next(iter(reader.batches(10, window_bytes=1 << 12)))
    assert len(os.listdir("/proc/self/task")) <= before + 1


@pytest.mark.parametrize("dtype", [None, "f8"])
def test_a_file_that_is_cut_in_its_last_page(tmp_path: Path, dtype: str | None) -> None:
    """Nothing faults there; what is missing reads as zeros."""
    rows = build(tmp_path, [1000, 1000], width=16)
    first = sorted(tmp_path.glob("*.shard"))[0]
    reader = ShardReader.open(tmp_path)
    kept, begun = [], reader.batches(100, dtype=dtype)
    kept.append(next(begun).rows)
    os.truncate(first, first.stat().st_size - 1600)
    with pytest.raises(FormatError, match="truncated since") as caught:
        kept.extend(batch.rows.copy() for batch in begun)
    assert caught.value.path == str(first)
    assert_same(np.concatenate(kept), rows[:900])
    (problem,) = reader.verify().problems
    assert problem.path == str(first)
    first.unlink()
    first.write_bytes(b"another one")  # of that name, which is no matter of the reader's
    assert reader.verify().ok


# Memory.

RESIDENT = """
import os, sys
from pathlib import Path
import numpy as np
import stepwell as sw
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
"""
BOUNDED = f"""{RESIDENT}
reader = sw.ShardReader.open(sys.argv[1])
assert sum(shard.payload_bytes for shard in reader.shards) == 256 << 20
for dtype in (np.float64, None):
    next(iter(reader.batches(dtype=dtype)))
    before, most, total = resident(), 0, 0.0
    for number, batch in enumerate(reader.batches(dtype=dtype, window_bytes=8 << 20)):
        total += float(batch.rows[:, ::64].sum())
        if number % 8 == 0:
            most = max(most, resident() - before)
    print(most)
before = resident()
assert reader.verify().ok
print(resident() - before)
"""


@pytest.mark.skipif(SANITIZED, reason="the sanitizer keeps what was freed")
def test_memory_stays_within_the_window(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((4096, 1024), np.float32)
    with ShardWriter(tmp_path, 1024, shard_bytes=48 << 20) as writer:
        for _ in range(16):
            writer.append(rows)
    for most in children.answer(BOUNDED, tmp_path).split():
        assert int(most) < 64 << 20


MANY_BATCHES = f"""{RESIDENT}
reader = sw.ShardReader.open(sys.argv[1])
next(iter(reader.batches()))
before = resident()
begun = reader.batches(1)
next(begun)
print(resident() - before)
"""


@pytest.mark.skipif(SANITIZED, reason="the sanitizer keeps what was freed")
def test_batches_that_have_not_come_cost_nothing(quick_path: Path) -> None:
    with ShardWriter(quick_path, 1, "float16") as writer:
        writer.append(np.zeros((1 << 20, 1), np.float16))
    assert int(children.answer(MANY_BATCHES, quick_path)) < 16 << 20


FEW_FILES = """
import os, resource, sys
import numpy as np, stepwell as sw
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
reader = sw.ShardReader.open(sys.argv[1])
before = len(os.listdir("/proc/self/fd"))
assert len(reader.take(np.arange(200))["data"]) == sum(len(b.rows) for b in reader.batches()) == 200
assert reader.verify().ok
print(before < 16)
"""


def test_more_shards_than_files_may_be_open(quick_path: Path) -> None:
    build(quick_path, [1] * 200, checksums=True)
    assert children.answer(FEW_FILES, quick_path) == "True"

"""Memory: flat over time, recycled when the last reference dies, never more than asked for."""

import contextlib
import errno
import gc
import os
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell import ArraySource, FormatError, _core
from stepwell.files.memory import free_bytes
from stepwell.files.npy import header_bytes
from tests import children, scaled, steps
from tests.arrays import STEP, random_array

MIB = 1 << 20


def address(array: Any) -> int:
    place: int = array.__array_interface__["data"][0]
    return place


def resident() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


# The resident set. These run in processes of their own, which hold little else.

# Without this the sanitizer keeps what was freed, to notice its use.
LEAN = {"ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:quarantine_size_mb=1"}


def take_for_long(takes: int) -> tuple[int, int]:
    """The resident set after a warm-up, and the largest one seen in so many takes."""
    source = ArraySource(random_array(STEP, 100_000))
    views = [
        source,
        source.select(slice(None, None, -1)),
        source.columns(["ev", "done"]).concat(source.columns(["ev", "done"])),
        source.select(np.arange(0, 100_000, 3)),
        source.windows(4),
        source.map(dict),
    ]
    random = np.random.default_rng(0)
    rows = random.integers(0, 30_000, 3000)
    out = {name: np.empty((500, *f.shape), f.dtype) for name, f in source.schema.items()}
    kept: deque[Any] = deque(maxlen=8)
    sizes = random.integers(1, 1000, 1000).tolist()

    def turn(i: int) -> None:
        size = sizes[i % 1000]
        kept.append(views[i % 6].take(rows[size : 2 * size]))
        if i % 10 == 0:
            source.take(rows[:500], out)
            source[i % 1000]
        if i % 50 == 0:
            with contextlib.suppress(IndexError):
                source.take([0, 100_000])

    for i in range(takes // 10):
        turn(i)
    gc.collect()
    settled = resident()
    most = 0
    for i in range(takes):
        turn(i)
        if i % 1000 == 999:
            most = max(most, resident())
    return settled, most


def test_the_resident_set_stays_flat() -> None:
    script = "from tests.test_memory import *; print(*take_for_long({}))"
    settled, most = map(int, children.answer(script.format(scaled(100_000)), env=LEAN).split())
    assert most < settled * 1.05


def open_for_long(path: str, times: int) -> tuple[int, int]:
    """The same for opening, reading and forgetting a file."""

    def turn() -> None:
        source = ArraySource(path)
        source.select(slice(1, None)).take(np.arange(50))
        assert len(source.fingerprint) == 8

    for _ in range(times // 10 + 10):
        turn()
    gc.collect()
    settled = resident()
    for _ in range(times):
        turn()
    return settled, resident()


def test_a_forgotten_source_leaves_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", random_array(STEP, 200_000))  # 5 MB: in huge pages
    script = "import sys; from tests.test_memory import *; print(*open_for_long(sys.argv[1], {}))"
    answer = children.answer(script.format(scaled(500)), tmp_path / "a.npy", env=LEAN)
    settled, last = map(int, answer.split())
    assert last < settled * 1.05


def take_once_large() -> tuple[int, int, int, int]:
    """Resident before, with and after a batch of 320 MiB, and what the pool then holds."""
    source = ArraySource(np.zeros((64, MIB), np.uint8))
    source.take([0])
    before = resident()
    batch = source.take(np.arange(320) % 64)
    during = resident()
    del batch
    return before, during, resident(), _core.shared_blocks().idle_bytes


def test_a_large_batch_goes_back_to_the_system() -> None:
    script = "from tests.test_memory import *; print(*take_once_large())"
    before, during, after, idle = map(int, children.answer(script, env=LEAN).split())
    assert during > before + 300 * MIB
    assert after < before + 20 * MIB
    assert idle < 256 * MIB


# The pool.


def test_a_batch_reuses_the_memory_of_the_last() -> None:
    source = ArraySource(random_array(STEP, 1000))
    rows = np.arange(1000)
    places = set()
    for _ in range(100):
        batch = source.take(rows)
        places.add(address(batch["board"]))
        del batch
    assert len(places) == 1


def test_idle_bytes_counts_what_is_kept() -> None:
    pool = _core.BlockPool(16 * MIB)
    assert pool.idle_bytes == 0
    block = pool.take(1000)
    assert block.shape == (1000,)
    assert block.dtype == np.uint8
    assert pool.idle_bytes == 0
    view = block[5:6]
    del block
    assert pool.idle_bytes == 0  # the view holds it
    del view
    assert 1000 <= pool.idle_bytes <= 8192
    again = pool.take(900)
    assert pool.idle_bytes == 0
    del again


def test_a_pool_keeps_its_limit_and_the_latest() -> None:
    pool = _core.BlockPool(4 * MIB)
    blocks = [pool.take(MIB) for _ in range(10)]
    places = [address(block) for block in blocks]
    while blocks:
        del blocks[0]
        assert pool.idle_bytes <= 4 * MIB
    assert pool.idle_bytes == 4 * MIB
    found = [pool.take(MIB) for _ in range(4)]
    assert sorted(map(address, found)) == sorted(places[-4:])
    del found
    huge = pool.take(5 * MIB)
    del huge
    assert pool.idle_bytes <= 4 * MIB


def test_small_batches_do_not_sit_on_large_blocks() -> None:
    pool = _core.BlockPool(64 * MIB)
    large = pool.take(8 * MIB)
    place = address(large)
    del large
    small = pool.take(1000)
    assert address(small) != place
    assert pool.idle_bytes == 8 * MIB
    nearly = pool.take(7 * MIB)
    assert address(nearly) == place


@pytest.mark.parametrize("size", [0, 1, 63, 4096, 4097, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1])
def test_blocks_are_whole_and_aligned(size: int) -> None:
    block = _core.BlockPool(0).take(size)
    assert len(block) == size
    assert address(block) % 64 == 0
    assert size < 2 * MIB or address(block) % (2 * MIB) == 0
    block[:] = 0xAB
    assert (block == 0xAB).all()


def test_a_pool_lives_as_long_as_its_blocks() -> None:
    pool = _core.BlockPool(MIB)
    block = pool.take(1000)
    del pool
    gc.collect()
    block[:] = 7
    assert block.sum() == 7000


@pytest.mark.parametrize("size", [2**62, 2**63, 2**64 - 2 * MIB, 2**64 - 1])
def test_more_than_there_is(size: int) -> None:
    with pytest.raises(MemoryError):
        _core.BlockPool(0).take(size)
    with pytest.raises(MemoryError):
        load(Path("/proc/self/exe"), 0, size)


# Files into memory.


def load(path: Path, offset: int, size: int) -> Any:
    block = _core.allocate(size)
    with path.open("rb") as file:
        _core.load(file.fileno(), path, offset, block)
    return block


def test_load_reads_any_part(tmp_path: Path) -> None:
    data = random_array("u1", 20 * MIB + 17)
    (tmp_path / "x").write_bytes(data.tobytes())
    for offset, size in [
        (0, len(data)),
        (1, len(data) - 1),
        (12_345_678, 5),
        (17, 9 * MIB),
        (3, 0),
    ]:
        assert np.array_equal(load(tmp_path / "x", offset, size), data[offset:][:size])
    assert len(load(tmp_path / "x", len(data), 0)) == 0


@pytest.mark.parametrize(
    ("offset", "size", "end"),
    [(0, 101, 100), (50, 51, 100), (100, 1, 100), (0, 30 * MIB, 100), (1000, 1, 100)],
)
def test_load_beyond_the_end(tmp_path: Path, offset: int, size: int, end: int) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(100))
    with pytest.raises(FormatError, match=f"expected {offset + size} bytes, .* {end}") as caught:
        load(path, offset, size)
    assert (caught.value.path, caught.value.offset) == (str(path), end)


def test_load_says_what_the_system_said(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    cases: list[tuple[int, Path, type[OSError], int]] = [
        (folder, tmp_path, IsADirectoryError, errno.EISDIR),
        (memory, Path("/proc/self/mem"), OSError, errno.EIO),
        (-1, tmp_path / "closed", OSError, errno.EBADF),
    ]
    for file, path, kind, number in cases:
        with pytest.raises(kind) as caught:
            _core.load(file, path, 0, np.empty(10, np.uint8))
        assert caught.value.errno == number
        assert caught.value.filename == str(path)
        assert str(caught.value) == f"[Errno {number}] {os.strerror(number)}: {str(path)!r}"
    os.close(folder)
    os.close(memory)


# Cores.


def test_one_core_is_enough() -> None:
    script = """
import os
allowed = sorted(os.sched_getaffinity(0))
from stepwell import _core
assert 1 <= _core.usable_cores() <= len(allowed)
os.sched_setaffinity(0, allowed[-1:])
import numpy as np
import stepwell as sw
source = sw.ArraySource(np.arange(100_000))
rows = np.arange(100_000)[::-1]
assert (source.take(rows)["data"] == rows).all()
print(_core.usable_cores(), len(os.listdir("/proc/self/task")))
"""
    # NumPy's own threads are counted too; with one core it has none.
    assert children.answer(script, env={"OPENBLAS_NUM_THREADS": "1"}) == "1 1"


# Rows that do not fit.

GROUPS: dict[str, tuple[dict[str, str], int]] = {
    "no group": ({"proc/self/cgroup": "0::/\n"}, 8000 << 10),
    "version 2": (
        {
            "proc/self/cgroup": "0::/jobs/mine\n",
            "sys/fs/cgroup/jobs/mine/memory.max": "max\n",
            "sys/fs/cgroup/jobs/memory.max": "5000000\n",
            "sys/fs/cgroup/jobs/memory.current": "4000000\n",
            "sys/fs/cgroup/jobs/memory.stat": "anon 7\ninactive_file 100\nactive_file 20\n",
        },
        1_000_120,
    ),
    "version 1, seen from inside": (
        {
            "proc/self/cgroup": "4:cpu,memory:/docker/4711\n3:cpuset:/\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "900000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "899999\n",
            "sys/fs/cgroup/memory/memory.stat": "active_file 9\ntotal_inactive_file 30\n",
        },
        31,
    ),
    "more than its limit": (
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "1000\n",
            "sys/fs/cgroup/memory.current": "4000\n",
        },
        0,
    ),
}


@pytest.mark.parametrize("group", GROUPS)
def test_the_memory_that_is_free(tmp_path: Path, group: str) -> None:
    assert free_bytes(tmp_path) is None
    files, free = GROUPS[group]
    for name, text in {"proc/meminfo": "MemAvailable:    8000 kB\n", **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_bytes(tmp_path) == free


def huge_array(path: Path, rows: int) -> None:
    """A file whose rows take no space, because nobody wrote them."""
    path.write_bytes(header_bytes(steps.STEP, rows))
    os.truncate(path, path.stat().st_size + rows * steps.STEP.itemsize)


@pytest.mark.parametrize("kind", ["array", "steps"])
def test_rows_that_do_not_fit(tmp_path: Path, kind: str) -> None:
    """Refused with both sizes, before a byte of them is read; mapped, they are served."""
    path, rows = tmp_path / "a.npy", 10**11
    if kind == "steps":
        path = tmp_path / "a"
        steps.original(path, [5])
        with steps.tampered(path) as database:
            database.execute("UPDATE runs SET num_steps = ?", (rows,))
    huge_array(path / "steps.npy" if kind == "steps" else path, rows)
    for memory in ("ram", "shared")[: 2 if kind == "steps" else 1]:
        message = (
            r"at most [\d,]+ bytes, the memory that is free, got 2,200,000,000,000; memory='map'"
        )
        with pytest.raises(MemoryError, match=f"{message}.* - at {path}"):
            sw.open(path, memory=memory)
    with sw.open(path, memory="map") as source:
        assert source.take([rows - 1])["move"].tolist() == [0]

"""Memory that processes share: filled once, removed by the last, not lost by a kill."""

import gc
import os
import secrets
import warnings
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stepwell.files import shared
from stepwell.files.shared import shared_block
from tests import children

SIZE = 100_000


@pytest.fixture
def owner() -> Iterator[str]:
    name = secrets.token_hex(8)
    yield name
    if blocks(name):  # what a traceback keeps goes with its cycle
        gc.collect()
    assert blocks(name) == []


def blocks(owner: str) -> list[Path]:
    """The files of an owner."""
    prefix = f"stepwell-{os.getuid()}-{sha256(owner.encode()).hexdigest()[:16]}-"
    return sorted(shared._folder().glob(prefix + "*"))


def count_up(data: NDArray[np.uint8]) -> None:
    data[:] = np.arange(len(data)) % 251


def never(data: NDArray[np.uint8]) -> None:
    raise AssertionError("it was filled already")


def assert_counted(block: NDArray[np.uint8], size: int = SIZE) -> None:
    assert block.shape == (size,)
    assert block.dtype == np.uint8
    assert not block.flags.writeable
    assert (block == np.arange(size) % 251).all()


CHILD = """
import sys
import numpy as np
from stepwell.files.shared import shared_block
owner, version, how = sys.argv[1:]
def fill(data):
    print("fills", flush=True)
    if how == "hang":
        data[:] = 7
        sys.stdin.read()
    data[:] = np.arange(len(data)) % 251
block = shared_block(owner, version, 100_000, fill)
assert (block == np.arange(100_000) % 251).all()
print("has it", flush=True)
sys.stdin.read()
"""


def start(owner: str, version: str, how: str = "") -> children.Child:
    return children.Child("-c", CHILD, owner, version, how)


def test_one_block_for_two(owner: str) -> None:
    first = shared_block(owner, "1", SIZE, count_up)
    second = shared_block(owner, "1", SIZE, never)
    assert_counted(first)
    assert_counted(second)
    assert len(blocks(owner)) == 1
    del first
    assert len(blocks(owner)) == 1
    part = second[5:10]
    del second
    assert part.tolist() == [5, 6, 7, 8, 9]
    assert len(blocks(owner)) == 1
    del part
    assert blocks(owner) == []


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097])
def test_any_size(owner: str, size: int) -> None:
    assert_counted(shared_block(owner, "1", size, count_up), size)


def test_versions_have_blocks_of_their_own(owner: str) -> None:
    first = shared_block(owner, "1", SIZE, count_up)
    second = shared_block(owner, "2", 10, count_up)
    assert len(blocks(owner)) == 2  # the first is in use
    assert_counted(first)
    assert_counted(second, 10)


def test_two_processes_share_it_and_the_last_removes_it(owner: str) -> None:
    one, other = start(owner, "1"), start(owner, "1")
    said = sorted([one.says(), other.says()])
    assert said == ["fills", "has it"]  # one fills while the other waits
    mine = shared_block(owner, "1", SIZE, never)
    for process in (one, other):
        process.ends()
        assert_counted(mine)
        assert len(blocks(owner)) == 1
    del mine
    assert blocks(owner) == []


def test_who_fills_is_killed(owner: str) -> None:
    """Those who wait go on, and what it had filled is not believed."""
    filler = start(owner, "1", "hang")
    assert filler.says() == "fills"
    waiting = start(owner, "1")
    filler.kill()
    assert waiting.says() == "fills"
    assert waiting.says() == "has it"
    assert_counted(shared_block(owner, "1", SIZE, never))
    waiting.ends()
    assert blocks(owner) == []


def test_a_user_that_was_killed(owner: str) -> None:
    """What it leaves is used by the next one, or removed when another version is asked for."""
    for version in ("1", "2"):
        user = start(owner, "1")
        user.says()
        user.says()
        user.kill()
        assert len(blocks(owner)) == 1
        block = shared_block(owner, version, SIZE, never if version == "1" else count_up)
        assert_counted(block)
        assert len(blocks(owner)) == 1
        del block
        assert blocks(owner) == []


def test_what_is_left_half_made_is_made_again(owner: str) -> None:
    shared_block(owner, "1", SIZE, count_up)
    block = shared_block(owner, "1", SIZE, count_up)
    (path,) = blocks(owner)
    del block
    for left in (b"", b"x" * 100, bytes(SIZE)):
        path.write_bytes(left)
        assert_counted(shared_block(owner, "1", SIZE, count_up))


def test_a_fill_that_fails(owner: str) -> None:
    def fail(data: NDArray[np.uint8]) -> None:
        data[:] = 1
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            shared_block(owner, "1", SIZE, fail)
        assert blocks(owner) == []
    assert_counted(shared_block(owner, "1", SIZE, count_up))


def test_no_room(owner: str) -> None:
    """Said when it is asked for, not by a signal when it is used."""
    with pytest.raises((MemoryError, OSError)):
        shared_block(owner, "1", 1 << 60, never)
    assert blocks(owner) == []


def test_many_threads_fill_it_once(owner: str) -> None:
    filled = []

    def fill(data: NDArray[np.uint8]) -> None:
        filled.append(1)
        count_up(data)

    for block in children.at_once(*[lambda: shared_block(owner, "1", SIZE, fill)] * 8):
        assert_counted(block)
    assert filled == [1]


def test_after_fork(owner: str) -> None:
    block = shared_block(owner, "1", SIZE, count_up)
    total = block.sum
    assert children.in_fork(total) == total()
    del total
    assert len(blocks(owner)) == 1  # the child's end is not ours
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fork beside threads: Python, JAX
        reading, writing = os.pipe()
        child = os.fork()
    if child == 0:
        try:
            os.close(writing)
            os.read(reading, 1)
            (path,) = blocks(owner)  # the parent has let go, the child has not
            assert_counted(block)
            del block
            os._exit(path.exists())
        finally:
            os._exit(2)  # never back into pytest
    os.close(reading)
    del block
    assert len(blocks(owner)) == 1
    os.close(writing)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert blocks(owner) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_another_user_s_block_is_not_believed(owner: str) -> None:
    block = shared_block(owner, "1", SIZE, count_up)
    (path,) = blocks(owner)
    content = path.read_bytes()
    del block
    path.write_bytes(content)
    os.chown(path, 12345, 12345)
    with pytest.raises(PermissionError):
        shared_block(owner, "1", SIZE, never)
    path.unlink(missing_ok=True)


def test_links_are_not_followed(owner: str, tmp_path: Path) -> None:
    block = shared_block(owner, "1", SIZE, count_up)
    (path,) = blocks(owner)
    del block
    (tmp_path / "precious").write_bytes(b"mine")
    path.symlink_to(tmp_path / "precious")
    with pytest.raises(OSError):
        shared_block(owner, "1", SIZE, count_up)
    assert (tmp_path / "precious").read_bytes() == b"mine"
    path.unlink()

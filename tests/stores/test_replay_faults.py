"""Replay writers with full queues, disks that fail and databases that are damaged."""

import errno
import math
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import FormatError, VersionError
from stepwell.replay import ReplayReader, ReplayWriter
from stepwell.stores.replay.disk import RunDisk
from tests import children
from tests.crash.faults import on_a_small_disk
from tests.reference.replay import read_store
from tests.replays import (
    change,
    numbers_of,
    observation,
    record,
    record_all,
    stop_disk,
)


def written(writer: ReplayWriter, count: int) -> None:
    """Return when the thread has written so many items, without asking it to."""
    pipeline = writer._pipeline
    while True:
        with pipeline.lock:
            if pipeline._done >= count:
                return
            gate = pipeline._gate()
        assert gate.acquire(timeout=60)


# A queue that is full.


def test_steps_that_are_dropped_are_counted(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = stop_disk(monkeypatch)
    writer = ReplayWriter(
        quick_path, "run", when_full="drop", queue_bytes=20_000, flush_every=0.001
    )
    refs = [record(writer, number, terminated=number == 49) for number in range(50)]
    go.set()
    writer.commit()
    refs += [record(writer, number) for number in range(50, 53)]
    writer.close()
    kept = [number for number, ref in enumerate(refs) if ref is not None]
    assert numbers_of(quick_path) == kept
    assert 0 < len(kept) < 50
    assert kept[-3:] == [50, 51, 52]
    store = read_store(quick_path)
    assert store.runs["run"].row["dropped"] == 53 - len(kept)
    assert store.runs["run"].row["enqueued"] == len(kept)
    first, second = store.episodes.values()
    assert first["steps"] == len(kept) - 3
    assert first["dropped"] == 53 - len(kept)
    assert (first["ended"], first["terminated"], second["dropped"]) == (1, 1, 0)
    for (_, index), row in store.steps.items():
        assert index == row["reward"] % 50
    record_all(quick_path, "run", range(53, 55))  # goes on counting
    assert read_store(quick_path).runs["run"].row["dropped"] == 53 - len(kept)


def test_what_was_seen_last_is_dropped_too(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = stop_disk(monkeypatch)
    with ReplayWriter(
        quick_path, "run", when_full="drop", queue_bytes=20_000, flush_every=0.001
    ) as writer:
        for number in range(50):
            record(writer, number)
            writer.end_episode(observation=observation(number))
        waiting = writer._pipeline._bytes
        go.set()
    assert waiting < 20_000 + 50 * 1024  # each ending itself is kept, and counts as much
    last = [row["final_obs_ref"] for row in read_store(quick_path).episodes.values()]
    assert last[0] is not None
    assert last[-1] is None
    with ReplayReader.open(quick_path) as reader:
        assert reader.verify().ok


def test_the_end_of_an_episode_waits_for_room(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run", queue_bytes=5000, flush_every=1000) as writer:
        for number in range(50):
            record(writer, number)
            writer.end_episode(observation=observation(number))
            assert writer._pipeline._bytes <= 5000 or len(writer._pipeline.queue) <= 1
    episodes = read_store(quick_path).episodes.values()
    assert [row["final_obs_ref"] is None for row in episodes] == [False] * 50


def test_nothing_is_dropped_while_the_disk_is_idle(quick_path: Path) -> None:
    """A queue that is half full is written, however long a step might wait."""
    with ReplayWriter(
        quick_path, "run", when_full="drop", queue_bytes=40_000, flush_every=1000
    ) as writer:
        for number in range(60):
            assert record(writer, number) is not None
            if writer._pipeline._bytes > 20_000:
                written(writer, writer._pipeline._done + 1)
    assert numbers_of(quick_path) == list(range(60))


@pytest.mark.parametrize(("when_full", "size"), [("block", 1), ("drop", 1), ("block", 1.5e4)])
def test_queues_of_few_steps_or_less(quick_path: Path, when_full: str, size: float) -> None:
    with ReplayWriter(
        quick_path, "run", when_full=when_full, queue_bytes=size, flush_every=1000
    ) as writer:
        for number in range(20):
            assert record(writer, number) is not None
            if when_full == "drop":
                writer.commit()
    assert numbers_of(quick_path) == list(range(20))


def test_a_small_step_before_a_large_one_does_not_wait(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run", queue_bytes=100_000, flush_every=1000) as writer:
        writer.record_step(reward=0, frame=np.zeros((200, 200), np.uint8))
        writer.record_step(reward=1, observation=np.zeros(80_000, np.uint8))
    assert len(read_store(quick_path).steps) == 2


@pytest.mark.parametrize("flush_every", [math.inf, 1e12])
def test_only_when_told_to(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, flush_every: float
) -> None:
    with ReplayWriter(quick_path, "run", flush_every=flush_every) as writer:
        more, waits = writer._pipeline._more, threading.Event()
        wait = more.wait

        def waiting(left: float | None = None) -> bool:
            waits.set()
            return wait(left)

        monkeypatch.setattr(more, "wait", waiting)
        record(writer, 0)
        assert waits.wait(60)
        assert numbers_of(quick_path) == []
        record(writer, 1)
        writer.commit()
        assert numbers_of(quick_path) == [0, 1]


def test_a_step_does_not_wait_for_others(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run", flush_every=0.05) as writer:
        record(writer, 0)
        written(writer, 1)
        assert numbers_of(quick_path) == [0]


# Failures.


def test_a_failure_keeps_nothing_of_the_calls_it_is_raised_in(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(RunDisk, "write", fail)
    writer = ReplayWriter(quick_path, "run")
    record(writer, 0)
    depths = []
    for _ in range(5):
        with pytest.raises(OSError, match="broken") as caught:
            writer.commit()
        depths.append(len(caught.traceback))
        with pytest.raises(OSError, match="broken"):
            record(writer, 1)
    assert len(set(depths[1:])) == 1
    with pytest.raises(OSError, match="broken"):
        writer.close()


FULL = """
import errno, sys
from pathlib import Path
import numpy as np
from stepwell.replay import ReplayWriter
from tests.replays import numbers_of, record
root = Path(sys.argv[1])
size = int(sys.argv[2])
(root / "filler").write_bytes(bytes(size))
filler, root = root / "filler", root / "store"
acknowledged = 0
writer = ReplayWriter(root, "run", compress=sys.argv[3], flush_every=1000)
try:
    for number in range(100_000):
        record(writer, number)
        if number % 5 == 4:
            writer.commit()
            acknowledged = number + 1
except OSError as error:
    assert error.errno == errno.ENOSPC, repr(error)
else:
    raise SystemExit("there was room")
for call in (writer.commit, writer.close):
    try:
        call()
    except OSError as error:
        assert error.errno == errno.ENOSPC, repr(error)
    else:
        raise SystemExit("as if nothing had happened")
writer.close()
filler.unlink()
found = numbers_of(root)
assert found[:acknowledged] == list(range(acknowledged)), (found, acknowledged)
assert found == list(range(len(found)))
with ReplayWriter(root, "run", mode="a") as writer:
    for number in range(len(found), len(found) + 20):
        record(writer, number)
assert numbers_of(root) == list(range(len(found) + 20))
print("full")
"""


@pytest.mark.parametrize(
    ("room", "codec"), [(300_000, "zstd"), (700_000, "lzf"), (1_000_000, "zstd")]
)
def test_a_disk_that_is_really_full(tmp_path: Path, room: int, codec: str) -> None:
    size = str((6 << 20) - room)
    assert on_a_small_disk(tmp_path, "6m", FULL, size, codec) == "full\n"


def test_a_folder_that_cannot_be_written(quick_path: Path) -> None:
    script = """
import os, sys
from stepwell.replay import ReplayReader, ReplayWriter
if os.getuid() == 0:
    os.setresuid(65534, 65534, 65534)
try:
    ReplayWriter(sys.argv[1], "new")
except OSError as error:
    print(type(error).__name__)
with ReplayReader.open(sys.argv[1]) as reader:
    print(len(reader))
"""
    root = quick_path / "store"
    record_all(root, "run", range(20))
    folders = [root, root / "replay", root / "telemetry"]
    quick_path.chmod(0o755)
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert children.answer(script, root).split() == ["PermissionError", "20"]
    finally:
        for folder in folders:
            folder.chmod(0o755)


# A database that is not one.


def database(root: Path) -> Path:
    return root / "telemetry" / "telemetry.sqlite"


DAMAGE = [
    "text",
    "PRAGMA user_version = 99",
    "channels = '['",
    "channels = '3'",
    "channels = '[{}]'",
    """channels = '[{"name": "a", "dtype": "|O", "shape": [1], "codec": "none"}]'""",
    "channels = x'ff'",
    "rows = '[]'",
    "rows = '{\"steps\": -1}'",
    'rows = \'{"steps": "x"}\'',
    "rows = '{\"steps\": 1e999}'",
    "steps = 'many'",
    "steps = -1",
    "written = x'00'",
    "run_id = '../../escape'",
    "run_id = 'a/b'",
]


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_database(quick_path: Path, how: str) -> None:
    record_all(quick_path, "run", range(20))
    if how == "text":
        database(quick_path).write_bytes(b"not a database" * 100)
    else:
        change(quick_path, how if how.startswith("PRAGMA") else f"UPDATE runs SET {how}")
    for call in (ReplayReader.open, lambda root: ReplayWriter(root, "run", mode="a")):
        with pytest.raises(FormatError) as caught:
            call(quick_path)
        assert caught.value.path == str(database(quick_path))
        assert isinstance(caught.value, VersionError) == how.startswith("PRAGMA")


KILLED = """
import os, sys
from stepwell.replay import ReplayWriter
writer = ReplayWriter(sys.argv[1], "run")
writer.record_step(reward=1.0)
writer.commit()
os._exit(0)
"""


def test_a_killed_writers_log_is_lost(quick_path: Path) -> None:
    children.answer(KILLED, quick_path)
    for name in ("-wal", "-shm"):
        Path(f"{database(quick_path)}{name}").unlink()
    for call in (ReplayReader.open, lambda path: ReplayWriter(path, "run")):
        with pytest.raises(FormatError, match="expected a run 'run', which has a file"):
            call(quick_path)
    record_all(quick_path, "other", range(20))  # others can be recorded, and read
    with ReplayReader.open(quick_path, run="other") as reader:
        assert len(reader) > 0


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user, who cannot write")
def test_a_killed_store_that_was_copied_without_its_index(quick_path: Path) -> None:
    """Where nobody can write, the log that the writer left is read all the same."""
    children.answer(KILLED, quick_path / "store")
    Path(f"{database(quick_path / 'store')}-shm").unlink()
    quick_path.chmod(0o755)
    script = """
import os, sys
import stepwell.stores.replay.hdf5  # whoever that user is may not find it
from stepwell.replay import ReplayReader
os.setresuid(65534, 65534, 65534)
with ReplayReader.open(sys.argv[1]) as reader:
    print(len(reader), reader.verify().ok, sorted(os.listdir(f"{sys.argv[1]}/telemetry")))
"""
    names = ["telemetry.sqlite", "telemetry.sqlite-wal"]
    assert children.answer(script, quick_path / "store") == f"1 True {names}"

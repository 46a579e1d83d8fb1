"""The part of the exam of every writer in which somebody dies, or the system fails.

`WriterContract` (tests/writer_contract.py) is all of it.
"""

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
from itertools import count, islice
from pathlib import Path
from typing import Any, ClassVar, get_args

import pytest

import stepwell as sw
from tests.children import in_fork
from tests.crash.disk import recorded
from tests.crash.faults import Kind, fault, on_a_small_disk
from tests.crash.kills import KILLS, Victims
from tests.writer_kit import WriterKit

FULL = """
import errno, importlib, sys
from pathlib import Path
kit = importlib.import_module(sys.argv[2]).KIT
folder = Path(sys.argv[1])
done = 0
try:
    for done in kit.work(folder, 1):
        pass
except OSError as error:
    assert error.errno == errno.ENOSPC, repr(error)
there = kit.read(folder / kit.name)
assert there == list(range(1, len(there) + 1))
assert len(there) in (done, done + 1) and done > 5, (done, there)
print("full")
"""


class CrashContract:
    """Subclasses provide `kit`."""

    kit: ClassVar[WriterKit]

    @pytest.fixture
    def path(self, quick_path: Path) -> Path:
        return quick_path / self.kit.name

    def filled(self, path: Path, *stamps: int) -> Path:
        """A store with these stamps, committed and closed."""
        with self.kit.open(path, "a" if self.kit.is_there_at_once else "x") as writer:
            for stamp in stamps or (1, 2, 3):
                self.kit.append(writer, stamp)
        return path

    # Locks.

    def test_a_writer_that_was_killed_before_its_first_commit(self, path: Path) -> None:
        """Its lock is free, and what it left counts as empty."""
        kit = self.kit

        def begin() -> None:
            writer = kit.open(path)
            kit.append(writer, 7)
            os.kill(os.getpid(), signal.SIGKILL)

        with pytest.raises(EOFError):
            in_fork(begin)
        if kit.is_there_at_once:
            kit.open(path, "a").close()
            return
        assert kit.read(path) == []
        self.filled(path, 1)
        assert kit.read(path) == [1]

    @pytest.mark.parametrize("way", ["fork", "multiprocessing", "subprocess"])
    def test_a_child_does_not_keep_a_dead_parents_lock(self, path: Path, way: str) -> None:
        kit = self.kit
        kept: list[Any] = []  # until the parent is killed: a writer that is forgotten lets go

        def parent() -> int:
            kept.append(kit.open(path))
            kit.append(kept[0], 5)
            if way == "subprocess":
                kept.append(subprocess.Popen(["sleep", "1000"], close_fds=False))
                return int(kept[1].pid)
            if way == "multiprocessing":
                fork = multiprocessing.get_context("fork")
                kept.append(fork.Process(target=signal.pause))
                kept[1].start()
                return int(kept[1].pid)
            child = os.fork()
            if child == 0:
                signal.pause()
            return child

        child = in_fork(parent)
        try:
            self.filled(path, 1)
        finally:
            os.kill(child, signal.SIGKILL)

    # Promise 1: kills.

    def test_kills(self, quick_path: Path) -> None:
        chance = random.Random()
        last, longest_s, interesting = 0, 0.01, 0
        with Victims(f"{type(self.kit).__module__}:KIT.work", quick_path) as victims:
            for _ in range(KILLS):
                acknowledged = victims.kill(last + 1, chance.uniform(0, longest_s))
                longest_s = min(longest_s * 1.2, 2) if acknowledged <= last else longest_s * 0.95
                interesting += acknowledged > last
                last = self._after_a_crash(quick_path, acknowledged)
                if last > 30:
                    for each in quick_path.iterdir():
                        shutil.rmtree(each) if each.is_dir() else each.unlink()
                    last = 0
        assert interesting > 0
        mode: Any = "x" if self.kit.one_commit else "a"
        with self.kit.open(quick_path / self.kit.name, mode) as writer:
            self.kit.append(writer, last + 1)
        assert not list(quick_path.rglob("*.tmp"))  # nothing of those that were killed stays

    def _after_a_crash(self, folder: Path, acknowledged: int) -> int:
        """How many commits there are: those that were acknowledged, or one more."""
        kit = self.kit
        if kit.one_commit:
            names = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
            for name in names:
                assert kit.read(folder / name) == [1]
            last = int(names[-1].partition("-")[0]) if names else 0
        else:
            there = kit.read(folder / kit.name)
            last = len(there)
            assert there == list(range(1, last + 1))
        assert acknowledged <= last <= acknowledged + 1
        return last

    # Promise 2: power cuts.

    def test_power_cuts(self, quick_path: Path) -> None:
        kit = self.kit
        if not kit.recordable:
            return
        folder = quick_path / "disk"
        folder.mkdir()
        with recorded(folder) as disk:
            for stamp in islice(kit.work(folder, 1), 3):
                disk.acknowledge(stamp)
        checked = 0
        for crash in disk.crashes(tries=2):
            checked += 1
            with crash.restarted(quick_path / str(checked)) as restarted:
                last = self._after_a_crash(restarted, crash.acknowledged or 0)
                if checked % 8 == 0:
                    for stamp in islice(kit.work(restarted, last + 1), 1):
                        self._after_a_crash(restarted, stamp)
        assert checked > 10

    # Promise 8: errors.

    @pytest.mark.parametrize("kind", get_args(Kind))
    def test_every_call_fails_once(self, quick_path: Path, kind: Kind) -> None:
        kit = self.kit
        mode: Any = "x" if kit.one_commit else "a"
        stamps = [] if kit.one_commit else [1]
        old = quick_path / "old"
        old.mkdir()
        if stamps:
            self.filled(old / kit.name, *stamps)
        for number in count():
            folder = quick_path / str(number)
            shutil.copytree(old, folder)
            path = folder / kit.name
            error, reads = None, False
            try:
                with fault(kind, number) as injected:
                    with kit.open(path, mode) as writer:
                        kit.append(writer, 2)
                    reads = injected.name is None  # what fails then leaves all as it is
                    kit.look(path)
            except (OSError, sw.StepwellError, ValueError) as caught:
                error = caught
            if injected.name is None:
                assert error is None
                break
            there = kit.read(path)
            assert there in (stamps, [*stamps, 2])
            assert len(there) > len(stamps) or (error is not None and not reads)
            if not reads and not (kit.one_commit and there):
                with kit.open(path, mode) as writer:
                    kit.append(writer, len(there) + 1)
                assert kit.read(path) == [*there, len(there) + 1]
            shutil.rmtree(folder)

    def test_a_disk_that_is_really_full(self, tmp_path: Path) -> None:
        kit = self.kit
        if kit.small_disk:
            found = on_a_small_disk(tmp_path, kit.small_disk, FULL, type(kit).__module__)
            assert found == "full\n"

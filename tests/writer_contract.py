"""The exam every writer sits.

    class Kit(WriterKit):           how to write stamps to a store, and to read them back
        ...

    KIT = Kit()

    class TestWriter(WriterContract):
        kit = KIT

A stamp is a number that the rows of one append carry. What was committed reads back as the stamps
1, 2, …, in order and each whole; anything else raises in `Kit.stamps`. A new promise is added here
once and holds for every store. Work for other processes is found by the kit's name: it must be the
constant `KIT` of the test module.
"""

import contextlib
import gc
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, get_args

import pytest

import stepwell as sw
from stepwell.store import Store
from stepwell.stores import STORES
from stepwell.writer import Writer
from tests.children import in_fork
from tests.crash.disk import recorded
from tests.crash.faults import Kind, fault, on_a_small_disk
from tests.crash.kills import KILLS, Victims

__all__ = ["WriterContract", "WriterKit", "WritingContract", "snapshot"]


class WriterKit(ABC):
    """How the exam writes to a store and reads it."""

    store: ClassVar[type[Store]]
    """Missing where a writer is also what reads; such a kit has a `look` and a `read`."""
    writer: ClassVar[type[Writer]]
    name: ClassVar[str] = "store"
    """Of the folder or file; some stores want an ending."""
    one_commit: ClassVar[bool] = False
    """A commit is the end (packs)."""
    has_rollback: ClassVar[bool] = True
    is_there_at_once: ClassVar[bool] = False
    """Before its first commit there is a store, and what was appended survives a kill."""
    recordable: ClassVar[bool] = True
    """Everything it writes goes through functions of `os` (not SQLite, HDF5 or memory)."""

    small_disk: ClassVar[str] = ""
    """Of a size that it fills with commits; others have a test of their own."""

    @abstractmethod
    def open(self, path: Path, mode: Any = "x") -> Writer:
        """A writer of this store."""

    @abstractmethod
    def append(self, writer: Any, stamp: int) -> None:
        """Append rows that carry a stamp; must not commit by itself."""

    @abstractmethod
    def stamps(self, store: Any) -> list[int]:
        """The stamps of an open store, every row of which was compared with its stamp."""

    def look(self, path: Path) -> list[int]:
        """The stamps at a path where there is a store."""
        with self.store.open(path) as store:
            return self.stamps(store)

    def read(self, path: Path) -> list[int]:
        """The stamps at a path; none where nothing was committed."""
        try:
            store = self.store.open(path)
        except FileNotFoundError:
            return []
        except sw.FormatError:
            if not path.is_dir() or self.writer._holds_commits(path):
                raise
            return []  # what a writer that never committed left
        with store:
            found = self.stamps(store)
            report = store.verify()
            assert report.ok, str(report)
            return found

    def work(self, folder: Path, first: int) -> Iterator[int]:
        """Append and commit for ever: what the killed processes do."""
        path = folder / self.name
        stamp = first
        while True:
            if self.one_commit:
                path = folder / f"{stamp:06}-{self.name}"
                with self.open(path, "x") as writer:
                    self.append(writer, 1)
                yield stamp
                stamp += 1
                continue
            with self.open(path, "a") as writer:
                for _ in range(7):
                    self.append(writer, stamp)
                    writer.commit()
                    yield stamp
                    stamp += 1


def snapshot(path: Path) -> dict[str, Any]:
    """Every file below a path with its content; links and pipes by what they are.

    SQLite puts an index and an empty log beside a database that it reads; they hold nothing.
    """
    found: dict[str, Any] = {}
    for each in [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]:
        if each.name.endswith("-shm") or (each.name.endswith("-wal") and not each.lstat().st_size):
            continue
        if each.is_symlink():
            found[str(each.relative_to(path))] = os.readlink(each)
        elif each.is_file():
            found[str(each.relative_to(path))] = each.read_bytes()
        else:
            found[str(each.relative_to(path))] = each.lstat().st_mode
    return found


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [each for each in sorted(path.rglob("*")) if each.is_file() and not each.is_symlink()]


def _open_below(path: Path) -> list[str]:
    """Files below a path that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [each for each in found if each.startswith(str(path))]


def _apart(call: Callable[[], Any]) -> Any:
    """What a call returns in a forked child that leaves as if it was killed."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            sender.send(call())
        except BaseException as error:
            sender.send(repr(error))
        finally:
            os._exit(0)
    sender.close()
    try:
        return receiver.recv()
    finally:
        os.waitpid(child, 0)
        receiver.close()


@contextlib.contextmanager
def _alarm(seconds: int = 30) -> Iterator[None]:
    """Whatever waits for ever in the block is interrupted."""

    def ring(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


FULL = """
import errno, importlib, sys
from itertools import count
from pathlib import Path
kit = importlib.import_module(sys.argv[2]).KIT
path = Path(sys.argv[1]) / kit.name
done = 0
try:
    with kit.open(path) as writer:
        for stamp in count(1):
            kit.append(writer, stamp)
            writer.commit()
            done = stamp
except OSError as error:
    assert error.errno == errno.ENOSPC, repr(error)
there = kit.read(path)
assert there == list(range(1, len(there) + 1))
assert len(there) in (done, done + 1) and done > 5, (done, there)
print("full")
"""


class WritingContract:
    """What needs no reader. Subclasses provide `kit`."""

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

    # Commit, rollback, close.

    def test_the_end_of_a_block_commits(self, path: Path) -> None:
        self.filled(path, 1, 2, 3)
        assert self.kit.read(path) == [1, 2, 3]

    def test_a_block_that_fails_rolls_back(self, path: Path) -> None:
        kit = self.kit
        with contextlib.suppress(ZeroDivisionError), kit.open(path) as writer:
            kit.append(writer, 1)
            if not kit.one_commit:
                writer.commit()
                kit.append(writer, 2)
            raise ZeroDivisionError
        assert kit.read(path) == ([1, 2] if not kit.has_rollback else [1][: not kit.one_commit])
        with pytest.raises(ValueError, match="closed"):
            kit.append(writer, 2)

    def test_rollback_drops_what_was_not_committed(self, path: Path) -> None:
        kit = self.kit
        with kit.open(path) as writer:
            if not kit.has_rollback:
                with pytest.raises(TypeError, match="rollback"):
                    writer.rollback()
                return
            if not kit.one_commit:
                kit.append(writer, 1)
                writer.commit()
            kit.append(writer, 9)
            kit.append(writer, 9)
            writer.rollback()
            kit.append(writer, 1 if kit.one_commit else 2)
        assert kit.read(path) == [1, 2][: 1 + (not kit.one_commit)]

    def test_nothing_works_after_close(self, path: Path) -> None:
        kit = self.kit
        writer = kit.open(path)
        kit.append(writer, 1)
        writer.close()
        writer.close()
        before = snapshot(path)
        for call in (writer.commit, writer.rollback, lambda: kit.append(writer, 2)):
            if not kit.has_rollback and call == writer.rollback:
                continue
            with pytest.raises(ValueError, match="closed"):
                call()
        assert snapshot(path) == before

    def test_a_close_that_cannot_commit_is_an_error(self, path: Path) -> None:
        """After an interrupt that the caller swallowed, nobody is to believe that all is there."""
        kit = self.kit
        if not kit.has_rollback:
            return  # it hands steps over, and commits what it has
        writer = kit.open(path)
        kit.append(writer, 1)
        writer._torn = True  # as a Ctrl-C inside an append leaves it
        with pytest.raises(ValueError, match="what was not committed is gone"):
            writer.close()
        writer.close()
        assert kit.read(path) == []

    def test_a_forgotten_writer_lets_go(self, path: Path) -> None:
        kit = self.kit
        writer = kit.open(path, "x")
        kit.append(writer, 1)
        if kit.has_rollback:
            del writer
            gc.collect()
            assert _open_below(path.parent) == []
            assert kit.read(path) == []
            self.filled(path, 1)
        else:
            writer.close()
        assert kit.read(path) == [1]

    # Outputs that exist.

    def test_mode_x_refuses_what_exists(self, path: Path) -> None:
        self.filled(path)
        before = snapshot(path)
        with pytest.raises(FileExistsError, match="exists"):
            self.kit.open(path)
        assert snapshot(path) == before

    def test_mode_a_goes_on_or_creates(self, path: Path) -> None:
        kit = self.kit
        if kit.one_commit:
            with pytest.raises(ValueError, match="mode"):
                kit.open(path, "a")
            return
        for stamp in (1, 2):
            with kit.open(path, "a") as writer:
                kit.append(writer, stamp)
        assert kit.read(path) == [1, 2]

    def test_no_other_mode(self, path: Path) -> None:
        for mode in ("w", "r", "", None):
            with pytest.raises(ValueError, match="mode"):
                self.kit.open(path, mode)
        assert not path.exists()

    def test_what_is_not_ours_stays_as_it_is(self, path: Path, quick_path: Path) -> None:
        path.mkdir()
        (path / "thesis.txt").write_text("years of work")
        before = snapshot(path)
        for mode in ("x", "a"):
            with pytest.raises((FileExistsError, ValueError)):
                self.kit.open(path, mode)
        assert snapshot(path) == before
        other = quick_path / f"file-{self.kit.name}"
        other.write_text("not ours")
        for mode in ("x", "a"):
            with pytest.raises((FileExistsError, ValueError)):
                self.kit.open(other, mode)
        assert other.read_text() == "not ours"

    # Who may write.

    def test_a_second_writer_is_refused(self, path: Path) -> None:
        kit = self.kit
        mode: Any = "x" if kit.one_commit else "a"
        with kit.open(path, mode) as writer:
            kit.append(writer, 1)

            def second() -> str:
                try:
                    kit.open(path, mode)
                except sw.BusyError:
                    return "busy"
                return "let in"

            assert second() == "busy"
            assert in_fork(second) == "busy"
        assert kit.read(path) == [1]

    def test_a_lock_whose_owner_was_killed(self, path: Path) -> None:
        kit = self.kit
        receiver, sender = os.pipe()
        child = os.fork()
        if child == 0:
            writer = kit.open(path)
            kit.append(writer, 5)
            os.write(sender, b"!")
            signal.pause()
        os.read(receiver, 1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(receiver)
        os.close(sender)
        if kit.has_rollback and not kit.is_there_at_once:
            self.filled(path, 1)
            assert kit.read(path) == [1]
        else:
            kit.open(path, "a").close()

    def test_a_child_does_not_keep_a_dead_parents_lock(self, path: Path) -> None:
        kit = self.kit
        receiver, sender = os.pipe()
        parent = os.fork()
        if parent == 0:
            writer = kit.open(path)
            kit.append(writer, 5)
            grandchild = os.fork()
            if grandchild == 0:
                signal.pause()
            os.write(sender, grandchild.to_bytes(8, "little"))
            signal.pause()
        grandchild = int.from_bytes(os.read(receiver, 8), "little")
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        try:
            fresh = kit.has_rollback and not kit.is_there_at_once
            with kit.open(path, "x" if fresh else "a") as writer:
                kit.append(writer, 1)
        finally:
            os.kill(grandchild, signal.SIGKILL)
            os.close(receiver)
            os.close(sender)

    def test_a_forked_child_reads_and_does_not_write(self, path: Path) -> None:
        kit = self.kit
        with kit.open(path) as writer:
            kit.append(writer, 1)

            def child() -> list[str]:
                refused = []
                calls: list[Callable[[], None]] = [lambda: kit.append(writer, 2), writer.commit]
                for call in calls:
                    try:
                        call()
                    except RuntimeError as error:
                        refused.append(type(error).__name__)
                writer.close()
                return refused

            assert in_fork(child) == ["RuntimeError"] * 2
            if not kit.one_commit:
                writer.commit()
                assert in_fork(lambda: kit.read(path)) == [1]
                kit.append(writer, 2)
        assert kit.read(path) == [1, 2][: 1 + (not kit.one_commit)]

    def test_threads_take_turns(self, path: Path) -> None:
        kit = self.kit
        stamps, lock, errors = count(1), threading.Lock(), []
        with kit.open(path) as writer:

            def work() -> None:
                try:
                    for _ in range(6):
                        with lock:  # stamps are to ascend; commits may come from any thread
                            kit.append(writer, next(stamps))
                        if not kit.one_commit:
                            writer.commit()
                except BaseException as error:
                    errors.append(error)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert errors == []
        assert kit.read(path) == list(range(1, 25))

    # Where it is written.

    @pytest.mark.parametrize("replaced", [False, True])
    def test_a_folder_that_is_moved_away(self, path: Path, replaced: bool) -> None:
        kit = self.kit
        if kit.one_commit:
            return  # a single file: there is no folder to move
        writer = kit.open(path)
        kit.append(writer, 1)
        writer.commit()
        kit.append(writer, 2)
        moved = path.with_name("moved")
        path.rename(moved)
        if replaced:
            self.filled(path, 1, 2, 3)
        with pytest.raises((sw.BusyError, OSError)):
            writer.commit()
        with contextlib.suppress(OSError, ValueError):
            writer.close()
        assert kit.read(moved) == ([1, 2] if kit.is_there_at_once else [1])
        assert path.exists() == replaced
        assert kit.read(path) == [1, 2, 3][: 3 * replaced]

    def test_a_writer_stays_where_it_was_opened(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kit, elsewhere = self.kit, path.parent / "elsewhere"
        elsewhere.mkdir()
        monkeypatch.chdir(path.parent)
        with kit.open(Path(path.name)) as writer:
            kit.append(writer, 1)
            monkeypatch.chdir(elsewhere)
        assert kit.read(path) == [1]
        assert not list(elsewhere.iterdir())

    def test_links_and_pipes_are_refused(self, path: Path, quick_path: Path) -> None:
        """In the place of any file, for readers and writers: nothing outside is touched."""
        kit = self.kit
        self.filled(path, 1, 2)
        for file in _files(path):
            for kind in ("link", "pipe"):
                copy, outside = quick_path / "copy" / kit.name, quick_path / "outside"
                copy.parent.mkdir()
                outside.mkdir()
                shutil.copytree(path, copy) if path.is_dir() else shutil.copy(path, copy)
                place = copy / file.relative_to(path) if path.is_dir() else copy
                place.rename(outside / "victim")
                if kind == "link":
                    place.symlink_to(outside / "victim")
                else:
                    os.mkfifo(place)
                before = snapshot(outside)
                with _alarm():
                    self._look(copy, place, kind)
                assert snapshot(outside) == before, (kind, file)
                shutil.rmtree(copy.parent)
                shutil.rmtree(outside)

    def _look(self, path: Path, place: Path, kind: str) -> None:
        """A reader reports it, or does not need that file; so does a writer."""
        kit = self.kit
        named = kind == "link" and place == path  # the user's own path may be a link
        try:
            assert kit.look(path) == [1, 2]
        except sw.FormatError:
            assert not named
        if kit.one_commit:
            return
        try:
            with kit.open(path, "a") as writer:
                kit.append(writer, 3)
        except (sw.FormatError, FileExistsError):
            return
        assert kit.read(path) == [1, 2, 3]

    # Promise 1: kills.

    def test_kills(self, quick_path: Path) -> None:
        kit = self.kit
        chance = random.Random()
        last, longest_s, interesting = 0, 0.01, 0
        with Victims(f"{type(kit).__module__}:KIT.work", quick_path) as victims:
            for _ in range(KILLS):
                acknowledged = victims.kill(last + 1, chance.uniform(0, longest_s))
                longest_s = min(longest_s * 1.2, 2) if acknowledged <= last else longest_s * 0.95
                interesting += acknowledged > last
                last = self._after_a_kill(quick_path, acknowledged)
                if last > 60:
                    for each in quick_path.iterdir():
                        shutil.rmtree(each) if each.is_dir() else each.unlink()
                    last = 0
        assert interesting > 0

    def _after_a_kill(self, folder: Path, acknowledged: int) -> int:
        kit = self.kit
        if not kit.one_commit:
            there = kit.read(folder / kit.name)
            assert there == list(range(1, len(there) + 1))
            assert acknowledged <= len(there) <= acknowledged + 1
            return len(there)
        names = sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))
        for name in names:
            assert kit.read(folder / name) == [1]
        last = int(names[-1].partition("-")[0]) if names else 0
        assert acknowledged <= last <= acknowledged + 1 or not names
        return last

    # Promise 2: power cuts.

    def test_power_cuts(self, quick_path: Path) -> None:
        kit = self.kit
        if not kit.recordable:
            return
        folder = quick_path / "disk"
        folder.mkdir()
        path = folder / kit.name
        if not kit.one_commit:
            path.mkdir()
        with recorded(folder) as disk:
            if kit.one_commit:
                self.filled(path, 1)
                disk.acknowledge(1)
            else:
                with kit.open(path, "a") as writer:
                    for stamp in (1, 2, 3):
                        kit.append(writer, stamp)
                        writer.commit()
                        disk.acknowledge(stamp)
        checked = 0
        for crash in disk.crashes(tries=2):
            checked += 1
            restarted = quick_path / str(checked)
            restarted.mkdir()
            crash.write(restarted)
            there = kit.read(restarted / kit.name)
            done = crash.acknowledged or 0
            assert there in (list(range(1, done + 1)), list(range(1, done + 2))), crash.after
            if checked % 8 == 0 and not kit.one_commit:
                with kit.open(restarted / kit.name, "a") as writer:
                    kit.append(writer, len(there) + 1)
                assert kit.read(restarted / kit.name) == [*there, len(there) + 1]
            shutil.rmtree(restarted)
        assert checked > 10

    # Promise 8: errors.

    @pytest.mark.parametrize("kind", get_args(Kind))
    def test_every_call_fails_once(self, quick_path: Path, kind: Kind) -> None:
        kit = self.kit
        old = quick_path / "old"
        old.mkdir()
        if not kit.one_commit:
            self.filled(old / kit.name, 1)
        for number in count():
            folder = quick_path / str(number)
            shutil.copytree(old, folder)
            path = folder / kit.name
            error = None
            try:
                with fault(kind, number) as injected:
                    with kit.open(path, "x" if kit.one_commit else "a") as writer:
                        kit.append(writer, 2)
                    kit.look(path)
            except (OSError, sw.StepwellError, ValueError) as caught:
                error = caught
            if injected.name is None:
                assert error is None
                break
            there = kit.read(path)
            if kit.one_commit:
                assert there in ([], [2])
                assert there == [2] or error is not None
                if not there:
                    self.filled(path, 2)
                    assert kit.read(path) == [2]
            else:
                assert there in ([1], [1, 2])
                assert there == [1, 2] or error is not None
                with kit.open(path, "a") as writer:
                    kit.append(writer, len(there) + 1)
                assert kit.read(path) == [*there, len(there) + 1]
            shutil.rmtree(folder)


class WriterContract(WritingContract):
    """The whole exam: a writer, and the store that others read."""

    def test_a_commit_is_seen(self, path: Path) -> None:
        kit = self.kit
        writer = kit.open(path)
        kit.append(writer, 1)
        kit.append(writer, 2)
        assert kit.read(path) == []
        writer.commit()
        assert kit.read(path) == [1, 2]
        if not kit.one_commit:
            kit.append(writer, 3)
            assert kit.read(path) == [1, 2]
        writer.close()
        assert kit.read(path) == [1, 2, 3][: 2 + (not kit.one_commit)]

    def test_what_was_never_committed_counts_as_empty(self, path: Path) -> None:
        kit = self.kit
        kept = []  # until it is killed: a writer that is forgotten ends well

        def begin() -> str:
            kept.append(kit.open(path))
            kit.append(kept[0], 7)
            return "left"

        assert _apart(begin) == "left"
        assert kit.read(path) == []
        self.filled(path, 1)
        assert kit.read(path) == [1]

    def test_a_disk_that_is_really_full(self, tmp_path: Path) -> None:
        kit = self.kit
        if kit.small_disk:
            found = on_a_small_disk(tmp_path, kit.small_disk, FULL, type(kit).__module__)
            assert found == "full\n"

    # Readers beside a writer.

    def test_a_healthy_store_beside_a_busy_writer_is_healthy(self, path: Path) -> None:
        kit = self.kit
        if kit.one_commit:
            return
        stop = multiprocessing.get_context("fork").Event()
        begun = multiprocessing.get_context("fork").Event()

        def write() -> None:
            for stamp in kit.work(path.parent, 1):
                if stamp >= 3:
                    begun.set()
                if stop.is_set():
                    return

        process = multiprocessing.get_context("fork").Process(target=write)
        process.start()
        try:
            assert begun.wait(60)
            last = 0
            for _ in range(12):
                there = kit.read(path)  # which verifies, too
                assert there == list(range(1, len(there) + 1))
                assert len(there) >= last
                last = len(there)
        finally:
            stop.set()
            process.join(60)
        assert process.exitcode == 0

    def test_readers_keep_their_commit_until_refresh(self, path: Path) -> None:
        kit = self.kit
        self.filled(path, 1)
        with kit.store.open(path) as store:
            assert kit.stamps(store) == [1]
            assert store.refresh() is False
            if kit.one_commit:
                return
            again = pickle.dumps(store)
            with kit.open(path, "a") as writer:
                kit.append(writer, 2)
            assert kit.stamps(store) == [1]
            with pickle.loads(again) as other:
                assert kit.stamps(other) == [1]
            assert store.refresh() is True
            assert kit.stamps(store) == [1, 2]
            assert store.refresh() is False
            with pickle.loads(pickle.dumps(store)) as other:
                assert kit.stamps(other) == [1, 2]

    def test_a_reader_stays_where_it_was_opened(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.filled(path)
        monkeypatch.chdir(path.parent)
        with self.kit.store.open(path.name) as store:
            monkeypatch.chdir("/")
            with pickle.loads(pickle.dumps(store)) as again:
                assert self.kit.stamps(store) == self.kit.stamps(again) == [1, 2, 3]
            assert store.verify().ok

    # What a store says about itself.

    def test_reading_never_writes(self, path: Path) -> None:
        self.filled(path, 1, 2)
        before = snapshot(path)
        with self.kit.store.open(path) as store:
            store.describe()
            self.kit.stamps(store)
            assert store.verify().ok
        assert snapshot(path) == before

    def test_a_closed_reader(self, path: Path) -> None:
        self.filled(path, 1, 2)
        store = self.kit.store.open(path)
        batch = store.take([0])
        copy = {name: pickle.dumps(values) for name, values in batch.items()}
        store.close()
        store.close()
        for call in (
            lambda: store.take([0]),
            lambda: store[0],
            store.verify,
            store.describe,
            store.refresh,
        ):
            with pytest.raises(ValueError, match="closed"):
                call()
        assert {name: pickle.dumps(values) for name, values in batch.items()} == copy

    def test_describe_and_verify(self, path: Path) -> None:
        kit = self.kit
        self.filled(path, 1, 2)
        with kit.store.open(path) as store:
            about = store.describe()
            assert (about.kind, about.path, about.rows) == (store.kind, str(path), len(store))
            assert 0 < about.bytes <= sum(file.stat().st_size for file in _files(path))
            assert dict(about.fields) == dict(store.schema)
            assert about.health == "fine"
            done: list[tuple[int, int]] = []
            report = store.verify(progress=lambda *numbers: done.append(numbers))
            assert report.ok
            assert (report.kind, report.path) == (store.kind, str(path))
            assert report.checked
            assert done
            assert done[-1][0] == done[-1][1]
            assert store.verify(quick=True).ok
            if store.runs is None:
                with pytest.raises(ValueError, match="no runs"):
                    store.where("1")
                with pytest.raises(ValueError, match="no runs"):
                    store.query("SELECT 1")
            else:
                assert about.runs == len(store.runs)
                assert sum(store.runs.counts) == len(store)
                assert store.query("SELECT 1 AS one").rows == [(1,)]
                assert len(store.where("1 = ?", 0)) == 0

    def test_the_path_says_which_store_it_is(self, path: Path) -> None:
        kit = self.kit
        self.filled(path)
        if kit.store in STORES:
            with sw.open(path) as store:
                assert type(store) is kit.store
        for other in Store.__subclasses__():
            assert other.recognizes(path) == (other is kit.store)
            if other is not kit.store:
                with pytest.raises(sw.FormatError, match=f"expected {other.noun}"):
                    other.open(path)

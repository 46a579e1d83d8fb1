"""The exam every writer sits.

    class Kit(WriterKit):           how to write stamps to a store, and to read them back
        ...

    KIT = Kit()

    class TestWriter(WriterContract):
        kit = KIT

A stamp is a number that the rows of one append carry. What was committed reads back as the stamps
1, 2, …, in order and each whole; anything else raises in `Kit.stamps`. A new promise is added once,
here or in tests/crash/contract.py, and holds for every store. Work for other processes is found by
the kit's name: it must be the constant `KIT` of the test module.
"""

import contextlib
import gc
import multiprocessing
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from functools import partial
from inspect import isabstract
from itertools import count, filterfalse
from pathlib import Path
from typing import Any

import pytest

import stepwell as sw
from stepwell.store import Store
from stepwell.stores import STORES
from stepwell.views import Join
from tests.children import at_once, in_fork
from tests.crash.contract import CrashContract
from tests.query_contract import QueryContract
from tests.writer_kit import WriterKit, files_of, open_below, snapshot, unchanged

__all__ = ["WriterContract", "WriterKit", "WritingContract", "snapshot", "unchanged"]


class WritingContract(CrashContract):
    """What needs no reader. Subclasses provide `kit`."""

    # Commit, rollback, close.

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
        for call in (writer.commit, writer.rollback, lambda: kit.append(writer, 2)):
            if not kit.has_rollback and call == writer.rollback:
                continue
            with unchanged(path), pytest.raises(ValueError, match="closed"):
                call()

    def test_a_close_that_cannot_commit_is_an_error(self, path: Path) -> None:
        """After an interrupt that the caller swallowed, nobody is to believe that all is there."""
        kit = self.kit
        if not kit.has_rollback:
            return  # it hands steps over, and commits what it has
        writer = kit.open(path)
        kit.append(writer, 1)
        writer._torn = True  # as a Ctrl-C inside an append leaves it
        with pytest.raises(ValueError, match="uncommitted changes are lost"):
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
            assert open_below(path.parent) == []
            assert kit.read(path) == []
            self.filled(path, 1)
        else:
            writer.close()
        assert kit.read(path) == [1]

    # Outputs that exist.

    def test_mode_x_refuses_what_exists(self, path: Path) -> None:
        self.filled(path)
        with unchanged(path), pytest.raises(FileExistsError, match="exists"):
            self.kit.open(path)

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

    def test_a_url_is_no_folder(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(path.parent)
        url: Any = "https://127.0.0.1:1/store"
        with unchanged(path.parent), pytest.raises((ValueError, sw.FetchError), match="a bucket"):
            self.kit.open(url)

    def test_what_is_not_ours_stays_as_it_is(self, path: Path, quick_path: Path) -> None:
        path.mkdir()
        (path / "thesis.txt").write_text("years of work")
        other = quick_path / f"file-{self.kit.name}"
        other.write_text("not ours")
        for place in (path, other):
            for mode in ("x", "a"):
                with unchanged(place), pytest.raises((FileExistsError, ValueError)):
                    self.kit.open(place, mode)

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
        stamps, lock = count(1), threading.Lock()
        with kit.open(path) as writer:

            def work() -> None:
                for _ in range(6):
                    with lock:  # stamps are to ascend; commits may come from any thread
                        kit.append(writer, next(stamps))
                    if not kit.one_commit:
                        writer.commit()

            at_once(*[work] * 4)
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
        for file in files_of(path):
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
                with unchanged(outside):
                    in_fork(partial(self._look, copy, place, kind))  # which may not hang
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


class WriterContract(WritingContract, QueryContract):
    """The whole exam: a writer, and the store that others read."""

    def queried(self, path: Path) -> Store | None:
        store = self.kit.store.open(self.filled(path))
        return None if store.runs is None else store

    @pytest.mark.parametrize("harm", ["gone", "cut"])
    def test_a_file_that_is_damaged(self, path: Path, quick_path: Path, harm: str) -> None:
        """What was there or an error, `verify` never raises, and no writer adds to damage."""
        kit = self.kit
        self.filled(path, 1, 2, 3)
        for number, file in enumerate(files_of(path)):
            if file.name.endswith(("lock", "-wal", "-shm")) or not file.stat().st_size:
                continue
            copy = quick_path / str(number) / kit.name
            copy.parent.mkdir()
            shutil.copytree(path, copy) if path.is_dir() else shutil.copy(path, copy)
            place = copy / file.relative_to(path) if path.is_dir() else copy
            if harm == "gone":
                place.unlink()
            else:
                os.truncate(place, place.stat().st_size // 2)
            with contextlib.suppress(sw.StepwellError, FileNotFoundError):
                assert kit.look(copy) == [1, 2, 3]
            with contextlib.suppress(sw.StepwellError, FileNotFoundError):
                kit.store.open(copy).verify()
            if kit.one_commit:
                continue
            with contextlib.suppress(sw.StepwellError, OSError), kit.open(copy, "a") as writer:
                kit.append(writer, 4)
            with contextlib.suppress(sw.StepwellError, FileNotFoundError):
                # What says that anything was committed may be what is gone.
                assert kit.look(copy) in ([1, 2, 3], [1, 2, 3, 4], [4])

    def test_a_file_that_is_cut_while_it_is_open(self, path: Path, quick_path: Path) -> None:
        """What was there or an error, for readers and writers: never the end of the process."""
        kit = self.kit
        self.filled(path, 1, 2, 3)
        for number, file in enumerate(files_of(path)):
            copy = quick_path / str(number) / kit.name
            copy.parent.mkdir()
            shutil.copytree(path, copy) if path.is_dir() else shutil.copy(path, copy)
            place = copy / file.relative_to(path) if path.is_dir() else copy

            def read(copy: Path = copy, place: Path = place) -> None:
                with kit.store.open(copy) as store:
                    os.truncate(place, 0)
                    with contextlib.suppress(sw.StepwellError, EOFError):  # of the kit's own look
                        assert kit.stamps(store) == [1, 2, 3]
                    with contextlib.suppress(sw.StepwellError, OSError):
                        store.refresh()

            def write(copy: Path = copy, place: Path = place) -> None:
                with contextlib.suppress(sw.StepwellError, OSError, ValueError):
                    writer = kit.open(copy, "a")
                    kit.append(writer, 4)
                    os.truncate(place, 0)
                    writer.commit()

            before = place.read_bytes()
            in_fork(read)
            place.write_bytes(before)
            if not kit.one_commit:
                in_fork(write)

    @pytest.mark.parametrize("harm", ["gone", "flipped"])
    def test_a_log_that_is_lost(self, path: Path, harm: str) -> None:
        """What SQLite has not put into its database yet, after a kill: all of it, or an error."""
        kit = self.kit
        if kit.one_commit or not kit.misses_a_log:
            return
        kept = []

        def work() -> None:
            writer = kit.open(path)
            kept.append(writer)
            for stamp in (1, 2, 3):
                kit.append(writer, stamp)
                writer.commit()

        in_fork(work)
        for log in path.rglob("*-wal"):
            data = bytearray(log.read_bytes())
            data[len(data) // 2] ^= 1
            log.unlink() if harm == "gone" else log.write_bytes(data)
            log.with_name(log.name.replace("-wal", "-shm")).unlink()
        for _ in range(2):
            with contextlib.suppress(sw.StepwellError):
                assert kit.look(path) in ([1, 2, 3], [1, 2, 3, 4])
            with contextlib.suppress(sw.StepwellError), kit.open(path, "a") as writer:
                kit.append(writer, 4)

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

    # Readers beside a writer.

    def test_a_healthy_store_beside_a_busy_writer_is_healthy(self, path: Path) -> None:
        kit = self.kit
        if kit.one_commit:
            return
        fork = multiprocessing.get_context("fork")
        stop, begun = fork.Event(), fork.Event()

        def write() -> None:
            for stamp in kit.work(path.parent, 1):
                if stamp >= 3:
                    begun.set()
                if stop.is_set():
                    return

        process = fork.Process(target=write)
        process.start()
        try:
            assert begun.wait(60)
            last = 0
            with kit.store.open(path) as held:  # at a commit that the writer goes on from
                for turn in range(12):
                    there = kit.read(path)  # which verifies, too
                    assert there == list(range(1, len(there) + 1))
                    assert len(there) >= last
                    last = len(there)
                    report = held.verify(quick=turn % 2 == 0)
                    assert report.ok, str(report)
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

    # What a store says about itself.

    def test_reading_never_writes(self, path: Path) -> None:
        self.filled(path, 1, 2)
        with unchanged(path), self.kit.store.open(path) as store:
            store.describe()
            self.kit.stamps(store)
            assert store.verify().ok

    def test_a_closed_reader(self, path: Path) -> None:
        self.filled(path, 1, 2)
        store = self.kit.store.open(path)
        batch = store.take([0])
        copy = {name: pickle.dumps(values) for name, values in batch.items()}
        twice, beside = store.concat(store), Join({"a": store, "b": store})
        store.close()
        store.close()
        for call in (
            lambda: twice.take([0]),
            lambda: beside.take([0]),
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
            assert 0 < about.bytes <= sum(file.stat().st_size for file in files_of(path))
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
        link = path.with_name(f"link-{path.name}")
        link.symlink_to(path)
        with kit.store.open(link) as store:  # a name that the user chose
            assert store.describe().bytes == about.bytes

    def test_the_path_says_which_store_it_is(self, path: Path) -> None:
        kit = self.kit
        self.filled(path)
        if kit.store in STORES:
            with sw.open(path) as store:
                assert type(store) is kit.store
        for other in filterfalse(isabstract, Store.__subclasses__()):
            assert other.recognizes(path) == (other is kit.store)
            if other is not kit.store:
                with pytest.raises(sw.FormatError, match=f"expected {other.noun}"):
                    other.open(path)

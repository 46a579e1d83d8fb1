"""Readers beside a writer: whole records, all fields of one commit, whatever happens meanwhile."""

import multiprocessing
import os
import pickle
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import BusyError, Field, Loader, RecordReader, RecordWriter
from stepwell.stores.records import view as look
from tests import ROOT, children, records, scaled
from tests.contract import assert_batch
from tests.records import CODECS
from tests.reference.records import Compress
from tests.writer_contract import snapshot

FIELDS: Any = {"n": ("<u8", (3,)), "text": Field(bytes, compress="zstd")}


def batch(stamps: np.ndarray) -> dict[str, object]:
    """Records that say in each field which they are."""
    return {
        "n": np.stack([stamps, stamps * 3, stamps * 7], 1).astype("<u8"),
        "text": [b"%d " % stamp * (stamp % 50 + 1) for stamp in stamps.tolist()],
    }


@contextmanager
def beside(*works: Callable[[], Iterator[None]]) -> Iterator[None]:
    """Each of them in a process of its own, from its first turn to the end of the block."""
    context = multiprocessing.get_context("fork")
    begun, stop = [context.Event() for _ in works], context.Event()

    def run(work: Callable[[], Iterator[None]], begins: Event) -> None:
        for _ in work():
            begins.set()
            if stop.is_set():
                return

    processes = [context.Process(target=run, args=each) for each in zip(works, begun, strict=True)]
    for process in processes:
        process.start()
    try:
        assert all(begins.wait(60) for begins in begun)
        yield
    finally:
        stop.set()
        for process in processes:
            process.join(60)
    assert [process.exitcode for process in processes] == [0] * len(works)


def test_eight_readers_and_a_writer(quick_path: Path) -> None:
    path = quick_path / "store"
    with RecordWriter(path, FIELDS, chunk_records=100) as store:
        store.append(batch(np.arange(500)))
    longest = multiprocessing.get_context("fork").Value("q", 0)

    def read(seed: int) -> Iterator[None]:
        rng = np.random.default_rng(seed)
        store = RecordReader.open(path)
        while True:
            try:
                found = store.take(rng.integers(0, len(store), 64))
            except BusyError as error:
                assert "refresh" in str(error)  # noqa: PT017
                store.refresh()
                continue
            n = found["n"]
            assert (n[:, 1] == n[:, 0] * 3).all()
            assert (n[:, 2] == n[:, 0] * 7).all()
            for stamp, text in zip(n[:, 0].tolist(), found["text"], strict=True):
                assert text == b"%d " % stamp * (stamp % 50 + 1), (stamp, text[:20])
            if rng.integers(20) == 0:
                store.refresh()
                longest.value = max(longest.value, len(store))
            yield

    rng, stamp = np.random.default_rng(1), 10_000
    with (
        beside(*(partial(read, seed) for seed in range(8))),
        RecordWriter(path, mode="a", grow_bytes=1 << 16) as store,
    ):
        for commit in range(scaled(60, smallest=20)):
            rows = rng.choice(len(store), 20, replace=False)
            store.update(rows, batch(np.arange(stamp, stamp + 20)))
            store.append(batch(np.arange(stamp + 20, stamp + 25)))
            store.delete(rng.choice(len(store), 3, replace=False))
            stamp += 25
            store.rebalance() if commit % 20 == 19 else store.commit()
    assert longest.value > 500  # someone saw it grow


def test_a_take_sees_all_fields_of_one_commit(quick_path: Path) -> None:
    """A writer that was killed between two tables: `take` and a loader say so, a refresh sees the
    commit, and nothing is written by it."""
    path = quick_path / "store"
    with RecordWriter(path, FIELDS) as store:
        store.append(batch(np.arange(100)))
    reader = RecordReader.open(path)
    script = """
import os, sys
import numpy as np
from stepwell import RecordWriter
from stepwell.stores.records.tables import TableFile
from tests.stores.test_records_readers import batch
store = RecordWriter(sys.argv[1], mode="a")
store.update(np.arange(100), batch(np.arange(1000, 1100)))
change, done = TableFile.change, []
def once(self, *args):
    change(self, *args)
    os.kill(os.getpid(), 9)
TableFile.change = once
store.commit()
"""
    done = children.python(script, path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == -signal.SIGKILL
    before = snapshot(path)
    for read in (lambda: reader.take(np.arange(100)), lambda: list(Loader(reader["n"], 100))):
        with pytest.raises(BusyError, match=r"stopped in the middle of a commit; refresh\(\)"):
            read()
    assert reader.refresh()
    for each in (reader, RecordReader.open(path)):  # from the journal, in memory of their own
        found = each.take(np.arange(100))
        assert found["n"][:, 0].tolist() == list(range(1000, 1100))
        assert found["text"].row(5) == b"1005 " * 6
        assert len(list(Loader(each["n"], 10))) == 10
        assert each.verify().ok
    assert snapshot(path) == before
    with RecordWriter(path, mode="a") as writer:  # which settles it, and goes on
        writer.update([0], batch(np.array([7])))
    assert reader["n"][0].tolist() == [1000, 3000, 7000]
    assert reader.refresh()
    assert reader["n"][0].tolist() == [7, 21, 49]


def test_a_directory_that_cannot_be_written_to(quick_path: Path) -> None:
    """The commits of the journal are there all the same, in memory of the reader's own."""
    path = quick_path / "store"
    with RecordWriter(path, FIELDS) as store:
        store.append(batch(np.arange(300)))
    with RecordWriter(path, mode="a", grow_bytes=4096) as store:
        store.update([1, 2, 299], batch(np.array([7, 8, 9])))
        store.append(batch(np.array([500])))
        store.commit()
        shutil.copytree(path, quick_path / "copy")  # as a kill would leave it
    copy = quick_path / "copy"
    with (copy / "n.column").open("r+b") as file:
        file.seek(24)
        file.write(bytes(24))  # not all of it had reached the disk
    (copy / "writer.lock").write_bytes(b"")
    script = """
import os, sys
import numpy as np
from stepwell import RecordReader, RecordWriter
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
store = RecordReader.open(sys.argv[1])
assert len(store) == 301
assert store["n"][[1, 2, 299, 300]][:, 0].tolist() == [7, 8, 9, 500]
assert store["text"][1] == b"7 " * 8
assert store.verify().ok
try:
    RecordWriter(sys.argv[1], mode="a")
except PermissionError:
    print("refused")
"""
    for folder, _, files in os.walk(quick_path):
        os.chmod(folder, 0o555)
        for name in files:
            os.chmod(Path(folder) / name, 0o444)
    try:
        before = snapshot(copy)
        assert children.answer(script, copy) == "refused"
        assert snapshot(copy) == before
    finally:
        for folder, _, _ in os.walk(quick_path):
            os.chmod(folder, 0o755)


@pytest.mark.parametrize("compress", CODECS)
def test_readers_go_on_through_a_rebalance(quick_path: Path, compress: Compress) -> None:
    """With what they have mapped, though meta.json did not know of it yet. What was handed out
    without a copy is there for as long as it is kept."""
    path = quick_path / "store"
    writer = RecordWriter(path, records.fields(compress), chunk_records=4)
    writer.append(records.batch(range(30)))
    writer.commit()
    used, unused = RecordReader.open(path), RecordReader.open(path)
    views = used["image"].views(np.arange(30))
    assert compress != "raw" or not (views[0].flags.owndata or views[0].flags.writeable)
    writer.delete([3, 8])
    writer.rebalance(chunk_records=20)
    assert len(list((path / "chunk").iterdir())) == 2
    for reader in (used, unused):
        assert reader[:]["n"][[2, 5, 29]].tolist() == [n * 1_000_003 for n in (2, 5, 29)]
        assert len(next(iter(Loader(reader, 10)))["n"]) == 10
        assert reader.verify().ok
    writer.update([0], records.batch([50]))
    writer.close()
    want = records.expected([50, 1, 2, 28, 4, 5, 6, 7, 29, *range(9, 28)])
    for reader in (used, unused):
        assert reader.refresh()
        assert_batch(reader[:], want)
        assert reader.describe().facts["generation"] == 1
        reader.close()
    shutil.rmtree(path)
    for i, view in enumerate(views):
        assert view.tobytes() == records.values(i)["image"].tobytes()


def test_a_reader_follows_a_growing_store(quick_path: Path) -> None:
    """With one mapping for a chunk, however often it grows."""
    writer = RecordWriter(quick_path / "a", {"x": "<i8"}, grow_bytes=512)
    writer.commit()
    reader = RecordReader.open(quick_path / "a")
    maps = Path(f"/proc/{os.getpid()}/maps")
    for i in range(200):
        writer.append({"x": np.arange(10)})
        assert not reader.refresh()
        writer.commit()
        assert len(reader) == 10 * i
        assert reader.refresh()
        assert reader["x"][-1] == 9
        if i == 20:
            before = len(maps.read_text().splitlines())
    assert len(maps.read_text().splitlines()) < before + 10
    writer.close()
    assert not reader.refresh()


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("rebalances", [False, True])
def test_a_chunk_that_was_rolled_back(quick_path: Path, closes: bool, rebalances: bool) -> None:
    """A reader has mapped it by then, and the next frames have its number."""

    calls = count()

    def give_up(*_: int) -> None:
        reader.refresh()
        if next(calls):  # behind the first frames
            raise RuntimeError

    writer = RecordWriter(quick_path, {"x": ("<i8", (9,))}, chunk_records=4)
    writer.append({"x": np.full((4, 9), 1)})
    writer.commit()
    reader = RecordReader.open(quick_path)
    if rebalances:
        with pytest.raises(RuntimeError):
            writer.rebalance(progress=give_up)
    else:
        writer.append({"x": np.full((4, 9), 2)})
        reader.refresh()
        writer.rollback()
    if closes:
        writer.close()
        writer = RecordWriter(quick_path, mode="a")
    writer.append({"x": np.full((4, 9), 3)})
    writer.commit()
    assert reader.refresh()
    assert reader["x"][:][:, 0].tolist() == [1] * 4 + [3] * 4
    writer.close()
    assert reader.verify().ok


def test_take_and_loader_say_the_same_beside_a_rebalance(quick_path: Path) -> None:
    """A record that went to a chunk the reader has not mapped, which a rebalance took away."""
    path = quick_path / "store"
    with RecordWriter(path, {"n": Field("<u8", compress="lz4")}, chunk_records=10) as store:
        store.append({"n": np.arange(30)})
    reader, ahead = RecordReader.open(path), RecordReader.open(path)
    with RecordWriter(path, mode="a") as store:
        store.update([5], {"n": [500]})
        store.commit()
        ahead.refresh()
        store.rebalance()
    for read in (
        lambda: reader.take([4, 5]),
        lambda: reader["n"][5],
        lambda: reader["n"].views([5]),
        lambda: list(Loader(reader, 10)),
    ):
        with pytest.raises(BusyError, match=r"record 5, n: .*rebalanced meanwhile; refresh\(\)"):
            read()
    assert reader.take([4, 6])["n"].tolist() == [4, 6]  # what is mapped is there
    assert ahead["n"][5] == 500
    assert reader.verify().ok
    assert reader.refresh()
    assert sorted(row for batch in Loader(reader, 10) for row in batch["n"].tolist()) == sorted(
        [*range(5), 500, *range(6, 30)]
    )


def test_verify_beside_deletes_and_rebalances(quick_path: Path) -> None:
    """Records that move keep their old numbers, and chunks go away: nothing of it is damage."""
    path = quick_path / "store"
    with RecordWriter(path, FIELDS, chunk_records=50) as writer:
        writer.append(batch(np.arange(500)))

    def change() -> Iterator[None]:
        rng = np.random.default_rng(1)
        with RecordWriter(path, mode="a", grow_bytes=1 << 12) as writer:
            for turn in count():
                writer.delete(rng.choice(len(writer), 20, replace=False))
                writer.append(batch(np.arange(turn, turn + 20)))
                writer.rebalance() if turn % 7 == 6 else writer.commit()
                yield

    with beside(change):
        reader, checked = RecordReader.open(path), 0
        for quick in [False, True] * scaled(10, smallest=3):
            report = reader.verify(quick=quick)
            assert report.ok, str(report)
            checked += len(report.checked) > 0
            reader.describe()
            reader.refresh()
    assert checked > 0  # or the writer was always in the way


def test_a_writer_that_comes_while_a_reader_looks(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has a commit already, nobody seemed to be writing: what is copied then may be of
    two commits."""
    path = quick_path / "store"
    with RecordWriter(path, FIELDS) as store:
        store.append(batch(np.arange(100)))
    reader, writers, tens = RecordReader.open(path), list[RecordWriter](), count()
    its: Any = look
    is_locked, own_copy = its.is_locked, its.own_copy

    def commit() -> None:
        rows = np.arange(10) + 10 * next(tens)
        writers[0].update(rows, batch(rows + 1000))
        writers[0].commit()

    def locked(lock: Path) -> bool:
        found: bool = is_locked(lock)
        if not writers:
            writers.append(RecordWriter(path, mode="a"))
            commit()
        return found

    def copied(root: Path, name: str, size: int) -> Any:
        commit()
        return own_copy(root, name, size)

    monkeypatch.setattr(look, "is_locked", locked)
    monkeypatch.setattr(look, "own_copy", copied)
    assert reader.refresh()
    n, done = reader.take(np.arange(100))["n"], 10 * next(tens)
    assert n[:, 0].tolist() == [*range(1000, 1000 + done), *range(done, 100)]
    writers[0].close()


def test_a_commit_of_the_next_generation(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes between the look at meta.json and that at the journal: it is looked at again."""
    with RecordWriter(quick_path / "r", FIELDS) as writer:
        writer.append(batch(np.arange(20)))
        writer.commit()
        writer.delete(np.arange(10))
    with RecordWriter(quick_path / "r", mode="a") as writer:
        read, late = look.map_control, [True]

        def map_control(root: Path, *, write: bool = False) -> Any:
            if late and not write:
                late.clear()
                writer.rebalance()
                writer.append(batch(np.arange(5)))
                writer.commit()
            return read(root, write=write)

        monkeypatch.setattr(look, "map_control", map_control)
        with RecordReader.open(quick_path / "r") as store:
            assert len(store) == 15
            assert store.verify().ok


def test_pickled_at_the_commit_it_had(quick_path: Path) -> None:
    """After deletes, too: entries behind the end stay as they were. Not after a rebalance."""
    path = quick_path / "store"
    with RecordWriter(path, FIELDS) as writer:
        writer.append(batch(np.arange(50)))
    reader = RecordReader.open(path)
    sent, column = pickle.dumps(reader), pickle.dumps(reader["n"])
    with RecordWriter(path, mode="a") as writer:
        writer.delete([3, 4])
        writer.commit()
        again = pickle.loads(sent)
        assert len(again) == 50
        assert again["n"][49].tolist() == [49, 147, 343]
        assert pickle.loads(column)[2].tolist() == [2, 6, 14]
        assert again.refresh()
        assert len(again) == 48
        writer.rebalance()
    with pytest.raises(BusyError, match="has become shorter, and was rebalanced"):
        pickle.loads(sent)

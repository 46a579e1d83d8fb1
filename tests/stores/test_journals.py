"""Journals after a crash: a commit that was never written to its end is dropped, one that was
acknowledged and damaged since is an error, and nothing is changed by finding out."""

import json
import os
import resource
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import ChecksumError, FormatError, RecordReader, RecordWriter
from stepwell.files import journal as files_journal
from stepwell.stores import RowState
from stepwell.stores.records import layout
from tests import SANITIZED, children
from tests.records import copy
from tests.writer_kit import unchanged

Change = Callable[[RecordWriter], object]
CHANGES: dict[str, Change] = {
    "append": lambda w: w.append({"x": [10, 11]}),
    "update": lambda w: w.update([0], {"x": [100]}),
    "delete": lambda w: w.delete([5]),
    "attributes": lambda w: w.set_attributes({"rows": 10}),
}
SEAL = 24


def crashed(folder: Path, change: Change, *, earlier: bool) -> tuple[Path, int, int]:
    """A store with ten records whose writer was killed after a commit, before the machine was
    started again; and where the record of that commit begins and ends in the journal."""
    path, there = folder / "made", folder / "a"
    with RecordWriter(path, {"x": "<i8"}, grow_bytes=4096) as writer:
        writer.append({"x": np.arange(10)})
    writer = RecordWriter(path, mode="a", grow_bytes=4096)
    if earlier:
        writer.update([9], {"x": [90]})
        writer.commit()
    begin = writer._journal.end
    with pytest.MonkeyPatch.context() as patch:  # the kill comes before meta.json has it
        patch.setattr(RecordWriter, "_checkpoint", lambda self: None)
        change(writer)
        writer.commit()
    end = writer._journal.end
    copy(path, there)
    writer.close()
    shutil.rmtree(path)
    (there / "writer.lock").unlink()
    return there, begin, end


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << at % 8
    path.write_bytes(data)


def refused(path: Path) -> None:
    with unchanged(path):
        with pytest.raises(ChecksumError) as caught:
            RecordReader.open(path)
        assert str(path) in str(caught.value)
        with pytest.raises(ChecksumError):
            RecordWriter(path, mode="a")
        (path / "writer.lock").unlink()


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_damaged_commit_is_no_torn_one(quick_path: Path, name: str, earlier: bool) -> None:
    path, begin, end = crashed(quick_path, CHANGES[name], earlier=earlier)
    with RecordReader.open(path) as store:
        whole = store["x"][:].tolist(), store.attributes
    journal = (path / "journal.zr").read_bytes()
    for at in range(begin, end - SEAL, 5):
        flip(path / "journal.zr", at)
        refused(path)
        (path / "journal.zr").write_bytes(journal)
    flip(path / "journal.zr", end - SEAL)  # the seal itself: the commit is whole
    with RecordReader.open(path) as store:
        assert (store["x"][:].tolist(), store.attributes) == whole


def test_salvage_of_a_store_whose_journal_is_damaged(quick_path: Path) -> None:
    """The frames of the commit that was lost are there."""
    path, begin, _ = crashed(quick_path, CHANGES["append"], earlier=True)
    flip(path / "journal.zr", begin + 30)
    report = RecordReader.salvage(path, quick_path / "new")
    assert report.records == 12
    with RecordReader.open(quick_path / "new") as store:
        assert store["x"][:].tolist() == [*range(9), 90, 10, 11]


@pytest.mark.parametrize("name", ["append", "update", "delete"])
def test_what_the_tables_have_shows_it_too(quick_path: Path, name: str) -> None:
    """The power was cut before the seal was on the disk, or the store is one of before seals."""
    path, begin, end = crashed(quick_path, CHANGES[name], earlier=True)
    data = (path / "journal.zr").read_bytes()
    (path / "journal.zr").write_bytes(data[: end - SEAL] + bytes(SEAL) + data[end:])
    flip(path / "journal.zr", begin + 30)
    refused(path)


def test_attributes_are_those_of_their_commit(quick_path: Path) -> None:
    """Killed where the commit is in the journal, and meta.json not replaced yet."""
    path = quick_path / "a"

    def work() -> None:
        with RecordWriter(path, {"x": "<i8"}) as writer:
            writer.append({"x": [1]})
            writer.set_attributes({"rows": 1})
        writer = RecordWriter(path, mode="a")
        writer.append({"x": [2]})
        writer.set_attributes({"rows": 2})
        layout.Meta.write = lambda *_: os._exit(9)  # type: ignore[method-assign]
        writer.commit()

    with pytest.raises(EOFError):
        children.in_fork(work)
    for restarted in (False, True):
        if restarted:
            (path / "writer.lock").unlink()
        with RecordReader.open(path) as store:
            assert (len(store), store.attributes) == (2, {"rows": 2})
    with RecordWriter(path, mode="a") as writer:
        assert (len(writer), writer.attributes) == (2, {"rows": 2})
    assert json.loads((path / "meta.json").read_text())["attributes"] == {"rows": 2}


@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_journal_of_holes_is_not_read_whole(quick_path: Path, at_the_end: bool) -> None:
    path, _, _ = crashed(quick_path, CHANGES["append"], earlier=False)
    with RowState(quick_path / "state", 2) as state:
        state.put([1], [[1, 2]])
    for journal in (path / "journal.zr", quick_path / "state/journal"):
        os.truncate(journal, 64 << 30)
        if at_the_end:
            with journal.open("r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"\1")

    def look() -> list[Any]:
        if not SANITIZED:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + (1 << 30)
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        found: list[Any] = []
        with suppress(FormatError):
            found.append(len(RecordReader.open(path)))
        with suppress(FormatError):
            found.append(len(RowState(quick_path / "state")))
        return found

    assert children.in_fork(look) == ([] if at_the_end else [12, 1])


# Row states.


def killed_state(folder: Path, *, commit: bool) -> Path:
    """Five puts, the last of them not applied to the tables."""

    def work() -> None:
        state = RowState(folder / "state", 3, np.float32)
        for stamp in range(1, 6):
            state.put([stamp, stamp + 1], np.full((2, 3), stamp))
        if commit:
            state.commit()
        os._exit(9)

    with pytest.raises(EOFError):
        children.in_fork(work)
    return folder / "state"


@pytest.mark.parametrize("commit", [False, True])
def test_a_damaged_put_is_no_torn_one(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    """Of puts that were not committed, that is known until the machine is started again."""
    if commit:
        monkeypatch.setattr(files_journal, "boot_number", lambda: 1)
    path = killed_state(quick_path, commit=commit)
    journal = (path / "journal").read_bytes()
    wrong: list[Any] = []
    for at in range(len(journal)):
        flip(path / "journal", at)
        try:
            with RowState(path) as state:
                found = state.get(range(1, 7))[:, 0].tolist()
            if found != [1, 2, 3, 4, 5, 5]:
                wrong.append((at, found))
        except ChecksumError as error:
            wrong += [] if error.path == str(path / "journal") else [(at, error.path)]
        for name in ("values", "there", "checksums"):
            with suppress(FileNotFoundError):
                os.truncate(path / name, 0)
        (path / "journal").write_bytes(journal)
    assert wrong == []


def test_a_journal_that_was_cut_behind_a_put(quick_path: Path) -> None:
    path = killed_state(quick_path, commit=True)
    for size in (0, 190, (path / "journal").stat().st_size - 25):
        os.truncate(path / "journal", size)
        with pytest.raises(ChecksumError, match="damaged"):
            RowState(path)
    os.remove(path / "journal")
    with pytest.raises(FormatError, match="expected a journal, found none"):
        RowState(path)


@pytest.mark.parametrize("name", ["values", "there", "checksums"])
def test_every_byte_of_a_table_that_is_read(quick_path: Path, name: str) -> None:
    """Of rows with and without a vector: what was put, or an error, by every call."""
    path = quick_path / "state"
    with RowState(path, 3, np.float32) as state:
        state.put([1, 2, 5], np.arange(1, 10).reshape(3, 3))
        want = state.get(range(6)).tolist()
    size = {"values": 12, "there": 1, "checksums": 4}[name]
    whole, wrong = (path / name).read_bytes(), []
    for at in range(6 * size):
        for damage in ("flip", "cut", "gone"):
            if damage == "flip":
                flip(path / name, at)
            elif damage == "cut":
                os.truncate(path / name, at)
            elif at == 0:
                os.remove(path / name)
            with suppress(ChecksumError, FormatError), RowState(path) as state:
                found = state.get(range(6)).tolist(), state.present(range(6)).tolist(), len(state)
                if found != (want, [False, True, True, False, False, True], 3):
                    wrong.append((damage, at, found))
            (path / name).write_bytes(whole)
    assert wrong == []


def test_a_state_of_before_there_were_checksums(quick_path: Path) -> None:
    path = quick_path / "state"
    with RowState(path, 3, np.float32) as state:
        state.put([1, 2], np.arange(6).reshape(2, 3))
        assert state.checked
    os.remove(path / "checksums")
    text = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**text, "version": 1}))
    with RowState(path) as state:
        assert not state.checked
        assert "without checksums" in repr(state)
        state.put([2], [[7, 8, 9]])
        assert state.get([1, 2, 3]).tolist() == [[0, 1, 2], [7, 8, 9], [0, 0, 0]]
    assert not (path / "checksums").exists()
    with RowState(path) as state:
        assert len(state) == 2


def test_a_table_that_is_cut_under_a_state(quick_path: Path) -> None:
    for name in ("values", "there", "checksums", "journal", "writer.lock"):
        path = quick_path / name

        def work(path: Path = path, name: str = name) -> None:
            with suppress(FormatError, ValueError), RowState(path, 4096) as state:
                state.put([1, 2], np.ones((2, 4096)))
                state._checkpoint()
                os.truncate(path / name, 0)
                with suppress(FormatError):
                    assert (state.get([1, 2]) == 1).all()
                with suppress(FormatError):
                    assert state.present([1, 2]).all()
                state.put([2], np.ones((1, 4096)))
                state._checkpoint()

        children.in_fork(work)

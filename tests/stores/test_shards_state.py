"""A vector for each row: what a dict would hold."""

import errno
import json
import os
import struct
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import stepwell as sw
from stepwell import BusyError, FormatError, SchemaError, VersionError, _core
from stepwell.stores import RowState
from stepwell.stores.shards import state as state_module
from tests import SANITIZED, children, scaled
from tests.contract import assert_array
from tests.reference import shards as reference
from tests.shards import build
from tests.writer_contract import WriterKit, WritingContract

IDS = st.lists(st.integers(0, 60) | st.integers(4000, 4200), max_size=12, unique=True)


@settings(max_examples=scaled(60))
@given(data=st.data())
def test_what_a_dict_would_hold(quick_path: Path, data: st.DataObject) -> None:
    path = Path(mkdtemp(dir=quick_path))
    dtype = np.dtype(data.draw(st.sampled_from(["f4", "f8", "<i2", "f2"])))
    width = data.draw(st.integers(1, 5))
    model: dict[int, Any] = {}
    committed: dict[int, Any] = {}
    size = data.draw(st.sampled_from([100, 500, 1 << 24]))
    roomy = size > 500
    calls = st.sampled_from(["put", "put", "put", "get", "open", "commit", "rollback"])
    state = RowState(path, width, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_module, "_JOURNAL_BYTES", size)
        for stamp in range(data.draw(st.integers(1, 12))):
            match data.draw(calls):
                case "put":
                    ids = data.draw(IDS)
                    values = np.arange(len(ids) * width).reshape(-1, width) + stamp * 7
                    state.put(ids, values.astype(dtype))
                    model.update(zip(ids, values.astype(dtype), strict=True))
                case "commit":
                    state.commit()
                    committed = dict(model)
                case "rollback" if roomy:  # a full journal is a commit
                    state.rollback()
                    model = dict(committed)
                case "open":
                    state.close()
                    state = RowState(path)
                    committed = dict(model)
            ids = data.draw(IDS)
            want = np.zeros((len(ids), width), dtype)
            for i, row_id in enumerate(ids):
                want[i] = model.get(row_id, 0)
            assert_array(state.get(ids), want)
            assert state.present(ids).tolist() == [row_id in model for row_id in ids]
            assert len(state) == len(model)
    state.close()


def test_what_it_gives_is_the_callers(tmp_path: Path) -> None:
    with RowState(tmp_path, 2) as state:
        values = np.ones((2, 2), state.dtype)
        state.put([1, 5], values)
        values[...] = 9
        state.get([1])[...] = 9
        assert state.get([5, 1, 1, 0]).tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]
        state.put([], np.zeros((0, 2)))
        assert state.get([]).shape == (0, 2)


@pytest.mark.parametrize(
    ("ids", "values", "error"),
    [
        ([1, 1], np.zeros((2, 2)), ValueError),
        ([1], np.zeros((2, 2)), SchemaError),
        ([1], np.zeros((1, 3)), SchemaError),
        ([1], np.zeros(2), SchemaError),
        ([1], np.full((1, 2), 1e300), SchemaError),
        ([1], [["a", "b"]], (SchemaError, TypeError)),
        ([-1], np.zeros((1, 2)), IndexError),
        ([2**48], np.zeros((1, 2)), IndexError),
        ([2**64 - 1], np.zeros((1, 2)), IndexError),
        ([0.5], np.zeros((1, 2)), TypeError),
        ([[1]], np.zeros((1, 2)), ValueError),
        ([True], np.zeros((1, 2)), IndexError),
        ([1], np.ma.array([[1, 2]], mask=True), TypeError),
    ],
)
def test_what_put_refuses(tmp_path: Path, ids: Any, values: Any, error: Any) -> None:
    with RowState(tmp_path, 2, np.float32) as state:
        state.put([1], [[3, 4]])
        with pytest.raises(error):
            state.put(ids, values)
        assert state.get([1]).tolist() == [[3, 4]]
        assert len(state) == 1


def test_what_get_refuses(tmp_path: Path) -> None:
    with RowState(tmp_path, 2) as state:
        for wrong in ([-1], [2**48], [0.5], 3, [["a"]]):
            with pytest.raises((IndexError, TypeError, ValueError)):
                state.get(wrong)


def test_width_and_dtype_stay(tmp_path: Path) -> None:
    RowState(tmp_path, 3, np.float64).close()
    with RowState(tmp_path) as state:
        assert (state.width, state.dtype) == (3, np.dtype("f8"))
    for width, dtype in ((4, None), (3, np.float32)):
        with pytest.raises((SchemaError, ValueError)):
            RowState(tmp_path, width, dtype)
    RowState(tmp_path, 3, np.float64).close()  # nobody holds it
    for wrong in ("O", "f4, f4", "(2,)f4", "V0"):
        with pytest.raises(ValueError, match="plain dtype"):
            RowState(tmp_path / "new", 3, wrong)


def test_a_description_that_is_none(tmp_path: Path) -> None:
    RowState(tmp_path, 3, np.float32).close()
    whole = (tmp_path / "state.json").read_bytes()
    newer = json.dumps({**json.loads(whole), "version": 3}).encode()
    others = [b"[]", b"7", b"{}", b'{"width": 0, "dtype": "<f4"}', newer]
    for text in [*others, *(whole[:at] for at in range(len(whole)))]:
        (tmp_path / "state.json").write_bytes(text)
        with pytest.raises(FormatError) as caught:
            RowState(tmp_path)
        assert isinstance(caught.value, VersionError) == (text is newer)
        assert caught.value.path == str(tmp_path / "state.json")
    (tmp_path / "state.json").write_bytes(whole)
    assert RowState(tmp_path).width == 3


def test_a_table_that_was_cut(tmp_path: Path) -> None:
    with RowState(tmp_path, 3) as state:
        state.put([5], [[1, 2, 3]])
    os.truncate(tmp_path / "values", 24)
    with pytest.raises(FormatError, match=r"truncated: expected .* rows, got 2") as caught:
        RowState(tmp_path)
    assert (caught.value.path, caught.value.offset) == (str(tmp_path / "values"), 24)


@pytest.mark.parametrize("row_id", [-1, 1 << 48, 1 << 62])
def test_a_journal_with_rows_that_are_none(tmp_path: Path, row_id: int) -> None:
    with RowState(tmp_path, 1) as state:
        state.put([0], [[7]])
    body = struct.pack("<Qqf", 1, row_id, 1.0)
    head = struct.pack("<4sIQ", b"RST1", _core.crc32c(np.frombuffer(body, np.uint8)), len(body))
    (tmp_path / "journal").write_bytes(head + body)
    with RowState(tmp_path) as state:
        assert len(state) == 1


@pytest.mark.parametrize("row_id", [1 << 38, (1 << 48) - 1])
def test_a_row_for_which_there_is_no_room(tmp_path: Path, row_id: int) -> None:
    """The disk is not filled to find out."""
    with RowState(tmp_path, 1024) as state:
        state.put([1], np.ones((1, 1024)))
        sizes = [(tmp_path / name).stat().st_blocks for name in ("values", "there")]
        with pytest.raises(OSError, match=r"(No space left|too large).*values"):
            state.put([2, row_id], np.ones((2, 1024)))
        assert [(tmp_path / name).stat().st_blocks for name in ("values", "there")] == sizes
        assert len(state) == 1
        state.put([2], np.ones((1, 1024)))
        assert len(state) == 2


@pytest.mark.parametrize(
    ("call", "sync"),
    [("commit", 1), *((call, sync) for call in ("close", "put") for sync in (1, 2, 3, 4))],
)
def test_a_sync_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, sync: int
) -> None:
    """The system forgets what it could not write, and says that all is well the next time."""
    state = RowState(tmp_path, 1)
    state.put([1, 2], [[1], [2]])
    done = 0

    def refused(file: int) -> None:
        nonlocal done
        done += 1
        if done == sync:
            raise OSError(errno.EIO, "Input/output error")

    def put() -> None:
        state.put([3], [[3]])

    work = {"commit": state.commit, "close": state.close, "put": put}
    with monkeypatch.context() as patch:
        patch.setattr(state_module, "_JOURNAL_BYTES", 1)
        patch.setattr(os, "fsync", refused)
        patch.setattr(os, "fdatasync", refused)
        with pytest.raises(OSError, match="Input/output error") as caught:
            work[call]()
        assert str(caught.value.filename).startswith(str(tmp_path))
    if call != "close":
        for again in (state.commit, lambda: state.put([4], [[4]]), lambda: state.get([1])):
            with pytest.raises(ValueError, match="open it again"):
                again()
        with pytest.raises(ValueError, match="uncommitted changes are lost"):
            state.close()
    state.close()
    with RowState(tmp_path) as state:
        assert state.get([1, 2, 3, 4]).ravel().tolist() == [1, 2, 0, 0]


MANY_ROWS = """
import os, sys
from pathlib import Path
import numpy as np
import stepwell as sw
def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10
state = sw.stores.RowState(sys.argv[1], 1, "u1")
state.put([(1 << 25) - 1], np.zeros((1, 1), "u1"))
before = resident()
for begin in range(0, 1 << 25, 1 << 20):
    state.put(np.arange(begin, begin + (1 << 20)), np.ones((1 << 20, 1), "u1"))
print(resident() - before)
"""


@pytest.mark.skipif(SANITIZED, reason="the sanitizer keeps what was freed")
def test_memory_does_not_grow_with_the_rows(quick_path: Path) -> None:
    assert int(children.answer(MANY_ROWS, quick_path)) < 96 << 20


# A writer like the others.


class Kit(WriterKit):
    """A stamp is a put for two rows, each of which is full of it."""

    writer = RowState
    is_there_at_once = True
    recordable = False  # tables are memory; tests/crash has power cuts around it

    def open(self, path: Path, mode: Any = "x") -> RowState:
        return RowState(path, 3, mode=mode)

    def append(self, writer: RowState, stamp: int) -> None:
        writer.put([stamp, 1000 + stamp], np.full((2, 3), stamp))

    def stamps(self, store: RowState) -> list[int]:
        found = np.flatnonzero(store.present(range(1000)))
        assert len(store) == 2 * len(found)
        for ids in (found, 1000 + found):
            assert (store.get(ids) == found[:, None]).all()
        return found.tolist()

    def look(self, path: Path) -> list[int]:
        with RowState(path) as state:
            return self.stamps(state)

    def read(self, path: Path) -> list[int]:
        if not (path / "state.json").exists():
            return []
        with suppress(BusyError):  # its writer is at work
            self.look(path)  # and makes the tables that a kill prevented
        there = sorted(row for row in reference.read_state(path) if row < 1000)
        with suppress(BusyError):
            assert self.look(path) == there
        return there


KIT = Kit()


class TestWriter(WritingContract):
    kit = KIT


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    build(tmp_path / "acts", [3])
    with pytest.raises(FileExistsError, match=r"expected a row state .* got a folder of shards"):
        RowState(tmp_path / "acts", 2)
    RowState(tmp_path / "state", 2).close()
    with pytest.raises(FormatError, match="got a folder"):  # and no dataset of Hugging Face
        sw.open(tmp_path / "state")


def test_a_put_that_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the journal, and not yet in memory."""
    with RowState(tmp_path, 1) as state:
        state.put([1], [[1]])
        state.commit()

        def interrupted(*args: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(state_module._Late, "put", interrupted)
            with pytest.raises(KeyboardInterrupt):
                state.put([1, 2], [[2], [2]])
        with pytest.raises(ValueError, match=r"rollback\(\) drops it"):
            state.get([1])
        state.rollback()
        assert state.get([1, 2]).ravel().tolist() == [1, 0]


def test_no_room_for_what_the_journal_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a failed opening did not get to is still in the journal."""
    with RowState(tmp_path, 1) as state:
        state.put([1], [[1]])
        state.commit()
        state.put([9000], [[2]])
        state.commit()
        journal = (tmp_path / "journal").read_bytes()
    (tmp_path / "journal").write_bytes(journal)
    for name in ("values", "there"):
        os.truncate(tmp_path / name, 0)

    def full(file: int, begin: int, size: int) -> None:
        if size > 9000:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space left"):
            RowState(tmp_path)
    assert (tmp_path / "journal").read_bytes() == journal
    with RowState(tmp_path) as state:
        assert state.get([1, 9000]).ravel().tolist() == [1, 2]

"""Row states after a kill and a power cut: every put is there whole, or not at all."""

import os
import random
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stepwell.files import journal as files_journal
from stepwell.files.journal import SEAL_BYTES
from stepwell.source import Rows
from stepwell.stores import RowState
from stepwell.stores.shards import state as state_module
from tests.crash.disk import recorded
from tests.crash.faults import fault
from tests.reference import shards as reference

WIDTH = 3
State = dict[int, int]


@cache
def ids_of(stamp: int) -> list[int]:
    return random.Random(stamp).sample(range(40), 1 + stamp % 7)


def put(stamp: int) -> tuple[list[int], NDArray[Any]]:
    """Rows and vectors that tell of the put."""
    ids = ids_of(stamp)
    return ids, np.full((len(ids), WIDTH), stamp, np.float32)


def model(stamps: int) -> State:
    """The last stamp of each row after so many puts."""
    made: State = {}
    for stamp in range(1, stamps + 1):
        made.update(dict.fromkeys(ids_of(stamp), stamp))
    return made


def contents(path: Path) -> State:
    with RowState(path, WIDTH, np.float32) as state:
        ids = np.flatnonzero(state.present(range(40)))
        values = state.get(ids)
        assert (values == values[:, :1]).all()
        assert len(state) == len(ids)
        return dict(zip(ids.tolist(), values[:, 0].astype(int).tolist(), strict=True))


# Promise 2: power cuts.


@pytest.fixture
def restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads a journal does so after the machine was started again."""
    monkeypatch.setattr(files_journal, "boot_number", lambda: 1)


@pytest.mark.usefixtures("restarted")
def test_a_journal_of_any_length_and_with_any_damage(quick_path: Path) -> None:
    """As if the tables had never been written, and nothing was committed."""
    path = quick_path / "state"
    state = RowState(path, WIDTH, np.float32)
    ends = [0]
    for stamp in range(1, 6):
        state.put(*put(stamp))
        ends.append((path / "journal").stat().st_size - SEAL_BYTES)
    journal, described = (path / "journal").read_bytes(), (path / "state.json").read_bytes()
    state.close()
    for at in range(len(journal)):
        whole = max(i for i, end in enumerate(ends) if end <= at)
        flipped = journal[:at] + bytes([journal[at] ^ 1 << at % 8]) + journal[at + 1 :]
        in_a_seal = any(end <= at < end + SEAL_BYTES for end in ends[1:])
        for damaged, kept in (
            (journal[:at] + b"\0" * (at % 3), whole),
            (flipped, len(ends) - 1 if in_a_seal else whole),
        ):
            copy = quick_path / str(at)
            copy.mkdir()
            (copy / "state.json").write_bytes(described)
            (copy / "journal").write_bytes(damaged)
            for _ in range(2):
                assert contents(copy) == model(kept)
            shutil.rmtree(copy)


@pytest.fixture
def seen_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are written by calls that can be recorded, where they are memory otherwise."""

    def apply(self: RowState, ids: Rows, values: NDArray[Any]) -> None:
        for row_id, row in zip(ids.tolist(), values, strict=True):
            checksum = reference.row_checksum(row_id, row.tobytes())
            os.pwrite(self._files[state_module.VALUES], row.tobytes(), row_id * row.nbytes)
            os.pwrite(self._files[state_module.THERE], b"\1", row_id)
            os.pwrite(self._files[state_module.CHECKSUMS], checksum, row_id * 4)

    monkeypatch.setattr(RowState, "_apply", apply)
    monkeypatch.setattr(state_module, "_JOURNAL_BYTES", 400)


@pytest.mark.usefixtures("seen_tables", "restarted")
@pytest.mark.parametrize("every", [1, 3])
def test_power_cuts(quick_path: Path, every: int) -> None:
    """What was committed is there; of what was not, whole puts up to some of them."""
    path = quick_path / "state"
    RowState(path, WIDTH, np.float32).close()
    puts = 9
    with recorded(path) as disk, RowState(path) as state:
        for stamp in range(1, puts + 1):
            state.put(*put(stamp))
            if stamp % every == 0:
                state.commit()
                disk.acknowledge(stamp)
        state.close()
        disk.acknowledge(puts)
    checked = 0
    for crash in disk.crashes(tries=3):
        checked += 1
        done = crash.acknowledged or 0
        possible = [model(n) for n in range(done, min(done + every, puts) + 1)]
        with crash.restarted(quick_path / str(checked)) as copy:
            assert contents(copy) in possible, crash.after
    assert checked > 100


def test_a_put_that_failed_has_put_nothing(quick_path: Path) -> None:
    with RowState(quick_path / "state", WIDTH, np.float32) as state:
        state.put([1, 2], np.ones((2, WIDTH)))
        with pytest.raises(OSError, match="No space left"), fault("full", 0):
            state.put([2, 3, 4], np.full((3, WIDTH), 2))
        assert state.present([1, 2, 3, 4]).tolist() == [True, True, False, False]
        state.put([3], np.full((1, WIDTH), 3))
    assert contents(quick_path / "state") == {1: 1, 2: 1, 3: 3}

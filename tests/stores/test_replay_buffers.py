"""The memory that rows wait in before they are written, and how they come out of it."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import stepwell as sw
from stepwell import _core
from stepwell.replay import ReplayReader, ReplayWriter
from stepwell.stores.replay import hdf5
from stepwell.stores.replay.layout import CODECS
from tests import scaled

PICTURE = np.arange(96 * 64, dtype=np.uint8).reshape(96, 64)


def kept(writer: ReplayWriter) -> int:
    return sum(inlet.buffer.kept_bytes for inlet in writer._pipeline.inlets.values())


class BufferStates(RuleBasedStateMachine):
    """Against a dict: rows are put in order, put again, released, joined and packed."""

    @initialize(
        row_bytes=st.sampled_from([1, 8, 4095, 4096, 30_000, 3_000_000, 5_000_000]),
        first=st.integers(0, 10**12),
    )
    def begin(self, row_bytes: int, first: int) -> None:
        self.buffer = _core.RowBuffer(row_bytes, first)
        self.first = self.end = first
        self.rows: dict[int, bytes] = {}

    def row(self, seed: int) -> bytes:
        size = self.buffer.row_bytes
        return np.random.default_rng(seed).bytes(min(size, 5000)).ljust(size, b"x")

    @rule(seeds=st.lists(st.integers(0, 99), min_size=1, max_size=5))
    def put(self, seeds: list[int]) -> None:
        for seed in seeds:
            self.rows[self.end] = self.row(seed)
            self.buffer.put(self.end, self.rows[self.end])
            self.end += 1

    @precondition(lambda self: self.end > self.first)
    @rule(back=st.integers(0, 10), seed=st.integers(0, 99))
    def put_again(self, back: int, seed: int) -> None:
        row = max(self.first, self.end - 1 - back)
        self.rows[row] = self.row(seed)
        self.buffer.put(row, self.rows[row])

    @rule(rows=st.integers(0, 20))
    def reserve(self, rows: int) -> None:
        self.buffer.reserve(rows)
        assert self.buffer.kept_bytes >= rows * self.buffer.row_bytes

    @rule(count=st.integers(0, 5))
    def release(self, count: int) -> None:
        self.first = min(self.first + count, self.end)
        self.buffer.release(self.first)
        if self.first:
            with pytest.raises(ValueError, match="not released"):
                self.buffer.put(self.first - 1, bytes(self.buffer.row_bytes))
            with pytest.raises(ValueError, match="not released"):
                self.buffer.joined(self.first - 1, 1)
        with pytest.raises(ValueError, match="not released"):
            self.buffer.joined(self.first, self.end - self.first + 1)

    @rule(codec=st.sampled_from(list(CODECS.values())), shared=st.booleans())
    def read(self, codec: int, shared: bool) -> None:
        count = self.end - self.first
        expected = [self.rows[row] for row in range(self.first, self.end)]
        assert self.buffer.joined(self.first, count).tobytes() == b"".join(expected)
        packed = self.buffer.packed(self.first, count, codec, 3, 1, shared)
        assert len(packed) == count
        for i, row in enumerate(expected):
            if packed.raw(i):
                assert packed.stored(i) == row
            else:
                assert len(packed.stored(i)) < len(row)


TestBufferStates = BufferStates.TestCase
# Rows of megabytes are among them, and how many is left to chance.
TestBufferStates.settings = settings(max_examples=scaled(40, smallest=10), stateful_step_count=15)


def test_what_can_be_put() -> None:
    array = np.arange(10_000, dtype="<f4").reshape(100, 100)
    buffer = _core.RowBuffer(array.nbytes)
    for given in (array, array.T, array[::-1], array.astype("<f4", order="F")):
        buffer.put(0, given)
        assert buffer.joined(0, 1).tobytes() == given.tobytes()
    small = _core.RowBuffer(8)
    for number, each in enumerate([-(2**63), 2**63 - 1, np.int64(-5), np.array(7)]):
        small.put(number, each)
    assert small.joined(0, 4).view(np.int64).tolist() == [-(2**63), 2**63 - 1, -5, 7]


def test_what_cannot_be_put() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        _core.RowBuffer(0)
    buffer = _core.RowBuffer(4)
    for wrong in (b"12345", b"", np.zeros(3, np.uint8), 7):
        with pytest.raises(ValueError, match="expected a row of 4 bytes, got"):
            buffer.put(0, wrong)
    with pytest.raises(OverflowError):
        _core.RowBuffer(8).put(0, 2**63)
    for no_array in (None, "text", 1.5, object()):
        with pytest.raises(TypeError):
            buffer.put(0, no_array)
    with pytest.raises(ValueError, match="not released"):
        buffer.packed(0, 2**60, CODECS["none"], 3)
    with pytest.raises(IndexError):
        buffer.packed(0, 0, CODECS["none"], 3).stored(0)


def test_memory_is_used_again(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run") as writer:
        for turn in range(30):
            for i in range(20):
                writer.record_step(reward=i, observation=PICTURE + i, frame=PICTURE - i)
            writer.commit()
            if turn == 5:
                there = kept(writer)
        assert kept(writer) <= 2 * there
    steps = ReplayReader.open(quick_path).episode("run-ep0000")
    for i in range(600):
        np.testing.assert_array_equal(steps.observations[i], PICTURE + i % 20)
        np.testing.assert_array_equal(steps.frames[i], PICTURE - i % 20)


def test_steps_that_are_dropped_or_refused_take_no_memory(quick_path: Path) -> None:
    with ReplayWriter(quick_path, "run", when_full="drop", queue_bytes=10_000) as writer:
        writer.record_step(reward=0, observation=PICTURE)
        writer.commit()
        for _ in range(2000):
            writer.record_step(reward=0, observation=PICTURE)
            with pytest.raises(sw.SchemaError):
                writer.record_step(reward=0, observation=PICTURE, frame=PICTURE.astype(np.int8))
        writer.commit()
        assert kept(writer) <= 3 << 22


# HDF5 without the GIL.


def test_the_library_of_h5py_is_found() -> None:
    assert hdf5._FOUND is not None


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_the_same_file_without_it(
    quick_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = []
    for found in (hdf5._FOUND, None):
        monkeypatch.setattr(hdf5, "_FOUND", found)
        root = quick_path / str(found is None)
        random = np.random.default_rng(0)
        with ReplayWriter(root, "run", compress=codec) as writer:
            for i in range(50):
                noise = random.integers(0, 256, (40, 40), np.uint8) if i % 2 else PICTURE[:40, :40]
                writer.record_step(reward=i, observation=noise, frame=PICTURE + i)
        with h5py.File(root / "replay" / "run.h5") as file:
            chunks = [file[n].id.read_direct_chunk((i, 0, 0))
                      for n in ("frames", "observations") for i in range(50)]  # fmt: skip
            files.append((chunks, file["rewards"][:].tolist()))
    assert files[0] == files[1]


def test_a_chunk_that_is_refused(tmp_path: Path) -> None:
    """The function says no, and h5py says why."""
    buffer = _core.RowBuffer(16)
    for row in range(3):
        buffer.put(row, bytes([row]) * 16)
    packed = buffer.packed(0, 3, CODECS["none"], 3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        whole = file.create_dataset("whole", (3, 16), np.uint8)
        with pytest.raises(OSError, match="chunked"):
            hdf5.write_chunks(whole, 0, packed, 0)
        cut = file.create_dataset("cut", (3, 16), np.uint8, chunks=(1, 16))
        hdf5.write_chunks(cut, 0, packed, 0)
        assert cut[:, 0].tolist() == [0, 1, 2]

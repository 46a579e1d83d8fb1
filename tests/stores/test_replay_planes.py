"""Stacked observations, whose planes are stored one behind the other: everybody reads the same."""

import math
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401 - makes h5py know zstd
import numpy as np
import pytest
import zstandard
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from stepwell import Field, FormatError, _core
from stepwell.replay import FrameResolver, ReplayReader, ReplayWriter
from stepwell.stores.replay.channels import Channel
from stepwell.stores.replay.foreign import ForeignFile
from tests.reference.replay import read_store
from tests.replays import assert_tree, stack
from tests.stores.test_replay_resolver import rewritten

ROWS = 12
ZSTD, GZIP = 2, 1


def written(root: Path, make: Callable[[int], Any] = stack, **options: Any) -> Path:
    """A run of such observations, to which a second writer added some."""
    for numbers in (range(ROWS // 2), range(ROWS // 2, ROWS)):
        with ReplayWriter(root, "run", mode="a", **options) as writer:
            for number in numbers:
                writer.record_step(reward=number, observation=make(number))
    return root / "replay" / "run.h5"


def assert_all_read(root: Path, want: NDArray[Any]) -> None:
    """By the store, by the reference, by h5py alone, and by h5py in the store's place."""
    path, order = root / "replay" / "run.h5", [3, 1, 3, 11, 0]
    assert_tree(read_store(root).runs["run"].datasets["observations"], want)
    with h5py.File(path) as file:
        assert_tree(file["observations"][:], want)
        for row in (0, 3, ROWS - 1):
            assert_tree(file["observations"][row], want[row])
    foreign = ForeignFile(path)
    assert foreign.field("observations") == Field(want.dtype, want.shape[1:])
    assert_tree(foreign.read("observations", np.array(order)), want[order])
    with ReplayReader.open(root) as reader:
        assert reader.verify().ok
        (channel,) = reader.recordings["run"].channels
        assert channel.field == Field(want.dtype, want.shape[1:])
        found = [reader.episode(episode.episode_id).observations for episode in reader.episodes]
        assert_tree(np.concatenate(found), want)
        taken = ReplayReader.open(root, next_observation=False).take(order)
        assert_tree(taken["observation"], want[order])
    with FrameResolver(root) as resolver:
        for row, array in enumerate(want):
            assert_tree(resolver.resolve(f"h5://run/observations/{row}"), array)


def masks_of(path: Path) -> list[int]:
    with h5py.File(path) as file:
        dataset = file["observations"].id
        infos = [dataset.get_chunk_info(i) for i in range(dataset.get_num_chunks())]
    return [i.filter_mask for i in sorted(infos, key=lambda info: info.chunk_offset)]


# What comes back.


@pytest.mark.parametrize(
    ("planes", "dtype", "codec"),
    [
        *((planes, dtype, "zstd") for planes in (2, 4, 5, 8, 16) for dtype in ("u1", "i1", "?")),
        *((4, "u1", "gzip"), (5, "i1", "gzip")),
    ],
)
def test_planes_read_back_equal(quick_path: Path, planes: int, dtype: str, codec: str) -> None:
    path = written(quick_path, lambda number: stack(number, planes, dtype), compress=codec)
    assert_all_read(quick_path, np.array([stack(n, planes, dtype) for n in range(ROWS)]))
    with h5py.File(path) as file:
        dataset = file["observations"]
        assert dataset.shape == (ROWS, 24, 24)
        assert dataset.dtype == np.dtype((dtype, (planes,)))
    # Noise is stored as it is, unless it is of single bits.
    noise = 0 if dtype == "?" else 3
    assert masks_of(path) == [noise if n % 4 == 3 else 0 for n in range(ROWS)]


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((24, 24, 3), {}),
        ((24, 24, 12), {}),
        ((24, 24, 17), {}),
        ((24, 24, 1), {}),
        ((400, 4), {}),
        ((4, 24, 24), {}),
        ((15, 17, 4), {}),
        ((24, 24, 4), {"compress": "lzf"}),
        ((24, 24, 4), {"compress": "none"}),
    ],
    ids=repr,
)
def test_rows_that_are_stored_as_they_are(
    quick_path: Path, shape: tuple[int, ...], options: dict[str, str]
) -> None:
    """Colours, long last axes, small rows, other codecs."""

    def make(number: int) -> NDArray[np.uint8]:
        return np.arange(math.prod(shape)).reshape(shape).astype(np.uint8) + np.uint8(number)

    path = written(quick_path, make, **options)
    assert_all_read(quick_path, np.array([make(n) for n in range(ROWS)]))
    with h5py.File(path) as file:
        assert file["observations"].shape == (ROWS, *shape)
        assert not file["observations"].shuffle


def test_frames_and_wider_numbers_are_stored_as_they_are(quick_path: Path) -> None:
    wide = stack(0).astype(np.int16)
    with ReplayWriter(quick_path, "run") as writer:
        writer.record_step(reward=0, frame=stack(0), observation=wide, action=stack(1))
    data = read_store(quick_path).runs["run"].datasets
    for name, want in (("frames", stack(0)), ("observations", wide), ("actions", stack(1))):
        assert_tree(data[name], want[None])
    with h5py.File(quick_path / "replay" / "run.h5") as file:
        shapes = [file[name].shape for name in ("frames", "observations", "actions")]
    assert shapes == [(1, 24, 24, 4), (1, 24, 24, 4), (1, 24, 24)]


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_a_file_from_before(quick_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """Its rows are as they are, and so are those that are added. HDF5 packed those of gzip."""
    with monkeypatch.context() as patch:
        patch.setattr(Channel, "planes", property(lambda _: 1))
        if codec == "gzip":
            patch.setattr(_core, "has_codec", lambda _: False)
        with ReplayWriter(quick_path, "run", compress=codec) as writer:
            for number in range(5):
                writer.record_step(reward=number, observation=stack(number))
    with ReplayWriter(quick_path, "run", mode="a") as writer:
        for number in range(5, ROWS):
            # A new dataset: the file is copied.
            writer.record_step(reward=number, observation=stack(number), action=1)
    filters = [0, 0, 0, 1] * 3
    filters[3] = int(codec == "zstd")  # HDF5 packs whatever it becomes
    assert masks_of(quick_path / "replay" / "run.h5") == filters
    data = read_store(quick_path).runs["run"].datasets["observations"]
    assert_tree(data, np.array([stack(n) for n in range(ROWS)]))
    with FrameResolver(quick_path) as resolver:
        for number in range(ROWS):
            assert_tree(resolver.resolve(f"h5://run/observations/{number}"), stack(number))


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_planes_that_hdf5_packs(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    """As on a machine whose system has no such library: HDF5's own filters write, we read."""
    with monkeypatch.context() as patch:
        patch.setattr(_core, "has_codec", lambda _: False)
        path = written(quick_path, compress=codec)
    assert masks_of(path) == [0] * ROWS
    assert_all_read(quick_path, np.array([stack(n) for n in range(ROWS)]))


# The core.


def pack(rows: NDArray[np.uint8], planes: int, shared: bool, codec: int = ZSTD) -> _core.PackedRows:
    buffer = _core.RowBuffer(rows.shape[1])
    for number, row in enumerate(rows):
        buffer.put(number, row)
    return buffer.packed(0, len(rows), codec, 3, planes, shared)


@given(
    st.sampled_from([ZSTD, GZIP]),
    st.integers(1, 20),
    st.integers(1, 600),
    st.integers(0, 12),
    st.integers(0, 2**32),
)
def test_the_core_against_numpy(codec: int, planes: int, size: int, count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = random.integers(0, [[2], [255]] * count, (2 * count, size * planes), np.uint8)
    packed = pack(rows, planes, bool(seed % 2), codec)
    stored = [packed.stored(i) for i in range(2 * count)]
    for i, row in enumerate(rows):
        apart = row.reshape(-1, planes).T.tobytes()
        unpack = zlib.decompress if codec == GZIP else zstandard.decompress
        found = None if packed.raw(i) else unpack(stored[i])
        assert stored[i] == row.tobytes() if found is None else found == apart
    sizes = np.array([len(each) for each in stored], np.uint32)
    offsets = np.cumsum(sizes, dtype=np.uint64) - sizes
    raw = np.array([packed.raw(i) for i in range(2 * count)], np.uint8)
    out = np.zeros(rows.size, np.uint8)
    file = os.memfd_create("rows")
    try:
        os.write(file, b"".join(stored))
        checksums = packed.checksums.view(np.uint32)[: None if seed % 3 else 0]
        cells = (offsets, sizes, raw, checksums)
        _core.read_cells(file, "rows", codec, *cells, size * planes, out, planes)
    finally:
        os.close(file)
    assert out.tobytes() == rows.tobytes()


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [(0, 0x79, "zlib"), (1, 0x7E, "zlib"), (2, 7, "flate: "), (-1, 0, "expected Adler-32")],
)
def test_streams_of_gzip_that_are_not(place: int, value: int, message: str) -> None:
    """Without checksums of ours, zlib's own is compared."""
    stored = bytearray(pack(stack(0).reshape(1, -1), 4, False, GZIP).stored(0))
    assert stored[place] != value
    stored[place] = value
    file = os.memfd_create("row")
    try:
        os.write(file, stored)
        sizes, none = np.array([len(stored)], np.uint32), np.zeros(0, np.uint32)
        cells = (np.zeros(1, np.uint64), sizes, np.zeros(1, np.uint8), none)
        with pytest.raises(FormatError, match=message):
            _core.read_cells(file, "row", GZIP, *cells, 24 * 24 * 4, np.zeros(2304, np.uint8), 4)
    finally:
        os.close(file)


def test_the_core_wants_whole_planes() -> None:
    row = np.zeros(10, np.uint8)
    cells = (np.zeros(1, np.uint64), np.zeros(1, np.uint32), np.zeros(1, np.uint8))
    for planes in (0, 3, 11, 2**63):
        with pytest.raises(ValueError, match="whole planes"):
            pack(row[None], planes, True)
        with pytest.raises(ValueError, match="whole planes"):
            _core.read_cells(0, "x", ZSTD, *cells, np.zeros(0, np.uint32), 10, row, planes)


# Lies and damage.

LIES: list[dict[str, Any]] = [
    *({"planes": wrong} for wrong in (0, -1, -4, 1, 2, 3, 8, 24, 10**30, "x", None, [4], math.inf)),
    {"shape": [24, 24, 8], "planes": 8},
    {"shape": [24, 48, 2], "planes": 2},
    {"shape": [24, 24], "planes": 4},
    {"shape": [], "planes": 4},
    {"shape": [2304], "planes": 2304},
    {"dtype": "<u2"},
    {"dtype": "<u4", "planes": 1},
    {"codec": "none"},
    {"codec": "lzf"},
    {"chunk_rows": 2},
]


@pytest.mark.parametrize("lie", LIES, ids=repr)
def test_a_directory_that_lies(quick_path: Path, lie: dict[str, Any]) -> None:
    path = written(quick_path)
    rewritten(path, lambda stated: stated["datasets"]["observations"].update(lie))
    assert_refused(quick_path, range(ROWS))


def assert_refused(root: Path, rows: range) -> None:
    for row in rows:
        with FrameResolver(root) as resolver, pytest.raises(FormatError) as caught:
            resolver.resolve(f"h5://run/observations/{row}", missing="raise")
        assert caught.value.path == str(root / "replay" / "run.h5")


@pytest.mark.parametrize("mask", [1, 2, 4, 7])
def test_one_filter_left_out(quick_path: Path, mask: int) -> None:
    path = written(quick_path)
    with h5py.File(path, "r+") as file:
        for row in (2, 3):
            _, stored = file["observations"].id.read_direct_chunk((row, 0, 0))
            # A byte less: a mask alone HDF5 would not change.
            file["observations"].id.write_direct_chunk((row, 0, 0), stored[:-1], mask)
    assert_refused(quick_path, range(2, 4))
    with FrameResolver(quick_path) as resolver:
        assert_tree(resolver.resolve("h5://run/observations/1"), stack(1))
    with ReplayReader.open(quick_path) as reader:
        problems = [str(problem) for problem in reader.verify().problems]
    assert len(problems) == 2
    assert f"observations[2]: expected both filters or none, got {mask}" in problems[0]

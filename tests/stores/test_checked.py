"""Rows that are not those that were written are an error when they are read."""

import json
import os
import pickle
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell import _core
from stepwell.stores.steps import writer as writer_module
from tests import scaled
from tests.contract import assert_batch
from tests.reference.runs import crc32c
from tests.shards import values
from tests.steps import build as build_steps, fields, of_before, rows_of_all

LENGTHS = [255, 200, 1, 0, 255, 255, 234]
"""26,400 bytes: more than six blocks of 4 KiB, which end inside rows of 22 bytes."""


def steps(path: Path, **options: Any) -> None:
    for count in (1, 5, 7):
        build_steps(path, LENGTHS[:count], **options)


def sharded_steps(path: Path) -> None:
    steps(path, shard_rows=250)


def shards(path: Path) -> None:
    with sw.ShardWriter(path, 50, shard_bytes=20_000) as writer:
        writer.append(values(250, 50))


STORES: dict[str, tuple[Callable[[Path], None], str, list[dict[str, Any]]]] = {
    "steps": (steps, "steps.npy", [{"memory": m} for m in ("ram", "map", "shared")]),
    "sharded steps": (sharded_steps, "shards/steps_*.npy", [{"memory": m} for m in ("ram", "map")]),
    "shards": (shards, "0*.shard", [{}]),
}
READS: dict[str, Callable[[Any], Any]] = {
    "take": lambda source: source.take(np.arange(len(source))[::-1].copy()),
    "loader": lambda source: list(sw.Loader(source, 64)),
    "batches": lambda source: list(source.batches(64)),
}


Made = tuple[Path, list[Path], list[Any]]


@pytest.fixture(params=STORES)
def store(
    request: pytest.FixtureRequest, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Made:
    """A store, the files of its rows, and the ways to open it."""
    monkeypatch.setattr(writer_module, "KEPT_CHECKSUMS", 0)  # all but the last are in the file
    make, files, options = STORES[request.param]
    make(quick_path / "a")
    return quick_path / "a", sorted((quick_path / "a").glob(files)), options


def header_of(file: Path) -> int:
    return 32 if file.suffix == ".shard" else file.read_bytes().index(b"\n") + 1


def flip(file: Path, at: int) -> bytes:
    """Flip a bit in place, and return what was there."""
    stored = file.read_bytes()
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(bytes([stored[at] ^ 1 << at % 8]))
    return stored


def flips(files: list[Path], count: int) -> Iterator[tuple[Path, int]]:
    """Each with a bit of its rows flipped in turn, and where; then it is as it was."""
    chance = random.Random(5)
    for _ in range(count):
        file = chance.choice(files)
        at = chance.randrange(header_of(file), file.stat().st_size)
        stored = flip(file, at)
        yield file, at
        file.write_bytes(stored)


@pytest.mark.parametrize(
    ("store", "read"),
    [(store, read) for store in STORES for read in READS if read != "batches" or store == "shards"],
    indirect=["store"],
)
def test_a_flipped_bit(store: Made, read: str) -> None:
    """Whoever reads everything in whatever way comes to it, with the path and the place."""
    path, files, every = store
    for options in every:
        for file, at in flips(files, 6):
            with pytest.raises(sw.ChecksumError) as caught:
                READS[read](sw.open(path, **options))
            assert caught.value.path == str(file)
            assert caught.value.offset is not None
            assert caught.value.offset <= at < caught.value.offset + 4096
            READS[read](pickle.loads(pickle.dumps(sw.open(path, checksums=False, **options))))
        with sw.open(path, **options) as source:
            READS[read](source)
            assert source.verify().ok


def test_verify_names_the_blocks(store: Made) -> None:
    path, files, every = store
    option: dict[str, Any] = next((o for o in every if o.get("memory") == "map"), {})
    for file, at in flips(files, 6):
        problems = sw.open(path, **option).verify().problems
        (problem,) = [p for p in problems if isinstance(p, sw.ChecksumError)]
        assert problem.path == str(file)
        assert problem.offset is not None
        assert problem.offset <= at < problem.offset + 4096


@pytest.mark.parametrize(
    "change",
    [
        *(None, b"", b"STEPCRC\0", b"STEPCRX\0" + bytes(99), b"STEPCRC\0\2\0\0\0" + bytes(99)),
        b"STEPCRC\0" + struct.pack("<II", 1, 1 << 15) + bytes(99),
        b"STEPCRC\0" + struct.pack("<II", 1, 4096),
    ],
)
def test_a_file_of_checksums_that_is_wrong(store: Made, change: bytes | None) -> None:
    """No rows are believed without it, and no writer goes on; `checksums=False` reads them."""
    path, files, every = store
    before = [file.read_bytes() for file in files]
    (beside,) = path.glob("*.crc")
    beside.unlink()
    if change is not None:
        beside.write_bytes(change)
    for options in every:
        with pytest.raises(sw.FormatError, match=beside.name):
            sw.open(path, **options)
        READS["take"](sw.open(path, checksums=False, **options))
    writer = sw.ShardWriter if files[0].suffix == ".shard" else sw.StepWriter
    with pytest.raises(sw.FormatError, match=beside.name):
        writer(path, mode="a")
    assert [file.read_bytes() for file in files] == before


@pytest.mark.parametrize("memory", ["ram", "map", "shared"])
@pytest.mark.parametrize("shard_rows", [0, 250])
def test_rows_that_came_later(quick_path: Path, memory: Any, shard_rows: int) -> None:
    """They begin inside a block that had other rows before; so does what a pickle has."""
    path = quick_path / "a"
    build_steps(path, LENGTHS[:1], shard_rows=shard_rows)
    dataset = sw.StepReader.open(path, memory=memory)
    for count in range(2, len(LENGTHS) + 1):
        build_steps(path, LENGTHS[:count])
        kept = pickle.dumps(dataset)
        dataset.refresh()
        assert_batch(dataset[:], fields(rows_of_all(LENGTHS[:count])))
        assert_batch(pickle.loads(kept)[:], fields(rows_of_all(LENGTHS[: count - 1])))
    dataset = sw.StepReader.open(path, memory=memory)
    build_steps(path, [*LENGTHS, 200])
    file = max(path.rglob("*.npy"))
    flip(file, file.stat().st_size - 22)
    with pytest.raises(sw.ChecksumError):
        dataset.refresh() and dataset[:]


def test_datasets_of_before(quick_path: Path) -> None:
    """They are compared on load, as far as the manifest reaches, and no writer covers damage up."""
    path = quick_path / "a"
    steps(path)
    of_before(path)
    assert_batch(sw.StepReader.open(path)[:], fields(rows_of_all(LENGTHS)))
    stored = flip(path / "steps.npy", 5000)
    for memory in ("ram", "shared"):
        with pytest.raises(sw.ChecksumError, match="rows from byte 0 on"):
            sw.StepReader.open(path, memory=memory)
    dataset = sw.StepReader.open(path, memory="map")
    assert "on load and by verify" in dataset.describe().facts["checksums"]
    assert not dataset.verify().ok
    with pytest.raises(sw.ChecksumError):
        sw.StepWriter(path, mode="a")
    (path / "steps.npy").write_bytes(stored)
    build_steps(path, [*LENGTHS, 3])
    flip(path / "steps.npy", 5000)
    with pytest.raises(sw.ChecksumError):
        READS["take"](sw.StepReader.open(path, memory="map"))


def test_shards_of_before(quick_path: Path) -> None:
    """They are compared when they have been read in order, before their last rows are given."""
    shards(quick_path)
    text = json.loads((quick_path / "shards.json").read_text())
    for entry in text["shards"]:
        del entry["first_block"]
    (quick_path / "shards.json").write_text(json.dumps(text))
    flip(quick_path / "000001.shard", 9000)
    reader = sw.ShardReader.open(quick_path)
    assert reader.describe().facts["block_checksums"] == 0
    for options in ({}, {"dtype": None}, {"out": np.zeros((40, 50), np.float32)}):
        got: list[int] = []
        with pytest.raises(sw.ChecksumError, match=r"000001\.shard"):
            got.extend(len(batch.rows) for batch in reader.batches(40, **options))
        assert sum(got) == 180  # of 200, of which the first 100 are fine
    assert len(list(sw.ShardReader.open(quick_path, checksums=False).batches(40))) == 8


def test_a_copy_in_shared_memory_is_not_believed_after_a_change(quick_path: Path) -> None:
    path, row = quick_path / "a", 50_007
    with sw.StepWriter(path, {"x": "<u8", "y": "<u4"}) as writer:
        writer.append({"x": np.ones(100_000, "<u8"), "y": np.zeros(100_000, "<u4")})
    first = sw.StepReader.open(path, memory="shared", checksums=False)
    flip(path / "steps.npy", header_of(path / "steps.npy") + 12 * row)
    second = sw.StepReader.open(path, memory="shared", checksums=False)
    assert first[row]["x"] == 1 != second[row]["x"]
    assert not first.verify().ok
    with pytest.raises(sw.ChecksumError):
        sw.StepReader.open(path, memory="shared")


def test_blocks_by_hand(quick_path: Path) -> None:
    """Any size of blocks, any bytes before them, any parts: the block that differs is named."""
    chance = np.random.default_rng(3)
    none = np.empty(0, np.uint8)
    for _ in range(scaled(200)):
        size, inside = 1 << int(chance.integers(3, 8)), int(chance.integers(0, 8))
        whole = chance.integers(0, 256, int(chance.integers(1, 900)) + inside, np.uint8)
        before, data = whole[:inside], whole[inside:].copy()
        parts = [whole[at : at + size].tobytes() for at in range(0, len(whole), size)]
        crcs = np.array([crc32c(part) for part in parts])
        stored = crcs.astype("<u4").view(np.uint8)
        split = 4 * int(chance.integers(0, len(crcs) + 1))
        made = _core.stream_checksums(data, size, inside, _core.crc32c(before))
        assert made.tobytes() == stored.tobytes()
        at = int(chance.integers(0, len(data)))
        blocks = _core.CheckedBlocks(
            *(data, size, stored[:split], stored[split:], "a", 7, "b", inside, _core.crc32c(before))
        )
        blocks.check(at, at + 1)
        data[at] ^= 1
        blocks.check(at, at + 1)  # it was met before
        begin = max((inside + at) // size * size - inside, 0)
        blocks = _core.CheckedBlocks(
            *(data, size, stored[:split], stored[split:], "a", 7, "b", inside, _core.crc32c(before))
        )
        blocks.check(0, begin)
        with pytest.raises(sw.ChecksumError) as caught:
            blocks.check_all()
        assert (caught.value.path, caught.value.offset) == ("a", 7 + begin)
        assert not blocks.is_done
        data[at] ^= 1
        blocks.check_all()
        assert blocks.is_done
    with pytest.raises(ValueError, match="one checksum for each block"):
        _core.CheckedBlocks(np.zeros(9, np.uint8), 8, none, none, "a", 0, "b")


def test_a_mapped_file_that_is_cut(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and checksums under an open reader: an error, not the end of the process."""
    monkeypatch.setattr(writer_module, "KEPT_CHECKSUMS", 0)
    for name in ("steps.npy", "steps.crc"):
        steps(quick_path / name)
        dataset = sw.StepReader.open(quick_path / name, memory="map")
        os.truncate(quick_path / name / name, 0)
        with pytest.raises(sw.FormatError, match=rf"{name}/{name}"):
            READS["take"](dataset)

"""Rows that are not those that were written are an error when they are read."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from tests.shards import values
from tests.steps import build as build_steps

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


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, quick_path: Path) -> tuple[Path, list[Path], list[Any]]:
    make, files, options = STORES[request.param]
    make(quick_path / "a")
    return quick_path / "a", sorted((quick_path / "a").glob(files)), options


def flips(files: list[Path], count: int) -> Iterator[tuple[Path, int]]:
    """Each with a bit of its rows flipped in turn, and where; then it is as it was."""
    chance = random.Random(5)
    for _ in range(count):
        file = chance.choice(files)
        stored = file.read_bytes()
        header = 32 if file.suffix == ".shard" else len(stored) - len(stored) // 22 * 22
        header = header if file.suffix == ".shard" else stored.index(b"\n") + 1
        at = chance.randrange(header, len(stored))
        file.write_bytes(stored[:at] + bytes([stored[at] ^ 1 << at % 8]) + stored[at + 1 :])
        yield file, at
        file.write_bytes(stored)


@pytest.mark.parametrize("read", READS)
def test_a_flipped_bit(store: tuple[Path, list[Path], list[Any]], read: str) -> None:
    """Whoever reads everything in whatever way comes to it, with the path and the place."""
    path, files, every = store
    if read == "batches" and files[0].suffix != ".shard":
        pytest.skip("shards have batches in order")
    for options in every:
        for file, at in flips(files, 6):
            with pytest.raises(sw.ChecksumError) as caught:
                READS[read](sw.open(path, **options))
            assert caught.value.path == str(file)
            assert caught.value.offset is not None
            assert caught.value.offset <= at < caught.value.offset + 4096
        with sw.open(path, **options) as source:
            READS[read](source)
            assert source.verify().ok

"""Steps made from numbers, so that whoever reads one can tell whether it is the right one."""

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stepwell.replay import FrameResolver, ReplayReader, ReplayWriter
from stepwell.stores.replay.disk import RunDisk
from stepwell.stores.replay.rows import RunFile
from tests.reference.replay import read_store, resolve

if TYPE_CHECKING:  # processes that are to be killed import this, and begin sooner without
    import pytest

__all__ = [
    "assert_tree",
    "camera",
    "change",
    "flipped",
    "forget_checksums",
    "frame",
    "is_whole",
    "numbers_of",
    "observation",
    "places_of",
    "pose",
    "record",
    "record_all",
    "row_of",
    "stack",
    "step",
    "stop_disk",
]


def camera(number: int) -> NDArray[np.uint8]:
    """A row that is packed, by zstd plane after plane: half of it noise, half of it not."""
    made = np.full((15, 20, 4), number % 251, np.uint8)
    made[:7] = np.random.default_rng(number).integers(0, 256, (7, 20, 4), np.uint8)
    return made


def pose(number: int) -> NDArray[np.float32]:
    """A row that shares its chunk with others."""
    return np.array([number, number + 0.5, -number], np.float32)


def stack(number: int, planes: int = 4, dtype: str = "u1") -> NDArray[Any]:
    """Planes that are much alike; or, every fourth, noise, which no codec makes smaller."""
    if number % 4 == 3:
        made = np.random.default_rng(number).integers(0, 256, (24, 24, planes), np.uint8)
    else:
        picture = np.add.outer(np.arange(24), np.arange(24)) + number
        made = np.stack([np.roll(picture, p, 1) for p in range(planes)], 2).astype(np.uint8)
    return made.astype(bool) if dtype == "?" else made.view(dtype)


def frame(number: int) -> NDArray[np.uint8]:
    """Noise, which no codec makes smaller; or, every fourth, a single colour."""
    if number % 4 == 0:
        return np.full((20, 25, 3), number % 256, np.uint8)
    return np.random.default_rng(number + 10**6).integers(0, 256, (20, 25, 3), np.uint8)


def observation(number: int) -> dict[str, Any]:
    return {"camera": camera(number), "inner": (pose(number), np.int16(number % 2**15))}


def step(number: int) -> dict[str, Any]:
    """What `record_step` is given; every third has a frame."""
    return {
        "reward": float(number),
        "observation": observation(number),
        "action": number,
        "frame": frame(number) if number % 3 == 0 else None,
        "info": {"number": number},
    }


def record(writer: ReplayWriter, number: int, **others: Any) -> Any:
    return writer.record_step(**{**step(number), **others})


def record_all(root: Path, run_id: str, numbers: Iterable[int], **options: Any) -> None:
    """A run that was closed, of episodes of ten steps; new, or gone on with."""
    with ReplayWriter(root, run_id, mode="a", **options) as writer:
        for number in numbers:
            record(writer, number, terminated=number % 10 == 9)


def is_whole(root: Path) -> bool:
    """Whether all of a store can be read, also by the page of its format, and is sound."""
    read_store(root)
    with ReplayReader.open(root) as reader:
        report = reader.verify()
    assert report.ok, str(report)
    return True


def assert_tree(got: Any, want: Any) -> None:
    """The same arrays, by type, shape and bytes, in the same dicts and tuples."""
    if isinstance(want, dict):
        assert isinstance(got, dict)
        assert list(got) == list(want)
        for key in want:
            assert_tree(got[key], want[key])
    elif isinstance(want, tuple):
        assert isinstance(got, tuple)
        assert len(got) == len(want)
        for mine, theirs in zip(got, want, strict=True):
            assert_tree(mine, theirs)
    elif want is None:
        assert got is None
    else:
        assert np.asarray(got).dtype == np.asarray(want).dtype
        assert np.asarray(got).shape == np.asarray(want).shape
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes()


def row_of(tree: Any, row: int) -> Any:
    """A row of every array of a tree."""
    if isinstance(tree, dict):
        return {key: row_of(branch, row) for key, branch in tree.items()}
    if isinstance(tree, tuple):
        return tuple(row_of(branch, row) for branch in tree)
    return tree[row]


def change(root: Path, sql: str, *values: Any, checksums: bool = False) -> None:
    """Damage the database of a store: one as it was before rows had `checksums`, or of today."""
    with closing(sqlite3.connect(root / "telemetry" / "telemetry.sqlite")) as database:
        if not checksums:
            forget_checksums(database)
        assert database.execute(sql, values).rowcount
        database.commit()


def forget_checksums(database: sqlite3.Connection) -> None:
    """Make a database as version 0.1.0 of this package did."""
    for table in ("runs", "episodes", "steps"):
        if any(
            name == "checksum" for _, name, *_ in database.execute(f"PRAGMA table_info({table})")
        ):
            database.execute(f"ALTER TABLE {table} DROP COLUMN checksum")


@contextmanager
def flipped(path: Path, place: int, bits: int = 1) -> Iterator[None]:
    """Some bits of a file are others inside the block."""

    def flip() -> None:
        with path.open("r+b") as file:
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ bits]))

    flip()
    yield
    flip()


def places_of(path: Path, names: list[str]) -> dict[str, list[tuple[int, int]]]:
    """Where each stored row of some datasets of a file is, and its bytes."""
    file = RunFile(path)
    found = {}
    for name in names:
        _, places = file._find(name, np.arange(file.length(name)))
        found[name] = list(zip(places.offsets.tolist(), places.sizes.tolist(), strict=True))
    file.close()
    return found


def numbers_of(root: Path, run_id: str = "run") -> list[int]:
    """The numbers of the steps that are there, in order, after a look at every one of them."""
    store = read_store(root)
    rows = [row for row in store.steps.values() if row["run_id"] == run_id]
    rows.sort(key=lambda row: row["reward"])
    with FrameResolver(root) as resolver:
        for row in rows:
            number = int(row["reward"])
            seen = resolver.resolve(row["obs_ref"], missing="raise")
            assert_tree(seen, observation(number))
            assert_tree(
                None if row["frame_ref"] is None else resolve(store, row["frame_ref"]),
                step(number)["frame"],
            )
            assert json.loads(row["info"]) == {"number": number}
    return [int(row["reward"]) for row in rows]


def stop_disk(monkeypatch: "pytest.MonkeyPatch") -> threading.Event:
    """Nothing is written before the event is set."""
    go = threading.Event()
    write = RunDisk.write

    def slowly(*args: Any) -> None:
        assert go.wait(60)
        write(*args)

    monkeypatch.setattr(RunDisk, "write", slowly)
    return go

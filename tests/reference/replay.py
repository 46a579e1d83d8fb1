"""Replay stores from docs/formats/replay.md alone: sqlite3, h5py and json; slow and plain.

store = read_store(root)          everything in it, checked while it is read
write_seed_file(path, frames)     a file as other programs write it
"""

import json
import math
import re
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401 - makes h5py know zstd
import numpy as np
import zstandard
from numpy.typing import NDArray

from tests.reference.runs import crc32c

__all__ = ["Run", "Store", "read_run", "read_store", "resolve", "write_seed_file"]

Arrays = dict[str, NDArray[Any]]

_RUN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{,127}")
_REF = re.compile(rf"h5://({_RUN_ID.pattern})/([^/]+)/([0-9]+)")
_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "zstd": zstandard.decompress,
    "gzip": zlib.decompress,
}
_NUMBERS = {
    "steps": ("<i8", (5,)),
    "rewards": ("<f8", ()),
    "dones": ("|u1", ()),
    "episodes/starts": ("<i8", ()),
    "episodes/lengths": ("<i8", ()),
}


@dataclass
class Run:
    """A row of `runs`, and the committed rows of each dataset of its file."""

    row: dict[str, Any]
    datasets: Arrays

    def arrays(self, kind: str) -> list[str]:
        return [n for n in self.datasets if n == kind or n.startswith(kind + "/")]


@dataclass
class Store:
    runs: dict[str, Run]
    episodes: dict[str, dict[str, Any]]
    steps: dict[tuple[str, int], dict[str, Any]]
    index: dict[str, Any]


def read_store(root: Path) -> Store:
    """Everything in a store. Any rule of the page that does not hold is an `AssertionError`."""
    path = root / "telemetry" / "telemetry.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        (version,) = database.execute("PRAGMA user_version").fetchone()
        assert version in (1, 2)
        assert database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        database.execute("BEGIN")  # all of them as they are at one moment
        runs, episodes, steps = (
            [dict(row) for row in database.execute(f"SELECT * FROM {table}")]
            for table in ("runs", "episodes", "steps")
        )
    for row in (*runs, *episodes, *steps):
        assert row.pop("checksum") == row_checksum(row.values())
    runs = [row for row in runs if row["state"] != "removed"]
    index = root / "replay" / "index.json"
    store = Store(
        {row["run_id"]: Run(row, read_run(root, row)) for row in runs},
        {row["episode_id"]: row for row in episodes},
        {(row["episode_id"], row["step_index"]): row for row in steps},
        json.loads(index.read_bytes()) if index.exists() or steps else {},
    )
    for run in store.runs.values():
        assert version == 2 or run.row["steps"] == run.row["written"]
        _check_run(store, run)
    return store


def row_checksum(values: Iterable[Any]) -> int:
    """The CRC32C of a row of the database, from its values."""
    stored = b""
    for value in values:
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if value is None:
            stored += struct.pack("<Bq", 0, 0)
        elif isinstance(value, int):
            stored += struct.pack("<Bq", 1, value)
        elif isinstance(value, float):
            stored += struct.pack("<Bd", 2, value)
        else:
            data = value.encode() if isinstance(value, str) else value
            stored += struct.pack("<Bq", 3 if isinstance(value, str) else 4, len(data)) + data
    return crc32c(stored)


def read_run(root: Path, row: Mapping[str, Any]) -> Arrays:
    """The committed rows of each dataset of a run's file."""
    assert _RUN_ID.fullmatch(row["run_id"])
    committed: dict[str, int] = json.loads(row["rows"])
    if not committed:
        return {}
    path = root / "replay" / row["file"]
    assert path.name == row["run_id"] + ".h5"
    with h5py.File(path, "r", swmr=True, locking=False) as file:
        assert file.attrs["run_id"] == row["run_id"]
        assert file.attrs["created_at"] == row["created_at"]
        assert file.attrs["version"] == 1
        assert (b"import hdf5plugin" in file.attrs["README"]) == ('"zstd"' in row["channels"])
        found = {name: _dataset(file, name)[:count] for name, count in committed.items()}
        for name, count in committed.items():
            assert len(found[name]) == count, name
            assert file[name].maxshape[0] is None
        for channel in json.loads(row["channels"]):
            _check_channel(file, channel, found)
        _check_directory(path, file, row["run_id"], committed, row["state"] == "closed")
    for name in ("steps", "rewards", "dones"):
        assert found[f"checksums/{name}"].tolist() == [crc32c(r.tobytes()) for r in found[name]]
    for name, (dtype, shape) in _NUMBERS.items():
        assert found[name].dtype.str == dtype
        assert found[name].shape[1:] == shape
    return found


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    found = file[name]
    assert isinstance(found, h5py.Dataset)
    return found


def _check_channel(file: h5py.File, channel: Mapping[str, Any], found: Arrays) -> None:
    """A row has the type that the run says, and its stored bytes add up."""
    name = channel["name"]
    values, dataset = found[name], _dataset(file, name)
    planes = math.prod(dataset.dtype.shape)
    sums = found[f"checksums/{name}"]
    assert values.dtype.str == channel["dtype"]
    assert list(values.shape[1:]) == channel["shape"]
    assert sums.dtype == np.uint32
    assert len(sums) == len(values)
    row_bytes = values.dtype.itemsize * int(np.prod(values.shape[1:]))
    rest = (0,) * (dataset.ndim - 1)
    if planes > 1:
        assert planes == _planes(channel)
        filters = dataset.id.get_create_plist()
        codec = {"zstd": 32015, "gzip": 1}[channel["codec"]]
        assert [filters.get_filter(i)[0] for i in range(filters.get_nfilters())] == [2, codec]
    if row_bytes < 1024:
        assert dataset.chunks[0] == max(1, 16384 // row_bytes)
        assert dataset.id.get_create_plist().get_nfilters() == 0
    else:
        assert dataset.chunks[0] == 1
    for i in range(len(values)):
        if not (sums[i] or values[i].any()):
            continue  # of an episode that was removed
        stored = values[i].tobytes()
        if row_bytes >= 1024:
            mask, packed = dataset.id.read_direct_chunk((i, *rest))
            assert (mask == 0 and channel["codec"] != "none") or packed == stored
            assert mask in ((0, 3) if planes > 1 else (0, 1))
            if channel["codec"] in _UNPACK and mask == 0:
                apart = np.moveaxis(values[i], -1, 0) if planes > 1 else values[i]
                assert _UNPACK[channel["codec"]](packed) == apart.tobytes()
            stored = packed
        assert sums[i] == crc32c(stored), (name, i)


def _planes(channel: Mapping[str, Any]) -> int:
    """How many of them may be stored one behind the other."""
    shape, dtype = channel["shape"], np.dtype(channel["dtype"])
    stacked = len(shape) >= 3 and shape[-1] in (2, 4, 5, 7, 8, 10, 11, 13, 14, 16)
    packed = channel["codec"] in _UNPACK and dtype.itemsize == 1 and np.prod(shape) >= 1024
    return shape[-1] if stacked and packed and channel["name"] != "frames" else 1


def _check_directory(
    path: Path, file: h5py.File, run_id: str, committed: Mapping[str, int], closed: bool
) -> None:
    line, _, rest = path.read_bytes()[: file.userblock_size].partition(b"\n")
    magic, kind, version, crc, length = line.split(b" ")
    assert (magic, kind, version) == (b"STEPWELL", b"REPLAY", b"1")
    text = rest[: int(length)]
    assert len(crc) == 8
    assert crc32c(text) == int(crc, 16)
    sign, mark_crc, marked = struct.unpack("<4sIQ", rest[-16:])
    assert not rest[int(length) : -16].strip(b"\0")
    assert sign == b"MARK"
    assert crc32c(rest[-8:]) == mark_crc
    assert not closed or marked == sum(committed.values())
    stated = json.loads(text)
    assert stated["run_id"] == run_id
    assert stated["base"] == file.userblock_size >= 4096
    assert set(stated["datasets"]) >= set(committed)  # one that was being added may be there, empty
    for name, entry in stated["datasets"].items():
        dataset = _dataset(file, name)
        assert entry["header"] == h5py.h5o.get_info(dataset.id).addr
        assert entry["dtype"] == dataset.dtype.base.str
        assert tuple(entry["shape"]) == dataset.shape[1:] + dataset.dtype.shape
        assert entry["chunk_rows"] == dataset.chunks[0]
        assert [entry.get("planes")] == list(dataset.dtype.shape or [None])


def _check_run(store: Store, run: Run) -> None:
    """The database and the file tell the same of every step and episode."""
    run_id = run.row["run_id"]
    steps = [row for row in store.steps.values() if row["run_id"] == run_id]
    episodes = [row for row in store.episodes.values() if row["run_id"] == run_id]
    assert run.row["steps"] == len(steps)
    if not run.datasets:  # without arrays
        assert all(step["frame_ref"] is step["obs_ref"] is None for step in steps)
        assert not any(isinstance(step["action"], str) for step in steps)
        for row in episodes:
            mine = [step["reward"] for step in steps if step["episode_id"] == row["episode_id"]]
            assert (row["steps"], row["final_obs_ref"]) == (len(mine), None)
            assert np.isclose(row["total_reward"], sum(mine))
        return
    table = run.datasets["steps"].tolist()
    assert len(table) == len(run.datasets["rewards"]) == len(run.datasets["dones"])
    assert len(table) == run.row["written"]
    left = {row["number"] for row in episodes}
    cut = run.row["steps"] < run.row["written"]  # rows of removed episodes may still be there
    for number, row in enumerate(table):
        episode, index, *places = row
        if episode < 0:
            assert row == [-1] * 5
            assert not run.datasets["rewards"][number]
            continue
        if cut and episode not in left:
            continue
        step = store.steps[f"{run_id}-ep{episode:04d}", index]
        assert step["reward"] == run.datasets["rewards"][number]
        done = step["terminated"] + 2 * step["truncated"]
        assert done == run.datasets["dones"][number]
        assert step["frame_ref"] == _ref(run_id, "frames", places[0])
        assert step["obs_ref"] == _ref(run_id, "observations", places[1])
        if isinstance(step["action"], str) or step["action"] is None:
            assert step["action"] == _ref(run_id, "actions", places[2])
        else:
            assert run.datasets["actions"][places[2]] == step["action"]
        for kind, place in zip(("frames", "observations", "actions"), places, strict=True):
            assert place < 0 or all(place < len(run.datasets[n]) for n in run.arrays(kind))
    ended = list(
        zip(
            run.datasets["episodes/starts"].tolist(),
            run.datasets["episodes/lengths"].tolist(),
            strict=True,
        )
    )
    over = [row for row in episodes if row["ended_at"] is not None]
    shown = len(ended) - ended.count((-1, 0))
    assert shown == len(over) or (cut and shown > len(over))
    for row in episodes:
        mine = [r for r in table if r[0] == row["number"]]
        assert row["episode_id"] == f"{run_id}-ep{row['number']:04d}"
        assert row["steps"] == len(mine)
        assert [r[1] for r in mine] == sorted({r[1] for r in mine})
        rewards = [store.steps[row["episode_id"], r[1]]["reward"] for r in mine]
        assert np.isclose(row["total_reward"], sum(rewards))
        assert row["ended"] == (row["terminated"] or row["truncated"])
        if row["ended_at"] is not None and mine:
            assert (table.index(mine[0]), len(mine)) in ended
        if row["final_obs_ref"] is not None:
            resolve(store, row["final_obs_ref"])


def _ref(run_id: str, dataset: str, place: int) -> str | None:
    return None if place < 0 else f"h5://{run_id}/{dataset}/{place}"


def resolve(store: Store, ref: str) -> Any:
    """The array of a reference; a dict by dataset where there are several."""
    found = _REF.fullmatch(ref)
    assert found, ref
    run = store.runs[found[1]]
    names = run.arrays(found[2])
    assert names, ref
    row = int(found[3])
    assert all(row < len(run.datasets[name]) for name in names), ref
    if names == [found[2]]:
        return run.datasets[names[0]][row]
    return {name: run.datasets[name][row] for name in names}


def write_seed_file(path: Path, datasets: Mapping[str, NDArray[Any]], run_id: str | None) -> None:
    """What came before: no bytes before the HDF5, rows in chunks of 16, packed by lzf."""
    with h5py.File(path, "w") as file:
        if run_id is not None:
            file.attrs["run_id"] = run_id
        for name, values in datasets.items():
            row = values.shape[1:]
            file.create_dataset(
                name, data=values, maxshape=(None, *row), chunks=(16, *row), compression="lzf"
            )

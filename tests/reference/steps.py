"""docs/formats/steps.md in plain Python: NumPy for the array, sqlite3 for the runs, json.

Nothing here is shared with the package, so where the two agree, two readers of the page did.
A dataset is read whole and written whole; nothing is mended, nothing is locked.
"""

import json
import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference.runs import crc32c

BLOCK_BYTES = 1 << 26
SMALL_BYTES = 1 << 12
OWN = ("id", "first_step_idx", "num_steps")


class Broken(ValueError):
    """What breaks a MUST of the page."""


class BrokenVersion(Broken):
    """A version that the page does not describe."""


class BrokenChecksum(Broken):
    """Rows that are not those that were summed."""


@dataclass
class Steps:
    rows: NDArray[Any]
    runs: list[dict[str, Any]]
    shard_rows: int = 0
    blocks: list[int] | None = None
    """The checksums of the manifest; None without one."""
    small: list[int] | None = None
    """Those of steps.crc and the database; None without them."""
    types: dict[str, str] = field(default_factory=dict)
    """The SQL type of each column of the runs that is not in every dataset."""


def descr(dtype: np.dtype[Any]) -> Any:
    return json.loads(json.dumps(np.lib.format.dtype_to_descr(dtype)))


def checksums(rows: NDArray[Any]) -> list[int]:
    """The CRC32C of each block of the rows."""
    data = rows.tobytes()
    return [crc32c(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]


def small_checksums(rows: NDArray[Any], shard_rows: int) -> list[int]:
    """The CRC32C of each block of each file."""
    size = shard_rows or len(rows) or 1
    files = [rows[at : at + size].tobytes() for at in range(0, len(rows), size)]
    return [crc32c(f[at : at + SMALL_BYTES]) for f in files for at in range(0, len(f), SMALL_BYTES)]


def piece(path: Path, number: int, shard_rows: int) -> Path:
    return path / f"shards/steps_{number:05}.npy" if shard_rows else path / "steps.npy"


# Reading.


def read_steps(path: Path, *, verify: bool = False) -> Steps:
    """The committed rows and runs of a dataset."""
    with closing(sqlite3.connect(path / "metadata.db")) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        if "runs" not in tables:
            raise Broken("no table of runs")
        meta = dict(database.execute("SELECT key, value FROM meta")) if "meta" in tables else {}
        found = database.execute("SELECT * FROM runs ORDER BY first_step_idx, id")
        names = [name for name, *_ in found.description]
        runs = [dict(zip(names, run, strict=True)) for run in found]
        info = database.execute("PRAGMA table_info(runs)").fetchall()
    if not set(OWN) <= set(names):
        raise Broken(f"runs: columns {names}")
    if meta.get("format_version", "1") != "1":
        raise BrokenVersion(f"version {meta['format_version']}")
    end = max((run["first_step_idx"] + run["num_steps"] for run in runs), default=0)
    count, shard_rows = int(meta.get("rows", end)), int(meta.get("shard_rows", 0))
    if count != end:
        raise Broken(f"{count} rows, the last run ends at {end}")
    rows = _read_rows(path, count, shard_rows)
    if "dtype" in meta and json.loads(meta["dtype"]) != descr(rows.dtype):
        raise Broken(f"rows of {rows.dtype}, the database says {meta['dtype']}")
    types = {name: kind for _, name, kind, *_ in info if name not in OWN}
    small = _read_small(path, meta)
    steps = Steps(rows, runs, shard_rows, _read_manifest(path, rows), small, types)
    if verify:
        check(steps)
    return steps


def read_copy(path: Path) -> Steps:
    """A dataset that was written in a bucket, and copied to a folder object by object."""
    text = json.loads((path / "dataset.json").read_text())
    if (text["format"], text["version"]) != ("stepwell-dataset", 1):
        raise BrokenVersion(f"{text['format']} {text['version']}")
    others = {name: value for name, value in text.items() if name != "crc32c"}
    data = json.dumps(others, sort_keys=True, separators=(",", ":")).encode()
    database = (path / text["metadata"]["name"]).read_bytes()
    wanted = text["crc32c"], text["metadata"]["bytes"], text["metadata"]["crc32c"]
    if wanted != (f"{crc32c(data):08x}", len(database), f"{crc32c(database):08x}"):
        raise BrokenChecksum("the document or the database")
    parts = []
    for shard in text["shards"]:
        part = np.load(path / shard["name"])
        if (len(part), (path / shard["name"]).stat().st_size) != (shard["rows"], shard["bytes"]):
            raise Broken(f"{shard['name']}: {len(part)} rows")
        data = (path / shard["name"].replace(".npy", ".crc")).read_bytes()
        found = list(struct.unpack(f"<{len(data) // 4 - 4}I", data[16:]))
        if data[:16] != b"STEPCRC\0" + struct.pack("<II", 1, SMALL_BYTES):
            raise Broken("no checksums")
        if found != small_checksums(part, 0):
            raise BrokenChecksum(shard["name"])
        parts.append(part)
    with closing(sqlite3.connect(path / text["metadata"]["name"])) as opened:
        rows = opened.execute("SELECT * FROM runs ORDER BY first_step_idx, num_steps, id")
        names = [name for name, *_ in rows.description]
        runs = [dict(zip(names, run, strict=True)) for run in rows]
        meta = dict(opened.execute("SELECT key, value FROM meta"))
    dtype = np.lib.format.descr_to_dtype([tuple(field) for field in text["dtype"]])
    if (meta["id"], json.loads(meta["dtype"]), len(runs)) != (
        text["id"],
        descr(dtype),
        text["runs"],
    ):
        raise Broken("the database is of another dataset")
    return Steps(np.concatenate([np.empty(0, dtype), *parts]), runs)


def _read_rows(path: Path, count: int, shard_rows: int) -> NDArray[Any]:
    parts: list[NDArray[Any]] = []
    for number in range(-(-count // shard_rows) or 1 if shard_rows else 1):
        with piece(path, number, shard_rows).open("rb") as file:
            # The header for the dtype and for where the rows begin, and for nothing else.
            if np.lib.format.read_magic(file) != (1, 0):
                raise BrokenVersion("a header of another version")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            if len(shape) != 1 or not dtype.names:
                raise Broken(f"{dtype} {shape}")
            wanted = min(shard_rows or count, count - number * shard_rows)
            data = file.read(wanted * dtype.itemsize)
        if len(data) < wanted * dtype.itemsize:
            raise Broken(f"{len(data)} bytes for {wanted} rows")
        parts.append(np.frombuffer(data, np.uint8))
    return np.concatenate(parts).view(dtype)


def _read_small(path: Path, meta: dict[str, str]) -> list[int] | None:
    if "block_bytes" not in meta:
        return None
    data, tail = (path / "steps.crc").read_bytes(), bytes.fromhex(meta["block_tail"])
    if data[:8] != b"STEPCRC\0" or struct.unpack("<II", data[8:16]) != (1, SMALL_BYTES):
        raise Broken("no checksums")
    data = data[16:] + tail
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def _read_manifest(path: Path, rows: NDArray[Any]) -> list[int] | None:
    """The checksums, if they are of all rows."""
    if not (path / "manifest.json").exists():
        return None
    text = json.loads((path / "manifest.json").read_text())
    if text.get("format") != "stepwell-steps":
        return None
    if text["version"] != 1:
        raise BrokenVersion(f"version {text['version']}")
    if text["block_bytes"] != BLOCK_BYTES or text["dtype"] != descr(rows.dtype):
        raise Broken("a manifest of other rows")
    return [int(crc, 16) for crc in text["blocks"]] if text["rows"] == len(rows) else None


def check(steps: Steps) -> None:
    """What verify checks, but for SQLite's own part."""
    at = 0
    for run in steps.runs:
        if run["first_step_idx"] != at or run["num_steps"] < 0:
            raise Broken(f"run {run['id']} begins at {run['first_step_idx']}, not at {at}")
        mine = steps.rows[at : at + run["num_steps"]]
        names = steps.rows.dtype.names or ()
        if "run_id" in names and (mine["run_id"] != run["id"]).any():
            raise Broken(f"rows of another run in run {run['id']}")
        if "step_index" in names and (mine["step_index"] != np.arange(len(mine))).any():
            raise Broken(f"rows of run {run['id']} in another order")
        at += run["num_steps"]
    if steps.blocks is not None and steps.blocks != checksums(steps.rows):
        raise BrokenChecksum("a block does not match its checksum")
    if steps.small not in (None, small_checksums(steps.rows, steps.shard_rows)):
        raise BrokenChecksum("a small block does not match its checksum")


# Writing.


def write_steps(path: Path, steps: Steps) -> None:
    """A dataset; `path` must not exist. The runs get their ids and places."""
    path.mkdir()
    size = steps.shard_rows or len(steps.rows)
    if steps.shard_rows:
        (path / "shards").mkdir()
    for number in range(-(-len(steps.rows) // size) if size else 1):
        part = steps.rows[number * size : (number + 1) * size]
        np.save(piece(path, number, steps.shard_rows), part)
    if steps.shard_rows and not len(steps.rows):
        np.save(piece(path, 0, steps.shard_rows), steps.rows)
    crcs = small_checksums(steps.rows, steps.shard_rows)
    small = struct.pack(f"<{len(crcs)}I", *crcs)
    header = b"STEPCRC\0" + struct.pack("<II", 1, SMALL_BYTES)
    (path / "steps.crc").write_bytes(header + small[:-4])
    _write_database(path / "metadata.db", steps, small[-4:])
    text = {
        "format": "stepwell-steps",
        "version": 1,
        "dtype": descr(steps.rows.dtype),
        "rows": len(steps.rows),
        "runs": len(steps.runs),
        "created": "2026-01-01T00:00:00+00:00",
        "block_bytes": BLOCK_BYTES,
        "blocks": [f"{crc:08x}" for crc in checksums(steps.rows)],
    }
    (path / "manifest.json").write_text(json.dumps(text))


def _write_database(path: Path, steps: Steps, tail: bytes) -> None:
    own = "id INTEGER PRIMARY KEY, first_step_idx INTEGER NOT NULL, num_steps INTEGER NOT NULL"
    declared = [own, *(f'"{name}" {kind}' for name, kind in steps.types.items())]
    meta = {
        "format_version": "1",
        "dtype": json.dumps(descr(steps.rows.dtype)),
        "shard_rows": str(steps.shard_rows),
        "rows": str(len(steps.rows)),
        "block_bytes": str(SMALL_BYTES),
        "block_tail": tail.hex(),
    }
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(f"CREATE TABLE runs ({', '.join(declared)})")
        database.execute("CREATE INDEX runs_by_num_steps ON runs (num_steps)")
        database.execute("CREATE INDEX runs_by_first_step_idx ON runs (first_step_idx)")
        database.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        database.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        for run in place(steps.runs):
            names = ", ".join(f'"{name}"' for name in run)
            marks = ", ".join("?" * len(run))
            database.execute(f"INSERT INTO runs ({names}) VALUES ({marks})", [*run.values()])
        database.commit()


def place(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs with ids from 0 on, one behind the other."""
    at = 0
    placed = []
    for number, run in enumerate(runs):
        placed.append({**run, "id": number, "first_step_idx": at})
        at += run["num_steps"]
    return placed

"""Converters that are killed at random moments, and begun again until they are done."""

import random
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas  # noqa: F401  pyarrow would import it in every worker anew, for half a second
from array_record.python.array_record_module import ArrayRecordWriter
from pyarrow import parquet

import stepwell as sw
from stepwell import RecordReader
from stepwell.converters import arrayrecord, folder, incoming, into, npz, outgoing
from tests.converters import assert_same, contents, mixed, saved_dataset, store_of
from tests.crash.kills import Victims

ROWS = 300

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("a.npy", "from-npy", {}),
    ("a.npz", "from-npz", {"compress": "zstd"}),
    ("a.parquet", "from-parquet", {}),
    ("records", "from-arrayrecord", {"compress": "lz4"}),
    ("saved", "from-saved", {}),
    ("files", "from-files", {"chunk_records": 10}),
    ("store", "out.npy", {"field": "image"}),
    ("store", "out.npz", {}),
    ("store", "out.parquet", {}),
    ("store", "out", {"to": "parquet", "part_bytes": 2000}),
    ("store", "out.array_record", {"field": "blob", "part_bytes": 500}),
    ("store", "out-files", {"to": "folder"}),
]


def work(path: Path, first: int) -> Iterator[int]:
    """Convert case `first`, in small steps so that there are many moments to be killed at."""
    for module in (incoming, outgoing, folder, npz, arrayrecord):
        module.BATCH_BYTES = 700  # type: ignore[attr-defined]
    into._COMMIT_BYTES = 1
    source, target, options = CASES[first]
    if not (path / target).exists() or not_finished(path / target):
        sw.convert(path / source, path / target, **options)
    yield first
    signal.pause()


def not_finished(target: Path) -> bool:
    if not (target / "meta.json").is_file():
        return False
    with RecordReader.open(target) as store:
        return not store.attributes["conversion"]["finished"]


@cache
def everything() -> dict[str, Any]:
    records = mixed(ROWS)
    records["data"] = records["blob"]
    records["label"] = np.abs(records["label"])
    records["name"] = [f"{i}ü" for i in range(ROWS)]
    return records


def sources(path: Path) -> None:
    records = everything()
    np.save(path / "a.npy", np.arange(ROWS * 50.0).reshape(ROWS, 50))
    store = store_of(path / "store", records)
    sw.convert(store, path / "a.npz")
    sw.convert(store, path / "a.parquet")
    saved_dataset(path / "saved", parquet.read_table(path / "a.parquet"))
    (path / "records").mkdir()
    writer = ArrayRecordWriter(str(path / "records" / "a.array_record"), "group_size:1")
    for record in records["blob"]:
        writer.write(record)
    writer.close()
    for name, data in tree(records).items():
        (path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (path / "files" / name).write_bytes(data)


def tree(records: dict[str, Any]) -> dict[str, bytes]:
    each = zip(records["label"], records["name"], records["data"], strict=True)
    return {f"{label}/{name}": data for label, name, data in each}


def assert_converted(path: Path, target: str) -> None:
    records = everything()
    made = path / target
    if target == "from-npy":
        assert_same(contents(made), {"data": np.load(path / "a.npy")})
    elif target in ("from-npz", "from-parquet", "from-saved"):
        assert_same(contents(made), records)
    elif target == "from-arrayrecord":
        assert_same(contents(made), {"data": records["blob"]})
    elif target == "from-files":
        got = contents(made)
        classes = RecordReader.open(made).attributes["classes"]
        labels = [int(classes[label]) for label in got["label"]]
        assert tree({**got, "label": labels}) == tree(records)
    elif target == "out.npy":
        assert_same({"image": np.load(made)}, {"image": records["image"]})
    elif target == "out-files":
        found = {str(f.relative_to(made)): f.read_bytes() for f in made.glob("*/*")}
        assert found == tree(records)
    else:
        sw.convert(made, path / f"{target}-again", overwrite=True)
        want = {"data": records["blob"]} if "array_record" in target else records
        assert_same(contents(path / f"{target}-again"), want)


def test_kills(quick_path: Path) -> None:
    sources(quick_path)
    chance = random.Random()
    kills = 0
    with Victims("tests.test_converters_kills:work", quick_path) as victims:
        for case, (_, target, _) in enumerate(CASES):
            longest_s, lives = 0.015, 0
            while victims.kill(case, chance.uniform(0, longest_s)) != case:
                lives += 1
                longest_s *= 1.3
                if (quick_path / target / "meta.json").is_file():
                    with RecordReader.open(quick_path / target) as store:
                        finished = store.attributes["conversion"]["finished"]
                        assert len(store) == ROWS if finished else len(store) <= ROWS
                elif (quick_path / target).exists():
                    assert_converted(quick_path, target)  # killed before it could say so
                    break
            kills += lives
            assert_converted(quick_path, target)
    assert kills > len(CASES)
    left = [path.name for path in quick_path.iterdir() if path.name.endswith(".part")]
    assert left == []

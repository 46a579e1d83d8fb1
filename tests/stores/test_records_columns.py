"""Small values as columns: their size, stores of before, many blocks, damage and what is left."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import ChecksumError, Field, RecordReader, RecordWriter
from tests.records import batch, build, contents, copy, described, stored, values
from tests.reference import records as reference
from tests.reference.records import read_store, write_store
from tests.test_cli import stepwell

FOUR = {name: Field("<f8") for name in "abcd"}


def four(count: int) -> dict[str, Any]:
    return {name: np.arange(count) + i for i, name in enumerate(FOUR)}


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


# Bytes on the disk.


@pytest.mark.parametrize("fields", [FOUR, {"x": Field("u1", (32,))}])
def test_small_records_keep_their_size(quick_path: Path, fields: dict[str, Field]) -> None:
    given = four(10_000) if len(fields) > 1 else {"x": np.zeros((10_000, 32), "u1")}
    with RecordWriter(quick_path / "a", fields) as writer:
        writer.append(given)
    assert size_of(quick_path / "a") < 1.05 * 32 * 10_000
    assert RecordReader.open(quick_path / "a").describe().facts["utilization"] > 0.95


def facts(path: Path) -> dict[str, Any]:
    with RecordReader.open(path) as store:
        return dict(store.describe().facts)


def test_utilization_beside_a_writer(quick_path: Path) -> None:
    """Room that files have grown ahead is none; updates and deletes leave dead bytes."""
    path, fields = quick_path / "a", {**FOUR, "image": Field("u1", (2000,))}
    made = {**four(1000), "image": np.ones((1000, 2000), "u1")}
    with RecordWriter(path, fields) as writer:
        writer.append(made)
        writer.commit()
        assert facts(path)["utilization"] > 0.95
        assert "advice" not in facts(path)
        for _ in range(2):
            writer.update(np.arange(1000), made)
            writer.commit()
        found = facts(path)
        assert found["utilization"] < 0.4
        assert found["dead_bytes"] > 3_900_000
        assert found["stored_bytes"] == 1000 * (4 * 8 + 2000)
        assert "`stepwell records rebalance` gives back 4,0" in found["advice"]
        writer.rebalance()
        assert facts(path)["utilization"] > 0.95
        assert "advice" not in facts(path)


# Stores of before.


@pytest.fixture
def before(quick_path: Path) -> Path:
    """A store of version 1."""
    fields = [replace(field, column=False) for field in described()]
    records = [stored(values(number)) for number in range(20)]
    write_store(quick_path / "old", reference.Store(fields, records, chunk_records=7), commits=[5])
    return quick_path / "old"


def version(path: Path) -> int:
    return int(json.loads((path / "meta.json").read_text())["version"])


def test_a_store_of_version_1(before: Path) -> None:
    """It is read and written as it is, and a rebalance makes columns."""
    want = [stored(values(number)) for number in range(20)]
    assert contents(RecordReader.open(before)) == want
    with RecordWriter(before, mode="a") as writer:
        writer.append(batch([20, 21]))
        writer.update([3], batch([50]))
        writer.delete([0])
        writer.append({"n": [7]})
    want = [stored(values(n)) for n in [21, 1, 2, 50, *range(4, 21)]]
    want.append({**dict.fromkeys(want[0]), "n": np.int64(7).tobytes()})
    assert contents(RecordReader.open(before)) == read_store(before).records == want
    assert (version(before), facts(before)["columns"]) == (1, [])
    reader = RecordReader.open(before)
    with RecordWriter(before, mode="a") as writer:
        writer.rebalance()
        writer.update([1], batch([60]))
        assert contents(reader) == want
    want[1] = stored(values(60))
    assert contents(RecordReader.open(before)) == read_store(before).records == want
    assert (version(before), facts(before)["columns"]) == (2, ["x", "n"])
    assert reader.refresh()
    assert reader.verify().ok


def test_info_recommends_what_pays(quick_path: Path) -> None:
    fields = [reference.Field(name, "<f8", []) for name in FOUR]
    record = dict.fromkeys(FOUR, bytes(8))
    path = quick_path / "old"
    write_store(path, reference.Store(fields, [record] * 10_000, chunk_records=500))  # type: ignore[list-item]
    assert "records rebalance` gives back 1,5" in stepwell("info", path).stdout
    assert stepwell("records", "rebalance", path).returncode == 0
    assert facts(path)["utilization"] > 0.8  # a mark for each: fields of before are optional
    assert "rebalance" not in stepwell("info", path).stdout


# Many blocks, values in two of them.


@pytest.mark.parametrize("optional", [False, True])
def test_many_blocks(quick_path: Path, optional: bool) -> None:
    """Any changes, against arrays; killed, and gone on with."""
    rng, path = np.random.default_rng(optional), quick_path / "0"
    fields = {
        "a": Field("u1", (61,), optional=optional),
        "b": Field("<u2", (3,), optional=optional),
        "text": Field(str),
    }

    def made(count: int) -> dict[str, Any]:
        a = rng.integers(256, size=(count, 61)).astype("u1")
        return {"a": a, "b": a[:, :3].astype("<u2"), "text": [str(row[0]) for row in a]}

    def check(store: RecordReader | RecordWriter) -> None:
        found = store[:]
        assert (found["a"] == model).all()
        assert (found["b"] == model[:, :3]).all()
        assert found["text"].to_list() == [str(row[0]) for row in model]

    writer = RecordWriter(path, fields, grow_bytes=1 << 16)
    model = np.empty((0, 61), "u1")
    for turn in range(12):
        given = made(int(rng.integers(1, 400)))
        writer.append(given)
        model = np.concatenate([model, given["a"]])
        rows = rng.choice(len(model), 20, replace=False)
        given = made(20)
        writer.update(rows, given)
        model[rows] = given["a"]
        for row in sorted(rng.choice(len(model), 10, replace=False), reverse=True):
            writer.delete([row])
            model[row], model = model[-1], model[:-1]
        if turn == 6:
            writer.rebalance()
        writer.commit()
        check(writer)
        check(RecordReader.open(path))
        if turn % 4 == 3:
            there = path.with_name(str(turn))
            copy(path, there)
            writer.close()
            (there / "writer.lock").unlink()  # the machine was started again
            check(RecordReader.open(there))
            path, writer = there, RecordWriter(there, mode="a", grow_bytes=1 << 16)
    writer.close()
    records = read_store(path).records
    assert b"".join(record["a"] or b"" for record in records) == model.tobytes()
    assert RecordReader.open(path).verify().ok


# Damage.


@pytest.fixture
def store(quick_path: Path) -> Path:
    """1,000 records; a block has 512 of them."""
    with RecordWriter(quick_path / "a", {"n": "<i8", "text": Field(str)}) as writer:
        writer.append({"n": np.arange(1000), "text": [str(i) for i in range(1000)]})
    return quick_path / "a"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_damaged_block(store: Path) -> None:
    flip(store / "n.column", 5000)
    reader = RecordReader.open(store)
    assert reader["n"][:512].tolist() == list(range(512))
    for rows in ([700], np.arange(1000)):
        with pytest.raises(ChecksumError, match="records 512 to 1023: the values have a diff"):
            reader["n"][rows]
    (problem,) = reader.verify(quick=True).problems
    assert (problem.path, problem.offset) == (str(store / "n.column"), 4096)


def test_a_commit_hides_no_damage_beside_its_values(store: Path) -> None:
    """The writer has looked at the block before."""
    with RecordWriter(store, mode="a") as writer:
        writer.update([600], {"n": [-1]})
        writer.commit()
        with (store / "n.column").open("r+b") as file:
            file.seek(700 * 8)
            file.write(b"x")
        writer.update([601], {"n": [-2]})
    with pytest.raises(ChecksumError, match="records 512 to 1023"):
        RecordReader.open(store)["n"][700]


def test_a_damaged_record_takes_no_place(store: Path) -> None:
    before = (store / "n.column").read_bytes()
    flip(store / "n.column", 999 * 8)
    with (
        pytest.raises(ChecksumError, match="do not fit their checksum") as caught,
        RecordWriter(store, mode="a") as writer,
    ):
        writer.delete([0])
    assert (caught.value.path, caught.value.offset) == (str(store / "n.column"), 4096)
    (store / "n.column").write_bytes(before)
    assert RecordReader.open(store)["n"][0] == 0


def pairs(path: Path) -> list[tuple[int | None, str | None]]:
    store = RecordReader.open(path)
    found, there = store[:], store.present(np.arange(len(store)))
    return [
        (n if a else None, text if b else None)
        for n, text, a, b in zip(
            found["n"].tolist(), found["text"].to_list(), there["n"], there["text"], strict=True
        )
    ]


def test_salvage_of_a_damaged_block(store: Path, quick_path: Path) -> None:
    flip(store / "n.column", 5000)
    report = RecordReader.salvage(store, quick_path / "b")
    want = [(i if i < 512 else None, str(i)) for i in range(1000)]
    assert pairs(quick_path / "b") == want
    assert (report.records, report.missing, report.lost_bytes) == (1000, 488, 488 * 8)


@pytest.mark.parametrize("deletes", [False, True])
def test_salvage_mixes_no_records(store: Path, quick_path: Path, deletes: bool) -> None:
    """Values are where their records are now, frames have the numbers of then."""
    with RecordWriter(store, mode="a") as writer:
        writer.update([3], {"n": [-3], "text": ["-3"]})
        if deletes:
            writer.delete([0, 600])
    want = pairs(store)
    RecordReader.salvage(store, quick_path / "b")
    assert pairs(quick_path / "b") == want
    (store / "text.offset").unlink()
    report = RecordReader.salvage(store, quick_path / "c")
    assert pairs(quick_path / "c") == ([(n, None) for n, _ in want] if deletes else want)
    assert report.missing == (998 if deletes else 0)


def test_a_reader_sees_a_value_and_its_frame_of_one_commit(quick_path: Path) -> None:
    build(quick_path / "a", range(50))
    reader = RecordReader.open(quick_path / "a")
    with RecordWriter(quick_path / "a", mode="a") as writer:
        writer.update(np.arange(50), batch(range(100, 150)))
        assert contents(reader) == [stored(values(n)) for n in range(50)]
        writer.commit()
        assert contents(reader) == [stored(values(n)) for n in range(100, 150)]

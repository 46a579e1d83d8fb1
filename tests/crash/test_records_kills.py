"""Updates, deletes and rebalances among kills, power cuts and errors: exactly the last commit.

What holds for appends is in the exam of all writers (test_records_writer).
"""

import os
import random
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from stepwell import Field, FormatError, RecordReader, RecordWriter
from stepwell.files.atomic import write_all
from stepwell.stores.records import tables, writer as writer_module
from stepwell.stores.records.layout import ENTRY
from tests.crash.disk import recorded
from tests.crash.faults import Kind, fault, on_a_small_disk
from tests.crash.kills import KILLS, Victims

FIELDS: Any = {
    "n": ("<u4", (2,)),
    "text": Field(bytes, compress="zstd"),
    "label": Field("<i8", compress="lz4"),
}
Record = tuple[int, bytes, int]


def record(stamp: int, i: int) -> Record:
    """Something that differs for every commit and record."""
    return stamp * 1000 + i, b"text of %d " % stamp * (i % 4), -stamp


def batch(records: list[Record]) -> dict[str, Any]:
    return {
        "n": np.array([[n, n + 1] for n, _, _ in records], "<u4").reshape(-1, 2),
        "text": [text for _, text, _ in records],
        "label": np.array([label for _, _, label in records], np.int64),
    }


class Model:
    """What a store holds after so many commits."""

    def __init__(self) -> None:
        self.stamp = 0
        self.records: list[Record] = []

    def advance(self, stamp: int) -> list[Record]:
        while self.stamp < stamp:
            self.stamp += 1
            change(self.stamp, self.records, None)
        return self.records


def change(stamp: int, records: list[Record], store: RecordWriter | None) -> None:
    """Commit number `stamp`: done to the list, and to the store if it is given."""
    chance = random.Random(stamp)
    if stamp % 3 == 2 and len(records) > 4:
        rows = chance.sample(range(len(records)), 3)
        new = [record(stamp, row) for row in rows]
        if store is not None:
            store.update(rows, batch(new))
        for row, value in zip(rows, new, strict=True):
            records[row] = value
    if stamp % 5 == 3 and len(records) > 4:
        rows = chance.sample(range(len(records)), 4)
        if store is not None:
            store.delete(rows)
        for row in sorted(rows, reverse=True):
            records[row] = records[-1]
            records.pop()
    new = [record(stamp, i) for i in range(chance.randrange(5))]
    if store is not None:
        store.append(batch(new))
        if stamp % 5 == 4:
            store.rebalance(chunk_records=chance.choice([16, 64]))
        else:
            store.commit()
    records += new


def contents(store: RecordReader | RecordWriter) -> list[Record]:
    found = store[:]
    pairs = found["n"].tolist()
    assert all(second == first + 1 for first, second in pairs)
    texts = found["text"].to_list()
    return [
        (first, text, label)
        for (first, _), text, label in zip(pairs, texts, found["label"].tolist(), strict=True)
    ]


# Promise 1: kills.


def work(folder: Path, first: int) -> Iterator[int]:
    """One commit after the other, some of them a rebalance; the stamp is their number."""
    path = folder / "store"
    model = Model()
    model.advance(first - 1)
    options: Any = {"chunk_records": 64, "grow_bytes": 1 << 14, "threads": 2}
    for begin in count(first, 7):
        with RecordWriter(path, FIELDS, mode="a", **options) as store:
            for stamp in range(begin, begin + 7):
                model.stamp = stamp
                change(stamp, model.records, store)
                yield stamp


def test_kills(quick_path: Path) -> None:
    path = quick_path / "store"
    chance = random.Random()
    model = Model()
    last = behind = inside = 0
    longest_s = 0.03
    with Victims("tests.crash.test_records_kills:work", quick_path) as victims:
        for number in range(KILLS):
            acknowledged = victims.kill(last + 1, chance.uniform(0, longest_s))
            longest_s = min(longest_s * 1.2, 2) if acknowledged == last else longest_s * 0.9
            if not (path / "meta.json").exists():
                assert acknowledged == 0
                continue
            behind += (path / "journal.zr").stat().st_size > 0
            inside += len(list(path.glob("n*.offset"))) > 1
            before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
            with RecordReader.open(path) as store:
                found = contents(store)
            if found == model.advance(acknowledged):
                last = acknowledged
            else:
                assert found == model.advance(acknowledged + 1)
                last = acknowledged + 1
            if number % 10 == 0:
                assert RecordReader.open(path).verify().ok
            # Reading settles nothing: that is for the next writer.
            assert before == {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    # Otherwise no kill came at an interesting moment: after a commit, in a rebalance.
    assert behind > 0
    assert inside > 0
    with RecordWriter(path, mode="a") as store:
        assert contents(store) == model.records
    assert {file.stem.split(".")[0] for file in path.glob("*.offset")} == set(FIELDS)
    assert len(list(path.glob("*.offset"))) == len(FIELDS)
    assert not list(path.rglob(".*"))


# Promise 2: power cuts.


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files grow by little, and every write is seen."""

    def put(self: tables.TableFile, rows: NDArray[Any], entries: NDArray[Any]) -> None:
        for row, entry in zip(rows.tolist(), entries, strict=True):
            data = np.frombuffer(entry.tobytes(), np.uint8)
            write_all(self._file, data, row * ENTRY.itemsize, self.path)

    monkeypatch.setattr(tables, "_GROW_ENTRIES", 256)
    monkeypatch.setattr(tables.TableFile, "_put", put)
    monkeypatch.setattr(writer_module, "_JOURNAL_STEP", 1024)
    monkeypatch.setattr(writer_module, "_JOURNAL_BYTES", 1500)


STAMPS = [5, 6, 8, 19, 12]
"""Commits with an update, a delete and a rebalance among them."""


@pytest.mark.usefixtures("small_steps")
def test_power_cuts(quick_path: Path) -> None:
    path = quick_path / "store"
    RecordWriter(path, FIELDS, chunk_records=5, grow_bytes=512).close()
    records: list[Record] = []
    states: list[list[Record]] = [[]]
    with recorded(path) as disk, RecordWriter(path, mode="a", grow_bytes=512) as store:
        for number, stamp in enumerate(STAMPS, 1):
            change(stamp, records, store)
            disk.acknowledge(number)
            states.append(list(records))
        store.close()
    checked = 0
    for crash in disk.crashes(tries=2):
        checked += 1
        path = quick_path / str(checked)
        crash.write(path)
        (path / "chunk").mkdir(exist_ok=True)
        os.truncate(path / "writer.lock", 0)  # the machine has been started again since
        done = crash.acknowledged or 0
        with RecordReader.open(path) as reader:
            found = contents(reader)
            assert found in states[done : done + 2], (done, crash.after)
            assert checked % 4 or reader.verify().ok
        if checked % 8 == 0:
            with RecordWriter(path, mode="a", grow_bytes=512) as store:
                change(100, found, store)
            assert contents(RecordReader.open(path)) == found
        shutil.rmtree(path)
    assert checked > 200


# Promise 8: errors.


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_call_fails_once(quick_path: Path, kind: Kind) -> None:
    old = quick_path / "old"
    records: list[Record] = []
    with RecordWriter(old, FIELDS, chunk_records=5) as store:
        change(5, records, store)
    states, stamps = [list(records)], (6, 8, 9)
    for stamp in stamps:
        change(stamp, records, None)
        states.append(list(records))
    failed = set()
    for number in count():
        path = quick_path / str(number)
        shutil.copytree(old, path)
        done, error = 0, None
        try:
            with fault(kind, number) as injected, RecordWriter(path, mode="a") as store:
                for done, stamp in enumerate(stamps):
                    change(stamp, list(states[done]), store)
                done = len(stamps)
        except (OSError, FormatError, ValueError) as caught:
            error = caught
        if injected.name is None:
            assert error is None
            break
        failed.add(injected.name)
        found = contents(RecordReader.open(path))
        # The last one that returned, or the one that failed, which may be there.
        assert found in (states[done:] if error is None else states[done : done + 2])
        assert RecordReader.open(path).verify().ok
        with RecordWriter(path, mode="a") as store:
            change(50, found, store)
        assert contents(RecordReader.open(path)) == found
        shutil.rmtree(path)
    assert "pwrite" in failed


def test_an_append_that_failed_has_added_nothing(quick_path: Path) -> None:
    with RecordWriter(quick_path / "store", FIELDS) as store:
        records = [record(1, i) for i in range(5)]
        store.append(batch(records))
        with pytest.raises(OSError, match="No space left"), fault("full", 0):
            store.append(batch([record(2, i) for i in range(5)]))
        assert contents(store) == records
        store.append(batch([record(3, 0)]))
    assert contents(RecordReader.open(quick_path / "store")) == [*records, record(3, 0)]
    assert RecordReader.open(quick_path / "store").verify().ok


FULL = """
import errno, sys
from pathlib import Path
import numpy as np
from stepwell import RecordReader, RecordWriter
path = Path(sys.argv[1]) / "store"
acknowledged = 0
store = RecordWriter(path, {"x": ("u1", (1000,)), "n": "<i8"}, chunk_records=20)
try:
    for i in range(10_000):
        store.append({"x": np.full((3, 1000), i % 256, "u1"), "n": [i] * 3})
        store.commit()
        acknowledged = i + 1
except OSError as error:
    assert error.errno == errno.ENOSPC, repr(error)
else:
    raise SystemExit("there was room")
try:
    store.close()
except OSError as error:
    assert error.errno == errno.ENOSPC, repr(error)
found = RecordReader.open(path)
assert len(found) in (3 * acknowledged, 3 * acknowledged + 3), (len(found), acknowledged)
assert found["n"][:].tolist() == [i for i in range(len(found) // 3) for _ in range(3)]
assert found.verify().ok
print("full")
"""


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    assert on_a_small_disk(tmp_path, "4m", FULL) == "full\n"

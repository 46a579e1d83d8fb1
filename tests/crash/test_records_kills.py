"""The exam of writers, whose commits here update, delete and rebalance, too; and full disks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stepwell import BusyError, Field, RecordReader, RecordWriter
from stepwell.stores.records import tables, writer as writer_module
from tests.crash.faults import fault, on_a_small_disk
from tests.writer_contract import WriterContract, WriterKit


def batch(*stamps: int) -> dict[str, Any]:
    return {"n": [*stamps], "text": [f"of {stamp} " * stamp for stamp in stamps], "label": stamps}


class Kit(WriterKit):
    store = RecordReader
    writer = RecordWriter

    def open(self, path: Path, mode: Any = "x") -> RecordWriter:
        made: Any = {
            "n": "<i8",
            "text": Field(str, compress="zstd"),
            "label": Field("<u4", compress="lz4"),
        }
        return RecordWriter(path, made, mode=mode, chunk_records=5, grow_bytes=512, threads=2)

    def append(self, writer: RecordWriter, stamp: int) -> None:
        """Two records behind the others. The first of all is deleted, so that another one takes
        its place, which is updated to be what it was."""
        if stamp % 2 == 0 and not writer._staging.touched:  # it would commit them
            writer.rebalance()
        if len(writer):
            first = int(writer["n"][0])
            writer.append(batch(stamp, stamp, 0))
            writer.delete([0])
            writer.update([0], batch(first))
        else:
            writer.append(batch(stamp, stamp))

    def stamps(self, store: RecordReader) -> list[int]:
        while True:
            try:
                found = store[:]
                break
            except BusyError:  # rebalanced meanwhile
                store.refresh()
        numbers: list[int] = found["n"].tolist()
        assert numbers[::2] == numbers[1::2]
        assert found["text"].to_list() == batch(*numbers)["text"]
        assert found["label"].tolist() == numbers
        return numbers[::2]


KIT = Kit()


class TestWriter(WriterContract):
    kit = KIT

    @pytest.fixture(autouse=True)
    def small_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Files grow by little, and every write is seen."""

        def put(self: tables.EntryFile, rows: NDArray[Any], entries: NDArray[Any]) -> None:
            for row, entry in zip(rows.tolist(), entries, strict=True):
                data = np.frombuffer(entry.tobytes(), np.uint8)
                self.write(row * len(data), data)

        monkeypatch.setattr(tables, "_GROW_ENTRIES", 256)
        monkeypatch.setattr(tables.EntryFile, "put", put)
        monkeypatch.setattr(writer_module, "_JOURNAL_STEP", 1024)
        monkeypatch.setattr(writer_module, "_JOURNAL_BYTES", 1500)


def test_an_append_that_failed_has_added_nothing(quick_path: Path) -> None:
    with KIT.open(quick_path / "store") as store:
        KIT.append(store, 1)
        with pytest.raises(OSError, match="No space left"), fault("full", 0):
            store.append(batch(2, 2))
        assert store["n"][:].tolist() == [1, 1]
        KIT.append(store, 3)
    assert KIT.read(quick_path / "store") == [1, 3]


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

"""A record store under any sequence of calls, against a Python list."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from numpy.typing import NDArray

from stepwell import BusyError, RecordReader, RecordWriter
from tests import scaled
from tests.contract import assert_batch
from tests.records import CODECS, Values, batch, columns, copy, fields, stored, values
from tests.reference.records import Compress, read_store

FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None
NAMES = ["n", "image", "tokens", "text"]
SOME = st.lists(st.sampled_from(NAMES), min_size=1, unique=True)
ROWS = st.lists(st.integers(0, 10**6), max_size=6)


def present(store: RecordReader | RecordWriter, records: Sequence[Values]) -> bool:
    found = store.present(np.arange(len(records)))
    return all(
        found[name].tolist() == [record[name] is not None for record in records] for name in NAMES
    )


def same(one: Sequence[Values], other: Sequence[Values]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


class RecordMachine(RuleBasedStateMachine):
    """The model is a list of records, and what a reader may find behind its end."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="stepwell-test-", dir=FOLDER))
        self.path = self.folder / "0"
        self.committed: list[Values] = []
        self.records: list[Values] = []
        self.made = 0
        self.writing = False
        self.reader: RecordReader | None = None
        self.seen = 0
        self.older: list[list[Values]] = []
        """The records of every commit of this generation, as long as a reader may see them."""
        self.kept: list[Values] | None = None
        """What the reader sees, when the store was rebalanced since it looked."""
        self.stale = False
        """The reader may need a chunk that it has not mapped and that is gone."""

    @initialize(
        compress=st.sampled_from(list(CODECS)),
        chunk_records=st.sampled_from([1, 3, 8192]),
        grow_bytes=st.sampled_from([4096, 1 << 30]),
    )
    def begin(self, compress: Compress, chunk_records: int, grow_bytes: int) -> None:
        made = fields(compress, NAMES)
        self.writer = RecordWriter(
            self.path, made, chunk_records=chunk_records, grow_bytes=grow_bytes
        )
        self.writer.commit()  # from here on it is a store
        self.writing = True

    def teardown(self) -> None:
        self.writer.close()
        if self.reader is not None:
            self.reader.close()
        shutil.rmtree(self.folder)

    # The writer.

    @precondition(lambda self: not self.writing)
    @rule()
    def open_writer(self) -> None:
        self.writer, self.writing = RecordWriter(self.path, mode="a"), True
        self.records = list(self.committed)

    def new(self, count: int, names: Sequence[str]) -> tuple[list[Values], dict[str, Any]]:
        """Values that no record has had before, and the batch of them."""
        numbers = range(self.made, self.made + count)
        self.made += count
        made: list[Values] = [{n: values(number)[n] for n in names} for number in numbers]
        return made, batch(numbers, names)

    def rows(self, given: Sequence[int]) -> NDArray[np.int64]:
        """Rows of the store, each once, in any order."""
        chosen = [row % len(self.records) for row in given] if self.records else []
        return np.array(list(dict.fromkeys(chosen)), np.int64)

    @precondition(lambda self: self.writing)
    @rule(count=st.integers(0, 7), names=st.just(NAMES) | SOME)
    def append(self, count: int, names: list[str]) -> None:
        made, given = self.new(count, names)
        length = len(self.records)
        assert self.writer.append(given) == range(length, length + count)
        self.records += [{**dict.fromkeys(NAMES), **record} for record in made]

    @precondition(lambda self: self.writing)
    @rule(rows=ROWS, names=SOME)
    def update(self, rows: list[int], names: list[str]) -> None:
        chosen = self.rows(rows)
        made, given = self.new(len(chosen), names)
        self.writer.update(chosen, given)
        for row, record in zip(chosen, made, strict=True):
            self.records[row] = {**self.records[row], **record}

    @precondition(lambda self: self.writing)
    @rule(rows=ROWS)
    def delete(self, rows: list[int]) -> None:
        chosen = self.rows(rows)
        self.writer.delete(chosen)
        for row in sorted(chosen, reverse=True):
            last = self.records.pop()
            if row < len(self.records):
                self.records[row] = last

    @precondition(lambda self: self.writing)
    @rule()
    def commit(self) -> None:
        self.writer.commit()
        self.done()

    def done(self) -> None:
        """What was not committed is now."""
        self.older.append(self.committed)
        self.committed = list(self.records)

    @precondition(lambda self: self.writing)
    @rule()
    def rollback(self) -> None:
        self.writer.rollback()
        self.records = list(self.committed)

    @precondition(lambda self: self.writing)
    @rule()
    def close(self) -> None:
        self.writer.close()
        self.writing = False
        self.done()

    @precondition(lambda self: self.writing)
    @rule()
    def rebalance(self) -> None:
        self.writer.commit()
        self.done()
        if self.reader is not None and self.kept is None:
            self.kept = self.visible()
            self.stale = any(not same(records, self.committed) for records in self.older)
        before = self.utilization()
        self.writer.rebalance()
        self.older = []
        assert 0 <= before <= self.utilization() <= 1

    def utilization(self) -> float:
        with RecordReader.open(self.path) as store:
            return float(store.describe().facts["utilization"])

    @precondition(lambda self: self.writing)
    @rule()
    def crash(self) -> None:
        """Go on with what is on the disk at this moment."""
        there = self.path.with_name(str(int(self.path.name) + 1))
        copy(self.path, there)
        if self.reader is not None:
            self.reader.close()
        self.reader, self.kept, self.older = None, None, []
        self.writer.rollback()
        self.writer.close()
        shutil.rmtree(self.path)
        self.writing, self.path = False, there

    # Readers.

    @rule()
    def open_reader(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.reader = RecordReader.open(self.path)
        self.looked()

    @precondition(lambda self: self.reader is not None)
    @rule()
    def refresh(self) -> None:
        assert self.reader is not None
        self.reader.refresh()
        self.looked()

    def looked(self) -> None:
        self.seen, self.kept, self.older = len(self.committed), None, []
        self.stale = False

    def visible(self) -> list[Values]:
        """What a reader sees that has not asked for news: entries are those of the last commit
        that had them."""
        found = []
        for row in range(self.seen):
            commits = [self.committed, *reversed(self.older)]
            found.append(next(records[row] for records in commits if row < len(records)))
        return found

    # What holds at any time.

    @invariant()
    def the_writer_sees_what_it_did(self) -> None:
        if self.writing:
            assert len(self.writer) == len(self.records)
            rows = np.arange(len(self.records))
            assert_batch(self.writer.take(rows), columns(self.records, NAMES))
            assert present(self.writer, self.records)

    @invariant()
    def readers_see_commits(self) -> None:
        if self.reader is not None:
            assert len(self.reader) == self.seen
            want = self.visible() if self.kept is None else self.kept
            try:
                found = self.reader.take(np.arange(self.seen))
            except BusyError:
                assert self.kept is not None
                assert self.stale
                return
            assert_batch(found, columns(want, NAMES))
            assert present(self.reader, want)

    @invariant()
    def the_files_are_those_of_the_page(self) -> None:
        if (self.path / "meta.json").exists():
            found = read_store(self.path)
            assert found.records == [stored(record, NAMES) for record in self.committed]
            if not self.writing:
                with RecordReader.open(self.path) as store:
                    assert store.verify().ok


TestRecordMachine = RecordMachine.TestCase
TestRecordMachine.settings = settings(max_examples=scaled(60, smallest=8), stateful_step_count=30)

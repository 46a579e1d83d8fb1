"""A step dataset under any sequence of calls, against plain arrays."""

import gc
import shutil
import tempfile
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

from stepwell import StepReader, StepWriter
from tests import scaled
from tests.contract import assert_batch, windows
from tests.reference.steps import read_steps
from tests.steps import COLUMNS, STEP, columns, fields, ranges, rows_of, rows_of_all

FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None


class StepMachine(RuleBasedStateMachine):
    """The model is a list with the length of each run: rows follow from run and length."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="stepwell-test-", dir=FOLDER))
        self.path = self.folder / "steps"
        self.committed: list[int] = []
        self.appended: list[int] = []
        self.writer: StepWriter | None = None
        self.reader: StepReader | None = None
        self.seen = 0
        self.parts: list[tuple[StepReader, list[int]]] = []

    @initialize(shard_rows=st.sampled_from([None, 1, 4, 50]))
    def begin(self, shard_rows: int | None) -> None:
        StepWriter(self.path, STEP, COLUMNS, shard_rows=shard_rows).close()

    def teardown(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = None
        self.parts = []
        shutil.rmtree(self.folder)

    # The writer.

    @precondition(lambda self: self.writer is None)
    @rule()
    def open_writer(self) -> None:
        self.writer = StepWriter(self.path, mode="a")
        self.appended = []
        assert len(self.writer) == sum(self.committed)

    @precondition(lambda self: self.writer is not None)
    @rule(length=st.integers(0, 12))
    def append(self, length: int) -> None:
        assert self.writer is not None
        run = len(self.committed) + len(self.appended)
        assert self.writer.append(rows_of(run, length), **columns(run)) == run
        self.appended.append(length)
        assert len(self.writer) == sum(self.committed) + sum(self.appended)

    @precondition(lambda self: self.writer is not None)
    @rule()
    def flush(self) -> None:
        """Rows reach the files before they are committed, as they do when there are many."""
        assert self.writer is not None
        self.writer._flush()

    @precondition(lambda self: self.writer is not None)
    @rule()
    def commit(self) -> None:
        assert self.writer is not None
        self.writer.commit()
        self.committed += self.appended
        self.appended = []

    @precondition(lambda self: self.writer is not None)
    @rule()
    def rollback(self) -> None:
        assert self.writer is not None
        self.writer.rollback()
        self.appended = []

    @precondition(lambda self: self.writer is not None)
    @rule(how=st.sampled_from(["close", "fail", "forget"]))
    def end(self, how: str) -> None:
        assert self.writer is not None
        if how == "close":
            self.writer.close()
            self.committed += self.appended
        elif how == "fail":
            self.writer.__exit__(ValueError)
        self.writer = None
        if how == "forget":
            gc.collect()

    # Readers.

    @rule(memory=st.sampled_from(["ram", "map", "shared"]))
    def open_reader(self, memory: Any) -> None:
        self.reader = StepReader.open(self.path, memory=memory)
        self.seen = len(self.committed)

    @precondition(lambda self: self.reader is not None)
    @rule()
    def refresh(self) -> None:
        assert self.reader is not None
        assert self.reader.refresh() is (len(self.committed) > self.seen)
        self.seen = len(self.committed)

    @precondition(lambda self: self.reader is not None)
    @rule(least=st.integers(0, 100), parity=st.integers(0, 1))
    def where(self, least: int, parity: int) -> None:
        assert self.reader is not None
        part = self.reader.where("max_score >= ? AND id % 2 = ?", least, parity)
        ids = [run for run in range(self.seen) if run * 10 >= least and run % 2 == parity]
        self.parts = [*self.parts[-3:], (part, ids)]

    @precondition(lambda self: self.reader is not None)
    @rule(fraction=st.floats(0, 1), seed=st.integers(0, 9))
    def split(self, fraction: float, seed: int) -> None:
        assert self.reader is not None
        both = [(part, part.runs["id"].tolist()) for part in self.reader.split(fraction, seed)]
        assert sorted(both[0][1] + both[1][1]) == list(range(self.seen))
        self.parts = [*self.parts[-3:], *both]

    # What holds at any time.

    @invariant()
    def readers_see_whole_commits(self) -> None:
        if self.reader is not None:
            lengths = self.committed[: self.seen]
            want = fields(rows_of_all(lengths))
            assert_batch(self.reader[:], want)
            assert_batch(self.reader.windows(2)[:], windows(want, ranges(lengths), 2, 1))
            assert self.reader.runs["num_steps"].tolist() == lengths
        for part, ids in self.parts:
            rows = [rows_of(run, self.committed[run]) for run in ids]
            assert_batch(part[:], fields(np.concatenate([np.empty(0, STEP), *rows])))
            assert part.runs["id"].tolist() == ids

    @invariant()
    def the_files_are_those_of_the_page(self) -> None:
        if (self.path / "metadata.db").exists():
            steps = read_steps(self.path, verify=True)
            assert steps.rows.tobytes() == rows_of_all(self.committed).tobytes()
            files = sorted(self.path.rglob("*.npy"))
            loaded = np.concatenate([np.load(file) for file in files])
            if self.writer is None or not self.appended:
                assert len(loaded) == len(steps.rows)


TestStepMachine = StepMachine.TestCase
TestStepMachine.settings = settings(max_examples=scaled(25, smallest=8), stateful_step_count=25)

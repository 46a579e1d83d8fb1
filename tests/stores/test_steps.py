"""Step datasets sit the exam of every source, in every form that they have."""

import sqlite3
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import stepwell as sw
from stepwell import StepReader
from stepwell.source import Source
from tests.contract import Expected, SourceContract, assert_batch
from tests.steps import LENGTHS, build, fields, ranges, rows_of, rows_of_all


class TestRam(SourceContract):
    options: ClassVar[dict[str, Any]] = {}
    built: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def expected(self) -> Expected:
        return fields(rows_of_all())

    @pytest.fixture(scope="class")
    @classmethod
    def path(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("steps") / "dataset"
        build(path, LENGTHS, **cls.built)
        return path

    @pytest.fixture
    def source(self, path: Path) -> Source:
        return StepReader.open(path, **self.options)

    def runs(self, expected: Expected) -> list[range]:
        return ranges()


class TestMap(TestRam):
    options: ClassVar[dict[str, Any]] = {"memory": "map", "resident_bytes": 1}


class TestShared(TestRam):
    options: ClassVar[dict[str, Any]] = {"memory": "shared"}


class TestShards(TestRam):
    options: ClassVar[dict[str, Any]] = {"memory": "map"}
    built: ClassVar[dict[str, Any]] = {"shard_rows": 9}


class TestWhere(TestShards):
    chosen = (0, 2, 3, 5)

    @pytest.fixture
    def expected(self) -> Expected:
        return fields(np.concatenate([rows_of(run, LENGTHS[run]) for run in self.chosen]))

    @pytest.fixture
    def source(self, path: Path) -> Source:
        return StepReader.open(path, **self.options).where("id NOT IN (1, ?)", 4)

    def runs(self, expected: Expected) -> list[range]:
        return ranges([LENGTHS[run] for run in self.chosen])


# Where it is known.


@pytest.mark.parametrize("name", ["with space", "100%", "a?b#c", "ä", "a'b\"c", "~"])
def test_any_name(tmp_path: Path, name: str) -> None:
    rows = build(tmp_path / name)
    for memory in ("ram", "map", "shared"):
        assert_batch(sw.open(tmp_path / name, memory=memory)[:], fields(rows))


def test_others_read_it(tmp_path: Path) -> None:
    """It is a plain array and a plain database."""
    rows = build(tmp_path / "a")
    assert np.load(tmp_path / "a" / "steps.npy").tobytes() == rows.tobytes()
    mapped = np.load(tmp_path / "a" / "steps.npy", mmap_mode="r")
    assert mapped.ctypes.data % 64 == 0
    with sqlite3.connect(tmp_path / "a" / "metadata.db") as database:
        found = database.execute("SELECT id, first_step_idx, num_steps FROM runs").fetchall()
    database.close()
    assert found == [(i, places.start, len(places)) for i, places in enumerate(ranges())]

"""Step datasets sit the exam of every source, in every form that they have."""

import sqlite3
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import stepwell as sw
from stepwell import SchemaError, StepReader
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

    def test_packed(self, source: StepReader, expected: Expected) -> None:
        rows = np.array([3, 0, 3, len(source) - 1])
        taken = source.take(rows, packed=True)
        assert (type(taken), taken.dtype) == (np.ndarray, source.dtype)
        assert_batch(fields(taken), {name: values[rows] for name, values in expected.items()})
        out = np.empty_like(taken)
        assert source.take(rows, out, packed=True) is out
        assert out.tobytes() == taken.tobytes()
        assert source.take(np.zeros(len(source), bool), packed=True).shape == (0,)
        wrong: Any
        for wrong in (out[1:], fields(out)):
            with pytest.raises((SchemaError, TypeError), match="out: expected"):
                source.take(rows, wrong, packed=True)
        with pytest.raises(IndexError, match=f"row {len(source)} is outside"):
            source.take([0, len(source)], packed=True)
        source.close()
        with pytest.raises(ValueError, match="closed"):
            source.take(rows, packed=True)


class TestMap(TestRam):
    options: ClassVar[dict[str, Any]] = {"memory": "map", "resident_bytes": 1}


class TestShared(TestRam):
    options: ClassVar[dict[str, Any]] = {"memory": "shared"}


class TestShards(TestRam):
    options: ClassVar[dict[str, Any]] = {"memory": "map", "resident_shards": 2}
    built: ClassVar[dict[str, Any]] = {"shard_rows": 9}


class TestWhere(TestShards):
    options: ClassVar[dict[str, Any]] = {"memory": "map"}
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

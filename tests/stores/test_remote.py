"""Stores below a URL: the same rows as of the same files on this machine."""

from pathlib import Path

import pytest

from stepwell import StepReader
from stepwell.source import Source
from tests import children
from tests.contract import Expected, SourceContract, assert_batch, pick
from tests.steps import LENGTHS, build, fields, ranges, rows_of_all


class TestSteps(SourceContract):
    """By way of obstore's own files, which other processes can read, too."""

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("bucket") / "steps"
        build(folder, LENGTHS, shard_rows=9)
        return folder

    @pytest.fixture
    def expected(self) -> Expected:
        return fields(rows_of_all())

    @pytest.fixture
    def source(self, folder: Path) -> Source:
        return StepReader.open(f"file://{folder}")

    def runs(self, expected: Expected) -> list[range]:
        return ranges()

    def test_after_fork(self, source: Source, expected: Expected) -> None:
        """The threads of obstore do not follow, which is said, in place of waiting for them."""
        assert_batch(source.take([3, 1]), pick(expected, [3, 1]))
        for ask in (lambda: source.take([3, 1]), lambda: StepReader.open("file:///absent")):
            with pytest.raises(AssertionError, match="RuntimeError: buckets cannot be read after"):
                children.in_fork(ask)
        assert_batch(source.take([3, 1]), pick(expected, [3, 1]))

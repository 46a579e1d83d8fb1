"""Step datasets whose rows are spread over files: the exam of every writer again."""

from pathlib import Path

import pytest

from tests import children
from tests.stores.test_steps_writer import Kit
from tests.writer_contract import WriterContract


class Shards(Kit):
    shard_rows = 4


KIT = Shards()


class TestWriter(WriterContract):
    kit = KIT


@pytest.mark.parametrize("memory", ["ram", "map", "shared"])
def test_more_files_than_descriptors(quick_path: Path, memory: str) -> None:
    script = """
import resource, sys
import numpy as np, stepwell as sw
with sw.StepWriter(sys.argv[1], {"x": "<i4"}, shard_rows=1) as writer:
    writer.append({"x": np.arange(200)})
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
with sw.StepReader.open(sys.argv[1], memory=sys.argv[2]) as dataset:
    assert dataset[:]["x"].tolist() == list(range(200))
    assert dataset.verify().ok
    with sw.StepWriter(sys.argv[1], mode="a") as writer:
        writer.append({"x": np.arange(150)})
    assert dataset.refresh() and len(dataset) == 350
    assert dataset[:]["x"][200:].tolist() == list(range(150))
"""
    children.answer(script, quick_path / "a", memory)

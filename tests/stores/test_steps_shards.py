"""Step datasets whose rows are spread over files: the exam of every writer again."""

import re
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from stepwell.stores import RunColumn
from tests import children
from tests.steps import COLUMNS, build, columns, rows_of
from tests.stores.test_steps_writer import Kit
from tests.writer_contract import WriterContract


class Shards(Kit):
    shard_rows = 4


KIT = Shards()


class TestWriter(WriterContract):
    kit = KIT


def resident(root: Path) -> set[str]:
    """The shards of which this process has pages in memory."""
    found, name = set(), ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match("[0-9a-f]+-", line):
            name = line.rpartition("/")[2] if f"{root}/shards/" in line else ""
        elif name and line.startswith("Rss:") and line.split()[1] != "0":
            found.add(name)
    return found


def test_so_many_shards_are_resident(tmp_path: Path) -> None:
    with sw.StepWriter(tmp_path / "a", {"x": "<i8"}, shard_rows=10_000) as writer:
        writer.append({"x": np.arange(75_000)})
    with sw.StepReader.open(tmp_path / "a", memory="map", resident_shards=2) as steps:
        rows = np.random.default_rng(0).permutation(75_000)
        assert steps.take(rows)["x"].tolist() == rows.tolist()
        assert len(resident(tmp_path / "a")) == 2
        part = steps.where("1")  # which shares them
        for begin in (30_000, 45_000):
            assert part.take(np.arange(begin, begin + 9_000), packed=True)["x"][0] == begin
        assert resident(tmp_path / "a") == {"steps_00004.npy", "steps_00005.npy"}
        steps.take([39_999])
        assert "steps_00003.npy" in resident(tmp_path / "a")
        assert len(resident(tmp_path / "a")) == 2
        with sw.StepWriter(tmp_path / "a", mode="a") as writer:
            writer.append({"x": np.arange(9_000)})
        assert steps.refresh()
        assert steps[74_990:]["x"].tolist() == [*range(74_990, 75_000), *range(9_000)]
        assert len(resident(tmp_path / "a")) <= 2


def test_resident_shards_of_what(quick_path: Path) -> None:
    build(quick_path / "a")
    for options, message in (
        ({"resident_shards": 2}, "resident_shards: expected memory='map', got 'ram'"),
        ({"memory": "map", "resident_shards": 0}, "expected at least 1, got 0"),
        ({"memory": "map", "resident_shards": 2}, "expected a dataset of shards, got one file"),
    ):
        with pytest.raises(ValueError, match=message):
            sw.StepReader.open(quick_path / "a", **options)
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        sw.StepReader.open(quick_path / "a", memory="map", resident_shards=1.5)


def test_a_dataset_that_is_there_becomes_shards(tmp_path: Path) -> None:
    rows = build(tmp_path / "a")
    with sw.StepWriter(tmp_path / "a", mode="a") as writer:
        writer.add_column("seed", RunColumn(int, optional=True), range(6))
    sw.convert(tmp_path / "a", tmp_path / "b", to="steps", part_bytes=22 * 16 + 5)
    with sw.StepReader.open(tmp_path / "b", memory="map", resident_shards=10**20) as made:
        assert made[:]["board"].tolist() == rows["board"].tolist()
        assert made.runs.rows == sw.StepReader.open(tmp_path / "a").runs.rows
        assert made.runs.types == {**COLUMNS, "seed": RunColumn(int, optional=True)}
        assert made.verify().ok
    shards = sorted((tmp_path / "b" / "shards").iterdir())
    assert [len(np.load(shard)) for shard in shards] == [16, 16, 16, 16, 6]
    with sw.StepWriter(tmp_path / "b", mode="a") as writer:  # it goes on as one
        writer.append(rows_of(6, 20), **columns(6))
    assert len(np.load(shards[4])) == 16


def test_a_field_that_is_filled_in_stays(quick_path: Path) -> None:
    with sw.StepWriter(quick_path / "a", {"x": "<i8", "run_id": "<u4"}) as writer:
        for run in range(3):
            writer.append({"x": [run, run]})
    sw.convert(quick_path / "a", quick_path / "b", to="steps", part_bytes=24)
    assert sw.StepReader.open(quick_path / "b")[:]["run_id"].tolist() == [0, 0, 1, 1, 2, 2]


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

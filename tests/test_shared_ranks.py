"""Ranks of one machine share one copy of a dataset: bytes are counted, as the kernel has them."""

import re
from pathlib import Path

import numpy as np
import pytest

import stepwell as sw
from tests.children import Child

ROWS, WIDTH, BATCH = 200_000, 320, 500

RANK = """
import sys
import numpy as np
import stepwell as sw
from tests.test_shared_ranks import BATCH, held
path, memory, rank, world = sys.argv[1:]
for _ in sw.Loader(np.arange(10), 2):  # threads and what else a loader needs once
    pass
before = held()
steps = sw.StepReader.open(path, memory=memory)
loader = sw.Loader(steps, BATCH, seed=7, rank=int(rank), world_size=int(world))
rows = np.concatenate([batch["row"].copy() for batch in loader])
print(len(rows), rows.sum(), flush=True)
sys.stdin.readline()
print(held() - before, flush=True)
sys.stdin.read()
"""


def held() -> int:
    """Anonymous and shared pages of this process, each divided by those who map it."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(1024 * int(kb) for kb in re.findall(r"(?m)^Pss_(?:Anon|Shmem): +(\d+) kB", text))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shared") / "steps"
    rows = np.zeros(ROWS, [("row", "<i8"), ("x", "u1", (WIDTH - 8,))])
    rows["row"] = np.arange(ROWS)
    with sw.StepWriter(path, rows.dtype) as writer:
        writer.append(rows)
    return path


def taken(dataset: Path, memory: str, world: int) -> int:
    """Bytes that ranks take together, when all of them have the dataset open and have read."""
    ranks = [Child("-c", RANK, dataset, memory, rank, world) for rank in range(world)]
    said = [list(map(int, rank.says().split())) for rank in ranks]
    assert np.sum(said, axis=0).tolist() == [ROWS, ROWS * (ROWS - 1) // 2]
    for rank in ranks:
        rank.go()
    counted = [int(rank.says()) for rank in ranks]  # and none has ended before
    for rank in ranks:
        rank.ends()
    return sum(counted)


def test_four_ranks_take_the_memory_of_one(dataset: Path) -> None:
    one = taken(dataset, "shared", 1)
    assert one >= ROWS * WIDTH
    assert taken(dataset, "shared", 4) <= 1.1 * one
    assert taken(dataset, "ram", 2) >= 2 * ROWS * WIDTH  # what is counted shows copies

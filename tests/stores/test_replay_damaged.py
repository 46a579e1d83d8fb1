"""Replay stores of which a part is not as it was: reported, and neither believed nor removed."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from stepwell.stores.replay.rows import RunFile
from tests import children
from tests.replays import places_of

RECORDED = """
import os, sys
from stepwell.replay import ReplayWriter
from tests.replays import record
writer = ReplayWriter(sys.argv[1], "run")
for number in range(60):
    record(writer, number, terminated=number % 10 == 9)
writer.commit()
if sys.argv[2] == "closed":
    writer.close()
os._exit(0)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stores of 60 steps, of which one was closed."""
    root = tmp_path_factory.mktemp("recorded")
    for state in ("interrupted", "closed"):
        children.answer(RECORDED, root / state, state)
    return root


@pytest.fixture(params=["interrupted", "closed"])
def store(recorded: Path, quick_path: Path, request: pytest.FixtureRequest) -> Path:
    shutil.copytree(recorded / request.param, quick_path / "store")
    return quick_path / "store"


# HDF5's own blocks.

FLIPS = """
import signal, sys
from pathlib import Path
from stepwell.errors import FormatError
from stepwell.replay import ReplayReader, ReplayWriter
from tests.replays import camera
root, path = Path(sys.argv[1]), Path(sys.argv[1]) / "replay" / "run.h5"
whole, silent, refused = path.read_bytes(), [], 0
for number in map(int, sys.argv[2].split(",")):
    data = bytearray(whole)
    data[number >> 3] ^= 1 << (number & 7)
    path.write_bytes(data)
    print(number, flush=True)
    signal.alarm(60)  # ends the process, wherever it hangs
    with ReplayReader.open(root) as reader:
        if reader.verify().ok:
            silent.append(number)
    try:
        ReplayWriter(root, "run", mode="a").close()
        with ReplayReader.open(root, next_observation=False) as reader:
            batch = reader.take(range(60))
    except FormatError as error:
        assert error.path == str(path), error
        refused += 1
    else:
        assert batch["reward"].tolist() == list(range(60))
        assert all((c == camera(i)).all() for i, c in enumerate(batch["observation/camera"]))
    signal.alarm(0)
print("silent", silent, "refused", refused > 0)
"""


def test_a_flipped_bit_in_the_blocks_of_hdf5(store: Path) -> None:
    """Half of them are in the way of the writer, which neither waits for ever nor copies others."""
    path = store / "replay" / "run.h5"
    file = RunFile(path)
    data = np.frombuffer(path.read_bytes(), np.uint8).copy()
    data[: file._directory.base] = 0
    for name, entry in file._directory.datasets.items():
        for offset, size in places_of(path, [name])[name][:: entry.chunk_rows]:
            data[offset : offset + size * entry.chunk_rows] = 0
    file.close()
    draw = random.Random(5)
    flips = [draw.choice(np.flatnonzero(data)) * 8 + draw.randrange(8) for _ in range(16)]
    done = children.python(FLIPS, store, ",".join(map(str, flips)))
    assert done.stdout.splitlines()[-1:] == ["silent [] refused True"], done

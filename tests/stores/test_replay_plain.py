"""The files of runs for programs that have h5py and nothing of ours."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from stepwell.replay import ReplayReader, ReplayWriter
from tests import children
from tests.replays import assert_tree, frame, stack

READ = """
import sys
import h5py
with h5py.File(sys.argv[1]) as file:
    assert "hdf5plugin" not in sys.modules
    for name in ("frames", "observations"):
        try:
            print(name, file[name][3].shape, int(file[name][3].sum()))
        except OSError:
            print(file.attrs["README"].decode())
"""


@pytest.mark.parametrize("codec", ["gzip", "lzf", "none", "zstd"])
def test_without_a_plugin(quick_path: Path, codec: str) -> None:
    """What HDF5 has built in is read at once; what it has not, the file explains."""
    with ReplayWriter(quick_path, "run", compress=codec) as writer:
        for number in range(5):
            writer.record_step(reward=0, observation=stack(4 * number), frame=frame(4 * number))
    said = children.answer(READ, quick_path / "replay" / "run.h5")
    if codec == "zstd":
        assert said.count("observations, frames. In Python, `import hdf5plugin`") == 2
    else:
        frames, observations = int(frame(12).sum()), int(stack(12).sum())
        assert said.splitlines() == [
            f"frames (20, 25, 3) {frames}",
            f"observations (24, 24, 4) {observations}",
        ]


@pytest.mark.parametrize("agents", [1, 2])
def test_episodes_as_the_readme_of_the_file_has_it(quick_path: Path, agents: int) -> None:
    with ReplayWriter(quick_path, "run") as writer:
        for number in range(30):
            agent = str(number % agents)
            last, seen = number % 10 > 9 - agents, np.array([number, 0.5])
            frame_ = frame(number) if number % 3 == 0 else None
            options: dict[str, Any] = {"terminated": last, "agent_id": agent, "frame": frame_}
            writer.record_step(reward=number, observation=seen, action=number, **options)
            if last:
                writer.end_episode(observation=-seen, agent_id=agent)
    with (
        h5py.File(quick_path / "replay" / "run.h5") as file,
        ReplayReader.open(quick_path) as reader,
    ):
        assert b"episodes/starts" in file.attrs["README"]
        starts, lengths = file["episodes/starts"][:], file["episodes/lengths"][:]
        assert len(starts) == 3 * agents
        for start, length in zip(starts, lengths, strict=True):
            number = file["steps"][start, 0]
            rows = file["steps"][start : start + length]
            if agents > 1:
                rows = file["steps"][:]
                rows = rows[rows[:, 0] == number]
            found = reader.episode(f"run-ep{number:04d}")
            assert_tree(file["observations"][rows[:, 3]], found.observations)
            drawn = rows[:, 2]
            assert_tree(file["frames"][drawn[drawn >= 0]], found.frames)
            assert_tree(file["actions"][rows[:, 4]], found.actions)

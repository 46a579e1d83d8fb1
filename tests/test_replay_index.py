"""index.json and episodes say the same as the database, whoever closes when."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from stepwell.replay import ReplayReader, ReplayWriter


def test_writers_that_close_at_once(quick_path: Path) -> None:
    for _ in range(4):
        writers = [ReplayWriter(quick_path, f"run{i}", mode="a") for i in range(8)]
        for writer in writers:
            writer.record_step(reward=1.0, observation=np.zeros(3))
        closing = [threading.Thread(target=writer.close) for writer in writers]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        index = json.loads((quick_path / "replay" / "index.json").read_text())
        assert {run["state"] for run in index.values()} == {"closed"}
        assert ReplayReader.open(quick_path).verify().ok


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_has_no_sum(tmp_path: Path, reward: float) -> None:
    with ReplayWriter(tmp_path, "a") as writer:
        writer.record_step(reward=1.0)
        with pytest.raises(ValueError, match="reward: expected a finite number"):
            writer.record_step(reward=reward)
        writer.record_step(reward=2.0)
    assert [e.total_reward for e in ReplayReader.open(tmp_path).episodes] == [3.0]

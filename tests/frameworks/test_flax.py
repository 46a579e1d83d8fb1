"""A Flax training, killed and begun again from an orbax checkpoint with the loader's state."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.test_examples import ALONE, EXAMPLES, killed, losses, printed

PROGRAM = EXAMPLES / "train_flax.py"
# 38 batches, the last one of 11 rows: padded, over 4 devices, and no multiple of the checkpoints.
SMALL = ["--rows", "1195", "--batch-size", "32", "--epochs", "2", "--every", "16"]


def test_a_network_killed_and_resumed_learns_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALONE, "XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    whole = printed(PROGRAM, tmp_path / "whole", *SMALL)
    seen = killed(PROGRAM, tmp_path / "killed", *SMALL, lines=3)  # in the second epoch
    seen += printed(PROGRAM, tmp_path / "killed", *SMALL)
    assert sum(line.startswith("goes on after step") for line in seen) == 1
    assert list(losses(whole)) == [16, 32, 48, 64, 76]
    assert losses(seen) == losses(whole)
    for lines in (whole, seen):
        assert lines[-2] == "every row exactly once in each of 2 epochs: True"
    ends = [re.sub(r"\d+ s;", "", lines[-1]) for lines in (whole, seen)]
    assert ends[0] == ends[1]
    end = re.fullmatch(r"76 steps on 4 devices,  accuracy (\S+)%", ends[0])
    assert end is not None
    assert float(end[1]) > 40  # guessed: 10

    with pytest.raises(subprocess.CalledProcessError) as failed:
        printed(PROGRAM, tmp_path / "whole", *SMALL, "--width", "17")
    assert failed.value.returncode == 2
    assert "whole: expected checkpoints of this training, got a " in failed.value.stderr

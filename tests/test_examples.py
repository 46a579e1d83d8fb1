"""The programs in examples/ do what they say."""

import random
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_training_killed_and_resumed_sees_every_row_once(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "train_resume.py"), str(tmp_path / "checkpoint.pt")]
    draw = random.Random(1)
    for _ in range(6):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for _ in range(draw.randint(1, 30)):
                assert child.stdout.readline().startswith("epoch")
            child.kill()
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    first, *_, last = done.stdout.splitlines()
    assert not first.startswith("epoch 0 row 256 ")  # it did not start over
    assert last == "every row exactly once in each of 3 epochs: True"

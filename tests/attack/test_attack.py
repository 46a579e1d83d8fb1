"""3,000 cases of random damage; `make attack` has 100,000."""

import subprocess
import sys

import pytest

from tests import ROOT, scaled

CASES = scaled(750)


def attack(*given: str) -> None:
    """In an interpreter of its own: obstore cannot follow the forks of one that has used it."""
    command = [sys.executable, "-m", "tests.attack", "--jobs", "1", *given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_what_failed_once() -> None:
    attack("--kept", "--cases", "0")


@pytest.mark.parametrize("chunk", range(4))
def test_right_data_or_an_error(chunk: int) -> None:
    attack("--cases", str(CASES), "--first", str(chunk * CASES))

"""Launches the programs of this folder, each once for all tests that ask about it."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import ROOT
from tests.frameworks.notes import Seen
from tests.frameworks.table import TABLE

Launch = Callable[..., Seen]

QUIET = {
    "OMP_NUM_THREADS": "1",  # there are two cores, and two ranks
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": str(ROOT),
}
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_", "OMPI_", "PMI_")


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Runs `python [-m launcher ... -m] tests.frameworks.PROGRAM` unless it has been run."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # the workers share what one of them launched

    def launched(program: str, *launcher: str, limit_s: int = 150) -> Seen:
        folder = base / "frameworks" / program
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            log = folder / "output.txt"
            if not log.exists():
                _run([*launcher, "-m", f"tests.frameworks.{program}"], folder, log, limit_s)
            return Seen(folder, log.read_text(errors="replace"))

    return launched


def _run(args: list[str], folder: Path, log: Path, limit_s: int) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(RANKS)}
    with open(log, "w") as output:
        child = subprocess.Popen(
            [sys.executable, *args],
            cwd=folder,
            env={**kept, **QUIET, "HOME": str(folder), "STEPWELL_NOTES": str(folder)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            print(f"\nstill running after {limit_s} s", file=output)
            child.terminate()  # torchrun then ends its ranks, which are in sessions of their own
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # and ranks that it left
            child.wait()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have reports name the row of the table, also those that come from another process."""
    for item in items:
        for mark in item.iter_markers("row"):
            assert mark.args[0] in TABLE
            item.user_properties.append(("row", mark.args[0]))

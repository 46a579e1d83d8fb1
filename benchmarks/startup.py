"""How long it takes to begin: `import stepwell` beyond NumPy, and what commands print at once.

python -m benchmarks.startup [--rounds 20] [other/src ...]

Processes of all versions take turns, in a new random order each round, so that a slow minute of
the machine hurts all alike. `src` of this checkout comes first, then the
others that are given.
"""

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.machine import Quiet

COMMANDS = {
    "python": ["pass"],
    "import numpy": ["import numpy"],
    "import stepwell": ["from stepwell import Loader, StepReader, open"],
    "stepwell --version": ["from stepwell.cli import main; main()", "--version"],
    "stepwell --help": ["from stepwell.cli import main; main()", "--help"],
    "stepwell info --help": ["from stepwell.cli import main; main()", "info", "--help"],
    "a2pack --help": ["from stepwell.cli import a2pack; a2pack()", "--help"],
}


def measure(command: list[str], source: Path, compiled: str) -> tuple[float, float]:
    """Milliseconds that a process took, by the clock and of the processor."""
    python = [sys.executable, "-c", *command]
    where = {**os.environ, "PYTHONPATH": str(source), "PYTHONPYCACHEPREFIX": compiled}
    where.pop("PYTHONDONTWRITEBYTECODE", None)  # as pip installs it: compiled
    used, begin = _processor_s(), time.perf_counter()
    subprocess.run(python, env=where, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - begin) * 1e3, (_processor_s() - used) * 1e3


def _processor_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sources", type=Path, nargs="*", help="src folders of other versions")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    sources = [Path(__file__).parents[1] / "src", *args.sources]
    turns = [(name, source) for name in COMMANDS for source in sources]
    taken: dict[tuple[str, Path], list[tuple[float, float]]] = {turn: [] for turn in turns}
    with TemporaryDirectory() as compiled:
        for name, source in turns:  # all files are compiled and in memory from here on
            measure(COMMANDS[name], source, compiled)
        quiet = Quiet()
        for _ in range(args.rounds):
            for name, source in random.sample(turns, len(turns)):
                taken[name, source].append(measure(COMMANDS[name], source, compiled))
    print(f"medians of {args.rounds}, ms by the clock and of the processor")
    for source in sources:
        print(f"\n{source}")
        clocks = {}
        for name in COMMANDS:
            wall, used = (
                statistics.median(times) for times in zip(*taken[name, source], strict=True)
            )
            clocks[name] = wall
            print(f"{name:24}{wall:8.0f}{used:8.0f}")
        beyond = clocks["import stepwell"] - clocks["import numpy"]
        print(f"{'stepwell beyond NumPy':24}{beyond:8.0f}")
    print(f"\nother programs used {quiet.others():.0%} of the machine")


if __name__ == "__main__":
    main()

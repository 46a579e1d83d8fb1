"""Ranks of one machine: what memory four of them need beside one.

Each rank is a process that opens the same step dataset and reads its part of an epoch. Counted is
what the kernel charges to it in proportion (PSS): a page that four processes map counts a quarter
for each. Pages of files are left out, because they belong to the page cache.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import stepwell as sw
from benchmarks.results import Case, Measured, Target, arguments, publish
from benchmarks.rows import ROW
from benchmarks.steps_data import steps_dataset

_BATCH = 4096
_WORLD = 4


def main() -> None:
    parser = arguments(__doc__, rows=40_000_000)
    parser.add_argument("--keep", action="store_true", help="keep the data for the next run")
    parser.add_argument("--rank", nargs=4, help=argparse.SUPPRESS)  # of a process that is a rank
    args = parser.parse_args()
    if args.rank:
        _be_a_rank(int(args.rank[0]), int(args.rank[1]), args.rank[2], Path(args.rank[3]))
        return
    with steps_dataset(args.rows, keep=args.keep) as path:
        publish([_case(path, args.rows)], args.json)


def _case(path: Path, rows: int) -> Case:
    one = needed(path, "shared", 1)
    four = needed(path, "shared", _WORLD)
    copies = needed(path, "ram", _WORLD)
    size = rows * ROW.itemsize
    return Case(
        f"memory of {_WORLD} ranks that read {rows:,} steps, {size / 1e6:,.0f} MB",
        "MB",
        Measured.of([four / 1e6]),
        {
            "one rank": Measured.of([one / 1e6]),
            f"{_WORLD} ranks with memory='ram'": Measured.of([copies / 1e6]),
        },
        [Target("times the memory of one rank", four / one, at_most=1.1)],
        "ranks with memory='shared', a process each; anonymous and shared pages in proportion "
        "(PSS), interpreters and batches included, after an epoch",
    )


def needed(path: Path, memory: str, world: int) -> int:
    """Bytes that the ranks of a world have together, when each has read its part of an epoch."""
    command = [sys.executable, "-m", "benchmarks.ranks", "--rank"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world), memory, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        _answers(ranks)
        return sum(map(int, _answers(ranks, "count")))
    finally:
        for rank in ranks:
            rank.communicate()  # none ends before all have counted


def _answers(ranks: Sequence["subprocess.Popen[str]"], line: str = "") -> list[str]:
    answers = []
    for rank in ranks:
        assert rank.stdin is not None
        assert rank.stdout is not None
        if line:
            print(line, file=rank.stdin, flush=True)
        answers.append(rank.stdout.readline())
    return answers


def _be_a_rank(rank: int, world: int, memory: Any, path: Path) -> None:
    steps = sw.StepReader.open(path, memory=memory)
    with sw.Loader(steps, _BATCH, rank=rank, world_size=world) as loader:
        print(sum(len(batch["run_id"]) for batch in loader), flush=True)
        sys.stdin.readline()
        print(_held(), flush=True)
        sys.stdin.read()


def _held() -> int:
    """Anonymous and shared pages of this process, each divided by those who map it."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(1024 * int(kb) for kb in re.findall(r"(?m)^Pss_(?:Anon|Shmem): +(\d+) kB", text))


if __name__ == "__main__":
    main()

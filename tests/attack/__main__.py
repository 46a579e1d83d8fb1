"""`python -m tests.attack`: see `tests.attack`."""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from tests.attack.cases import Case, from_seed
from tests.attack.runner import Field, prepared, run_cases

KEPT = Path(__file__).with_name("kept.txt")
"""Cases that failed once, a line each: they are run before all others."""


def kept_cases() -> list[Case]:
    lines = KEPT.read_text().splitlines()
    return [Case.parse(line) for line in lines if line and not line.startswith("#")]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack")
    parser.add_argument("--cases", type=int, default=3000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kept", action="store_true", help="those in kept.txt before them")
    parser.add_argument("--keep", action="store_true", help="add what fails to kept.txt")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--case", help="this one alone, by its line")
    given = parser.parse_args()
    if given.seed is not None or given.case is not None:
        return one(given.seed, given.case)
    begin = shown = time.monotonic()
    kept = kept_cases() if given.kept else []
    seed_of: dict[str, int] = {}

    def progress(done: int) -> None:
        nonlocal shown
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(f"{done:,} of {len(kept) + given.cases:,} cases", file=sys.stderr, flush=True)

    items: Counter[str] = Counter()
    failed = []
    with prepared() as (templates, right, folder):

        def drawn() -> Iterator[Case]:
            for seed in range(given.first, given.first + given.cases):
                case = from_seed(seed, templates)
                seed_of[str(case)] = seed
                yield case

        cases = chain(kept, drawn())
        for failure in run_cases(
            cases, templates, right, folder, jobs=given.jobs, progress=progress
        ):
            if failure.item is not None:
                items[failure.item] += 1
                continue
            failed.append(failure.case)
            seed = seed_of.get(failure.case)
            again = f'--case "{failure.case}"' if seed is None else f"--seed {seed}"
            print(f"{failure.outcome}: {failure.case}\n    {failure.detail}")
            print(f"    again: python -m tests.attack {again}", flush=True)
    if given.keep and failed:
        with KEPT.open("a") as file:
            file.writelines(f"{line}\n" for line in failed)
    took = time.monotonic() - begin
    print(
        f"{given.cases:,} cases and {len(kept)} kept ones in {took:.0f} s: {len(failed)} failures"
    )
    print("known: " + (", ".join(f"{n} of {item}" for item, n in sorted(items.items())) or "none"))
    return len(failed) > 0


def one(seed: int | None, line: str | None) -> int:
    """A case, in this process."""
    with prepared() as (templates, right, folder):
        case = from_seed(seed, templates) if seed is not None else Case.parse(line or "")
        print(case)
        found = Field(folder / "one", templates).run(case, right)
    print("right, or refused" if found is None else ": ".join(found))
    return found is not None


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.attack`: see `tests.attack`."""

import argparse
import os
import sys
import time
from collections import Counter

from tests.attack.cases import Case, from_seed
from tests.attack.runner import Field, cases_of, prepared, run_cases


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack")
    parser.add_argument("--cases", type=int, default=3000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--case", help="this one alone, by its line")
    given = parser.parse_args()
    with prepared() as (templates, right, folder):
        if given.seed is not None or given.case is not None:
            case = Case.parse(given.case) if given.case else from_seed(given.seed or 0, templates)
            print(case)
            (folder / "one").mkdir()
            found = Field(folder / "one", templates).run(case, right)
            print("right, or refused" if found is None else ": ".join(found))
            return found is not None
        begin, shown = time.monotonic(), 0.0

        def progress(done: int) -> None:
            nonlocal shown
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                print(f"{done:,} of {given.cases:,} cases", file=sys.stderr, flush=True)

        seeds = range(given.first, given.first + given.cases)
        seed_of = {}

        def cases():
            for seed, case in zip(seeds, cases_of(seeds, templates), strict=True):
                seed_of[str(case)] = seed
                yield case

        items: Counter[str] = Counter()
        failures = 0
        for failure in run_cases(
            cases(), templates, right, folder, jobs=given.jobs, progress=progress
        ):
            if failure.item is not None:
                items[failure.item] += 1
                continue
            failures += 1
            print(f"{failure.outcome}: seed {seed_of[failure.case]}: {failure.case}")
            print(f"    {failure.detail}", flush=True)
        took = time.monotonic() - begin
        print(f"{given.cases:,} cases in {took:.0f} s, {failures} failures", end="")
        print("".join(f", {count} of item {item}" for item, count in sorted(items.items())))
        return failures > 0


if __name__ == "__main__":
    sys.exit(main())

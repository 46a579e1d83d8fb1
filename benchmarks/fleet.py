"""What happens beyond what we can run: 8 to 4,096 ranks, up to 100 TB in a bucket, computed.

python -m benchmarks.fleet                       the tables, for records of 2 KiB
python -m benchmarks.fleet --row-bytes 100000    and for others
python -m benchmarks.fleet --check               the simulator beside the real loader
python -m benchmarks.fleet --write               docs/scale.md and docs/scale.svg

The orders of rows are the package's own, the store and the nodes are published figures
(benchmarks/fleet_store.py), and time is that of a simulation (benchmarks/fleet_queue.py).
"""

import argparse
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rich.markup import escape
from rich.table import Table

import stepwell as sw
from benchmarks import fleet_check
from benchmarks.fleet_queue import Path as Way, Readers, Request, run
from benchmarks.fleet_store import FIGURES, GIB, P5, S3, TB
from benchmarks.fleet_traffic import RANGE_BYTES, missed, plan, rows_of_rank
from benchmarks.results import console, number, table
from stepwell.sampler import Sampler

RANKS = (8, 64, 512, 4096)
_PLOTTED = (8, 16, 64, 256, 1024, 4096)
_DATA_BYTES = 100 * TB
SAMPLERS = ("Shuffle()", "Block({k})", "Block({k}, lanes=ranks)", "Sequential()")
_SHUFFLE, _BLOCK, _LANES, _SEQUENTIAL = SAMPLERS
_LANE_BLOCKS = 16  # in a window of each rank: group=16 * ranks, of which 65,536 is the limit
_SIMULATED_RANKS = 16
_SIMULATED_REQUESTS = 15_000
_FEWEST_STEPS = 6
_STRETCH_BYTES, _LONG_STRETCH_BYTES = GIB // 4, GIB  # of a rank; twice what is planned at a time
_SKIPPED = 4  # a quarter of the steps, until it runs evenly


@dataclass(frozen=True)
class Job:
    """What each rank does."""

    row_bytes: int = 2048
    batch: int = 1024
    rank_bytes_s: float = 100e6
    connections: int = 32
    window_bytes: int = GIB

    @property
    def step_s(self) -> float:
        return self.batch * self.row_bytes / self.rank_bytes_s

    @property
    def k(self) -> int:
        """Rows of a block of 4 MiB."""
        return max(RANGE_BYTES // self.row_bytes, 1)

    def sampler(self, name: str, ranks: int) -> Sampler:
        if name == _LANES:
            return sw.Block(self.k, group=_LANE_BLOCKS * ranks, lanes=ranks)
        if name == _BLOCK:
            return sw.Block(self.k)
        return sw.Shuffle() if name == _SHUFFLE else sw.Sequential()

    def named(self, name: str) -> str:
        return name.format(k=self.k)


@dataclass(frozen=True)
class Outcome:
    """What a job does to a bucket, and the bucket to the job."""

    ranks: int
    waiting: float
    fetched: float
    """Bytes from the bucket for each byte used."""
    requests: float
    """For each row."""
    rows_s: float
    """Of all ranks."""

    def hours(self, rows: float) -> float:
        return rows / self.rows_s / 3600

    def get_usd(self, rows: float) -> float:
        return rows * self.requests * S3.get_usd

    def idle_usd(self, rows: float) -> float:
        return self.hours(rows) * self.waiting * P5.usd_hour * self.ranks / P5.ranks


@cache
def planned(name: str, ranks: int, job: Job) -> tuple[int, tuple[Request, ...]]:
    """What a rank asks for in a stretch of an epoch, and its steps. The others are like it."""
    stretch = _LONG_STRETCH_BYTES if name == _LANES else _STRETCH_BYTES
    steps = max(stretch // (job.batch * job.row_bytes), 2 * _FEWEST_STEPS)
    length = _DATA_BYTES // job.row_bytes
    rows = rows_of_rank(job.sampler(name, ranks), length, job.batch, 0, ranks, steps)
    found = plan(rows, job.row_bytes, job.window_bytes)
    # The last plan ends because the stretch does, not because the window is full.
    end = found.cuts[-2] if len(found.cuts) > 1 else steps
    return end, tuple(request for request in found.requests if request.first < end)


def simulate(name: str, ranks: int, job: Job, *, miss: float = 1.0, seed: int = 0) -> Outcome:
    """A job with the bucket; `miss` is the share of requests that no disk answers."""
    steps, requests = planned(name, ranks, job)
    rows = steps * job.batch
    fetched = sum(request.bytes for request in requests) * miss
    simulated = min(ranks, _SIMULATED_RANKS)
    of_step = len(requests) / steps * simulated
    short = min(steps, max(int(_SIMULATED_REQUESTS / of_step), _FEWEST_STEPS))
    drawn = random.Random(seed)
    sent = [
        [
            request._replace(last=min(request.last, short - 1), on_disk=drawn.random() >= miss)
            for request in requests
            if request.first < short
        ]
        for _ in range(simulated)
    ]
    bucket = Way(P5.link_bytes_s, S3.connection_bytes_s, S3.latency_s, S3.spread, S3.floor_s)
    disk = Way(P5.disk_bytes_s, P5.disk_bytes_s, P5.disk_latency_s)
    readers = Readers(job.connections, job.window_bytes, on_node=P5.ranks)
    share = S3.requests_s * simulated / ranks
    found = run(sent, short, job.step_s, readers, bucket, disk, requests_s=share, seed=seed)
    skipped = short // _SKIPPED
    return Outcome(
        ranks,
        max(found.waiting(skipped), 0.0),
        fetched / (rows * job.row_bytes),
        len(requests) * miss / rows,
        ranks * job.batch / found.step_s(skipped),
    )


def first_epoch(job: Job, ranks: Sequence[int] = RANKS) -> Iterator[list[str]]:
    """Without a disk, or before anything is on it."""
    rows = _DATA_BYTES / job.row_bytes
    for name in SAMPLERS:
        for count in ranks:
            found = simulate(name, count, job)
            yield [
                f"`{job.named(name)}`",
                f"{count:,}",
                f"{found.waiting:.0%}",
                f"{found.fetched:.2f}",
                number(found.requests * found.rows_s),
                number(found.hours(rows)),
                number(found.get_usd(rows)),
                number(found.idle_usd(rows)),
            ]


FIRST = (
    *("sampler", "ranks", "waiting", "fetched / used", "requests/s"),
    *("hours", "GETs, $", "idle GPUs, $"),
)


def later_epochs(
    job: Job, sizes: Sequence[int] = (10, 100), ranks: Sequence[int] = RANKS
) -> Iterator[list[str]]:
    """With the drives of the nodes as a cache."""
    for size in sizes:
        share = min(P5.disk_bytes / (size * TB), 1.0)
        for name in (_SHUFFLE, _LANES):
            in_unit = max(4096 // job.row_bytes, 1) if name == _SHUFFLE else 1
            for count in ranks:
                misses = missed(max(count // P5.ranks, 1), share, in_unit, 10)
                line = [f"{size} TB", f"{share:.0%}", f"`{job.named(name)}`", f"{count:,}"]
                for epoch in (1, 9):
                    found = simulate(name, count, job, miss=misses[epoch])
                    line += [f"{found.fetched:.2f}", f"{found.waiting:.0%}"]
                yield line


LATER = (
    *("data", "on a node's drives", "sampler", "ranks"),
    *("fetched / used, epoch 2", "waiting", "fetched / used, epoch 10", "waiting"),
)


def by_size(ranks: Sequence[int] = _PLOTTED) -> dict[str, dict[str, list[float]]]:
    """Waiting without a cache, for small and large records."""
    return {
        title: {
            name.format(k="k"): [simulate(name, count, job).waiting for count in ranks]
            for name in (_SHUFFLE, _BLOCK, _LANES)
        }
        for title, job in SIZES.items()
    }


SIZES = {"records of 2 KiB": Job(), "records of 128 KiB": Job(1 << 17, 64)}
SIZE = ("waiting", "ranks:", *(f"{count:,}" for count in _PLOTTED))


def size_lines(found: dict[str, dict[str, list[float]]]) -> Iterator[list[str]]:
    for title, shares in found.items():
        for name, values in shares.items():
            yield [title, f"`{name}`", *(f"{value:.0%}" for value in values)]


def write(page: Path, job: Job) -> None:
    """Put what was computed between the markers of a page, and draw its picture."""
    from benchmarks import plot  # which needs matplotlib

    found = by_size()
    parts = {
        "size": table(SIZE, list(size_lines(found))),
        "first": table(FIRST, list(first_epoch(job))),
        "later": table(LATER, list(later_epochs(job))),
        "figures": table(("", "", ""), FIGURES),
        "check": table(fleet_check.HEADINGS, list(fleet_check.lines(fleet_check.compared()))),
    }
    text = page.read_text()
    for name, lines in parts.items():
        text = spliced(text, name, "\n".join(lines))
    page.write_text(text)
    plot.lines(found, _PLOTTED, page.with_suffix(".svg"), x="ranks", y="waiting for data")


def spliced(page: str, name: str, made: str) -> str:
    """A page with other lines between two markers."""
    begin, end = f"<!-- fleet: {name} -->\n", f"<!-- fleet: end of {name} -->"
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    found, count = re.subn(pattern, lambda _: f"{begin}\n{made}\n\n{end}", page, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"expected one pair of markers {begin.strip()!r}, got {count}")
    return found


def _show(title: str, headings: Sequence[str], body: Iterator[list[str]]) -> None:
    shown = Table(title=title, title_justify="left")
    for i, heading in enumerate(headings):
        shown.add_column(heading, justify="right" if i else "left")
    for line in body:
        shown.add_row(*(escape(cell.strip("`")) for cell in line))
    console.print(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--row-bytes", type=int, default=Job.row_bytes, help="(%(default)s)")
    parser.add_argument("--batch", type=int, default=Job.batch, help="rows a rank (%(default)s)")
    rate = "what a rank takes without waiting (%(default)s)"
    parser.add_argument("--mb-s", type=float, default=Job.rank_bytes_s / 1e6, help=rate)
    parser.add_argument("--check", action="store_true", help="compare it with the real loader")
    parser.add_argument("--write", action="store_true", help="write docs/scale.md and its picture")
    args = parser.parse_args()
    if min(args.row_bytes, args.batch, args.mb_s) <= 0:
        parser.error("--row-bytes, --batch and --mb-s: expected more than 0")
    job = Job(args.row_bytes, args.batch, args.mb_s * 1e6)
    if args.write:
        if job != Job():
            parser.error("--write: the page is of the defaults")
        write(Path("docs/scale.md"), job)
    elif args.check:
        found = fleet_check.lines(fleet_check.compared())
        _show("Measured beside simulated", fleet_check.HEADINGS, found)
    else:
        _show("Waiting without a cache, by the size of records", SIZE, size_lines(by_size()))
        _show("An epoch of 100 TB, without a cache", FIRST, first_epoch(job))
        _show("With the drives of the nodes as a cache", LATER, later_epochs(job))


if __name__ == "__main__":
    main()

"""What an object store and the nodes that read from it can do: figures and their sources.

Whatever nobody published is marked as assumed. docs/scale.md has the same list, which
`python -m benchmarks.fleet --write` writes.
"""

from dataclasses import dataclass
from typing import NamedTuple

GB, TB = 10**9, 10**12
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Bucket:
    """An object store in the region of the nodes."""

    latency_s: float
    """Median time to the first byte; others are log-normal around it."""
    spread: float
    """Standard deviation of the logarithm of that time."""
    floor_s: float
    """No request is faster than this."""
    connection_bytes_s: float
    requests_s: float
    """Of all nodes together."""
    get_usd: float
    egress_usd_gb: float


@dataclass(frozen=True)
class Node:
    """A machine with several ranks."""

    ranks: int
    link_bytes_s: float
    disk_bytes_s: float
    disk_latency_s: float
    disk_bytes: float
    usd_hour: float


class Figure(NamedTuple):
    """A number with where it is from."""

    what: str
    value: str
    source: str


_PREFIXES = 64

S3 = Bucket(
    latency_s=0.027,
    spread=0.62,
    floor_s=0.010,
    connection_bytes_s=90e6,
    requests_s=_PREFIXES * 5500,
    get_usd=0.0004 / 1000,
    egress_usd_gb=0.02,
)

P5 = Node(
    ranks=8,
    link_bytes_s=75e9 / 8,
    disk_bytes_s=15e9,
    disk_latency_s=0.0001,
    disk_bytes=8 * 3.84 * TB,
    usd_hour=39.33,
)

FIGURES = (
    Figure(
        "first byte, 4 KiB reads in the region",
        "27 ms median, log-normal with sigma 0.62: 60 ms at p90, 114 ms at p99; at least 10 ms",
        "microbenchmark of December 2025, in [cdouglas/endive](https://github.com/cdouglas/endive/"
        "blob/main/UNCONDITIONAL.md). AWS promises less: [roughly 100 to 200 ms](https://docs.aws."
        "amazon.com/AmazonS3/latest/userguide/optimizing-performance.html)",
    ),
    Figure(
        "one connection",
        "90 MB/s",
        "[85 to 90 MB/s a request](https://docs.aws.amazon.com/AmazonS3/latest/userguide/"
        "optimizing-performance-design-patterns.html) (AWS); [93 MB/s](https://github.com/"
        "dvassallo/s3-benchmark) on all EC2 types of 2019; [55 to 60 MiB/s median, 95 at most]"
        "(https://www.vldb.org/pvldb/vol16/p2769-durner.pdf) (Durner, Leis, Neumann, VLDB 2023)",
    ),
    Figure(
        "one node",
        "75 Gbit/s",
        "median with 256 requests of 16 MiB in flight on a node of 100 Gbit/s "
        "([VLDB 2023](https://www.vldb.org/pvldb/vol16/p2769-durner.pdf)); 64 Gbit/s at most "
        "[in 2019](https://github.com/dvassallo/s3-benchmark). That nodes with more cards are no "
        "faster is assumed",
    ),
    Figure(
        "requests",
        "5,500 GETs/s a prefix",
        "[AWS](https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html), "
        f"as the least; data in {_PREFIXES} prefixes is assumed",
    ),
    Figure(
        "a GET",
        "$0.0004 for 1,000",
        "S3 Standard, us-east-1: [price list](https://aws.amazon.com/s3/pricing/)",
    ),
    Figure(
        "egress",
        "$0 inside the region, $0.02 a GB to a different one",
        "the same price list; to the internet it is $0.09",
    ),
    Figure(
        "node",
        "8 GPUs, 8 drives of 3.84 TB, $39.33 an hour",
        "p5.48xlarge in [capacity blocks](https://aws.amazon.com/ec2/capacityblocks/pricing/)",
    ),
    Figure(
        "drives of a node",
        "15 GB/s, 0.1 ms",
        "[eight drives of an i3.16xlarge](http://techblog.cloudperf.net/2017/04/"
        "3-million-storage-iops-on-aws-cloud.html); that those of a p5 are no faster is assumed",
    ),
)

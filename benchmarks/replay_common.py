"""What the benchmarks of replay stores share."""

import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import replay_data as data
from stepwell.replay import ReplayWriter

OURS = "stepwell"
JSON = "SQLite, JSON"
LZF = "h5py, lzf"
RUN = "run"


def record(path: Path, played: data.Played, count: int, compress: str = "zstd") -> None:
    with ReplayWriter(path, RUN, compress=compress) as writer:
        for step in played.around(count):
            writer.record_step(**step)


def seconds_of(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin

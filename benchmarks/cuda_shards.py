"""Shards to a CUDA device: ahead of the loop, by pinned memory of one's own, as fresh arrays.

Needs a GPU, so it is not part of `make bench`:

    python -m benchmarks.cuda_shards
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import stepwell as sw

WIDTH = 768


def make_shards(folder: Path, rows: int) -> None:
    rng = np.random.default_rng(1)
    with sw.ShardWriter(folder, WIDTH, dtype=np.float32) as writer:
        for begin in range(0, rows, 65_536):
            count = min(65_536, rows - begin)
            writer.append(rng.standard_normal((count, WIDTH), np.float32))


def fresh(reader: sw.ShardReader, rows: int) -> Iterator[torch.Tensor]:
    for batch in reader.batches(rows, dtype=np.float64):
        yield torch.from_numpy(batch.rows).to("cuda")


def pinned(reader: sw.ShardReader, rows: int) -> Iterator[torch.Tensor]:
    space = torch.empty((rows, WIDTH), dtype=torch.float64, pin_memory=True)
    copied = torch.cuda.Event()
    for batch in reader.batches(rows, out=space):
        device = space[: len(batch.rows)].to("cuda", non_blocking=True)
        copied.record()
        yield device
        copied.synchronize()  # the next batch is put into the same memory


def ahead(reader: sw.ShardReader, rows: int) -> Iterator[torch.Tensor]:
    for batch in reader.batches(rows, dtype=np.float64, device="cuda"):
        there: Any = batch.rows
        yield there


def seconds(batches: Callable[[], Iterator[torch.Tensor]]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for batch in batches():
        batch.sum()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--batch-rows", type=int, default=8_192)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_shards(Path(folder), args.rows)
        reader = sw.ShardReader.open(folder)
        print(torch.cuda.get_device_name(), "cores:", sw._core.usable_cores())
        begin = 0
        for device, batch in zip(
            pinned(reader, args.batch_rows), reader.batches(args.batch_rows), strict=True
        ):
            assert np.array_equal(device.cpu().numpy(), batch.rows)
            begin += len(batch.rows)
        assert begin == args.rows
        print(f"{args.rows:,} rows through pinned memory, equal to those read without it")
        times: dict[str, list[float]] = {"device=": [], "pinned, out=": [], "fresh arrays": []}
        for _ in range(args.rounds):
            times["device="].append(seconds(lambda: ahead(reader, args.batch_rows)))
            times["pinned, out="].append(seconds(lambda: pinned(reader, args.batch_rows)))
            times["fresh arrays"].append(seconds(lambda: fresh(reader, args.batch_rows)))
        median = {how: statistics.median(values) for how, values in times.items()}
        for how, taken in median.items():
            print(f"{how:14} {reader.nbytes / taken / 1e9:6.2f} GB/s of float32")
        print(f"ratio          {median['fresh arrays'] / median['device=']:.2f}")


if __name__ == "__main__":
    main()

"""Does the GPU wait? Batches to a CUDA device: pinned and ahead of time, against a plain copy.

    python -m benchmarks.cuda --rows 20000000 --batch-size 65536

Every row is checked on the device: it must arrive exactly once an epoch, with its own fields.
Then the same epoch is timed three ways, interleaved: stepwell's loader with `device="cuda"`,
the plain loader followed by `tensor.to("cuda")`, and both with a model step for each batch.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import stepwell as sw

STEP = np.dtype([("board", "<u8"), ("move", "u1"), ("ev_values", "<f4", (4,)), ("run_id", "<u4")])


def make_rows(count: int) -> sw.ArraySource:
    rows = np.zeros(count, STEP)
    rows["board"] = np.arange(count)
    rows["move"] = np.arange(count) % 4
    rows["ev_values"] = np.arange(count, dtype=np.float32)[:, None] + np.arange(4, dtype=np.float32)
    rows["run_id"] = np.arange(count) // 1000
    return sw.ArraySource(rows)


def copied(loader: sw.Loader) -> Iterator[Any]:
    for batch in loader:
        yield {name: torch.from_numpy(values).to("cuda") for name, values in batch.items()}


def check(source: sw.ArraySource, batch_size: int) -> None:
    """Every row once, fields together, while the device is kept busy so that copies lag."""
    loader = sw.torch.Loader(source, batch_size, seed=1, device="cuda")
    seen = torch.zeros(len(source), dtype=torch.int64, device="cuda")
    busy = torch.randn(2048, 2048, device="cuda")
    for batch in loader:
        busy = torch.tanh(busy @ busy)
        row = batch["board"].view(torch.int64)
        seen.index_add_(0, row, torch.ones_like(row))
        assert torch.equal(batch["move"].to(torch.int64), row % 4)
        assert torch.equal(batch["run_id"].to(torch.int64), row // 1000)
        assert torch.equal(batch["ev_values"][:, 2], row.to(torch.float32) + 2)
    assert bool((seen == 1).all()), "a row is missing or came twice"


def model_step() -> Callable[[Any], None]:
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 4)
    ).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch: Any) -> None:
        loss = model(batch["ev_values"] * 1e-9).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def epoch_seconds(batches: Iterator[Any], step: Callable[[Any], None]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for batch in batches:
        step(batch)
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--batch-size", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    source = make_rows(args.rows)
    print(torch.cuda.get_device_name(), "cores:", sw._core.usable_cores())
    check(source, args.batch_size)
    print(f"{args.rows:,} rows arrived on the device, each exactly once")
    steps = {"copy only": lambda batch: None, "with a model step": model_step()}
    pinned = sw.torch.Loader(source, args.batch_size, seed=1, device="cuda")
    plain = sw.Loader(source, args.batch_size, seed=1)
    for name, step in steps.items():
        times: dict[str, list[float]] = {"pinned, ahead": [], "plain copy": []}
        for _ in range(args.rounds):
            times["pinned, ahead"].append(epoch_seconds(iter(pinned), step))
            times["plain copy"].append(epoch_seconds(copied(plain), step))
        median = {how: statistics.median(values) for how, values in times.items()}
        for how, seconds in median.items():
            print(
                f"{name:18} {how:14} {args.rows / seconds / 1e6:8.1f} M rows/s"
                f" {source.nbytes / seconds / 1e9:6.2f} GB/s"
            )
        print(f"{name:18} ratio          {median['plain copy'] / median['pinned, ahead']:.2f}")


if __name__ == "__main__":
    main()

"""Rows that stay on the GPU: gathered into columns, against a plain copy of the same bytes.

Needs a GPU, so it is not part of `make bench`:

    python -m benchmarks.cuda_resident --rows 50000000
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import stepwell as sw
from stepwell.game2048 import STEP


def make_rows(count: int) -> sw.ArraySource:
    rows = np.zeros(count, STEP)
    rows["board"] = np.arange(count)
    rows["move"] = np.arange(count) % 4
    rows["run_id"] = np.arange(count) // 1000
    return sw.ArraySource(rows)


def microseconds(call: Callable[[], Any], repeats: int) -> float:
    """The wall time of a call, several of them in a row, the device waited for once."""
    call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats * 1e6


def device_microseconds(call: Callable[[], Any], repeats: int) -> float:
    """The same as the device sees it."""
    call()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(100_000_000)  # so that launches are ahead of the device
    first.record()
    for _ in range(repeats):
        call()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / repeats * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    source = make_rows(args.rows)
    begin = time.perf_counter()
    resident = source.to("cuda")
    print(
        f"{torch.cuda.get_device_name()}: {args.rows:,} rows in {time.perf_counter() - begin:.1f} s"
    )
    layout = resident._layout(())
    for count in (4_096, 65_536, 1_048_576):
        numbers = torch.randint(0, args.rows, (count,), dtype=torch.int32, device="cuda")
        out_bytes = torch.empty(layout.batch_bytes(count), dtype=torch.uint8, device="cuda")
        other = torch.empty_like(out_bytes)
        cases: dict[str, Callable[[], Any]] = {
            "gather": lambda n=numbers: layout.gather(n, 1),  # type: ignore[misc]
            "copy": lambda a=other, b=out_bytes: a.copy_(b),  # type: ignore[misc]
        }
        found: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(args.rounds):
            for name, case in cases.items():
                found[name].append(device_microseconds(case, 200))
        gather, copy = (statistics.median(found[name]) for name in cases)
        wall = statistics.median(microseconds(cases["gather"], 200) for _ in range(args.rounds))
        print(
            f"{count:9,} rows: gather {gather:7.1f} us on the device, {wall:7.1f} us of wall time; "
            f"copy {copy:7.1f}; ratio {gather / copy:.2f}"
        )
    for name in ("next", "static"):
        loader = sw.torch.Loader(resident, 4096, seed=1, drop_last=True)
        waits = []
        for _ in range(args.rounds):
            loop = iter(loader) if name == "next" else loader.static_batches()
            begin = time.perf_counter()
            steps = sum(1 for _ in loop)
            torch.cuda.synchronize()
            waits.append((time.perf_counter() - begin) / steps * 1e6)
        wait = statistics.median(waits)
        print(f"{name:6} {wait:6.1f} us a batch of 4,096, {4096 / wait:6.0f} M rows/s")


if __name__ == "__main__":
    main()

"""`stepwell bench`: how fast batches come out of a store, and how long a model would wait."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import Progress

import stepwell as sw
from stepwell.cli.console import JsonOption, err, out, print_json, say, show_rows
from stepwell.cli.stores import PathArgument, open_path


def bench(
    path: PathArgument,
    batch_size: Annotated[int, typer.Option(min=1, max=2**31, help="Rows in a batch.")] = 4096,
    seconds: Annotated[float, typer.Option(min=0.05, help="How long to measure each.")] = 3.0,
    mapped: Annotated[
        bool, typer.Option("--map", help="Map the file instead of loading it.")
    ] = False,
    device: Annotated[
        str, typer.Option(help="Where a model is: cpu, cuda, cuda:1. Needs the extra `torch`.")
    ] = "cpu",
    step_ms: Annotated[
        float, typer.Option(min=0.01, help="What a step of the model takes, in milliseconds.")
    ] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """How fast random batches come out of PATH: single takes, then the loader.

    Then how much of its time a model would wait that takes --step-ms for each batch.
    """
    with open_path(path, None, mapped=mapped) as source:
        if len(source) == 0:
            raise sw.FormatError("expected rows to read, got none", path=path)
        rows = sw.Iid(seed=1).order(len(source))
        count = min(batch_size, len(source))
        takes = (rows.rows(epoch, 0, count) for epoch in range(sys.maxsize))
        loader = sw.Loader(source, batch_size, seed=1)
        waiting: Callable[[Any, float, float], float] = _waiting
        if device != "cpu":
            loader = sw.torch.Loader(source, batch_size, seed=1, device=device)
            waiting = sw.torch.waiting.waiting_of
        with Progress(console=err, transient=True, disable=not err.is_terminal) as bars, loader:
            results = {
                "take": _measure(lambda: _length(source.take(next(takes))), seconds, bars, "take"),
                "loader": _measure(_next_of(loader.forever()), seconds, bars, "loader"),
            }
            share = waiting(loader, step_ms / 1e3, seconds)
    if as_json:
        waits = {"device": device, "step_ms": step_ms, "share": share}
        print_json({"path": path, "batch_size": batch_size, **results, "waiting": waits})
        return
    if out.is_terminal:
        say(f"{path}: {len(source):,} rows, batches of {batch_size:,}")
    columns = ("by", "rows/s", "first ms", "p50 ms", "p99 ms", "peak MB")
    lines = [
        (
            name,
            round(result["rows_per_s"]),
            *(f"{result[key] * 1e3:.3f}" for key in ("first_s", "p50_s", "p99_s")),
            round(result["peak_rss_bytes"] / 1e6),
        )
        for name, result in results.items()
    ]
    show_rows(columns, lines, numbers=range(1, 6))
    if out.is_terminal:
        say(f"a model on {device} that takes {step_ms:g} ms a batch waits {share:.1%} of its time")


def _length(batch: sw.Batch) -> int:
    return len(next(iter(batch.values())))


def _next_of(batches: Iterator[sw.Batch]) -> Callable[[], int]:
    return lambda: _length(next(batches))


def _measure(
    step: Callable[[], int], seconds: float, bars: Progress, name: str
) -> dict[str, float | int]:
    """Time `step`, which returns how many rows it read, for about `seconds`."""
    bar = bars.add_task(name, total=seconds)
    times: list[float] = []
    rows = 0
    begin = time.perf_counter()
    while not times or times[-1] - begin < seconds:
        rows += step()
        times.append(time.perf_counter())
        bars.update(bar, completed=times[-1] - begin)
    each = np.diff([begin, *times])
    return {
        "rows_per_s": rows / (times[-1] - begin),
        "batches": len(times),
        "first_s": float(each[0]),
        "p50_s": float(np.median(each)),
        "p99_s": float(np.quantile(each, 0.99)),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def _waiting(loader: Any, step_s: float, seconds: float) -> float:
    """The share of its time that a consumer waits which is busy for `step_s` with each batch."""
    batches = loader.forever()
    next(batches)
    begin = now = time.perf_counter()
    waited = 0.0
    while now - begin < seconds:
        until = now + step_s
        while time.perf_counter() < until:
            pass
        since = time.perf_counter()
        next(batches)
        now = time.perf_counter()
        waited += now - since
    return waited / (now - begin)

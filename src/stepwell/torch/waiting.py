"""How long a model on a GPU would wait for its data."""

import time
from collections.abc import Callable
from itertools import repeat
from typing import Any

import torch

from stepwell.torch.loader import Loader

_SIDE = 1024


def waiting_of(loader: Loader, step_s: float, seconds: float) -> float:
    """The share of its time that a model waits which keeps the device busy for `step_s` a batch.

    Steps on new batches and on one that is there already take turns for about `seconds`; what the
    new ones cost more is waiting.
    """
    device = loader._device
    step = _step(device, step_s)
    fed = loader.forever()
    feeds: dict[str, Any] = {"fed": fed, "kept": repeat(next(fed))}
    steps = max(10, round(0.05 / step_s))
    spent = dict.fromkeys(feeds, 0.0)
    begin = time.perf_counter()
    while not spent["kept"] or time.perf_counter() - begin < seconds:
        for name, feed in feeds.items():
            torch.cuda.synchronize(device)
            since = time.perf_counter()
            for _ in range(steps):
                next(feed)
                step()
            torch.cuda.synchronize(device)
            spent[name] += time.perf_counter() - since
    return max(0.0, 1 - spent["kept"] / spent["fed"])


def _step(device: torch.device, step_s: float) -> Callable[[], None]:
    """Work of about that long for the device, found by trying."""
    values = torch.zeros((_SIDE, _SIDE), device=device)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(values, values)

    def seconds(times: int) -> float:
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        multiply(times)
        torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    seconds(20)  # the first ones load the kernel
    count = max(1, round(step_s / (seconds(200) / 200)))
    return lambda: multiply(count)

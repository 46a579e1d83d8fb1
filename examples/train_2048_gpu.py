"""Train a policy on games of 2048 with a GPU that does not wait: the step is one CUDA graph.

python examples/train_2048_gpu.py [2048-data/]

The same network is trained three times: on one batch that is kept on the GPU, which is as fast as
it gets and learns nothing; on rows that are resident on the GPU; and on rows that come from memory.
Each prints what a step takes and how much of that is waiting for data.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import stepwell as sw
from stepwell import game2048

Batch = dict[str, Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        default=Path("2048-data"),
        help="folder of the games, made if it is missing (default: %(default)s)",
    )
    parser.add_argument("--games", type=count, default=500, help="to play if there are none")
    parser.add_argument("--steps", type=count, default=3000, help="of each training")
    parser.add_argument("--batch-size", type=count, default=4096)
    parser.add_argument("--width", type=count, default=1024, help="of the network's layers")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device = torch.device(args.device)

    try:
        if not (args.data / "steps").exists():
            print(f"playing {args.games} games", flush=True)
            game2048.play_to(args.data / "runs", args.games, seed=1)
            sw.convert(args.data / "runs", args.data / "steps")
        steps = sw.StepReader.open(args.data / "steps")
    except (OSError, ValueError) as error:
        parser.error(f"data: expected a folder of games, or room for one - {error}")
    options: Any = {"seed": 1, "drop_last": True, "as_int64": ["board"]}
    memory = sw.torch.Loader(steps, args.batch_size, device=device, **options)
    resident = sw.torch.Loader(steps.to(device), args.batch_size, **options)
    kept = {name: values.clone() for name, values in next(iter(memory)).items()}
    memory.set_epoch(0)  # both begin with the same rows
    feeds: dict[str, Iterator[Batch]] = {
        "one batch, kept": iter(lambda: kept, None),
        "resident": static(resident),
        "from memory": static(memory),
    }
    print(
        f"{args.data}: {len(steps):,} steps, {args.batch_size:,} a batch, on {device}", flush=True
    )

    limit = None
    for name, batches in feeds.items():
        torch.manual_seed(0)
        train, loss = training(args.width, device, next(batches))
        train()
        synchronize(device)
        begin = time.perf_counter()
        for _ in range(args.steps):
            next(batches)
            train()
        synchronize(device)
        taken = (time.perf_counter() - begin) / args.steps
        limit = taken if limit is None else limit
        waiting = max(0.0, 1 - limit / taken)
        print(
            f"{name:16} {taken * 1e6:7.1f} us a step, waiting {waiting:5.1%}, "
            f"loss {loss.item():.3f}",
            flush=True,
        )


def static(loader: sw.torch.Loader) -> Iterator[Batch]:
    """Epoch after epoch, each batch in the same tensors: what a graph was captured with."""
    while True:
        yield from loader.static_batches()


def training(width: int, device: torch.device, batch: Batch) -> tuple[Callable[[], None], Tensor]:
    """A step of training on `batch`, whose rows change, and the loss of the last one."""
    layers = (nn.Flatten(), nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    model = nn.Sequential(*layers, nn.Linear(width, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=device.type == "cuda")
    shifts = torch.arange(60, -1, -4, device=device)
    moves = torch.arange(4, device=device)
    last = torch.zeros((), device=device)

    def step() -> None:
        cells = batch["board"][:, None] >> shifts & 15
        scores = model(nn.functional.one_hot(cells, 16).float())
        illegal = (batch["ev_legal"][:, None].long() >> moves & 1) == 0
        loss = nn.functional.cross_entropy(scores.masked_fill(illegal, -1e9), batch["move"].long())
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        last.copy_(loss.detach())

    return (Graph(step, device) if device.type == "cuda" else step), last


class Graph:
    """A step as one CUDA graph. It keeps the step, whose tensors the graph's kernels use."""

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self._step, self._graph = step, torch.cuda.CUDAGraph()
        aside = torch.cuda.Stream(device)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.current_stream(device).wait_stream(aside)
        with torch.cuda.graph(self._graph):
            step()

    def __call__(self) -> None:
        self._graph.replay()


def count(text: str) -> int:
    """How many, from a command line: a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()

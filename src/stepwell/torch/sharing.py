"""Who shares rows out among ranks: us, or the framework that reads us. Never both, never neither.

A framework wraps what it is given and does not ask, so the only sign is on the stack of the loop
that it begins. It is read once a loop, up to the first frame that is not a framework's.
"""

import sys
from typing import Any, NamedTuple

_FRAMEWORKS = {
    "accelerate",
    "lightning",
    "lightning_fabric",
    "pytorch_lightning",
    "stepwell",
    "torch",
    "torchdata",
    "transformers",
}
_SHARERS = {  # and where each has the number of ranks
    "BatchSamplerShard": "num_processes",
    "DataLoaderDispatcher": "state.num_processes",
    "DistributedSamplerWrapper": "num_replicas",
    "IterableDatasetShard": "num_processes",
    "UnrepeatedDistributedSamplerWrapper": "num_replicas",
}


class Reader(NamedTuple):
    """What the frameworks that began a loop do with its items."""

    shares: str | None
    """The class that gives each rank a part of them; None where every rank gets all."""
    batches: bool
    """Whether a DataLoader makes batches of them."""


def reader() -> Reader:
    """Who reads the iterator that is being made or begun."""
    shares, batches = None, False
    frame: Any = sys._getframe(1)
    while frame is not None and _package(frame) in _FRAMEWORKS:
        owner = frame.f_locals.get("self")
        kind = type(owner).__name__
        if kind in _SHARERS:
            ranks = owner
            for name in _SHARERS[kind].split("."):
                ranks = getattr(ranks, name, 1)
            shares = f"{_package(frame)}'s {kind}" if ranks != 1 else shares
            batches = batches or getattr(owner, "_auto_collation", False)
        elif kind == "_IterableDatasetFetcher":
            batches = batches or owner.auto_collation
        frame = frame.f_back
    return Reader(shares, batches)


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def shared_twice(shares: str) -> RuntimeError:
    """What to raise for a part that would be shared out again."""
    return RuntimeError(
        f"expected one part for each rank, got parts that {shares} shares out among ranks again; "
        "loop over stepwell.torch.Loader(source, batch_size) as it is, or have the framework "
        "prepare stepwell.torch.DataLoader(source, batch_size)"
    )

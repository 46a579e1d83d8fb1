"""torch: two ranks by mp.spawn and gloo, torch's and torchdata's own loaders around ours."""

import os
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import stepwell as sw
from tests.frameworks.notes import BATCH, EVEN_ROWS, ROWS, SEED, N, Notes, epochs, resumed, rows


def make(n: int = N, **options: Any) -> Any:
    return sw.torch.Loader(ROWS[:n], BATCH, seed=SEED, **options)


def dataset() -> Any:
    return sw.torch.IterableDataset(ROWS, BATCH, seed=SEED)


def rank_main(rank: int, from_parent: Any) -> None:
    notes = Notes(rank)
    early, running = make(), make()
    loop = iter(running)
    next(loop)  # before the group: a world of one
    store = Path(os.environ["STEPWELL_NOTES"]) / "group"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)

    notes.ask("loader before the group", lambda: epochs(early, 3))
    notes.ask("loader of the parent process", lambda: epochs(from_parent))
    notes.ask("repr", lambda: [repr(early)])
    notes.ask("a loop that began before the group", lambda: rows([next(loop)]))
    notes.ask("an exact resume", resume)
    notes.ask("a resume in a world of one", lambda: rows(resumed(make, 3, rank=0, world_size=1)))
    notes.ask("unlike data", lambda: one_after_the_other(rank, make(N - 2 * rank)))
    notes.ask("unlike epochs", lambda: one_after_the_other(rank, make(), epoch=3 * rank))
    notes.ask("DataLoader with workers", lambda: workers(2))
    notes.ask("DataLoader without workers", lambda: workers(0))
    notes.ask("StatefulDataLoader", lambda: [stateful(0), stateful(2)])
    notes.ask("DistributedSampler", distributed_sampler)
    notes.ask("batched again", lambda: rows(DataLoader(dataset(), batch_size=8)))
    dist.barrier()
    dist.destroy_process_group()


def resume() -> Any:
    """The rest of an epoch and the next one, from its middle, its last batch and its end."""
    return [epochs(resumed(make, stop)) for stop in (3, len(make()) - 1, len(make()))]


def one_after_the_other(rank: int, loader: Any, epoch: int = 0) -> list[int]:
    """The first two batches of each rank, rank 1's after rank 0's: nobody waits for another."""
    loader.set_epoch(epoch)
    if rank:
        dist.barrier()
    try:
        loop = iter(loader)
        return rows([next(loop), next(loop)])
    finally:
        if not rank:
            dist.barrier()


def forked(count: int) -> dict[str, Any]:
    """Workers that begin quickly: below mp.spawn the default is to import torch in each."""
    return {"num_workers": count, "multiprocessing_context": "fork" if count else None}


def workers(count: int) -> Any:
    return epochs(DataLoader(dataset(), batch_size=None, **forked(count)), 3)


def stateful(count: int) -> Any:
    """An epoch that was resumed in its middle, and the two after it."""

    def loader() -> Any:
        return StatefulDataLoader(dataset(), batch_size=None, **forked(count))

    first, again = loader(), loader()
    loop = iter(first)
    begun = rows(next(loop) for _ in range(3))
    again.load_state_dict(first.state_dict())
    return [begun + rows(again), *epochs(again)]


def distributed_sampler() -> Any:
    """torch's own line for several ranks, with a source."""
    data = sw.torch.MapDataset(EVEN_ROWS)
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, BATCH, sampler=sampler, collate_fn=sw.torch.collate)
    seen = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen.append(rows(loader))
    return seen


if __name__ == "__main__":
    spawn(rank_main, args=(make(),), nprocs=2)

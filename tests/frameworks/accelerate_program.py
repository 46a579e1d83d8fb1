"""accelerate: what `prepare` makes of our loaders, and how it skips."""

import os
from typing import Any

from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

import stepwell as sw
from tests.frameworks.notes import BATCH, EVEN_ROWS, ROWS, SEED, Notes, epochs, rows

before = sw.torch.Loader(ROWS, BATCH, seed=SEED)
accelerator = Accelerator(cpu=True)
notes = Notes(accelerator.process_index)


def make() -> Any:
    return sw.torch.Loader(ROWS, BATCH, seed=SEED)


def torchs_class() -> Any:
    return accelerator.prepare(sw.torch.DataLoader(EVEN_ROWS, BATCH, seed=SEED))


def map_dataset() -> Any:
    data = sw.torch.MapDataset(EVEN_ROWS)
    return accelerator.prepare(DataLoader(data, BATCH, shuffle=True, collate_fn=sw.torch.collate))


def skipped(loader: Any) -> Any:
    """The epoch after the first is begun by skipping 3 of its batches; then comes the third."""
    rows(loader)
    loader.set_epoch(1)
    rest = rows(skip_first_batches(loader, 3))
    loader.set_epoch(2)
    return [rest, rows(loader)]


def checkpoint() -> Any:
    """Begun, saved and loaded by the accelerator into another loader; and the epoch after."""
    loader = accelerator.prepare(make())
    accelerator.register_for_checkpointing(loader)
    loop = iter(loader)
    begun = rows(next(loop) for _ in range(3))
    accelerator.save_state("state")
    accelerator.wait_for_everyone()
    rows(loader)
    accelerator.load_state("state")
    return [begun + rows(loader), rows(loader)]


def sharded_again(dispatch: bool | None) -> Any:
    data = sw.torch.IterableDataset(ROWS, BATCH, seed=SEED)
    how = DataLoaderConfiguration(dispatch_batches=dispatch)
    return rows(Accelerator(cpu=True, dataloader_config=how).prepare(DataLoader(data, None)))


notes.ask("Loader", lambda: epochs(accelerator.prepare(before)))
notes.ask("Loader, skipped", lambda: skipped(accelerator.prepare(make())))
notes.ask("checkpoint", checkpoint)
notes.ask("DataLoader", lambda: epochs(torchs_class(), 3))
notes.ask("DataLoader, skipped", lambda: skipped(torchs_class()))
notes.ask("MapDataset", lambda: epochs(map_dataset()))
notes.ask("IterableDataset, not dispatched", lambda: sharded_again(False))
notes.ask("IterableDataset", lambda: sharded_again(None))
os._exit(0)  # the other rank may wait for what this one refused

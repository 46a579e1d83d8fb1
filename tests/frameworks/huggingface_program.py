"""accelerate and transformers: `prepare`, skipping, checkpoints, and the Trainer."""

import os
from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import stepwell as sw
from tests.frameworks.notes import BATCH, EVEN_ROWS, HELD_OUT, ROWS, SEED, Notes, epochs, rows


def make() -> Any:
    return sw.torch.Loader(ROWS, BATCH, seed=SEED)


def iterable() -> Any:
    return sw.torch.IterableDataset(ROWS, BATCH, seed=SEED)


def skipped(loader: Any) -> Any:
    """The second epoch, of which three batches were skipped, and the third."""
    rows(loader)
    loader.set_epoch(1)
    rest = rows(skip_first_batches(loader, 3))
    loader.set_epoch(2)
    return [rest, rows(loader)]


def saved(accelerator: Accelerator) -> Any:
    """An epoch that was saved in its middle, gone on with, and loaded; and the next one."""
    loader = accelerator.prepare(make())
    accelerator.register_for_checkpointing(loader)
    loop = iter(loader)
    begun = rows(next(loop) for _ in range(3))
    accelerator.save_state("state")
    accelerator.wait_for_everyone()
    rows(loader)
    accelerator.load_state("state")
    return [begun + rows(loader), rows(loader)]


def counted() -> Any:
    """The rows that metrics are of, and after which steps of four epochs the optimizer steps."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    held_out = accelerator.prepare(sw.torch.Loader(np.arange(HELD_OUT + 1), BATCH, shuffle=False))
    loader = accelerator.prepare(make())
    beside = make().forever()
    seen: list[list[int]] = []
    steps: list[bool] = []
    kept: list[Any] = []

    def epoch(batches: Any, each: Any = None) -> None:
        for number, batch in enumerate(batches):
            if each is not None:
                each(number)
            with accelerator.accumulate():
                steps.append(accelerator.sync_gradients)
            seen[-1:] = [rows([accelerator.gather_for_metrics(batch)])]

    def validate(number: int) -> None:
        if number == 2:
            found = rows(accelerator.gather_for_metrics(batch) for batch in held_out)
            seen.insert(0, sorted(found))
        next(beside)

    def leave(number: int) -> None:
        if number == 3:  # a validation that is left at its last batch, which is not asked for more
            list(islice(held_out, len(held_out)))
        if number == 5 and accelerator.is_main_process:
            kept.append(iter(make()))
            next(kept[0])

    epoch(loader)
    epoch(loader, validate)
    epoch(loader, leave)
    epoch(skip_first_batches(loader, 3))
    return [seen, steps]


def sharded_again(dispatch: bool | None) -> Any:
    how = DataLoaderConfiguration(dispatch_batches=dispatch)
    return rows(Accelerator(cpu=True, dataloader_config=how).prepare(DataLoader(iterable(), None)))


class Model(torch.nn.Module):
    """Learns nothing, and keeps the rows of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.steps: list[list[int]] = []

    def forward(self, data: torch.Tensor) -> dict[str, torch.Tensor]:
        self.steps.append(data.tolist())
        return {"loss": self.layer(data[:, None].float()).mean()}


class OurTrainer(Trainer):
    def get_train_dataloader(self) -> Any:
        return make()


def train(kind: Any, data: Any = None, folder: str = "none", resume: int = 0) -> list[list[int]]:
    """The rows of two epochs, or of the rest after some steps."""
    model = Model()
    arguments = TrainingArguments(
        folder,
        num_train_epochs=2,
        per_device_train_batch_size=BATCH,
        save_steps=3,
        learning_rate=1e-9,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    made = kind(model=model, args=arguments, train_dataset=data, data_collator=sw.torch.collate)
    made.train(resume_from_checkpoint=f"{folder}/checkpoint-{resume}" if resume else None)
    cuts = range(-resume % 8 - 8 if resume % 8 else 0, len(model.steps), 8)  # steps of an epoch
    return [list(chain(*model.steps[max(0, cut) : cut + 8])) for cut in cuts]


def both(kind: Any, data: Any, folder: str) -> Any:
    """Two epochs at once; their rests after steps in the first and in the second."""
    return [train(kind, data, folder, step) for step in (0, 3, 9)]


def main() -> None:
    before = make()
    accelerator = Accelerator(cpu=True)
    prepare: Callable[[Any], Any] = accelerator.prepare
    notes = Notes(accelerator.process_index)
    mapped: Any = sw.torch.MapDataset(EVEN_ROWS)

    def shuffled() -> Any:
        return prepare(DataLoader(mapped, BATCH, shuffle=True, collate_fn=sw.torch.collate))

    def torchs() -> Any:
        return prepare(sw.torch.DataLoader(EVEN_ROWS, BATCH, seed=SEED))

    notes.ask("Loader", lambda: epochs(prepare(before)))
    notes.ask("Loader, skipped", lambda: skipped(prepare(make())))
    notes.ask("checkpoint", lambda: saved(accelerator))
    notes.ask("counted", counted)
    notes.ask("DataLoader", lambda: epochs(torchs(), 3))
    notes.ask("DataLoader, skipped", lambda: skipped(torchs()))
    notes.ask("MapDataset", lambda: epochs(shuffled()))
    notes.ask("IterableDataset, not dispatched", lambda: sharded_again(False))
    notes.ask("Trainer with a Loader", lambda: both(OurTrainer, None, "ours"))
    notes.ask("Trainer with a MapDataset", lambda: both(Trainer, mapped, "mapped"))
    notes.ask("Trainer with an IterableDataset", lambda: train(Trainer, iterable()))
    notes.ask("IterableDataset", lambda: sharded_again(None))
    os._exit(0)  # a rank may wait for what the other one refused


if __name__ == "__main__":
    main()

"""transformers: its Trainer with our loader, with a MapDataset, and with an IterableDataset."""

import os
from itertools import chain
from typing import Any

import torch
from transformers import Trainer, TrainingArguments

import stepwell as sw
from tests.frameworks.notes import BATCH, EVEN_ROWS, ROWS, SEED, Notes

notes = Notes(int(os.environ["RANK"]))
STEPS = 8  # of a rank in an epoch: 7 of 64 rows, and the tail


class Model(torch.nn.Module):
    """Learns nothing, and keeps the rows it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, data: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(data.tolist())
        return {"loss": self.layer(data[:, None].float()).mean()}


class OurTrainer(Trainer):
    def get_train_dataloader(self) -> Any:
        return sw.torch.Loader(ROWS, BATCH, seed=SEED)


def train(
    kind: Any, folder: str, data: Any = None, *, resume: str | None = None, **options: Any
) -> Any:
    """The rows of each epoch."""
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=BATCH,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        learning_rate=1e-9,
        **options,
    )
    model = Model()
    kind(model=model, args=arguments, train_dataset=data, data_collator=sw.torch.collate).train(
        resume_from_checkpoint=resume
    )
    batches, skipped = model.seen, 3 if resume else 0
    cuts = range(-skipped, len(batches), STEPS)
    return [list(chain(*batches[max(0, cut) : cut + STEPS])) for cut in cuts]


def both(kind: Any, folder: str, data: Any = None) -> Any:
    """Two epochs at once, and two that were cut after three steps and resumed."""
    once = train(kind, folder, data, num_train_epochs=2, save_steps=3)
    return [once, train(kind, folder, data, num_train_epochs=2, resume=f"{folder}/checkpoint-3")]


notes.ask("Loader", lambda: both(OurTrainer, "ours"))
notes.ask("MapDataset", lambda: both(Trainer, "map", sw.torch.MapDataset(EVEN_ROWS)))
iterable = sw.torch.IterableDataset(ROWS, BATCH, seed=SEED)
notes.ask("IterableDataset", lambda: train(Trainer, "iterable", iterable, num_train_epochs=1))
os._exit(0)  # the other rank may wait for what this one refused

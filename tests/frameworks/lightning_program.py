"""Lightning: fits of one process, then of two by its ddp strategy, then Fabric."""

import os
import warnings
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import stepwell as sw
from tests.frameworks.notes import BATCH, EVEN_ROWS, HELD_OUT, ROWS, SEED, Notes, epochs

warnings.filterwarnings("ignore")
rank = int(os.environ.get("LOCAL_RANK", 0))
notes = Notes(rank)


class Model(L.LightningModule):
    """Learns nothing, and keeps the rows it was shown: a list an epoch, a list a validation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.trained: list[list[int]] = []
        self.validated: list[list[int]] = []
        self._epoch = -1

    def training_step(self, batch: Any, index: int) -> Any:
        if self._epoch != self.current_epoch:
            self.trained.append([])
            self._epoch = self.current_epoch
        self.trained[-1] += batch["data"].tolist()
        return self.layer(batch["data"][:, None].float()).mean()

    def on_validation_epoch_start(self) -> None:
        self.validated.append([])

    def validation_step(self, batch: Any, index: int) -> None:
        self.validated[-1] += batch["data"].tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-9)


def train_loader() -> Any:
    return sw.torch.Loader(ROWS, BATCH, seed=SEED)


def val_loader() -> Any:
    return sw.torch.Loader(ROWS[:HELD_OUT], BATCH, shuffle=False)


def fit(
    train: Any, val: Any = None, *, resume: str | None = None, **options: Any
) -> tuple[Model, Any]:
    quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(accelerator="cpu", **quiet, **options)
    model = Model()
    trainer.fit(model, train, val, ckpt_path=resume)
    return model, trainer


def ask(name: str, steps: int, **trainer: Any) -> None:
    """The questions for any number of processes, each with some steps in an epoch."""
    ends = ""

    def whole() -> Any:
        nonlocal ends
        model, made = fit(train_loader(), val_loader(), max_epochs=2, **trainer)
        ends = made.checkpoint_callback.best_model_path
        return [model.trained, model.validated]

    def resumed() -> Any:
        return fit(train_loader(), max_epochs=4, resume=ends, **trainer)[0].trained

    def interrupted(stop: int) -> Any:
        """Cut in the second epoch, and resumed."""
        save = ModelCheckpoint(f"middle_{name}", every_n_train_steps=stop, filename="last")
        model, _ = fit(train_loader(), max_steps=stop, callbacks=[save], **trainer)
        middle = f"middle_{name}/last.ckpt"
        again, _ = fit(train_loader(), max_epochs=3, resume=middle, **trainer)
        return [model.trained[0], model.trained[1] + again.trained[0], *again.trained[1:]]

    notes.ask(f"{name}: fit", whole)
    notes.ask(f"{name}: resume from an epoch's end", resumed)
    notes.ask(f"{name}: resume in an epoch", lambda: interrupted(steps + 3))


def limited() -> Any:
    few: Any = {"limit_train_batches": 5, "limit_val_batches": 2, "max_epochs": 4}
    model, _ = fit(train_loader(), val_loader(), devices=1, enable_checkpointing=False, **few)
    return [model.trained, model.validated]


def overfit() -> Any:
    loader = sw.torch.Loader(ROWS, BATCH, shuffle=False)
    model, _ = fit(loader, devices=1, enable_checkpointing=False, overfit_batches=2, max_epochs=3)
    return model.trained


def torchs_class() -> Any:
    loader = sw.torch.DataLoader(EVEN_ROWS, BATCH, seed=SEED)
    model, _ = fit(loader, max_epochs=3, enable_checkpointing=False, **TWO)
    return model.trained


def fabric() -> Any:
    fabric = L.Fabric(accelerator="cpu", **TWO)
    fabric.launch()
    return epochs(fabric.setup_dataloaders(sw.torch.DataLoader(EVEN_ROWS, BATCH, seed=SEED)))


def main() -> None:
    if "LOCAL_RANK" not in os.environ:  # Lightning starts this program again for the second rank
        ask("one process", 16, devices=1)
        notes.ask("limits", limited)
        notes.ask("overfit", overfit)
    ask("two processes", 8, **TWO)
    notes.ask("DataLoader", torchs_class)
    notes.ask("Fabric", fabric)


TWO: dict[str, Any] = {"devices": 2, "strategy": "ddp"}
if __name__ == "__main__":
    main()

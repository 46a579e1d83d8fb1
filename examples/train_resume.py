"""Train a small model; when it is killed and started again, it goes on exactly where it was.

python examples/train_resume.py [resume-data/]

A few seconds. It saves a checkpoint after every batch, and counts how often each row was seen.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch

import stepwell as sw

EPOCHS, ROWS = 3, 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        default=Path("resume-data"),
        help="folder for checkpoint.pt, made if it is missing (default: %(default)s)",
    )
    args = parser.parse_args()
    try:
        args.data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"data: expected a folder - {error}")
    checkpoint = args.data / "checkpoint.pt"

    x = np.random.default_rng(0).normal(size=(ROWS, 8)).astype(np.float32)
    data = {"x": x, "y": x @ np.arange(8, dtype=np.float32), "row": np.arange(ROWS)}
    model, seen = torch.nn.Linear(8, 1), torch.zeros(EPOCHS, ROWS, dtype=torch.int64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loader = sw.torch.Loader(data, 256, seed=7)
    if checkpoint.exists():
        try:
            saved = torch.load(checkpoint)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            seen = saved["seen"]
        except Exception as error:  # cut, of other data, of another network
            name = type(error).__name__
            parser.error(f"{checkpoint}: expected a checkpoint of this training, got a {name}")
    while loader.epoch < EPOCHS:
        for batch in loader:
            loss = torch.nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen[loader.epoch, batch["row"]] += 1
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            new = {**state, "loader": loader.state_dict(), "seen": seen}
            torch.save(new, f"{checkpoint}.tmp")
            os.replace(f"{checkpoint}.tmp", checkpoint)
            at = f"epoch {loader.epoch} row {loader.position}"
            print(f"{at} loss {loss.item():.4f}", flush=True)
    once = bool((seen == 1).all())
    print(f"every row exactly once in each of {EPOCHS} epochs: {once}; see {checkpoint}")


if __name__ == "__main__":
    main()

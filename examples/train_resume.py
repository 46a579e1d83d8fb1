"""Train a small model; when it is killed and started again, it goes on exactly where it was.

python examples/train_resume.py checkpoint.pt
"""

import os
import sys

import numpy as np
import torch

import stepwell as sw

EPOCHS, ROWS = 3, 20_000


def main(checkpoint: str) -> None:
    x = np.random.default_rng(0).normal(size=(ROWS, 8)).astype(np.float32)
    data = {"x": x, "y": x @ np.arange(8, dtype=np.float32), "row": np.arange(ROWS)}
    model, seen = torch.nn.Linear(8, 1), torch.zeros(EPOCHS, ROWS, dtype=torch.int64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    loader = sw.torch.Loader(data, 256, seed=7)
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        seen = saved["seen"]
    while loader.epoch < EPOCHS:
        for batch in loader:
            loss = torch.nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen[loader.epoch, batch["row"]] += 1
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "loader": loader.state_dict(), "seen": seen}, checkpoint + ".tmp")
            os.replace(checkpoint + ".tmp", checkpoint)
            position = loader.state_dict()["position"]
            print(f"epoch {loader.epoch} row {position} loss {loss.item():.4f}", flush=True)
    once = bool((seen == 1).all())
    print(f"every row exactly once in each of {EPOCHS} epochs: {once}")


if __name__ == "__main__":
    main(sys.argv[1])

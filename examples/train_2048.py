"""Train a policy network on games of 2048; killed and started again, it goes on exactly there.

python examples/train_2048.py [2048-data/]

The games are played first, by an expectimax player that looks two moves ahead; the network learns
to choose as it does from the board alone. With the defaults it makes the player's move in 65 % of
the steps of games it has never seen, after less than a minute on two cores; a guess among the
legal moves is right in 29 %. More games, epochs and width make it better.
"""

import argparse
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import stepwell as sw
from stepwell import game2048


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        default=Path("2048-data"),
        help="folder of the games and the checkpoint, made if it is missing (default: %(default)s)",
    )
    parser.add_argument("--games", type=count, default=500, help="to play if there are none")
    parser.add_argument("--epochs", type=count, default=2)
    parser.add_argument("--batch-size", type=count, default=1024)
    parser.add_argument("--width", type=count, default=256, help="of the network's layers")
    parser.add_argument("--every", type=count, default=200, help="steps between checkpoints")
    parser.add_argument("--checkpoint", type=Path, help="default: policy.pt in the folder")
    args = parser.parse_args()
    if args.games < 5:
        parser.error(f"argument --games: expected at least 5, some are held out, got {args.games}")
    begin = time.perf_counter()

    try:
        steps = open_games(args.data, args.games)
    except (OSError, ValueError) as error:
        parser.error(f"data: expected a folder of games, or room for one - {error}")
    train, held_out = steps.split(0.9, seed=1)  # whole games: no board of one is in the other
    print(
        f"{args.data}: {len(train):,} steps to learn from, {len(held_out):,} held out", flush=True
    )

    torch.manual_seed(0)
    model = policy(args.width)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-4)
    augmented = game2048.Decode("one_hot", augment=True)
    loader = sw.torch.Loader(train, args.batch_size, seed=1, transform=augmented)
    checkpoint = args.checkpoint or args.data / "policy.pt"
    step = 0
    if checkpoint.exists():
        try:
            saved = torch.load(checkpoint)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            step = saved["step"]
        except Exception as error:  # cut, of other data, of another network
            name = type(error).__name__
            parser.error(f"{checkpoint}: expected a checkpoint of this training, got a {name}")
        print(f"goes on after step {step}", flush=True)

    total = args.epochs * len(loader)
    waited, started = 0.0, time.perf_counter()
    losses: list[Tensor] = []
    batches = loader.forever()
    while step < total:
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step / total)
        loss = nn.functional.cross_entropy(logits(model, batch), batch["move"].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        losses.append(loss.detach())
        if step % args.every == 0 or step == total:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save({**state, "loader": loader.state_dict(), "step": step}, checkpoint)
            share = waited / (time.perf_counter() - started)
            mean = torch.stack(losses).mean().item()
            print(f"step {step} of {total}: loss {mean:.4f}, waited {share:.1%}", flush=True)
            losses.clear()
    share = waited / max(time.perf_counter() - started, 1e-9)
    loader.close()

    accuracy = measure(model, held_out)
    seconds = time.perf_counter() - begin
    print(
        f"{step} steps, accuracy {accuracy:.2%} on held-out games, {seconds:.0f} s, "
        f"{share:.1%} of the training spent waiting for data"
    )


def count(text: str) -> int:
    """How many, from a command line: a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def open_games(data: Path, games: int) -> sw.StepReader:
    """The steps of the games in a folder, which are played when there are none."""
    if not (data / "steps").exists():
        print(f"playing {games} games", flush=True)
        game2048.play_to(data / "runs", games, seed=1)
        sw.convert(data / "runs", data / "steps")
    return sw.StepReader.open(data / "steps")


def policy(width: int) -> nn.Module:
    """From 16 cells of 16 classes to a number for each move."""
    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(256, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, 4),
    )


def logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """What the network thinks of each move; of one that is illegal, nothing."""
    scores: Tensor = model(batch["board"])
    return scores.masked_fill(~batch["ev_legal"], -1e9)


def learning_rate(done: float) -> float:
    """A short warm-up, then half a cosine: a function of progress, so it resumes by itself."""
    return 4e-3 * min(1.0, done / 0.02) * 0.5 * (1 + math.cos(math.pi * done)) + 1e-5


@torch.no_grad()
def measure(model: nn.Module, steps: sw.StepReader) -> float:
    """The share of steps in which the network's first choice is the player's move."""
    right = 0
    decode = game2048.Decode("one_hot")
    with sw.torch.Loader(steps, 4096, shuffle=False, transform=decode) as loader:
        for batch in loader:
            right += int((logits(model, batch).argmax(1) == batch["move"]).sum())
    return right / len(steps)


def save(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint beside the last one, then put it in its place: a kill leaves either."""
    torch.save(state, f"{path}.tmp")
    os.replace(f"{path}.tmp", path)


if __name__ == "__main__":
    main()

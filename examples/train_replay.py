"""Record CartPole, then learn to play it from the better half of the recording.

python examples/train_replay.py [cartpole-data/]

A clumsy player, which knows where to push but does every second thing at random, is recorded into
a replay store. A network learns to do what it did in its better episodes, and never touches the
environment until it is tested: it keeps the pole up several times as long as its teacher, because
what was random is no rule. A few seconds on two cores.
"""

import argparse
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import stepwell as sw
from stepwell.replay import Record, ReplayReader


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        default=Path("cartpole-data"),
        help="folder of the replay store, made if it is missing (default: %(default)s)",
    )
    parser.add_argument("--record", type=count, default=20_000, help="steps, if there are none")
    parser.add_argument("--steps", type=count, default=1000, help="of training")
    parser.add_argument("--batch-size", type=count, default=256)
    parser.add_argument("--games", type=count, default=20, help="to test with")
    args = parser.parse_args()
    begin = time.perf_counter()

    try:
        if not (args.data / "telemetry").is_dir():
            record(args.data, args.record)
        replays = ReplayReader.open(args.data, next_observation=False)
    except (OSError, ValueError) as error:
        parser.error(f"data: expected a folder of a replay store, or room for one - {error}")
    with replays:
        rewards = replays.where("ended").runs["total_reward"]
        middle = float(np.median(rewards)) if len(rewards) else 0.0
        good = replays.where("ended AND total_reward >= ?", middle)
        if args.batch_size > len(good):
            parser.error(
                f"{args.data}: expected at least {args.batch_size} steps to learn from "
                f"(--batch-size), got {len(good)}"
            )
        before = float(np.mean(rewards))
        print(f"recorded: reward {before:.1f} in {len(rewards)} episodes", flush=True)
        network = learn(good, args.steps, args.batch_size)
    after = float(np.mean(play(network, args.games)))
    print(f"learned: reward {after:.1f} in {args.games} games, {after / before:.1f} times as much")
    seconds = time.perf_counter() - begin
    print(f"{args.steps} steps, {seconds:.0f} s; the recording is in {args.data}")


def count(text: str) -> int:
    """How many, from a command line: a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def record(root: Path, steps: int) -> None:
    """Let the clumsy player play."""
    draw = np.random.default_rng(1)
    with Record(gym.make("CartPole-v1"), root, frames=None) as env:
        seen, _ = env.reset(seed=1)
        for _ in range(steps):
            pushed = int(seen[2] + seen[3] > 0)  # to where the pole falls
            action = pushed if draw.random() < 0.5 else int(draw.integers(2))
            seen, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                seen, _ = env.reset()


def learn(source: sw.Source, steps: int, batch_size: int) -> nn.Module:
    """Learn which action follows which observation, from random batches of recorded steps."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more of them do not help a network this small
    network = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    losses: list[float] = []
    with sw.torch.Loader(source, batch_size, seed=1, drop_last=True) as loader:
        for step, batch in zip(range(1, steps + 1), loader.forever(), strict=False):
            loss = nn.functional.cross_entropy(network(batch["observation"]), batch["action"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step % 200 == 0 or step == steps:
                print(f"step {step} of {steps}: loss {np.mean(losses[-50:]):.4f}", flush=True)
    return network


def play(network: nn.Module, games: int) -> list[float]:
    """The rewards of games in which the network decides."""
    rewards = []
    with gym.make("CartPole-v1") as env:
        for game in range(games):
            seen, _ = env.reset(seed=1000 + game)
            total, over = 0.0, False
            while not over:
                seen, reward, terminated, truncated, _ = env.step(choose(network, seen))
                total, over = total + float(reward), terminated or truncated
            rewards.append(total)
    return rewards


@torch.no_grad()
def choose(network: nn.Module, seen: NDArray[np.float32]) -> int:
    return int(network(torch.from_numpy(seen)).argmax())


if __name__ == "__main__":
    main()

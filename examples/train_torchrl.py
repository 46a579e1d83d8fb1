"""Record CartPole through TorchRL, then learn from the recording in a TorchRL buffer.

python examples/train_torchrl.py [torchrl-data/]

The environment inside TorchRL's wrapper records itself into a replay store. The steps go into a
TorchRL ReplayBuffer in one call for each batch, in TorchRL's layout, and DQN learns from samples of
it, without the environment. Half a minute on two cores.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymWrapper
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss, HardUpdate

import stepwell as sw
from stepwell.replay import Record, ReplayReader


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        default=Path("torchrl-data"),
        help="folder of the replay store, made if it is missing (default: %(default)s)",
    )
    parser.add_argument("--record", type=count, default=10_000, help="steps, if there are none")
    parser.add_argument("--steps", type=count, default=2000, help="of training from the recording")
    parser.add_argument("--games", type=count, default=10, help="to test with")
    args = parser.parse_args()
    begin = time.perf_counter()
    torch.manual_seed(1)
    torch.set_num_threads(1)  # more of them do not help a network this small
    try:
        if not (args.data / "telemetry").is_dir():
            record(args.data, args.record)
        replays = ReplayReader.open(args.data)
    except (OSError, ValueError) as error:
        parser.error(f"data: expected a folder of a replay store, or room for one - {error}")
    with replays:
        rewards = replays.where("ended").runs["total_reward"]
        print(f"recorded: reward {sum(rewards) / len(rewards):.1f} in {len(rewards)} episodes")
        buffer = ReplayBuffer(storage=LazyTensorStorage(len(replays)), batch_size=128)
        fill(buffer, replays)
    actor = learn(buffer, args.steps)
    mean = sum(play(actor, seed) for seed in range(args.games)) / args.games
    print(f"learned: reward {mean:.1f} in {args.games} games")
    seconds = time.perf_counter() - begin
    print(f"{args.steps} steps, {seconds:.0f} s; the recording is in {args.data}")


def count(text: str) -> int:
    """How many, from a command line: a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def record(root: Path, steps: int) -> None:
    """Act at random in an environment that records itself."""
    recorded = Record(gym.make("CartPole-v1"), root, frames=None)
    env = GymWrapper(recorded, categorical_action_encoding=True)
    try:
        env.set_seed(1)
        env.rollout(steps, break_when_any_done=False)
    finally:
        env.close()


def fill(buffer: ReplayBuffer, source: sw.Source) -> None:
    """Put recorded steps into the buffer, a batch a call, as TorchRL lays them out."""
    with sw.torch.Loader(source, 4096, shuffle=False) as loader:
        for batch in loader:
            column = {name: batch[name][:, None] for name in ("reward", "terminated", "truncated")}
            after = {
                "observation": batch["next_observation"],
                "reward": column["reward"].float(),
                "terminated": column["terminated"],
                "truncated": column["truncated"],
                "done": column["terminated"] | column["truncated"],
            }
            steps = {"observation": batch["observation"], "action": batch["action"], "next": after}
            buffer.extend(TensorDict(steps, batch_size=len(batch["action"])))


def learn(buffer: ReplayBuffer, steps: int) -> Any:
    """DQN, from samples of the buffer."""
    network = MLP(in_features=4, out_features=2, num_cells=[64, 64])
    actor = QValueActor(network, in_keys=["observation"], action_space="categorical")
    loss_of = DQNLoss(actor, action_space="categorical", delay_value=True)
    loss_of.make_value_estimator(gamma=0.99)
    target = HardUpdate(loss_of, value_network_update_interval=100)
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=1e-3)
    for step in range(1, steps + 1):
        loss = loss_of(buffer.sample())["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        target.step()
        if step % 500 == 0 or step == steps:
            print(f"step {step} of {steps}: loss {loss.item():.4f}", flush=True)
    return actor


def play(actor: Any, seed: int) -> float:
    """The reward of a game in which the network decides."""
    env = GymWrapper(gym.make("CartPole-v1"), categorical_action_encoding=True)
    env.set_seed(1000 + seed)
    with torch.no_grad():
        game = env.rollout(500, actor)
    env.close()
    return float(game["next", "reward"].sum())


if __name__ == "__main__":
    main()

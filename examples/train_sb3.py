"""Record PPO while it learns CartPole; then DQN learns from the recording alone.

python examples/train_sb3.py [sb3-data/]

Each environment of the vector records itself into a replay store, as a run of its own. The steps go
into the ReplayBuffer of stable-baselines3 in one call for each batch, the last observations of
episodes and the difference between terminated and truncated included. Half a minute on two cores.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

import stepwell as sw
from stepwell.replay import Record, ReplayReader


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        default=Path("sb3-data"),
        help="folder of the replay store, made if it is missing (default: %(default)s)",
    )
    parser.add_argument("--record", type=count, default=20_000, help="steps, if there are none")
    parser.add_argument("--envs", type=count, default=4, help="to record at once")
    parser.add_argument("--steps", type=count, default=4000, help="of training from the recording")
    parser.add_argument("--games", type=count, default=20, help="to test with")
    args = parser.parse_args()
    begin = time.perf_counter()
    torch.set_num_threads(1)  # more of them do not help networks this small
    try:
        if not (args.data / "telemetry").is_dir():
            record(args.data, args.record, args.envs)
        replays = ReplayReader.open(args.data)
    except (OSError, ValueError) as error:
        parser.error(f"data: expected a folder of a replay store, or room for one - {error}")
    with replays:
        rewards = replays.where("ended").runs["total_reward"]
        print(f"recorded: reward {np.mean(rewards):.1f} in {len(rewards)} episodes", flush=True)
        test = make_vec_env("CartPole-v1", seed=1000)
        model = DQN("MlpPolicy", test, buffer_size=len(replays), learning_rate=1e-3, seed=1)
        assert model.replay_buffer is not None
        fill(model.replay_buffer, replays)
    model.learn(0)  # sets up what train() needs, without a step
    for done in range(0, args.steps, 100):
        model.train(min(100, args.steps - done), batch_size=128)
        model.q_net_target.load_state_dict(model.q_net.state_dict())
    reward, _ = evaluate_policy(model, test, args.games)
    test.close()
    print(f"learned: reward {reward:.1f} in {args.games} games")
    seconds = time.perf_counter() - begin
    print(f"{args.steps} steps, {seconds:.0f} s; the recording is in {args.data}")


def count(text: str) -> int:
    """How many, from a command line: a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def record(root: Path, steps: int, envs: int) -> None:
    """Let PPO learn, in environments that record themselves."""
    options: dict[str, Any] = {"root": root, "frames": None}
    recorded: Any = Record
    vector = make_vec_env(
        "CartPole-v1", envs, seed=1, wrapper_class=recorded, wrapper_kwargs=options
    )
    try:
        PPO("MlpPolicy", vector, n_steps=256, seed=1, device="cpu").learn(steps)
    finally:
        vector.close()


def fill(buffer: ReplayBuffer, source: sw.Source) -> None:
    """Put recorded steps into the buffer, a batch a call."""
    with sw.Loader(source, 4096, shuffle=False) as loader:
        for batch in loader:
            cut = batch["truncated"] & ~batch["terminated"]
            buffer.extend(
                batch["observation"],
                batch["next_observation"],
                batch["action"],
                batch["reward"],
                batch["terminated"] | batch["truncated"],
                [[{"TimeLimit.truncated": each}] for each in cut],
            )


if __name__ == "__main__":
    main()

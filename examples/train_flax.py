"""Train a Flax network over all devices; killed and started again, it goes on where it was.

python examples/train_flax.py [flax-data/]

Small pictures are written into a record store, once. Flax NNX has the network, optax the optimizer,
orbax the checkpoints; each holds the loader's state too. Batches are sharded over every device that
JAX has, all of one shape, with a mask where the last one of an epoch is filled up. Half a minute on
two cores; XLA_FLAGS=--xla_force_host_platform_device_count=4 gives a CPU four devices.
"""

import argparse
import logging
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import stepwell as sw


class Network(nnx.Module):
    """Two layers, for pictures of 8 by 8."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(64, width, rngs=rngs)
        self.last = nnx.Linear(width, 10, rngs=rngs)

    def __call__(self, image: jax.Array) -> jax.Array:
        return self.last(nnx.relu(self.first(image.reshape(-1, 64) / 255)))


def loss_of(network: Network, batch: dict[str, jax.Array]) -> jax.Array:
    """The mean loss of the rows in a batch; the others only fill it up."""
    losses = optax.softmax_cross_entropy_with_integer_labels(
        network(batch["image"]), batch["label"]
    )
    return jnp.mean(losses, where=batch["mask"])


@nnx.jit
def train_step(
    network: Network, optimizer: nnx.Optimizer[Network], batch: dict[str, jax.Array]
) -> jax.Array:
    loss: jax.Array
    loss, gradients = nnx.value_and_grad(loss_of)(network, batch)
    optimizer.update(network, gradients)
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "data",
        type=Path,
        nargs="?",
        default=Path("flax-data"),
        help="folder of pictures and checkpoints, made if it is missing (default: %(default)s)",
    )
    parser.add_argument("--rows", type=count, default=20_011, help="pictures, if there are none")
    parser.add_argument("--epochs", type=count, default=5)
    parser.add_argument("--batch-size", type=count, default=256)
    parser.add_argument("--width", type=count, default=128, help="of the hidden layer")
    parser.add_argument("--every", type=count, default=50, help="steps between checkpoints")
    args = parser.parse_args()
    begin = time.perf_counter()
    try:
        args.data.mkdir(parents=True, exist_ok=True)
        pictures = open_pictures(args.data / "pictures", args.rows)
    except (OSError, ValueError) as error:
        parser.error(f"data: expected a folder of pictures, or room for one - {error}")

    mesh = Mesh(jax.devices(), ("data",))
    sharding, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["data"], []))
    if args.batch_size % len(jax.devices()):
        parser.error(f"--batch-size: expected a multiple of {len(jax.devices())}, the devices")
    loader = sw.jax.Loader(pictures, args.batch_size, seed=1, device=sharding, pad_last=True)
    network = Network(args.width, nnx.Rngs(0))
    optimizer = nnx.Optimizer(network, optax.adam(1e-3), wrt=nnx.Param)
    for part in (network, optimizer):
        nnx.update(part, jax.device_put(nnx.state(part), everywhere))
    seen = np.zeros(len(pictures), np.int32)  # how often each row was trained on

    logging.getLogger("absl").setLevel(logging.ERROR)
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager((args.data / "checkpoints").absolute(), options=options) as manager:
        done = manager.latest_step() or 0
        if done:
            try:
                seen = restore(manager, done, network, optimizer, loader)
            except Exception as error:  # cut, of other data, of another network
                name = type(error).__name__
                parser.error(f"{args.data}: expected checkpoints of this training, got a {name}")
            print(f"goes on after step {done}", flush=True)
        steps = args.epochs * len(loader)
        for step, batch in zip(range(done + 1, steps + 1), loader.forever(), strict=False):
            loss = train_step(network, optimizer, batch)
            np.add.at(seen, np.asarray(batch["row"])[np.asarray(batch["mask"])], 1)
            if step % args.every == 0 or step == steps:
                print(f"step {step} of {steps}: loss {float(loss):.6f}", flush=True)
                save(manager, step, network, optimizer, loader, seen)
    once = bool((seen == args.epochs).all())
    print(f"every row exactly once in each of {args.epochs} epochs: {once}")
    test = sw.jax.Loader(pictures, args.batch_size, shuffle=False, pad_last=True)
    seconds = time.perf_counter() - begin
    right = accuracy(network, test)
    print(f"{steps} steps on {jax.device_count()} devices, {seconds:.0f} s; accuracy {right:.1%}")


def count(text: str) -> int:
    """How many, from a command line: a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return int(text)


def open_pictures(path: Path, rows: int) -> sw.RecordReader:
    """Noisy pictures of ten kinds; written the first time."""
    if not (path / "meta.json").exists():
        draw = np.random.default_rng(0)
        kinds = draw.integers(0, 256, (10, 8, 8))
        label = draw.integers(0, 10, rows).astype(np.int32)
        noise = draw.normal(0, 160, (rows, 8, 8))
        image = np.clip(kinds[label] + noise, 0, 255).astype(np.uint8)
        fields: dict[str, Any] = {"image": sw.Field("u1", (8, 8)), "label": "<i4", "row": "<i4"}
        with sw.RecordWriter(path, fields) as writer:
            row = np.arange(rows, dtype=np.int32)
            writer.append({"image": image, "label": label, "row": row})
    return sw.RecordReader.open(path)


def save(
    manager: ocp.CheckpointManager,
    step: int,
    network: Network,
    optimizer: nnx.Optimizer[Network],
    loader: sw.jax.Loader,
    seen: np.ndarray[Any, Any],
) -> None:
    tree = {"network": nnx.state(network), "optimizer": nnx.state(optimizer), "seen": seen}
    arrays, position = ocp.args.StandardSave(tree), ocp.args.JsonSave(loader.state_dict())
    manager.save(step, args=ocp.args.Composite(arrays=arrays, loader=position))


def restore(
    manager: ocp.CheckpointManager,
    step: int,
    network: Network,
    optimizer: nnx.Optimizer[Network],
    loader: sw.jax.Loader,
) -> np.ndarray[Any, Any]:
    """Put everything back to where it was after a step; returns how often each row was seen."""
    seen = np.zeros(len(loader.source), np.int32)
    tree = {"network": nnx.state(network), "optimizer": nnx.state(optimizer), "seen": seen}
    arrays, position = ocp.args.StandardRestore(tree), ocp.args.JsonRestore()
    saved = manager.restore(step, args=ocp.args.Composite(arrays=arrays, loader=position))
    nnx.update(network, saved["arrays"]["network"])
    nnx.update(optimizer, saved["arrays"]["optimizer"])
    loader.load_state_dict(saved["loader"])
    return np.array(saved["arrays"]["seen"])


def accuracy(network: Network, loader: sw.jax.Loader) -> float:
    """How many of the pictures the network names, each counted once."""
    named = nnx.jit(lambda network, batch: network(batch["image"]).argmax(1) == batch["label"])
    return sum(int((named(network, b) & b["mask"]).sum()) for b in loader) / len(loader.source)


if __name__ == "__main__":
    main()

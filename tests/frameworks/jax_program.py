"""JAX: four devices of one process, then two processes with two devices each."""

import multiprocessing
import os
import socket
from functools import partial
from typing import Any

import numpy as np

import stepwell as sw
from tests.frameworks.notes import BATCH, SEED, Notes, epochs, resumed, rows

N = 998  # the last batch has rows for four devices and two more


def make(**options: Any) -> Any:
    return sw.jax.Loader(np.arange(N, dtype=np.int32), BATCH, seed=SEED, **options)


def over_all_devices() -> Any:
    import jax

    mesh = jax.sharding.Mesh(jax.devices(), ("data",))
    assert mesh.size == 4
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))


def here(values: Any) -> list[Any]:
    """The values on the devices of this process."""
    parts = sorted(values.addressable_shards, key=lambda shard: shard.index)
    return [value for part in parts for value in np.asarray(part.data).tolist()]


def masked(loader: Any) -> list[int]:
    """The rows that the mask names."""
    pairs = [(here(b["data"]), here(b["mask"])) for b in loader]
    return [row for data, mask in pairs for row, own in zip(data, mask, strict=True) if own]


def ask(notes: Notes, name: str) -> None:
    sharding = over_all_devices()

    def padded() -> Any:
        loader = make(device=sharding, pad_last=True)
        shapes = [list(batch["data"].shape) for batch in loader]
        return [shapes, masked(loader), masked(loader)]

    notes.ask(name, lambda: [row for b in make(device=sharding) for row in here(b["data"])])
    notes.ask(f"{name}, masked", padded)


def resume() -> Any:
    """The rest of an epoch and the next one, from its middle and from its end."""
    return [epochs(resumed(make, stop)) for stop in (3, len(make()))]


def out_of(world: int, rank: int) -> Any:
    """The rest of an epoch that another number of ranks began."""
    loader = make(rank=rank % world, world_size=world)
    for _ in zip(range(3), loader, strict=False):
        pass
    again = make()
    again.load_state_dict(loader.state_dict())
    return rows(again)


def own_blocks() -> Any:
    """Two epochs in lanes, each rank's own rows."""
    data, sampler = np.arange(N, dtype=np.int32), sw.Block(10, SEED, group=20, lanes=4)
    loader = sw.jax.Loader(data, BATCH, sampler=sampler, device=over_all_devices(), pad_last=True)
    return [masked(loader), masked(loader)]


def rank_main(rank: int, port: int) -> None:
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    import jax

    notes = Notes(rank)
    early = make()
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
    notes.ask("loader before initialize", lambda: [rows(early), rows(early)])
    notes.ask("repr", lambda: [repr(early)])
    ask(notes, "two processes")
    notes.ask("an exact resume", resume)
    notes.ask("a resume in a world of one", lambda: rows(resumed(make, 3, rank=0, world_size=1)))
    for world in (1, 4):
        notes.ask(f"a resume out of a world of {world}", partial(out_of, world, rank))
    notes.ask("blocks of one's own", own_blocks)


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=rank_main, args=(rank, port)) for rank in range(2)]
    for each in ranks:
        each.start()
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    ask(Notes(2), "four devices")
    for each in ranks:
        each.join()

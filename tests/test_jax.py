"""JAX arrays on a device, over a sharding, and across processes."""

import socket
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import stepwell as sw
from tests.children import answer, at_once

N = 1000


def numbers() -> sw.ArraySource:
    i = np.arange(N, dtype=np.int32)
    return sw.ArraySource({"i": i, "x": (i[:, None] * [1, 2]).astype(np.float32)})


def rows(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch["i"].tolist()]


def order() -> list[int]:
    numbers: list[int] = sw.Shuffle(7).order(N).rows(0, 0, N).tolist()
    return numbers


def test_batches_are_arrays_on_a_device() -> None:
    device = jax.devices()[0]
    batches = list(sw.jax.Loader(numbers(), 64, seed=7, device=device))
    assert rows(batches) == order()  # read after all have been made: no buffer was reused
    assert all(isinstance(b["x"], jax.Array) and b["x"].devices() == {device} for b in batches)
    np.testing.assert_array_equal(batches[3]["x"], np.asarray(batches[3]["i"])[:, None] * [1, 2])


def test_the_state_counts_what_the_consumer_got() -> None:
    loader = sw.jax.Loader(numbers(), 64, seed=7)
    loop = iter(loader)
    got = rows(next(loop) for _ in range(3))
    assert loader.state_dict()["position"] == 192  # not the batch that is already on its way
    plain = sw.Loader(numbers(), 50, seed=7)
    plain.load_state_dict(loader.state_dict())
    assert got + rows(plain) == order()


def test_64_bit_fields_are_refused_not_cut() -> None:
    source = sw.ArraySource({"board": np.array([2**63, 1], np.uint64)})
    with pytest.raises(sw.SchemaError, match=r"'board' is uint64.*jax_enable_x64"):
        next(iter(sw.jax.Loader(source, 2)))
    with jax.enable_x64(True):
        batch = next(iter(sw.jax.Loader(source, 2, shuffle=False)))
        assert batch["board"].tolist() == [2**63, 1]


def test_ragged_fields_are_refused() -> None:
    def ragged(batch: sw.Batch) -> sw.Batch:
        return {"i": sw.Ragged(batch["i"], np.arange(len(batch["i"]) + 1))}

    with pytest.raises(sw.SchemaError, match="ragged"):
        next(iter(sw.jax.Loader(numbers(), 4, transform=ragged)))


SHARDED = """
import jax, numpy as np, stepwell as sw
from jax.sharding import Mesh, NamedSharding, PartitionSpec
sharding = NamedSharding(Mesh(jax.devices(), ("data",)), PartitionSpec("data"))
assert len(jax.devices()) == 4
loader = sw.jax.Loader(np.arange(1000, dtype=np.int32), 64, seed=7, drop_last=True, device=sharding)
got = []
for batch in loader:
    assert batch["data"].sharding == sharding
    assert [s.data.shape for s in batch["data"].addressable_shards] == [(16,)] * 4
    got += batch["data"].tolist()
assert got == sw.Shuffle(7).order(1000).rows(0, 0, 960).tolist()
"""


def test_a_sharding_over_several_devices() -> None:
    answer(SHARDED, env={"XLA_FLAGS": "--xla_force_host_platform_device_count=4"})


PROCESSES = """
import sys, jax, numpy as np, stepwell as sw
rank, port = int(sys.argv[1]), sys.argv[2]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
from jax.sharding import Mesh, NamedSharding, PartitionSpec
sharding = NamedSharding(Mesh(jax.devices(), ("data",)), PartitionSpec("data"))
data = np.arange(1000, dtype=np.int32)
order = sw.Shuffle(7).order(1000).rows(0, 0, 1000)
for step, batch in enumerate(sw.jax.Loader(data, 50, seed=7, device=sharding)):
    assert batch["data"].shape == (100,)  # the global batch
    mine = np.asarray(batch["data"].addressable_shards[0].data)
    start = step * 100 + rank * 50
    np.testing.assert_array_equal(mine, order[start : start + 50])
    assert int(jax.jit(lambda x: x.sum())(batch["data"])) == order[step * 100 :][:100].sum()
print("steps", step + 1)
"""


def test_global_arrays_from_two_processes() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    said = at_once(*(partial(answer, PROCESSES, str(rank), str(port)) for rank in range(2)))
    assert [text.splitlines()[-1] for text in said] == ["steps 10"] * 2


def test_one_device_sharding_of_this_process() -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))
    loader = sw.jax.Loader(numbers(), 100, seed=7, device=sharding)
    assert rows(loader) == order()

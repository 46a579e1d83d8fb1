"""JAX arrays on a device, over a sharding, and across processes."""

import socket
from ast import literal_eval
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import stepwell as sw
from stepwell.source import Rows
from tests.children import answer, at_once
from tests.plain import PlainSource

N = 1000


def devices(count: int) -> dict[str, str]:
    """The environment of a process that shall see so many devices."""
    return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}


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


def test_padded_batches_have_one_shape_and_a_mask() -> None:
    loader = sw.jax.Loader(numbers(), 64, seed=7, pad_last=True)
    batches = list(loader)
    assert {batch["x"].shape for batch in batches} == {(64, 2)}
    assert {batch["mask"].dtype for batch in batches} == {jax.numpy.bool.dtype}
    assert [row for b in batches for row in b["i"][b["mask"]].tolist()] == order()
    last = batches[-1]
    assert last["mask"].tolist() == [True] * 40 + [False] * 24
    assert set(last["i"][40:].tolist()) <= set(last["i"][:40].tolist())  # real rows, no zeros


@pytest.mark.parametrize("rows", [1, 2, 3, 31, 32, 33, 63, 64, 65, 100])
@pytest.mark.parametrize("lanes", [1, 4, 6])
def test_masks_of_all_ranks_have_each_row_once(rows: int, lanes: int) -> None:
    options: Any = {"sampler": sw.Block(3, lanes=lanes), "world_size": 4, "pad_last": True}
    seen = [
        row
        for rank in range(4)
        for batch in sw.jax.Loader(np.arange(rows, dtype=np.int32), 8, rank=rank, **options)
        for row in batch["data"][batch["mask"]].tolist()
    ]
    assert sorted(seen) == list(range(rows))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("sampler", [sw.Sequential(), sw.Block(4, lanes=3)], ids=repr)
def test_masks_beside_damaged_rows(ranks: int, sampler: sw.Sampler) -> None:
    """Rows that were left out are in no batch; the others are there once, whoever fills up."""
    damaged = {0, 17, 18, 19, 99}

    class Damaged(PlainSource):
        def _fill(self, rows: Rows, out: sw.Batch) -> None:
            if damaged & set(rows.tolist()):
                raise sw.FormatError("damaged")
            super()._fill(rows, out)

    source = Damaged({"i": np.arange(100, dtype=np.int32)})
    options: Any = {"sampler": sampler, "pad_last": True, "on_corrupt": "skip", "world_size": ranks}
    seen = []
    for rank in range(ranks):
        for batch in sw.jax.Loader(source, 9, rank=rank, **options):
            assert batch["i"].shape == (9,)
            seen += batch["i"][batch["mask"]].tolist()
    assert sorted(seen) == sorted(set(range(100)) - damaged)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"drop_last": True}, ValueError, "give either drop_last or pad_last"),
        ({"transform": lambda b: {"mask": b["i"]}}, sw.SchemaError, "'mask': expected another"),
        ({"transform": lambda b: {"i": b["i"][::2]}}, ValueError, "expected 64 rows .* got 32"),
        ({"transform": lambda b: {**b, "n": b["i"][:1]}}, ValueError, "expected 64 rows in each"),
    ],
)
def test_what_cannot_be_padded(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        next(iter(sw.jax.Loader(numbers(), 64, pad_last=True, **options)))


SHARDED = """
import jax, numpy as np, pytest, stepwell as sw
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
assert len(jax.devices()) == 4
i = np.arange(1003, dtype=np.int32)
order = sw.Shuffle(7).order(1003).rows(0, 0, 1003).tolist()
data = {"i": i, "x": np.stack([i, -i], 1)}

def check(mesh, spec, shards, **options):
    sharding = NamedSharding(mesh, spec)
    batches = list(sw.jax.Loader(data, 64, seed=7, device=sharding, **options))
    for batch in batches:
        assert batch["x"].sharding == sharding
        assert batch["i"].sharding == NamedSharding(mesh, P(*spec[:1]))
        assert {s.data.shape for s in batch["i"].addressable_shards} == {
            (len(batch["i"]) // shards,)
        }
        np.testing.assert_array_equal(batch["x"], np.stack([batch["i"], -batch["i"]], 1))
    return batches

line = Mesh(jax.devices(), ("data",))
square = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
for mesh, spec, shards in (
    (line, P("data"), 4), (line, P(None), 1), (square, P("data"), 2),
    (square, P("data", "model"), 2), (square, P(("data", "model")), 4),
    (square, P(None, "model"), 1),
):
    got = [row for b in check(mesh, spec, shards) for row in b["i"].tolist()]
    assert got == order + order[960 : 960 + -1003 % shards]
    batches = check(mesh, spec, shards, pad_last=True)
    assert [row for b in batches for row in b["i"][b["mask"]].tolist()] == order
    assert {b["i"].shape for b in batches} == {(64,)}
    got = [row for b in check(mesh, spec, shards, drop_last=True) for row in b["i"].tolist()]
    assert got == order[:960]

with pytest.raises(ValueError, match="batch_size: expected a multiple of 4, .* got 50"):
    sw.jax.Loader(data, 50, device=NamedSharding(line, P("data")))
"""


def test_a_sharding_over_several_devices() -> None:
    answer(SHARDED, env=devices(4))


PROCESSES = """
import sys, jax, numpy as np, pytest, stepwell as sw
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
rank, port = int(sys.argv[1]), sys.argv[2]
data = {"i": np.arange(1003, dtype=np.int32)}
data["x"] = np.stack([data["i"], -data["i"]], 1)
early = sw.jax.Loader(data, 50, seed=7, pad_last=True)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
order = sw.Shuffle(7).order(1003).rows(0, 0, 1003)
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("host", "own"))  # two devices each
add = jax.jit(lambda x: x.sum())

if sys.argv[3] == "early":  # a loader of before: its rank is that of the loop's beginning
    mine = [(step, row) for step, b in enumerate(early) for row in b["i"][b["mask"]].tolist()]
    print(mine)
    sys.exit()
for spec, world, shards in (
    (P("host"), 2, 1), (P(("host", "own")), 2, 2), (P("host", "own"), 2, 1),
    (P("own"), 1, 2), (P(None, "host"), 1, 1), (P(), 1, 1),  # both hold the same rows
):
    sharding = NamedSharding(mesh, spec)
    for options in ({}, {"pad_last": True}, {"drop_last": True}):
        got = []
        for batch in sw.jax.Loader(data, 50, seed=7, device=sharding, **options):
            whole = {name: process_allgather(values, tiled=True) for name, values in batch.items()}
            np.testing.assert_array_equal(whole["x"], np.stack([whole["i"], -whole["i"]], 1))
            assert int(add(batch["i"])) == whole["i"].sum()
            got += whole["i"][whole["mask"] if "mask" in whole else slice(None)].tolist()
        if options == {"pad_last": True}:
            assert got == order.tolist() and len(whole["i"]) == 50 * world
        elif options == {"drop_last": True}:
            assert got == order[:1000].tolist()
        else:
            assert got[:1003] == order.tolist() and len(got) == 1003 + -1003 % (world * shards)
    for wrong in ({"rank": 0, "world_size": 3}, {"rank": 1 - rank, "world_size": 2}):
        with pytest.raises(ValueError, match=f"expected {{'rank': .*}}, as the sharding has it"):
            sw.jax.Loader(data, 50, device=sharding, **wrong)
local = NamedSharding(Mesh(np.array(jax.local_devices()), ("own",)), P("own"))
batch = next(iter(sw.jax.Loader(data, 50, seed=7, device=local)))  # each its own arrays
assert batch["i"].tolist() == order[rank * 50 :][:50].tolist()
print("right")
"""


def in_two_processes(what: str) -> list[str]:
    """What each of two processes prints last, which JAX makes one of."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    args = [(PROCESSES, str(rank), port, what) for rank in range(2)]
    said = at_once(*(partial(answer, *each, env=devices(2)) for each in args))
    return [text.splitlines()[-1] for text in said]


def test_global_arrays_from_two_processes() -> None:
    assert in_two_processes("sharded") == ["right"] * 2


def test_a_loader_made_before_the_processes_know_each_other() -> None:
    first, second = map(literal_eval, in_two_processes("early"))
    assert len(first) + len(second) == 1003
    assert [row for _, row in sorted(first + second, key=itemgetter(0))] == [
        *sw.Shuffle(7).order(1003).rows(0, 0, 1003)
    ]


def test_one_device_sharding_of_this_process() -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("data",)), PartitionSpec("data"))
    loader = sw.jax.Loader(numbers(), 100, seed=7, device=sharding)
    assert rows(loader) == order()

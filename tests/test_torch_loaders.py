"""What frameworks look for in a loader, torch's class where they insist, and refusals where rows
would be shared out or batched twice. tests/frameworks runs the frameworks themselves."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from torch.utils import data

import stepwell as sw
from tests.children import answer

N = 1000
ROWS = np.arange(N)


def order(epoch: int = 0) -> list[int]:
    rows: list[int] = sw.Shuffle(7).order(N).rows(epoch, 0, N).tolist()
    return rows


def rows_of(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch["data"].tolist()]


WORLDS = [
    {"rank": 0, "world_size": 1},
    {"rank": 1, "world_size": 2},
    {"rank": 2, "world_size": 3, "drop_last": True},
    {"rank": 2, "world_size": 7, "batch_size": 500},
]


IN_TURN = sw.Block(9, 7, group=28, lanes=14)


@pytest.mark.parametrize("world", WORLDS, ids=str)
@pytest.mark.parametrize("sampler", [sw.Shuffle(7), IN_TURN], ids=repr)
def test_batch_sampler_and_dataset_are_the_loaders_batches(world: Any, sampler: Any) -> None:
    options: Any = {"batch_size": 64, "sampler": sampler, **world}
    loader = sw.torch.Loader(ROWS, **options)
    parts: dict[str, Any] = {"batch_sampler": loader.batch_sampler, "collate_fn": loader.collate_fn}
    torchs: data.DataLoader[Any] = data.DataLoader(loader.dataset, **parts)
    plain = sw.Loader(ROWS, **options)
    for _ in range(2):
        want, got = list(plain), list(torchs)
        assert [batch["data"].tolist() for batch in got] == [b["data"].tolist() for b in want]
        assert len(got) == len(torchs) == len(loader)
        assert sum(len(batch["data"]) for batch in got) == len(loader.sampler)
        assert loader.state_dict() == plain.state_dict()
    assert rows_of(loader) == rows_of(plain)


@pytest.mark.parametrize("world", WORLDS[:2], ids=str)
def test_workers_share_positions_that_ranks_take_in_turn(world: Any) -> None:
    options: Any = {"sampler": IN_TURN, **world}
    dataset = sw.torch.IterableDataset(ROWS, 64, **options)
    loader: Any = data.DataLoader(dataset, batch_size=None, num_workers=2)
    plain = sw.Loader(ROWS, 64, **options)
    for _ in range(2):
        want = [batch["data"].tolist() for batch in plain]
        assert [batch["data"].tolist() for batch in loader] == want


def test_a_loop_over_row_numbers_is_a_loop_of_the_loader() -> None:
    loader = sw.torch.Loader(ROWS, 64, seed=7)
    loop = iter(loader.batch_sampler)
    assert next(loop) == order()[:64]
    assert loader.state_dict()["position"] == 64
    again = sw.torch.Loader(ROWS, 64, seed=7)
    again.load_state_dict(loader.state_dict())
    assert [row for rows in again.batch_sampler for row in rows] == order()[64:]
    assert rows_of(loader) == order(1)
    with pytest.raises(RuntimeError, match="this loop was ended"):
        next(loop)
    assert list(loader.sampler) == order(2)


@pytest.mark.parametrize("find", [lambda x: x.sampler, lambda x: x.batch_sampler.sampler])
@pytest.mark.parametrize("make", [sw.torch.Loader, sw.torch.DataLoader])
def test_frameworks_set_the_epoch_of_the_sampler(make: Any, find: Any) -> None:
    loader = make(ROWS, 64, seed=7)
    assert not isinstance(find(loader), data.SequentialSampler)
    for epoch in (3, 3, 1):
        find(loader).set_epoch(epoch)
        assert rows_of(loader) == order(epoch)
    assert isinstance(find(make(ROWS, 64, shuffle=False)), data.SequentialSampler)


def test_what_a_loader_shows_of_itself() -> None:
    loader = sw.torch.Loader(ROWS, 64, drop_last=True)
    assert (loader.batch_size, loader.drop_last, loader.num_workers) == (64, True, 0)
    assert len(loader.dataset) == N
    assert loader.dataset[3] == {"data": 3}
    assert loader.order.rows(0, 0, 5).tolist() == sw.Shuffle(0).order(N).rows(0, 0, 5).tolist()


@dataclass(frozen=True)
class Later:
    """A transform that is another one in each epoch."""

    epoch: int = 0

    def __call__(self, batch: sw.Batch) -> sw.Batch:
        return {"data": batch["data"] + 1000 * self.epoch}

    def in_epoch(self, epoch: int) -> "Later":
        return Later(epoch)


def test_a_transform_knows_the_epoch_of_rows_that_a_framework_reads() -> None:
    loader = sw.torch.Loader(ROWS, 64, seed=7, transform=Later())
    parts: dict[str, Any] = {"batch_sampler": loader.batch_sampler, "collate_fn": loader.collate_fn}
    torchs: data.DataLoader[Any] = data.DataLoader(loader.dataset, **parts)
    for epoch in range(2):
        assert rows_of(torchs) == [row + 1000 * epoch for row in order(epoch)]


# The DataLoader.


def test_the_data_loader_is_torchs_in_our_order() -> None:
    loader = sw.torch.DataLoader(ROWS, 64, seed=7)
    assert isinstance(loader, data.DataLoader)
    assert [rows_of(loader) for _ in range(2)] == [order(0), order(1)]
    assert len(loader) == 16
    parts = [sw.torch.DataLoader(ROWS, 64, seed=7, rank=r, world_size=2) for r in range(2)]
    assert sorted(row for part in parts for row in rows_of(part)) == list(range(N))
    assert [len(part) for part in parts] == [8, 8]


def test_a_collate_fn_of_ones_own() -> None:
    loader = sw.torch.DataLoader(
        ROWS, 64, seed=7, collate_fn=lambda rows: [r["data"] for r in rows]
    )
    assert [int(row) for batch in loader for row in batch] == order()
    assert not hasattr(loader, "state_dict")


def test_the_data_loader_resumes_where_it_is_sure() -> None:
    loader = sw.torch.DataLoader(ROWS, 64, seed=7)
    loader.set_epoch(3)
    got = [next(loop) for loop in [iter(loader)] for _ in range(5)]
    again = sw.torch.DataLoader(ROWS, 64, seed=7)
    again.load_state_dict(loader.state_dict())
    sampler: Any = again.sampler
    sampler.set_epoch(3)  # as Lightning does
    assert rows_of(got) + rows_of(again) == order(3)
    again.load_state_dict(loader.state_dict())
    with pytest.raises(RuntimeError, match=r"expected set_epoch\(3\)"):
        sampler.set_epoch(0)  # as Fabric does


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_data_loader_survives_being_rebuilt(replicas: int) -> None:
    """As Lightning, Fabric and Ray rebuild it: its class, or torch's, with its attributes."""
    loader = sw.torch.DataLoader(ROWS, 50, seed=7, as_int64=["data"])
    found = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    names = ("dataset", "batch_size", "num_workers", "collate_fn", "pin_memory", "drop_last")
    kept = {name: found[name] for name in names}
    seen = []
    for rank in range(replicas):
        sampler: Any = data.DistributedSampler(loader.dataset, replicas, rank)
        for make in (sw.torch.DataLoader, data.DataLoader):
            rebuilt: Any = make(**kept, shuffle=False, sampler=sampler, batch_sampler=None)
            assert not hasattr(rebuilt, "state_dict")
            assert len(rebuilt) == 20 // replicas
            assert rows_of(rebuilt) == list(sampler)
            rebuilt.sampler.set_epoch(1)
            assert rows_of(rebuilt) == list(sampler)
            sampler.set_epoch(0)
        seen += list(sampler)
    assert sorted(seen) == list(range(N))
    batches = data.BatchSampler(loader.sampler, 50, False)
    predicting = sw.torch.DataLoader(dataset=loader.dataset, batch_sampler=batches, shuffle=False)
    assert rows_of(predicting) == order()


def test_the_whole_order_is_for_those_who_share_it_out() -> None:
    loader = sw.torch.DataLoader(ROWS, 50, seed=7, rank=0, world_size=2)
    copied: data.DataLoader[Any] = data.DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn
    )
    with pytest.raises(RuntimeError, match="expected a framework that gives each of 2 ranks"):
        next(iter(copied))


def test_options_of_a_dataset_are_given_once() -> None:
    with pytest.raises(ValueError, match="give transform and as_int64 to the MapDataset"):
        sw.torch.DataLoader(sw.torch.MapDataset(ROWS), 8, as_int64=["data"])


# Twice is refused.


def test_batches_are_not_batched_again() -> None:
    dataset = sw.torch.IterableDataset(ROWS, 64)
    with pytest.raises(RuntimeError, match=r"expected DataLoader\(dataset, batch_size=None\)"):
        next(iter(data.DataLoader(dataset, 4)))
    assert len(rows_of(data.DataLoader(dataset, batch_size=None))) == N


def test_a_ranks_part_is_not_shared_out_again() -> None:
    accelerate: Any = pytest.importorskip("accelerate.data_loader")
    dataset = sw.torch.IterableDataset(ROWS, 64, rank=0, world_size=2)
    shard = accelerate.IterableDatasetShard(dataset, 1, num_processes=2)
    with pytest.raises(RuntimeError, match="accelerate's IterableDatasetShard shares out"):
        next(iter(shard))
    with pytest.raises(RuntimeError, match="accelerate's IterableDatasetShard shares out"):
        shard.set_epoch(1)
    alone = sw.torch.IterableDataset(ROWS, 50, rank=0, world_size=1)
    assert len(rows_of(accelerate.IterableDatasetShard(alone, 1, num_processes=2))) == N // 2
    loader = sw.torch.Loader(ROWS, 64)
    with pytest.raises(RuntimeError, match="accelerate's BatchSamplerShard shares out"):
        next(iter(accelerate.BatchSamplerShard(loader.batch_sampler, 2)))
    whole = sw.torch.DataLoader(ROWS, 50, seed=7, rank=0, world_size=2)
    shards = [accelerate.BatchSamplerShard(whole.batch_sampler, 2, rank) for rank in range(2)]
    seen = []
    for each in shards:
        whole.set_epoch(0)
        seen += [row for rows in each for row in rows]
    assert sorted(seen) == list(range(N))


# Workers.

WORKERS = """
import numpy as np, torch, stepwell as sw
from torch.utils.data import DataLoader
def rows(loader):
    return [row for batch in loader for row in batch["data"].tolist()]
orders = {tuple(sw.Shuffle(7).order(1000).rows(e, 0, 1000).tolist()): e for e in range(12)}
def epochs(loader, count):
    return [orders.get(tuple(rows(loader))) for _ in range(count)]
def make(**options):
    dataset = sw.torch.IterableDataset(np.arange(1000), 64, seed=7)
    return dataset, DataLoader(dataset, batch_size=None, num_workers=2, **options)

for persistent in (False, True):
    dataset, loader = make(persistent_workers=persistent)
    assert epochs(loader, 3) == [0, 1, 2], persistent
    loop = iter(loader)
    next(loop)
    del loop
    assert epochs(loader, 1) == [4], persistent
    dataset.set_epoch(9)
    assert epochs(loader, 2) == [9, 10], persistent

dataset, loader = make()
for epoch in range(3):
    torch.manual_seed(0)  # DataLoader tells its workers the same seed each time
    assert epochs(loader, 1) == [epoch]

main = sw.torch.Loader(np.arange(1000), 64, seed=7)
main.set_epoch(2)
loop = iter(main)
got = [row for _ in range(5) for row in next(loop)["data"].tolist()]
dataset, loader = make()
dataset.load_state_dict(main.state_dict())
assert orders[tuple(got + rows(loader))] == 2
assert epochs(loader, 2) == [3, 4]
dataset.set_epoch(2)  # loops have begun since the state was loaded
assert epochs(loader, 1) == [2]

dataset, loader = make(persistent_workers=True)
assert epochs(loader, 1) == [0]
dataset.load_state_dict(main.state_dict())  # by workers that are there already
assert orders[tuple(got + rows(loader))] == 2
assert epochs(loader, 1) == [3]

half = sw.Loader(np.arange(1000), 1, seed=7, drop_last=True)
loop = iter(half)
[next(loop) for _ in range(990)]
dataset = sw.torch.IterableDataset(np.arange(1000), 64, seed=7, drop_last=True)
dataset.load_state_dict(half.state_dict())  # ten rows are left, and no batch
loader = DataLoader(dataset, batch_size=None, num_workers=2)
assert rows(loader) == sw.Shuffle(7).order(1000).rows(1, 0, 960).tolist()
try:
    dataset.state_dict()
except RuntimeError as error:
    assert "torchdata's StatefulDataLoader has" in str(error)
else:
    raise AssertionError("a state of a process that reads nothing")
dataset.set_epoch(5)
assert dataset.state_dict()["epoch"] == 5
print("right")
"""


LATE = """
import time
def late(worker):
    time.sleep(worker * 0.2)

for named in (False, True):
    dataset, loader = make(persistent_workers=True, worker_init_fn=late)
    next(iter(loader))  # of worker 0, when worker 1 has not begun
    if named:
        dataset.set_epoch(5)
    assert epochs(loader, 2) == ([5, 6] if named else [1, 2]), named

dataset, loader = make(worker_init_fn=late)
loop = iter(loader)
got = next(loop)["data"].tolist()
dataset.set_epoch(5)  # is about the next loop, also for workers that come late to this one
assert orders[tuple(got + rows(loop))] == 0
assert epochs(loader, 1) == [5]
print("right")
"""


def test_new_workers_go_on_to_the_next_epoch() -> None:
    # In an interpreter of its own: JAX, loaded by other tests, warns of any fork.
    assert answer(WORKERS) == "right"


def test_a_worker_that_comes_late_joins_its_loop() -> None:
    before = WORKERS.partition("for persistent")[0]
    assert answer(before + LATE) == "right"


def test_spawned_workers_share_the_epoch() -> None:
    dataset = sw.torch.IterableDataset(ROWS, 500, seed=7)
    loader = data.DataLoader(
        dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn"
    )
    assert [rows_of(loader) for _ in range(2)] == [order(0), order(1)]


def test_workers_of_the_data_loader_read_our_order() -> None:
    script = """
import numpy as np, stepwell as sw
loader = sw.torch.DataLoader(np.arange(1000), 64, seed=7, num_workers=2)
for epoch in range(2):
    got = [row for batch in loader for row in batch["data"].tolist()]
    assert got == sw.Shuffle(7).order(1000).rows(epoch, 0, 1000).tolist()
assert not hasattr(loader, "state_dict")
print("right")
"""
    assert answer(script) == "right"

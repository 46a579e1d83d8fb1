"""Tensors, torch's own loaders around a source, and ranks from torch.distributed."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import stepwell as sw
from tests import forks_beside_threads
from tests.children import answer, at_once
from tests.plain import PlainSource

N = 1000
STEP = np.dtype(
    [
        ("board", "<u8"),
        ("move", "u1"),
        ("ev_legal", "u1"),
        ("ev_values", "<f4", (4,)),
        ("run_id", "<u4"),
        ("step_index", "<u2"),
    ]
)


def steps() -> sw.ArraySource:
    rows = np.zeros(N, STEP)
    rows["board"] = np.arange(N)
    rows["ev_values"] = np.arange(N)[:, None] + [0.0, 0.25, 0.5, 0.75]
    return sw.ArraySource(rows)


def order(epoch: int = 0, seed: int = 7) -> list[int]:
    rows: list[int] = sw.Shuffle(seed).order(N).rows(epoch, 0, N).tolist()
    return rows


def boards(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch["board"].tolist()]


def test_batches_are_tensors_of_every_field() -> None:
    loader = sw.torch.Loader(steps(), 64, seed=7)
    batches = list(loader)
    assert boards(batches) == order()
    batch = batches[0]
    assert {name: t.dtype for name, t in batch.items()} == {
        "board": torch.uint64,
        "move": torch.uint8,
        "ev_legal": torch.uint8,
        "ev_values": torch.float32,
        "run_id": torch.int64,
        "step_index": torch.int32,
    }
    expected = batch["board"].to(torch.float32)[:, None] + torch.tensor([0.0, 0.25, 0.5, 0.75])
    assert torch.equal(batch["ev_values"], expected)


def test_tensors_share_memory_with_the_batch() -> None:
    batch = steps().columns(["board", "move", "ev_values"]).take(np.arange(10))
    tensors = sw.torch.as_tensors(batch)
    for name, values in batch.items():
        assert tensors[name].data_ptr() == values.ctypes.data


def test_ragged_fields_become_values_and_offsets() -> None:
    ragged = sw.Ragged(np.arange(5), np.array([0, 2, 5]))
    values, offsets = sw.torch.as_tensors({"tokens": ragged})["tokens"]
    assert values.tolist() == [0, 1, 2, 3, 4]
    assert offsets.tolist() == [0, 2, 5]


@pytest.mark.parametrize("dtype", [">f4", "U5", "M8[s]", STEP], ids=str)
def test_what_torch_cannot_hold_is_named(dtype: Any) -> None:
    source = sw.ArraySource({"odd": np.zeros(3, dtype)})
    with pytest.raises(sw.SchemaError, match="'odd'"):
        next(iter(sw.torch.Loader(source, 2)))


def test_the_state_is_that_of_the_plain_loader() -> None:
    loader = sw.torch.Loader(steps(), 64, seed=7)
    got = boards([next(iter(loader))])
    plain = sw.Loader(steps(), 100, seed=7)
    plain.load_state_dict(loader.state_dict())
    assert got + boards(plain) == order()


# A spawned worker imports torch, which takes longer than all the rest: once will do.
@pytest.mark.parametrize(
    ("workers", "collate"), [(0, None), (0, sw.torch.collate), (2, sw.torch.collate)]
)
def test_map_dataset_in_torchs_data_loader(workers: int, collate: Any) -> None:
    dataset = sw.torch.MapDataset(steps().columns(["board", "ev_values"]))
    options: dict[str, Any] = {"multiprocessing_context": "spawn"} if workers else {}
    loader = DataLoader(
        dataset, 64, shuffle=True, num_workers=workers, collate_fn=collate, **options
    )
    batches = list(loader)
    assert sorted(boards(batches)) == list(range(N))
    assert batches[0]["ev_values"].shape == (64, 4)
    assert [len(b["board"]) for b in batches] == [64] * 15 + [40]


def test_map_dataset_with_a_batch_sampler() -> None:
    dataset = sw.torch.MapDataset(steps(), transform=lambda b: {"board": b["board"] + 1})
    sampler = BatchSampler(RandomSampler(dataset), 64, drop_last=False)
    loader = DataLoader(dataset, sampler=sampler, batch_size=None)
    assert sorted(boards(loader)) == list(range(1, N + 1))
    assert dataset[3] == {"board": 4}
    assert len(dataset[2:5]["board"]) == 3
    with pytest.raises(IndexError, match="1000"):
        dataset[N]


@pytest.mark.parametrize(("workers", "epoch"), [(0, 0), (0, 3), (2, 3)])
def test_iterable_dataset_gives_the_same_batches_with_any_workers(workers: int, epoch: int) -> None:
    dataset = sw.torch.IterableDataset(steps(), 64, seed=7)
    if epoch:
        dataset.set_epoch(epoch)
    options: dict[str, Any] = {"multiprocessing_context": "spawn"} if workers else {}
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, **options)
    batches = list(loader)
    assert boards(batches) == order(epoch)
    assert len(batches) == len(loader) == 16


def test_iterable_dataset_in_a_stateful_data_loader() -> None:
    # In an interpreter of its own, for the fork; torch's spawned workers may abort when they
    # are left with batches that nobody fetches.
    script = """
import numpy as np, stepwell as sw
from torchdata.stateful_dataloader import StatefulDataLoader
def make(workers):
    dataset = sw.torch.IterableDataset(np.arange(1000), 64, seed=7)
    return StatefulDataLoader(dataset, batch_size=None, num_workers=workers)
order = sw.Shuffle(7).order(1000).rows(0, 0, 1000).tolist()
for workers, stop in ((0, 1), (0, 6), (0, 15), (2, 1), (2, 6), (2, 15)):
    loader = make(workers)
    loop = iter(loader)
    got = [row for _ in range(stop) for row in next(loop)["data"].tolist()]
    state = loader.state_dict()
    again = make(workers)
    again.load_state_dict(state)
    got += [row for batch in again for row in batch["data"].tolist()]
    assert got == order, (workers, stop)
print("exact")
"""
    assert answer(script) == "exact"


@forks_beside_threads
def test_forked_workers_share_an_epoch_after_set_epoch() -> None:
    # In an interpreter of its own: JAX, loaded by other tests, warns of any fork.
    script = """
import numpy as np, torch, stepwell as sw
from torch.utils.data import DataLoader
for rank, world, drop_last in ((0, 1, False), (1, 2, False), (1, 2, True)):
    options = dict(seed=7, rank=rank, world_size=world, drop_last=drop_last)
    dataset = sw.torch.IterableDataset(np.arange(1000), 64, **options)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    plain = sw.Loader(np.arange(1000), 64, **options)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        dataset.state_dict()
        got = [batch["data"].tolist() for batch in loader]
        assert got == [batch["data"].tolist() for batch in plain], (rank, epoch)
        assert len(got) == len(loader)
print("same")
"""
    assert answer(script) == "same"


def test_a_source_in_torchs_data_loader_by_itself() -> None:
    source: Any = steps().columns(["move", "ev_values"])
    loader: DataLoader[Any] = DataLoader(source, 64)
    batches = list(loader)
    assert sum(len(b["move"]) for b in batches) == N
    assert batches[0]["ev_values"].shape == (64, 4)


def test_map_dataset_of_ragged_rows() -> None:
    words = [np.arange(n % 5) for n in range(20)]
    dataset = sw.torch.MapDataset(PlainSource({"words": words}))
    rows = dataset.__getitems__([1, 2, 3, 4])
    assert [row["words"].tolist() for row in rows] == [w.tolist() for w in words[1:5]]
    assert dataset[-1]["words"].tolist() == words[-1].tolist()
    values, offsets = sw.torch.collate(rows)["words"]
    assert offsets.tolist() == [0, 1, 3, 6, 10]
    assert len(values) == 10


def test_a_transform_that_gives_no_dict() -> None:
    pair: Any = lambda batch: (batch["board"], batch["move"])  # noqa: E731
    loader = sw.torch.Loader(steps(), 8, transform=pair)
    with pytest.raises(TypeError, match="expected a dict of arrays"):
        next(iter(loader))


WORLD = """
import sys, torch.distributed as dist, numpy as np, stepwell as sw
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
loader = sw.torch.Loader(np.arange(1000), 64, seed=7)
print(*(row for batch in loader for row in batch["data"].tolist()))
dist.destroy_process_group()
"""


def test_ranks_come_from_torch_distributed(tmp_path: Path) -> None:
    said = at_once(*(partial(answer, WORLD, str(r), tmp_path / "store") for r in range(2)))
    rows = [[int(row) for row in text.split()] for text in said]
    ranks = [sw.Loader(np.arange(N), 64, seed=7, rank=r, world_size=2) for r in range(2)]
    assert rows == [[row for b in loader for row in b["data"].tolist()] for loader in ranks]
    assert sorted(set(rows[0] + rows[1])) == list(range(N))

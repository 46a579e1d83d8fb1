"""Which rank a loader takes itself for, and what it refuses to believe."""

import os
import socket
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell as sw
from stepwell import ranks
from tests.children import answer, at_once

KNOWN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE")
STEP = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The variables of launchers, of which there are none at first."""
    for name in list(os.environ):
        if name in KNOWN or name.startswith(("SLURM_", "OMPI_", "PMI_")):
            monkeypatch.delenv(name)
    return monkeypatch


def with_variables(monkeypatch: pytest.MonkeyPatch, text: dict[str, str]) -> sw.Loader:
    for name, value in text.items():
        monkeypatch.setenv(name, value)
    return sw.Loader(np.arange(16), 2, shuffle=False)


@pytest.mark.parametrize(
    ("found", "world"),
    [
        ({}, "0 of 1 (one process)"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "1 of 2 (RANK and WORLD_SIZE)"),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, "1 of 4 (RANK and WORLD_SIZE)"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "1 of 2 (LOCAL_RANK and WORLD_SIZE)"),
        (
            {"WORLD_SIZE": "4", "LOCAL_RANK": "1", "NODE_RANK": "0"},
            "1 of 4 (LOCAL_RANK and WORLD_SIZE)",
        ),
        (
            {"WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            "3 of 4 (LOCAL_RANK and WORLD_SIZE)",
        ),
        ({**STEP, "SLURM_STEP_ID": "0"}, "2 of 4 (SLURM_PROCID and SLURM_STEP_NUM_TASKS)"),
        ({**STEP, "SLURM_STEP_ID": "4294967291"}, "0 of 1 (one process)"),  # a batch script's
        ({**STEP, "SLURM_STEP_ID": "batch"}, "0 of 1 (one process)"),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}, "0 of 1 (one process)"),
        ({**STEP, "SLURM_STEP_ID": "0", "RANK": "0", "WORLD_SIZE": "2"}, "0 of 2 (RANK and WORLD"),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"},
            "1 of 3 (OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE)",
        ),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, "2 of 3 (PMI_RANK and PMI_SIZE)"),
        ({"WORLD_SIZE": "1"}, "0 of 1 (one process)"),
        ({"RANK": "", "WORLD_SIZE": ""}, "0 of 1 (one process)"),
    ],
)
def test_variables_of_launchers(
    variables: pytest.MonkeyPatch, found: dict[str, str], world: str
) -> None:
    loader = with_variables(variables, found)
    assert f"rank={world}" in repr(loader)
    rank, size = int(world.split()[0]), int(world.split()[2])
    assert next(iter(loader))["data"].tolist() == [2 * rank, 2 * rank + 1]
    assert len(loader) == -(-8 // size)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"WORLD_SIZE": "4"}, "expected RANK beside WORLD_SIZE.*got WORLD_SIZE=4 and no rank"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "got rank 4 of 4 - at RANK and WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "got rank 0 of 0 - at RANK and WORLD_SIZE"),
        ({"RANK": "one", "WORLD_SIZE": "4"}, "a whole number, got 'one' - at the variable RANK"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "a whole number, got '-1' - at the variable RANK"),
        ({"RANK": "1"}, "expected WORLD_SIZE beside RANK=1, got none"),
        ({"LOCAL_RANK": "1"}, "expected WORLD_SIZE beside LOCAL_RANK=1, got none"),
        ({"LOCAL_RANK": "2", "WORLD_SIZE": "2"}, "got rank 2 of 2 - at LOCAL_RANK"),
        (
            {"WORLD_SIZE": "4", "LOCAL_RANK": "0", "NODE_RANK": "1"},
            "got NODE_RANK=1, LOCAL_RANK=0 and WORLD_SIZE=4, which do not show how many processes",
        ),
        ({**STEP, "SLURM_STEP_ID": "0", "WORLD_SIZE": "8"}, "WORLD_SIZE=8 and rank 2 of 4"),
        ({"PMI_RANK": "3", "PMI_SIZE": "3"}, "got rank 3 of 3 - at PMI_RANK and PMI_SIZE"),
        (
            {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"},
            "expected SLURM_PROCID beside SLURM_STEP_NUM_TASKS=4, got none",
        ),
    ],
)
def test_variables_that_contradict_each_other(
    variables: pytest.MonkeyPatch, found: dict[str, str], message: str
) -> None:
    loader = with_variables(variables, found)
    for begin in (lambda: next(iter(loader)), lambda: len(loader)):
        with pytest.raises(ValueError, match=message):
            begin()
    assert "rank=unknown (expected" in repr(loader)
    assert "rank" in loader._repr_html_()
    given = sw.Loader(np.arange(16), 2, shuffle=False, rank=1, world_size=2)  # these come first
    assert next(iter(given))["data"].tolist() == [2, 3]
    assert "rank=1 of 2 (arguments)" in repr(given)


def test_ranks_are_found_when_a_loop_begins(variables: pytest.MonkeyPatch) -> None:
    loader = sw.Loader(np.arange(16), 2, shuffle=False)
    assert len(loader) == 8
    loop = iter(loader)
    variables.setenv("RANK", "1")
    variables.setenv("WORLD_SIZE", "2")
    assert len(loader) == 4
    assert next(loop)["data"].tolist() == [2, 3]
    assert loader.remaining == 3
    variables.setenv("WORLD_SIZE", "4")
    assert len(loader) == 2  # which fixes nothing
    assert [batch["data"].tolist() for batch in loop] == [[6, 7], [10, 11], [14, 15]]
    assert [batch["data"].tolist() for batch in loader] == [[2, 3], [10, 11]]


def test_a_world_that_leaves_nothing_is_found_when_a_loop_begins(
    variables: pytest.MonkeyPatch,
) -> None:
    loader = sw.Loader(np.arange(16), 8, drop_last=True)
    variables.setenv("RANK", "1")
    variables.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="drop_last leaves nothing"):
        next(iter(loader))


# Two ranks in a process group. Each prints what it met, a line for each thing that it tries.

GROUP = """
import sys, numpy as np, stepwell as sw
rank, store = int(sys.argv[1]), sys.argv[2]

def first(loader, epoch=None):
    if epoch is not None:
        loader.set_epoch(epoch)
    loop = iter(loader)
    try:
        got = next(loop)["data"].tolist()
        next(loop)  # where ranks are compared
        return got
    except RuntimeError as error:
        return error

def look(loader, batches=1):
    loop = iter(loader)
    for _ in range(batches):
        next(loop)

def make(rows=16, **options):
    return sw.Loader(np.arange(rows), 2, **{"shuffle": False, **options})

def turns(call):
    "Rank 1 begins when rank 0 has begun, and both go on when rank 1 has."
    if rank:
        barrier()
    got = call()
    if not rank:
        barrier()
    barrier()
    print(got)

"""

TORCH = (
    GROUP
    + """
early, running = make(), make()
loop = iter(running)
next(loop)
import torch.distributed as dist
barrier = lambda: dist.barrier()
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
try:
    next(loop)
except RuntimeError as error:
    print(error)
print(repr(early).split("rank=")[1])
turns(lambda: first(early))
turns(lambda: first(early))            # the next epoch, on both
turns(lambda: first(make(16 + 2 * rank)))
turns(lambda: first(make(seed=rank, shuffle=True)))
turns(lambda: first(make(sampler=sw.Block(2 + rank), shuffle=True)))
turns(lambda: first(sw.Loader(np.arange(16) + rank, 2)))
turns(lambda: first(sw.Loader(np.arange(16), 2 + rank)))
turns(lambda: first(make(shuffle=True), epoch=3 * rank))
turns(lambda: first(make(rank=0, world_size=1, seed=rank, shuffle=True)))  # as it was wanted

looked = make(shuffle=True)            # rank 0 looks at batches, then both name their epochs
if rank == 0:
    look(looked), look(looked)
turns(lambda: type([first(looked, epoch) for epoch in range(3, 23)][-1]).__name__)

resumed = make(shuffle=True)           # or load a state
if rank == 0:
    look(resumed)
resumed.load_state_dict({**resumed.state_dict(), "epoch": 3, "position": 4})
turns(lambda: type(first(resumed)).__name__)

same = make()                          # each epoch has the same rows: it matters to nobody
look(same, 2 + 2 * rank)
if rank == 0:
    look(same, 3)
turns(lambda: first(same))

ahead = make(shuffle=True)             # rank 0 looks at a batch, nobody names an epoch
if rank == 0:
    look(ahead)
turns(lambda: first(ahead))

later = make(shuffle=True)             # it looks at two: rank 1 sees it when it comes to the epoch
if rank == 0:                          # that rank 0 is in
    look(later, 2)
turns(lambda: first(later) if rank == 0 else [list(later), first(later)][-1])

apart = make(shuffle=True)             # of epoch 1 on one rank
apart.load_state_dict({**apart.state_dict(), "epoch": rank, "position": 4 * rank})
turns(lambda: first(apart))
dist.barrier()
dist.destroy_process_group()
"""
)


def lines(said: list[str]) -> list[list[str]]:
    return [text.splitlines() for text in said]


def test_ranks_of_a_torch_group(tmp_path: Path) -> None:
    said = at_once(*(partial(answer, TORCH, str(r), tmp_path / "store") for r in range(2)))
    zero, one = lines(said)
    for rank, each in enumerate((zero, one)):
        assert each[0] == (
            f"expected rank 0 of 1 (one process), as this loop began, got rank {rank} of 2 "
            "(torch.distributed); begin a new loop once the process group is up"
        )
        assert each[1].startswith(f"{rank} of 2 (torch.distributed)")
        assert each[2] == each[3] == str([2 * rank, 2 * rank + 1])
    assert zero[4] == "[0, 1]"
    assert one[4].startswith(
        "expected the same length on every rank, got 18 on rank 1 and 16 on rank 0 - in a loop of "
        "the loader made at <string>:"
    )
    for line, odd in zip(
        one[5:10],
        [
            "seed on every rank, got 1 on rank 1 and 0 on rank 0",
            "sampler on every rank, got 'Block(k=3, group=64)' on rank 1 and 'Block(k=2, group=64)",
            "fingerprint on every rank, got ",
            "batch_size on every rank, got 3 on rank 1 and 2 on rank 0",
            "epoch on every rank, got 3 on rank 1 and 0 on rank 0",
        ],
        strict=True,
    ):
        assert line.startswith(f"expected the same {odd}"), line
    assert not any(line.startswith("expected the same") for line in zero[4:10])
    assert one[10].startswith("[")
    assert zero[11:13] == one[11:13] == ["list", "list"]
    assert (zero[13], one[13]) == ("[0, 1]", "[2, 3]")
    for line, odd in zip(
        one[14:],
        [
            "epoch on every rank, got 0 on rank 1 and 1 on rank 0",
            "end of the loop before on every rank, got 'its last batch' on rank 1 and 'position 8",
            "epoch on every rank, got 1 on rank 1 and 0 on rank 0",
        ],
        strict=True,
    ):
        assert line.startswith(f"expected the same {odd}"), line


THREE = """
import sys, numpy as np, stepwell as sw, torch.distributed as dist
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
loader = sw.Loader(np.arange(16), 2)
loader.set_epoch(5 if rank == 0 else 0)
for turn in range(3):
    if turn == rank:
        try:
            loop = iter(loader)
            next(loop), next(loop)
            print("begun")
        except RuntimeError as error:
            print(error)
    dist.barrier()
dist.destroy_process_group()
"""


def test_the_odd_rank_is_named_once_there_are_enough_to_know(tmp_path: Path) -> None:
    said = at_once(*(partial(answer, THREE, str(r), tmp_path / "store") for r in range(3)))
    assert said[0] == "begun"  # the first to come, and nobody waits
    assert "same epoch on every rank, got 0 on rank 1 and 5 on rank 0 - in" in said[1]
    assert "same epoch on every rank, got 5 on rank 0 and 0 on ranks 1, 2 - in" in said[2]


JAX = (
    GROUP
    + """
early = make()
import jax
jax.distributed.initialize(f"127.0.0.1:{store}", num_processes=2, process_id=rank)
client = jax._src.distributed.global_state.client
count = iter(range(1000))
barrier = lambda: client.wait_at_barrier(f"turn {next(count)}", 60_000)
print(repr(early).split("rank=")[1])
turns(lambda: first(early))
turns(lambda: first(early))
turns(lambda: first(make(16 + 2 * rank)))
turns(lambda: first(make(shuffle=True), epoch=3 * rank))
many = make()
turns(lambda: [first(many) for _ in range(40)][-1])
"""
)


def test_ranks_of_jax_that_is_initialized_after_the_loader_was_made() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    said = at_once(*(partial(answer, JAX, str(rank), str(port)) for rank in range(2)))
    zero, one = lines(said)
    for rank, each in enumerate((zero, one)):
        assert each[0].startswith(f"{rank} of 2 (jax.distributed)")
        assert each[1] == each[2] == each[5] == str([2 * rank, 2 * rank + 1])
    assert one[3].startswith("expected the same length on every rank, got 18 on rank 1 and 16 on")
    assert one[4].startswith("expected the same epoch on every rank, got 3 on rank 1 and 0 on rank")


RESTARTED = """
import os, sys, numpy as np, stepwell as sw, torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # which registers "fake"
from multiprocessing import get_context
def rank_main(attempt, rank, store):
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": attempt}
    store = dist.FileStore(store, 2)
    dist.init_process_group("fake", store=store, rank=rank, world_size=2)
    loader = sw.Loader(np.arange(16 + 2 * (attempt == "2") * rank), 2, seed=7)
    if attempt == "1":
        loader.load_state_dict({**loader.state_dict(), "epoch": 3, "position": 4})
    loop = iter(loader)
    try:
        next(loop), next(loop)
        print(attempt, rank, "goes on in", loader.epoch, flush=True)
    except RuntimeError as error:
        print(attempt, rank, error, flush=True)
for attempt in "012":
    for rank in range(2):
        child = get_context("fork").Process(target=rank_main, args=(attempt, rank, sys.argv[1]))
        child.start()
        child.join()
        assert child.exitcode == 0
"""


def test_ranks_of_a_job_that_was_restarted_are_not_compared_with_dead_ones(tmp_path: Path) -> None:
    """torchrun's store outlives the ranks. The group has no connections, as none is needed here."""
    said = answer(RESTARTED, tmp_path / "store").splitlines()
    assert said[:5] == [
        *("0 0 goes on in 0", "0 1 goes on in 0", "1 0 goes on in 3", "1 1 goes on in 3"),
        "2 0 goes on in 0",
    ]
    assert said[5].startswith("2 1 expected the same length on every rank, got 18 on rank 1 and 16")


WORKERS = """
import sys, numpy as np, stepwell as sw
import torch.distributed as dist
from tests.test_ranks import in_children
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
print(in_children(sw.Loader(np.arange(16), 2, shuffle=False)))
dist.barrier()
dist.destroy_process_group()
"""


def rows_of(loader: Any) -> list[int]:
    return [row for batch in loader for row in batch["data"].tolist()]


def in_children(loader: Any) -> list[list[int]]:
    """What worker processes of this one read, however they are started."""
    got = []
    for way in ("spawn", "forkserver", "fork"):
        with get_context(way).Pool(1) as pool:
            got.append(pool.apply(rows_of, (loader,)))
    return got


def test_a_worker_process_is_of_the_rank_of_its_parent(tmp_path: Path) -> None:
    said = at_once(*(partial(answer, WORKERS, str(r), tmp_path / "store") for r in range(2)))
    expected = [[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]
    assert said == [str([rows] * 3) for rows in expected]


def test_what_a_parent_found_is_nothing_to_other_processes() -> None:
    there = ranks.World(1, 2, "torch.distributed")
    assert ranks.find((os.getpid(), there)) == ranks.ALONE


def test_a_loader_starts_no_ray() -> None:
    """It looks whether it is a worker of one; to ask Ray for that would start a whole node."""
    script = """
import numpy as np, ray, ray.train, stepwell as sw
rows = [row for batch in sw.Loader(np.arange(10), 3, shuffle=False) for row in batch["data"]]
assert rows == list(range(10))
print(ray.is_initialized())
"""
    assert answer(script) == "False"

"""torch.distributed, torch's DataLoader and torchdata's around our loaders and datasets."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch

import stepwell as sw
from tests.frameworks.conftest import Launch
from tests.frameworks.notes import EVEN, Seen, check_epochs, plain


@pytest.fixture
def seen(launch: Launch) -> Seen:
    return launch("torch_program")


def shares(epochs: int) -> list[list[list[int]]]:
    return [[plain(epoch, rank, 2) for epoch in range(epochs)] for rank in range(2)]


@pytest.mark.row("before")
@pytest.mark.parametrize(
    ("name", "epochs"), [("loader before the group", 3), ("loader of the parent process", 2)]
)
def test_a_loader_made_before_the_group_has_its_share(seen: Seen, name: str, epochs: int) -> None:
    ranks = seen.rows(name)
    check_epochs(ranks)
    assert ranks == shares(epochs)


@pytest.mark.row("before")
def test_repr_shows_the_rank_and_where_it_came_from(seen: Seen) -> None:
    for rank, (text,) in enumerate(seen.rows("repr")):
        assert f"rank={rank} of 2" in text
        assert "torch" in text.split(f"rank={rank} of 2")[1]


@pytest.mark.row("before")
def test_a_loop_of_another_world_is_an_error(seen: Seen) -> None:
    for rank in range(2):
        assert "of 1" in seen.refusal("a loop that began before the group", rank)


@pytest.mark.row("before")
@pytest.mark.parametrize("name", ["unlike data", "unlike epochs"])
def test_the_rank_that_comes_later_names_the_difference(seen: Seen, name: str) -> None:
    first, _ = seen(name)
    assert first == plain(0, 0, 2)[:128]
    assert "rank 0" in seen.refusal(name, rank=1)


@pytest.mark.row("resume")
def test_a_state_of_two_ranks_is_resumed_exactly(seen: Seen) -> None:
    for rank, (middle, last, end) in enumerate(seen.rows("an exact resume")):
        assert middle == [plain(0, rank, 2, skip=3), plain(1, rank, 2)]
        assert last == [plain(0, rank, 2, skip=7), plain(1, rank, 2)]
        assert end == [plain(1, rank, 2), plain(2, rank, 2)]
    for alone in seen.rows("a resume in a world of one"):
        assert alone == plain(0)[2 * 3 * 64 :]


@pytest.mark.row("workers")
@pytest.mark.parametrize("name", ["DataLoader with workers", "DataLoader without workers"])
def test_workers_go_to_the_next_epoch_by_themselves(seen: Seen, name: str) -> None:
    assert seen.rows(name) == shares(3)


@pytest.mark.row("workers")
def test_a_stateful_data_loader_resumes_and_goes_on(seen: Seen) -> None:
    assert seen.rows("StatefulDataLoader") == [[share, share] for share in shares(3)]


@pytest.mark.row("attributes")
def test_torchs_distributed_sampler(seen: Seen) -> None:
    check_epochs(seen.rows("DistributedSampler"), EVEN)


@pytest.mark.row("batched again")
def test_batches_are_not_batched_again(seen: Seen) -> None:
    for rank in range(2):
        assert "batch_size=None" in seen.refusal("batched again", rank)


@pytest.mark.row("integers")
def test_integers_that_torch_can_compute_with() -> None:
    rows = np.zeros(10, [("run_id", "<u4"), ("step_index", "<u2"), ("board", "<u8")])
    rows["run_id"], rows["step_index"] = 2**32 - 1 - np.arange(10), 2**16 - 1
    rows["board"] = 2**64 - 1
    batch: Any = next(iter(sw.torch.Loader(rows, 10, shuffle=False)))
    run_id, step = batch["run_id"], batch["step_index"]
    assert (run_id.dtype, step.dtype, batch["board"].dtype) == (
        torch.int64,
        torch.int32,
        torch.uint64,
    )
    assert int((run_id + 1).max()) == 2**32
    assert (step < 2**16).all()
    assert step[torch.argsort(run_id)].tolist() == [2**16 - 1] * 10
    assert torch.equal(pickle.loads(pickle.dumps(run_id)), run_id)
    loader: Any = sw.torch.Loader
    named = next(iter(loader(rows, 10, shuffle=False, as_int64=["board"])))["board"]
    assert named.dtype == torch.int64
    assert named.tolist() == [-1] * 10  # the same bits

"""accelerate and transformers around our loaders, in two processes that torchrun starts."""

import pytest

from tests.frameworks.conftest import Launch
from tests.frameworks.notes import BATCH, EVEN, HELD_OUT, N, Seen, check_epochs, plain


@pytest.fixture
def seen(launch: Launch) -> Seen:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    return launch("huggingface_program", *torchrun)


@pytest.mark.row("sharded again")
def test_prepare_of_a_loader(seen: Seen) -> None:
    check_epochs(seen.rows("Loader"))
    for rank, epochs in enumerate(seen.rows("Loader")):
        assert epochs == [plain(0, rank, 2), plain(1, rank, 2)]


@pytest.mark.row("sharded again")
@pytest.mark.parametrize("name", ["IterableDataset", "IterableDataset, not dispatched"])
def test_prepare_does_not_share_out_a_share(seen: Seen, name: str) -> None:
    assert "stepwell.torch.Loader(" in seen.refusal(name)


@pytest.mark.row("attributes")
def test_batches_are_skipped(seen: Seen) -> None:
    for rank, rest in enumerate(seen.rows("Loader, skipped")):
        assert rest == [plain(1, rank, 2, skip=3), plain(2, rank, 2)]
    whole, skipped = seen.rows("DataLoader"), seen.rows("DataLoader, skipped")
    assert skipped == [[second[3 * BATCH :], third] for _, second, third in whole]


@pytest.mark.row("attributes")
@pytest.mark.parametrize("name", ["DataLoader", "MapDataset"])
def test_prepare_of_torchs_data_loader(seen: Seen, name: str) -> None:
    check_epochs(seen.rows(name), EVEN)


@pytest.mark.row("attributes")
def test_the_accelerator_saves_and_loads_a_loader(seen: Seen) -> None:
    for rank, epochs in enumerate(seen.rows("checkpoint")):
        assert epochs == [plain(0, rank, 2), plain(1, rank, 2)]


@pytest.mark.row("attributes")
def test_the_accelerator_knows_the_last_batch_of_a_loader(seen: Seen) -> None:
    for (held_out, last), steps in seen.rows("counted"):
        assert held_out == list(range(HELD_OUT + 1))  # none of those that fill ranks up
        assert len(last) == N % (2 * BATCH)
        each = [False, False, True, False, False, True, False, True]
        assert steps == 3 * each + [False, False, True, False, True]


@pytest.mark.row("attributes")
def test_a_trainer_resumes_a_loader(seen: Seen) -> None:
    for rank, (once, early, late) in enumerate(seen.rows("Trainer with a Loader")):
        assert once == [plain(0, rank, 2), plain(1, rank, 2)]
        assert early == [plain(0, rank, 2, skip=3), plain(1, rank, 2)]
        assert late == [plain(1, rank, 2, skip=1)]


@pytest.mark.row("batched again")
def test_a_trainer_resumes_a_map_dataset(seen: Seen) -> None:
    ranks = seen.rows("Trainer with a MapDataset")
    check_epochs([once for once, _, _ in ranks], EVEN)
    for (first, second), early, late in ranks:
        assert early == [first[3 * BATCH :], second]
        assert late == [second[BATCH:]]


@pytest.mark.row("batched again")
def test_a_trainer_does_not_batch_batches(seen: Seen) -> None:
    assert "stepwell.torch.MapDataset(" in seen.refusal("Trainer with an IterableDataset")
